"""From settings to a store: a registry of the kinds of store that there are."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pawnqueue.stores.credentials import Session
    from pawnqueue.stores.port import Store


class StoreSettings(Protocol):
    """A section of the settings that says where a bucket is. Each kind of store has one."""

    @property
    def store_kind(self) -> str:
        """The kind: a key of :data:`MODULE_BY_KIND`."""

    @property
    def bucket_name(self) -> str:
        """The bucket's name, for events and messages."""

    @property
    def endpoint(self) -> str:
        """The store's name in a sentence."""


#: The module of each kind of store, by its name. The module has a function ``connect`` with the parameters of the
#: one below. It is imported late: nobody pays for the client of a store that is not used.
MODULE_BY_KIND: Final[Mapping[str, str]] = {
    "s3": "pawnqueue.stores.s3",
    "memory": "pawnqueue.stores.memory",
}


def connect(settings: StoreSettings, session: Session | None = None) -> Store:
    """Make the store that the settings describe; no request is made yet. May block: it imports a client, reads files.

    :param session: a boto3 session of the caller's, used for its credentials instead of those in the settings.
    """
    store: Store = import_module(MODULE_BY_KIND[settings.store_kind]).connect(settings, session)
    return store

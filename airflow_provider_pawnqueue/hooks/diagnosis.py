"""Answers of *Test connection*, and errors in the words of Airflow's users."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

from airflow_provider_pawnqueue.hooks.connection import path_of
from airflow_provider_pawnqueue.provider_info import get_provider_info
from pawnqueue import PawnQueueError, TopicNotEmptyError, TopicNotFoundError
from pawnqueue.settings.short_names import names_of_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pawnqueue.hooks.connection import Address
    from pawnqueue import ProbeResult, SyncPawnQueue
    from pawnqueue.reads.health import Health

#: A clock that is further off than this confuses who reads two logs side by side; the queue goes by the store's alone.
_FAR_OFF: Final = 1.0
#: The fields of the form that are in no extra, by their settings.
_STANDARD: Final = {
    "s3.endpoint_url": "Endpoint",
    "s3.aws_access_key_id": "Access key id",
    "s3.aws_secret_access_key": "Secret access key",
}
#: The engine's advice where TLS fails: a connection has no field for that setting, but a host.
_CHECK_TLS: Final = "check s3.use_ssl"
#: The same, by the names that a connection written without the form has for them.
_FIELDS: Final = {"s3.endpoint_url": "host", "s3.aws_access_key_id": "login", "s3.aws_secret_access_key": "password"}


def in_airflow(error: PawnQueueError) -> str:
    """Return an error's sentence, with what a user of Airflow can do about it."""
    match error:
        case TopicNotFoundError(topic=str(topic)) if topic:
            return (
                f"{error} In Airflow, PawnQueueCreateTopicOperator makes a topic, and by hand "
                f"`airflow pawnqueue create-topic {topic}`."
            )
        case TopicNotEmptyError(topic=str(topic)) if topic:
            return f"{error} By hand, `airflow pawnqueue delete-topic {topic} --force` does that."
        case _:
            return str(error)


def connection(queue: SyncPawnQueue) -> str:
    """Ask the store of an open queue what it can do, and say it in a few sentences."""
    return " ".join(_sentences(queue, queue.probe(), queue.health()))


def failure(error: Exception, conn_id: str) -> str:
    """Say what is wrong in the words of the form: it has labels where the engine has settings.

    And it has no id: Airflow draws one for each press of the button.
    """
    said = str(error).removeprefix(f"Connection {conn_id!r}: ").replace(f"Connection {conn_id!r}", "This connection")
    said = said.replace(_CHECK_TLS, "check whether 'Endpoint' begins with http:// or https://")
    return _renamed(said, {path: repr(label) for path, label in _labels().items()})


def of_connection(error: Exception, conn_id: str, address: Address | None = None) -> str:
    """Say what is wrong with a connection or its queue, by the names of the connection's fields.

    :param address: what the connection says, where it could be read.
    """
    known = sorted(set(names_of_settings().values()))
    names = {path: f"extra.{path.removeprefix('s3.')}" for path in known if path.startswith("s3.")} | _FIELDS
    if address is not None and address.aws_conn_id:
        keys = f"the keys of AWS connection {address.aws_conn_id!r}"
        names |= dict.fromkeys(("s3.aws_access_key_id", "s3.aws_secret_access_key"), keys)
    said = str(error)
    told = said
    if address is not None and address.is_https_assumed:
        told = told.replace(_CHECK_TLS, "host has neither http:// nor https://, so https was assumed: write it")
    renamed = _renamed(told, names)
    is_named = renamed == said or said.startswith("Connection ")
    return renamed if is_named else f"Connection {conn_id!r}: {renamed}"


def _renamed(said: str, names: Mapping[str, str]) -> str:
    for path, name in names.items():
        said = re.sub(rf"(?<![\w.]){re.escape(path)}(?![\w.]*\w)", name, said)
    return said


@cache
def _labels() -> dict[str, str]:
    fields = get_provider_info()["connection-types"][0]["conn-fields"]
    return _STANDARD | {path_of(name): field["label"] for name, field in fields.items() if name != "aws_conn_id"}


def _sentences(queue: SyncPawnQueue, found: ProbeResult, health: Health) -> list[str]:
    s3 = queue.settings.s3
    below = f" below {s3.key_prefix}" if s3.key_prefix else ""
    took = f"{max(health.round_trip_seconds * 1000, 1):.0f} ms"
    said = [
        f"Reached {s3.endpoint_url or 'AWS'}, bucket {s3.bucket_name!r}{below}; a request takes {took}.",
        f"The lease strategy of this queue is {queue.strategy}: {found.reason}",
        "What is written is read at once, and listed at once.",
        _clock(health),
    ]
    if found.strategy != queue.strategy:
        said.append(f"The probe would choose {found.strategy} today; what the bucket's processes agreed on stays.")
    return [sentence if sentence.endswith(".") else f"{sentence}." for sentence in said]


def _clock(health: Health) -> str:
    offset = health.clock_offset_seconds
    if abs(offset) <= _FAR_OFF:  # a store tells its time in whole seconds
        return "This machine's clock and the store's agree within a second."
    way = "ahead of" if offset > 0 else "behind"
    return f"This machine's clock is {abs(offset):.0f} s {way} the store's, which the queue goes by alone."

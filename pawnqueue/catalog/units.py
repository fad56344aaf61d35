"""The units of a topic: the only place that lists them, and that makes and parses their keys (§1)."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pawnqueue.domain.bounds import MESSAGE_NAME
from pawnqueue.domain.identifiers import UnitId
from pawnqueue.domain.layout import is_message_id, last_part, read_stamp, timestamp
from pawnqueue.domain.unit import Unit

if TYPE_CHECKING:
    from pawnqueue.stores.port import ObjectInfo
    from pawnqueue.stores.retry import ResilientStore

_UUID_GROUPS = 5


@dataclass(slots=True)
class UnitPage:
    """Some units of a topic, in publish order."""

    units: list[Unit] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    """The keys of objects between the units that are not ours."""
    end: str = ""
    """The last key that the listing showed, whether it is ours or not."""

    def cursor(self, topic: str) -> str:
        """Return the key behind which a later listing goes on; "" where the page has no unit.

        ⚑ §1: never a stranger's key. Units that are published before such a key would stay hidden.
        """
        return key_of(topic, self.units[-1].name) if self.units else ""


def folder(topic: str) -> str:
    """Return the folder of the topic's pending messages."""
    return f"{topic}/messages/"


def packs_folder(topic: str) -> str:
    """Return the folder that is reserved for packs. A deletion must not lose what a later version keeps there."""
    return f"{topic}/packs/"


def key_of(topic: str, name: str) -> str:
    """Return the key of the unit's object."""
    return f"{topic}/messages/{name}"


def parse(key: str, size: int = 0) -> Unit | None:
    """Read a key below ``messages/``, or return None for a stranger's.

    pawn-queue takes the last five groups between dashes as the id, and so do we.
    """
    name = last_part(key)
    groups = name.removesuffix(".json").split("-")
    identifier = "-".join(groups[-_UUID_GROUPS:])
    if not name.endswith(".json") or len(groups) <= _UUID_GROUPS or not is_message_id(identifier):
        return None
    if not MESSAGE_NAME.fullmatch(name):
        return None
    return Unit(UnitId(identifier), name, size)


def name_at(seconds: float, identifier: str) -> str:
    """Make a unit's name. LIST returns units in publish order, as their names begin with the time."""
    return f"{timestamp(seconds)}-{identifier}.json"


def published_at(name: str) -> float | None:
    """Read the server time out of a unit's name, or return None where it has none within the bounds of §1."""
    return read_stamp(name)


def redriven_id(letter_id: str, version: str) -> UnitId:
    """Make the id under which a dead letter is redriven.

    ⚑ §5: derived from the id and the ETag of the dead letter, so that two redrivers aim at one key, and so that each
    can tell whether a new place was made for the letter that it sees. It is never the old id, under which late requests
    of the burial may still arrive.
    """
    digest = hashlib.sha256(f"{letter_id}\x00{version}".encode()).digest()
    return UnitId(str(uuid.UUID(bytes=digest[:16], version=4)))


def redriven_name(letter_id: str, version: str, seconds: float) -> str:
    """Make the name under which a dead letter is redriven, from its id, its ETag and its time."""
    return name_at(seconds, redriven_id(letter_id, version))


def sorted_out(infos: Iterable[ObjectInfo]) -> UnitPage:
    """Read the keys of one listing."""
    page = UnitPage()
    for info in infos:
        unit = parse(info.key, info.size)
        if unit is None:
            page.strangers.append(info.key)
        else:
            page.units.append(unit)
        page.end = info.key
    return page


async def pages(store: ResilientStore, topic: str, *, start_after: str = "") -> AsyncGenerator[UnitPage]:
    """List the units behind a key, a LIST a page."""
    async with aclosing(store.pages(folder(topic), start_after=start_after)) as listing:
        async for infos in listing:
            if infos:
                yield sorted_out(infos)


async def listed(store: ResilientStore, topic: str) -> UnitPage:
    """List all units of a topic."""
    whole = UnitPage()
    async for page in pages(store, topic):
        whole.units += page.units
        whole.strangers += page.strangers
        whole.end = page.end
    return whole


async def names_between(store: ResilientStore, topic: str, first: str, last: str) -> set[str]:
    """Return the names of the units from one name to another, both included, and a few behind them."""
    found: set[str] = set()
    async with aclosing(pages(store, topic, start_after=key_of(topic, first)[:-1])) as listing:
        async for page in listing:
            found.update(unit.name for unit in page.units)
            if page.end >= key_of(topic, last):
                break
    return found

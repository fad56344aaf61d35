"""The units of a topic: the only place that lists them, and that makes and parses their keys (§1)."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pawnqueue.domain import lanes
from pawnqueue.domain.bounds import MESSAGE_NAME
from pawnqueue.domain.identifiers import UnitId
from pawnqueue.domain.layout import (
    PACK_SUFFIX,
    folder_name,
    is_message_id,
    is_pack_name,
    last_part,
    pack_unit_id,
    read_stamp,
    timestamp,
)
from pawnqueue.domain.numbers import MAX_PACK_MESSAGES
from pawnqueue.domain.unit import Unit
from pawnqueue.domain.uuids import named_uuid
from pawnqueue.runtime.concurrency import all_of

if TYPE_CHECKING:
    from pawnqueue.stores.port import ObjectInfo
    from pawnqueue.stores.retry import ResilientStore

_UUID_GROUPS = 5
_PACK_NAME = re.compile(
    r".+-(?P<uuid>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})\.(?P<count>[1-9][0-9]{0,3})\.jsonl\.zst"
)


@dataclass(slots=True)
class UnitPage:
    """Some units of a topic, in publish order."""

    units: list[Unit] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    """The keys of objects between the units that are not ours."""
    end: str = ""
    """The place of the last object that the listing showed, whether it is ours or not."""


def folder(topic: str) -> str:
    """Return the folder of the topic's pending single messages."""
    return f"{topic}/messages/"


def packs_folder(topic: str) -> str:
    """Return the folder of the topic's packs."""
    return f"{topic}/packs/"


def key_of(topic: str, name: str) -> str:
    """Return the key of the unit's object."""
    return f"{topic}/packs/{name}" if is_pack_name(name) else f"{topic}/messages/{name}"


def parse(key: str, size: int = 0) -> Unit | None:
    """Read the key of a unit, or its name, or return None for a stranger's."""
    name = last_part(key)
    is_pack = is_pack_name(name)
    if folder_name(key) not in ("", "packs" if is_pack else "messages"):
        return None
    return _parse_pack(name, size) if is_pack else _parse_single(name, size)


def _parse_pack(name: str, size: int) -> Unit | None:
    match = _PACK_NAME.fullmatch(name)
    if match is None or not MESSAGE_NAME.fullmatch(name) or int(match["count"]) > MAX_PACK_MESSAGES:
        return None
    count = int(match["count"])
    return Unit(pack_unit_id(match["uuid"], count), name, size, count)


def _parse_single(name: str, size: int) -> Unit | None:
    """Read a name below ``messages/``. pawn-queue takes the last five groups between dashes as the id; so do we."""
    groups = name.removesuffix(".json").split("-")
    identifier = "-".join(groups[-_UUID_GROUPS:])
    if not name.endswith(".json") or len(groups) <= _UUID_GROUPS or not is_message_id(identifier):
        return None
    if not MESSAGE_NAME.fullmatch(name):
        return None
    return Unit(UnitId(identifier), name, size)


def name_at(seconds: float, identifier: str, lane: str = "") -> str:
    """Make a unit's name. LIST returns the units of a lane in publish order, as their names go on with the time.

    :param lane: what :func:`.lanes.prefix` returns.
    """
    return f"{lane}{timestamp(seconds)}-{identifier}.json"


def pack_name_at(seconds: float, identifier: str, count: int, lane: str = "") -> str:
    """Make the name of a pack of ``count`` messages. Its time puts it between the single messages of its lane."""
    return f"{lane}{timestamp(seconds)}-{identifier}.{count}{PACK_SUFFIX}"


def published_at(name: str) -> float | None:
    """Read the server time out of a unit's name, or return None where it has none within the bounds of §1."""
    return read_stamp(lanes.without_delay(name))


def claimable_since(name: str) -> float | None:
    """Return the server time at which a unit was published, or is due if it was delayed; None: its name has none."""
    due = lanes.due_at(name)
    return published_at(name) if due is None else due


def redriven_id(letter_id: str, version: str) -> UnitId:
    """Make the id under which a dead letter is redriven.

    ⚑ §5: derived from the id and the ETag of the dead letter, so that two redrivers aim at one key, and so that each
    can tell whether a new place was made for the letter that it sees. It is never the old id, under which late requests
    of the burial may still arrive.
    """
    return UnitId(named_uuid(f"{letter_id}\x00{version}"))


def redriven_name(letter_id: str, version: str, seconds: float) -> str:
    """Make the name under which a dead letter is redriven, from its id, its ETag and its time."""
    return name_at(seconds, redriven_id(letter_id, version))


def sorted_out(infos: Iterable[ObjectInfo]) -> UnitPage:
    """Read the keys of one listing, or of one of each kind of units."""
    page = UnitPage()
    for info in sorted(infos, key=_place):
        unit = parse(info.key, info.size)
        if unit is None:
            page.strangers.append(info.key)
        else:
            page.units.append(unit)
        page.end = _place(info)
    return page


async def pages(store: ResilientStore, topic: str, *, packs: bool, after: str = "") -> AsyncGenerator[UnitPage]:
    """List the units behind a place, in the order of their names: a LIST of each folder for a page.

    :param packs: whether the topic may have packs: only then their folder is listed.
    :param after: a unit's name, or the ``end`` of an earlier page.
    """
    folders = [folder(topic), packs_folder(topic)] if packs else [folder(topic)]
    async with AsyncExitStack() as stack:
        listings = [
            await stack.enter_async_context(aclosing(store.pages(each, start_after=f"{each}{after}" if after else "")))
            for each in folders
        ]
        waiting: list[list[ObjectInfo]] = [[] for _ in folders]
        while listings:
            pages_ = await all_of(*(_filled(part, listing) for part, listing in zip(waiting, listings, strict=True)))
            left = [number for number, infos in enumerate(pages_) if infos]
            listings, waiting = [listings[number] for number in left], [pages_[number] for number in left]
            if not waiting:
                return
            # What is listed up to here is complete in each folder. The rest waits for the folder that is behind.
            bound = min(_place(infos[-1]) for infos in waiting)
            yield sorted_out(each for infos in waiting for each in infos if _place(each) <= bound)
            waiting = [[each for each in infos if _place(each) > bound] for infos in waiting]


async def _filled(waiting: list[ObjectInfo], listing: AsyncGenerator[Sequence[ObjectInfo]]) -> list[ObjectInfo]:
    """Return what waits of a listing, or else its next page."""
    while not waiting:
        page = await anext(listing, None)
        if page is None:
            return []
        waiting = list(page)
    return waiting


def _place(info: ObjectInfo) -> str:
    """Return what an object is listed by in its folder; "" for the marker of the folder.

    obstore shows the marker without the slash at its end: ``{topic}/messages``.
    """
    return info.key.split("/", 2)[2] if info.key.count("/") > 1 else ""


async def find_pack(store: ResilientStore, topic: str, stem: str) -> str | None:
    """Return the name of the pack whose name begins so, up to the number of its messages, or None: one LIST."""
    async with aclosing(store.pages(packs_folder(topic), start_after=f"{packs_folder(topic)}{stem}")) as listing:
        async for page in listing:
            for info in page:
                name = last_part(info.key)
                return name if name.startswith(f"{stem}.") else None
    return None


async def names_between(store: ResilientStore, topic: str, first: str, last: str) -> set[str]:
    """Return the names of the single messages from one name to another, both included, and a few behind them."""
    found: set[str] = set()
    async with aclosing(pages(store, topic, after=first[:-1], packs=False)) as listing:
        async for page in listing:
            found.update(unit.name for unit in page.units)
            if page.end >= last:
                break
    return found

"""The dead letters of a topic: the only place that lists them, and that makes and parses their keys (§1)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from pawnqueue.domain.identifiers import UnitId, Version
from pawnqueue.domain.layout import is_message_id, last_part
from pawnqueue.stores.port import NO_VERSION

if TYPE_CHECKING:
    from pawnqueue.stores.port import ObjectInfo
    from pawnqueue.stores.retry import ResilientStore

_REASON_SUFFIX = ".reason.json"


@dataclass(frozen=True, slots=True)
class ListedLetter:
    """A dead letter, or the record of its reason, as a LIST shows it."""

    id: UnitId
    size: int
    written_at: datetime
    version: Version = NO_VERSION


@dataclass(slots=True)
class LetterPage:
    """Some dead letters of a topic, in the order of their ids."""

    letters: list[ListedLetter] = field(default_factory=list)
    reasons: list[ListedLetter] = field(default_factory=list)
    """The records beside the letters that say why they were buried."""
    strangers: list[str] = field(default_factory=list)
    """The keys of objects between them that are not ours."""
    end: str = ""
    """The last key that the listing showed, whether it is ours or not."""


def place_before(topic: str, letter_id: str) -> str:
    """Return a place in the listing that is right before a letter and its reason."""
    return f"{folder(topic)}{letter_id}"


def folder(topic: str) -> str:
    """Return the folder of the topic's dead letters."""
    return f"{topic}/dead-letter/"


def key_of(topic: str, letter_id: str) -> str:
    """Return the key of a dead letter."""
    return f"{topic}/dead-letter/{letter_id}.json"


def reason_key_of(topic: str, letter_id: str) -> str:
    """Return the key of the record that says why a message was buried."""
    return f"{topic}/dead-letter/{letter_id}{_REASON_SUFFIX}"


def parse(key: str) -> tuple[UnitId, bool] | None:
    """Return a dead letter's id from a key, and whether the object is its reason; None if the key is a stranger's."""
    name = last_part(key)
    is_reason = name.endswith(_REASON_SUFFIX)
    identifier = name.removesuffix(_REASON_SUFFIX if is_reason else ".json")
    return (UnitId(identifier), is_reason) if name.endswith(".json") and is_message_id(identifier) else None


def sorted_out(infos: Iterable[ObjectInfo]) -> LetterPage:
    """Read the keys of one listing."""
    page = LetterPage()
    for info in infos:
        parsed = parse(info.key)
        if parsed is None:
            page.strangers.append(info.key)
        else:
            letter = ListedLetter(parsed[0], info.size, info.last_modified, info.version)
            (page.reasons if parsed[1] else page.letters).append(letter)
        page.end = info.key
    return page


async def pages(store: ResilientStore, topic: str, *, start_after: str = "") -> AsyncGenerator[LetterPage]:
    """List the dead letters behind a key, a LIST a page."""
    async with aclosing(store.pages(folder(topic), start_after=start_after)) as listing:
        async for infos in listing:
            if infos:
                yield sorted_out(infos)


async def listed(store: ResilientStore, topic: str) -> LetterPage:
    """List all dead letters of a topic."""
    whole = LetterPage()
    async for page in pages(store, topic):
        whole.letters += page.letters
        whole.reasons += page.reasons
        whole.strangers += page.strangers
        whole.end = page.end
    return whole

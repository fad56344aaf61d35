"""Read the completed log, the latest claims first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pawnqueue.domain import layout
from pawnqueue.domain.completed import (
    MAX_STORED_LOG_BYTES,
    CompletedMessage,
    parse_log_name,
    read_log,
)
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.errors import CompatibilityError, InvalidArgumentError, StoreError

if TYPE_CHECKING:
    from pawnqueue.context import Context


@dataclass(frozen=True, slots=True)
class CompletedPage:
    """Some messages that were acked. Those of the latest claims come first."""

    messages: tuple[CompletedMessage, ...]
    """The messages of this page; iterating over the page gives them too."""
    next: str | None
    """The value of ``after=`` for the next page; None: this is the last one."""
    faults: dict[str, str] = field(default_factory=dict)
    """The keys of parts of the log that could not be read, and why."""

    def __iter__(self) -> Iterator[CompletedMessage]:
        """Return an iterator over the messages."""
        return iter(self.messages)

    def __len__(self) -> int:
        """Count the messages of this page."""
        return len(self.messages)

    def __getitem__(self, position: int) -> CompletedMessage:
        """Return one of them."""
        return self.messages[position]


async def completed(context: Context, topic: str, *, most: int, after: str | None) -> CompletedPage:
    """Read messages of the log: a LIST, and a GET for each claim of the page."""
    name, passed = ("", 0) if after is None else _parse_token(after, topic)
    folder = layout.completed(topic)
    found: list[CompletedMessage] = []
    faults: dict[str, str] = {}
    # The object that the last page ended in is listed again: keys are listed from behind a given one.
    start_after = f"{folder}{name[:-1]}" if name else ""
    async with aclosing(context.store.pages(folder, start_after=start_after)) as pages:
        async for page in pages:
            for info in page:
                its_name = layout.last_part(info.key)
                if parse_log_name(its_name) is None or its_name < name:
                    continue
                messages = await _read(context, topic, info.key, faults)
                first = passed if its_name == name else 0
                room = most - len(found)
                found += messages[first : first + room]
                if first + room < len(messages):
                    return CompletedPage(tuple(found), f"{its_name}#{first + room}", faults)
                if len(found) == most:
                    return CompletedPage(tuple(found), f"{its_name}#{len(messages)}", faults)
    return CompletedPage(tuple(found), None, faults)


async def _read(context: Context, topic: str, key: str, faults: dict[str, str]) -> list[CompletedMessage]:
    """⚑ §5.6: an object that cannot be read concerns itself."""
    try:
        found = await context.store.get(key, MAX_STORED_LOG_BYTES)
        return [] if found is None else read_log(found.body, key, topic)
    except (UnreadableRecordError, CompatibilityError, StoreError) as error:
        faults[key] = str(error)
        return []


def _parse_token(token: object, topic: str) -> tuple[str, int]:
    name, mark, passed = token.rpartition("#") if isinstance(token, str) else ("", "", "")
    if mark and parse_log_name(name) is not None and passed.isdecimal() and len(passed) < 8:  # noqa: PLR2004 - digits
        return name, int(passed)
    raise InvalidArgumentError(
        "after is the .next of a page of the completed log: leave it out for the first page.",
        topic=topic,
        operation="completed",
    )

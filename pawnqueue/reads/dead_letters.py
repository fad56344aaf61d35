"""Dead letters: listed by time, and read with the reasons why they were buried."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pawnqueue.catalog import letters as listing
from pawnqueue.claims.claim import as_message
from pawnqueue.domain.envelope import Envelope
from pawnqueue.domain.object_sizes import MAX_SMALL_RECORD_BYTES, max_message_bytes
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.domain.records import DeadReason
from pawnqueue.domain.times import instant
from pawnqueue.errors import (
    CompatibilityError,
    InvalidArgumentError,
    ObjectTooLargeError,
    StoreError,
)
from pawnqueue.reads.selection import EVERYTHING, Selection
from pawnqueue.runtime.concurrency import for_each

if TYPE_CHECKING:
    from pawnqueue.catalog.letters import ListedLetter
    from pawnqueue.claims import Message
    from pawnqueue.context import Context

#: How many ids an error names.
MAX_UNKNOWN_IDS_SHOWN = 3
#: A search for ids lists a topic with more letters than this a second time, rather than remember all of them.
MAX_REMEMBERED_LETTERS = 10_000

_WITHOUT_MESSAGES = Selection(reads_messages=False)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was buried, and why."""

    id: str
    """The id under which it is kept, which ``redrive`` takes."""
    topic: str
    """The topic that it was in."""
    buried_at: datetime
    """When it became a dead letter."""
    reason: str = ""
    """Why its consumer buried it, or requeued it the last time before its deliveries ran out."""
    error: str = ""
    """Details, if the consumer gave some."""
    deliveries: int = 0
    """How often it was delivered."""
    max_deliveries: int | None = None
    """The topic's limit, if it was buried because of its deliveries; None: because of its reason."""
    consumer: str = ""
    """The name of the last consumer that had it."""
    claim: str = ""
    """The claim that had it last."""
    given_reason: str = ""
    """The reason for which it was last requeued before it was buried."""
    given_error: str = ""
    """The error of that requeue."""
    message: Message | None = None
    """The message itself; None if it was not asked for, or cannot be read."""
    fault: str = ""
    """Why a part of it could not be read."""


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Some dead letters of a topic, in order of the time at which they were buried."""

    letters: tuple[DeadLetter, ...]
    """The dead letters of this page; iterating over the page gives them too."""
    total: int
    """How many dead letters the topic has."""
    next: str | None
    """The value of ``after=`` for the next page; None: this is the last one."""

    def __iter__(self) -> Iterator[DeadLetter]:
        """Return an iterator over the letters."""
        return iter(self.letters)

    def __len__(self) -> int:
        """Count the letters of this page."""
        return len(self.letters)

    def __getitem__(self, position: int) -> DeadLetter:
        """Return one of them."""
        return self.letters[position]


async def dead_letters(  # noqa: PLR0913 - which, and how much of each
    context: Context, topic: str, *, most: int, newest_first: bool, after: str | None, payloads: bool
) -> DeadLetterPage:
    """List dead letters: LISTs of their folder, and for each letter of the page a GET of its reason and of its body."""
    passed = None if after is None else _parse_token(after, topic)
    letters = await list_letters(context, topic)
    ordered = sorted(letters, key=_sort_key, reverse=newest_first)
    if passed is not None:
        ordered = [
            letter for letter in ordered if (_sort_key(letter) < passed if newest_first else _sort_key(letter) > passed)
        ]
    chosen = ordered[:most]
    found = await read_letters(context, topic, chosen, only=EVERYTHING if payloads else _WITHOUT_MESSAGES)
    return DeadLetterPage(tuple(found), len(letters), _make_token(chosen[-1]) if len(ordered) > len(chosen) else None)


async def read_letters(
    context: Context, topic: str, letters: Sequence[ListedLetter], *, only: Selection = EVERYTHING
) -> list[DeadLetter]:
    """Read those letters of a LIST that are selected: for each a GET of its reason, and one of its body."""
    patient = context.with_budget()

    async def read(letter: ListedLetter) -> DeadLetter | None:
        return await _read(patient, topic, letter, only)

    found = await for_each(read, letters, at_once=context.at_once)
    return [letter for letter in found if letter is not None]


async def list_letters(context: Context, topic: str) -> list[ListedLetter]:
    """Return all dead letters of a topic, without their reasons, in the order of their ids."""
    return (await listing.listed(context.store, topic)).letters


async def read_reason(context: Context, topic: str, letter_id: str) -> DeadReason | None:
    """Return why a letter was buried: a GET. None: it has no reason, or none that this version can read.

    :raises StoreError: the store does not tell.
    """
    key = listing.reason_key_of(topic, letter_id)
    try:
        found = await context.store.get(key, MAX_SMALL_RECORD_BYTES)
        return None if found is None else DeadReason.decode(found.body, key)
    except (ObjectTooLargeError, UnreadableRecordError, CompatibilityError):
        return None


async def find_letter_ids(context: Context, topic: str, ids: Collection[str]) -> tuple[set[str], set[str]]:
    """Return the ids under which letters are kept, from those ids or from the ids of their messages.

    The two differ if a message was redriven and buried again. The first need a LIST alone; letters are read only if an
    id is not among them. Then it means all letters whose messages have it. The second set has the ids that belong to no
    dead letter of this topic.
    """
    kept: set[str] = set()
    others: list[ListedLetter] | None = []
    async for page in listing.pages(context.store, topic):
        kept.update(letter.id for letter in page.letters if letter.id in ids)
        if others is not None:
            others += [letter for letter in page.letters if letter.id not in ids]
            if len(others) > MAX_REMEMBERED_LETTERS:
                others = None  # they are listed once more, if need be
    missing = set(ids) - kept
    if not missing:
        return kept, missing
    patient = context.with_budget()

    async def message_id(letter: ListedLetter) -> str | None:
        message, _ = await _read_body(patient, topic, letter, DeadReason(reason=""))
        return message.id if message is not None else None

    found: set[str] = set()
    async for letters in _once_more(context, topic, others):
        some = [letter for letter in letters if letter.id not in ids]
        names = await for_each(message_id, some, at_once=context.at_once)
        # Any publisher may give its message the id of another one: an id means all letters whose messages have it.
        by_message = [(name, letter.id) for name, letter in zip(names, some, strict=True) if name in missing]
        kept.update(letter_id for _, letter_id in by_message)
        found.update(name for name, _ in by_message)
    return kept, missing - found


async def _once_more(
    context: Context, topic: str, remembered: list[ListedLetter] | None
) -> AsyncGenerator[list[ListedLetter]]:
    if remembered is not None:
        yield remembered
        return
    async for page in listing.pages(context.store, topic):
        yield page.letters


def unknown_ids_error(topic: str, missing: Collection[str]) -> InvalidArgumentError:
    """Return the error for ids that belong to no dead letter of the topic."""
    some = ", ".join(sorted(missing)[:MAX_UNKNOWN_IDS_SHOWN])
    others_too = " and others" if len(missing) > MAX_UNKNOWN_IDS_SHOWN else ""
    return InvalidArgumentError(
        f"Topic {topic!r} has no dead letter {some}{others_too}: nothing was redriven. dead_letters() lists them "
        "all (peek --dead, on the command line); missing_ok=True leaves out those that are gone.",
        topic=topic,
        message=min(missing),
        operation="redrive",
    )


async def _read(context: Context, topic: str, letter: ListedLetter, only: Selection) -> DeadLetter | None:
    """⚑ §5.6: a letter that cannot be read concerns itself: it is returned with what is known, and the fault.

    Return None if it is not selected.
    """
    reason, fault = DeadReason(reason=""), ""
    if only.needs_reasons:
        reason, fault = await _read_reason(context, topic, letter, is_decisive=only.is_by_reason)
    buried_at = instant(reason.at) or letter.written_at
    if not only.has_burial(buried_at, reason.reason):
        return None
    message = None
    if only.needs_messages:
        message, problem_of_body = await _read_body(context, topic, letter, reason, is_decisive=only.is_by_message)
        fault = "; ".join(problem for problem in (fault, problem_of_body) if problem)
        if not only.has_message(message):
            return None
    return DeadLetter(
        id=letter.id,
        topic=topic,
        buried_at=buried_at,
        reason=reason.reason,
        error=reason.error,
        deliveries=reason.deliveries,
        max_deliveries=reason.max_deliveries,
        consumer=reason.consumer,
        claim=reason.claim,
        given_reason=reason.given_reason,
        given_error=reason.given_error,
        message=message,
        fault=fault,
    )


async def _read_reason(
    context: Context, topic: str, letter: ListedLetter, *, is_decisive: bool
) -> tuple[DeadReason, str]:
    key = listing.reason_key_of(topic, letter.id)
    try:
        found = await context.store.get(key, MAX_SMALL_RECORD_BYTES)
        if found is None:
            return DeadReason(reason=""), f"{key} does not exist"
        return DeadReason.decode(found.body, key), ""
    except (StoreError, CompatibilityError, UnreadableRecordError) as problem:
        if is_decisive:
            _raise_if_unknown(problem)
        return DeadReason(reason=""), str(problem)


async def _read_body(
    context: Context, topic: str, letter: ListedLetter, reason: DeadReason, *, is_decisive: bool = False
) -> tuple[Message | None, str]:
    key = listing.key_of(topic, letter.id)
    try:
        found = await context.store.get(key, max_message_bytes(context.settings.limits))
        if found is None:
            return None, f"{key} is gone: it was redriven or purged meanwhile"
        envelope = Envelope.decode(found.body, key)
        return as_message(envelope, topic, reason.name, deliveries=reason.deliveries), ""
    except (StoreError, CompatibilityError, UnreadableRecordError) as problem:
        if is_decisive:
            _raise_if_unknown(problem)
        return None, str(problem)


def _raise_if_unknown(problem: Exception) -> None:
    """Raise where the store does not tell whether a letter is selected: it must not be missing from what is read."""
    if isinstance(problem, StoreError) and not isinstance(problem, ObjectTooLargeError):
        raise problem


def _sort_key(letter: ListedLetter) -> tuple[datetime, str]:
    # By the date of the letter in whole seconds, as stores differ in its precision.
    return letter.written_at.replace(microsecond=0), letter.id


def _make_token(letter: ListedLetter) -> str:
    return f"{_sort_key(letter)[0].isoformat()}/{letter.id}"


def _parse_token(after: object, topic: str) -> tuple[datetime, str]:
    time, _, letter_id = after.partition("/") if isinstance(after, str) else ("", "", "")
    found = instant(time)
    if found is None or not letter_id:
        raise InvalidArgumentError(
            f"after={after!r} is not a place in a list of dead letters: pass the .next of the previous page.",
            topic=topic,
            operation="dead_letters",
        )
    return found, letter_id

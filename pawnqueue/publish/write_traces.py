"""The traces that messages of a staged write have left in claim records (§7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from pawnqueue.domain import layout
from pawnqueue.domain.times import iso
from pawnqueue.errors import PawnQueueError, StoreError
from pawnqueue.events import logger_of
from pawnqueue.runtime.concurrency import for_each

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.claim_record import ClaimRecord
    from pawnqueue.domain.identifiers import Version
    from pawnqueue.domain.write_record import WriteRecord
    from pawnqueue.registers.register import Versioned

logger = logger_of("publish")

#: How long a write waits for claim records that cannot be read.
MAX_WAIT_FOR_RECORDS_SECONDS: Final = 600.0
#: A record of more units is read again each time.
MAX_KNOWN_NAMES: Final = 1000

#: The names of the units in claim records, by the records' stems and versions. One version never changes.
KnownClaims: TypeAlias = "dict[tuple[str, Version], frozenset[str]]"


class UnreadTracesError(StoreError):
    """A claim record that may name messages of a write cannot be read."""


async def find_claimed_since(context: Context, topic: str, write: WriteRecord, since: float) -> set[str]:
    """Return the names of the messages in claims that were changed since then.

    ⚑ §7: these are full names, as another message may have the uuid of one of the write's messages.

    ⚑ §7: a record that cannot be read may name some of them, so the write waits for it, but not for ever. A write that
    stays half visible is worse than messages of one chunk that are published twice, under the same ids.

    :raises UnreadTracesError: some record cannot be read, and the write has not waited long enough for it.
    """
    claimed, unread = await read_claimed_since(context, topic, since)
    if unread:
        _wait_or_continue(topic, write, unread, await context.now())
    return claimed


async def read_claimed_since(
    context: Context, topic: str, since: float, known: KnownClaims | None = None
) -> tuple[set[str], dict[str, PawnQueueError]]:
    """Return the names of the units in claims that were changed since then, and the records that cannot be read.

    :param known: the names in records that a caller has read before. It gets those that are read now.
    """
    known = {} if known is None else known
    impatient = context.with_budget(cut=True)
    listed = {
        layout.claim_stem(*parsed): info.version
        async for page in context.registers.pages(layout.claims(topic))
        for info in page
        if info.last_modified.timestamp() >= since and (parsed := layout.parse_claim(info.key)) is not None
    }
    claimed = {name for each in listed.items() for name in known.get(each, ())}
    stems = [stem for stem, version in listed.items() if (stem, version) not in known]

    async def read(stem: str) -> Versioned[ClaimRecord] | PawnQueueError | None:
        try:
            return await impatient.claim_record(topic, stem).read()
        except PawnQueueError as error:
            return error

    unread: dict[str, PawnQueueError] = {}
    for stem, found in zip(stems, await for_each(read, stems, at_once=context.at_once), strict=True):
        if isinstance(found, PawnQueueError):
            unread[stem] = found
        elif found is not None:
            names = frozenset(member.name for member in found.value.members.values())
            claimed |= names
            if len(names) <= MAX_KNOWN_NAMES:
                known[stem, found.version] = names
    return claimed, unread


def _wait_or_continue(topic: str, write: WriteRecord, unread: dict[str, PawnQueueError], now: float) -> None:
    stem, why = next(iter(unread.items()))
    key = layout.claim(topic, stem)
    begun = write.unread_since or now
    until = begun + MAX_WAIT_FOR_RECORDS_SECONDS
    if now < until:
        raise UnreadTracesError(
            f"Write {write.write_id} of topic {topic!r} is decided, but cannot be finished now: {key} may name some of "
            f"its messages, and cannot be read: {why} The rest follows when it can be read, or when it is committed "
            f"again or swept after {iso(until)}.",
            topic=topic,
            operation="commit_write",
            transient=True,
        )
    logger.warning(
        "Write %s of topic %r is finished without %d claim records that could not be read for %d seconds (%s: %s). "
        "Messages that they name may be published twice, under the same ids.",
        write.write_id,
        topic,
        len(unread),
        now - begun,
        key,
        why,
    )

"""Messages that are older than their topic's ``max_age_seconds``: which ones, and what is decided of them (§4)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from pawnqueue.catalog import units
from pawnqueue.domain import layout, numbers
from pawnqueue.domain.claim_record import Decision, Member
from pawnqueue.errors import CompatibilityError, PawnQueueError, StoreError
from pawnqueue.runtime.concurrency import for_each_within

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.records import TopicRecord
    from pawnqueue.domain.share import Share

#: The reason of a message that nobody was given in time.
EXPIRED: Final = "expired"
#: Stores tell whole seconds of an object's date.
DATE_RESOLUTION_SECONDS: Final = 1.0


def is_expired(topic: TopicRecord, name: str, now: float, margin: float) -> bool:
    """Say whether a unit of this name is older than its topic allows.

    Of one that was published with a delay, the time counts from which it is due.

    ⚑ §4: not before the margin has passed, too: this process may be wrong about the store's time by that.
    """
    most, since = topic.settings.max_age_seconds, units.claimable_since(name)
    return most is not None and since is not None and now >= since + most + margin


def expired(topic: TopicRecord, members: Mapping[str, Member], now: float, margin: float) -> dict[str, Member | Share]:
    """Return the messages of a claim that are too old by their names, as the claim names them, with their histories."""
    found: dict[str, Member | Share] = {}
    for unit_id, member in members.items():
        if not is_expired(topic, member.name, now, margin):
            continue
        if member.is_pack:
            found.update(
                {layout.entry_of(unit_id, n): share for share in member.shares for n in numbers.each(share.of)}
            )
        else:
            found[unit_id] = member
    return found


def decision_of(topic: TopicRecord) -> Decision:
    """Return what is decided of a message that is too old."""
    most = topic.settings.max_age_seconds
    return Decision(how="dead", reason=EXPIRED, error=f"older than the topic's max_age_seconds, {most:g}", by="claim")


async def kept_by_date(
    context: Context, topic: TopicRecord, names: Mapping[str, str], now: float, seconds: float
) -> dict[str, Decision | PawnQueueError | None]:
    """Look at single messages that are too old by their names; return those that are not to be buried for it.

    ⚑ §4: a redriven message counts from its redrive, and its name tells when it was buried. Its object's date tells
    when it was moved. None: it is young enough. A decision: its object is gone. An error: that cannot be found out.

    :param names: the names of the messages, by their units' ids.
    """
    patient = context.with_budget(seconds)

    async def look(unit_id: str) -> Decision | PawnQueueError | bool | None:
        try:
            found = await patient.store.head(units.key_of(topic.name, names[unit_id]))
        except (StoreError, CompatibilityError) as error:
            return error
        if found is None:
            return Decision(how="gone", by="claim")
        most = topic.settings.max_age_seconds
        since = found.last_modified.timestamp() + DATE_RESOLUTION_SECONDS
        return True if most is not None and now >= since + most + context.margin else None

    late = StoreError(f"The message was not seen within {seconds:g} seconds.", transient=True, operation="claim")
    looked = await for_each_within(
        look, names, at_once=context.at_once, clock=context.clock, seconds=seconds, late=lambda _: late
    )
    return {unit_id: each for unit_id, each in zip(names, looked, strict=True) if not isinstance(each, bool)}


def units_of(entries: Collection[str]) -> set[str]:
    """Return the ids of the units in which these messages are."""
    return {layout.parse_entry(entry)[0] for entry in entries}

"""A task's claim: the same batch in every try of it, and after every restart of what waits for it.

Written once, for the trigger and for a sensor that polls by itself. It runs in the loop of a queue.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from airflow_provider_pawnqueue.hooks import references
from airflow_provider_pawnqueue.hooks.identity import Owner
from airflow_provider_pawnqueue.hooks.sessions import session_ttl
from pawnqueue import ClaimBusyError, InvalidArgumentError, PawnQueueError

if TYPE_CHECKING:
    from pawnqueue import Backlog, Claim, PawnQueue

logger = logging.getLogger(__name__)

#: A task that loses so many claims one after the other has a ttl that is too short for it.
MOST_ROUNDS: Final = 1000
#: Why what a cleared task had is given back.
CLEARED: Final = "its task was cleared"
#: When a task that was cleared looks again, if it was not ended until then.
_OUTDATED_WAITS: Final = 30.0
#: So often whoever gives back what another one works on looks whether that has ended.
_PAUSE: Final = 1.0


class UnforeseenError(PawnQueueError):
    """A look at a topic has failed in a way that the queue does not know. Another try may go better."""

    @classmethod
    def of(cls, error: Exception, what: str, topic: str) -> Self:
        """Name an error by its type and place: its own text may quote a payload, which no log and no event may have."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown place"
        told = f"an error that the queue does not know: {type(error).__name__} at {place}"
        return cls(f"{what} in topic {topic!r} has met {told}.", topic=topic)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a task waits for in one topic."""

    topic: str
    owner: str
    consumer: str
    max_messages: int | None = None
    min_messages: int = 1
    max_wait: float | None = None
    ttl: float | None = None

    @property
    def claim_id(self) -> str:
        """The id of the claim: that of its task, or where no task of Airflow's claims, of its owner's making."""
        owner = Owner.parse(self.owner)
        return self.owner if owner is None else owner.claim_id


async def claimed(queue: PawnQueue, wish: Wish, *, is_known: bool = True) -> Claim:
    """Claim once, without waiting. A claim without messages: there is none to be had.

    ⚑ §4, Idempotent by claim id: the claim that this task has is found again, as far as it is not settled; a new one
    begins only after the last one has ended.

    :param is_known: whether the task may have had a claim before; that is looked for then.
    :raises ClaimBusyError: somebody else works for this task's claim; or it was cleared, and its successor claims.
    """
    owner = Owner.parse(wish.owner)
    if owner is None:
        return await _claim(queue, wish)
    if is_known:
        owner = await _latest(queue, wish, owner)
    former = ""
    for _ in range(MOST_ROUNDS):
        wish = replace(wish, owner=str(owner))
        try:
            claim = await _claim(queue, wish)
        except ClaimBusyError as busy:
            other = Owner.parse(busy.owner)
            if other is not None and other.is_later_round_of(owner):
                owner = other
            elif other is not None and owner.succeeds(other) and former != busy.owner:
                former = busy.owner
                await released(queue, wish, CLEARED)
            else:
                raise  # somebody works on it; or this one is what was cleared
            continue
        if claim or not claim.recorded or not claim.was_handed_out:
            return claim
        # It has ended: settled by hand, or taken over as nobody kept it. The task waits for another batch.
        logger.info("Claim %s of topic %s has ended (%s): the task claims anew.", claim.stem, wish.topic, claim.state)
        owner = owner.next_round
    raise InvalidArgumentError(
        f"Task {wish.owner!r} has lost {MOST_ROUNDS} claims of topic {wish.topic!r}, one after the other: give it a "
        "longer ttl, or run a janitor DAG.",
        topic=wish.topic,
        operation="claim",
    )


async def _latest(queue: PawnQueue, wish: Wish, owner: Owner) -> Owner:
    """Return this task in the round in which it is.

    :raises ClaimBusyError: it was cleared, and is but a rest of itself: all that there is belongs to its successor.
    """
    last = await queue.last_claim(wish.topic, wish.claim_id)
    other = None if last is None else Owner.parse(last.owner)
    if last is None or other is None or other.claim_id != owner.claim_id:
        return owner
    # What is left of a task that was cleared lives for seconds. Later it is a run that was deleted, and made anew by
    # the name that it had: its clearings are counted from the beginning.
    may_be_a_rest = last.is_open or not last.is_over
    was_cleared = other.clear_number == owner.clear_number and CLEARED in last.reasons
    if may_be_a_rest and (was_cleared or other.clear_number > owner.clear_number):
        raise ClaimBusyError(
            f"The {owner.sentence} was cleared meanwhile: what it waits for in {wish.topic!r} is its successor's.",
            claim_id=wish.claim_id,
            owner=last.owner,
            retry_after=_OUTDATED_WAITS,
            topic=wish.topic,
            operation="claim",
        )
    return other if other.is_later_round_of(owner) else owner


async def _claim(queue: PawnQueue, wish: Wish) -> Claim:
    polling = queue.settings.polling
    most = wish.max_messages if wish.max_messages is not None else max(polling.max_messages_per_poll, wish.min_messages)
    return await queue.claim(
        wish.topic,
        wish.consumer,
        max_messages=most,
        ttl=wish.ttl,
        claim_id=wish.claim_id,
        owner=wish.owner,
        session_ttl=session_ttl(queue.settings, wish.ttl),
    )


def is_worth_it(wish: Wish, pending: int, backlog: Backlog | None) -> bool:
    """Say whether there are as many messages as a task wants at once, or the oldest has waited for long enough.

    :param pending: how many of the backlog are left, after what others were given.
    """
    if wish.min_messages <= 1 or backlog is None:
        return True
    if pending >= wish.min_messages:
        return True
    age = backlog.oldest_age_seconds
    return pending > 0 and wish.max_wait is not None and age is not None and age >= wish.max_wait


async def handed_over(queue: PawnQueue, claim: Claim) -> dict[str, Any]:
    """Leave a claim to the task that it was made for, and return its reference as an event carries it.

    Whoever comes next need not wait: neither who has the reference, nor who knows the claim's id alone.
    """
    count, size = len(claim), references.size_of(claim.messages)
    return references.to_xcom(await queue.leave(claim), queue.settings, count=count, size=size)


async def released(queue: PawnQueue, wish: Wish, reason: str, *, wait: float = 0.0) -> int:
    """Give back what a task has claimed, as it is not to have it any more; return how many messages that were.

    What it had before it was cleared is given back too, and what its successor has is not. Nothing is claimed.

    :param wait: for how many seconds to wait for whoever works on it.
    :raises ClaimBusyError: somebody works on it, and goes on.
    """
    last = await queue.last_claim(wish.topic, wish.claim_id)
    if last is None or not last.is_open or not _is_of(wish.owner, last.owner):
        return 0
    give_up = asyncio.get_running_loop().time() + wait
    while True:
        try:
            ids = await queue.release(wish.topic, wish.claim_id, last.owner, reason=reason)
        except ClaimBusyError as busy:
            left = give_up - asyncio.get_running_loop().time()
            if left <= 0:
                raise
            await asyncio.sleep(min(busy.retry_after, _PAUSE, left))
        else:
            if ids:
                logger.info("Claim %s of topic %s is given back: %s.", wish.claim_id, wish.topic, reason)
            return len(ids)


def _is_of(mine: str, other: str) -> bool:
    """Say whether the other one is this task, in any round of it, also before it was cleared."""
    owner, holder = Owner.parse(mine), Owner.parse(other)
    if owner is None or holder is None:
        return mine == other
    return holder.claim_id == owner.claim_id and holder.clear_number <= owner.clear_number

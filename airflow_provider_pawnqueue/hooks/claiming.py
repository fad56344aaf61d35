"""A task's claim: the same batch in every try of it, and after every restart of what waits for it.

Written once, for the trigger and for a sensor that polls by itself. It runs in the loop of a queue.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from airflow_provider_pawnqueue.hooks import references
from airflow_provider_pawnqueue.hooks.identity import Owner
from airflow_provider_pawnqueue.hooks.sessions import session_ttl
from pawnqueue import ClaimBusyError, InvalidArgumentError, PawnQueueError

if TYPE_CHECKING:
    from pawnqueue import Backlog, Claim, PawnQueue
    from pawnqueue.domain.claim_terms import ClaimTerms

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


def claim_id_of(terms: ClaimTerms) -> str:
    """Return the id of a claim: that of its task, or the owner itself where the owner is no task of Airflow's."""
    owner = owner_of(terms)
    return terms.owner or terms.consumer if owner is None else owner.claim_id


def owner_of(terms: ClaimTerms) -> Owner | None:
    """Return the task on whose behalf a claim is made, or None where it is no task of Airflow's."""
    return Owner.parse(terms.owner or terms.consumer)


async def claimed(queue: PawnQueue, terms: ClaimTerms, *, is_known: bool = True) -> Claim:
    """Claim once, without waiting. A claim without messages: there is none to be had.

    ⚑ §4, Idempotent by claim id: the claim that this task has is found again, as far as it is not settled; a new one
    begins only after the last one has ended.

    :param is_known: whether the task may have had a claim before; that is looked for then.
    :raises ClaimBusyError: somebody else works for this task's claim; or it was cleared, and its successor claims.
    """
    owner = owner_of(terms)
    if owner is None:
        return await _claim(queue, terms)
    if is_known:
        owner = await _latest(queue, terms, owner)
    former = ""
    for _ in range(MOST_ROUNDS):
        terms = replace(terms, owner=str(owner))
        try:
            claim = await _claim(queue, terms)
        except ClaimBusyError as busy:
            other = Owner.parse(busy.owner)
            if other is not None and other.is_later_round_of(owner):
                owner = other
            elif other is not None and owner.succeeds(other) and former != busy.owner:
                former = busy.owner
                await released(queue, terms, CLEARED)
            else:
                raise  # somebody works on it; or this one is what was cleared
            continue
        if claim or not claim.recorded or not claim.was_handed_out:
            return claim
        # It has ended: settled by hand, or taken over as nobody kept it. The task waits for another batch.
        logger.info("Claim %s of topic %s has ended (%s): the task claims anew.", claim.stem, terms.topic, claim.state)
        owner = owner.next_round
    raise InvalidArgumentError(
        f"Task {terms.owner!r} has lost {MOST_ROUNDS} claims of topic {terms.topic!r}, one after the other: give it a "
        "longer ttl, or run a janitor DAG.",
        topic=terms.topic,
        operation="claim",
    )


async def _latest(queue: PawnQueue, terms: ClaimTerms, owner: Owner) -> Owner:
    """Return this task in the round in which it is.

    :raises ClaimBusyError: it was cleared, and is but a rest of itself: all that there is belongs to its successor.
    """
    last = await queue.last_claim(terms.topic, claim_id_of(terms))
    other = None if last is None else Owner.parse(last.owner)
    if last is None or other is None or other.claim_id != owner.claim_id:
        return owner
    # What is left of a task that was cleared lives for seconds. Later it is a run that was deleted, and made anew by
    # the name that it had: its clearings are counted from the beginning.
    may_be_a_rest = last.is_open or not last.is_over
    was_cleared = other.clear_number == owner.clear_number and CLEARED in last.reasons
    if may_be_a_rest and (was_cleared or other.clear_number > owner.clear_number):
        raise ClaimBusyError(
            f"The {owner.sentence} was cleared meanwhile: what it waits for in {terms.topic!r} is its successor's.",
            claim_id=claim_id_of(terms),
            owner=last.owner,
            retry_after=_OUTDATED_WAITS,
            topic=terms.topic,
            operation="claim",
        )
    return other if other.is_later_round_of(owner) else owner


async def _claim(queue: PawnQueue, terms: ClaimTerms) -> Claim:
    polling = queue.settings.polling
    default = max(polling.max_messages_per_poll, terms.min_messages)
    asked = replace(
        terms,
        claim_id=claim_id_of(terms),
        max_messages=default if terms.max_messages is None else terms.max_messages,
        session_ttl=session_ttl(queue.settings, terms.ttl),
    )
    return await queue.claim(**asked.claim_arguments())


def is_worth_it(terms: ClaimTerms, pending: int, backlog: Backlog | None) -> bool:
    """Say whether there are as many messages as a task wants at once, or the oldest has waited for long enough.

    :param pending: how many of the backlog are left, after what others were given.
    """
    if terms.min_messages <= 1 or backlog is None:
        return True
    if pending >= terms.min_messages:
        return True
    age = backlog.oldest_age_seconds
    return pending > 0 and terms.max_wait is not None and age is not None and age >= terms.max_wait


async def handed_over(queue: PawnQueue, claim: Claim) -> dict[str, Any]:
    """Leave a claim to the task that it was made for, and return its reference as an event carries it.

    Whoever comes next need not wait: neither who has the reference, nor who knows the claim's id alone.
    """
    count, size = len(claim), references.size_of(claim.messages)
    return references.to_xcom(await queue.leave(claim), queue.settings, count=count, size=size)


async def released(queue: PawnQueue, terms: ClaimTerms, reason: str, *, wait: float = 0.0) -> int:
    """Give back what a task has claimed, as it is not to have it any more; return how many messages that were.

    What it had before it was cleared is given back too, and what its successor has is not. Nothing is claimed.

    :param wait: for how many seconds to wait for whoever works on it.
    :raises ClaimBusyError: somebody works on it, and goes on.
    """
    last = await queue.last_claim(terms.topic, claim_id_of(terms))
    if last is None or not last.is_open or not _is_of(terms, last.owner):
        return 0
    give_up = asyncio.get_running_loop().time() + wait
    while True:
        try:
            ids = await queue.release(terms.topic, claim_id_of(terms), last.owner, reason=reason)
        except ClaimBusyError as busy:
            left = give_up - asyncio.get_running_loop().time()
            if left <= 0:
                raise
            await asyncio.sleep(min(busy.retry_after, _PAUSE, left))
        else:
            if ids:
                logger.info("Claim %s of topic %s is given back: %s.", claim_id_of(terms), terms.topic, reason)
            return len(ids)


def _is_of(terms: ClaimTerms, other: str) -> bool:
    """Return whether the other owner is this task, in any of its rounds, also before it was cleared."""
    owner, holder = owner_of(terms), Owner.parse(other)
    if owner is None or holder is None:
        return other == (terms.owner or terms.consumer)
    return holder.claim_id == owner.claim_id and holder.clear_number <= owner.clear_number

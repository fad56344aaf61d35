"""A task's claim: the same batch in each try of the task, and after each restart of the process that waits for it.

The trigger uses this, and so does a sensor that polls by itself. It runs in the event loop of a queue.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from airflow_provider_pawnqueue.hooks import references
from airflow_provider_pawnqueue.hooks.identity import Owner
from airflow_provider_pawnqueue.hooks.retries import BusyClaim, retry_async
from airflow_provider_pawnqueue.hooks.sessions import session_ttl
from pawnqueue import Backlog, Claim, ClaimBusyError, InvalidArgumentError, PawnQueue, PawnQueueError
from pawnqueue.domain.claim_terms import ClaimTerms

logger = logging.getLogger(__name__)

#: After this many lost claims in a row, the task's ttl is too short.
MAX_ROUNDS: Final = 1000
#: Why the messages of a cleared task are released.
CLEARED: Final = "its task was cleared"
#: When a cleared task that still runs looks again.
_CLEARED_RETRY_SECONDS: Final = 30.0


class UnforeseenError(PawnQueueError):
    """A poll of a topic failed in a way that the queue does not know. Another try may succeed."""

    @classmethod
    def of(cls, error: Exception, what: str, topic: str) -> Self:
        """Name an error by its type and place: its text may quote a payload, which no log and no event may have."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown place"
        return cls(
            f"{what} in topic {topic!r} failed with an unexpected {type(error).__name__} at {place}.", topic=topic
        )


def claim_id_of(terms: ClaimTerms) -> str:
    """Return the id of a claim: its task's, or the owner itself where the owner is not a task of Airflow's."""
    owner = owner_of(terms)
    return terms.owner or terms.consumer if owner is None else owner.claim_id


def owner_of(terms: ClaimTerms) -> Owner | None:
    """Return the task on whose behalf a claim is made, or None where it is not a task of Airflow's."""
    return Owner.parse(terms.owner or terms.consumer)


async def claim_for_task(queue: PawnQueue, terms: ClaimTerms, *, may_exist: bool = True) -> Claim:
    """Claim once, without waiting. The claim is empty where nothing is claimable.

    ⚑ §4, Idempotent by claim id: the task's own claim is found again, without what is settled. A new one begins only
    after the last one has ended.

    :param may_exist: whether the task may have a claim already. If so, it is looked up.
    :raises ClaimBusyError: another process works on the claim, or the task was cleared and its successor claims.
    """
    owner = owner_of(terms)
    if owner is None:
        return await _claim(queue, terms)
    if may_exist:
        owner = await _current_round(queue, terms, owner)
    released_owner = ""
    for _ in range(MAX_ROUNDS):
        terms = replace(terms, owner=str(owner))
        try:
            claim = await _claim(queue, terms)
        except ClaimBusyError as busy:
            other = Owner.parse(busy.owner)
            if other is not None and other.is_later_round_of(owner):
                owner = other
            elif other is not None and owner.succeeds(other) and released_owner != busy.owner:
                released_owner = busy.owner
                await release_for_task(queue, terms, CLEARED)
            else:
                raise  # another process works on it, or this task was cleared
            continue
        if claim or not claim.recorded or not claim.was_handed_out:
            return claim
        # It was settled by hand, or taken over after its time. The task waits for another batch.
        logger.info("Claim %s of topic %s has ended (%s): the task claims anew.", claim.stem, terms.topic, claim.state)
        owner = owner.next_round
    raise InvalidArgumentError(
        f"Task {terms.owner!r} has lost {MAX_ROUNDS} claims of topic {terms.topic!r} in a row: give it a longer ttl, "
        "or run a janitor DAG.",
        topic=terms.topic,
        operation="claim",
    )


async def _current_round(queue: PawnQueue, terms: ClaimTerms, owner: Owner) -> Owner:
    """Return the task in its latest round.

    :raises ClaimBusyError: this task was cleared: what is claimable belongs to its successor.
    """
    last = await queue.last_claim(terms.topic, claim_id_of(terms))
    other = None if last is None else Owner.parse(last.owner)
    if last is None or other is None or other.claim_id != owner.claim_id:
        return owner
    # A cleared task lives on for seconds. If the claim ended longer ago, its run was deleted and made anew under the
    # same name, and the new run's clears are counted from 0.
    may_be_cleared = last.is_open or not last.is_over
    was_released = other.clear_number == owner.clear_number and CLEARED in last.reasons
    if may_be_cleared and (was_released or other.clear_number > owner.clear_number):
        raise ClaimBusyError(
            f"The {owner.sentence} was cleared: messages of {terms.topic!r} now go to its successor.",
            claim_id=claim_id_of(terms),
            owner=last.owner,
            retry_after=_CLEARED_RETRY_SECONDS,
            topic=terms.topic,
            operation="claim",
        )
    return other if other.is_later_round_of(owner) else owner


async def _claim(queue: PawnQueue, terms: ClaimTerms) -> Claim:
    default = max(queue.settings.polling.max_messages_per_poll, terms.min_messages)
    asked = replace(
        terms,
        claim_id=claim_id_of(terms),
        max_messages=default if terms.max_messages is None else terms.max_messages,
        session_ttl=session_ttl(queue.settings, terms.ttl),
    )
    return await queue.claim(**asked.claim_arguments())


def is_enough(terms: ClaimTerms, pending: int, backlog: Backlog | None) -> bool:
    """Return whether as many messages are pending as a task waits for, or the oldest has waited for long enough.

    :param pending: how many messages of the backlog are left after what other tasks were given.
    """
    if terms.min_messages <= 1 or backlog is None:
        return True
    if pending >= terms.min_messages:
        return True
    age = backlog.oldest_age_seconds
    return pending > 0 and terms.max_wait is not None and age is not None and age >= terms.max_wait


async def hand_over(queue: PawnQueue, claim: Claim) -> dict[str, Any]:
    """Leave a claim to its task, and return the claim's reference as a dict, for the trigger's event.

    The next process with the reference, or with the claim's id, need not wait.
    """
    count, size = len(claim), references.size_of(claim.messages)
    return references.to_xcom(await queue.leave(claim), queue.settings, count=count, size=size)


async def release_for_task(queue: PawnQueue, terms: ClaimTerms, reason: str, *, wait: float = 0.0) -> int:
    """Release the messages that a task has claimed, and return their number. Nothing is claimed.

    What the task had before it was cleared is released too. What its successor has is not.

    :param wait: for how many seconds to wait while another process works on the claim.
    :raises ClaimBusyError: another process still works on it.
    """
    claim_id = claim_id_of(terms)
    last = await queue.last_claim(terms.topic, claim_id)
    if last is None or not last.is_open or not _is_of(terms, last.owner):
        return 0
    release = partial(queue.release, terms.topic, claim_id, last.owner, reason=reason)
    ids = await retry_async(release, BusyClaim(wait, clock=asyncio.get_running_loop().time))
    if ids:
        logger.info("Released %d messages of claim %s of topic %s: %s.", len(ids), claim_id, terms.topic, reason)
    return len(ids)


async def release_all(queue: PawnQueue, each: Iterable[ClaimTerms], reason: str, *, wait: float) -> None:
    """Release what a task has claimed in all its topics. A failure is logged; those messages wait for their ttl."""
    for terms in each:
        try:
            await release_for_task(queue, terms, reason, wait=wait)
        except PawnQueueError as error:
            logger.warning("Messages of topic %s are claimable when the claim's ttl is over: %s", terms.topic, error)


def _is_of(terms: ClaimTerms, other: str) -> bool:
    """Return whether the other owner is this task, in any of its rounds, also before it was cleared."""
    owner, holder = owner_of(terms), Owner.parse(other)
    if owner is None or holder is None:
        return other == (terms.owner or terms.consumer)
    return holder.claim_id == owner.claim_id and holder.clear_number <= owner.clear_number

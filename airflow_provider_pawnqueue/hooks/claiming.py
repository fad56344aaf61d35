"""A task's claim: the same batch in every try of it, and after every restart of what waits for it.

Written once, for the trigger and for a sensor that polls by itself. It runs in the loop of a queue.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_pawnqueue.engine import ClaimBusyError, InvalidArgumentError, LeaseLostError
from airflow_provider_pawnqueue.hooks import references
from airflow_provider_pawnqueue.hooks.identity import Owner
from airflow_provider_pawnqueue.hooks.sessions import SESSION_TTL

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine import Backlog, Claim, PawnQueue

logger = logging.getLogger(__name__)

#: A task that loses so many claims one after the other has a ttl that is too short for it.
MOST_ROUNDS: Final = 1000
#: Why what a cleared task had is given back.
CLEARED: Final = "its task was cleared"


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


async def claimed(queue: PawnQueue, wish: Wish) -> Claim:
    """Claim once, without waiting. A claim without messages: there is none to be had.

    ⚑ §4, Idempotent by claim id: the claim that this task has is found again, as far as it is not settled; a new one
    begins only after the last one has ended.

    :raises ClaimBusyError: somebody else works for this task's claim.
    """
    owner = Owner.parse(wish.owner)
    for _ in range(MOST_ROUNDS):
        try:
            claim = await _claim(queue, wish)
        except ClaimBusyError as busy:
            other = Owner.parse(busy.owner)
            if owner is None or other is None or other == owner:
                raise
            if owner.succeeds(other):
                await _give_back(queue, wish, busy.owner)
            elif other.is_later_round_of(owner):
                owner, wish = other, replace(wish, owner=busy.owner)
            else:
                raise  # this one is what was cleared
            continue
        if claim or not claim.recorded or not claim.was_handed_out or owner is None:
            return claim
        # It has ended: settled by hand, or taken over as nobody kept it. The task waits for another batch.
        logger.info("Claim %s of topic %s has ended (%s): the task claims anew.", claim.stem, wish.topic, claim.state)
        owner = owner.next_round
        wish = replace(wish, owner=str(owner))
    raise InvalidArgumentError(
        f"Task {wish.owner!r} has lost {MOST_ROUNDS} claims of topic {wish.topic!r}, one after the other: give it a "
        "longer ttl, or run a janitor DAG.",
        topic=wish.topic,
        operation="claim",
    )


async def _claim(queue: PawnQueue, wish: Wish) -> Claim:
    ttl = wish.ttl if wish.ttl is not None else queue.settings.polling.visibility_timeout_seconds
    return await queue.claim(
        wish.topic,
        wish.consumer,
        max_messages=wish.max_messages,
        ttl=ttl,
        claim_id=wish.claim_id,
        owner=wish.owner,
        session_ttl=min(SESSION_TTL, ttl),
    )


async def _give_back(queue: PawnQueue, wish: Wish, former: str) -> None:
    """Give back what this task had before it was cleared, as soon as nobody works on it any more.

    :raises ClaimBusyError: somebody does.
    """
    claim = await _claim(queue, replace(wish, owner=former))
    if claim:
        logger.info("Claim %s of topic %s is given back, as %s.", claim.stem, wish.topic, CLEARED)
        try:
            await queue.nack(claim, requeue=True, reason=CLEARED)
        except LeaseLostError as error:
            logger.info("Of claim %s, others have some messages by now: %s", claim.stem, error)


def is_worth_it(wish: Wish, backlog: Backlog | None) -> bool:
    """Say whether there are as many messages as a task wants at once, or the oldest has waited for long enough."""
    if wish.min_messages <= 1 or backlog is None:
        return True
    if backlog.pending >= wish.min_messages:
        return True
    age = backlog.oldest_age_seconds
    return bool(backlog.pending) and wish.max_wait is not None and age is not None and age >= wish.max_wait


async def handed_over(queue: PawnQueue, claim: Claim) -> dict[str, Any]:
    """Leave a claim to the task that it was made for, and return its reference as an event carries it.

    Whoever comes next need not wait: neither who has the reference, nor who knows the claim's id alone.
    """
    count, size = len(claim), references.size_of(claim.messages)
    return references.to_xcom(await queue.leave(claim), queue.settings, count=count, size=size)


async def released(queue: PawnQueue, wish: Wish, reason: str) -> int:
    """Give back what a task has claimed, as it is not to have it any more; return how many messages that were.

    :raises ClaimBusyError: somebody works for its claim.
    """
    owner, owners = Owner.parse(wish.owner), {wish.owner}
    if owner is not None:  # it may have lost claims, and claimed anew
        owners.update(str(replace(owner, round=owner.round + lost)) for lost in range(MOST_ROUNDS))
    return len(await queue.release(wish.topic, wish.claim_id, owners, reason=reason))

"""What the triggers do: imported in a thread when the first of them runs, as it takes a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException

from airflow_provider_pawnqueue.hooks import claiming
from airflow_provider_pawnqueue.hooks.claiming import UnforeseenError
from airflow_provider_pawnqueue.hooks.diagnosis import in_airflow
from airflow_provider_pawnqueue.hooks.patience import awaited_patiently, may_pass
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.triggers.polling import poll_of
from airflow_provider_pawnqueue.triggers.reminders import Reminders
from pawnqueue import PawnQueueError, QueueClosedError, StoreError
from pawnqueue.domain.claim_terms import ClaimTerms

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.triggers.pawnqueue import PawnQueueClaimTrigger, PawnQueueEventTrigger
    from airflow_provider_pawnqueue.triggers.polling import Waiter
    from pawnqueue import Backlog, PawnQueue

#: How long :func:`release` waits for another process that works on the claim. Airflow allows ``on_kill`` 30 seconds.
RELEASE_WAIT_SECONDS: Final = 10.0
#: An event trigger that cannot look tries again at least this often.
LONGEST_PAUSE_AFTER_FAILURE_SECONDS: Final = 60.0


# --- claiming, for a sensor ---


async def event_of(trigger: PawnQueueClaimTrigger) -> dict[str, Any]:
    """Wait for claims, and return what the trigger fires with: these, or what only a person can mend."""
    hook = PawnQueueHook(trigger.pawnqueue_conn_id)
    try:
        await awaited_patiently(hook.client, "Opening the queue")
        claims = await hook.awaited(partial(_claims, trigger))
    except (PawnQueueError, AirflowNotFoundException) as error:
        return failure(error)
    return {"claims": claims}


async def release(trigger: PawnQueueClaimTrigger) -> None:
    """Give back what the trigger has claimed."""
    await PawnQueueHook(trigger.pawnqueue_conn_id).awaited(partial(_release, trigger))


def failure(error: Exception) -> dict[str, Any]:
    """Write an error as an event has it: its sentence, and whether another try may go better."""
    # A queue is closed where its process ends: the task's next try waits in another one.
    is_transient = isinstance(error, (QueueClosedError, UnforeseenError)) or (
        isinstance(error, StoreError) and may_pass(error)
    )
    return {"error": described(error), "transient": is_transient}


def _terms(trigger: PawnQueueClaimTrigger, topic: str) -> ClaimTerms:
    return ClaimTerms.from_dict({**trigger.terms, "topic": topic})


async def _claims(trigger: PawnQueueClaimTrigger, queue: PawnQueue) -> list[dict[str, Any]]:
    """Wait for the first topic that has something, and take what others have by then."""
    joined = []
    for topic in trigger.topics:
        poll = poll_of(queue, topic)
        joined.append((poll, poll.join(_terms(trigger, topic))))
    futures = [waiter.given for _, waiter in joined]
    try:
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        for poll, waiter in joined:
            poll.last_call(waiter)
        await asyncio.wait(futures)
        return _taken(trigger, [waiter for _, waiter in joined])
    finally:
        for poll, waiter in joined:
            poll.leave(waiter)


def _taken(trigger: PawnQueueClaimTrigger, waiters: Sequence[Waiter]) -> list[dict[str, Any]]:
    claims: list[dict[str, Any]] = []
    errors: list[PawnQueueError] = []
    for waiter in waiters:
        try:
            claim = waiter.take()
        except PawnQueueError as error:
            errors.append(error)
            trigger.log.warning("Nothing was claimed in topic %s: %s", waiter.terms.topic, error)
        else:
            claims += [] if claim is None else [claim]
    if errors and not claims:
        raise errors[0]
    return claims


async def _release(trigger: PawnQueueClaimTrigger, queue: PawnQueue) -> None:
    for topic in trigger.topics:
        try:
            count = await claiming.released(
                queue, _terms(trigger, topic), "its task was ended by a user", wait=RELEASE_WAIT_SECONDS
            )
        except PawnQueueError as error:
            trigger.log.warning("What was claimed in topic %s is had again when its time is over: %s", topic, error)
        else:
            trigger.log.info("Gave back %d messages of topic %s, as a user has ended the task.", count, topic)


# --- listening, for a watcher ---


async def rings_of(trigger: PawnQueueEventTrigger) -> AsyncIterator[Backlog]:
    """Yield a backlog whenever the trigger has to ring.

    What goes wrong is logged once, in a sentence, and tried again after ``ring_every``, then after twice as long, and
    so on. Raised, Airflow would make the trigger anew at once, with a stack trace each time.
    """
    reminders = Reminders()
    pause, told = trigger.ring_every, ""
    while True:
        try:
            backlog = await backlog_of(trigger)
        except Exception as error:  # noqa: BLE001 - whatever it is, the watcher has to go on listening
            problem = described(error)
            if problem != told:
                said = "The event trigger of topic %s cannot look, and goes on trying: %s"
                trigger.log.error(said, trigger.topic, problem)  # noqa: TRY400 - a stack trace helps nobody here
            told = problem
            await asyncio.sleep(pause)
            pause = max(trigger.ring_every, min(pause * 2, LONGEST_PAUSE_AFTER_FAILURE_SECONDS))
            continue
        if told:
            trigger.log.info("The event trigger of topic %s can look again.", trigger.topic)
        pause, told = trigger.ring_every, ""
        if reminders.is_due(asyncio.get_running_loop().time(), backlog.claims):
            yield backlog
        await asyncio.sleep(trigger.ring_every)


async def backlog_of(trigger: PawnQueueEventTrigger) -> Backlog:
    """Wait until there is a backlog, and return it."""
    return await PawnQueueHook(trigger.pawnqueue_conn_id).awaited(partial(_heard, trigger))


def described(error: Exception) -> str:
    """Say what an error is in a sentence; of one that is not ours, its kind alone, as its text may hold a payload."""
    if isinstance(error, PawnQueueError):
        return in_airflow(error)
    if isinstance(error, AirflowException):
        return str(error)
    return f"an unexpected {type(error).__name__}"


async def _heard(trigger: PawnQueueEventTrigger, queue: PawnQueue) -> Backlog:
    async with poll_of(queue, trigger.topic).bell(trigger.min_messages) as heard:
        rung = await heard.get()
        if isinstance(rung, PawnQueueError):
            raise rung
        return rung

"""What the triggers do when they run. It is imported in a thread, as that takes a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException

from airflow_provider_pawnqueue.hooks.diagnosis import in_airflow
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.hooks.retries import TRIGGER_OUTAGE_SECONDS, Outage, may_succeed_later, retry_async
from airflow_provider_pawnqueue.hooks.task_claims import UnforeseenError, release_all
from airflow_provider_pawnqueue.triggers.pawnqueue import PawnQueueClaimTrigger, PawnQueueEventTrigger
from airflow_provider_pawnqueue.triggers.polling import Waiter, poll_of
from pawnqueue import Backlog, PawnQueue, PawnQueueError, QueueClosedError, StoreError
from pawnqueue.domain.claim_terms import ClaimTerms

#: How long :func:`release` waits for another process that works on the claim. Airflow allows ``on_kill`` 30 seconds.
TRIGGER_RELEASE_SECONDS: Final = 10.0
#: The longest pause of an event trigger after a failure.
MAX_FAILURE_PAUSE_SECONDS: Final = 60.0
#: An event that no claim has answered is repeated after this time, then after twice as long, and so on. A run usually
#: takes less time from the event to its claim. Each event in between would start a run that finds nothing.
FIRST_REPEAT_SECONDS: Final = 60.0
#: The same while claims hold messages: the run of the last event probably waits for one of those to end.
FIRST_REPEAT_WHILE_BUSY_SECONDS: Final = 600.0
#: An event is repeated at least this often, so that a lost event strands no message.
MAX_REPEAT_SECONDS: Final = 3600.0


# --- the claim trigger ---


async def claim_event(trigger: PawnQueueClaimTrigger) -> dict[str, Any]:
    """Wait for claims, and return the trigger's event: with references to the claims, or with an error."""
    hook = PawnQueueHook(trigger.pawnqueue_conn_id)
    try:
        await retry_async(hook.client, Outage("Opening the queue", TRIGGER_OUTAGE_SECONDS))
        claims = await hook.awaited(partial(_claims, trigger))
    except (PawnQueueError, AirflowNotFoundException) as error:
        return error_event(error)
    return {"claims": claims}


async def release(trigger: PawnQueueClaimTrigger) -> None:
    """Release what the trigger has claimed."""
    work = partial(
        release_all, each=_terms(trigger), reason="its task was ended by a user", wait=TRIGGER_RELEASE_SECONDS
    )
    await PawnQueueHook(trigger.pawnqueue_conn_id).awaited(work)


def error_event(error: Exception) -> dict[str, Any]:
    """Return the event for an error: its sentence, and whether another try may succeed."""
    # A queue is closed where its process ends. The task's next try waits in another process.
    is_transient = isinstance(error, (QueueClosedError, UnforeseenError)) or (
        isinstance(error, StoreError) and may_succeed_later(error)
    )
    return {"error": sentence_of(error), "transient": is_transient}


def _terms(trigger: PawnQueueClaimTrigger) -> list[ClaimTerms]:
    return [ClaimTerms.from_dict({**trigger.terms, "topic": topic}) for topic in trigger.topics]


async def _claims(trigger: PawnQueueClaimTrigger, queue: PawnQueue) -> list[dict[str, Any]]:
    """Wait for the first topic that has messages, and take what the other topics have by then."""
    joined = []
    for terms in _terms(trigger):
        poll = poll_of(queue, terms.topic)
        joined.append((poll, poll.join(terms)))
    futures = [waiter.given for _, waiter in joined]
    try:
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        for poll, waiter in joined:
            poll.finish(waiter)
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


# --- the event trigger ---


async def backlogs_to_report(trigger: PawnQueueEventTrigger) -> AsyncIterator[Backlog]:
    """Yield a backlog whenever the trigger has to fire.

    A failure is logged once, in a sentence, and tried again after ``ring_every``, then after twice as long, and so on.
    If it were raised, Airflow would restart the trigger at once, with a stack trace each time.
    """
    reminders = Reminders()
    pause, logged = trigger.ring_every, ""
    while True:
        try:
            backlog = await PawnQueueHook(trigger.pawnqueue_conn_id).awaited(partial(_next_backlog, trigger))
        except Exception as error:  # noqa: BLE001 - after any error, the watcher has to go on listening
            problem = sentence_of(error)
            if problem != logged:
                sentence = "The event trigger of topic %s failed and goes on trying: %s"
                trigger.log.error(sentence, trigger.topic, problem)  # noqa: TRY400 - a stack trace helps nobody here
            logged = problem
            await asyncio.sleep(pause)
            pause = max(trigger.ring_every, min(pause * 2, MAX_FAILURE_PAUSE_SECONDS))
            continue
        if logged:
            trigger.log.info("The event trigger of topic %s works again.", trigger.topic)
        pause, logged = trigger.ring_every, ""
        if reminders.is_due(asyncio.get_running_loop().time(), backlog.claims):
            yield backlog
        await asyncio.sleep(trigger.ring_every)


def sentence_of(error: Exception) -> str:
    """Return an error's sentence. Of an error that is not ours, only its type, as its text may quote a payload."""
    if isinstance(error, PawnQueueError):
        return in_airflow(error)
    if isinstance(error, AirflowException):
        return str(error)
    return f"an unexpected {type(error).__name__}"


async def _next_backlog(trigger: PawnQueueEventTrigger, queue: PawnQueue) -> Backlog:
    """Wait until there is a backlog, and return it."""
    async with poll_of(queue, trigger.topic).listen(trigger.min_messages) as heard:
        found = await heard.get()
        if isinstance(found, PawnQueueError):
            raise found
        return found


class Reminders:
    """Decides at each poll that finds a backlog whether to fire.

    Since Airflow 3.4 each event starts a run, and before that each burst of events does. So the trigger fires anew only
    after its last event was answered: a claim was made since. An event without an answer may be lost, as the triggerer
    was killed or the DAG is paused. It is repeated at growing intervals.
    """

    def __init__(self) -> None:
        self._known: frozenset[str] | None = None  # the claims that had a record at the last event
        self._fired_at = 0.0
        self._repeats = 0

    def is_due(self, now: float, claims: Mapping[str, bool]) -> bool:
        """Return whether to fire now. The caller must then do so: this counts as done.

        :param now: the time in seconds, of a clock that does not jump.
        :param claims: the recorded claims of the topic, and whether each holds messages.
        """
        if self._known is None or not claims.keys() <= self._known:
            self._repeats = 0
        elif now - self._fired_at < self._pause(is_busy=any(claims.values())):
            return False
        else:
            self._repeats += 1
        self._known, self._fired_at = frozenset(claims), now
        return True

    def _pause(self, *, is_busy: bool) -> float:
        first = FIRST_REPEAT_WHILE_BUSY_SECONDS if is_busy else FIRST_REPEAT_SECONDS
        return min(first * 2.0**self._repeats, MAX_REPEAT_SECONDS)

"""One poll of a topic for all tasks and watchers in this process that wait for it.

Waiting tasks are served in the order in which they came. Only the first one is claimed for: if it finds nothing, the
tasks behind it find nothing either. An idle topic costs one listing every ``polling.interval_seconds``.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakKeyDictionary

from airflow_provider_pawnqueue.hooks import task_claims
from airflow_provider_pawnqueue.hooks.retries import TRIGGER_OUTAGE_SECONDS
from airflow_provider_pawnqueue.hooks.task_claims import UnforeseenError
from airflow_provider_pawnqueue.triggers.janitor_watch import JanitorWatch
from pawnqueue import ClaimBusyError, LeaseLostError, PawnQueueError, QueueClosedError, StoreError, TopicNotFoundError

if TYPE_CHECKING:
    from pawnqueue import Backlog, Claim, PawnQueue
    from pawnqueue.domain.claim_terms import ClaimTerms

logger = logging.getLogger(__name__)

#: The pause after a poll that found something, or after a new waiter. It doubles after each poll that finds nothing.
MIN_POLL_PAUSE_SECONDS: Final = 0.5
#: The longest pause while the store does not answer.
MAX_UNANSWERED_POLL_PAUSE_SECONDS: Final = 30.0
#: The longest pause while the store denies what it allowed before. The connection may have other keys at any moment.
MAX_DENIED_POLL_PAUSE_SECONDS: Final = 5.0
#: Why a claim is released after its task went away.
NOBODY_WAITS: Final = "nobody waits for it any more"


@dataclass(eq=False, slots=True)
class Waiter:
    """A task that waits for a claim. ``given`` becomes the claim's reference for XCom, or None: it goes without."""

    terms: ClaimTerms
    given: asyncio.Future[dict[str, Any] | None]
    is_new: bool = True  # nobody has looked yet whether its claim exists
    has_claim: bool = False  # its claim exists, and is found by its id whether or not the topic has messages
    had_claim: bool = False  # the claim that it was given existed before: others may have been given it too
    was_polled_for: bool = False  # a whole poll has passed since it came
    is_leaving: bool = False  # it goes after the next poll, with a claim or without
    is_taken: bool = False  # its task has received what it was given
    busy_until: float = 0.0  # by the loop's time: another process works on its claim

    @property
    def has_new_claim(self) -> bool:
        """Whether it was given a claim that nobody else can have been given."""
        given = self.given
        # The exception is asked for, so that asyncio does not log one that nobody takes.
        if given.cancelled() or given.exception() is not None:
            return False
        return bool(given.result()) and not self.had_claim

    def give(self, reference: dict[str, Any] | None) -> None:
        """Give it a claim, or None, unless something was given already."""
        if not self.given.done():
            self.given.set_result(reference)

    def fail(self, error: PawnQueueError) -> None:
        """Give it an error, unless something was given already."""
        if not self.given.done():
            self.given.set_exception(error)

    def take(self) -> dict[str, Any] | None:
        """Return what was given, or raise the error that was."""
        self.is_taken = True
        return self.given.result()


@dataclass(eq=False, slots=True)
class _Listener:
    """A watcher that wants each backlog of at least this size."""

    min_messages: int
    heard: asyncio.Queue[Backlog | PawnQueueError] = field(default_factory=asyncio.Queue)


class Poll:
    """The poll of one topic. It runs in the loop of its queue while a task or a watcher waits."""

    def __init__(self, queue: PawnQueue, topic: str) -> None:
        self._queue = queue
        self._topic = topic
        self._waiters: list[Waiter] = []
        self._listeners: list[_Listener] = []
        self._woken = asyncio.Event()
        self._is_polling = False
        self._task: asyncio.Task[None] | None = None
        self._releases: set[asyncio.Task[None]] = set()
        self._janitor = JanitorWatch(queue, topic)
        self._was_allowed = False
        self._denied_since: float | None = None  # by the loop's time

    # --- tasks and watchers that wait ---

    def join(self, terms: ClaimTerms) -> Waiter:
        """Wait for a claim from now on. The caller has to :meth:`leave`."""
        waiter = Waiter(terms, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._wake()
        return waiter

    def finish(self, waiter: Waiter) -> None:
        """End a wait soon: with what the poll that is under way finds, or without a claim."""
        if waiter.was_polled_for and not self._is_polling:
            waiter.give(None)
        waiter.is_leaving = True
        self._wake()

    def leave(self, waiter: Waiter) -> None:
        """Wait no more. What was given and not taken is released."""
        # ⚑ By identity: two waiters of a cleared task wait for a moment, and it is the old one that goes.
        self._waiters = [other for other in self._waiters if other is not waiter]
        if not waiter.given.done():
            waiter.given.cancel()
        elif not waiter.is_taken and waiter.has_new_claim:
            release = asyncio.create_task(self._release(waiter.terms), name=f"pawnqueue-release-{self._topic}")
            self._releases.add(release)
            release.add_done_callback(self._releases.discard)

    @asynccontextmanager
    async def listen(self, min_messages: int = 1) -> AsyncIterator[asyncio.Queue[Backlog | PawnQueueError]]:
        """Receive the backlog of each poll that finds at least this many messages."""
        listener = _Listener(min_messages)
        self._listeners.append(listener)
        self._wake()
        try:
            yield listener.heard
        finally:
            self._listeners = [other for other in self._listeners if other is not listener]

    async def _release(self, terms: ClaimTerms) -> None:
        await task_claims.release_all(self._queue, [terms], NOBODY_WAITS, wait=0.0)

    # --- polling ---

    def _wake(self) -> None:
        self._woken.set()
        if self._task is None or self._task.done():
            _POLLS.setdefault(self._queue, {}).setdefault(self._topic, self)
            self._task = asyncio.create_task(self._run(), name=f"pawnqueue-poll-{self._topic}")

    async def _run(self) -> None:
        pause = MIN_POLL_PAUSE_SECONDS
        while self._waiters or self._listeners:
            self._woken.clear()
            longest = max(self._queue.settings.polling.interval_seconds, MIN_POLL_PAUSE_SECONDS)
            try:
                found = await self._poll()
            except StoreError as error:
                if not (error.transient or self._may_be_allowed_again(error)):
                    self._fail(error)
                    continue
                logger.warning("The poll of topic %s failed and is tried again: %s", self._topic, error)
                found = False
                longest = MAX_DENIED_POLL_PAUSE_SECONDS if error.denied else MAX_UNANSWERED_POLL_PAUSE_SECONDS
            except PawnQueueError as error:
                self._fail(error)
                continue
            except Exception as error:  # noqa: BLE001 - a defect of ours; the waiting tasks have retries
                self._fail(self._unforeseen(error, "Looking for messages"))
                continue
            else:
                self._denied_since, self._was_allowed = None, True
            if not found:
                await self._janitor.look()
            pause = MIN_POLL_PAUSE_SECONDS if found else min(pause * 2, longest)
            if self._waiters or self._listeners:
                pause = await self._sleep(pause)
        # Nothing is kept of a queue that nobody uses.
        _POLLS.get(self._queue, {}).pop(self._topic, None)

    def _may_be_allowed_again(self, error: StoreError) -> bool:
        """Return whether to go on although the store denies what it allowed before.

        Where keys are replaced, the connection may name the new ones only after the store refuses the old ones.
        """
        if not (error.denied and self._was_allowed):
            return False
        now = asyncio.get_running_loop().time()
        if self._denied_since is None:
            self._denied_since = now
        return now - self._denied_since < TRIGGER_OUTAGE_SECONDS

    async def _sleep(self, pause: float) -> float:
        """Wait until the next poll is due, and return the pause from which the following one is doubled."""
        await asyncio.sleep(MIN_POLL_PAUSE_SECONDS / 2)  # tasks that come together share a poll
        left = pause - MIN_POLL_PAUSE_SECONDS / 2 + random.uniform(0, 0.1)  # noqa: S311 - no secret; polls spread out
        try:
            await asyncio.wait_for(self._woken.wait(), max(0.0, left))
        except TimeoutError:
            return pause
        return MIN_POLL_PAUSE_SECONDS

    async def _poll(self) -> bool:
        """Look once, give each waiting task what it can have, and return whether anything was found."""
        self._is_polling = True
        waiters = list(self._waiters)
        try:
            found = await self._serve_all(waiters)
            for waiter in waiters:
                waiter.was_polled_for = True
        finally:
            self._is_polling = False
            for waiter in waiters:
                if waiter.is_leaving:
                    waiter.give(None)
        return found

    async def _serve_all(self, waiters: list[Waiter]) -> bool:
        await self._find_old_claims(waiters)
        backlog: Backlog | None = None
        if self._listeners or any(waiter.terms.min_messages > 1 for waiter in waiters):
            at_least = max([one.min_messages for one in self._listeners] + [one.terms.min_messages for one in waiters])
            backlog = await self._queue.backlog(self._topic, at_least=at_least, claims=bool(self._listeners))
            self._tell_listeners(backlog)
        pending = 0 if backlog is None else backlog.pending
        now = asyncio.get_running_loop().time()
        cleared = _cleared(waiters)
        found = is_empty = False
        for waiter in waiters:
            if waiter.given.done() or waiter.busy_until > now or waiter in cleared:
                continue
            if not waiter.has_claim and (is_empty or not task_claims.is_enough(waiter.terms, pending, backlog)):
                continue
            outcome = await self._serve(waiter)
            if isinstance(outcome, int):
                found = True
                pending -= outcome
            elif outcome == "nothing":
                is_empty = True  # for the others too: only claims that exist already can still be given
        return found

    async def _find_old_claims(self, waiters: list[Waiter]) -> None:
        """Find out which new waiters have a claim from before a restart: one LIST for all of them."""
        new = [waiter for waiter in waiters if waiter.is_new]
        if not new:
            return
        known = await self._queue.known_claims(self._topic, {task_claims.claim_id_of(waiter.terms) for waiter in new})
        for waiter in new:
            waiter.is_new, waiter.has_claim = False, task_claims.claim_id_of(waiter.terms) in known

    async def _serve(self, waiter: Waiter) -> int | Literal["nothing", "not now"]:
        """Claim for one task, and return how many messages it was given. Its errors concern no other task."""
        waiter.had_claim, waiter.busy_until = waiter.has_claim, 0.0
        try:
            claim = await task_claims.claim_for_task(self._queue, waiter.terms, may_exist=waiter.has_claim)
            waiter.has_claim = False  # an old claim that had ended is out of the way
            if not claim:
                return "nothing"
            return await self._hand(waiter, claim)
        except ClaimBusyError as busy:
            logger.info("Task %s waits: %s", waiter.terms.owner, busy)
            pause = min(busy.retry_after, MAX_UNANSWERED_POLL_PAUSE_SECONDS) + MIN_POLL_PAUSE_SECONDS
            waiter.busy_until = asyncio.get_running_loop().time() + pause
            waiter.has_claim = True
        except LeaseLostError as error:
            logger.warning(
                "Task %s lost its claim before the task began, and keeps waiting: %s", waiter.terms.owner, error
            )
            waiter.has_claim = True
        except StoreError as error:
            waiter.has_claim = True  # it may have been made
            if not await self._is_of_its_claim(waiter, error):
                raise
            waiter.fail(error)
        except (TopicNotFoundError, QueueClosedError):
            waiter.has_claim = True
            raise
        except PawnQueueError as error:
            waiter.fail(error)
        except Exception as error:  # noqa: BLE001 - a defect of ours, or of one message
            waiter.fail(self._unforeseen(error, f"Claiming for task {waiter.terms.owner}"))
        return "not now"

    async def _is_of_its_claim(self, waiter: Waiter, error: StoreError) -> bool:
        """Return whether the store refuses only the claim that one task has. ⚑ §5.6: then it is that task's error.

        :raises StoreError: the store also refuses to list the topic's claims, which concerns all waiting tasks.
        """
        if error.transient or not waiter.had_claim:
            return False
        await self._queue.known_claims(self._topic, {task_claims.claim_id_of(waiter.terms)})
        return True

    def _unforeseen(self, error: Exception, what: str) -> UnforeseenError:
        found = UnforeseenError.of(error, what, self._topic)
        logger.error("%s", found)
        return found

    async def _hand(self, waiter: Waiter, claim: Claim) -> int:
        count = len(claim)
        if waiter.given.done() and not waiter.had_claim:  # it was cancelled meanwhile
            await self._queue.requeue(claim, reason=NOBODY_WAITS)
            return count
        reference = await task_claims.hand_over(self._queue, claim)
        if waiter.given.done() and not waiter.had_claim:
            await self._release(waiter.terms)
        waiter.give(reference)
        return count

    def _tell_listeners(self, backlog: Backlog) -> None:
        for listener in self._listeners:
            if backlog.pending >= listener.min_messages:
                listener.heard.put_nowait(backlog)

    def _fail(self, error: PawnQueueError) -> None:
        """End all waits with an error that only a person can mend."""
        for waiter in self._waiters:
            waiter.fail(error)
        self._waiters = []
        for listener in self._listeners:
            listener.heard.put_nowait(error)
        self._listeners = []


def _cleared(waiters: list[Waiter]) -> list[Waiter]:
    """Return the waiters of cleared tasks whose successors wait here too. Airflow is about to end them."""
    owners = [(waiter, task_claims.owner_of(waiter.terms)) for waiter in waiters]
    newest: dict[str, int] = {}
    for _, owner in owners:
        if owner is not None:
            newest[owner.claim_id] = max(owner.clear_number, newest.get(owner.claim_id, 0))
    return [waiter for waiter, owner in owners if owner is not None and owner.clear_number < newest[owner.claim_id]]


#: The polls of each queue of this process, by topic.
_POLLS: Final[WeakKeyDictionary[PawnQueue, dict[str, Poll]]] = WeakKeyDictionary()


def poll_of(queue: PawnQueue, topic: str) -> Poll:
    """Return the one poll of a topic. Call it in the loop of the queue."""
    known = _POLLS.get(queue, {}).get(topic)
    return known if known is not None else Poll(queue, topic)

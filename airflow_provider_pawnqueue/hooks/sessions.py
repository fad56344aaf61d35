"""The claims that this process works on: each has one session, which is renewed beside the work and left at its end.

⚑ §4, Sessions: two sessions never have one claim. A task waits while another session works on its claim: until that one
has left it, or until its time is over. A session ends with its process. A thread of the process renews it, and leaves
it as soon as the process has lost its supervisor (:mod:`.supervision`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Final, TypeAlias

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_pawnqueue.hooks.identity import in_a_task
from airflow_provider_pawnqueue.hooks.retries import BusyClaim, retry, retry_store
from airflow_provider_pawnqueue.hooks.stopping import stop_the_task
from airflow_provider_pawnqueue.hooks.supervision import SUPERVISION, kill_unless_it_ends
from pawnqueue import Claim, ClaimBusyError, ClaimReference, LeaseLostError, PawnQueueError, Settings, SyncPawnQueue
from pawnqueue.domain.claim_terms import SESSION_TTL_SECONDS

logger = logging.getLogger(__name__)

#: How often a session is renewed.
RENEWAL_SECONDS: Final = 8.0
#: How long a task waits for the claim's former session, which in the worst case goes on for as long as its process.
BUSY_WAIT_SECONDS: Final = 600.0


class ClaimEndedError(LeaseLostError, AirflowFailException):
    """The claim that this task was given has ended, so the task fails without another try.

    Each try of the task has the same reference, and a claim that has ended stays ended. Its messages come again in
    another claim.

    :when: a task reads, works on, or settles a claim by what the sensor returned.
    :done: nothing.
    :remedy: clear the task that claims: it claims anew. A longer ``ttl``, or a janitor DAG, keeps claims for longer.
    """


@contextmanager
def final_if_lost() -> Iterator[None]:
    """Raise ``ClaimEndedError`` if a claim is lost before the work begins, so that Airflow does not try again."""
    try:
        yield
    except LeaseLostError as lost:
        raise ClaimEndedError(
            str(lost), topic=lost.topic, message=lost.message, operation=lost.operation, cause=lost
        ) from lost


class Session:
    """A claim that this process works on."""

    def __init__(self, queue: SyncPawnQueue, claim: Claim, *, ttl: float | None, is_borrowed: bool = False) -> None:
        self.queue = queue
        self.claim = claim
        self._is_borrowed = is_borrowed
        self.pid = os.getpid()
        self.users = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._keeping = ExitStack()
        if claim:  # a claim that has ended is not renewed, and its loss stops nobody
            # A session shorter than the usual one is renewed as often as the engine does by default.
            interval = RENEWAL_SECONDS if claim.session_ttl >= SESSION_TTL_SECONDS else None
            self._keeping.enter_context(queue.keep_alive(claim, on_lost=self._lost, ttl=ttl, interval=interval))
        SUPERVISION.add(self)

    @property
    def is_valid(self) -> bool:
        """Whether this process may still work on the claim."""
        return not self._ended.is_set() and self.pid == os.getpid() and self.claim.lost is None

    def end(self) -> None:
        """End the session, and let the next process begin at once, unless this process had the claim before."""
        if self.stop_renewing() and not self._is_borrowed:
            self.leave()

    def stop_renewing(self) -> bool:
        """Stop the renewals, and return whether there were any."""
        if self.pid != os.getpid():
            return False
        with self._lock:
            if self._ended.is_set():
                return False
            self._ended.set()
        SUPERVISION.remove(self)
        with suppress(PawnQueueError):  # nothing renews it after that either
            self._keeping.close()
        return True

    def leave(self) -> None:
        """End its time at once. If that fails, the next process waits for the end of its time."""
        with suppress(PawnQueueError):
            self.queue.leave(self.claim)

    def _lost(self, error: LeaseLostError) -> None:
        if not self._ended.is_set():
            stop_the_task(str(error), self._ended)
            kill_unless_it_ends(self._ended, in_a_task)


class Sessions:
    """The sessions of this process, by queue and claim. Threads that work on one claim share its session."""

    def __init__(self) -> None:
        self._held: dict[_Key, Session] = {}
        self._turns: dict[_Key, threading.Lock] = {}
        self._lock = threading.Lock()

    def held(self, queue: SyncPawnQueue, reference: ClaimReference) -> Session | None:
        """Return the session of this process for a claim, if it has one."""
        session = self._held.get(_key(queue, reference))
        return session if session is not None and session.is_valid else None

    def begin(
        self, queue: SyncPawnQueue, reference: ClaimReference, *, ttl: float | None = None, payloads: bool = True
    ) -> Session:
        """Begin a session on a claim, or join the one of this process. A session of another process is waited for.

        :raises ClaimEndedError: the claim has ended, or was taken over.
        :raises ClaimBusyError: another process still works on it.
        """
        self._refuse_to_children(reference)
        with self._turn(queue, reference):
            session = self.held(queue, reference)
            if session is None:
                # ⚑ §4, Sessions: a claim that this process has by `attach` or `claim` keeps that session.
                own = queue.held(reference)
                with final_if_lost():
                    claim = own or _checked(attach_when_free(queue, reference, ttl=ttl, payloads=payloads))
                session = Session(queue, claim, ttl=ttl, is_borrowed=own is not None)
                self._held[_key(queue, reference)] = session
                logger.info("Working on claim %s of topic %s: %d messages.", claim.stem, claim.topic, len(claim))
            session.users += 1
            return session

    def _refuse_to_children(self, reference: ClaimReference) -> None:
        """Raise an error if the parent of this process works on the claim: the two would wait for each other."""
        named = reference.topic, reference.claim_id, reference.generation
        for session in list(self._held.values()):
            claim = session.claim
            if session.pid == os.getppid() and (claim.topic, claim.claim_id, claim.generation) == named:
                raise ClaimBusyError(
                    f"Claim {claim.stem} of topic {claim.topic!r} is worked on by the process that has started this "
                    "one: pass on its messages, or look at them here (messages(claim, shared=True)), and settle there.",
                    claim_id=claim.claim_id,
                    owner=claim.owner,
                    retry_after=claim.seconds_left,
                    topic=claim.topic,
                    operation="attach",
                )

    def end(self, session: Session) -> None:
        """Leave a session. The claim is left when its last user does so."""
        key = session.queue, session.claim
        with self._turn(*key):
            session.users -= 1
            if session.users <= 0:
                session.end()
                if self._held.get(_key(*key)) is session:
                    del self._held[_key(*key)]

    def stop_renewing(self, queue: SyncPawnQueue | None = None) -> None:
        """Stop the renewals of one queue, or of all. The queues leave the claims when they are closed."""
        for session in list(self._held.values()):
            if queue is None or session.queue is queue:
                session.stop_renewing()
        SUPERVISION.wait_until_left()

    def forget(self) -> None:
        """Forget locks that other threads of the parent process may have held at the fork."""
        self._lock = threading.Lock()
        self._turns = {}

    def _turn(self, queue: SyncPawnQueue, claim: ClaimReference | Claim) -> threading.Lock:
        with self._lock:
            return self._turns.setdefault(_key(queue, claim), threading.Lock())


def attach_when_free(
    queue: SyncPawnQueue,
    reference: ClaimReference,
    *,
    ttl: float | None = None,
    payloads: bool = True,
    seconds: float = BUSY_WAIT_SECONDS,
) -> Claim:
    """Attach to a claim as soon as no other session works on it. The log says for whom it waits.

    :raises ClaimBusyError: the other session goes on for longer than ``seconds``.
    """

    def report(busy: ClaimBusyError) -> None:
        logger.info(
            "Claim %s of topic %s may have a session already (%s). Waiting until that has ended: its time is over in "
            "%.0f seconds unless it is renewed.",
            reference.claim_id,
            reference.topic,
            busy.owner,
            busy.retry_after,
        )

    attach = partial(queue.attach, reference, ttl=ttl, session_ttl=session_ttl(queue.settings, ttl), payloads=payloads)
    return retry(partial(retry_store, attach, f"Claim {reference.claim_id}"), BusyClaim(seconds, on_first=report))


def _checked(claim: Claim) -> Claim:
    """Return a claim, unless it ended unsettled. Such a claim is empty, as a settled one is."""
    if not claim and claim.ended_unsettled:
        raise LeaseLostError(
            f"Claim {claim.claim_id} of topic {claim.topic!r} has ended unsettled: its time was over, or its run was "
            "taken for ended. Others may have its messages. A longer ttl, or a janitor DAG, keeps claims for longer.",
            topic=claim.topic,
            operation="attach",
        )
    return claim


def session_ttl(settings: Settings, ttl: float | None) -> float:
    """Return how long a session is trusted: never longer than its claim lasts."""
    return min(SESSION_TTL_SECONDS, ttl if ttl is not None else settings.polling.visibility_timeout_seconds)


_Key: TypeAlias = "tuple[int, str, str, int]"


def _key(queue: SyncPawnQueue, claim: ClaimReference | Claim) -> _Key:
    return id(queue), claim.topic, claim.claim_id, claim.generation


#: The sessions of this process. At its end, :mod:`.clients` closes the queues, which leave the claims.
SESSIONS = Sessions()
os.register_at_fork(after_in_child=SESSIONS.forget)

"""The claims that this process works on: one session each, renewed beside the work, and given back when it ends.

⚑ §4, Sessions: two sessions never have one claim. A task that comes while another one works waits until that one has
ended in good order, or until its session's time is over. A session dies with its process: it is renewed by a thread of
that process, and left as soon as the process has lost its supervisor (:mod:`.supervision`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_pawnqueue.hooks.identity import in_a_task
from airflow_provider_pawnqueue.hooks.patience import patiently
from airflow_provider_pawnqueue.hooks.stopping import stop_the_task
from airflow_provider_pawnqueue.hooks.supervision import SUPERVISION, kill_unless_it_ends
from pawnqueue import ClaimBusyError, LeaseLostError, PawnQueueError

if TYPE_CHECKING:
    from pawnqueue import Claim, ClaimReference, Settings, SyncPawnQueue

logger = logging.getLogger(__name__)

#: For how long after its last renewal a process is trusted with a claim: so long a retry waits for one that was killed.
SESSION_TTL: Final = 30.0
#: So often it is renewed.
INTERVAL: Final = 8.0
#: For so long a task waits for the claim's former session, which in the worst case lives on with its process.
PATIENCE: Final = 600.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 4.0


class ClaimEndedError(LeaseLostError, AirflowFailException):
    """The claim that this task was given has ended, so the task fails without another try.

    Each try of the task is given the same reference, and a claim that has ended never comes back. The messages come
    again, in another claim.

    :when: a task reads, works on, or settles a claim by what the sensor returned.
    :done: nothing.
    :remedy: clear the task that claims: it claims anew. A longer ``ttl``, or a janitor DAG, keeps claims for longer.
    """


@contextmanager
def final_if_lost() -> Iterator[None]:
    """Raise the loss of a claim, met before the work on it begins, such that Airflow does not try again."""
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
        if claim:  # one that has ended needs no keeping, and is no loss that anybody has to be stopped for
            interval = INTERVAL if claim.session_ttl >= SESSION_TTL else None  # of a short one, as often as it needs
            self._keeping.enter_context(queue.keep_alive(claim, on_lost=self._lost, ttl=ttl, interval=interval))
        SUPERVISION.add(self)

    @property
    def stands(self) -> bool:
        """Say whether this process may still work on it."""
        return not self._ended.is_set() and self.pid == os.getpid() and self.claim.lost is None

    def end(self) -> None:
        """Work on it no more, and let the next process begin at once, unless this process had it before."""
        if self.stop_renewing() and not self._is_borrowed:
            self.leave()

    def stop_renewing(self) -> bool:
        """Keep it no longer, and return whether it was kept."""
        if self.pid != os.getpid():
            return False
        with self._lock:
            if self._ended.is_set():
                return False
            self._ended.set()
        SUPERVISION.remove(self)
        with suppress(PawnQueueError):  # then nothing keeps it
            self._keeping.close()
        return True

    def leave(self) -> None:
        """Give its time back; where that fails, the next process waits for the end of that time."""
        with suppress(PawnQueueError):
            self.queue.leave(self.claim)

    def _lost(self, error: LeaseLostError) -> None:
        if not self._ended.is_set():
            stop_the_task(str(error), self._ended)
            kill_unless_it_ends(self._ended, in_a_task)


class Sessions:
    """Those of this process, by queue and claim. Threads that work on one claim share its session."""

    def __init__(self) -> None:
        self._held: dict[_Key, Session] = {}
        self._turns: dict[_Key, threading.Lock] = {}
        self._lock = threading.Lock()

    def held(self, queue: SyncPawnQueue, reference: ClaimReference) -> Session | None:
        """Return the session of this process for a claim, if it has one."""
        session = self._held.get(_key(queue, reference))
        return session if session is not None and session.stands else None

    def begin(
        self,
        queue: SyncPawnQueue,
        reference: ClaimReference,
        *,
        ttl: float | None = None,
        payloads: bool = True,
    ) -> Session:
        """Work on a claim from now on, as this process does already or anew; wait for the session of another process.

        :raises ClaimEndedError: it has ended, or was taken over.
        :raises ClaimBusyError: another process works on it, and goes on.
        """
        self._refuse_to_children(reference)
        with self._turn(queue, reference):
            session = self.held(queue, reference)
            if session is None:
                # ⚑ §4, Sessions: one that this process has by `attach` or `claim` is worked on in that very session.
                own = queue.held(reference)
                with final_if_lost():
                    claim = own or _alive(attached(queue, reference, ttl=ttl, payloads=payloads))
                session = Session(queue, claim, ttl=ttl, is_borrowed=own is not None)
                self._held[_key(queue, reference)] = session
                logger.info("Working on claim %s of topic %s: %d messages.", claim.stem, claim.topic, len(claim))
            session.users += 1
            return session

    def _refuse_to_children(self, reference: ClaimReference) -> None:
        """Tell a process that its parent works on the claim: it would wait for the one that waits for it."""
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
        """Work on it no more; the last one who does so leaves it."""
        key = session.queue, session.claim
        with self._turn(*key):
            session.users -= 1
            if session.users <= 0:
                session.end()
                if self._held.get(_key(*key)) is session:
                    del self._held[_key(*key)]

    def rest(self, queue: SyncPawnQueue | None = None) -> None:
        """Keep none of them any longer, as this process ends, or this queue; queues leave the claims when closed."""
        for session in list(self._held.values()):
            if queue is None or session.queue is queue:
                session.stop_renewing()
        SUPERVISION.wait_until_left()

    def forget(self) -> None:
        """Forget locks that other threads of the parent may have held at the moment of the fork."""
        self._lock = threading.Lock()
        self._turns = {}

    def _turn(self, queue: SyncPawnQueue, claim: ClaimReference | Claim) -> threading.Lock:
        with self._lock:
            return self._turns.setdefault(_key(queue, claim), threading.Lock())


def attached(
    queue: SyncPawnQueue,
    reference: ClaimReference,
    *,
    ttl: float | None = None,
    payloads: bool = True,
    patience: float = PATIENCE,
) -> Claim:
    """Attach to a claim, and say in the log for whom this waits."""
    give_up = time.monotonic() + patience
    pause = 0.0
    said = False
    while True:
        try:
            attach = partial(
                queue.attach,
                reference,
                ttl=ttl,
                session_ttl=session_ttl(queue.settings, ttl),
                payloads=payloads,
                wait=pause,
            )
            return patiently(attach, f"Claim {reference.claim_id}")
        except ClaimBusyError as busy:
            left = give_up - time.monotonic()
            if left <= 0:
                raise
            if not said:
                said = True
                logger.info(
                    "Claim %s of topic %s has a session that may be alive (%s): waiting until it has ended, or for "
                    "%.0f seconds more, when it is over unless it is renewed.",
                    reference.claim_id,
                    reference.topic,
                    busy.owner,
                    busy.retry_after,
                )
            pause = min(max(pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE, left)


def _alive(claim: Claim) -> Claim:
    """Refuse a claim that others ended: it is empty, as one is that was settled."""
    if not claim and claim.ended_unsettled:
        raise LeaseLostError(
            f"Claim {claim.claim_id} of topic {claim.topic!r} has ended unsettled: its time was over, or its run was "
            "taken for ended. Others have its messages, or may have them. A longer ttl, or a janitor DAG, keeps claims "
            "for longer.",
            topic=claim.topic,
            operation="attach",
        )
    return claim


def session_ttl(settings: Settings, ttl: float | None) -> float:
    """Return for how long a session is trusted: never longer than its claim."""
    return min(SESSION_TTL, ttl if ttl is not None else settings.polling.visibility_timeout_seconds)


_Key: TypeAlias = "tuple[int, str, str, int]"


def _key(queue: SyncPawnQueue, claim: ClaimReference | Claim) -> _Key:
    return id(queue), claim.topic, claim.claim_id, claim.generation


#: Those of this process. Its end ends them: :mod:`.clients` closes its queues, which leave the claims.
SESSIONS = Sessions()
os.register_at_fork(after_in_child=SESSIONS.forget)

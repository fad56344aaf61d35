"""The claims that this process works on: one session each, renewed beside the work, and given back when it ends.

⚑ §4, Sessions: two sessions never have one claim. A task that comes while another one works waits until that one has
ended in good order, or until its session's time is over. A session dies with its process: it is renewed by a thread of
that process, which stops as soon as the process has lost its supervisor, because Airflow then starts another try.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from airflow_provider_pawnqueue.engine import ClaimBusyError, LeaseLostError, PawnQueueError
from airflow_provider_pawnqueue.hooks.patience import patiently

if TYPE_CHECKING:
    from types import FrameType

    from airflow_provider_pawnqueue.engine import Claim, ClaimReference, Settings, SyncPawnQueue

logger = logging.getLogger(__name__)

#: For how long after its last renewal a process is trusted with a claim: so long a retry waits for one that was killed.
SESSION_TTL: Final = 30.0
#: So often it is renewed.
INTERVAL: Final = 8.0
#: So often a task looks whether its supervisor lives.
WATCH: Final = 1.0
#: For so long a task waits for the claim's former session, which in the worst case lives on with its process.
PATIENCE: Final = 600.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 4.0


#: So long whoever stops the task waits until that has been heard, before the claim is left to others.
HEARD: Final = 5.0
#: For so long after that a task without a supervisor may still unwind.
LAST: Final = 30.0


class WorkStoppedError(BaseException):
    """Stops a task wherever it works, as its claim is lost; :class:`LeaseLostError` is its cause.

    No ``Exception``: a task that goes on with the next message where one of them raises must not go on after this.

    :when: a task works on ``PawnQueueHook().messages(claim)``, anywhere in its code.
    :done: what the task has done so far; its messages are not settled by it.
    :remedy: let it pass. A longer ``ttl``, or a janitor, keeps it from coming again.
    """

    def __init__(self, sentence: str, *, is_orphan: bool = False) -> None:
        super().__init__(sentence)
        self.is_orphan = is_orphan


#: Stops the task, and says why; what is returned is set when the task has heard it.
Stop: TypeAlias = "Callable[[str, threading.Event | None], threading.Event]"


class Session:
    """A claim that this process works on."""

    def __init__(self, queue: SyncPawnQueue, claim: Claim, *, ttl: float | None, stop: Stop) -> None:
        self.queue = queue
        self.claim = claim
        self.pid = os.getpid()
        self.users = 0
        self._stop = stop
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._parent = os.getppid()
        self._keeping = ExitStack()
        if claim:  # one that has ended needs no keeping, and is no loss that anybody has to be stopped for
            interval = INTERVAL if claim.session_ttl >= SESSION_TTL else None  # of a short one, as often as it needs
            self._keeping.enter_context(queue.keep_alive(claim, on_lost=self._lost, ttl=ttl, interval=interval))
        self._watch = threading.Thread(target=self._watch_supervisor, name="pawnqueue-supervisor-watch", daemon=True)
        if not _is_its_own_supervisor():
            self._watch.start()

    @property
    def stands(self) -> bool:
        """Say whether this process may still work on it."""
        return not self._ended.is_set() and self.pid == os.getpid() and self.claim.lost is None

    def end(self) -> None:
        """Work on it no more, and let whoever comes next begin at once."""
        if self.rest():
            self._leave()

    def rest(self) -> bool:
        """Keep it no longer, and say whether it was kept."""
        if self.pid != os.getpid():
            return False
        with self._lock:
            if self._ended.is_set():
                return False
            self._ended.set()
        with suppress(PawnQueueError):  # then nothing keeps it
            self._keeping.close()
        return True

    def wait(self) -> None:
        """Wait until it is left, if that has begun."""
        if self.pid == os.getpid() and self._watch.is_alive() and self._watch is not threading.current_thread():
            self._watch.join(HEARD)

    def _leave(self) -> None:
        with suppress(PawnQueueError):  # whoever comes next waits for its time, then
            self.queue.leave(self.claim)

    def _lost(self, error: LeaseLostError) -> None:
        if not self._ended.is_set():
            self._stop(str(error), self._ended)

    def _watch_supervisor(self) -> None:
        while not self._ended.wait(WATCH):
            if os.getppid() != self._parent:
                # Airflow hears nothing of this process any more, and starts another try: it is to have the claim.
                if self.rest():
                    logger.error(
                        "The supervisor of this task is gone: it leaves claim %s to its next try.", self.claim.stem
                    )
                    # ⚑ §5.2: not before the work has stopped. Where it cannot be, the session's time runs out.
                    if self._stop(_ORPHANED, None).wait(HEARD):
                        self._leave()
                    threading.Thread(target=_kill_this_process, name="pawnqueue-last-resort", daemon=True).start()
                return


def _is_its_own_supervisor() -> bool:
    """Say whether a task runs in the process that supervises it: ``dag.test()``. Whose child that is means nothing."""
    runner = sys.modules.get("airflow.sdk.execution_time.task_runner")
    return "InProcess" in type(getattr(runner, "SUPERVISOR_COMMS", None)).__name__


def _kill_this_process() -> None:
    """End a task that nobody hears any more, and that has not ended when it was told to: others have its messages.

    Its threads may work on, or something that has caught the order, or that cannot hear it; and nobody else ends it.
    """
    time.sleep(LAST)
    logger.error("This task has lost its supervisor, and has not ended when it was told to: it is killed.")
    os.kill(os.getpid(), signal.SIGKILL)


_ORPHANED = "the supervisor of this task is gone, and another try of it will have the claim"


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
        stop: Stop | None = None,
    ) -> Session:
        """Work on a claim from now on, as this process does already or anew; wait for the session of another process.

        :raises LeaseLostError: it has ended, or was taken over.
        :raises ClaimBusyError: another process works on it, and goes on.
        """
        self._refuse_to_children(reference)
        with self._turn(queue, reference):
            session = self.held(queue, reference)
            if session is None:
                claim = _alive(attached(queue, reference, ttl=ttl, payloads=payloads))
                session = Session(queue, claim, ttl=ttl, stop=stop or stop_the_task)
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
                session.rest()
                session.wait()

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


def stop_the_task(why: str, unless: threading.Event | None = None) -> threading.Event:
    """Raise an error in the main thread, wherever it works: its messages may be somebody else's now.

    ⚑ §5.2, one holder: work that nobody is told to stop goes on beside that of the next holder.

    :param unless: what is set when the work has come to its end before it hears this.
    :returns: what is set when it is heard; never, where the main thread cannot be told.
    """
    logger.error("This task is stopped, as its claim is lost: %s", why)
    order = _Order(why, unless)
    if signal.getsignal(_SIGNAL) is _raise:  # else it works in another thread, or has a use of its own for the signal
        _orders.append(order)
        with suppress(ProcessLookupError, ValueError):
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
    return order.heard


def let_stop() -> None:
    """Let :func:`stop_the_task` stop what runs in the main thread: called there, before the work begins."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(_SIGNAL) in _UNUSED:
        signal.signal(_SIGNAL, _raise)


class _Order:
    """To stop."""

    def __init__(self, why: str, unless: threading.Event | None) -> None:
        self.why = why
        self.unless = unless
        self.heard = threading.Event()


_orders: deque[_Order] = deque()


def _raise(number: int, frame: FrameType | None) -> None:
    del number, frame
    standing: list[_Order] = []
    while _orders:  # without any the signal is not from us, and means nothing to who has no handler for it
        order = _orders.popleft()
        if order.unless is None or not order.unless.is_set():
            standing.append(order)
    if not standing:
        return
    for order in standing:
        order.heard.set()
    lost = LeaseLostError(
        f"The claim that this task worked on is lost ({standing[0].why}): others may have its messages, and work on "
        "them. A longer ttl, or a janitor DAG, keeps claims for longer.",
        operation="keep_alive",
    )
    raise WorkStoppedError(str(lost), is_orphan=any(order.unless is None for order in standing)) from lost


#: One that by itself does nothing, and interrupts a sleep.
_SIGNAL: Final = signal.SIGURG
_UNUSED: Final[tuple[Any, ...]] = (signal.SIG_DFL, signal.SIG_IGN, None)


_Key: TypeAlias = "tuple[int, str, str, int]"


def _key(queue: SyncPawnQueue, claim: ClaimReference | Claim) -> _Key:
    return id(queue), claim.topic, claim.claim_id, claim.generation


#: Those of this process. Its end ends them: :mod:`.clients` closes its queues, which leave the claims.
SESSIONS = Sessions()
os.register_at_fork(after_in_child=SESSIONS.forget)

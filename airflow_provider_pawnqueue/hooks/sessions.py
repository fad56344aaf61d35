"""The claims that this process works on: one session each, renewed beside the work, and given back when it ends.

⚑ §4, Sessions: two sessions never have one claim. A task that comes while another one works waits until that one has
ended in good order, or until its session's time is over. A session dies with its process: it is renewed by a thread of
that process, which stops as soon as the process has lost its supervisor, because Airflow then starts another try.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_pawnqueue.engine import ClaimBusyError, LeaseLostError, PawnQueueError

if TYPE_CHECKING:
    from types import FrameType

    from airflow_provider_pawnqueue.engine import Claim, ClaimReference, SyncPawnQueue

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


class Session:
    """A claim that this process works on."""

    def __init__(
        self, queue: SyncPawnQueue, claim: Claim, *, ttl: float | None, on_lost: Callable[[str], None]
    ) -> None:
        self.queue = queue
        self.claim = claim
        self.pid = os.getpid()
        self._on_lost = on_lost
        self._ended = threading.Event()
        self._stack = ExitStack()
        self._stack.enter_context(queue.keep_alive(claim, on_lost=self._lost, ttl=ttl, interval=INTERVAL))
        self._parent = os.getppid()
        self._watch = threading.Thread(target=self._watch_supervisor, name="pawnqueue-supervisor-watch", daemon=True)
        self._watch.start()

    @property
    def stands(self) -> bool:
        """Say whether this process may still work on it."""
        return not self._ended.is_set() and self.pid == os.getpid() and self.claim.lost is None

    def end(self) -> None:
        """Work on it no more, and let whoever comes next begin at once."""
        if self._ended.is_set() or self.pid != os.getpid():
            return
        self._ended.set()
        self._stack.close()
        with suppress(PawnQueueError):  # whoever comes next waits for its time, then
            self.queue.leave(self.claim)

    def _lost(self, error: LeaseLostError) -> None:
        if not self._ended.is_set():
            self._on_lost(str(error))

    def _watch_supervisor(self) -> None:
        while not self._ended.wait(WATCH):
            if os.getppid() != self._parent:
                # Airflow hears nothing of this process any more, and starts another try: it is to have the claim.
                logger.error(
                    "The supervisor of this task is gone: it leaves claim %s to its next try.", self.claim.stem
                )
                self.end()
                self._on_lost("the supervisor of this task is gone, and another try of it will have the claim")
                return


class Sessions:
    """Those of this process, by queue and claim."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, str, str, int], Session] = {}

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
        on_lost: Callable[[str], None] | None = None,
    ) -> Session:
        """Work on a claim from now on; wait for the session that another process has.

        :raises LeaseLostError: it has ended, or was taken over.
        :raises ClaimBusyError: another process works on it, and goes on.
        """
        claim = attached(queue, reference, ttl=ttl, payloads=payloads)
        session = Session(queue, claim, ttl=ttl, on_lost=on_lost or stop_the_task)
        self._held[_key(queue, reference)] = session
        return session

    def end(self, session: Session) -> None:
        """Work on it no more."""
        session.end()
        self._held = {key: held for key, held in self._held.items() if held is not session}


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
            return queue.attach(reference, ttl=ttl, session_ttl=session_ttl(queue, ttl), payloads=payloads, wait=pause)
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


def session_ttl(queue: SyncPawnQueue, ttl: float | None) -> float:
    """Return for how long a session is trusted: never longer than its claim."""
    return min(SESSION_TTL, ttl if ttl is not None else queue.settings.polling.visibility_timeout_seconds)


def stop_the_task(why: str) -> None:
    """Raise an error in the main thread, wherever it works: its messages may be somebody else's now.

    ⚑ §5.2, one holder: work that nobody is told to stop goes on beside that of the next holder.
    """
    logger.error("This task is stopped, as its claim is lost: %s", why)
    if signal.getsignal(_SIGNAL) is not _raise:
        return  # it works in another thread than the main one, or has a use of its own for the signal
    _Stop.why = why
    with suppress(ProcessLookupError, ValueError):
        signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)


def let_stop() -> None:
    """Let :func:`stop_the_task` stop what runs in the main thread: called there, before the work begins."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(_SIGNAL) in _UNUSED:
        signal.signal(_SIGNAL, _raise)


class _Stop:
    why: str | None = None


def _raise(number: int, frame: FrameType | None) -> None:
    del number, frame
    why, _Stop.why = _Stop.why, None
    if why is None:
        return  # it is not from us, and means nothing to who has no handler for it
    raise LeaseLostError(
        f"The claim that this task worked on is lost ({why}): others may have its messages, and work on them. A longer "
        "ttl, or a janitor DAG, keeps claims for longer.",
        operation="keep_alive",
    )


#: One that by itself does nothing, and interrupts a sleep.
_SIGNAL: Final = signal.SIGURG
_UNUSED: Final[tuple[Any, ...]] = (signal.SIG_DFL, signal.SIG_IGN, None)


def _key(queue: SyncPawnQueue, reference: ClaimReference) -> tuple[int, str, str, int]:
    return id(queue), reference.topic, reference.claim_id, reference.generation


#: Those of this process; its end ends them, as its queues are closed then.
SESSIONS = Sessions()

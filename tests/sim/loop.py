"""An event loop whose time is a number: it jumps to the next timer, and what happens follows from the seed alone.

There are no threads, no sockets, and no order that depends on hashes or addresses. Callbacks run first in, first out;
timers run by their time, and by their age where the times are equal. Garbage collection is off while the loop runs, so
that a generator is finalised where its last reference goes, and not where the collector happens to pass.
"""

from __future__ import annotations

import asyncio
import gc
import math
import sys
from asyncio import events
from collections import deque
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from tests.sim.handle import SimHandle

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator

T = TypeVar("T")

#: More callbacks than this without time passing are a loop that never ends.
LIVELOCK = 200_000
#: Beyond this time nobody expects anything to happen any more, though heartbeats go on.
LIMIT = 200_000.0
#: How often a task is cancelled.
_CANCELLATIONS = 20

#: Whose code it is that runs: a simulated process, or nobody in particular. Tasks hand it on to the tasks they make.
OWNER: ContextVar[object] = ContextVar("OWNER", default=None)


class DeadlockError(Exception):
    """Nothing can ever happen again, and the loop's work is not done."""


class LivelockError(Exception):
    """Very much happens, and no time passes."""


class SimLoop(asyncio.AbstractEventLoop):
    """The loop of one simulated world.

    Beyond asyncio's interface it has :meth:`at`, which is ``call_at`` without a handle, and :meth:`hold`, which stops
    the code of one owner while all other code goes on.
    """

    def __init__(self, *, limit: float = LIMIT) -> None:
        self.now = 0.0
        self._limit = limit
        #: Until when each owner's code is stopped.
        self.held: dict[object, float] = {}
        self._ready: deque[SimHandle] = deque()
        self._heap: list[tuple[float, int, Callable[[Any], object], Any]] = []
        self._age = count()
        self._withheld: dict[object, list[SimHandle]] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._owners: dict[asyncio.Task[Any], object] = {}
        self._watched: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._closed = False

    # --- what the simulation adds ---

    def at(self, when: float, callback: Callable[[Any], object], argument: Any = None) -> None:  # noqa: ANN401 - handed on
        """Call back at that time, whatever is held: these are events of the world and nobody's code."""
        heappush(self._heap, (when, next(self._age), callback, argument))

    def hold(self, owner: object, until: float = math.inf) -> None:
        """Let nothing of the owner's run before that time, not even what is ready; without a time, never again."""
        self.held[owner] = until = max(until, self.held.get(owner, 0.0))
        self._withheld.setdefault(owner, [])
        if until < math.inf:
            self.at(until, self._release, owner)

    async def until(self, predicate: Callable[[], bool]) -> None:
        """Wait until the predicate holds. It is asked after every event, and must change nothing."""
        if predicate():
            return
        entry = (predicate, self.create_future())
        self._watched.append(entry)
        try:
            await entry[1]
        finally:
            if entry in self._watched:
                self._watched.remove(entry)

    def unretrieved(self) -> list[BaseException]:
        """Return the errors with which tasks ended and which nobody has asked for, and nobody is kept from asking."""
        return [
            error
            for task in self._tasks
            if task.done()
            and self._owners.get(task) not in self.held
            and not task.cancelled()
            and task._log_traceback
            and (error := task.exception())
        ]

    def abandon(self) -> None:
        """Cancel everything that is left, what was held too, in the order in which it was made. No time passes.

        The caller has made sure that nothing which the tasks do on their way out has an effect.
        """
        self.held.clear()
        for withheld in self._withheld.values():
            self._ready.extend(withheld)
        self._withheld.clear()
        self._enter()
        try:
            for _ in range(_CANCELLATIONS):
                if not self._cancel_all():
                    break
            else:
                raise LivelockError(f"These tasks do not end when they are cancelled: {self._tasks}")
        finally:
            self._leave()
            for task in self._tasks:
                if task.done() and not task.cancelled():
                    task.exception()
            self._tasks.clear()
            self._owners.clear()
            self._heap.clear()
            self._closed = True

    # --- running ---

    def run_until_complete(self, future: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:  # type: ignore[override]
        """Run until this is done."""
        collecting = gc.isenabled()
        gc.disable()
        self._enter()
        try:
            goal = self.create_task(future) if asyncio.iscoroutine(future) else future
            self._run(goal)
        finally:
            self._leave()
            if collecting:
                gc.enable()
        return goal.result()

    def _run(self, goal: asyncio.Future[Any]) -> None:
        heap = self._heap
        while True:
            self._drain()
            if goal.done():
                return
            if self._watched and self._wake_watchers():
                continue
            if not heap:
                self._deadlock("Nothing is ready and no timer is set")
            when, _, callback, argument = heappop(heap)
            if callback is _fire and argument.cancelled_:
                continue
            if when > self.now:
                if when > self._limit:
                    self._deadlock(f"It is later than {self._limit:g}")
                self.now = when
            if callback is _fire:
                self._ready.append(argument)
            else:
                callback(argument)

    def _drain(self) -> None:
        ready, held, patience = self._ready, self.held, LIVELOCK
        while ready:
            handle = ready.popleft()
            if held and (owner := handle.context.get(OWNER)) in held:
                self._withheld[owner].append(handle)
                continue
            handle.context.run(handle.callback, *handle.args)
            patience -= 1
            if not patience:
                raise LivelockError(f"{LIVELOCK} callbacks at {self.now:.3f}, the last of them {handle.callback!r}")

    def _release(self, owner: object) -> None:
        if self.held.get(owner, math.inf) <= self.now:
            del self.held[owner]
            self._ready.extend(self._withheld.pop(owner))

    def _wake_watchers(self) -> bool:
        true = [entry for entry in self._watched if entry[1].done() or entry[0]()]
        for entry in true:
            self._watched.remove(entry)
            if not entry[1].done():
                entry[1].set_result(None)
        return bool(true)

    def _deadlock(self, why: str) -> NoReturn:
        waiting = [task.get_name() for task in self._tasks if not task.done()]
        raise DeadlockError(f"{why} at {self.now:.3f}; still waiting: {waiting}")

    def _cancel_all(self) -> bool:
        left = [task for task in self._tasks if not task.done()]
        for task in left:
            task.cancel()
        self._drain()
        return bool(left)

    def _enter(self) -> None:
        events._set_running_loop(self)
        self._hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._finalise)

    def _leave(self) -> None:
        events._set_running_loop(None)
        sys.set_asyncgen_hooks(*self._hooks)

    def _finalise(self, generator: AsyncGenerator[Any, None]) -> None:
        # As asyncio does it: somebody left an `async for`, and the generator's last words are a task of their own.
        if not self._closed:
            self.create_task(generator.aclose())
            return
        step: Generator[Any, Any, Any] = generator.aclose().__await__()
        try:
            step.send(None)
        except (StopIteration, asyncio.CancelledError):
            return
        step.close()

    # --- what asyncio calls ---

    def time(self) -> float:
        """Return the virtual time."""
        return self.now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> SimHandle:  # type: ignore[override]
        """Run it in this moment, after what is ready already."""
        handle = SimHandle(callback, args, copy_context() if context is None else context, self.now)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimHandle:
        """Run it after a delay in virtual seconds."""
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimHandle:
        """Run it at that virtual time."""
        handle = SimHandle(callback, args, copy_context() if context is None else context, when)
        heappush(self._heap, (when, next(self._age), _fire, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Start a task; :meth:`abandon` will know it."""
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        owner = OWNER.get() if context is None else context.get(OWNER) or OWNER.get()
        if owner is not None:
            self._owners[task] = owner
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Fail: what asyncio would only log is an error here."""
        raise context.get("exception") or RuntimeError(context.get("message"))

    def run_in_executor(self, *_: object) -> NoReturn:
        """Refuse: a thread has its own time."""
        raise RuntimeError("The simulation has no threads: what is simulated must stay in its event loop.")

    call_soon_threadsafe = run_in_executor  # type: ignore[assignment]

    def get_debug(self) -> bool:
        """Say no."""
        return False

    def is_running(self) -> bool:
        """Say whether it runs."""
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        """Say whether it was abandoned."""
        return self._closed


def _fire(_: Any) -> None:  # noqa: ANN401 - it is never called
    """Mark a timer of asyncio's in the heap."""


def wake(waker: asyncio.Future[None]) -> None:
    """Let the waiter for this go on, if there still is one."""
    if not waker.done():
        waker.set_result(None)

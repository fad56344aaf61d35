"""Simulated processes: they have a store and a clock of their own, they can be killed and paused, and nobody asks them.

Whose code runs is known from its context (:data:`tests.sim.loop.OWNER`), which every task hands on to those it makes.
So the loop can stop all of a process's code, its background tasks, locks and timers included, and not only what waits
for its store and its clock.
"""

from __future__ import annotations

import asyncio
import math
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from tests.sim.clock import SimClock
from tests.sim.loop import OWNER
from tests.sim.store import SimStore

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tests.sim.world import World

T = TypeVar("T")

#: The longest pause that :meth:`Process.trouble` draws.
LONGEST_PAUSE = 90.0


class Process:
    """One process. Its code runs by :meth:`spawn`, and must use its store and its clock only."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        #: How often its machine has stood still.
        self.stops = 0
        self.network = world.stream(f"network {name}")
        self.store = SimStore(self, self.network)
        self.clock = SimClock(
            self, world.stream(f"clock {name}"), world.stream(f"chance {name}"), world.stream(f"ids {name}")
        )
        self._fate = world.stream(f"fate {name}")
        self.pauses: list[tuple[float, float]] = []
        #: When calls returned that their caller looked at later, by the identity of what they returned.
        self.returned: dict[int, float] = {}
        self._running = 0
        self._last_request = math.inf
        self._last_is_sent = False
        self._sent = 0

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        """Run code of this process. Its task never ends if the process is killed: wait for :attr:`idle` then."""
        context = copy_context()
        context.run(OWNER.set, self)
        task = self.world.loop.create_task(coroutine, name=f"{self.name} {name}".rstrip(), context=context)
        self._running += 1
        task.add_done_callback(self._has_ended)
        return task

    def note_return(self, task: asyncio.Task[object]) -> None:
        """Write down when a call returned: its caller may look at the result much later."""
        if not task.cancelled() and task.exception() is None:
            self.returned[id(task.result())] = self.world.loop.now

    @property
    def idle(self) -> bool:
        """Whether all that was spawned has ended, or will never go on."""
        return not self._running or not self.alive

    def kill(self) -> None:
        """Let nothing of the process ever run again, from its next await on. What it has sent is under way."""
        if self.alive:
            self.alive = False
            self.world.loop.hold(self)
            self.world.log(self.name, "is killed")
            self.world.something_ended()

    def pause(self, seconds: float) -> None:
        """Let nothing of the process run for this time. Its clock goes on, as the world does."""
        if self.alive:
            self.world.loop.hold(self, self.world.loop.now + seconds)
            self.pauses.append((self.world.loop.now, self.world.loop.now + seconds))
            self.world.log(self.name, f"is paused for {seconds:.3f} seconds")

    def stop_clock(self, seconds: float) -> None:
        """Stop its machine for this long, as a hypervisor does: nothing of it runs, not even its clock.

        It finds that out by nothing but what the store tells it. What it has sent lands, and its answers wait.
        """
        if self.alive:
            self.stops += 1
            self.clock.stop(seconds)
            self.pause(seconds)
            self.world.log(self.name, f"has a clock that stood still for {seconds:.3f} seconds")

    def kill_at_request(self, number: int, *, sent: bool) -> None:
        """Kill it at its so-manieth request from now, counted from 1: just before it is sent, or just after."""
        self._last_request = self._sent + number
        self._last_is_sent = sent

    def trouble(self, seconds: float, requests: int) -> None:
        """Draw from the world's weather whether, and when (in seconds or requests), it dies and is paused.

        Half of the deaths are at a request: windows that are milliseconds wide are hit as often as long ones. None of
        it happens once the world is calm.
        """
        world, fate = self.world, self._fate
        # Everything is drawn, whatever the weather: what one draw decides does not shift the others.
        dies, by_request, sent, when, number = (fate.random() for _ in range(5))
        is_paused, pause_at, length = (fate.random() for _ in range(3))
        if dies < world.weather.kill:
            if by_request < 0.5:
                self.kill_at_request(1 + int(number * requests), sent=sent < 0.5)
            else:
                world.loop.at(world.loop.now + when * seconds, _unless_calm, (self, self.kill))
        if is_paused < world.weather.pause:
            pause = lambda: self.pause(length * LONGEST_PAUSE)  # noqa: E731 - so that both are calls without arguments
            world.loop.at(world.loop.now + pause_at * seconds, _unless_calm, (self, pause))

    def running(self, start: float, end: float) -> float:
        """Return for how many seconds from ``start`` to ``end`` it was not paused."""
        lost, seen = 0.0, start
        for begin, over in sorted(self.pauses):
            lost += max(0.0, min(over, end) - max(begin, seen))
            seen = max(seen, over)
        return max(0.0, end - start - lost)

    # --- for its store and its clock ---

    def check_in(self) -> None:
        """Refuse what does not come from the process's own code, and everything once the world has ended."""
        if self.world.ended:
            raise asyncio.CancelledError
        if OWNER.get() is not self:
            raise RuntimeError(f"Only code that process {self.name} has spawned may use its store and its clock.")

    def may_send(self) -> bool:
        """Count a request, and say whether it gets onto its way."""
        self._sent += 1
        if self._sent >= self._last_request and not self._last_is_sent and not self.world.is_calm:
            self.kill()
        return self.alive

    def has_sent(self) -> None:
        """Die, if this was to be the last request."""
        if self._sent >= self._last_request and self._last_is_sent and not self.world.is_calm:
            self.kill()

    def _has_ended(self, _: asyncio.Task[Any]) -> None:
        self._running -= 1
        self.world.something_ended()

    def __repr__(self) -> str:
        return f"<process {self.name}>"


def _unless_calm(entry: tuple[Process, Any]) -> None:
    process, do = entry
    if not process.world.is_calm:
        do()

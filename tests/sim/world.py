"""The simulated world: one loop, one bucket, one weather, and the processes that share them, all from one seed."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from tests.sim.bucket import SimBucket
from tests.sim.loop import SimLoop, wake
from tests.sim.processes import Process
from tests.sim.weather import CALM, QUICK, Weather, any_weather

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import TypeAlias

    from tests.sim.store import Request

    #: Told of each answer that a process hears, errors left out: whose, of which request, of which key, and what.
    Listener: TypeAlias = Callable[[str, str, str, Any], None]

T = TypeVar("T")

#: How many events are kept, and how many of them are printed with a failure.
KEPT = 5_000
SHOWN = 300


class World:
    """A world to run one schedule in, once.

    Every source of randomness is a stream of its own, derived from the seed and a name: one more draw somewhere does
    not shift all the others.

    :param weather: what goes wrong; without it, drawn from the seed.
    :param page_size: keys in a page of a listing; without it, drawn from the seed.
    :param conditional: whether the store minds conditions (see :class:`~tests.sim.bucket.SimBucket`).
    :param within: the seconds after a process last saw a register in which its PUT of the register may land. No PUT
    lands later: it
        never lands then, and its client does not hear of it. Without it, requests land when they land.
    :param kept: how many events are kept.
    """

    def __init__(  # noqa: PLR0913 - all by name
        self,
        seed: int | str,
        *,
        weather: Weather | None = None,
        page_size: int | None = None,
        conditional: bool = True,
        within: float | None = None,
        kept: int = KEPT,
    ) -> None:
        self.seed = seed
        self.loop = SimLoop()
        nature = self.stream("nature")
        drawn, pages = any_weather(nature), nature.choice((3, 7, 1000))
        self.weather = drawn if weather is None else weather
        self.first_weather = self.weather
        self.bucket = SimBucket(
            self.loop,
            page_size=pages if page_size is None else page_size,
            conditional=conditional,
            # Half of the stores that mind conditions mind those of a DELETE, too.
            conditional_deletes=conditional and self.stream("deletes").random() < 0.5,
        )
        self.within = within
        #: The weather in which nothing goes wrong.
        self.still = CALM if conditional else QUICK
        self.processes: dict[str, Process] = {}
        self.is_calm = False
        self.ended = False
        self.last_landing = 0.0
        #: The request that has landed last: while the bucket changes, the one that changes it.
        self.landing: Request | None = None
        self.events: deque[tuple[float, str, Any, Any]] = deque(maxlen=kept)
        self.listeners: list[Listener] = []
        self._number = 0
        self._waiting: list[asyncio.Future[None]] = []

    # --- making it ---

    def stream(self, name: str) -> random.Random:
        """Return the random numbers for one purpose, the same ones for the same seed and name."""
        digest = hashlib.sha256(f"{self.seed}\x00{name}".encode()).digest()
        return random.Random(int.from_bytes(digest[:16]))  # noqa: S311 - repeatable is what it has to be

    def process(self, name: str) -> Process:
        """Start a process, with a ``store`` and a ``clock``. A name is used once: killed processes stay dead."""
        if name in self.processes:
            raise ValueError(f"There was a process {name} already.")
        self.processes[name] = Process(self, name)
        return self.processes[name]

    # --- running it ---

    def run(self, scenario: Callable[[World], Coroutine[Any, Any, T]]) -> T:
        """Run the scenario to its end, then end everything else, and return its result.

        The scenario's own code belongs to no process and nothing goes wrong with it. An error of it, or one that a task
        ended with and nobody asked for, is raised with the seed and the last events.
        """
        try:
            result = self.loop.run_until_complete(scenario(self))
            for error in self.loop.unretrieved():
                raise error  # noqa: TRY301 - so that it gets its note too
        except BaseException as error:
            error.add_note(self.report())
            raise
        finally:
            self.ended = True
            self.loop.abandon()
        return result

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        await self.sleep_until(self.loop.now + seconds)

    async def sleep_until(self, when: float) -> None:
        """Let virtual time pass until then, and what happens at that very moment happen first."""
        waker = self.loop.create_future()
        self.loop.at(when, wake, waker)
        await waker

    async def until(self, predicate: Callable[[], bool], *, at_most: float | None = None) -> bool:
        """Wait until the predicate holds, at most for the given seconds, and return whether it does.

        It is asked after every event, must be cheap, and must change nothing.
        """
        if at_most is None:
            await self.loop.until(predicate)
            return True
        end = self.loop.now + at_most
        self.loop.at(end, lambda _: None)  # an event to be asked after
        await self.loop.until(lambda: predicate() or self.loop.now >= end)
        return predicate()

    async def until_idle(self, *processes: Process, at_most: float | None = None) -> bool:
        """Wait until what these processes (or all) have spawned is over, or dead, and say whether it is.

        Cheaper than :meth:`until`: it is asked only when something of a process has ended.
        """
        chosen = processes or tuple(self.processes.values())
        try:
            async with asyncio.timeout(at_most):
                while not all(process.idle for process in chosen):
                    self._waiting.append(self.loop.create_future())
                    await self._waiting[-1]
        except TimeoutError:
            pass
        return all(process.idle for process in chosen)

    def something_ended(self) -> None:
        """Let the waiters for idle processes look again."""
        for waker in self._waiting:
            wake(waker)
        self._waiting.clear()

    async def calm(self) -> None:
        """End everything that goes wrong, deaths and pauses to come included, and wait for requests still under way."""
        self.weather, self.is_calm = self.still, True
        self.log("", "calm")
        paused = (until for owner, until in self.loop.held.items() if isinstance(owner, Process) and owner.alive)
        await self.sleep_until(max(self.last_landing, self.loop.now, *paused))

    # --- what happened ---

    def next_number(self) -> int:
        """Number a request."""
        self._number += 1
        return self._number

    @property
    def requests(self) -> int:
        """How many requests were made."""
        return self._number

    def log(self, who: str, what: Any, answer: Any = None) -> None:  # noqa: ANN401 - printed if there is a failure
        """Remember an event: a request that landed, an error that was raised, or a word."""
        self.events.append((self.loop.now, who, what, answer))

    def lines(self) -> list[str]:
        """Write the events that are kept."""
        return [_line(*event) for event in self.events]

    def report(self) -> str:
        """Say how to repeat this run, and what happened last."""
        lines = self.lines()[-SHOWN:]
        heading = f"Simulation: seed {self.seed!r}, {self.first_weather}, pages of {self.bucket.page_size};"
        return "\n".join([f"{heading} the last {len(lines)} events:", *lines])


def _line(when: float, who: str, what: Any, answer: Any) -> str:  # noqa: ANN401 - as above
    if isinstance(what, str):
        return f"{when:10.4f} {who:>6} {what}{'' if answer is None else f' {answer}'}"
    return f"{when:10.4f} {who:>6} {what.describe(answer)}"

"""Publishers, consumers and janitors on one topic of one server; what is done to them, and how it ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pawnqueue import Settings, SyncPawnQueue
from pawnqueue.runtime.clock import SystemClock
from tools.crew.plan import TOPIC, Job, Plan, Program
from tools.crew.worker import ROOT, Worker
from tools.kit.history import History, read_diaries
from tools.kit.servers import keys_of
from tools.kit.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tools.kit.servers import S3Server

#: How much later than it must be, everything may be before it counts as hung: the machine may be busy.
PATIENCE_SECONDS = 60.0
#: Pause between two looks into the bucket.
LOOK_EVERY_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Blow:
    """What a consumer had when it was killed or stopped."""

    worker: Worker
    at: float
    ids: frozenset[str]
    """What it holds and has not asked to be acked: all of it has to be delivered again."""


@dataclass(slots=True)
class Remains:
    """What is in the bucket at the end, found by boto3: the engine has no part in it."""

    messages: list[str] = field(default_factory=list)
    packs: list[str] = field(default_factory=list)
    leases: list[str] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)
    """The ids of the messages that are dead letters."""

    @property
    def left(self) -> int:
        """What should not be there."""
        return len(self.messages) + len(self.packs) + len(self.leases)


class Crew:
    """The processes, and the bucket between them.

    :param tick: called again and again while the crew is waited for.
    :param sections: more of the queue's settings, which all processes have.
    """

    def __init__(
        self,
        server: S3Server,
        plan: Plan,
        stack: ExitStack,
        tick: Callable[[Crew], None] = lambda _: None,
        sections: Mapping[str, Any] | None = None,
    ) -> None:
        self.plan = plan
        self.clock = SystemClock()
        self.publishers: list[Worker] = []
        self.consumers: list[Worker] = []
        self.janitors: list[Worker] = []
        self._bucket = server.make_bucket()
        self._s3 = server.client()
        stack.callback(self._s3.close)
        self.settings: dict[str, Any] = {
            "s3": server.address(self._bucket),
            "claims": {"margin_seconds": plan.margin},
            "polling": {
                "visibility_timeout_seconds": plan.ttl,
                "lease_refresh_interval_seconds": plan.ttl / 3,
                "interval_seconds": 1.0,
            },
            **(sections or {}),
        }
        self._stack = stack
        self._tick = tick
        self._ids_of_letters: dict[str, str] = {}
        self.queue = stack.enter_context(SyncPawnQueue.open(Settings.from_dict(self.settings, environ={})))
        self.queue.create_topic(TOPIC)

    @property
    def everyone(self) -> list[Worker]:
        """All processes that were ever started."""
        return [*self.publishers, *self.consumers, *self.janitors]

    @property
    def published(self) -> int:
        """How many orders are known to be in the topic."""
        return sum(len(one.history.published) for one in self.publishers)

    @property
    def settled(self) -> int:
        """How many orders are acked or given up on, by the diaries."""
        return len(set().union(*(one.acked | one.dead for one in self.consumers)))

    def start_publishers(self, numbers: Iterable[int] | None = None, tree: Path = ROOT) -> list[Worker]:
        """Let each publish its share of the orders. All three: they run the code of this tree."""
        return self._start("publisher", self.plan.publishers, self.publishers, numbers, tree)

    def start_consumers(self, numbers: Iterable[int] | None = None, tree: Path = ROOT) -> list[Worker]:
        """Let them claim, work and settle until the signal to stop."""
        return self._start("consumer", self.plan.consumers, self.consumers, numbers, tree)

    def start_janitors(self, numbers: Iterable[int] | None = None, tree: Path = ROOT) -> list[Worker]:
        """Let them sweep while the others work."""
        return self._start("janitor", self.plan.janitors, self.janitors, numbers, tree)

    def wait(self, condition: Callable[[], bool], what: str, *, seconds: float = 0.0) -> None:
        """Wait for something that all have a part in.

        Raises WorkerError if one of them ends by itself, and TimeoutError if it takes too long.

        :param seconds: how long it has to take; it may take longer, but not for ever.
        """

        def look() -> bool:
            for one in self.everyone:
                one.look()
            self._tick(self)
            return condition()

        wait_until(look, what, seconds=seconds + PATIENCE_SECONDS)

    def wait_for_publishers(self) -> None:
        """Wait until everything is published."""
        self.wait(lambda: all(one.ended for one in self.publishers), "everything is published")

    def kill(self, victim: Worker, ids: Collection[str] = ()) -> Blow:
        """Kill -9 a consumer in the middle of its work: on one of these messages, if any are named."""
        return self._strike(victim, victim.kill, ids)

    def freeze(self, victim: Worker) -> Blow:
        """SIGSTOP a consumer in the middle of its work."""
        return self._strike(victim, victim.freeze)

    def wait_for_takeover(self, blow: Blow) -> None:
        """Wait until others have all that the consumer had."""
        others = [one for one in self.consumers if one is not blow.worker]

        def taken() -> bool:
            return blow.ids <= set().union(*(one.received for one in others))

        until = self.plan.ttl + self.plan.margin
        self.wait(taken, f"others have been given what {blow.worker.name} had", seconds=until)
        if blow.worker.fate == "killed":
            blow.worker.history.leave(blow.worker.name, self.clock.elapsed())

    def wait_until_empty(self, *, seconds: float = 0.0) -> None:
        """Wait until no message is in the bucket, and nobody works on one.

        :param seconds: how long it has to take.
        """
        looked = 0.0

        def empty() -> bool:
            nonlocal looked
            idle = not any(one.holding for one in self.consumers if one.fate != "killed")
            if not idle or self.clock.elapsed() - looked < LOOK_EVERY_SECONDS:
                return False
            looked = self.clock.elapsed()
            # One key is enough to know: this is asked several times a second.
            prefixes = (f"{TOPIC}/{folder}/" for folder in ("messages", "packs"))
            answers = (self._s3.list_objects_v2(Bucket=self._bucket, Prefix=each, MaxKeys=1) for each in prefixes)
            return not any(answer.get("Contents") for answer in answers)

        self.wait(empty, "no message is left", seconds=seconds)

    def end(self, workers: Iterable[Worker]) -> None:
        """Let them finish what they have begun."""
        workers = [one for one in workers if one.fate != "killed"]
        for one in workers:
            one.end()
        self.wait(lambda: all(one.ended for one in workers), "all have ended after the signal")

    def sweep_until_clean(self) -> Remains:
        """Let the janitor sweep until nothing is left, or until whatever is left has no reason to be."""
        give_up = self.clock.elapsed() + self.plan.ttl + 3 * self.plan.margin
        while True:
            self.queue.sweep(TOPIC)
            remains = self.remains()
            if not remains.left or self.clock.elapsed() > give_up:
                return remains
            # A lease that came late is nobody's only after its time.
            time.sleep(LOOK_EVERY_SECONDS)
            self._tick(self)

    def remains(self) -> Remains:
        """Look what is in the bucket."""
        letters = [key for key in self._keys("dead-letter/") if not key.endswith(".reason.json")]
        dead = {self._id_of(key) for key in letters}
        return Remains(self._keys("messages/"), self._keys("packs/"), self._keys("leases/"), dead)

    def _id_of(self, letter: str) -> str:
        # The letter of a message that was in a pack has another id in its key.
        if letter not in self._ids_of_letters:
            body = self._s3.get_object(Bucket=self._bucket, Key=letter)["Body"].read()
            self._ids_of_letters[letter] = json.loads(body)["id"]
        return self._ids_of_letters[letter]

    def history(self) -> History:
        """Put together what all of them have written down."""
        return read_diaries(one.diary for one in self.everyone if one.diary.exists())

    def _strike(self, victim: Worker, blow: Callable[[], None], ids: Collection[str] = ()) -> Blow:
        # In the middle of its work, neither on its way to the store nor back.
        work = self.plan.seconds_per_batch

        def works() -> bool:
            holds = not victim.holding.isdisjoint(ids or victim.holding)
            return holds and work / 4 < self.clock.elapsed() - victim.holding_since < work * 2 / 3

        self.wait(works, f"{victim.name} is at work")
        blow()
        return Blow(victim, self.clock.elapsed(), frozenset(victim.holding - victim.history.asked_to_ack))

    def _start(
        self, program: Program, most: int, started: list[Worker], numbers: Iterable[int] | None, tree: Path
    ) -> list[Worker]:
        numbers = range(1, most + 1) if numbers is None else numbers
        jobs = [Job(program, number, self.settings, self.plan) for number in numbers]
        started += (workers := [self._stack.enter_context(Worker(job, tree)) for job in jobs])
        return workers

    def _keys(self, folder: str) -> list[str]:
        return keys_of(self._s3, self._bucket, f"{TOPIC}/{folder}")


@contextmanager
def crew(
    server: S3Server,
    plan: Plan,
    tick: Callable[[Crew], None] = lambda _: None,
    sections: Mapping[str, Any] | None = None,
) -> Iterator[Crew]:
    """Give a crew for the length of a block; none of its processes outlives it."""
    with ExitStack() as stack:
        yield Crew(server, plan, stack, tick, sections)

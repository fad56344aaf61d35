"""How the demo goes, step by step."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tools.demo.checks import Verdict
from tools.demo.needs import need_memory
from tools.demo.pipeline.bill import Bill
from tools.demo.pipeline.orders import Outcome, judge, order
from tools.demo.pipeline.picture import Sample, letters, svg
from tools.demo.pipeline.services import DAG, DELIVERIES, JANITOR, TOPIC, Services, services
from tools.demo.screen import Ink, Screen, bar
from tools.kit.airflow import AirflowError

#: What it takes at its fullest, with some room: four processes of Airflow's, their tasks, a JVM and its Python workers.
MEMORY = 3 << 30
PICTURE = Path(__file__).parents[3] / ".run" / "demo.svg"
#: Seconds after which it has not gone well, whatever else this machine has to do.
PATIENCE = 900.0

_PORTION = 100
_LOOKS_APART = 0.5
#: The labels beside the columns of a picture in letters.
_BESIDE = 32
# The phases of a run, as they are shown.
_CLAIMS, _WORKS, _SETTLES, _OVER = "claims", "Spark works", "settles", "over"


class Story:
    """What has been published, seen and told so far."""

    def __init__(self, it: Services, orders: int, screen: Screen) -> None:
        self._it = it
        self._orders = orders
        self._screen = screen
        self._begun = time.monotonic()
        self._phases: dict[str, str] = {}  # of runs, the oldest first
        self.has_claimed = False
        self.published: list[str] = []
        self.samples: list[Sample] = [Sample(0.0, 0, 0, 0)]
        self.marks: list[tuple[float, str]] = []

    # ---- what happens

    def publish(self, first: int, end: int) -> None:
        """Publish orders, in portions."""
        begun = time.monotonic()
        self._mark(f"{end - first:,} published")
        for low in range(first, end, _PORTION):
            some = [order(number) for number in range(low, min(end, low + _PORTION))]
            self.published += self._it.queue.publish(TOPIC, some, producer="shop")
            count = f"{len(self.published):,} of {self._orders:,} published"
            self._screen.show(["", f"  {bar(len(self.published), self._orders)}  {count}"], count)
            self._sample()
        speed = (end - first) / (time.monotonic() - begun)
        self._screen.tell(f"{end - first:,} orders are published ({speed:,.0f} a second).")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Look, and tell what is new, until it is so."""
        deadline = time.monotonic() + PATIENCE
        while not (self._look() and condition()):
            if time.monotonic() > deadline:
                explained = "".join(self._it.airflow.explain(DAG, run_id) for run_id in list(self._phases)[-1:])
                raise AirflowError(f"not true after {PATIENCE:.0f} s: {what}\n{explained}")
            time.sleep(_LOOKS_APART)

    def empty(self) -> bool:
        """Whether all that was published is done or dead, and every run that had a claim has ended."""
        last = self.samples[-1]
        busy = {_WORKS, _SETTLES}.intersection(self._phases.values())
        return not (last.pending or last.in_flight or busy)

    # ---- looks

    def _look(self) -> bool:
        self._sample()
        for run in self._it.runs():
            self._follow(run["dag_run_id"], run["state"])
        done = len(self.published) - self.samples[-1].pending - self.samples[-1].in_flight
        count = f"{done:,} of {self._orders:,} orders done or dead"
        last = self.samples[-1]
        picture = ["", f"  {bar(done, self._orders)}  {count}", ""]
        picture += [f"  {line}" for line in letters(self.samples, self._screen.width - _BESIDE)]
        phases = list(self._phases.values())
        picture += ["", *(f"  run {number}: {phase}" for number, phase in enumerate(phases, 1))]
        now = f"run {len(phases)} {phases[-1]}" if phases else "no run yet"
        self._screen.show(picture, f"{count}; {last.pending:,} pending, {last.in_flight:,} in flight; {now}")
        return True

    def _sample(self) -> None:
        stats = self._it.look()
        before = self.samples[-1].dead
        if stats.dead > before:
            self._screen.tell(
                f"{stats.dead - before:,} orders were delivered {DELIVERIES} times and rejected each time. The topic "
                "allows no more: they are dead letters now, with the reason."
            )
        now = time.monotonic() - self._begun
        self.samples.append(Sample(now, stats.pending + stats.delayed, stats.in_flight, stats.dead))

    def _follow(self, run_id: str, run_state: str) -> None:
        if run_id not in self._phases:
            self._tell(
                run_id, _CLAIMS, "is started by Airflow, as there are messages; it claims them in the triggerer."
            )
        if self._phases[run_id] == _OVER:
            return
        states = self._it.states(run_id)
        if states.get("claim") == "success" and self._phases[run_id] == _CLAIMS:
            self._sample()  # one run at a time: what is in flight is this one's
            self._mark(f"run {self._number(run_id)} works")
            claimed = self.samples[-1].in_flight
            self._tell(run_id, _WORKS, f"has claimed {claimed:,} orders; spark-submit starts a Spark job for them.")
            self.has_claimed = True
        if states.get("etl") == "success" and self._phases[run_id] == _WORKS:
            job = self._it.told(run_id, "etl")
            counts = f"{job['reported']:,} of {job['messages']:,} orders"
            self._tell(run_id, _SETTLES, f"the job has written Parquet, and rejects {counts}.")
        if run_state == "failed":
            raise AirflowError(f"run {run_id} of {DAG} failed\n{self._it.airflow.explain(DAG, run_id)}")
        if run_state == "success" and states.get("settle") == "success":
            settled = self._it.told(run_id, "settle")
            told = ", ".join(f"{count:,} {_HOW[how]}" for how, count in settled.items() if how in _HOW and count)
            self._mark(f"run {self._number(run_id)} settles")
            self._tell(run_id, _OVER, f"is settled: {told}.")
        elif run_state == "success":
            self._tell(run_id, _OVER, "has found nothing, and ends.")

    # ---- words

    def _tell(self, run_id: str, phase: str, words: str) -> None:
        self._phases[run_id] = phase
        self._screen.tell(f"Run {self._number(run_id)}: {words}")

    def _number(self, run_id: str) -> int:
        return list(self._phases).index(run_id) + 1

    def _mark(self, words: str) -> None:
        self.marks.append((time.monotonic() - self._begun, words))


_HOW = {"acked": "acked", "buried": "dead", "released": "given back"}


def tell(orders: int, screen: Screen, *, keep: bool) -> bool:
    """Run the demo, and return whether it adds up.

    :param keep: leave everything up until Ctrl-C.
    """
    need_memory(MEMORY)
    screen.prose(
        f"PawnQueue demo: {orders:,} orders through an S3 bucket, Airflow and Spark, on this machine alone", Ink.BOLD
    )
    screen.say()
    with services(screen) as it:
        story = Story(it, orders, screen)
        verdict, bill = _run(story, it, orders, screen)
        if keep:
            _show(story, verdict, bill, screen)
            _keep(it, screen)
            return verdict.adds_up
        processes = it.airflow.processes
    verdict.equal("processes of the demo that still run", 0, len(set(processes) & set(it.airflow.processes)))
    _show(story, verdict, bill, screen)
    return verdict.adds_up


def _run(story: Story, it: Services, orders: int, screen: Screen) -> tuple[Verdict, Bill]:
    story.publish(0, orders // 2)
    story.wait(lambda: story.has_claimed, "a run has claimed orders")
    story.publish(orders // 2, orders)
    story.wait(story.empty, "all orders are done or dead")
    it.airflow.api.pause(DAG)
    screen.tell("No order is left. The janitor DAG cleans up.")
    screen.tell("Now what Spark wrote, and what the bucket holds, is compared with what was published.")
    it.airflow.run(JANITOR, timeout=PATIENCE)
    bill = it.bill()
    again = sum(letter.deliveries == DELIVERIES for letter in it.letters())
    expected = Outcome.expected(range(orders))
    return judge(story.published, expected, it.outcome(), again, it.remains()), bill


def _show(story: Story, verdict: Verdict, bill: Bill, screen: Screen) -> None:
    screen.say()
    for line in letters(story.samples, screen.width - _BESIDE):
        screen.say(line)
    screen.say()
    verdict.show(screen)
    screen.prose(f"{bill.total:,} requests to the store ({bill.told()}): ${bill.dollars:.4f} on S3.")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg(story.samples, story.marks, "The queue of the demo over time"), encoding="utf-8")
    screen.say("The picture of it: .run/demo.svg")
    if verdict.adds_up:
        screen.prose(f"It adds up: nothing lost, nothing done twice, in {screen.seconds:.0f} seconds.", Ink.GOOD)
        screen.prose("Next: docs/quickstart.md, with your own bucket; make demo-queue, where consumers are killed.")
    else:
        screen.say("IT DOES NOT ADD UP: see the lines marked WRONG.", Ink.BAD)


def _keep(it: Services, screen: Screen) -> None:
    screen.say()
    for line in it.addresses():
        screen.say(line)
    it.airflow.api.unpause(DAG)
    screen.say("All of it is up until you press Ctrl-C.", Ink.BOLD)
    with suppress(KeyboardInterrupt):
        signal.pause()
    screen.say("As you wish: all of it is ended.")

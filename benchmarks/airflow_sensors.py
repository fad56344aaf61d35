"""Two hundred deferred sensors on one triggerer, over twenty topics: idle, and when there is something for all at once.

A trigger of our own in the same triggerer notes how late its event loop wakes it; a process that does nothing else
notes the same, and shows what of it is the machine's: Airflow's tasks run on the same cores.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import loop_lag
from benchmarks.installed import PARALLELISM, installed
from tools.kit.process_lookup import descendants

if TYPE_CHECKING:
    from benchmarks.installed import Installed

TOPICS = [f"orders-{number:02d}" for number in range(20)]
#: Sensors of one run, and of all: a step of the measurement each.
A_RUN = 100
RUNS = 2
#: The polls have come to their longest pause by then.
SETTLED = 20.0
BASELINE, IDLE = 30.0, 120.0
PATIENCE = 600.0
LAG_GOAL_MS = 100

SENSORS = f"""
from airflow.sdk import dag
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor

@dag(schedule=None)
def sensors():
    PawnQueueSensor.partial(task_id="claim", max_messages=1, deferrable=True).expand(
        topic={TOPICS * (A_RUN // len(TOPICS))}
    )

sensors()
"""

WATCH = """
from airflow.sdk import BaseOperator, dag
from benchmarks.lag_trigger import LoopLag

class Watch(BaseOperator):
    def execute(self, context):
        self.defer(trigger=LoopLag(context["params"]["path"]), method_name="resume")

    def resume(self, context, event):
        pass

@dag(schedule=None)
def watch():
    Watch(task_id="watch", params={"path": ""})

watch()
"""


@dataclass
class Seen:
    """What was measured, in the order in which it happened."""

    lag: list[tuple[str, float, float]] = field(default_factory=list)
    requests: list[tuple[str, float, float, Counter[str]]] = field(default_factory=list)
    memory: list[tuple[str, int, int]] = field(default_factory=list)

    def span(self, what: str, begin: float) -> None:
        """Note a span of time that ends now."""
        self.lag.append((what, begin, time.time()))


def run() -> None:
    """Measure, and print what was found."""
    seen = Seen()
    with installed(sensors=SENSORS, watch=WATCH) as here:
        inside, outside = here.airflow.home / "lag-triggerer", here.airflow.home / "lag-machine"
        with loop_lag.idle_process(outside):
            claimed, ended, blocked = _measure(here, seen, inside)
        _print(seen, inside, outside)
    print(
        f"\n   A message for each of {A_RUN * RUNS} sensors, published at once: half of them had claimed after "
        f"{claimed[len(claimed) // 2]:.1f} s, all after {claimed[-1]:.1f} s;\n   the last of their tasks had ended "
        f"after {ended:.0f} s, {PARALLELISM} at once.\n   Airflow found its triggerer blocked {blocked} times.\n"
    )


def _measure(here: Installed, seen: Seen, lag: Path) -> tuple[list[float], float, int]:
    airflow = here.airflow
    for topic in TOPICS:
        here.queue.create_topic(topic, packs=False)
    airflow.trigger("watch", {"path": str(lag)})
    airflow.wait_for(lag.exists, "the triggerer has the trigger that watches its loop")
    _remember(here, seen, "no sensor")
    begin = time.time()
    time.sleep(BASELINE)
    seen.span("no sensor", begin)
    runs: list[str] = []
    for number in range(1, RUNS + 1):
        sensors = f"{number * A_RUN} sensors"
        begin = time.time()
        runs.append(airflow.trigger("sensors"))
        _wait_for_state(here, runs[-1], "deferred")
        seen.span(f"until there are {sensors}", begin)
        time.sleep(SETTLED)
        begin = time.time()
        time.sleep(IDLE)
        seen.span(f"{sensors}, idle", begin)
        seen.requests.append((sensors, begin, time.time(), here.store.kinds(begin, time.time())))
        _remember(here, seen, sensors)
    begin = time.time()
    for topic in TOPICS:
        here.queue.publish(topic, [{"n": number} for number in range(A_RUN * RUNS // len(TOPICS))])
    claimed = airflow.wait_for(lambda: _claimed(here, begin), "all sensors have claimed", timeout=PATIENCE)
    seen.span("while all claim", begin)
    working = time.time()
    for run_id in runs:
        airflow.wait_for_run("sensors", run_id, timeout=PATIENCE)
    seen.span("while their tasks end", working)
    return claimed, time.time() - begin, airflow.components["triggerer"].log.count("async thread was blocked")


def _wait_for_state(here: Installed, run_id: str, state: str) -> None:
    def reached() -> bool:
        time.sleep(1.0)  # the answer is long, and Airflow's own time is what is short here
        tasks = here.airflow.api.task_instances("sensors", run_id)
        return len(tasks) == A_RUN and all(task["state"] == state and task["triggerer_job"] for task in tasks)

    here.airflow.wait_for(reached, f"all sensors are {state}", timeout=PATIENCE, run=("sensors", run_id))


def _claimed(here: Installed, begin: float) -> list[float]:
    """Return when each sensor had claimed, by the first write of its claim's record; nothing unless all have."""
    first: dict[str, float] = {}
    for one in here.store.between(begin, time.time()):
        if one.kind == "PUT" and "/claims/" in one.key:
            first.setdefault(one.key, one.at - begin)
    return sorted(first.values()) if len(first) >= A_RUN * RUNS else []


def _remember(here: Installed, seen: Seen, what: str) -> None:
    """Note how much memory the triggerer has: the process that runs triggers, and the one above it."""
    above = here.airflow.pids["triggerer"]
    runner = max(descendants(above), key=_resident)
    seen.memory.append((what, _resident(runner), _resident(above)))


def _resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def _print(seen: Seen, inside: Path, outside: Path) -> None:
    print(f"\n   {'how late a loop wakes':26} {'triggerer: median, p99, worst':>34} {'an idle process':>34}")
    for what, begin, end in seen.lag:
        told = [loop_lag.told(loop_lag.read(path, begin, end)) for path in (inside, outside)]
        print(f"   {what:26} {told[0]:>34} {told[1]:>34}   in {end - begin:.0f} s")
    print(f"   (goal: {LAG_GOAL_MS} ms, 99 times of a hundred)\n")
    for what, begin, end, kinds in seen.requests:
        minutes = (end - begin) / 60
        by_kind = ", ".join(f"{count / minutes:.1f} {kind}" for kind, count in sorted(kinds.items()))
        print(f"   {what}, {len(TOPICS)} topics, idle: {kinds.total() / minutes:.1f} requests a minute ({by_kind})")
    before = 0
    for what, runner, above in seen.memory:
        each = f", {(runner - before) / A_RUN / 1024:.0f} KiB more for each of {A_RUN}" if before else ""
        print(f"   {what}: the triggerer has {runner / 2**20:.0f} MiB{each}; its supervisor {above / 2**20:.0f} MiB")
        before = runner

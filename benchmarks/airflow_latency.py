"""How long it takes from publishing a message to the start of the task that works on it, on an idle Airflow."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.installed import PARALLELISM, installed

if TYPE_CHECKING:
    from benchmarks.installed import Installed

DAG = "latency"
ROUNDS = 30
#: The polls have come to their longest pause by then.
SETTLED = 20.0
#: After a run has ended: nothing of it is under way, and the next message does not come in step with any poll.
BETWEEN = (2.0, 7.0)
MEDIAN_GOAL, WORST_GOAL = 6.0, 12.0

SOURCE = """
import json, os, time
from airflow.sdk import dag, task
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor

def note(run, what):
    with open(os.environ["AIRFLOW_HOME"] + "/notes", "a") as notes:
        notes.write(json.dumps([run, what, time.time()]) + "\\n")

class Timed(PawnQueueSensor):
    def execute_complete(self, context, event):
        note(context["run_id"], "resumed")
        try:
            return super().execute_complete(context, event)
        finally:
            note(context["run_id"], "passed on")

@dag(schedule=None, max_active_runs=100)
def latency():
    @task
    def work(claim, run_id=None):
        note(run_id, "works")

    work(Timed(task_id="claim", topic="{{ run_id }}", deferrable=True).output)

latency()
"""

#: What happens one after the other, and how the way to each is called.
WAYS = {
    "claimed": "published → claimed, in the triggerer",
    "scheduled": "→ the event is in Airflow's database",
    "queued": "→ the scheduler has queued the sensor again",
    "resumed": "→ execute_complete begins",
    "passed on": "→ execute_complete ends",
    "work queued": "→ the scheduler has queued the next task",
    "works": "→ the next task works",
}


@dataclass(frozen=True)
class Round:
    """When what happened to one message."""

    published: float
    at: dict[str, float]

    @property
    def seconds(self) -> float:
        """From publishing to the start of the work."""
        return self.at["works"] - self.published

    def way(self, what: str) -> float:
        """Return how long it took from what came before."""
        names = [*WAYS]
        place = names.index(what)
        return self.at[what] - (self.at[names[place - 1]] if place else self.published)


def run() -> None:
    """Measure, and print a table."""
    with installed(**{DAG: SOURCE}) as here:
        rounds = _measure(here)
    taken = sorted(one.seconds for one in rounds)
    print(
        f"\n   From publish to the start of the task after the claim, {len(rounds)} times: median "
        f"{statistics.median(taken):.1f} s, p90 {_p90(taken):.1f} s, worst {taken[-1]:.1f} s "
        f"(goals: {MEDIAN_GOAL:g} and {WORST_GOAL:g} s)\n\n   {'':46} {'median':>8} {'p90':>8} {'worst':>8}"
    )
    for what, told in WAYS.items():
        ways = sorted(one.way(what) for one in rounds)
        print(f"   {told:46} {statistics.median(ways):6.2f} s {_p90(ways):6.2f} s {ways[-1]:6.2f} s")
    print(
        f"\n   Airflow's own defaults, but for {PARALLELISM} tasks at once and SQLite. Each message goes to a topic of "
        "its own, for which\n   one deferred sensor has waited for a while.\n"
    )


def _p90(ordered: Sequence[float]) -> float:
    return ordered[int(len(ordered) * 0.9)]


def _measure(here: Installed) -> list[Round]:
    airflow = here.airflow
    runs = [f"orders-{number}" for number in range(ROUNDS)]
    for run_id in runs:
        here.queue.create_topic(run_id)
        airflow.trigger(DAG, run_id=run_id)
    for run_id in runs:
        airflow.wait_for_task(DAG, run_id, "claim", "deferred", timeout=300)
        airflow.triggerer_of(DAG, run_id, "claim")
    time.sleep(SETTLED)
    rounds = []
    for number, run_id in enumerate(runs):
        time.sleep(random.uniform(*BETWEEN))
        published = time.time()
        here.queue.publish(run_id, [{"n": number}])
        airflow.wait_for_run(DAG, run_id)
        rounds.append(_round(here, run_id, published))
        ways = ", ".join(f"{what} {rounds[-1].way(what):.2f}" for what in WAYS)
        print(f"   {rounds[-1].seconds:5.1f} s: {ways}", flush=True)
    return rounds


def _round(here: Installed, run_id: str, published: float) -> Round:
    records = [
        one.at
        for one in here.store.between(published, time.time())
        if one.kind == "PUT" and one.key.startswith(f"{run_id}/claims/")
    ]
    tasks = {task["task_id"]: task for task in here.airflow.api.task_instances(DAG, run_id)}
    noted = {
        what: at
        for noted_run, what, at in map(json.loads, Path(here.airflow.home / "notes").read_text("utf-8").splitlines())
        if noted_run == run_id
    }
    at = {
        "claimed": records[0],
        "scheduled": _time(tasks["claim"]["scheduled_when"]),
        "queued": _time(tasks["claim"]["queued_when"]),
        "work queued": _time(tasks["work"]["queued_when"]),
        **noted,
    }
    return Round(published, at)


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()

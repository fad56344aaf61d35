"""What the submit operator adds to ``spark-submit`` itself, in tasks of a real Airflow.

Each run is a process of its own, as any task is: what comes first in it is cold, and opens the queue. Beside Spark, the
same is done with a program in its place that ends at once, which shows what is the operator's alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.installed import installed
from tools.kit.spark import spark_environment, spark_home

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.installed import Installed

DAG = "submits"
TOPIC = "orders"
MESSAGES = 100
RUNS = 4
PATIENCE = 600.0
GOAL = 1.0
SPARK, NOTHING = "spark-submit", "a program that ends at once"
#: The subprocess by itself, the provider's operator, and ours; in each run it is executed twice.
BARE, STOCK, COLD, WARM = "bare", "stock operator", "ours, first in its process", "ours, again"

JOB = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
assert spark.range(1).count() == 1
spark.stop()
"""

SOURCE = """
import json, os, subprocess, time
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseOperator, dag
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor
from airflow_provider_pawnqueue.spark.operators import PawnQueueSparkSubmitOperator

class Measure(BaseOperator):
    template_fields = ("claim",)

    def __init__(self, claim, **kwargs):
        super().__init__(**kwargs)
        self.claim = claim

    def execute(self, context):
        asked = context["params"]
        given = {"application": asked["job"], "env_vars": asked["env"], "conf": asked["conf"]}

        def bare(program):
            settings = [part for name, value in asked["conf"].items() for part in ("--conf", f"{name}={value}")]
            command = [program, "--master", "local[1]", *settings, "--name", "arrow-spark", asked["job"]]
            subprocess.run(command, env={**os.environ, **asked["env"]}, capture_output=True, check=True)

        def stock(program):
            SparkSubmitOperator(task_id="stock", spark_binary=program, **given).execute(context)

        def ours(program):
            PawnQueueSparkSubmitOperator(
                task_id="ours", claim=self.claim, spark_binary=program, **given
            ).execute(context)

        calls = {"bare": bare, "stock": stock, "ours": ours}
        for name, what in asked["order"]:
            started = time.perf_counter()
            calls[what](asked["programs"][name])
            note = json.dumps([context["run_id"], name, what, time.perf_counter() - started])
            with open(asked["notes"], "a") as notes:
                notes.write(note + "\\n")

@dag(schedule=None, params={name: None for name in ("job", "env", "conf", "programs", "order", "notes")})
def submits():
    claim = PawnQueueSensor(task_id="claim", topic="orders", max_messages=100, deferrable=False, poke_interval=1)
    Measure(task_id="measure", claim=claim.output)

submits()
"""


def run(arguments: Sequence[str] = ()) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks spark-submit-overhead", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="of the DAG (%(default)s)")
    asked = parser.parse_args(arguments)
    with installed(**{DAG: SOURCE}) as here:
        here.airflow.api.create_connection("spark_default", "spark", host="local[1]")
        here.queue.create_topic(TOPIC, packs=False)
        found = [_measured(here, number) for number in range(asked.runs)]
    _print(found)


def _measured(here: Installed, number: int) -> Mapping[str, Mapping[str, float]]:
    """Run the DAG once; by turns the one and the other program comes first, and so is cold."""
    home = here.airflow.home
    job, nothing, notes = home / "job.py", home / "spark-submit", home / "notes"
    job.write_text(JOB, encoding="utf-8")
    nothing.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    nothing.chmod(0o755)
    first, second = (SPARK, NOTHING) if number % 2 else (NOTHING, SPARK)
    here.queue.publish(TOPIC, [{"n": one} for one in range(MESSAGES)])
    asked = {
        "job": str(job),
        "env": spark_environment(),
        "conf": {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"},
        "programs": {SPARK: str(spark_home() / "bin" / "spark-submit"), NOTHING: str(nothing)},
        "order": [
            *((first, what) for what in ("bare", "ours", "stock", "ours", "bare")),
            *((second, what) for what in ("bare", "ours", "stock", "bare")),
        ],
        "notes": str(notes),
    }
    run_id = here.airflow.run(DAG, asked, timeout=PATIENCE)
    taken: dict[str, dict[str, list[float]]] = {SPARK: {}, NOTHING: {}}
    for noted, program, what, seconds in map(json.loads, Path(notes).read_text("utf-8").splitlines()):
        if noted == run_id:
            taken[program].setdefault(what, []).append(seconds)
    found = {}
    for program, by_way in taken.items():
        ours = by_way["ours"]
        found[program] = {BARE: statistics.mean(by_way["bare"]), STOCK: by_way["stock"][0], WARM: ours[-1]}
        if program == first:
            found[program][COLD] = ours[0]
        told = ", ".join(f"{way} {seconds:.2f} s" for way, seconds in found[program].items())
        print(f"   run {number + 1}, {program}: {told}", flush=True)
    return found


def _print(found: Sequence[Mapping[str, Mapping[str, float]]]) -> None:
    print(f"\n   {'':28} {'':28} {'median':>8} {'best':>8} {'added: median':>14} {'best':>8}")
    for program in (SPARK, NOTHING):
        for way in (BARE, STOCK, COLD, WARM):
            taken = [(one[program][way], one[program][BARE]) for one in found if way in one[program]]
            if not taken:
                continue
            seconds = [own for own, _ in taken]
            added = [own - bare for own, bare in taken]
            told = f"{statistics.median(added):12.2f} s {min(added):6.2f} s" if way != BARE else ""
            print(f"   {program:28} {way:28} {statistics.median(seconds):6.2f} s {min(seconds):6.2f} s {told}".rstrip())
    print(
        f"\n   Added to the bare program, run by run; the goal of ours is under {GOAL:g} s. The claim has {MESSAGES} "
        "messages;\n   it is attached to, renewed while the job runs, and left to its settlement.\n"
    )

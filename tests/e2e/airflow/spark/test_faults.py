"""Whatever is killed or cleared at any time: each order is in the Parquet once, and the queue is empty at the end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.e2e.airflow.spark.gates import Gates
from tests.e2e.airflow.spark.orders import BAD, judge, left_of, orders
from tools.kit.waiting import wait_until

if TYPE_CHECKING:
    from pawnqueue import SyncPawnQueue
    from tools.kit.airflow import Airflow
    from tools.kit.spark import SparkCluster

pytestmark = [pytest.mark.airflow, pytest.mark.servers, pytest.mark.spark, pytest.mark.timeout(900)]

_SECONDS = 400.0
_GOOD = 40
_JOB = Path(__file__).with_name("phased_etl.py")
#: Phases of the job (see there), and of the settlement: before it decides, once it has decided, once all is done.
_OF_THE_JOB = ("starting", "reading", "writing", "committing", "written")
_OF_SETTLING = ("settling", "decided", "settled")

DAG = """
from datetime import timedelta
from airflow.sdk import DAG
from airflow_provider_pawnqueue.operators.pawnqueue import PawnQueueSettleOperator
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor
from airflow_provider_pawnqueue.spark.operators import PawnQueueSparkSubmitOperator
from tests.e2e.airflow.spark.gates import Gates


class Settle(PawnQueueSettleOperator):
    def execute(self, context):
        from pawnqueue.claims import settling

        gates, carry_out = Gates({gates!r}), settling._carry_out

        async def decided(*given):
            gates.reach("decided")
            return await carry_out(*given)

        settling._carry_out = decided
        gates.reach("settling")
        found = super().execute(context)
        gates.reach("settled")
        return found


again = {{"retries": 3, "retry_delay": timedelta(0), "pawnqueue_conn_id": {queue!r}}}

with DAG({dag_id!r}, schedule=None):
    # A sensor that finds nothing is skipped: the run was cleared when all was settled.
    claim = PawnQueueSensor(
        task_id="claim", topic={dag_id!r}, max_messages=1000, ttl=600, timeout=90, soft_fail=True, mode="poke",
        poke_interval=1, deferrable=False, **again,
    )
    etl = PawnQueueSparkSubmitOperator(
        task_id="etl", claim=claim.output, conn_id={spark!r}, application={job!r},
        application_args=[{jobs!r}, {gates!r}, {out!r}], **again,
    )
    etl >> Settle(task_id="settle", claim=claim.output, on_failure="bury", **again)
"""

JANITOR = """
from airflow_provider_pawnqueue.dags import janitor_dag
dag = janitor_dag({janitor!r}, schedule=None)
"""


class Fault(NamedTuple):
    """What happens to a run, in which phase, on which kind of Spark, and whether its messages are packs or single."""

    what: str
    phase: str
    where: str
    form: str = "packs"


class Scene:
    """A run that has reached a phase, and the fault that it meets there."""

    def __init__(self, airflow: Airflow, queue: SyncPawnQueue, fault: Fault, dag_id: str, folder: Path) -> None:
        self.airflow, self.queue, self.fault, self.dag_id = airflow, queue, fault, dag_id
        self.gates = Gates(folder / "gates")
        self.out = folder / "out"
        self.run_id = ""
        self.reached_pid = 0
        queue.create_topic(dag_id)
        published = [*orders(_GOOD), *BAD.values()]
        for some in (published[::2], published[1::2]):  # two packs: two partitions
            queue.publish(dag_id, some, pack=fault.form == "packs")

    def start(self, **names: str) -> None:
        """Start a run that waits in the phase of the fault."""
        names |= {"gates": str(self.gates.folder), "out": str(self.out), "job": str(_JOB), "dag_id": self.dag_id}
        self.airflow.write_dags(f"{self.dag_id}.py", DAG.format(**names))
        self.airflow.api.unpause(self.dag_id)
        self.gates.shut(self.fault.phase)
        self.run_id = self.airflow.trigger(self.dag_id)

    def come_there(self) -> None:
        """Wait until the run has reached the phase."""
        self.reached_pid, *_ = self.airflow.wait_for(
            lambda: self.gates.reached(self.fault.phase),
            f"the run has reached {self.fault.phase}",
            timeout=_SECONDS,
            run=(self.dag_id, self.run_id),
        )

    def driver(self) -> list[int]:
        """Return the pids of the job's JVM and Python driver."""
        return [pid for pid in self.airflow.processes if self._is_of_the_driver(pid)]

    def _is_of_the_driver(self, pid: int) -> bool:
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
            is_jvm = "org.apache.spark.deploy.SparkSubmit" in command
            return str(self.out) in command and (is_jvm or command[1:2] == [str(_JOB)])
        return False

    def is_reached_process_alive(self) -> bool:
        """Return whether the process that reached the phase still runs."""
        return Path(f"/proc/{self.reached_pid}").exists()

    def befall(self, cluster: SparkCluster | None) -> None:
        """Let the fault happen, and the run go on from its gate."""
        what, phase, *_ = self.fault
        if what == "clear":
            self.airflow.api.clear_run(self.dag_id, self.run_id)
        elif what == "task":
            task = "settle" if phase in _OF_SETTLING else "etl"
            self.airflow.task_processes(self.dag_id, self.run_id, task).kill_task()
        elif what == "driver":
            killed = self.driver()
            assert len(killed) == 2
            _kill(killed)
        else:
            assert cluster is not None
            wait_until(lambda: len(cluster.executors) > 0, "there are executors")
            _kill(cluster.executors)
        if what == "clear" and phase != "committing":  # what was cleared ends where it stood; there it tries to go on
            wait_until(lambda: not self.is_reached_process_alive(), "what was cleared has ended", seconds=_SECONDS)
        self.gates.open(phase)

    def sweep(self) -> None:
        """Let the janitor carry out the decision of a settlement that died: the claim has ended by it."""
        self.airflow.wait_for_run(self.dag_id, self.run_id, timeout=_SECONDS)

        # It finds out that the run has ended, and need not wait for the claim's time.
        janitor = f"janitor_{self.dag_id}"
        self.airflow.write_dags(f"{janitor}.py", JANITOR.format(janitor=janitor))
        self.airflow.api.unpause(janitor)

        def is_carried_out() -> bool:
            self.airflow.run(janitor, timeout=_SECONDS)
            return left_of(self.queue, self.dag_id) == {"dead": len(BAD)}

        wait_until(is_carried_out, "the janitor has carried out what was decided", seconds=_SECONDS)

    def judge(self) -> None:
        """Wait for the run's end, and check the result."""
        self.airflow.wait_for_run(self.dag_id, self.run_id, timeout=_SECONDS)
        judge(self.queue, self.dag_id, self.out, _GOOD)
        assert self.driver() == []
        # A job that lost its driver, or its task, is tried again; executors are Spark's own to replace.
        is_again = self.fault.what != "executor" and self.fault.phase in _OF_THE_JOB
        assert len(self.gates.reached("starting")) >= (2 if is_again else 1)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # the one ends with the other
            os.kill(pid, signal.SIGKILL)


def _matrix() -> Iterator[Fault]:
    """Return each fault in each phase with packs, and on a cluster some with single messages."""
    phases = {
        "driver": _OF_THE_JOB,
        "executor": _OF_THE_JOB,
        "task": _OF_THE_JOB + _OF_SETTLING,
        "clear": _OF_THE_JOB + _OF_SETTLING,
    }
    for what, where in phases.items():
        for phase in where:
            yield Fault(what, phase, "cluster" if what == "executor" else "local")
    for what, phase in (("driver", "reading"), ("task", "writing"), ("clear", "committing")):
        yield Fault(what, phase, "cluster", "single")


@pytest.fixture
def scene_of(  # noqa: PLR0913, PLR0917 - all there is
    airflow: Airflow,
    queue: SyncPawnQueue,
    jobs: Path,
    impatient_connection: str,
    dag_id: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[Fault], Scene]]:
    """Make a topic with orders, and start a run that works on them until the phase of this fault."""
    made: list[Scene] = []

    def start(fault: Fault) -> Scene:
        spark = request.getfixturevalue("cluster_connection") if fault.where == "cluster" else "spark_default"
        scene = Scene(airflow, queue, fault, f"{dag_id}_{fault.what}", tmp_path / fault.what)
        made.append(scene)
        scene.start(spark=spark, queue=impatient_connection, jobs=str(jobs))
        return scene

    yield start
    for scene in made:
        scene.gates.open(scene.fault.phase)
        airflow.remove_dags(f"{scene.dag_id}.py")


def _cluster_of(fault: Fault, request: pytest.FixtureRequest) -> SparkCluster | None:
    return request.getfixturevalue("spark_cluster") if fault.where == "cluster" else None


def test_four_runs_and_a_fault_for_each(scene_of: Callable[[Fault], Scene], request: pytest.FixtureRequest) -> None:
    """Four runs at once: one loses its driver, one its executors, one its task, and one is cleared after its work."""
    faults = [
        Fault("task", "committing", "local"),
        Fault("clear", "written", "local"),
        Fault("driver", "writing", "local", "single"),
        Fault("executor", "reading", "cluster"),
    ]
    scenes = [scene_of(fault) for fault in faults]
    for scene in scenes:
        scene.come_there()
        scene.befall(_cluster_of(scene.fault, request))
    for scene in scenes:
        scene.judge()


@pytest.mark.full
@pytest.mark.parametrize("fault", [*_matrix()], ids="-".join)
def test_each_order_once(fault: Fault, scene_of: Callable[[Fault], Scene], request: pytest.FixtureRequest) -> None:
    """The job is killed, or the run cleared, and goes on: the result is as if nothing had happened."""
    scene = scene_of(fault)
    scene.come_there()
    scene.befall(_cluster_of(fault, request))
    if fault.phase == "decided":
        scene.sweep()
    scene.judge()

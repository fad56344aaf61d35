"""A real Airflow starts, runs what it is given, bears that its processes are killed, and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools.kit.airflow import Airflow, AirflowError
from tools.kit.process_lookup import marked
from tools.kit.waiting import wait_until

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.airflow, pytest.mark.servers, pytest.mark.timeout(300)]

TWO_TASKS = """
from airflow.sdk import dag, task

@dag(schedule=None)
def {dag_id}():
    @task
    def where():
        import airflow_provider_pawnqueue
        print("told to the log")
        return airflow_provider_pawnqueue.__file__

    @task
    def add(path, params=None):
        return [path, params["given"]]

    add(where())

{dag_id}()
"""

# With more tries, as a scheduler that is busy takes a task that goes on for a broken one (docs/airflow.md has more).
DEFERRING = """
from datetime import timedelta
from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import BaseOperator, dag

class Wait(BaseOperator):
    def execute(self, context):
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=3)), method_name="resume")

    def resume(self, context, event):
        return "resumed"

@dag(schedule=None)
def {dag_id}():
    Wait(task_id="wait", retries=2, retry_delay=timedelta(0))

{dag_id}()
"""

SLEEPS_AT_FIRST = """
import time
from datetime import timedelta
from airflow.sdk import dag, task

@dag(schedule=None)
def {dag_id}():
    @task(retries=1, retry_delay=timedelta(0))
    def sleep(ti=None):
        if ti.try_number == 1:
            time.sleep(600)
        return ti.try_number

    sleep()

{dag_id}()
"""

MAPPED = """
from airflow.sdk import Variable, dag, task

@dag(schedule=None)
def {dag_id}():
    @task
    def double(number):
        if str(number) == Variable.get("{dag_id}", default=""):
            raise ValueError("not this one")
        return 2 * number

    double.expand(number=[1, 2, 3])

{dag_id}()
"""


def test_an_import_error_is_told(airflow: Airflow, dag_id: str) -> None:
    """A DAG file that cannot be imported is an error with the traceback; mended, it is parsed."""
    with pytest.raises(AirflowError, match="no_such_thing"):
        airflow.write_dags(f"{dag_id}.py", "from airflow.sdk import dag, no_such_thing")

    assert airflow.write_dags(f"{dag_id}.py", TWO_TASKS.format(dag_id=dag_id)) == [dag_id]


def test_what_is_wrong_with_a_run_is_told(airflow: Airflow, dag_id: str) -> None:
    """Waiting for a run that fails ends at once, with its tasks' states and logs; cleared, it runs again."""
    airflow.write_dags(f"{dag_id}.py", MAPPED.format(dag_id=dag_id))
    airflow.api.request("POST", "/variables", {"key": dag_id, "value": "2"})
    run_id = airflow.trigger(dag_id)

    with pytest.raises(AirflowError, match=r"(?s)double\[1\]: failed, try 1.*not this one"):
        airflow.wait_for_run(dag_id, run_id)
    assert airflow.api.xcom(dag_id, run_id, "double", map_index=2) == 6

    airflow.api.request("PATCH", f"/variables/{dag_id}", {"key": dag_id, "value": "none"})
    airflow.api.clear_tasks(dag_id, run_id, [("double", 1)])
    airflow.wait_for_run(dag_id, run_id)
    assert airflow.api.xcom(dag_id, run_id, "double", map_index=1) == 4
    assert [one["state"] for one in airflow.api.tries(dag_id, run_id, "double", 1)] == ["failed", "success"]


@pytest.mark.full
def test_a_second_triggerer(airflow: Airflow, dag_id: str) -> None:
    """One triggerer takes over from another that was killed."""
    airflow.start("triggerer-2")
    airflow.write_dags(f"{dag_id}.py", DEFERRING.format(dag_id=dag_id))
    run_id = airflow.trigger(dag_id)
    first = airflow.triggerer_of(dag_id, run_id, "wait")

    airflow.kill(first)
    second = airflow.triggerer_of(dag_id, run_id, "wait")
    airflow.wait_for_run(dag_id, run_id)

    assert {first, second} == {"triggerer", "triggerer-2"}
    airflow.kill("triggerer-2")
    del airflow.components["triggerer-2"]


@pytest.mark.full
def test_nothing_is_left_of_an_airflow(airflow: Airflow, dag_id: str) -> None:
    """Two Airflows run at once; of the one that is stopped while its task runs no process is left, nor a file."""
    with Airflow(parallelism=1) as other:
        other.write_dags(f"{dag_id}.py", SLEEPS_AT_FIRST.format(dag_id=dag_id))
        processes = other.task_processes(dag_id, other.trigger(dag_id), "sleep")
        assert {processes.task, processes.supervisor, *other.pids.values()} <= set(other.processes)
        assert dag_id not in {dag["dag_id"] for dag in airflow.api.dags()}
        processes.kill_supervisor()  # the task is nobody's now
        home = other.home

    assert other.processes == []
    assert not home.exists()
    assert airflow.api.health()["scheduler"]["status"] == "healthy"


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_run_of_tests(end: signal.Signals) -> None:
    """When a run of tests is killed or interrupted, everything ends that its Airflow had started, in whatever group."""
    script = (
        "import signal, subprocess, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # in the background of a shell it is ignored
        "from tools.kit.airflow import Airflow, installation\n"
        "airflow = Airflow()\n"
        "installation._running.add(airflow)\n"
        "airflow._start_warden()\n"
        "subprocess.Popen(['sleep', '1000'], env=airflow.environ, start_new_session=True)\n"
        "print(airflow._mark, airflow.home, flush=True)\n"
        "time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        try:
            mark, home = run.stdout.readline().split()
            wait_until(lambda: len(marked(mark)) == 1, "a process has the mark", seconds=10)
            run.send_signal(end)
            run.wait(30)
        finally:
            run.kill()

    wait_until(lambda: marked(mark) == [] and not Path(home).exists(), "nothing is left", seconds=10)

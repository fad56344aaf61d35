"""A task that has lost its supervisor stops, whether it has a session or was given its messages by XCom."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_provider_pawnqueue import plugin
from airflow_provider_pawnqueue.hooks import stopping, supervision
from airflow_provider_pawnqueue.hooks.supervision import Supervision
from airflow_provider_pawnqueue.hooks.task_notes import BEGUN_KEY, CLEAR_NUMBER
from airflow_provider_pawnqueue.operators.pawnqueue import PawnQueueSettleOperator
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor
from tests.hooks.opening import MARK, ROOT
from tests.support.airflow import FakeTask

TASK_RUNNER = "airflow.sdk.execution_time.task_runner"


class Orders(PawnQueueSensor):
    """A user's own sensor."""


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervision]:
    """The watch of a process that has watched for nothing yet, and the handler of the signal as it was."""
    fresh = Supervision()
    monkeypatch.setattr(plugin, "SUPERVISION", fresh)
    monkeypatch.setattr(supervision, "WATCH_SECONDS", 0.02)
    before = signal.getsignal(stopping._SIGNAL)
    yield fresh
    fresh._to_the_end = False
    signal.signal(stopping._SIGNAL, before)


def tasks() -> dict[str, Any]:
    """The tasks of a DAG, by their ids."""
    with DAG("dag", schedule=None) as dag:
        sensor = PawnQueueSensor(task_id="claim", topic="orders")
        own = Orders(task_id="own", topic="orders")
        several = Orders.partial(task_id="several").expand(topic=["a", "b"])

        @task
        def work(claim: object) -> None: ...

        @task
        def aside() -> None: ...

        settle = PawnQueueSettleOperator(task_id="settle", claim=sensor.output)
        work.expand(claim=[1, 2]).operator.set_upstream(sensor)
        dag.get_task("work").set_downstream(settle)
        for name, before in (("of_own", own), ("of_several", several)):
            work.override(task_id=name)(1).operator.set_upstream(before)
        aside()
    return {one.task_id: one for one in dag.tasks}


@pytest.mark.parametrize("name", ["claim", "work", "settle", "of_own", "of_several", "several"])
def test_tasks_behind_a_claim_are_watched(watch: Supervision, name: str) -> None:
    """Sensors, mapped tasks, and tasks behind a user's own sensor are watched."""
    plugin.on_task_instance_running(None, SimpleNamespace(task=tasks()[name]))
    assert watch._thread is not None


@pytest.mark.parametrize(("name", "number"), [("claim", 2), ("work", 2), ("work", 0), ("aside", 2)])
def test_tasks_before_a_settlement_say_in_which_round_they_began(watch: Supervision, name: str, number: int) -> None:
    """They note it if their run was cleared; without a note, it was not."""
    ti: Any = FakeTask(name)
    ti.task, ti.clear_number = tasks()[name], number
    plugin.on_task_instance_running(None, ti)
    assert ti.xcom_pull(name, BEGUN_KEY) == ({CLEAR_NUMBER: 2} if number and name != "aside" else None)


def test_other_tasks_are_not(watch: Supervision) -> None:
    """They start no thread."""
    plugin.on_task_instance_running(None, SimpleNamespace(task=tasks()["aside"]))
    plugin.on_task_instance_running(None, SimpleNamespace())
    assert watch._thread is None


@pytest.mark.slow
def test_the_listener_imports_nothing_of_the_engine() -> None:
    """Each task of each DAG calls it, so it imports little."""
    script = (
        "import sys; from airflow_provider_pawnqueue import plugin; "
        "plugin.SUPERVISION.watch_this_task(); "
        "sys.exit(any(name.startswith('pawnqueue') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_a_task_that_is_its_own_supervisor_is_not_watched(watch: Supervision, monkeypatch: pytest.MonkeyPatch) -> None:
    """``dag.test()`` goes on after the shell that started it has ended."""
    inside = type("InProcessSupervisorComms", (), {})()
    monkeypatch.setitem(sys.modules, TASK_RUNNER, SimpleNamespace(SUPERVISOR_COMMS=inside))  # type: ignore[arg-type]
    watch.watch_this_task()
    assert watch._thread is None


def test_a_socket_without_another_end_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows the end of a supervisor that is not the parent (``run_as_user``); unread data stays unread."""
    here, there = socket.socketpair()
    monkeypatch.setitem(sys.modules, TASK_RUNNER, SimpleNamespace(SUPERVISOR_COMMS=SimpleNamespace(socket=here)))  # type: ignore[arg-type]
    with here:
        with there:
            assert not supervision._is_gone(os.getppid())
            there.sendall(b"an answer")
            assert not supervision._is_gone(os.getppid())
            assert here.recv(100) == b"an answer"
        assert supervision._is_gone(os.getppid())
    assert not supervision._is_gone(os.getppid()), "closed by the task itself, at its end"


def test_what_ended_is_watched_no_longer(watch: Supervision) -> None:
    """The thread ends with the last claim, unless a task needs it: a script may outlive its shell."""

    class Kept:
        def stop_renewing(self) -> bool:
            raise AssertionError

        def leave(self) -> None:
            raise AssertionError

    kept = Kept()
    watch.add(kept)
    thread = watch._thread
    assert thread is not None
    watch.remove(kept)
    thread.join(10)
    assert not thread.is_alive()
    assert thread not in threading.enumerate()


ORPHANED = """
import os, sys, time
from types import SimpleNamespace
from airflow_provider_pawnqueue.hooks import pawnqueue, stopping, supervision
supervision.WATCH_SECONDS = 0.1

def say(*what):
    print("=>", *what, flush=True)

def by_xcom():
    from airflow_provider_pawnqueue import plugin
    from tests.hooks.test_supervision import tasks
    plugin.on_task_instance_running(None, SimpleNamespace(task=tasks()["work"]))

def by_a_look():
    from airflow_provider_pawnqueue.testing import memory_queue
    pawnqueue.in_a_task = lambda: True
    with memory_queue("orders", conn_id="q") as queue:
        queue.publish("orders", [{"n": 1}])
        claim = queue.leave(queue.claim("orders", "c", claim_id="mine"))
        assert len(pawnqueue.PawnQueueHook("q").messages(claim, shared=True)) == 1

if os.fork() == 0:
    globals()[sys.argv[1]]()
    say(os.getpid())
    try:
        for _ in range(600):
            try:
                time.sleep(0.1)
            except Exception:
                pass
    except stopping.WorkStoppedError as error:
        say("stopped:", error)
        os._exit(0)
    os._exit(1)
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("given", ["by_xcom", "by_a_look"])
def test_a_task_without_a_session_stops_with_its_supervisor(given: str) -> None:
    """A mapped task stops, and so does one with a shared read: their next try has the same messages."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANED, given], env=environ, cwd=ROOT, text=True, stdout=subprocess.PIPE
    ) as supervisor:
        assert supervisor.stdout is not None
        said = (line.removeprefix(MARK).strip() for line in supervisor.stdout if line.startswith(MARK))
        assert int(next(said)) != supervisor.pid
        supervisor.kill()
        assert next(said).startswith("stopped: The claim that this task worked on is lost (the supervisor")
        assert list(said) == [], "it has ended, as its output has"

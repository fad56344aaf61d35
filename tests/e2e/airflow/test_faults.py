"""Whatever is killed, stopped, cleared or cut off: nothing is lost, nothing is held twice, and no lease is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from pawnqueue import SyncPawnQueue
from tests.e2e.airflow.journal import Journal
from tests.support.faults import Behaviour, FaultServer
from tools.kit.airflow import Airflow

if TYPE_CHECKING:
    from tools.kit.servers import S3Server

pytestmark = [pytest.mark.airflow, pytest.mark.servers, pytest.mark.timeout(600)]

NAMESAKE = """
from airflow.sdk import DAG, task

with DAG({dag_id!r}, schedule=None):

    @task
    def nothing():
        pass

    nothing()
"""

FAILING = """
from datetime import timedelta
from airflow.sdk import DAG, task
from airflow_provider_pawnqueue.decorators import claimed

with DAG({dag_id!r}, schedule=None), claimed({dag_id!r}, group_id="batch") as claim:

    @task(retries=5, retry_delay=timedelta(hours=1))
    def work(claim):
        raise ValueError("not yet")

    work(claim)
"""

#: One task works on the claim, and mapped ones are given its messages by XCom.
MAPPED = """
import json, os, time
from datetime import timedelta
from pathlib import Path
from airflow.sdk import DAG, task
from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook

JOURNAL, GATE = Path({journal!r}), Path({gate!r})

with DAG({dag_id!r}, schedule=None), claimed({dag_id!r}, group_id="batch", pawnqueue_conn_id={dag_id!r}) as claim:

    @task
    def hold(claim):
        PawnQueueHook({dag_id!r}).messages(claim)
        while not GATE.exists():
            time.sleep(0.2)

    @task(retries=1, retry_delay=timedelta(0))
    def each(message, ti=None):
        message = json.loads(message) if isinstance(message, str) else message
        while True:
            now = dict(at=time.monotonic(), wall=time.time())
            line = json.dumps(dict(pid=os.getpid(), ids=[message["id"]], **now) | {{"try": ti.try_number}})
            with JOURNAL.open("a") as file:
                file.write(line + chr(10))
            if GATE.exists():
                return
            time.sleep(0.2)

    hold(claim)
    each.expand(message=claim.messages)
"""

JANITOR = """
from datetime import timedelta
from airflow_provider_pawnqueue.dags import janitor_dag
dag = janitor_dag("janitor_of_faults", schedule={schedule})
"""


class Scene:
    """A topic with messages, a DAG that holds them, and how it ends."""

    def __init__(self, airflow: Airflow, server: S3Server, bucket: str, folder: Path, dag_id: str) -> None:
        folder.mkdir()
        self.airflow, self.queue, self.journal = airflow, SyncPawnQueue.open(s3=server.address(bucket)), Journal(folder)
        self.dag_id = self.topic = dag_id
        self._client, self._bucket = server.client(), bucket
        self.ids: list[str] = []
        self.queue.create_topic(self.topic)
        airflow.write_dags(f"{dag_id}.py", self.journal.dag(dag_id, self.topic))
        airflow.api.unpause(dag_id)

    def publish(self, count: int = 5) -> list[str]:
        """Put messages into the topic."""
        self.ids += self.queue.publish(self.topic, [{"n": n} for n in range(count)])
        return self.ids

    def start(self) -> str:
        """Start a run."""
        return self.airflow.trigger(self.dag_id)

    def started_work(self) -> str:
        """Start a run, and wait until its task has all messages."""
        self.publish()
        run_id = self.start()
        self.has_messages()
        return run_id

    def has_messages(self) -> None:
        """Wait until the task has all messages."""
        self.journal.wait_for(bool, "the task has messages")

    def keys(self, folder: str) -> list[str]:
        """Return the names of the objects in a folder of the topic."""
        listed = self._client.list_objects_v2(Bucket=self._bucket, Prefix=f"{self.topic}/{folder}/")
        return [each["Key"] for each in listed.get("Contents", [])]

    def end(self, *runs: str, state: str = "success") -> None:
        """Let the work end, and judge: each message was acked, none was held twice, and nothing is left of it."""
        self.journal.let_end()
        for run_id in runs:
            self.airflow.wait_for_run(self.dag_id, run_id, state, timeout=180)
        self.judge()

    def judge(self) -> None:
        """Judge."""
        assert self.journal.held_twice() == []
        seen = {message for note in self.journal.notes() for message in note.ids}
        assert seen == set(self.ids), "some were never worked on"
        found = self.queue.stats(self.topic)
        assert (found.pending, found.in_flight, found.delayed, found.dead) == (0, 0, 0, 0), found

    def swept(self) -> None:
        """Sweep the topic: no lease is left then."""
        self.queue.sweep(self.topic)
        assert self.keys("leases") == []


@pytest.fixture
def scene_of(
    airflow: Airflow, seaweedfs: S3Server, bucket: str, tmp_path: Path, dag_id: str
) -> Iterator[Callable[[str], Scene]]:
    """Make a topic, and a DAG that works on it, both with a name of their own."""
    made: list[Scene] = []

    def make(name: str) -> Scene:
        made.append(Scene(airflow, seaweedfs, bucket, tmp_path / name, f"{dag_id}_{name}"))
        return made[-1]

    yield make
    for each in made:
        each.journal.let_end()
        airflow.remove_dags(f"{each.dag_id}.py")
        each.queue.close()


@pytest.fixture
def scene(scene_of: Callable[[str], Scene]) -> Scene:
    """A topic, and a DAG that works on it."""
    return scene_of("alone")


def _until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not true after {seconds:g} s: {what}"
        time.sleep(0.01)


# Each story is played up to its next ``yield``, by turns with others: they wait together.


def its_triggerer_is_killed(scene: Scene) -> Iterator[None]:
    """It had claimed, and its event is lost: the next one finds the same claim, and no second batch is taken."""
    run_id = scene.start()
    yield
    scene.airflow.wait_for_task(scene.dag_id, run_id, "batch.claim", "deferred")
    scene.publish()
    _until(lambda: scene.keys("claims"), "the trigger has claimed", 120)
    scene.airflow.kill("triggerer")
    [record] = scene.keys("claims")
    scene.airflow.start("triggerer")
    yield
    scene.end(run_id)
    assert scene.keys("claims") == [record]
    scene.swept()


def its_task_is_killed(scene: Scene) -> Iterator[None]:
    """Its next try has the same messages within a minute of its start, although the janitor renewed the claim."""
    scene.airflow.write_dags("janitor_of_faults.py", JANITOR.format(schedule="timedelta(seconds=5)"))
    scene.airflow.api.unpause("janitor_of_faults")
    scene.publish()
    run_id = scene.start()
    yield
    scene.has_messages()
    scene.airflow.task_processes(scene.dag_id, run_id, "batch.work").kill_task()
    yield
    notes = scene.journal.wait_for(lambda notes: notes[-1].number == 2, "the second try has messages")
    second = [note for note in notes if note.number == 2]
    [began] = [
        each["start_date"]
        for each in scene.airflow.api.tries(scene.dag_id, run_id, "batch.work")
        if each["try_number"] == 2
    ]
    waited = second[0].wall - datetime.fromisoformat(began).timestamp()
    assert waited < 60, f"the second try had the messages {waited:.1f} s after its start"
    assert set(second[0].ids) == set(notes[0].ids)
    scene.airflow.remove_dags("janitor_of_faults.py")
    scene.end(run_id)
    scene.swept()


def its_supervisor_is_killed(scene: Scene) -> Iterator[None]:
    """Airflow hears nothing of the task any more: it stops, and leaves its claim to the next try."""
    scene.publish()
    run_id = scene.start()
    yield
    scene.has_messages()
    processes = scene.airflow.task_processes(scene.dag_id, run_id, "batch.work")
    processes.kill_supervisor()
    _until(lambda: not Path(f"/proc/{processes.task}").exists(), "the orphan has ended", 30)
    yield
    scene.journal.wait_for(lambda notes: notes[-1].number == 2, "the second try has messages")
    scene.end(run_id)
    scene.swept()


def it_is_cleared(scene: Scene) -> Iterator[None]:
    """Everything begins anew: what it had is given back when its task has ended, and claimed again."""
    scene.publish()
    run_id = scene.start()
    yield
    scene.has_messages()
    first = scene.journal.notes()[0].pid
    scene.airflow.api.clear_run(scene.dag_id, run_id)
    yield
    scene.journal.wait_for(lambda notes: notes[-1].pid != first, "another process has the messages")
    scene.end(run_id)
    scene.swept()


def it_is_marked_failed_before_another_try(scene: Scene) -> Iterator[None]:
    """Airflow skips the task that waits for its next try, and settles: the messages are given back, none is acked."""
    scene.airflow.write_dags(f"{scene.dag_id}.py", FAILING.format(dag_id=scene.dag_id))
    scene.publish()
    run_id = scene.start()
    yield
    scene.airflow.wait_for_task(scene.dag_id, run_id, "batch.work", "up_for_retry")
    scene.airflow.api.mark_run(scene.dag_id, run_id, "failed")
    yield
    scene.airflow.wait_for_run(scene.dag_id, run_id, "failed", timeout=120)
    assert scene.airflow.api.task_instance(scene.dag_id, run_id, "batch.work")["state"] == "skipped"
    assert scene.queue.stats(scene.topic).pending == len(scene.ids)


STORIES = (
    its_task_is_killed,
    its_supervisor_is_killed,
    it_is_cleared,
    it_is_marked_failed_before_another_try,
    its_triggerer_is_killed,
)


def test_five_runs_and_a_fault_for_each(scene_of: Callable[[str], Scene]) -> None:
    """They go on at once, and each is judged by itself."""
    for _ in zip_longest(*(story(scene_of(story.__name__)) for story in STORIES)):
        pass


@pytest.mark.full
@pytest.mark.parametrize("story", STORIES)
def test_a_fault_alone(story: Callable[[Scene], Iterator[None]], scene: Scene) -> None:
    """Nothing else goes on meanwhile."""
    for _ in story(scene):
        pass


@pytest.mark.full
def test_the_triggerer_is_stopped_between_claim_and_event(scene: Scene) -> None:
    """The next one finds the same claim, as after a kill."""
    run_id = scene.start()
    scene.airflow.wait_for_task(scene.dag_id, run_id, "batch.claim", "deferred")
    scene.publish()
    _until(lambda: scene.keys("claims"), "the trigger has claimed", 120)
    scene.airflow.terminate("triggerer")
    [record] = scene.keys("claims")
    scene.airflow.start("triggerer")
    scene.end(run_id)
    assert scene.keys("claims") == [record]
    scene.swept()


def test_keys_are_replaced_and_a_mapped_task_loses_its_supervisor(
    airflow: Airflow, tmp_path: Path, dag_id: str
) -> None:
    """Sensors and tasks go on with the connection's new keys; the orphan of a mapped task ends before its next try.

    Then an index of the run is cleared, and after that all of the run.
    """
    journal = Journal(tmp_path)
    keys: dict[str, datetime | None] = {"AKOLD": None}
    with FaultServer(Behaviour(credentials=keys), buckets=("queues",)) as server:
        fields = {"host": server.endpoint, "password": "secret-of-both", "extra": {"bucket_name": "queues"}}
        airflow.api.create_connection(dag_id, "pawnqueue", login="AKOLD", **fields)
        s3 = {"endpoint_url": server.endpoint, "bucket_name": "queues", "aws_secret_access_key": "secret-of-both"}
        with SyncPawnQueue.open(s3={**s3, "aws_access_key_id": "AKOLD"}) as queue:
            queue.create_topic(dag_id)
            queue.publish(dag_id, [{"n": n} for n in range(2)])
        source = MAPPED.format(journal=str(journal.path), gate=str(journal.gate), dag_id=dag_id)
        airflow.write_dags(f"{dag_id}.py", source)
        airflow.api.unpause(dag_id)
        working = airflow.trigger(dag_id)
        journal.wait_for(lambda notes: len({note.pid for note in notes}) == 2, "both mapped tasks have a message")
        waiting = airflow.trigger(dag_id)
        airflow.wait_for_task(dag_id, waiting, "batch.claim", "deferred")
        airflow.wait_for_task(dag_id, working, "batch.hold", "running")

        def answered(status: int, operation: str, folder: str, since: int = 0) -> bool:
            known = [each for each in server.requests[since:] if (each.status, each.operation) == (status, operation)]
            return any(f"{dag_id}/{folder}" in key for each in known for key in each.touches)

        def looked(status: int, since: int = 0) -> bool:
            """Say whether a poll was answered: it lists single messages and packs, together or apart."""
            listed = [each for each in server.requests[since:] if each.operation == "ListObjectsV2"]
            folders = {f"{dag_id}/", f"{dag_id}/messages/"}
            return any(each.status == status and folders.intersection(each.touches) for each in listed)

        before = len(server.requests)
        _until(lambda: looked(200, before), "the sensor's trigger has looked", 120)
        # First the store refuses the old key, then the connection has the new one.
        keys["AKNEW"] = None
        del keys["AKOLD"]
        _until(lambda: looked(403), "the sensor's trigger was denied")
        _until(lambda: answered(403, "PutObject", "claims/"), "a renewal of the working task was denied")
        airflow.api.update_connection(dag_id, "pawnqueue", login="AKNEW", **fields)

        processes = airflow.task_processes(dag_id, working, "batch.each", map_index=0)
        processes.kill_supervisor()
        _until(lambda: not Path(f"/proc/{processes.task}").exists(), "the orphan has ended", 30)
        journal.wait_for(lambda notes: any(note.number == 2 for note in notes), "the second try has its message")
        journal.let_end()
        with SyncPawnQueue.open(s3={**s3, "aws_access_key_id": "AKNEW"}) as queue:
            queue.publish(dag_id, [{"n": 2}])
            for run_id in (working, waiting):
                airflow.wait_for_run(dag_id, run_id, "success", timeout=180)
            for run_id, task_id in ((working, "batch.hold"), (waiting, "batch.claim")):
                assert len(airflow.api.tries(dag_id, run_id, task_id)) == 1, f"{task_id} has failed in between"
            # Airflow clears the sensor with an index, and no other task before it: none sees what that claims anew.
            queue.publish(dag_id, [{"n": n} for n in (3, 4)])
            airflow.api.clear_tasks(dag_id, working, [("batch.each", 0)])
            airflow.wait_for_run(dag_id, working, "failed", timeout=180)
            assert queue.stats(dag_id).pending == 2, "what no task has seen is given back"
            airflow.api.clear_tasks(dag_id, working, ["batch.claim"], include_downstream=True)
            airflow.wait_for_run(dag_id, working, "success", timeout=180)
            found = queue.stats(dag_id)
    assert (found.pending, found.in_flight, found.dead) == (0, 0, 0), found
    assert journal.held_twice() == []
    assert {note.pid for note in journal.notes() if note.number == 2}.isdisjoint({processes.task})


@pytest.mark.full
def test_a_machine_dies_under_its_task(scene: Scene) -> None:
    """Supervisor and task are gone at once; Airflow finds out, and the next try has the same messages."""
    run_id = scene.started_work()
    scene.airflow.task_processes(scene.dag_id, run_id, "batch.work").kill_both()
    scene.journal.wait_for(lambda notes: notes[-1].number == 2, "the second try has messages")
    scene.end(run_id)
    scene.swept()


def test_the_scheduler_is_restarted(scene: Scene) -> None:
    """It cannot adopt what runs, and starts another try: the two never have the messages together."""
    run_id = scene.started_work()
    scene.airflow.kill("scheduler", alone=True)
    scene.airflow.start("scheduler")
    scene.end(run_id)
    scene.swept()


@pytest.mark.full
def test_a_run_is_marked_failed_while_it_works(scene: Scene) -> None:
    """The janitor gives back what it had, and the next run has it."""
    run_id = scene.started_work()
    first = scene.journal.notes()[0].pid
    scene.airflow.api.mark_run(scene.dag_id, run_id, "failed")
    scene.airflow.write_dags("janitor_of_faults.py", JANITOR.format(schedule="timedelta(seconds=5)"))
    scene.airflow.api.unpause("janitor_of_faults")
    again = scene.start()
    scene.journal.wait_for(lambda notes: notes[-1].pid != first, "another process has the messages")
    scene.end(again)
    scene.swept()


@pytest.mark.full
def test_the_store_is_away_for_a_minute(scene: Scene, seaweedfs: S3Server) -> None:
    """A waiting task goes on waiting. A working task still holds its claim, or is stopped before others get it."""
    working = scene.started_work()
    waiting = scene.start()
    scene.airflow.wait_for_task(scene.dag_id, waiting, "batch.claim", "deferred")
    with frozen(seaweedfs):
        time.sleep(60)  # that is how long it is away
    scene.publish()
    scene.journal.wait_for(
        lambda notes: {message for note in notes for message in note.ids} == set(scene.ids),
        "all messages were had",
        180,
    )
    scene.end(working, waiting)
    scene.swept()


@contextmanager
def frozen(server: S3Server) -> Iterator[None]:
    """Have a server answer nothing for the length of a block, and forget nothing."""
    port = urlsplit(server.endpoint).port
    commands = {int(each.name): _command(each) for each in Path("/proc").iterdir() if each.name.isdigit()}
    pids = [
        pid for pid, command in commands.items() if Path(command[0]).name == "weed" and f"-s3.port={port}" in command
    ]
    assert pids, "the server's process was not found"
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _command(process: Path) -> list[str]:
    with suppress(OSError):
        return (process / "cmdline").read_text().split("\0")
    return [""]


@pytest.mark.full
def test_two_airflows_on_one_bucket(scene: Scene, connection: dict[str, Any]) -> None:
    """The other one's janitor does not touch what this one's run has, though a run of that name has ended there."""
    run_id = scene.started_work()
    with Airflow(connections={"pawnqueue_default": connection}, parallelism=2) as other:
        other.write_dags(f"{scene.dag_id}.py", NAMESAKE.format(dag_id=scene.dag_id))
        other.api.unpause(scene.dag_id)
        other.run(scene.dag_id, run_id=run_id)
        other.write_dags("janitor_of_faults.py", JANITOR.format(schedule="None"))
        other.api.unpause("janitor_of_faults")
        janitor_run = other.run("janitor_of_faults")
        report = other.api.xcom("janitor_of_faults", janitor_run, "sweep")[scene.topic]
        assert (report["fenced_claims"], report["renewed_claims"], report["given_back"]) == (0, 0, 0)
    scene.end(run_id)
    assert {note.number for note in scene.journal.notes()} == {1}
    scene.swept()

"""``memory_queue``, with which users test their DAGs, keeps a queue in the memory of this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException

from airflow_provider_pawnqueue.hooks.clients import settings_for_others
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.testing import memory_queue
from pawnqueue import ConfigError

TOP = Path(__file__).parent.parent


def test_hooks_use_it_for_the_length_of_the_block() -> None:
    """Hooks and the queue share messages in the block; after it, the connection is gone and the queue closed."""
    with memory_queue("orders", "returns") as queue:
        assert queue.list_topics() == ["orders", "returns"]
        ids = PawnQueueHook().publish("orders", [{"order_id": 41}])
        claim = queue.claim("orders", "billing")
        assert claim.ids == ids
        assert [message.payload for message in PawnQueueHook().messages(claim)] == [{"order_id": 41}]
    assert queue.closed
    with pytest.raises(AirflowNotFoundException):
        PawnQueueHook().list_topics()


def test_each_begins_empty() -> None:
    """Queues one after the other, or for two connections at once, do not share messages."""
    with memory_queue("orders") as first:
        first.publish("orders", [{"order_id": 41}])
        with memory_queue("orders", conn_id="other") as second:
            assert second.stats("orders").pending == 0
            assert PawnQueueHook("other").publish("orders", [{"order_id": 42}])
        assert [message.payload for message in PawnQueueHook().peek("orders")] == [{"order_id": 41}]
    with memory_queue("orders") as third:
        assert third.stats("orders").pending == 0


async def test_callers_in_a_loop_have_it_too() -> None:
    """The asynchronous calls of the hook, which triggers use, have the same queue."""
    with memory_queue("orders"):
        ids = await PawnQueueHook().awaited(lambda queue: queue.publish("orders", [{"order_id": 41}]))
        assert (await PawnQueueHook().awaited(lambda queue: queue.claim("orders", "billing"))).ids == ids


def test_a_connection_of_that_name_is_hidden_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is not used during the block, and exists again after it."""
    said = json.dumps({"conn_type": "pawnqueue", "extra": {"bucket_name": "production"}})
    monkeypatch.setenv("AIRFLOW_CONN_PAWNQUEUE_DEFAULT", said)
    with memory_queue("orders"):
        assert PawnQueueHook().settings.s3.bucket_name == "memory"
    assert PawnQueueHook().settings.s3.bucket_name == "production"


def test_the_connections_extra_is_taken() -> None:
    """Fields of the extra are settings; an unknown field raises an error."""
    with memory_queue(visibility_timeout_seconds=5, key_prefix="team") as queue:
        assert queue.settings.polling.visibility_timeout_seconds == 5
        assert queue.list_topics() == []
    with pytest.raises(ConfigError, match="did you mean 'key_prefix'"), memory_queue(key_prefixx="team"):
        pass


def test_no_other_program_is_sent_there() -> None:
    """A program that would be given the connection is not started."""
    with memory_queue("orders"), pytest.raises(ConfigError, match="in the memory of the process that made it"):
        settings_for_others(PawnQueueHook().address)


ELSEWHERE = """
import os, subprocess, sys
from pawnqueue import ConfigError
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.testing import memory_queue

LOOK = '''
from pawnqueue import ConfigError
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
try:
    PawnQueueHook().list_topics()
except ConfigError as error:
    print(error)
'''
with memory_queue("orders") as queue:
    child = os.fork()
    if child == 0:
        exec(LOOK)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    subprocess.run([sys.executable, "-c", LOOK], check=True)
    assert queue.list_topics() == PawnQueueHook().list_topics() == ["orders"]
"""


def _run(*arguments: str, cwd: Path = TOP, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run Python in another process."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **environ, "PYTHONPATH": str(TOP)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_what_a_secrets_backend_knows_is_not_worked_on(tmp_path: Path) -> None:
    """Airflow asks the backend before the environment, so tests would use a real queue: an error is raised."""
    known = tmp_path / "connections.json"
    known.write_text(
        json.dumps({"pawnqueue_default": {"conn_type": "pawnqueue", "extra": {"bucket_name": "production"}}})
    )
    done = _run(
        "-c",
        "from airflow_provider_pawnqueue.testing import memory_queue\nwith memory_queue('orders'): pass",
        AIRFLOW__SECRETS__BACKEND="airflow.secrets.local_filesystem.LocalFilesystemBackend",
        AIRFLOW__SECRETS__BACKEND_KWARGS=json.dumps({"connections_file_path": str(known)}),
    )
    assert done.returncode == 1
    assert "known to a secrets backend" in done.stderr


@pytest.mark.slow
def test_another_process_is_told() -> None:
    """In a forked or a started process, the connection raises an error."""
    done = _run("-c", ELSEWHERE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("in the memory of the process that made it") == 2, done.stdout + done.stderr


# --- a user's project ---

CONFTEST = """
import os
import tempfile
from pathlib import Path

os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(dir=Path(__file__).parent)
os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(Path(__file__).parent / "dags")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"

import pytest

from airflow_provider_pawnqueue.testing import memory_queue


@pytest.fixture(scope="session", autouse=True)
def database():
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture
def queue():
    with memory_queue("orders", "returns") as queue:
        yield queue
"""

DAGS = """
from datetime import timedelta

from airflow.sdk import DAG, task
from airflow_provider_pawnqueue.dags import janitor_dag
from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.operators.pawnqueue import PawnQueuePublishOperator

with DAG("deferring", schedule=None) as deferring, claimed("orders", max_messages=100) as claim:

    @task(retries=1, retry_delay=timedelta(0))
    def bill(claim):
        for message in PawnQueueHook().messages(claim):
            if message.payload["total"] is None:
                raise ValueError("no total")

    bill(claim)

with (
    DAG("mapped", schedule=None) as mapped,
    claimed(["orders", "returns"], on_failure="bury", deferrable=False) as claim,
):

    @task
    def one(message):
        return 1 / message["payload"]["total"]

    one.expand(message=claim.messages)

with DAG("impatient", schedule=None) as impatient, claimed("orders", deferrable=False, timeout=1, retries=0) as claim:

    @task
    def nothing(claim):
        raise AssertionError

    nothing(claim)

with DAG("publishing", schedule=None) as publishing:
    PawnQueuePublishOperator(task_id="publish", topic="orders", payloads=[{"total": 3}, {"total": 4}])

janitor = janitor_dag("janitor", schedule=None)
"""

TESTS = """
from dags.mine import deferring, impatient, janitor, mapped, publishing


def counts(queue, topic="orders"):
    stats = queue.stats(topic)
    return stats.pending, stats.in_flight, stats.dead


def test_a_sensor_that_defers(queue):
    queue.publish("orders", [{"total": 1}, {"total": 2}])
    assert deferring.test().state == "success"
    assert counts(queue) == (0, 0, 0)


def test_what_fails_comes_again_is_buried_and_redriven(queue):
    queue.update_topic("orders", max_deliveries=2)
    queue.publish("orders", [{"total": None}])
    for number in (1, 2):
        assert deferring.test().state == "failed"
        assert counts(queue) == (1, 0, 0), number
    # The next claim buries a message without deliveries left.
    queue.publish("orders", [{"total": 1}])
    assert deferring.test().state == "success"
    assert counts(queue) == (0, 0, 1)
    [letter] = queue.dead_letters("orders")
    assert "no total" in (letter.error or letter.reason)
    assert queue.redrive("orders").moved
    assert deferring.test().state == "failed"
    assert counts(queue) == (1, 0, 0)


def test_several_topics_and_mapped_tasks(queue):
    queue.publish("orders", [{"total": 0}, {"total": 2}])
    queue.publish("returns", [{"total": 4}])
    assert mapped.test().state == "failed"
    assert counts(queue) == (0, 0, 1)
    assert counts(queue, "returns") == (0, 0, 0)


def test_a_sensor_that_polls_times_out(queue):
    assert impatient.test().state == "failed"


def test_a_dag_publishes(queue):
    assert publishing.test().state == "success"
    assert [message.payload["total"] for message in queue.claim("orders", "me", max_messages=9)] == [3, 4]


def test_the_janitor_sweeps(queue):
    queue.publish("orders", [{"total": 1}])
    assert janitor.test().state == "success"
    assert queue.topic("orders").swept_at is not None
"""


@pytest.mark.slow
def test_dags_run_on_it(tmp_path: Path) -> None:
    """``dag.test()`` runs deferring, polling, failing and mapped tasks, and the janitor, in one process."""
    (tmp_path / "dags").mkdir()
    for name, text in {"conftest.py": CONFTEST, "dags/mine.py": DAGS, "test_mine.py": TESTS}.items():
        (tmp_path / name).write_text(text)
    done = _run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "test_mine.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout

"""DAGs run by ``dag.test()``, one after the other in one process, with what became of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import Connection

from pawnqueue import SyncPawnQueue
from tools.kit.airflow.settings import ROOT

if TYPE_CHECKING:
    from tests.support.dag_runs import DagTests
    from tools.kit.servers import S3Server

pytestmark = [pytest.mark.servers, pytest.mark.slow]

DAG = """
import os
from airflow.sdk import BaseHook, dag, task

@dag(schedule=None)
def one():
    @task
    def look(params=None):
        import airflow_provider_pawnqueue
        print("told to the log")
        connection = BaseHook.get_connection("pawnqueue_default")
        return [airflow_provider_pawnqueue.__file__, connection.login, os.environ.get("SAID"), params["given"]]

    @task
    def check(number):
        if number == 2:
            raise ValueError("not this one")
        return 2 * number

    look()
    check.expand(number=[1, 2])

one()
"""

DEFERRING = """
from datetime import timedelta
from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import BaseOperator, dag

class Wait(BaseOperator):
    def execute(self, context):
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=0.1)), method_name="resume")

    def resume(self, context, event):
        return "resumed"

@dag(schedule=None)
def one():
    Wait(task_id="wait")

one()
"""


SKIPPING = """
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowSkipException
from airflow_provider_pawnqueue.decorators import claimed

with DAG("skipping", schedule=None), claimed({topic!r}, group_id="batch") as claim:
    @task
    def itself(claim):
        raise AirflowSkipException("there is nothing to do")

    @task
    def after():
        pass

    @task.branch
    def branch(claim):
        return "batch.left"

    @task
    def left():
        pass

    @task
    def right():
        pass

    @task(trigger_rule="none_failed_min_one_success")
    def join():
        pass

    @task.short_circuit
    def short(claim):
        return False

    @task
    def cut():
        pass

    @task(trigger_rule="one_failed")
    def handler():
        pass

    @task
    def none(claim):
        return []

    @task
    def each(one):
        raise AirflowSkipException("nor here")

    itself(claim) >> after() >> handler()
    branch(claim) >> [left(), right()] >> join()
    short(claim) >> cut() >> cut.override(task_id="off")()
    each.expand(one=none(claim))
    each.override(task_id="message").expand(one=claim.messages)
"""


GROUPED = """
from airflow.sdk import DAG, task, task_group
from airflow_provider_pawnqueue.operators.pawnqueue import PawnQueueSettleOperator
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor

with DAG("grouped", schedule=None):
    sensor = PawnQueueSensor.partial(task_id="claim", deferrable=False).expand(topic={topics!r})

    @task
    def work(claim):
        if claim["topic"] == {topics!r}[-1]:
            raise ValueError("not this one")

    @task
    def after():
        pass

    @task_group
    def each(claim):
        work(claim) >> after()

    each.expand(claim=sensor.output) >> PawnQueueSettleOperator(task_id="settle", claim=sensor.output)
"""


STORED = """
from airflow.models import Connection
from airflow.sdk import DAG, task
from airflow.utils.session import create_session
from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook

with create_session() as session:
    if not session.query(Connection).filter_by(conn_id="stored").first():
        session.add(Connection(conn_id="stored", uri={uri!r}))

with DAG("stored", schedule=None):
    with claimed({topic!r}, group_id="batch", pawnqueue_conn_id="stored", retries=0) as claim:
        pass

    @task
    def publish():
        hook = PawnQueueHook("stored")
        hook.publish({topic!r}, [dict(n=1)])
        hook.nack(hook.claim({topic!r}, "c"), requeue=True, delay=3)  # so the sensor has to wait

    publish() >> claim.sensor
"""


def test_a_dag_runs(dag_test: DagTests) -> None:
    """States, XComs and the log of a run are returned; it has the connection, the variables and this tree's package."""
    run = dag_test.run(DAG, {"given": 7}, env={"SAID": "so"})

    assert run.state == "failed"
    assert run.tasks == {"look": "success", "check[0]": "success", "check[1]": "failed"}
    path, login, said, given = run.xcom("look")
    assert Path(path).is_relative_to(ROOT)
    assert (login, said, given) == ("AKTEST", "so", 7)
    assert run.xcom("check[0]") == 2
    assert "told to the log" in run.log
    assert "not this one" in run.log


def test_a_trigger_runs_inline(dag_test: DagTests) -> None:
    """A task that defers goes on with its trigger's event, in a DAG of the same name as another test's."""
    run = dag_test.run(DEFERRING)

    assert run.tasks == {"wait": "success"}
    assert run.xcom("wait") == "resumed"
    assert "told to the log" not in run.log


def test_what_is_wrong_with_a_file_is_told(dag_test: DagTests) -> None:
    """A DAG that cannot be imported is an error with the traceback."""
    with pytest.raises(AssertionError, match="no_such_thing"):
        dag_test.run("from airflow.sdk import no_such_thing")


def test_what_a_dag_skips_is_done(dag_test: DagTests, seaweedfs: S3Server, bucket: str) -> None:
    """By itself, by a branch, by a rule, or as there is nothing to map over: the messages are acked."""
    topic = "skipping"
    with SyncPawnQueue.open(s3=seaweedfs.address(bucket)) as queue:
        queue.create_topic(topic)
        queue.publish(topic, [{"n": n} for n in range(2)])
        run = dag_test.run(SKIPPING.format(topic=topic))
        assert run.xcom("batch.settle") == {"acked": 2, "buried": 0, "released": 0, "why": []}
    assert run.state == "success"
    assert list(run.tasks.values()).count("skipped") == 9


def test_each_index_of_a_group_speaks_for_its_claim(dag_test: DagTests, seaweedfs: S3Server, bucket: str) -> None:
    """Airflow gives the claims of a mapped sensor to the indexes in their order."""
    topics = ["grouped_0", "grouped_1", "grouped_2"]
    with SyncPawnQueue.open(s3=seaweedfs.address(bucket)) as queue:
        for topic in topics:
            queue.create_topic(topic)
            queue.publish(topic, [{"n": n} for n in range(2)])
        run = dag_test.run(GROUPED.format(topics=topics))
        assert [queue.stats(topic).pending for topic in topics] == [0, 0, 2]
    states = [run.tasks[f"each.{name}[{index}]"] for name in ("work", "after") for index in range(3)]
    assert states == ["success", "success", "failed", "success", "success", "upstream_failed"]
    assert (run.xcom("settle")["acked"], run.xcom("settle")["released"]) == (4, 2)


def test_a_trigger_finds_a_connection_in_the_database(
    dag_test: DagTests, seaweedfs: S3Server, bucket: str, connection: dict[str, Any]
) -> None:
    """``dag.test()`` runs triggers in its own process, where nothing can be asked asynchronously."""
    topic = "stored"
    stored = Connection(conn_id="stored", **{**connection, "extra": json.dumps(connection["extra"])})
    with SyncPawnQueue.open(s3=seaweedfs.address(bucket)) as queue:
        queue.create_topic(topic)
        run = dag_test.run(STORED.format(topic=topic, uri=stored.get_uri()))
        assert "Waiting in the triggerer" in run.log
        assert run.xcom("batch.settle")["acked"] == 1
    assert run.state == "success"

"""Every DAG of ``dags_example`` runs to its end on a real Airflow, and does with the messages what it says."""

from __future__ import annotations

from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version

from pawnqueue import SyncPawnQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tools.kit.airflow import Airflow
    from tools.kit.servers import S3Server

#: Partitioned assets came with Airflow 3.2.
HAS_PARTITIONS = Version(metadata.version("apache-airflow")) >= Version("3.2")
EXAMPLES = Path(__file__).parents[3] / "dags_example"

pytestmark = [pytest.mark.airflow, pytest.mark.servers, pytest.mark.timeout(600)]


@pytest.fixture
def queue(seaweedfs: S3Server, bucket: str) -> Iterator[SyncPawnQueue]:
    """The queue of the connection ``pawnqueue_default``."""
    with SyncPawnQueue.open(s3=seaweedfs.address(bucket)) as queue:
        yield queue


@pytest.fixture
def example(airflow: Airflow) -> Iterator[Callable[[str], None]]:
    """Put an example into the DAGs folder, as it is, for one test."""
    written = []

    def put(name: str) -> None:
        file = f"{name}.py"
        for dag_id in airflow.write_dags(file, (EXAMPLES / file).read_text()):
            airflow.api.unpause(dag_id)
        written.append(file)

    yield put
    for name in written:
        airflow.remove_dags(name)


def left_of(queue: SyncPawnQueue, topic: str) -> dict[str, int]:
    """Say what is left of a topic's messages."""
    found = queue.stats(topic)
    left = {"pending": found.pending, "in_flight": found.in_flight, "delayed": found.delayed, "dead": found.dead}
    return {name: count for name, count in left.items() if count}


def states(airflow: Airflow, dag_id: str, run_id: str) -> dict[str, Counter[str]]:
    """Say how a run's tasks ended."""
    found: dict[str, Counter[str]] = {}
    for ti in airflow.api.task_instances(dag_id, run_id):
        found.setdefault(ti["task_id"], Counter())[ti["state"]] += 1
    return found


def test_publish_claim_work_settle(airflow: Airflow, example: Callable[[str], None], queue: SyncPawnQueue) -> None:
    """What one DAG publishes, the other one works on, and nothing is left."""
    example("orders_claim_work_settle")
    airflow.run("orders_publish")
    run_id = airflow.run("orders_process")
    assert airflow.api.xcom("orders_process", run_id, "work") == sum(number * 10 for number in range(20))
    assert airflow.api.xcom("orders_process", run_id, "settle") == {"acked": 20, "buried": 0, "released": 0, "why": []}
    assert left_of(queue, "orders") == {}


def test_mapped(airflow: Airflow, example: Callable[[str], None], queue: SyncPawnQueue) -> None:
    """The one that failed is given back with its error; the others are acked; the run has failed, as its task did."""
    queue.create_topic("parcels")
    queue.publish("parcels", [{"address": f"street {n}"} if n != 1 else {} for n in range(3)])
    example("orders_mapped")
    run_id = airflow.trigger("orders_mapped")
    airflow.wait_for_run("orders_mapped", run_id, "failed")
    ended = states(airflow, "orders_mapped", run_id)
    assert ended["parcels.deliver"] == {"success": 2, "failed": 1}
    assert left_of(queue, "parcels") == {"delayed": 1}


def test_alert(airflow: Airflow, example: Callable[[str], None], queue: SyncPawnQueue) -> None:
    """Of four messages the poison one is buried and three are done; the alert runs, and the run has failed.

    A second run, in which nothing fails, is a success, with nothing to alert on.
    """
    queue.create_topic("registrations")
    ids = queue.publish("registrations", [{"name": f"n{n}"} if n != 2 else {} for n in range(4)])
    example("orders_alert")
    run_id = airflow.trigger("orders_alert")
    airflow.wait_for_run("orders_alert", run_id, "failed", timeout=300)
    ended = states(airflow, "orders_alert", run_id)
    assert ended["registrations.register"] == {"success": 3, "failed": 1}
    assert ended["registrations.summarise"] == {"upstream_failed": 1}
    assert ended["registrations.settle"] == {"failed": 1}
    assert ended["registrations.settled"] == ended["alert"] == {"success": 1}
    assert left_of(queue, "registrations") == {"dead": 1}
    [told] = airflow.api.xcom("orders_alert", run_id, "alert")
    assert "register[2] failed: KeyError: 'name'" in told
    assert ids[2] in told

    queue.publish("registrations", [{"name": "last"}])
    run_id = airflow.run("orders_alert")
    assert set(states(airflow, "orders_alert", run_id)) > {"registrations.settled", "alert"}
    assert airflow.api.xcom("orders_alert", run_id, "alert") == []


def test_retries_and_dead_letters(airflow: Airflow, example: Callable[[str], None], queue: SyncPawnQueue) -> None:
    """After three deliveries a bad message is a dead letter, with its task's reason, and it can be given back."""
    example("orders_retries")
    queue.create_topic("payments", max_deliveries=3)
    good, bad = queue.publish("payments", [{"amount": 5}, {"amount": 0}])
    for _ in range(3):
        airflow.run("payments")
    queue.publish("payments", [{"amount": 7}])
    airflow.run("payments")  # the next claim buries it
    [letter] = queue.dead_letters("payments")
    assert letter.message.id == bad
    assert (letter.reason, letter.max_deliveries) == ("payments.book: an amount is above zero", 3)
    assert good not in {message.id for message in queue.peek("payments")}
    assert left_of(queue, "payments") == {"dead": 1}
    airflow.run("payments_redrive", conf={"ids": [bad]})
    assert left_of(queue, "payments") == {"pending": 1}


def test_the_janitor(airflow: Airflow, example: Callable[[str], None], queue: SyncPawnQueue) -> None:
    """It sweeps every topic, by itself, every minute."""
    queue.create_topic("swept")
    example("janitor")
    [run] = airflow.wait_for(
        lambda: airflow.api.runs("pawnqueue_janitor", state=["success"])[:1],
        "the janitor to have run by itself",
        timeout=180,
    )
    report: dict[str, Any] = airflow.api.xcom("pawnqueue_janitor", run["dag_run_id"], "sweep")
    assert report["swept"]["failures"] == 0


def test_on_arrival(airflow: Airflow, example: Callable[[str], None], queue: SyncPawnQueue) -> None:
    """Of a burst of 250 messages, more than two claims take, all are worked on once, and nothing is stranded."""
    queue.create_topic("arrivals")
    example("orders_on_arrival")
    queue.publish("arrivals", [{"n": n} for n in range(250)])

    def worked() -> int:
        # A run that is too many finds nothing for a minute: its end is not waited for.
        runs = [run["dag_run_id"] for run in airflow.api.runs("orders_on_arrival")]
        done = [run for run in runs if states(airflow, "orders_on_arrival", run)["arrivals.work"]["success"]]
        return sum(airflow.api.xcom("orders_on_arrival", run, "arrivals.work") for run in done)

    airflow.wait_for(lambda: left_of(queue, "arrivals") == {}, "all 250 messages to be settled", timeout=240)
    assert worked() == 250


@pytest.mark.full
def test_on_arrival_after_a_pause(airflow: Airflow, example: Callable[[str], None], queue: SyncPawnQueue) -> None:
    """What came while the DAG was paused is worked on when it goes on: the bell rings again."""
    queue.create_topic("arrivals")
    example("orders_on_arrival")
    airflow.api.pause("orders_on_arrival")
    queue.publish("arrivals", [{"n": n} for n in range(40)])
    rung = len(airflow.api.asset_events())
    airflow.wait_for(lambda: len(airflow.api.asset_events()) > rung, "the bell has rung in vain", timeout=120)
    assert left_of(queue, "arrivals") == {"pending": 40}
    airflow.api.unpause("orders_on_arrival")
    airflow.wait_for(lambda: left_of(queue, "arrivals") == {}, "all 40 messages to be settled", timeout=240)


@pytest.mark.skipif(not HAS_PARTITIONS, reason="needs Airflow 3.2 or newer")
def test_one_run_each(airflow: Airflow, example: Callable[[str], None], queue: SyncPawnQueue) -> None:
    """Each message has a run of its own, which is named by it."""
    queue.create_topic("tickets")
    ids = queue.publish("tickets", [{"ticket": n} for n in range(3)])
    example("orders_one_run_each")
    airflow.run("tickets_dispatch")

    def done() -> list[str]:
        return [run["partition_key"] for run in airflow.api.runs("tickets_work", state=["success"])]

    airflow.wait_for(lambda: len(done()) == len(ids), "a run for each ticket", timeout=120)
    assert sorted(done()) == sorted(ids)
    assert left_of(queue, "tickets") == {}

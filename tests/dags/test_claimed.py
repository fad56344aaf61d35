"""DAGs as users write them: the order of tasks, the teardowns, and what Airflow stores of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, TriggerRule
from airflow.sdk import DAG, TaskGroup, task

from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.operators.pawnqueue import (
    PawnQueueAckOperator,
    PawnQueueMessagesOperator,
    PawnQueuePublishOperator,
    PawnQueueSettleOperator,
)
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor
from tests.support.airflow_names import DagSerialization, lazily

if TYPE_CHECKING:
    from collections.abc import Callable


def stored(dag: DAG) -> Any:
    """Serialize a DAG, as its processor does, and read it again, as the scheduler does."""
    lazy = lazily(dag)
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert lazy.dag_id == again.dag_id == dag.dag_id
    assert set(again.task_ids) == set(dag.task_ids)
    for task_id in dag.task_ids:
        assert again.get_task(task_id).downstream_task_ids == dag.get_task(task_id).downstream_task_ids
        assert again.get_task(task_id).is_teardown == dag.get_task(task_id).is_teardown
    return again


def edges(dag: DAG) -> dict[str, set[str]]:
    """Return the tasks that come directly after each task."""
    return {task_id: set(dag.get_task(task_id).downstream_task_ids) for task_id in dag.task_ids}


@task
def work(claim: Any = None) -> None:
    """Work on a claim."""


def test_by_hand() -> None:
    """The settlement is the teardown of its claim, and fails the run by itself."""
    with DAG("by_hand", schedule=None) as dag:
        sensor = PawnQueueSensor(task_id="claim", topic="orders", deferrable=True)
        done = work(sensor.output)
        settle = PawnQueueSettleOperator(task_id="settle", claim=sensor.output)
        done >> settle
    assert edges(dag) == {"claim": {"work", "settle"}, "work": {"settle"}, "settle": set()}
    assert (settle.is_teardown, settle.on_failure_fail_dagrun, sensor.is_setup) == (True, True, True)
    assert settle.trigger_rule == TriggerRule.ALL_DONE_SETUP_SUCCESS
    assert stored(dag).get_task("settle").on_failure_fail_dagrun


def test_the_block() -> None:
    """The order is claim, the tasks of the block, settle, even for a task that is not given the claim."""
    with DAG("block", schedule=None) as dag, claimed("orders.new", max_messages=5) as claim:
        work(claim) >> work.override(task_id="after")()
        work.override(task_id="aside")()
    assert edges(dag) == {
        "orders_new.claim": {"orders_new.work", "orders_new.aside", "orders_new.settle"},
        "orders_new.work": {"orders_new.after"},
        "orders_new.after": {"orders_new.settle"},
        "orders_new.aside": {"orders_new.settle"},
        "orders_new.settle": set(),
    }
    assert dag.get_task("orders_new.claim").max_messages == 5
    assert dag.get_task("orders_new.claim").deferrable
    assert dag.get_task("orders_new.settle").claim_tasks == ["orders_new.claim"]
    stored(dag)


def test_mapped_over_messages() -> None:
    """The group has one task that reads the messages, however often they are used, and the DAG can be stored."""
    with DAG("mapped", schedule=None) as dag, claimed("orders") as claim:
        work.expand(claim=claim.messages)
        work.override(task_id="again").expand(claim=claim.messages)
        work.override(task_id="many").expand(claim=claim.batches(10))
    assert edges(dag)["orders.claim"] == {"orders.messages", "orders.batches_of_10", "orders.settle"}
    assert edges(dag)["orders.messages"] == {"orders.work", "orders.again"}
    assert edges(dag)["orders.batches_of_10"] == {"orders.many"}
    for task_id in ("work", "again", "many"):
        assert edges(dag)[f"orders.{task_id}"] == {"orders.settle"}
    assert dag.get_task("orders.batches_of_10").batch == 10
    stored(dag)


def test_a_claim_for_mapped_tasks() -> None:
    """A mapped task may be given the claim in each index, or be mapped over the claims of several topics."""
    with DAG("partial", schedule=None) as dag, claimed(["a", "b"]) as claim:
        work.override(task_id="each").expand(claim=claim)

        @task
        def both(claim: Any, part: int) -> None:
            """Work on a part."""

        both.partial(claim=claim).expand(part=[1, 2])
    assert edges(dag)["a.claim"] == {"a.each", "a.both", "a.settle"}
    stored(dag)


def test_two_blocks_for_one_topic() -> None:
    """Their groups have different names; two blocks with the same given name are refused."""
    with DAG("two", schedule=None) as dag:
        for _ in range(2):
            with claimed("orders") as claim:
                work(claim)
    assert {"orders.claim", "orders__1.claim"} <= set(dag.task_ids)
    assert edges(dag)["orders.work"] == {"orders.settle"}
    assert edges(dag)["orders__1.work"] == {"orders__1.settle"}
    stored(dag)
    with DAG("same", schedule=None), claimed("orders", group_id="g"), pytest.raises(AirflowException, match="g"):  # noqa: SIM117
        with TaskGroup("other", prefix_group_id=False), claimed("orders", group_id="g"):
            pass


def test_nested_groups() -> None:
    """Groups may be inside the block, and the block inside a group."""
    with DAG("nested", schedule=None) as dag, TaskGroup("outer"), claimed("orders") as claim:
        with TaskGroup("inner"):
            first = work(claim)
            first >> work.override(task_id="second")()
        work.override(task_id="third")()
    assert edges(dag)["outer.orders.inner.work"] == {"outer.orders.inner.second"}
    assert edges(dag)["outer.orders.inner.second"] == {"outer.orders.settle"}
    assert edges(dag)["outer.orders.claim"] == {
        "outer.orders.inner.work",
        "outer.orders.third",
        "outer.orders.settle",
    }
    stored(dag)


def test_a_block_in_a_block() -> None:
    """The inner claim is settled before the outer one."""
    with DAG("blocks", schedule=None) as dag, claimed("orders") as outer:
        work(outer)
        with claimed("parcels") as inner:
            work.override(task_id="pack")(inner)
    found = edges(dag)
    assert found["orders.claim"] == {"orders.work", "orders.parcels.claim", "orders.settle"}
    assert found["orders.parcels.pack"] == {"orders.parcels.settle"}
    assert found["orders.parcels.settle"] == {"orders.settle"}
    stored(dag)


def test_one_block_after_the_other() -> None:
    """What comes after a block waits for its work."""
    with DAG("chain", schedule=None) as dag:
        with claimed("orders") as first:
            work(first)
        after = work.override(task_id="after")()
        dag.task_group.children["orders"] >> after  # type: ignore[operator]
    assert edges(dag)["orders.work"] == {"orders.settle", "after"}
    stored(dag)


def test_an_empty_block() -> None:
    """It claims and settles."""
    with DAG("empty", schedule=None) as dag, claimed("orders"):
        pass
    assert edges(dag) == {"orders.claim": {"orders.settle"}, "orders.settle": set()}
    stored(dag)


def test_a_mapped_group_in_the_block() -> None:
    """A group that is mapped over the messages comes before the settlement."""
    from airflow.sdk import task_group  # noqa: PLC0415 - a name of Airflow's that is used here alone

    with DAG("groups", schedule=None) as dag, claimed("orders") as claim:

        @task_group
        def each(message: Any) -> None:
            """Two steps."""
            work.override(task_id="one")(message) >> work.override(task_id="two")()

        each.expand(message=claim.messages)
    assert edges(dag)["orders.each.two"] == {"orders.settle"}
    stored(dag)


def test_mapped_sensors_and_one_settlement() -> None:
    """One settlement is the teardown of all indexes; a mapped settlement is refused when the DAG is parsed."""
    with DAG("sensors", schedule=None) as dag:
        sensor = PawnQueueSensor.partial(task_id="claim", deferrable=True).expand(topic=["a", "b"])
        settle = PawnQueueSettleOperator(task_id="settle", claim=sensor.output)
        work.expand(claim=sensor.output) >> settle
        with pytest.raises(TypeError, match="cannot be mapped"):
            PawnQueueSettleOperator.partial(task_id="each")
    assert settle.is_teardown
    assert settle.claim_tasks == ["claim"]
    stored(dag)


def test_the_block_in_a_mapped_group() -> None:
    """There may be a block for each topic of a list that another task returns."""
    from airflow.sdk import task_group  # noqa: PLC0415 - as above

    with DAG("mapped_group", schedule=None) as dag:

        @task_group
        def each(topic: Any) -> None:
            with claimed(topic) as claim:
                work(claim)

        each.expand(topic=["a", "b"])
    assert edges(dag)["each.claimed.work"] == {"each.claimed.settle"}
    stored(dag)


def test_a_claim_goes_by_xcom() -> None:
    """A DAG that turns off XCom for its tasks is refused when it is parsed: nothing would ever be settled."""
    with DAG("off", schedule=None, default_args={"do_xcom_push": False}), pytest.raises(ValueError, match="XCom"):  # noqa: SIM117
        with claimed("orders"):
            pass


@pytest.mark.parametrize("topic", ["", []])
def test_no_topic(topic: Any) -> None:
    """A block without a topic is refused when the DAG is parsed."""
    with DAG("none", schedule=None), pytest.raises(ValueError, match="name a topic"), claimed(topic):
        pass


def test_a_topic_by_template() -> None:
    """The group of such a block has a valid name."""
    with DAG("template", schedule=None) as dag, claimed("{{ params.topic }}") as claim:
        work(claim)
    assert "params_topic.claim" in dag.task_ids
    stored(dag)


def test_messages_behind_the_block() -> None:
    """Using the messages after the block is refused when the DAG is parsed: they are settled then."""
    with DAG("behind", schedule=None):
        with claimed("orders") as claim:
            pass
        with pytest.raises(ValueError, match="in the block"):
            _ = claim.messages


def test_several_sensors_and_one_settlement() -> None:
    """The settlement is the teardown of each sensor."""
    with DAG("several", schedule=None) as dag:
        sensors = [PawnQueueSensor(task_id=name, topic=name) for name in ("a", "b")]
        settle = PawnQueueSettleOperator(task_id="settle", claim=[sensor.output for sensor in sensors])
    assert settle.is_teardown
    assert settle.claim_tasks == ["a", "b"]
    assert edges(dag) == {"a": {"settle"}, "b": {"settle"}, "settle": set()}
    stored(dag)


def _expanded_publish() -> None:
    PawnQueuePublishOperator.partial(task_id="one", topic="orders").expand(payloads=[[{"n": 1}], [{"n": 2}]])


def _expanded_sensor() -> None:
    sensor = PawnQueueSensor.partial(task_id="one", deferrable=True).expand(topic=["a", "b"])
    PawnQueueAckOperator(task_id="ack", claim=sensor.output)


def _expanded_ack() -> None:
    sensor = PawnQueueSensor.partial(task_id="claim").expand(topic=["a", "b"])
    PawnQueueAckOperator.partial(task_id="one").expand(claim=sensor.output)


def _expanded_reading() -> None:
    sensor = PawnQueueSensor(task_id="claim", topic=["a", "b"])
    PawnQueueMessagesOperator.partial(task_id="one").expand(claim=sensor.output)


@pytest.mark.parametrize("make", [_expanded_publish, _expanded_sensor, _expanded_ack, _expanded_reading])
def test_mapped_operators(make: Callable[[], None]) -> None:
    """Operators may be mapped, and the DAG is stored."""
    with DAG("expanded", schedule=None) as dag:
        make()
    again = stored(dag)
    assert again.get_task("one").is_mapped

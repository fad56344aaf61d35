"""Which tasks decide about messages, what becomes of reported messages, and what comes after a settlement."""

from __future__ import annotations

from typing import Any, cast

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.sdk import DAG, task

from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.hooks.task_notes import ERROR_KEY, REPORT_KEY
from airflow_provider_pawnqueue.operators.pawnqueue import PawnQueueMessagesOperator, PawnQueueSettleOperator
from airflow_provider_pawnqueue.operators.settling import SettledOperator
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor
from pawnqueue import SyncPawnQueue
from tests.operators.played import Play, claim_of, ids_of, left, mapped, reasons
from tests.support.airflow import TOPIC, FakeTask, context_of


class Aggregated(Play):
    """Mapped work and two tasks after all of it, the first of which also needs a task outside the claim."""

    def work(self, claim: Any) -> None:
        """Make the tasks between the claim and its settlement."""
        reading = PawnQueueMessagesOperator(task_id="messages", claim=claim)

        @task
        def work(message: Any) -> None: ...

        @task
        def total(results: Any) -> None: ...

        @task
        def mail() -> None: ...

        @task
        def prices() -> None: ...

        summed = total(work.expand(message=reading.output))
        summed >> mail()
        prices() >> summed


class Chained(Play):
    """Mapped work, and a second task that is mapped over its results."""

    def work(self, claim: Any) -> None:
        """Make the tasks between the claim and its settlement."""
        reading = PawnQueueMessagesOperator(task_id="messages", claim=claim)

        @task
        def work(message: Any) -> None: ...

        @task
        def load(result: Any) -> None: ...

        load.expand(result=work.expand(message=reading.output))


NOT_RUN = {"total": "upstream_failed", "mail": "upstream_failed"}


def ten(failed: int = 7) -> dict[str, str]:
    """Return the states of ten indexes, one of which has failed."""
    return {f"work_{index}": "failed" if index == failed else "success" for index in range(10)}


def test_an_aggregate_that_did_not_run_speaks_for_nobody(
    queue: SyncPawnQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    """One bad message of ten is buried, and the nine good ones are acked; the log names the task that did not run."""
    claim = claim_of(queue, 10)
    play = mapped(claim, claim["messages"], Aggregated(on_failure="bury"), prices="success", **ten(), **NOT_RUN)
    with pytest.raises(AirflowFailException, match=r"9 acked, 1 buried.*work\[7\] \(failed\), total \(upstr"):
        play.ended(claim)
    assert left(queue) == (0, 0, 1)
    assert sorted(reasons(queue)) == [7]
    assert "trigger_rule" in capsys.readouterr().out


def test_an_aggregate_that_others_kept_from_running_speaks(queue: SyncPawnQueue) -> None:
    """If a task outside the claim failed, any message may be affected, so none is acked."""
    claim = claim_of(queue, 3)
    states = dict.fromkeys(["work_0", "work_1", "work_2"], "success")
    play = mapped(claim, claim["messages"], Aggregated(), **states, prices="failed", **NOT_RUN)
    with pytest.raises(AirflowFailException, match="3 given back"):
        play.ended(claim)


def test_an_aggregate_that_a_task_with_a_numbered_neighbour_kept_from_running(queue: SyncPawnQueue) -> None:
    """The state of ``prices_1`` is not taken for that of ``prices``, which failed: nothing is acked."""
    play = Aggregated(on_failure="bury")
    with play.dag:

        @task
        def prices_1() -> None: ...

        cast("Any", prices_1()) >> play.dag.get_task("total")
    claim = claim_of(queue, 3)
    states = {"work_0": "success", "work_1": "failed", "work_2": "success"}
    mapped(claim, claim["messages"], play, **states, prices="failed", prices_1="success", **NOT_RUN)
    with pytest.raises(AirflowFailException, match="0 acked, 1 buried, 2 given back"):
        play.ended(claim)


def test_an_aggregate_after_indexes_that_nobody_knows(queue: SyncPawnQueue) -> None:
    """The failed index may have been given any message, so none is acked."""
    claim = claim_of(queue, 3)
    states = {"work_0": "success", "work_1": "failed", "work_2": "success"}
    play = mapped(claim, [1, 2, 3], Aggregated(on_failure="bury"), **states, prices="success", **NOT_RUN)
    with pytest.raises(AirflowFailException, match="3 buried"):
        play.ended(claim)


def test_an_aggregate_that_failed_itself_speaks(queue: SyncPawnQueue) -> None:
    """It should have worked on all messages, so none is acked."""
    claim = claim_of(queue, 3)
    states = dict.fromkeys(["work_0", "work_1", "work_2", "prices"], "success")
    play = mapped(claim, claim["messages"], Aggregated(), **states, total="failed", mail="upstream_failed")
    with pytest.raises(AirflowFailException, match="3 given back"):
        play.ended(claim)


def test_mapped_work_that_never_began_gives_back(queue: SyncPawnQueue) -> None:
    """The bad message is buried; the others, which the second task was not given, are given back."""
    claim = claim_of(queue, 3)
    states = {"work_0": "success", "work_1": "failed", "work_2": "success", "load": "upstream_failed"}
    play = mapped(claim, claim["messages"], Chained(on_failure="bury"), **states)
    with pytest.raises(AirflowFailException, match="1 buried, 2 given back"):
        play.ended(claim)
    assert sorted(reasons(queue)) == [1]


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"on_reported": "bury"}, "0 acked, 1 buried, 2 given back"),
        ({"on_failure": "bury", "on_reported": "requeue"}, "0 acked, 2 buried, 1 given back"),
        ({"on_failure": "bury"}, "0 acked, 3 buried"),
        ({}, "3 given back"),
    ],
    ids=repr,
)
def test_what_died_and_what_was_reported(queue: SyncPawnQueue, rules: dict[str, str], told: str) -> None:
    """``on_reported`` decides about reported messages, and ``on_failure`` about all others, or about both."""
    claim = claim_of(queue, 3)
    play = Play(**rules)
    play.ti.xcom_push(REPORT_KEY, {"failed": {ids_of(claim)[1]: "no item"}, "done": []}, task_id="work")
    play.ti.xcom_push(ERROR_KEY, "ConnectionError: away", task_id="work")
    with pytest.raises(AirflowFailException, match=told):
        play.ended(claim, work="failed", after="upstream_failed")


def test_an_outcome_that_is_none_is_refused(queue: SyncPawnQueue) -> None:
    """A constant is refused when the DAG is parsed, a template when it is rendered."""
    with pytest.raises(ValueError, match="on_reported='nack': pass 'requeue' or 'bury'"):
        Play(on_reported="nack")
    claim, play = claim_of(queue, 1), Play(on_reported="{{ params.how }}")
    play.settle.on_reported = "nack"
    with pytest.raises(AirflowFailException, match="on_reported='nack'"):
        play.ended(claim, work="success", after="success")


def test_the_settlement_is_in_xcom_though_the_task_fails(queue: SyncPawnQueue) -> None:
    """It says how many messages were acked, buried and given back, and why."""
    claim = claim_of(queue, 3)
    play = mapped(claim, claim["messages"], work_0="success", work_1="failed", work_2="success")
    play.ti.xcom_push(ERROR_KEY, "ValueError: no item", task_id="work", map_index=1)
    with pytest.raises(AirflowFailException):
        play.ended(claim)
    why = {"outcome": "buried", "reason": "work[1] failed: ValueError: no item", "count": 1, "ids": [ids_of(claim)[1]]}
    assert play.ti.xcom_pull("settle") == {"acked": 2, "buried": 1, "released": 0, "why": [why]}


def test_the_settlement_tells_what_was_settled_before(queue: SyncPawnQueue) -> None:
    """It also counts messages that were buried as they were claimed, and those that a first try settled."""
    queue.update_topic(TOPIC, max_deliveries=1)
    queue.publish(TOPIC, [{"n": 9}])
    queue.requeue(queue.claim(TOPIC, "test"), reason="no stock")
    claim, play = claim_of(queue, 1), Play()
    for _ in range(2):
        told = play.ended(claim, work="success", after="success")
        assert (told["acked"], told["buried"]) == (1, 1)
        assert [(each["outcome"], each["reason"]) for each in told["why"]] == [("buried", "no stock")]


def block() -> tuple[DAG, Any]:
    """Return a DAG with a block of claimed work and tasks after its settlement, and the claim."""
    with DAG("dag", schedule=None) as dag:
        with claimed(TOPIC) as claim:
            with pytest.raises(ValueError, match="after the block"):
                claim.settled.operator  # noqa: B018 - it raises

            @task
            def work() -> None: ...

            claim >> work()

        @task
        def alert(settlement: Any) -> None: ...

        @task
        def last() -> None: ...

        alert(claim.settled)
        claim >> last()
    return dag, claim


def test_what_comes_behind_the_block_comes_after_the_settlement() -> None:
    """``claim.settled``, and ``claim >>`` after the block, mean the settlement; inside it, the sensor."""
    dag, claim = block()
    assert dag.get_task("orders.work").upstream_task_ids >= {"orders.claim"}
    assert dag.get_task("alert").upstream_task_ids == dag.get_task("last").upstream_task_ids == {"orders.settled"}
    assert claim.settled.operator is dag.get_task("orders.settled")
    assert dag.get_task("orders.settled").upstream_task_ids == {"orders.settle", "orders.claim"}


def test_the_tasks_that_a_block_adds_have_tries_of_their_own() -> None:
    """A worker that dies in one of them says nothing about the work, so they are retried."""
    with DAG("dag", schedule=None, default_args={"retries": 0}) as dag, claimed(TOPIC) as claim:
        added = [claim.messages.operator, claim.batches(2).operator]
    added += [claim.sensor, claim.settle, claim.settled.operator]
    assert {each.task_id for each in added} == set(dag.task_ids)
    assert all(each.retries >= 2 for each in added)


def test_the_run_still_fails_by_its_settlement() -> None:
    """Airflow judges a run by its leaves without teardowns that may fail: ``settle`` is a leaf, and so is ``alert``."""
    dag, _ = block()
    settle, settled = dag.get_task("orders.settle"), dag.get_task("orders.settled")
    assert settle.is_teardown
    assert settle.on_failure_fail_dagrun
    assert all(each.is_teardown and not each.on_failure_fail_dagrun for each in settle.downstream_list)
    assert settled.is_teardown
    assert not dag.get_task("alert").is_teardown


def test_settled_hands_on_what_settle_has_told() -> None:
    """It fails if nothing was settled, so that the tasks after it do not run."""
    with DAG("dag", schedule=None):
        sensor = PawnQueueSensor(task_id="claim", topic=TOPIC)
        settled = PawnQueueSettleOperator(task_id="settle", claim=sensor.output).settled.operator
    assert isinstance(settled, SettledOperator)
    ti = FakeTask("settled")
    with pytest.raises(AirflowException, match="settle has not settled"):
        settled.execute(context_of(ti))
    ti.xcom_push("return_value", {"acked": 1}, task_id="settle")
    assert settled.execute(context_of(ti)) == {"acked": 1}

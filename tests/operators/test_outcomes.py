"""What becomes of messages depends on what became of the tasks that were given them."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TriggerRule
from airflow.sdk import DAG, task, task_group

from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.hooks.task_notes import ERROR_KEY, REPORT_KEY, SKIPPED_KEY
from airflow_provider_pawnqueue.operators import skips
from airflow_provider_pawnqueue.operators.assignments import tasks_beside
from airflow_provider_pawnqueue.operators.pawnqueue import (
    PawnQueueMessagesOperator,
    PawnQueueSettleOperator,
)
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor
from pawnqueue import SyncPawnQueue
from tests.operators.played import Chosen, Mapped, Play, claim_of, counts_of, ids_of, left, mapped, reasons
from tests.support.airflow import TOPIC, FakeTask, context_of


def test_all_went_well(queue: SyncPawnQueue) -> None:
    """All messages are acked."""
    claim = claim_of(queue)
    assert counts_of(Play().ended(claim, work="success", after="success")) == (3, 0, 0)
    assert left(queue) == (0, 0, 0)


@pytest.mark.parametrize(
    ("states", "told"),
    [
        ({"work": "failed", "after": "upstream_failed"}, r"work \(failed\), after \(upstream_failed\)"),
        ({"work": "success", "after": "failed"}, r"after \(failed\)"),
        ({"work": "success", "after": None}, r"after \(not run\)"),
    ],
    ids=repr,
)
def test_a_task_failed(queue: SyncPawnQueue, states: dict[str, Any], told: str) -> None:
    """All messages are given back, and then the settlement fails, so that the run fails."""
    claim = claim_of(queue)
    with pytest.raises(AirflowFailException, match=told):
        Play().ended(claim, **states)
    assert left(queue) == (3, 0, 0)


def test_skipped_is_done(queue: SyncPawnQueue) -> None:
    """If a task skips itself, it and the tasks skipped after it had nothing to do: the messages are acked."""
    claim, play = claim_of(queue), Play()
    play.ti.xcom_push(SKIPPED_KEY, value=True, task_id="work")
    assert play.ended(claim, work="skipped", after="skipped")["acked"] == 3


def test_skipped_by_a_branch_is_done(queue: SyncPawnQueue) -> None:
    """A task that a branch left out had nothing to do, whether the branch notes what it skipped or what it followed."""
    for told in ({"skipped": ["after"]}, {"followed": ["other"]}):
        claim, play = claim_of(queue), Play()
        play.ti.xcom_push("skipmixin_key", told, task_id="work")
        assert play.ended(claim, work="success", after="skipped")["acked"] == 3


def test_a_handler_of_failures_is_skipped(queue: SyncPawnQueue) -> None:
    """A task that only runs after a failure is skipped if nothing failed: the messages are acked."""
    claim, play = claim_of(queue), Play()
    play.dag.get_task("after").trigger_rule = TriggerRule.ONE_FAILED
    assert play.ended(claim, work="success", after="skipped")["acked"] == 3


@pytest.mark.parametrize("states", [{"work": "skipped", "after": "skipped"}, {"work": "success", "after": "skipped"}])
def test_skipped_by_hand_is_not_done(
    queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch, states: dict[str, str]
) -> None:
    """If somebody marks a run as failed, Airflow skips the tasks that have yet to run: the messages are given back."""
    monkeypatch.setattr(skips, "SKIP_NOTE_WAIT_SECONDS", 0.0)
    claim, play = claim_of(queue), Play()
    play.ti.xcom_push("skipmixin_key", {"followed": ["after"]}, task_id="work")
    with pytest.raises(AirflowFailException, match=r"3 given back.*after \(skipped\)"):
        play.ended(claim, **states)
    assert left(queue) == (3, 0, 0)


def test_mapped_work_that_was_skipped_by_hand(queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is acked for it, whether it was skipped before it was expanded or in one index."""
    monkeypatch.setattr(skips, "SKIP_NOTE_WAIT_SECONDS", 0.0)
    claim = claim_of(queue, 2)
    with pytest.raises(AirflowFailException, match=r"work \(skipped\)"):
        mapped(claim, claim["messages"], work="skipped").ended(claim)
    claim = claim_of(queue, 2)
    with pytest.raises(AirflowFailException, match=r"work\[1\] \(skipped\)"):
        mapped(claim, claim["messages"], Mapped(), work_0="success", work_1="skipped").ended(claim)


def test_a_task_is_slow_to_say_that_it_has_skipped_itself(queue: SyncPawnQueue) -> None:
    """The settlement waits for the note, which the task pushes after Airflow reports its state."""
    claim, play = claim_of(queue), Play()
    timer = threading.Timer(0.8, play.ti.xcom_push, (SKIPPED_KEY, True, "work"))
    timer.start()
    assert play.ended(claim, work="skipped", after="skipped")["acked"] == 3
    timer.join()


def test_buried_with_the_exception(queue: SyncPawnQueue) -> None:
    """The reason of the dead letter is the exception of its task."""
    claim, play = claim_of(queue, 2), Play(on_failure="bury")
    play.ti.xcom_push(ERROR_KEY, "ValueError: no address", task_id="work")
    with pytest.raises(AirflowFailException, match="2 buried"):
        play.ended(claim, work="failed", after="upstream_failed")
    assert reasons(queue) == dict.fromkeys(range(2), "work failed: ValueError: no address")


def test_killed_without_a_word(queue: SyncPawnQueue) -> None:
    """A task that was killed leaves no exception; the reason says so."""
    claim = claim_of(queue, 1)
    with pytest.raises(AirflowFailException):
        Play(on_failure="bury").ended(claim, work="failed", after="upstream_failed")
    assert "may have been killed" in reasons(queue)[0]


def test_a_reason_and_a_delay_of_the_users(queue: SyncPawnQueue) -> None:
    """They replace the defaults, and may be texts, as a template renders them."""
    claim = claim_of(queue, 1)
    with pytest.raises(AirflowFailException):
        Play(delay="60", reason="because").ended(claim, work="failed", after="upstream_failed")
    assert queue.stats(TOPIC).delayed == 1


def test_each_index_speaks_for_its_message(queue: SyncPawnQueue) -> None:
    """The messages of failed indexes are buried with their exceptions; the others are acked."""
    claim = claim_of(queue, 4)
    play = mapped(claim, claim["messages"], work_0="success", work_1="failed", work_2="success", work_3="failed")
    play.ti.xcom_push(ERROR_KEY, "ValueError: one", task_id="work", map_index=1)
    play.ti.xcom_push(ERROR_KEY, "ValueError: three", task_id="work", map_index=3)
    with pytest.raises(AirflowFailException, match=r"2 acked, 2 buried.*work\[1\] \(failed\), work\[3\] \(failed\)"):
        play.ended(claim)
    assert reasons(queue) == {1: "work[1] failed: ValueError: one", 3: "work[3] failed: ValueError: three"}
    assert left(queue) == (0, 0, 2)


def test_each_index_speaks_for_its_batch(queue: SyncPawnQueue) -> None:
    """An index that fails has the messages of its batch buried, and no others."""
    claim = claim_of(queue, 5)
    over = [claim["messages"][:2], claim["messages"][2:4], claim["messages"][4:]]
    with pytest.raises(AirflowFailException):
        mapped(claim, over, work_0="success", work_1="failed", work_2="success").ended(claim)
    assert sorted(reasons(queue)) == [2, 3]


def test_mapped_over_ids(queue: SyncPawnQueue) -> None:
    """An index that was given the id of a message decides about that message."""
    claim = claim_of(queue, 3)
    play = Chosen(on_failure="bury")
    mapped(claim, ids_of(claim), play, work_0="success", work_1="success", work_2="failed")
    with pytest.raises(AirflowFailException):
        play.ended(claim)
    assert sorted(reasons(queue)) == [2]


@pytest.mark.parametrize(
    "of",
    [
        lambda message: message["payload"],  # has an "id" that is not a message's
        lambda message: message["payload"]["id"],
        lambda message: message["payload"]["n"],
        lambda message: [message, message["payload"]],
        lambda message: [] if message else None,
    ],
)
def test_mapped_over_something_else(queue: SyncPawnQueue, of: Any) -> None:
    """Which message the failed index was given cannot be found out, so none is acked."""
    claim = claim_of(queue, 3)
    over = [of(message) for message in claim["messages"]]
    play = mapped(claim, over, Chosen(on_failure="bury"), work_0="success", work_1="failed", work_2="success")
    with pytest.raises(AirflowFailException):
        play.ended(claim)
    assert left(queue) == (0, 0, 3)


def test_mapped_over_nothing(queue: SyncPawnQueue) -> None:
    """The messages are acked if the list was empty, and given back if the task that makes the list failed."""
    claim = claim_of(queue, 2)
    assert mapped(claim, [], work="skipped").ended(claim)["acked"] == 2
    claim = claim_of(queue, 2)
    with pytest.raises(AirflowFailException):
        mapped(claim, [], Mapped(), work="upstream_failed", messages="failed").ended(claim)
    assert left(queue) == (2, 0, 0)


def test_settled_before_by_its_task(queue: SyncPawnQueue) -> None:
    """A message that its task acked before it failed stays acked, and affects no other message."""
    claim = claim_of(queue, 3)
    PawnQueueHook().ack(claim, [ids_of(claim)[1]])
    with pytest.raises(AirflowFailException):
        mapped(claim, claim["messages"], work_0="success", work_1="failed", work_2="success").ended(claim)
    assert left(queue) == (0, 0, 0)


def test_a_mapped_group(queue: SyncPawnQueue) -> None:
    """A task in a mapped group decides about the message that its group was given."""

    class Grouped(Play):
        def work(self, claim: Any) -> None:
            reading = PawnQueueMessagesOperator(task_id="messages", claim=claim)

            @task
            def step(message: Any) -> None: ...

            @task_group
            def each(message: Any) -> None:
                step(message)

            each.expand(message=reading.output)

    claim = claim_of(queue, 3)
    play = Grouped(on_failure="bury")
    play.ti.xcom_push("return_value", claim["messages"], task_id="messages")
    states = {"messages": "success", "each.step_0": "success", "each.step_1": "failed", "each.step_2": "success"}
    with pytest.raises(AirflowFailException):
        play.ended(claim, **states)
    assert sorted(reasons(queue)) == [1]


@pytest.mark.parametrize(
    ("name", "index", "single", "told"),
    [
        ("work_7", "success", "success", None),
        ("work_7", "success", "failed", "0 acked, 2 buried"),
        ("work_1", "success", "success", None),
        ("work_1", "success", "failed", "0 acked, 2 buried"),
        ("work_1", "failed", "success", "1 acked, 1 buried"),
    ],
)
def test_a_task_named_like_an_index(queue: SyncPawnQueue, name: str, index: str, single: str, told: str | None) -> None:
    """The state of a task ``work_1`` is not taken for that of index 1 of ``work``, though both have one key."""

    class Named(Mapped):
        def work(self, claim: Any) -> None:
            super().work(claim)

            @task(task_id=name)
            def other(claim: Any) -> None: ...

            other(claim)

    each = {"work_0": "success", "work_1": index}
    for states in ({**each, name: single}, {name: single, **each}):
        claim = claim_of(queue, 2)
        play = mapped(claim, claim["messages"], Named(on_failure="bury"))
        play.ti.alone = {"work": {**each}, name: {name: single}}
        if told is None:
            assert play.ended(claim, **states)["acked"] == 2
        else:
            with pytest.raises(AirflowFailException, match=told):
                play.ended(claim, **states)


def test_reported_by_its_task(queue: SyncPawnQueue) -> None:
    """A task may report which messages are done and which failed, whether it succeeds or fails."""
    claim = claim_of(queue, 3)
    first, second, _ = ids_of(claim)
    play = Play(on_failure="bury")
    play.ti.xcom_push(REPORT_KEY, {"failed": {second: "no stock"}, "done": []}, task_id="work")
    assert counts_of(play.ended(claim, work="success", after="success")) == (2, 1, 0)
    assert reasons(queue) == {1: "work: no stock"}

    claim = claim_of(queue, 3)
    first, second, _ = ids_of(claim)
    play = Play()
    play.ti.xcom_push(REPORT_KEY, {"failed": {second: "no stock"}, "done": [first]}, task_id="work")
    with pytest.raises(AirflowFailException, match="1 acked, 0 buried, 2 given back"):
        play.ended(claim, work="failed", after="success")


@pytest.mark.parametrize(("after", "told"), [("failed", "3 buried"), ("upstream_failed", "1 buried, 2 given back")])
def test_what_one_task_reported_as_done_and_another_did_not_do(queue: SyncPawnQueue, after: str, told: str) -> None:
    """A report holds only for its own task: if another task failed or did not run, no message is acked."""
    claim, play = claim_of(queue), Play(on_failure="bury")
    play.ti.xcom_push(REPORT_KEY, {"failed": {}, "done": ids_of(claim)[:2]}, task_id="work")
    with pytest.raises(AirflowFailException, match=f"0 acked, {told}"):
        play.ended(claim, work="failed", after=after)


def test_what_both_tasks_reported_as_done(queue: SyncPawnQueue) -> None:
    """Only the message is acked that each of two failed tasks has reported as done."""
    claim, play = claim_of(queue), Play()
    first, second, third = ids_of(claim)
    play.ti.xcom_push(REPORT_KEY, {"done": [first, second]}, task_id="work")
    play.ti.xcom_push(REPORT_KEY, {"done": [second, third]}, task_id="after")
    with pytest.raises(AirflowFailException, match="1 acked, 0 buried, 2 given back"):
        play.ended(claim, work="failed", after="failed")


def test_an_index_reports_what_it_has_done_of_its_batch(queue: SyncPawnQueue) -> None:
    """Its own message is acked; what it reports about the batch of another failed index does not count."""
    claim = claim_of(queue, 4)
    ids, over = ids_of(claim), [claim["messages"][:2], claim["messages"][2:]]
    play = mapped(claim, over, work_0="failed", work_1="failed")
    play.ti.xcom_push(REPORT_KEY, {"done": [ids[0], ids[2], ids[3]]}, task_id="work", map_index=0)
    with pytest.raises(AirflowFailException, match="1 acked, 3 buried"):
        play.ended(claim)
    assert sorted(reasons(queue)) == [1, 2, 3]


def test_mapped_over_texts(queue: SyncPawnQueue) -> None:
    """Messages are texts in XCom, and each index decides about the message whose text it was given."""
    queue.publish(TOPIC, [{"n": number} for number in range(3)])
    claim = claim_of(queue, 0)
    over = [json.dumps(message) for message in claim["messages"]]
    with pytest.raises(AirflowFailException):
        mapped(claim, over, work_0="success", work_1="failed", work_2="success").ended(claim)
    assert sorted(reasons(queue)) == [1]


def test_reported_as_a_text(queue: SyncPawnQueue) -> None:
    """The hook reports in this way, because Airflow would interpret some ids as keys of a dict."""
    claim = claim_of(queue, 2)
    play = Play(on_failure="bury")
    told = json.dumps({"failed": {ids_of(claim)[1]: "no stock"}, "done": []})
    play.ti.xcom_push(REPORT_KEY, told, task_id="work")
    assert counts_of(play.ended(claim, work="success", after="success")) == (1, 1, 0)


def test_a_report_of_something_else(queue: SyncPawnQueue) -> None:
    """An id that does not belong to the claim may mean any of its messages: none is done."""
    claim = claim_of(queue, 2)
    play = Play(on_failure="bury")
    play.ti.xcom_push(REPORT_KEY, {"failed": {"order-1": "no stock"}}, task_id="work")
    play.ended(claim, work="success", after="success")
    assert "order-1" in reasons(queue)[0]
    assert left(queue) == (0, 0, 2)


def test_mapped_over_claims(queue: SyncPawnQueue) -> None:
    """An index that was given a claim decides about that claim."""
    queue.create_topic("other")
    claims = [claim_of(queue, 2), claim_of(queue, 2, topic="other")]
    play = mapped(claims[0], claims, Mapped(), work_0="success", work_1="failed")
    with pytest.raises(AirflowFailException):
        play.ended(claims)
    assert (left(queue), left(queue, "other")) == ((0, 0, 0), (2, 0, 0))


def test_work_beside_the_settlement(queue: SyncPawnQueue) -> None:
    """If a task works on the claim but does not come before the settlement, nothing is settled."""
    with DAG("dag", schedule=None):
        sensor = PawnQueueSensor(task_id="claim", topic=TOPIC)

        @task
        def work(claim: Any) -> None: ...

        work(sensor.output)
        settle = PawnQueueSettleOperator(task_id="settle", claim=sensor.output)
    settle.claim = claim_of(queue, 2)
    ti = FakeTask("settle", states={"claim": "success", "work": "running"})
    with pytest.raises(AirflowFailException, match="work would work on the claim while it is settled"):
        settle.execute(context_of(ti))
    assert left(queue) == (0, 2, 0)


def test_a_settlement_in_a_mapped_group(queue: SyncPawnQueue) -> None:
    """It only looks at its own index: the other indexes have their own claims, and may still run."""
    with DAG("dag", schedule=None) as dag:

        @task_group
        def each(topic: str) -> None:
            with claimed(topic) as claim:

                @task
                def work(claim: Any) -> None: ...

                work(claim)

        each.expand(topic=[TOPIC, "other", "more"])
    settle: Any = dag.get_task("each.claimed.settle")
    states: dict[str, str | None] = {f"each.claimed.claim_{index}": "success" for index in range(3)}
    states |= {"each.claimed.work_0": "failed", "each.claimed.work_1": "success", "each.claimed.work_2": "running"}
    settle.claim = claim_of(queue, 2)
    assert settle.execute(context_of(FakeTask(settle.task_id, states=states, map_index=1)))["acked"] == 2
    settle.claim = claim_of(queue, 2)
    with pytest.raises(AirflowFailException, match=r"2 given back.*work\[0\] \(failed\)\."):
        settle.execute(context_of(FakeTask(settle.task_id, states=states, map_index=0)))


def test_mapped_over_several_lists(queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one list is empty, the messages are acked; if skipped work had items, they are given back."""
    monkeypatch.setattr(skips, "SKIP_NOTE_WAIT_SECONDS", 0.0)

    class Several(Play):
        def work(self, claim: Any) -> None:
            reading = PawnQueueMessagesOperator(task_id="messages", claim=claim)

            @task
            def work(message: Any, part: int = 0) -> None: ...

            work.expand(message=reading.output, part=[1, 2])
            work.override(task_id="more").expand_kwargs(reading.output)

    for over, acked in (([], True), ([{"message": 1}], False)):
        claim, play = claim_of(queue, 1), Several()
        if acked:
            assert mapped(claim, over, play, work="skipped", more="skipped").ended(claim)["acked"] == 1
        else:
            with pytest.raises(AirflowFailException, match=r"more \(skipped\), work \(skipped\)"):
                mapped(claim, over, play, work="skipped", more="skipped").ended(claim)


class Pair:
    """Two sensors, and one settlement; work on each, or on both."""

    def __init__(self, queue: SyncPawnQueue, *, together: bool) -> None:
        queue.create_topic("other")
        with DAG("dag", schedule=None):
            sensors = [PawnQueueSensor(task_id=name, topic=name) for name in (TOPIC, "other")]
            self.settle = PawnQueueSettleOperator(task_id="settle", claim=[sensor.output for sensor in sensors])

            @task
            def work(claims: Any) -> None: ...

            if together:
                work([sensor.output for sensor in sensors]) >> self.settle
            else:
                for sensor in sensors:
                    work.override(task_id=f"work_on_{sensor.task_id}")(sensor.output) >> self.settle

    def ended(self, claims: Any, **states: str | None) -> dict[str, int]:
        """Settle after the tasks have ended in these states."""
        self.settle.claim = claims
        return self.settle.execute(context_of(FakeTask("settle", states=states)))


def test_one_of_two_claims_is_skipped(queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow skips the work on both claims, so the messages of the other claim are given back."""
    monkeypatch.setattr(skips, "SKIP_NOTE_WAIT_SECONDS", 0.0)
    claim = claim_of(queue, 2, task_id=TOPIC)
    states = {TOPIC: "success", "other": "skipped", "work": "skipped"}
    with pytest.raises(AirflowFailException, match=r"2 given back.*work \(skipped\)"):
        Pair(queue, together=True).ended([claim, None], **states)
    assert left(queue) == (2, 0, 0)


def test_one_of_two_claims_is_skipped_with_its_own_work(queue: SyncPawnQueue) -> None:
    """The work on the other claim ran, so its messages are acked."""
    claim = claim_of(queue, 2, task_id=TOPIC)
    states = {TOPIC: "success", "other": "skipped", "work_on_orders": "success", "work_on_other": "skipped"}
    assert Pair(queue, together=False).ended([claim, None], **states)["acked"] == 2


def test_the_work_on_one_of_two_claims_has_failed(queue: SyncPawnQueue) -> None:
    """Only the messages of the claim before the failed task are given back."""
    pair = Pair(queue, together=False)
    claims = [claim_of(queue, 2, task_id=TOPIC), claim_of(queue, 3, topic="other", task_id="other")]
    states = {TOPIC: "success", "other": "success", "work_on_orders": "success", "work_on_other": "failed"}
    with pytest.raises(AirflowFailException, match="2 acked, 0 buried, 3 given back"):
        pair.ended(claims, **states)
    assert (left(queue), left(queue, "other")) == ((0, 0, 0), (3, 0, 0))


def test_one_of_mapped_claims_is_skipped(queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow skips all work that is mapped over the claims, so the messages of the others are given back."""
    monkeypatch.setattr(skips, "SKIP_NOTE_WAIT_SECONDS", 0.0)
    with DAG("dag", schedule=None):
        sensor = PawnQueueSensor.partial(task_id="claim", soft_fail=True).expand(topic=[TOPIC, "other"])

        @task
        def work(claim: Any) -> None: ...

        settle = PawnQueueSettleOperator(task_id="settle", claim=sensor.output)
        work.expand(claim=sensor.output) >> settle
    settle.claim = [claim_of(queue, 2)]
    ti = FakeTask("settle", states={"claim_0": "success", "claim_1": "skipped", "work": "skipped"})
    ti.xcom_push(SKIPPED_KEY, value=True, task_id="claim", map_index=1)
    with pytest.raises(AirflowFailException, match=r"2 given back.*work \(skipped\)"):
        settle.execute(context_of(ti))


def test_what_clears_up_has_failed(queue: SyncPawnQueue) -> None:
    """A teardown whose failure does not fail the run does not keep messages from being acked."""
    with DAG("dag", schedule=None) as dag, claimed(TOPIC, group_id="g") as claim:

        @task
        def up() -> None: ...

        @task
        def work(claim: Any) -> None: ...

        @task
        def down() -> None: ...

        begun: Any = up()
        ended: Any = down()
        begun >> work(claim) >> ended.as_teardown(setups=begun)
    settle: Any = dag.get_task("g.settle")
    states: dict[str, str | None] = {"g.claim": "success", "g.up": "success", "g.work": "success", "g.down": "failed"}
    settle.claim = claim_of(queue, 2)
    assert settle.execute(context_of(FakeTask("g.settle", states=states)))["acked"] == 2


class TestTasksBeside:
    """Tasks that would work on a claim while it is settled are found before anything is settled."""

    @staticmethod
    def dag(*, after: bool) -> PawnQueueSettleOperator:
        """Return a settlement, where a second task is given the claim, after the settlement or beside it."""
        with DAG("d", schedule=None):
            sensor = PawnQueueSensor(task_id="claim", topic="orders")
            settle = PawnQueueSettleOperator(task_id="settle", claim=sensor.output)

            @task
            def work(claim: object) -> None:
                """Work."""

            @task
            def outside(claim: object) -> None:
                """Work too."""

            work(sensor.output) >> settle
            other = outside(sensor.output)
            if after:
                settle >> other
        return settle

    def test_who_is_given_the_claim_and_not_waited_for(self) -> None:
        """It is found: its messages would be acked while it works."""
        settle = self.dag(after=False)
        assert tasks_beside(settle, ["claim"]) == ["outside"]

    def test_who_comes_after_the_settlement_knows_that(self) -> None:
        """It is not found: it may report what became of the messages."""
        assert tasks_beside(self.dag(after=True), ["claim"]) == []

    def test_a_mapped_one_is_found_too(self) -> None:
        """It is found by what it is mapped over, and by what all its indexes are given."""
        with DAG("d", schedule=None):
            sensor = PawnQueueSensor(task_id="claim", topic="orders")
            settle = PawnQueueSettleOperator(task_id="settle", claim=sensor.output)

            @task
            def work(claim: object) -> None:
                """Work."""

            @task
            def outside(number: int, claim: object) -> None:
                """Work too."""

            work(sensor.output) >> settle
            outside.partial(claim=sensor.output).expand(number=[1, 2])
        assert tasks_beside(settle, ["claim"]) == ["outside"]

    @pytest.mark.parametrize("of", [lambda claim: claim, lambda claim: claim.messages, lambda claim: claim.batches(2)])
    @pytest.mark.parametrize("way", ["given", "expand", "expand_kwargs"])
    def test_one_behind_the_block_is_found(self, of: Any, way: str) -> None:
        """It is found if it is given the claim, its messages or batches of them, in any way."""

        @task
        def work(x: object) -> None:
            """Work."""

        with DAG("d", schedule=None) as dag:
            with claimed(TOPIC) as claim:
                given = of(claim)
                work.expand(x=given)
            outside = work.override(task_id="outside")
            ways: dict[str, Any] = {"given": outside, "expand": outside.expand}
            if way == "expand_kwargs":
                outside.expand_kwargs(given)
            else:
                ways[way](x=given)
        settle: Any = dag.get_task("orders.settle")
        assert tasks_beside(settle, ["orders.claim"]) == ["outside"]

    def test_one_that_is_mapped_over_something_made_of_the_claim(self, queue: SyncPawnQueue) -> None:
        """It is not found: it is given what a task made of the claim, and no message."""

        @task
        def work(x: object) -> object:
            """Work."""

        with DAG("d", schedule=None) as dag:
            with claimed(TOPIC) as claim:
                made = work(claim)
            work.override(task_id="outside").expand(x=made)
        settle: Any = dag.get_task("orders.settle")
        assert tasks_beside(settle, ["orders.claim"]) == []

"""What becomes of messages, by what became of the tasks that were given them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk import DAG, TriggerRule, task, task_group

from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.engine import InvalidArgumentError, MemoryStore, StoreError, SyncPawnQueue
from airflow_provider_pawnqueue.hooks import patience
from airflow_provider_pawnqueue.hooks.keys import ERROR_KEY, REPORT_KEY, SKIPPED_KEY
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.operators import outcomes
from airflow_provider_pawnqueue.operators.pawnqueue import (
    PawnQueueAckOperator,
    PawnQueueMessagesOperator,
    PawnQueueNackOperator,
    PawnQueueSettleOperator,
)
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor
from tests.support.airflow import TOPIC, FakeTask, connected, context_of
from tools.kit.stores import HookedStore

if TYPE_CHECKING:
    from tools.kit.stores import Answer, CarryOut, Request

NOBODY = context_of(FakeTask("any"))


def claim_of(queue: SyncPawnQueue, count: int = 3, *, topic: str = TOPIC, task_id: str = "claim") -> dict[str, Any]:
    """Publish and claim so many, as the sensor does; with the messages."""
    queue.publish(topic, [{"n": number, "id": f"order-{number}"} for number in range(count)])
    sensor = PawnQueueSensor(task_id=task_id, topic=topic, deferrable=False, poke_interval=0.05, timeout=5)
    claim: dict[str, Any] = sensor.execute(context_of(FakeTask(task_id)))
    return claim


def ids_of(claim: dict[str, Any]) -> list[str]:
    """The ids of its messages."""
    return [message["id"] for message in claim["messages"]]


def left(queue: SyncPawnQueue, topic: str = TOPIC) -> tuple[int, int, int]:
    """How many there are to be had, in flight, and dead."""
    stats = queue.stats(topic)
    return stats.pending, stats.in_flight, stats.dead


def reasons(queue: SyncPawnQueue) -> dict[int, str]:
    """Why dead letters are dead, by the number in them."""
    return {
        letter.message.payload["n"]: letter.reason for letter in queue.dead_letters(TOPIC).letters if letter.message
    }


class Play:
    """A DAG of a sensor, work, and a settlement, and what became of its tasks."""

    def __init__(self, **more: Any) -> None:
        with DAG("dag", schedule=None) as self.dag:
            self.sensor = PawnQueueSensor(task_id="claim", topic=TOPIC)
            self.work(self.sensor.output)
            self.settle = PawnQueueSettleOperator(task_id="settle", claim=self.sensor.output, **more)
            for one in list(self.dag.tasks):
                if one.task_id not in ("claim", "settle") and not one.downstream_task_ids:
                    one >> self.settle
        self.ti = FakeTask("settle", states={"claim": "success", "settle": "running"})

    def work(self, claim: Any) -> None:
        """What is between the claim and its settlement."""

        @task
        def work(claim: Any) -> None: ...

        @task
        def after() -> None: ...

        work(claim) >> after()

    def ended(self, claim: Any, **states: str | None) -> dict[str, int]:
        """Let the tasks have ended so, and settle."""
        self.ti.states |= states
        self.settle.claim = claim
        return self.settle.execute(context_of(self.ti))


class Mapped(Play):
    """The same, with work that is mapped over something."""

    over: Any = None

    def work(self, claim: Any) -> None:
        """What is between the claim and its settlement."""
        reading = PawnQueueMessagesOperator(task_id="messages", claim=claim)

        @task
        def work(message: Any) -> None: ...

        work.expand(message=reading.output)


def test_all_went_well(queue: SyncPawnQueue) -> None:
    """Everything is acked, by a reference alone."""
    claim = claim_of(queue)
    assert Play().ended(claim, work="success", after="success") == {"acked": 3, "buried": 0, "released": 0}
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
    """Everything is given back, and the settlement fails after that, so that the run does."""
    claim = claim_of(queue)
    with pytest.raises(AirflowFailException, match=told):
        Play().ended(claim, **states)
    assert left(queue) == (3, 0, 0)


def test_skipped_is_done(queue: SyncPawnQueue) -> None:
    """A task that has skipped itself had nothing to do, and what comes after it neither."""
    claim, play = claim_of(queue), Play()
    play.ti.xcom_push(SKIPPED_KEY, value=True, task_id="work")
    assert play.ended(claim, work="skipped", after="skipped")["acked"] == 3


def test_skipped_by_a_branch_is_done(queue: SyncPawnQueue) -> None:
    """Whether the branch tells what it has left out, or what it has followed."""
    for told in ({"skipped": ["after"]}, {"followed": ["other"]}):
        claim, play = claim_of(queue), Play()
        play.ti.xcom_push("skipmixin_key", told, task_id="work")
        assert play.ended(claim, work="success", after="skipped")["acked"] == 3


def test_a_handler_of_failures_is_skipped(queue: SyncPawnQueue) -> None:
    """As nothing has failed."""
    claim, play = claim_of(queue), Play()
    play.dag.get_task("after").trigger_rule = TriggerRule.ONE_FAILED
    assert play.ended(claim, work="success", after="skipped")["acked"] == 3


@pytest.mark.parametrize("states", [{"work": "skipped", "after": "skipped"}, {"work": "success", "after": "skipped"}])
def test_skipped_by_hand_is_not_done(
    queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch, states: dict[str, str]
) -> None:
    """Airflow skips what has yet to run of a run that somebody marks as failed: nobody has worked on it."""
    monkeypatch.setattr(outcomes, "PATIENCE", 0.0)
    claim, play = claim_of(queue), Play()
    play.ti.xcom_push("skipmixin_key", {"followed": ["after"]}, task_id="work")
    with pytest.raises(AirflowFailException, match=r"3 given back.*after \(skipped\)"):
        play.ended(claim, **states)
    assert left(queue) == (3, 0, 0)


def test_mapped_work_that_was_skipped_by_hand(queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it was expanded, and one index of it."""
    monkeypatch.setattr(outcomes, "PATIENCE", 0.0)
    claim = claim_of(queue, 2)
    with pytest.raises(AirflowFailException, match=r"work \(skipped\)"):
        mapped(claim, claim["messages"], work="skipped").ended(claim)
    claim = claim_of(queue, 2)
    with pytest.raises(AirflowFailException, match=r"work\[1\] \(skipped\)"):
        mapped(claim, claim["messages"], Mapped(), work_0="success", work_1="skipped").ended(claim)


def test_a_task_is_slow_to_say_that_it_has_skipped_itself(queue: SyncPawnQueue) -> None:
    """It says so when its state is known already, after its callbacks: that is waited for."""
    claim, play = claim_of(queue), Play()
    timer = threading.Timer(0.8, play.ti.xcom_push, (SKIPPED_KEY, True, "work"))
    timer.start()
    assert play.ended(claim, work="skipped", after="skipped")["acked"] == 3
    timer.join()


def test_buried_with_the_exception(queue: SyncPawnQueue) -> None:
    """The dead letter tells why."""
    claim, play = claim_of(queue, 2), Play(on_failure="bury")
    play.ti.xcom_push(ERROR_KEY, "ValueError: no address", task_id="work")
    with pytest.raises(AirflowFailException, match="2 buried"):
        play.ended(claim, work="failed", after="upstream_failed")
    assert reasons(queue) == dict.fromkeys(range(2), "work failed: ValueError: no address")


def test_killed_without_a_word(queue: SyncPawnQueue) -> None:
    """A task that was killed leaves no exception, which is said."""
    claim = claim_of(queue, 1)
    with pytest.raises(AirflowFailException):
        Play(on_failure="bury").ended(claim, work="failed", after="upstream_failed")
    assert "killed perhaps" in reasons(queue)[0]


def test_a_reason_and_a_delay_of_the_users(queue: SyncPawnQueue) -> None:
    """They are taken as they are, also as a template leaves them."""
    claim = claim_of(queue, 1)
    with pytest.raises(AirflowFailException):
        Play(delay="60", reason="because").ended(claim, work="failed", after="upstream_failed")
    assert queue.stats(TOPIC).delayed == 1


def mapped(claim: dict[str, Any], over: Any, play: Play | None = None, **states: str) -> Play:
    """A mapped task that was given these, and what became of its indexes."""
    play = Mapped(on_failure="bury") if play is None else play
    play.ti.xcom_push("return_value", over, task_id="messages")
    play.ti.states |= {"messages": "success"} | states
    return play


def test_each_index_speaks_for_its_message(queue: SyncPawnQueue) -> None:
    """The ones that failed are buried with their own exceptions, the others acked."""
    claim = claim_of(queue, 4)
    play = mapped(claim, claim["messages"], work_0="success", work_1="failed", work_2="success", work_3="failed")
    play.ti.xcom_push(ERROR_KEY, "ValueError: one", task_id="work", map_index=1)
    play.ti.xcom_push(ERROR_KEY, "ValueError: three", task_id="work", map_index=3)
    with pytest.raises(AirflowFailException, match=r"2 acked, 2 buried.*work\[1\] \(failed\), work\[3\] \(failed\)"):
        play.ended(claim)
    assert reasons(queue) == {1: "work[1] failed: ValueError: one", 3: "work[3] failed: ValueError: three"}
    assert left(queue) == (0, 0, 2)


def test_each_index_speaks_for_its_batch(queue: SyncPawnQueue) -> None:
    """So many messages each."""
    claim = claim_of(queue, 5)
    over = [claim["messages"][:2], claim["messages"][2:4], claim["messages"][4:]]
    with pytest.raises(AirflowFailException):
        mapped(claim, over, work_0="success", work_1="failed", work_2="success").ended(claim)
    assert sorted(reasons(queue)) == [2, 3]


def test_mapped_over_ids(queue: SyncPawnQueue) -> None:
    """The ids of messages will do."""
    claim = claim_of(queue, 3)
    with pytest.raises(AirflowFailException):
        mapped(claim, ids_of(claim), work_0="success", work_1="success", work_2="failed").ended(claim)
    assert sorted(reasons(queue)) == [2]


@pytest.mark.parametrize(
    "of",
    [
        lambda message: message["payload"],  # has an "id", which is no message's
        lambda message: message["payload"]["id"],
        lambda message: message["payload"]["n"],
        lambda message: [message, message["payload"]],
        lambda message: [] if message else None,
    ],
)
def test_mapped_over_something_else(queue: SyncPawnQueue, of: Any) -> None:
    """Nobody can tell for which messages an index speaks: none of them is done."""
    claim = claim_of(queue, 3)
    over = [of(message) for message in claim["messages"]]
    with pytest.raises(AirflowFailException):
        mapped(claim, over, work_0="success", work_1="failed", work_2="success").ended(claim)
    assert left(queue) == (0, 0, 3)


def test_mapped_over_nothing(queue: SyncPawnQueue) -> None:
    """A task without an index was skipped; one whose input failed was not run, and none is done."""
    claim = claim_of(queue, 2)
    assert mapped(claim, [], work="skipped").ended(claim)["acked"] == 2
    claim = claim_of(queue, 2)
    with pytest.raises(AirflowFailException):
        mapped(claim, [], Mapped(), work="upstream_failed", messages="failed").ended(claim)
    assert left(queue) == (2, 0, 0)


def test_settled_before_by_its_task(queue: SyncPawnQueue) -> None:
    """What a mapped task has acked itself before it failed concerns no other message."""
    claim = claim_of(queue, 3)
    PawnQueueHook().ack(claim, [ids_of(claim)[1]])
    with pytest.raises(AirflowFailException):
        mapped(claim, claim["messages"], work_0="success", work_1="failed", work_2="success").ended(claim)
    assert left(queue) == (0, 0, 0)


def test_a_mapped_group(queue: SyncPawnQueue) -> None:
    """A task in a mapped group speaks for what its group was given."""

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


def test_a_task_named_like_an_index(queue: SyncPawnQueue) -> None:
    """A single task "work_7" is no index of a mapped "work"."""

    class Named(Mapped):
        def work(self, claim: Any) -> None:
            super().work(claim)

            @task(task_id="work_7")
            def other(claim: Any) -> None: ...

            other(claim)

    claim = claim_of(queue, 2)
    play = mapped(claim, claim["messages"], Named(), work_0="success", work_1="success", work_7="success")
    assert play.ended(claim)["acked"] == 2


def test_reported_by_its_task(queue: SyncPawnQueue) -> None:
    """A task that knows better says which are done and which are not, whether it succeeds or fails."""
    claim = claim_of(queue, 3)
    first, second, _ = ids_of(claim)
    play = Play(on_failure="bury")
    play.ti.xcom_push(REPORT_KEY, {"failed": {second: "no stock"}, "done": []}, task_id="work")
    assert play.ended(claim, work="success", after="success") == {"acked": 2, "buried": 1, "released": 0}
    assert reasons(queue) == {1: "work: no stock"}

    claim = claim_of(queue, 3)
    first, second, _ = ids_of(claim)
    play = Play()
    play.ti.xcom_push(REPORT_KEY, {"failed": {second: "no stock"}, "done": [first]}, task_id="work")
    with pytest.raises(AirflowFailException, match="1 acked, 0 buried, 2 given back"):
        play.ended(claim, work="failed", after="upstream_failed")


def test_a_report_of_something_else(queue: SyncPawnQueue) -> None:
    """What is no message of the claim may be any of them: none is done."""
    claim = claim_of(queue, 2)
    play = Play(on_failure="bury")
    play.ti.xcom_push(REPORT_KEY, {"failed": {"order-1": "no stock"}}, task_id="work")
    play.ended(claim, work="success", after="success")
    assert "order-1" in reasons(queue)[0]
    assert left(queue) == (0, 0, 2)


def test_how_a_task_reports(queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """``PawnQueueHook.report`` in its code, as often as it likes; what was said last of a message counts."""
    ti = FakeTask("work", map_index=2)
    monkeypatch.setattr("airflow.providers.common.compat.sdk.get_current_context", lambda: context_of(ti))
    PawnQueueHook.report(failed={"a": "too early", "b": ValueError("no")}, done=["c"])
    PawnQueueHook.report(done=["a"])
    PawnQueueHook.report(failed={"c": "after all"})
    assert ti.xcoms["work", REPORT_KEY, 2] == {"failed": {"b": "ValueError: no", "c": "after all"}, "done": ["a"]}
    for wrong in ({"failed": ["a"]}, {"done": "a"}, {"failed": {1: "x"}}):
        with pytest.raises(InvalidArgumentError, match="report takes"):
            PawnQueueHook.report(**wrong)  # type: ignore[arg-type]


def test_nobody_reports_outside_of_a_task() -> None:
    """It says that no task runs here."""
    with pytest.raises(InvalidArgumentError, match="no task runs here"):
        PawnQueueHook.report(done=["a"])


def test_several_claims(queue: SyncPawnQueue) -> None:
    """Each is settled; a failed message concerns its own claim."""
    queue.create_topic("other")
    claims = [claim_of(queue, 2), claim_of(queue, 2, topic="other")]
    over = [message for claim in claims for message in claim["messages"]]
    play = mapped(claims[0], over, Mapped(), work_0="success", work_1="success", work_2="failed", work_3="success")
    with pytest.raises(AirflowFailException, match="3 acked, 0 buried, 1 given back"):
        play.ended(claims)
    assert (left(queue), left(queue, "other")) == ((0, 0, 0), (1, 0, 0))


def test_mapped_over_claims(queue: SyncPawnQueue) -> None:
    """An index that was given a claim speaks for that one."""
    queue.create_topic("other")
    claims = [claim_of(queue, 2), claim_of(queue, 2, topic="other")]
    play = mapped(claims[0], claims, Mapped(), work_0="success", work_1="failed")
    with pytest.raises(AirflowFailException):
        play.ended(claims)
    assert (left(queue), left(queue, "other")) == ((0, 0, 0), (2, 0, 0))


def test_one_of_several_is_lost(queue: SyncPawnQueue) -> None:
    """The others are settled, and the task fails by its sentence."""
    queue.create_topic("other")
    claims = [claim_of(queue, 2), claim_of(queue, 2, topic="other")]
    queue.sweep(TOPIC, ask=lambda _: "ended")
    with pytest.raises(AirflowFailException, match=f"of topic '{TOPIC}' has ended unsettled"):
        Play().ended(claims, work="success", after="success")
    assert left(queue, "other") == (0, 0, 0)


@pytest.mark.parametrize("nothing", [None, [], "", "None", [None]], ids=repr)
def test_no_claim(queue: SyncPawnQueue, nothing: Any) -> None:
    """The sensor was skipped, so this is too."""
    play = Play()
    play.ti.states["claim"] = "skipped"
    with pytest.raises(AirflowSkipException):
        play.ended(nothing, work="skipped", after="skipped")
    with pytest.raises(AirflowSkipException):
        PawnQueueAckOperator(task_id="ack", claim=nothing).execute(NOBODY)


@pytest.mark.parametrize("name", ["claim", "claim_1"])
def test_a_claim_that_is_not_in_xcom(queue: SyncPawnQueue, name: str) -> None:
    """The sensor has claimed: that nothing can be settled is no success."""
    play = Play()
    play.ti.states = {name: "success", "settle": "running"}
    with pytest.raises(AirflowFailException, match="not in XCom"):
        play.ended(None, work="success", after="success")


def test_work_beside_the_settlement(queue: SyncPawnQueue) -> None:
    """Nobody has said that it comes before: it is under way, and nothing is acked."""
    with DAG("dag", schedule=None):
        sensor = PawnQueueSensor(task_id="claim", topic=TOPIC)

        @task
        def work(claim: Any) -> None: ...

        work(sensor.output)
        settle = PawnQueueSettleOperator(task_id="settle", claim=sensor.output)
    settle.claim = claim_of(queue, 2)
    ti = FakeTask("settle", states={"claim": "success", "work": "running"})
    with pytest.raises(AirflowFailException, match="work would work on the claim beside this"):
        settle.execute(context_of(ti))
    assert left(queue) == (0, 2, 0)


def test_a_settlement_in_a_mapped_group(queue: SyncPawnQueue) -> None:
    """It goes by its own index: the others have claims of their own, and may be under way."""
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
    """Of which one is empty; or over arguments, of which there are none."""
    monkeypatch.setattr(outcomes, "PATIENCE", 0.0)

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
        """Let the tasks have ended so, and settle."""
        self.settle.claim = claims
        return self.settle.execute(context_of(FakeTask("settle", states=states)))


def test_one_of_two_claims_is_skipped(queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is the work on both: nobody has worked on what the other one has."""
    monkeypatch.setattr(outcomes, "PATIENCE", 0.0)
    claim = claim_of(queue, 2, task_id=TOPIC)
    states = {TOPIC: "success", "other": "skipped", "work": "skipped"}
    with pytest.raises(AirflowFailException, match=r"2 given back.*work \(skipped\)"):
        Pair(queue, together=True).ended([claim, None], **states)
    assert left(queue) == (2, 0, 0)


def test_one_of_two_claims_is_skipped_with_its_own_work(queue: SyncPawnQueue) -> None:
    """The work on the other one is done."""
    claim = claim_of(queue, 2, task_id=TOPIC)
    states = {TOPIC: "success", "other": "skipped", "work_on_orders": "success", "work_on_other": "skipped"}
    assert Pair(queue, together=False).ended([claim, None], **states)["acked"] == 2


def test_the_work_on_one_of_two_claims_has_failed(queue: SyncPawnQueue) -> None:
    """It speaks for what was claimed before it alone."""
    pair = Pair(queue, together=False)
    claims = [claim_of(queue, 2, task_id=TOPIC), claim_of(queue, 3, topic="other", task_id="other")]
    states = {TOPIC: "success", "other": "success", "work_on_orders": "success", "work_on_other": "failed"}
    with pytest.raises(AirflowFailException, match="2 acked, 0 buried, 3 given back"):
        pair.ended(claims, **states)
    assert (left(queue), left(queue, "other")) == ((0, 0, 0), (3, 0, 0))


def test_one_of_mapped_claims_is_skipped(queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow skips all work that is mapped over them."""
    monkeypatch.setattr(outcomes, "PATIENCE", 0.0)
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
    """A teardown of the user's own, whose failure is no run's: the work is done."""
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


def test_only_what_failed_is_cleared(queue: SyncPawnQueue) -> None:
    """The work, and this: not the claim, which has ended. What went well now was nothing, or others' messages."""
    claim, play = claim_of(queue, 2), Play()
    with pytest.raises(AirflowFailException, match="2 given back"):
        play.ended(claim, work="failed", after="upstream_failed")
    play.ti.states |= {"work": "success", "after": "success"}
    with pytest.raises(AirflowFailException, match="Clear the task that claims as well"):
        play.settle.execute(context_of(play.ti, clear_number=1))
    assert left(queue) == (2, 0, 0)


def test_a_settlement_is_cleared_alone(queue: SyncPawnQueue) -> None:
    """All was acked: it says so again."""
    claim, play = claim_of(queue, 2), Play()
    play.ended(claim, work="success", after="success")
    assert play.settle.execute(context_of(play.ti, clear_number=1))["acked"] >= 0


@pytest.mark.parametrize(
    ("claim", "sentence"),
    [
        ("garbage", "claim='garbage' is no claim: pass what the sensor returned"),
        (17, "is no claim"),
        ({"topic": TOPIC}, "no claim reference"),
        (
            {"topic": TOPIC, "claim_id": "x", "generation": 0, "session": "s", "queue": "elsewhere/"},
            "pawnqueue_conn_id",
        ),
        ({"topic": TOPIC, "claim_id": "x", "generation": 0, "session": "s"}, "no record any more"),
        ({"topic": "nowhere", "claim_id": "x", "generation": 0, "session": "s"}, "nowhere"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("operator", [PawnQueueAckOperator, PawnQueueNackOperator, PawnQueueMessagesOperator])
def test_bad_claims(queue: SyncPawnQueue, operator: Any, claim: Any, sentence: str) -> None:
    """Fail the task for good, with what to do."""
    with pytest.raises(AirflowFailException, match=sentence):
        operator(task_id="one", claim=claim).execute(NOBODY)


def test_an_expired_claim(queue: SyncPawnQueue) -> None:
    """Others have its messages: nothing is settled, and that is no success."""
    claim = claim_of(queue, 2)
    queue.sweep(TOPIC, ask=lambda _: "ended")
    for operator in (PawnQueueAckOperator, PawnQueueNackOperator):
        with pytest.raises(AirflowFailException, match="has ended unsettled"):
            operator(task_id="one", claim=claim).execute(NOBODY)
    with pytest.raises(AirflowFailException, match="has ended unsettled"):
        Play().ended(claim, work="success", after="success")
    queue.sweep(TOPIC)
    assert left(queue)[2] == 0


def test_settled_twice(queue: SyncPawnQueue) -> None:
    """The second time changes nothing, and is no error: a try of this task may have died after it had settled."""
    claim = claim_of(queue, 2)
    assert Play().ended(claim, work="success", after="success")["acked"] == 2
    assert Play().ended(claim, work="success", after="success")["acked"] == 0
    assert PawnQueueAckOperator(task_id="ack", claim=claim).execute(NOBODY)["acked"] == 0


def test_a_wrong_argument(queue: SyncPawnQueue) -> None:
    """Is told before anything is settled."""
    claim = claim_of(queue, 1)
    rendered = Play()
    rendered.settle.on_failure = "explode"
    for play, sentence in ((rendered, "on_failure='explode'"), (Play(delay="soon"), "delay='soon'")):
        with pytest.raises(AirflowFailException, match=sentence):
            play.ended(claim, work="success", after="success")
    assert left(queue) == (0, 1, 0)


def test_ack(queue: SyncPawnQueue) -> None:
    """All, or those that are named, by list or by a template's text; one that is not there is told."""
    claim = claim_of(queue, 4)
    first, second, third, _ = ids_of(claim)
    for ids, count in ((first, 1), ([second], 1), (f"['{third}']", 1), ([], 0)):
        assert PawnQueueAckOperator(task_id="ack", claim=claim, ids=ids).execute(NOBODY)["acked"] == count
    with pytest.raises(AirflowFailException, match="nobody-knows-it"):
        PawnQueueAckOperator(task_id="ack", claim=claim, ids=["nobody-knows-it"]).execute(NOBODY)
    assert PawnQueueAckOperator(task_id="ack", claim=str(claim)).execute(NOBODY)["acked"] == 1
    assert left(queue) == (0, 0, 0)


@pytest.mark.parametrize("requeue", [True, "True", "true"])
def test_nack_gives_back(queue: SyncPawnQueue, requeue: Any) -> None:
    """With a delay, if that is wanted."""
    claim = claim_of(queue, 2)
    first, second = ids_of(claim)
    nack = PawnQueueNackOperator(task_id="nack", claim=claim, ids=[first], requeue=requeue)
    assert nack.execute(NOBODY) == {"acked": 0, "buried": 0, "released": 1}
    nack = PawnQueueNackOperator(task_id="nack", claim=claim, ids=[second], requeue=requeue, delay="90")
    nack.execute(NOBODY)
    stats = queue.stats(TOPIC)
    assert (stats.pending, stats.delayed) == (1, 1)


@pytest.mark.parametrize("requeue", [False, "False"])
def test_nack_buries(queue: SyncPawnQueue, requeue: Any) -> None:
    """With its reason."""
    claim = claim_of(queue, 1)
    nack = PawnQueueNackOperator(task_id="nack", claim=claim, requeue=requeue, reason="no such order")
    assert nack.execute(NOBODY)["buried"] == 1
    assert reasons(queue) == {0: "no such order"}


def test_messages(queue: SyncPawnQueue) -> None:
    """A dict each, or in lists of so many; only those that are not settled."""
    claim = claim_of(queue, 5)
    found = PawnQueueMessagesOperator(task_id="messages", claim=claim).execute(NOBODY)
    assert found == claim["messages"]
    batches = PawnQueueMessagesOperator(task_id="messages", claim=claim, batch="2").execute(NOBODY)
    assert [len(batch) for batch in batches] == [2, 2, 1]
    PawnQueueAckOperator(task_id="ack", claim=claim, ids=ids_of(claim)[:3]).execute(NOBODY)
    assert len(PawnQueueMessagesOperator(task_id="messages", claim=claim).execute(NOBODY)) == 2
    with pytest.raises(AirflowFailException, match="batch=0"):
        PawnQueueMessagesOperator(task_id="messages", claim=claim, batch=0).execute(NOBODY)


class Silent(HookedStore):
    """A store that does not answer writes of claim records."""

    is_silent = False

    async def answer(self, request: Request, carry_out: CarryOut) -> Answer:
        """See the port."""
        if self.is_silent and "/claims/" in request.key:
            raise StoreError("nobody there", transient=True)
        return await super().answer(request, carry_out)


def test_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another try may go better, so the task fails such that there is one, once it has waited for long enough."""
    monkeypatch.setattr(patience, "OF_A_TASK", 0.0)
    store = Silent(MemoryStore())
    connecting = connected(monkeypatch, store=store, retry={"budget_seconds": 0.1})
    claim = claim_of(next(connecting), 1)
    store.is_silent = True
    with pytest.raises(AirflowException) as raised:
        Play().ended(claim, work="success", after="success")
    assert type(raised.value) is AirflowException
    store.is_silent = False
    assert Play().ended(claim, work="success", after="success")["acked"] == 1
    assert next(connecting, None) is None


def test_its_templates() -> None:
    """What may be said by a template."""
    assert PawnQueueSettleOperator.template_fields == ("claim", "on_failure", "delay", "reason", "pawnqueue_conn_id")
    assert PawnQueueAckOperator.template_fields == ("claim", "ids", "pawnqueue_conn_id")
    assert PawnQueueNackOperator.template_fields == ("claim", "ids", "requeue", "delay", "reason", "pawnqueue_conn_id")
    assert PawnQueueMessagesOperator.template_fields == ("claim", "batch", "pawnqueue_conn_id")


class TestForgotten:
    """Tasks that would work on a claim beside its settlement are refused, as what they do would be acked before."""

    @staticmethod
    def dag(*, after: bool) -> PawnQueueSettleOperator:
        """A DAG in which one task is given the claim, and another one too, which nobody waits for."""
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
        """Its messages would be acked while it works."""
        settle = self.dag(after=False)
        assert outcomes.forgotten(settle, ["claim"]) == ["outside"]

    def test_who_comes_after_the_settlement_knows_that(self) -> None:
        """It reports, perhaps."""
        assert outcomes.forgotten(self.dag(after=True), ["claim"]) == []

    def test_a_mapped_one_is_found_too(self) -> None:
        """By what it is mapped over, or given to all of its indexes."""
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
        assert outcomes.forgotten(settle, ["claim"]) == ["outside"]


def test_what_to_do_with_failed_messages_is_checked_when_the_dag_is_parsed() -> None:
    """A typo is no reason to do the work twice; a template is checked when it is rendered."""
    with pytest.raises(ValueError, match="'requeue' or 'bury'"):
        PawnQueueSettleOperator(task_id="settle", claim={}, on_failure="retry")
    PawnQueueSettleOperator(task_id="settle", claim={}, on_failure="{{ params.how }}")

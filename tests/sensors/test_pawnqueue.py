"""The sensor: what it defers with, what it returns, and how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk import DAG

from airflow_provider_pawnqueue.hooks import references
from airflow_provider_pawnqueue.hooks.identity import Owner
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor
from airflow_provider_pawnqueue.triggers.pawnqueue import PawnQueueClaimTrigger
from pawnqueue import MemoryStore, StoreError, SyncPawnQueue
from tests.support.airflow import TOPIC, FakeTask, connected, context_of
from tests.support.airflow_names import AirflowRescheduleException
from tests.triggers.test_pawnqueue import event_of
from tools.kit.airflow.settings import ROOT
from tools.kit.stores import HookedStore

if TYPE_CHECKING:
    from tools.kit.stores import Answer, CarryOut, Request


def sensor(topic: Any = TOPIC, **more: Any) -> PawnQueueSensor:
    """Return a sensor that waits in the triggerer."""
    return PawnQueueSensor(**{"task_id": "claim", "topic": topic, "deferrable": True, **more})


def polling(topic: Any = TOPIC, **more: Any) -> PawnQueueSensor:
    """Return a sensor that polls by itself, and gives up at once."""
    return sensor(topic, **{"deferrable": False, "poke_interval": 0.05, "timeout": 0.3, **more})


def deferred(one: PawnQueueSensor, context: Any = None) -> TaskDeferred:
    """Execute a sensor, which defers it."""
    with pytest.raises(TaskDeferred) as raised:
        one.execute(context_of(FakeTask("claim")) if context is None else context)
    return raised.value


def trigger_of(told: TaskDeferred, topics: list[str], **more: Any) -> PawnQueueClaimTrigger:
    """Return the same task's trigger for other topics."""
    _, kwargs = told.trigger.serialize()
    return PawnQueueClaimTrigger(**(kwargs | {"topics": topics, "min_messages": 1} | more))


def plain(claim: dict[str, Any]) -> dict[str, Any]:
    """Return what the engine accepts as a reference."""
    return {name: claim[name] for name in ("topic", "claim_id", "generation", "session")}


def test_what_it_defers_with(queue: SyncPawnQueue) -> None:
    """The owner is the task, its run, its index, and how often that was cleared; the consumer has the task's name."""
    context = context_of(FakeTask("claim", map_index=3), clear_number=2)
    told = deferred(sensor(max_messages="7", min_messages=2, max_wait=60, ttl="90", timeout=1000), context)
    assert isinstance(told.trigger, PawnQueueClaimTrigger)
    _, kwargs = told.trigger.serialize()
    assert kwargs == {
        "topics": [TOPIC],
        "owner": str(Owner("here", "dag", "run", "claim", 3, 2)),
        "consumer": "dag.claim",
        "pawnqueue_conn_id": "pawnqueue_default",
        "max_messages": 7,
        "min_messages": 2,
        "max_wait": 60.0,
        "ttl": 90.0,
    }
    assert (told.method_name, told.timeout) == ("execute_complete", timedelta(seconds=1000))


async def test_it_returns_a_reference(queue: SyncPawnQueue) -> None:
    """The reference has the messages, as they are small; the next task need not wait."""
    one, context = sensor(), context_of(FakeTask("claim"))
    told = deferred(one, context)
    queue.publish(TOPIC, [{"n": number} for number in range(3)])
    event = await event_of(told.trigger)
    claim = one.execute_complete(context, json.loads(json.dumps(event)))
    assert [message["payload"]["n"] for message in json.loads(claim["messages"])] == [0, 1, 2]
    assert (claim["topic"], claim["count"]) == (TOPIC, 3)
    assert json.loads(json.dumps(claim)) == claim
    assert len(queue.attach(plain(claim))) == 3


async def test_large_messages_stay_in_the_bucket(queue: SyncPawnQueue) -> None:
    """If they have more than 16 KiB together, XCom has only the reference."""
    one, context = sensor(), context_of(FakeTask("claim"))
    told = deferred(one, context)
    queue.publish(TOPIC, [{"text": "x" * 9000} for _ in range(2)])
    claim = one.execute_complete(context, await event_of(told.trigger))
    assert "messages" not in claim
    assert claim["bytes"] > references.MAX_INLINE_BYTES
    assert len(json.dumps(claim)) < 600


def test_messages_may_be_kept_out_of_xcom(queue: SyncPawnQueue) -> None:
    """With ``inline=False``, XCom has only the reference, also of small messages."""
    queue.publish(TOPIC, [{"n": 1}])
    claim = sensor(inline=False).execute(context_of(FakeTask("claim")))
    assert "messages" not in claim
    assert [message.payload for message in queue.attach(plain(claim))] == [{"n": 1}]


async def test_it_renews(queue: SyncPawnQueue) -> None:
    """The sensor renews the claim when it goes on, as hours may have passed since the event."""
    one, context = sensor(ttl=60), context_of(FakeTask("claim"))
    told = deferred(one, context)
    queue.publish(TOPIC, [{"n": 1}])
    event = await event_of(told.trigger)
    before = queue.attach(plain(event["claims"][0]))
    reference = queue.leave(before)
    claim = one.execute_complete(context, {"claims": [event["claims"][0] | reference.to_dict()]})
    assert queue.attach(plain(claim)).deadline > before.deadline


async def test_lost_meanwhile_it_waits_again(queue: SyncPawnQueue) -> None:
    """It waits for the rest of its timeout, and claims another batch."""
    ti = FakeTask("claim")
    one, context = sensor(timeout=600, max_messages=1), context_of(ti)
    told = deferred(one, context)
    queue.publish(TOPIC, [{"n": number} for number in range(2)])
    event = await event_of(told.trigger)
    queue.ack(queue.attach(plain(event["claims"][0])))
    ti.start_date = datetime.now(UTC) - timedelta(seconds=500)
    with pytest.raises(TaskDeferred) as raised:
        one.execute_complete(context, event)
    assert raised.value.timeout is not None
    assert 95 < raised.value.timeout.total_seconds() <= 100
    claim = one.execute_complete(context, await event_of(raised.value.trigger))
    assert [message["payload"]["n"] for message in json.loads(claim["messages"])] == [1]


async def test_a_list_of_topics_returns_a_list(queue: SyncPawnQueue) -> None:
    """The list has the claims of topics with messages."""
    queue.create_topic("other")
    one, context = sensor([TOPIC, "other"]), context_of(FakeTask("claim"))
    told = deferred(one, context)
    queue.publish(TOPIC, [{"n": 1}])
    claims = one.execute_complete(context, await event_of(told.trigger))
    assert [claim["topic"] for claim in claims] == [TOPIC]


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ({"error": "no such topic", "transient": False}, AirflowFailException),
        ({"error": "the store is away", "transient": True}, AirflowException),
    ],
)
def test_errors_of_the_trigger(queue: SyncPawnQueue, event: dict[str, Any], error: type[Exception]) -> None:
    """They fail the task with their sentence. It is tried again only if that may help."""
    with pytest.raises(error, match=event["error"]) as raised:
        sensor().execute_complete(context_of(FakeTask("claim")), event)
    assert type(raised.value) is error


def test_soft_fail(queue: SyncPawnQueue) -> None:
    """A sensor that may fail softly is skipped, deferred or not."""
    context = context_of(FakeTask("claim"))
    event = {"error": "no such topic", "transient": False}
    with pytest.raises(AirflowSkipException):
        sensor(soft_fail=True).resume_execution("execute_complete", {"event": event}, context)
    with pytest.raises(AirflowSkipException):
        polling(soft_fail=True).execute(context)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"max_messages": 0}, "max_messages=0"),
        ({"max_messages": "many"}, "max_messages='many'"),
        ({"min_messages": 5, "max_messages": 2}, "min_messages=5 is more than max_messages=2"),
        ({"topic": ""}, "topic=''"),
        ({"topic": []}, r"topic=\[\]"),
        ({"ttl": "soon"}, "ttl='soon'"),
        ({"ttl": 0}, "ttl=0"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("deferrable", [True, False])
def test_bad_arguments(queue: SyncPawnQueue, arguments: dict[str, Any], sentence: str, *, deferrable: bool) -> None:
    """Each fails the task at once and for good, with what to pass instead."""
    with pytest.raises(AirflowFailException, match=sentence):
        sensor(**{"deferrable": deferrable, **arguments}).execute(context_of(FakeTask("claim")))


def test_its_templates() -> None:
    """The arguments that may be templates are rendered."""
    assert {"topic", "consumer", "max_messages", "min_messages", "ttl", "pawnqueue_conn_id"} == set(
        PawnQueueSensor.template_fields
    )
    with DAG("dag", schedule=None):
        one = sensor("{{ params.topic }}", max_messages="{{ 2 * 3 }}")
    one.render_template_fields({"params": {"topic": "rendered"}})  # type: ignore[arg-type]
    assert (one.topic, one.max_messages) == ("rendered", "6")


# --- before it defers ---


def test_what_is_there_is_claimed_without_deferring(queue: SyncPawnQueue) -> None:
    """Airflow 3.3 often fails a task whose trigger fires at once, as it would for a full topic."""
    queue.publish(TOPIC, [{"n": number} for number in range(3)])
    claim = sensor(max_messages=2).execute(context_of(FakeTask("claim")))
    assert (claim["count"], queue.stats(TOPIC).in_flight) == (2, 2)
    assert len(queue.attach(plain(claim))) == 2


async def test_what_was_claimed_before_a_crash_is_claimed_again(queue: SyncPawnQueue) -> None:
    """The next try returns the same claim, and so does a trigger of this task: one claim for each run and task."""
    queue.publish(TOPIC, [{"n": number} for number in range(9)])
    context = context_of(FakeTask("claim"))
    queue.create_topic("empty")
    told = deferred(sensor("empty"), context)
    claims = [sensor(max_messages=2).execute(context) for _ in range(3)]
    [fired] = (await event_of(trigger_of(told, [TOPIC], max_messages=2)))["claims"]
    assert {(claim["claim_id"], claim["generation"]) for claim in [*claims, fired]} == {(claims[0]["claim_id"], 0)}
    assert queue.stats(TOPIC).in_flight == 2


def test_a_claim_that_is_worked_on_is_waited_for_in_the_triggerer(queue: SyncPawnQueue) -> None:
    """After a kill before the hand-over, a session may be alive. No second batch is claimed."""
    queue.publish(TOPIC, [{"n": number} for number in range(4)])
    context = context_of(FakeTask("claim"))
    claim = sensor(max_messages=2).execute(context)
    queue.attach(plain(claim), session_ttl=30)
    deferred(sensor(max_messages=2), context)
    assert queue.stats(TOPIC).in_flight == 2


def test_a_task_that_is_ended_before_it_defers_gives_back(queue: SyncPawnQueue) -> None:
    """Other consumers can claim its messages at once."""
    queue.publish(TOPIC, [{"n": 1}])
    one = sensor()
    one.execute(context_of(FakeTask("claim")))
    one.on_kill()
    assert queue.stats(TOPIC).pending == 1


def test_min_messages_are_waited_for_in_the_triggerer(queue: SyncPawnQueue) -> None:
    """The poll before the deferral claims no fewer messages than the trigger would."""
    queue.publish(TOPIC, [{"n": 1}])
    deferred(sensor(min_messages=2))
    assert queue.stats(TOPIC).pending == 1


def test_what_only_a_person_can_mend_fails_before_it_defers(queue: SyncPawnQueue) -> None:
    """The task fails with the trigger's sentence. A sensor that may fail softly is skipped."""
    context = context_of(FakeTask("claim"))
    for one in (sensor("nowhere"), sensor(pawnqueue_conn_id="no_such_connection")):
        with pytest.raises(AirflowFailException, match="no"):
            one.execute(context)
    with pytest.raises(AirflowSkipException, match="nowhere"):
        sensor("nowhere", soft_fail=True).execute(context)


@pytest.mark.parametrize("deferrable", [True, False])
def test_an_unforeseen_error_quotes_no_payload(
    queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch, *, deferrable: bool
) -> None:
    """It costs a try, and shows only the error's type and place."""

    async def failing(*_: Any, **__: Any) -> Any:
        raise ValueError("payload with a password")

    monkeypatch.setattr("airflow_provider_pawnqueue.sensors.pawnqueue.claim_for_task", failing)
    with pytest.raises(AirflowException, match=r"ValueError at test_pawnqueue\.py:\d+") as raised:
        sensor(deferrable=deferrable).execute(context_of(FakeTask("claim")))
    assert "password" not in "".join(traceback.format_exception(raised.value))
    assert not isinstance(raised.value, AirflowFailException)


# --- by itself ---


def test_it_polls(queue: SyncPawnQueue) -> None:
    """It polls until there are messages, and returns what a deferred sensor returns."""
    queue.publish(TOPIC, [{"n": 1}])
    claim = polling().execute(context_of(FakeTask("claim")))
    assert json.loads(claim["messages"])[0]["payload"] == {"n": 1}
    assert len(queue.attach(plain(claim))) == 1


def test_it_polls_in_vain(queue: SyncPawnQueue) -> None:
    """It times out and has claimed nothing."""
    with pytest.raises(AirflowSensorTimeout):
        polling(timeout=0.2).execute(context_of(FakeTask("claim")))


def test_every_poke_and_try_has_the_same_claim(queue: SyncPawnQueue) -> None:
    """This holds for a poke after a process died that had claimed, too."""
    queue.publish(TOPIC, [{"n": number} for number in range(9)])
    context = context_of(FakeTask("claim"))
    claims = [polling(max_messages=2).execute(context) for _ in range(3)]
    assert {claim["claim_id"] for claim in claims} == {claims[0]["claim_id"]}
    assert [claim["generation"] for claim in claims] == [0, 0, 0]
    assert queue.stats(TOPIC).in_flight == 2


def test_it_polls_for_min_messages(queue: SyncPawnQueue) -> None:
    """It claims nothing while there are fewer."""
    queue.publish(TOPIC, [{"n": 1}])
    with pytest.raises(AirflowSensorTimeout):
        polling(min_messages=2).execute(context_of(FakeTask("claim")))
    assert queue.stats(TOPIC).pending == 1
    queue.publish(TOPIC, [{"n": 2}])
    assert polling(min_messages=2).execute(context_of(FakeTask("claim")))["count"] == 2


def test_it_reschedules(queue: SyncPawnQueue) -> None:
    """Between pokes it has no worker and no claim."""
    ti = FakeTask("claim")
    ti.start_date = datetime.now(UTC)
    ti.get_first_reschedule_date = lambda *_: None  # type: ignore[attr-defined]
    with pytest.raises(AirflowRescheduleException):
        polling(mode="reschedule", timeout=60).execute(context_of(ti))
    assert queue.stats(TOPIC).in_flight == 0


def test_a_killed_poll_gives_back(queue: SyncPawnQueue) -> None:
    """Other consumers can claim its messages at once."""
    queue.publish(TOPIC, [{"n": 1}])
    one = polling()
    one.execute(context_of(FakeTask("claim")))
    one.on_kill()
    assert queue.stats(TOPIC).pending == 1


async def test_killed_when_it_goes_on(queue: SyncPawnQueue) -> None:
    """A sensor that is ended after its trigger has fired releases its claim."""
    one, context = sensor(), context_of(FakeTask("claim"))
    told = deferred(one, context)
    queue.publish(TOPIC, [{"n": 1}])
    one.execute_complete(context, await event_of(told.trigger))
    one.on_kill()
    assert queue.stats(TOPIC).pending == 1


def test_killed_without_a_connection(
    queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The failure is logged and the task ends. Its claim lasts for its ttl."""
    one = sensor()
    deferred(one)
    monkeypatch.delenv("AIRFLOW_CONN_PAWNQUEUE_DEFAULT")
    one.on_kill()
    assert "could not be released, and waits for its ttl: There is no connection" in capsys.readouterr().out


AT_EXIT = """
import atexit
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor
from tests.sensors.test_pawnqueue import TOPIC, FakeTask, context_of

one = PawnQueueSensor(task_id="claim", topic=TOPIC)
one._terms = one._terms_of(context_of(FakeTask("claim")))
atexit.register(one.on_kill)
"""


@pytest.mark.slow
def test_killed_while_python_ends() -> None:
    """When Python accepts no work for threads any more, the failure is one log line."""
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "AIRFLOW__PAWNQUEUE__INSTALLATION": "here",
        "AIRFLOW_CONN_PAWNQUEUE_DEFAULT": "pawnqueue://key:secret@127.0.0.1:9/bucket",
    }
    ended = subprocess.run(
        [sys.executable, "-c", AT_EXIT], env=environ, cwd=ROOT, text=True, capture_output=True, check=True
    )
    said = ended.stdout + ended.stderr
    assert "could not be released, and waits for its ttl" in said
    assert "Traceback" not in said


def test_an_unknown_topic_fails_at_once(queue: SyncPawnQueue) -> None:
    """It does not wait for its timeout, and has no other try."""
    for deferrable in (False, True):
        with pytest.raises(AirflowFailException) as failed:
            PawnQueueSensor(task_id="claim", topic="nowhere", deferrable=deferrable).execute(
                context_of(FakeTask("claim"))
            )
        for way in (
            "create_topic('nowhere')",
            "PawnQueueCreateTopicOperator",
            "airflow pawnqueue create-topic nowhere",
        ):
            assert way in str(failed.value)


class Away(HookedStore):
    """A store that does not answer for some requests."""

    left = 0

    async def answer(self, request: Request, carry_out: CarryOut) -> Answer:
        """See the port."""
        if self.left > 0:
            self.left -= 1
            raise StoreError("nobody there", transient=True)
        return await super().answer(request, carry_out)


def test_a_store_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next poke goes on."""
    store = Away(MemoryStore())
    connecting = connected(monkeypatch, store=store, retry={"budget_seconds": 0.1})
    next(connecting).publish(TOPIC, [{"n": 1}])
    PawnQueueHook().stats(TOPIC)
    store.left = 3
    assert polling(timeout=20).execute(context_of(FakeTask("claim")))["count"] == 1
    assert store.left == 0
    assert next(connecting, None) is None


def test_a_store_that_is_away_is_waited_for_in_the_triggerer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that defers does not fail because of it."""
    store = Away(MemoryStore())
    connecting = connected(monkeypatch, store=store, retry={"budget_seconds": 0.1})
    next(connecting).publish(TOPIC, [{"n": 1}])
    store.left = 1000
    deferred(sensor([TOPIC, "other"]))
    assert store.left > 0
    store.left = 0
    assert next(connecting, None) is None

"""The triggers: what they store, when they fire, and what they leave behind."""

from __future__ import annotations

import asyncio
import json
from inspect import signature
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.triggers import BaseEventTrigger
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger

from airflow_provider_pawnqueue.hooks.clients import CLIENTS
from airflow_provider_pawnqueue.hooks.identity import Owner
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.triggers.pawnqueue import PawnQueueClaimTrigger, PawnQueueEventTrigger
from airflow_provider_pawnqueue.triggers.trigger_runs import error_event
from pawnqueue import MemoryStore, StoreError, TopicNotFoundError
from tests.support.airflow import TOPIC, connected

if TYPE_CHECKING:
    from pawnqueue import SyncPawnQueue

OWNER = str(Owner("here", "dag", "run", "claim"))


def trigger(*topics: str, **more: Any) -> PawnQueueClaimTrigger:
    """Return a task's trigger."""
    return PawnQueueClaimTrigger(**{"topics": topics or (TOPIC,), "owner": OWNER, "consumer": "dag.claim", **more})


async def event_of(one: Any) -> Any:
    """Return a trigger's first event."""
    running = one.run()
    try:
        return (await asyncio.wait_for(anext(running), 20)).payload
    finally:
        await running.aclose()


def test_it_is_stored_as_json_and_made_again() -> None:
    """Its serialized form does not change. Unknown arguments of a newer release are ignored."""
    first = trigger("a", "b", max_messages=5, min_messages=2, max_wait=9.5, ttl=60.0, pawnqueue_conn_id="other")
    path, kwargs = first.serialize()
    assert path == "airflow_provider_pawnqueue.triggers.pawnqueue.PawnQueueClaimTrigger"
    stored = json.loads(json.dumps(kwargs))
    again = PawnQueueClaimTrigger(**stored, invented_later=1)
    assert again.serialize() == (path, stored) == first.serialize()


def test_the_event_trigger_is_stored_as_json_and_made_again() -> None:
    """Its serialized form does not change, as Airflow tells triggers apart by it."""
    first = PawnQueueEventTrigger(topic=TOPIC, ring_every=5, min_messages=3)
    path, kwargs = first.serialize()
    stored = json.loads(json.dumps(kwargs))
    again = PawnQueueEventTrigger(**stored, invented_later=1)
    assert again.serialize() == first.serialize() == (path, stored)
    assert PawnQueueEventTrigger.hash(path, stored) == PawnQueueEventTrigger.hash(*first.serialize())


def test_no_secret_is_stored(queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection's id is stored, and not its content."""
    monkeypatch.setenv("AIRFLOW_CONN_PAWNQUEUE_DEFAULT", "pawnqueue://key:sesame@host/bucket-pawnqueue-default")
    assert "sesame" not in repr(trigger().serialize()) + repr(PawnQueueEventTrigger(topic=TOPIC).serialize())


async def test_it_fires_with_a_reference(queue: SyncPawnQueue) -> None:
    """The event is small JSON without messages, and the reference gives the claim at once."""
    queue.publish(TOPIC, [{"n": number} for number in range(3)])
    [claim] = (await event_of(trigger()))["claims"]
    assert claim["count"] == 3
    assert claim["topic"] == TOPIC
    assert "messages" not in claim
    assert json.loads(json.dumps(claim)) == claim
    assert len(queue.attach({key: claim[key] for key in ("topic", "claim_id", "generation", "session")})) == 3


async def test_a_restart_fires_with_the_same_claim(queue: SyncPawnQueue) -> None:
    """A triggerer that restarts loses the event, but not the claim."""
    queue.publish(TOPIC, [{"n": number} for number in range(30)])
    [first] = (await event_of(trigger(max_messages=4)))["claims"]
    [again] = (await event_of(trigger(max_messages=4)))["claims"]
    assert {**again, "session": ""} == {**first, "session": ""}
    assert queue.stats(TOPIC).in_flight == 4


async def test_it_waits(queue: SyncPawnQueue) -> None:
    """It fires when messages are published."""
    waiting = asyncio.create_task(event_of(trigger()))
    await asyncio.sleep(1)
    assert not waiting.done()
    await asyncio.to_thread(queue.publish, TOPIC, [{"n": 1}])
    assert (await waiting)["claims"][0]["count"] == 1


async def test_it_fires_with_all_topics_that_have_something(queue: SyncPawnQueue) -> None:
    """It claims in all topics with messages, and in no others."""
    for topic in ("a", "b", "c"):
        queue.create_topic(topic)
    for topic in ("a", "c"):
        queue.publish(topic, [{"of": topic}])
    claims = (await event_of(trigger("a", "b", "c")))["claims"]
    assert [claim["topic"] for claim in claims] == ["a", "c"]
    message = queue.attach({key: claims[1][key] for key in ("topic", "claim_id", "generation", "session")})[0]
    assert (message.payload, message.deliveries) == ({"of": "c"}, 1)


async def test_one_topic_is_enough(queue: SyncPawnQueue) -> None:
    """It fires as soon as one topic has messages."""
    queue.create_topic("quiet")
    waiting = asyncio.create_task(event_of(trigger("quiet", TOPIC)))
    await asyncio.sleep(0.6)
    await asyncio.to_thread(queue.publish, TOPIC, [{"n": 1}])
    assert [claim["topic"] for claim in (await asyncio.wait_for(waiting, 4))["claims"]] == [TOPIC]


async def cancelled(running: asyncio.Task[Any]) -> None:
    """Cancel a trigger as Airflow does, and wait for its end."""
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_cancelled_while_it_waits(queue: SyncPawnQueue) -> None:
    """Nothing is claimed for it afterwards."""
    waiting = asyncio.create_task(event_of(trigger()))
    await asyncio.sleep(0.7)
    await cancelled(waiting)
    await asyncio.to_thread(queue.publish, TOPIC, [{"n": 1}])
    await asyncio.sleep(1)
    assert queue.stats(TOPIC).pending == 1


async def test_a_user_ends_the_task(queue: SyncPawnQueue) -> None:
    """Its messages are claimable at once. ``cleanup``, which each restart calls, releases nothing."""
    queue.publish(TOPIC, [{"n": number} for number in range(3)])
    one = trigger()
    await event_of(one)
    await one.cleanup()
    assert queue.stats(TOPIC).in_flight == 3
    await one.on_kill()
    assert queue.stats(TOPIC).pending == 3
    await one.on_kill()
    assert queue.stats(TOPIC).pending == 3


async def test_the_user_ended_another_task(queue: SyncPawnQueue) -> None:
    """The old trigger of a cleared task releases nothing of its successor's."""
    queue.publish(TOPIC, [{"n": 1}])
    await event_of(trigger(owner=str(Owner("here", "dag", "run", "claim", clear_number=1))))
    await trigger().on_kill()
    assert queue.stats(TOPIC).in_flight == 1


async def test_the_user_ended_it_and_deleted_the_connection(
    queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The failure is logged, and the claim lasts for its ttl."""
    monkeypatch.delenv("AIRFLOW_CONN_PAWNQUEUE_DEFAULT")
    await trigger().on_kill()
    assert "could not be released, and waits for its ttl: There is no connection" in capsys.readouterr().out


async def test_an_unknown_topic_is_an_event(queue: SyncPawnQueue) -> None:
    """The event has the error's sentence, and says that another try would fail too."""
    event = await event_of(trigger("nowhere"))
    assert "nowhere" in event["error"]
    assert event["transient"] is False


async def test_a_bad_connection_is_an_event(queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event names what is wrong, or the connection that is missing."""
    monkeypatch.setenv("AIRFLOW_CONN_BROKEN", json.dumps({"conn_type": "pawnqueue", "extra": {"bukket": "x"}}))
    event = await event_of(trigger(pawnqueue_conn_id="broken"))
    assert "'bukket'" in event["error"]
    assert event["transient"] is False
    event = await event_of(trigger(pawnqueue_conn_id="absent"))
    assert "absent" in event["error"]


def test_which_errors_are_transient() -> None:
    """Errors of a store that may answer later are transient."""
    assert error_event(StoreError("so", transient=True)) == {"error": "so", "transient": True}
    assert error_event(StoreError("so"))["transient"] is False
    assert error_event(TopicNotFoundError("so"))["transient"] is False


async def rung(ringing: Any) -> Any:
    """Wait for the next event."""
    return (await asyncio.wait_for(anext(ringing), 20)).payload


async def test_it_fires_again_once_a_claim_has_answered(queue: SyncPawnQueue) -> None:
    """The next event comes after a claim, for the messages that it left."""
    queue.publish(TOPIC, [{"n": number} for number in range(3)])
    ringing = PawnQueueEventTrigger(topic=TOPIC, ring_every=0.1).run()
    assert (await rung(ringing))["backlog"] == 3
    unanswered = asyncio.ensure_future(rung(ringing))
    await asyncio.sleep(1.2)
    assert not unanswered.done()
    queue.ack(queue.claim(TOPIC, "c", max_messages=1, claim_id="run-1"))
    assert (await unanswered)["backlog"] == 2
    queue.claim(TOPIC, "c", claim_id="run-2")
    silent = asyncio.ensure_future(rung(ringing))
    await asyncio.sleep(1.2)
    assert not silent.done()
    await cancelled(silent)
    await ringing.aclose()


async def test_a_topic_that_is_missing_is_logged_once(queue: SyncPawnQueue, capsys: pytest.CaptureFixture[str]) -> None:
    """It is neither an event, which would start a run, nor an exception, which would restart the trigger."""
    ringing = PawnQueueEventTrigger(topic="later", ring_every=0.1).run()
    first = asyncio.ensure_future(rung(ringing))
    await asyncio.sleep(1.5)
    assert not first.done()
    queue.create_topic("later")
    queue.publish("later", [{"n": 1}])
    assert (await first)["backlog"] == 1
    await ringing.aclose()
    said = capsys.readouterr().out
    assert said.count("event trigger of topic later failed and goes on trying: Topic 'later' does not exist") == 1
    assert "`airflow pawnqueue create-topic later`" in said
    assert said.count("event trigger of topic later works again") == 1
    assert "Traceback" not in said


def test_a_queue_of_triggers_is_handed_on() -> None:
    """Airflow's base class gets it, where it accepts one. It is not stored with the trigger."""
    if "queue" in signature(BaseEventTrigger).parameters:
        one = PawnQueueEventTrigger(topic=TOPIC, queue="gpu")
        assert one.queue == "gpu"
        assert "queue" not in one.serialize()[1]
    else:
        with pytest.raises(ValueError, match=r"queue='gpu' needs Airflow 3\.4"):
            PawnQueueEventTrigger(topic=TOPIC, queue="gpu")


async def test_common_messaging_finds_it(queue: SyncPawnQueue) -> None:
    """``MessageQueueTrigger(scheme="pawnqueue", ...)`` is the event trigger."""
    queue.publish(TOPIC, [{"n": 1}])
    one = MessageQueueTrigger(scheme="pawnqueue", topic=TOPIC, ring_every=9.0)
    assert one.serialize() == PawnQueueEventTrigger(topic=TOPIC, ring_every=9.0).serialize()
    assert (await event_of(one))["backlog"] == 1


async def test_a_closed_queue_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trigger that runs again after its process has closed its queues goes on."""
    store = MemoryStore()
    connecting = connected(monkeypatch, store=store)
    queue = next(connecting)
    queue.publish(TOPIC, [{"n": 1}])
    first = await event_of(trigger())
    await asyncio.to_thread(CLIENTS.close)
    CLIENTS.put(PawnQueueHook().address, store)
    assert (await event_of(trigger()))["claims"][0]["claim_id"] == first["claims"][0]["claim_id"]
    assert next(connecting, None) is None

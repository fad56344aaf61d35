"""A payload that Airflow cannot carry through XCom affects only its own message."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from airflow.sdk import DAG, task
from airflow.sdk.execution_time import comms
from airflow.sdk.execution_time.task_runner import _serialize_rendered_fields
from pydantic import JsonValue, TypeAdapter

from airflow_provider_pawnqueue.hooks import references
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.hooks.task_notes import REPORT_KEY
from airflow_provider_pawnqueue.operators.pawnqueue import (
    PawnQueueAckOperator,
    PawnQueueMessagesOperator,
    PawnQueueSettleOperator,
)
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor
from tests.operators.played import NOBODY, Play, counts_of, left
from tests.support.airflow import TOPIC, FakeTask, connected, context_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pawnqueue import SyncPawnQueue


_AT_THE_SUPERVISOR = TypeAdapter(comms.ToSupervisor)
_AT_THE_API = TypeAdapter(dict[str, JsonValue])


def rendered(task: Any) -> Any:
    """Return what Airflow stores of a task's rendered fields, before any of the task's own code runs."""
    sent = comms.SetRenderedFields(rendered_fields=_serialize_rendered_fields(task))
    received: Any = _AT_THE_SUPERVISOR.validate_python(_over_the_socket(sent))
    return _AT_THE_API.validate_json(json.dumps(received.rendered_fields))


def _over_the_socket(sent: Any) -> Any:
    if not hasattr(comms, "_RequestFrame"):  # before Airflow 3.1 it was JSON
        return json.loads(sent.model_dump_json())
    frame = comms._RequestFrame(id=1, body=sent.model_dump())
    return msgspec.msgpack.Decoder(comms._RequestFrame).decode(frame.as_bytes()[4:]).body


def nested(depth: int, *, lists: bool = False) -> dict[str, Any]:
    """Return a payload that is nested this deeply."""
    inner: Any = []
    for _ in range(depth - 2):
        inner = [inner] if lists else {"in": inner}
    return {"in": inner}


#: Valid messages that Airflow's wire refuses.
BEYOND: list[dict[str, Any]] = [
    {"serial": 2**64},
    {"serial": -(2**63) - 1},
    {"in": [{"serial": 10**4000}]},
    nested(300),
    nested(500, lists=True),
]
BEYOND_IDS = ["2**64", "-2**63-1", "4001 digits", "300 objects", "500 lists"]
#: The furthest that it carries.
WITHIN: list[dict[str, Any]] = [
    {"serial": 2**64 - 1},
    {"serial": -(2**63), "true": True, "digits": "9" * 40, "float": 1e300},
    nested(references.MAX_DEPTH),
    nested(references.MAX_DEPTH, lists=True),
    {"wide": [{} for _ in range(500)]},
]
GOOD = {"n": 1}


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncPawnQueue]:
    """A queue whose publishers may nest as deeply as the protocol allows."""
    with contextmanager(connected)(monkeypatch, limits={"max_payload_depth": 500}) as queue:
        yield queue


def waiting() -> PawnQueueSensor:
    """Return a sensor that claims all waiting messages."""
    return PawnQueueSensor(task_id="claim", topic=TOPIC, deferrable=False, poke_interval=0.05, timeout=5)


def pushed(queue: SyncPawnQueue, payloads: Sequence[dict[str, Any]]) -> Any:
    """Publish payloads; return the XCom of the sensor that claims them."""
    queue.publish(TOPIC, payloads)
    return waiting().execute(context_of(FakeTask("claim")))


def given(value: Any) -> Any:
    """Return a task that is given this as an argument."""
    with DAG("dag", schedule=None):

        @task
        def work(claim: Any) -> None: ...

        made = work(value)
    made.operator.op_kwargs = {"claim": value}
    return made.operator


@pytest.mark.parametrize("payload", BEYOND, ids=BEYOND_IDS)
def test_a_claim_with_such_a_message_is_handed_on_without_messages(
    queue: SyncPawnQueue, payload: dict[str, Any]
) -> None:
    """Tasks that are given the claim start, and read exactly these payloads from the bucket."""
    claim = references.as_received(pushed(queue, [GOOD, payload]))
    assert rendered(given(claim))
    assert [message.payload for message in PawnQueueHook().messages(claim)] == [GOOD, payload]


@pytest.mark.parametrize("payload", WITHIN, ids=range(len(WITHIN)))
def test_what_fits_goes_along(queue: SyncPawnQueue, payload: dict[str, Any]) -> None:
    """Tasks receive such a message as a dict, which Airflow can store with their rendered fields."""
    claim = references.as_received(pushed(queue, [GOOD, payload]))
    assert [message["payload"] for message in claim["messages"]] == [GOOD, payload]
    assert rendered(given([claim]))


@pytest.mark.parametrize("batch", [None, 3])
def test_in_mapped_tasks_such_a_message_is_reported(
    queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch, batch: int | None
) -> None:
    """Only this message is reported as failed, with the reason; the tasks of the other messages start."""
    claim = pushed(queue, [GOOD, *BEYOND, GOOD])
    ti = FakeTask("messages")
    monkeypatch.setattr("airflow.providers.common.compat.sdk.get_current_context", lambda: context_of(ti))
    reading = PawnQueueMessagesOperator(task_id="messages", claim=claim, batch=batch)
    items = reading.output.decoded(reading.execute(context_of(ti)))
    assert all(rendered(given(item)) for item in items)
    handed = items if batch is None else items[0]
    assert [message["payload"] for message in handed] == [GOOD, GOOD]
    failed = json.loads(ti.xcoms["messages", REPORT_KEY, -1])["failed"]
    assert sorted(failed.values()) == [
        *["Airflow cannot carry it: it has an integer beyond 64 bits"] * 3,
        *[f"Airflow cannot carry it: it is nested more than {references.MAX_DEPTH} deep"] * 2,
    ]


@pytest.mark.parametrize("written", [json.dumps, lambda messages: messages], ids=["texts", "dicts"])
@pytest.mark.parametrize("payload", BEYOND, ids=BEYOND_IDS)
def test_a_run_that_began_before_an_upgrade_goes_on(queue: SyncPawnQueue, written: Any, payload: Any) -> None:
    """If an older release has put such a message into XCom, tasks are given the claim without its messages."""
    reference = pushed(queue, [GOOD, payload])
    messages = [references.fields_of(message) for message in PawnQueueHook().messages(reference, shared=True)]
    former = {**reference, "messages": written(messages)}
    for received in (references.as_received(former), references.as_received([former])[0]):
        assert rendered(given(received))
        assert [message.payload for message in PawnQueueHook().messages(received, shared=True)] == [GOOD, payload]
    play = Play()
    assert counts_of(play.ended(former, work="success", after="success")) == (2, 0, 0)


def test_operators_are_given_references_alone(queue: SyncPawnQueue) -> None:
    """An operator that settles has no payloads in its rendered fields: for one claim, for several, or mapped."""
    claim = pushed(queue, [{"n": "a payload"}])
    assert "a payload" in claim["messages"]
    with DAG("dag", schedule=None) as dag:
        sensor = waiting()
        settle = PawnQueueSettleOperator(task_id="settle", claim=sensor.output)
        several = PawnQueueAckOperator(task_id="several", claim=[sensor.output, sensor.output])
    assert dag.get_task("claim").downstream_task_ids == {"settle", "several"}
    mapped = PawnQueueAckOperator(task_id="mapped", claim=references.as_received(claim))
    listed = PawnQueueAckOperator(task_id="listed", claim=[references.as_received(claim)])

    class Pulling(FakeTask):
        def xcom_pull(self, task_ids: str, key: str = "return_value", **_: Any) -> Any:
            return super().xcom_pull(task_ids, key)

    ti = Pulling("settle")
    ti.xcom_push("return_value", claim, task_id="claim")
    for operator in (settle, several):
        operator.render_template_fields(context_of(ti))
    for operator in (settle, several, mapped, listed):
        shown = rendered(operator)["claim"]
        assert "a payload" not in json.dumps(shown)
        for each in references.each_of(shown):
            assert references.from_xcom(each, PawnQueueHook().settings, "ack").claim_id == claim["claim_id"]
    assert mapped.execute(NOBODY)["acked"] == 1
    assert left(queue) == (0, 0, 0)

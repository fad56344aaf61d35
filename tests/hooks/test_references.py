"""Claims in XCom: as dicts, as the texts that templates make of them, and never another queue's."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_pawnqueue.hooks import references
from pawnqueue import Claim, InvalidArgumentError, MemoryStore, Message, Settings, SyncPawnQueue
from pawnqueue.claims import ClaimReference
from tests.support.airflow_names import deserialize, serialize

HERE = Settings(s3={"bucket_name": "queues", "key_prefix": "team"})
REFERENCE = ClaimReference("orders", "d-t-0123", 2, "session")
MESSAGE = Message("id", "orders", "shop", datetime(2025, 1, 2, 3, 4, 5, 6, UTC), {"ü": [1, None]}, {"a": "b"}, 3)
WRITTEN = references.to_xcom(REFERENCE, HERE, count=1, size=10, messages=[MESSAGE])


def test_a_reference_goes_through_xcom() -> None:
    """It reads back after Airflow's serialization and JSON."""
    assert json.loads(json.dumps(WRITTEN)) == WRITTEN
    assert deserialize(serialize(WRITTEN)) == WRITTEN
    assert references.as_received(WRITTEN)["messages"] == [references.fields_of(MESSAGE)]
    assert references.from_xcom(WRITTEN, HERE, "ack") == REFERENCE
    assert WRITTEN["queue"] == "queues/team/"
    assert (WRITTEN["count"], WRITTEN["bytes"]) == (1, 10)


@pytest.mark.parametrize("render", [str, json.dumps])
def test_a_reference_may_be_rendered(render: Any) -> None:  # noqa: ANN401 - a function of anything
    """A template may make JSON or a Python literal of it; its messages come along."""
    assert references.from_xcom(render(WRITTEN), HERE, "ack") == REFERENCE
    assert references.inline_messages(render(WRITTEN)) == [MESSAGE]
    assert references.each_of(render(WRITTEN)) == [WRITTEN]
    assert references.each_of(render([WRITTEN, None])) == [WRITTEN]
    assert references.each_of(render(None)) == []


def test_what_the_engine_gives_is_a_reference_too() -> None:
    """A claim, and the reference that the engine handed over, are accepted."""
    assert references.from_xcom(REFERENCE, HERE, "ack") is REFERENCE
    with SyncPawnQueue.open(store=MemoryStore()) as queue:
        queue.create_topic("orders")
        queue.publish("orders", [{"n": 1}], headers={"a": "b"})
        claim = queue.claim("orders", "c", claim_id="mine")
        assert isinstance(claim, Claim)
        found = references.from_xcom(claim, HERE, "ack")
        assert found == ClaimReference("orders", "mine", claim.generation, claim.session)
        carried = references.to_xcom(found, HERE, count=1, size=1, messages=claim.messages)
        assert references.inline_messages(json.loads(json.dumps(carried))) == list(claim.messages)


def test_a_reference_of_another_queue_is_refused() -> None:
    """The error names both queues."""
    there = Settings(s3={"bucket_name": "others"})
    with pytest.raises(InvalidArgumentError, match=r"'queues/team/'.*'others/'.*pawnqueue_conn_id"):
        references.from_xcom(WRITTEN, there, "ack")
    bare = REFERENCE.to_dict()  # by the engine alone, which does not say
    assert references.from_xcom(bare, there, "ack") == REFERENCE


@pytest.mark.parametrize("given", ["no claim at all", "5", "[1]", "", 5, {"topic": "orders"}])
def test_what_is_no_reference_is_refused(given: Any) -> None:  # noqa: ANN401 - anything
    """The error says what to pass."""
    with pytest.raises(InvalidArgumentError, match="is not a claim") as wrong:
        references.from_xcom(given, HERE, "ack")
    assert "pass what" in str(wrong.value)


@pytest.mark.parametrize(
    ("given", "claims"),
    [
        (None, []),
        ("", []),
        ([], []),
        ([None], []),
        (WRITTEN, [WRITTEN]),
        ([WRITTEN, None, WRITTEN], [WRITTEN, WRITTEN]),
        ((WRITTEN,), [WRITTEN]),
        (REFERENCE, [REFERENCE]),
        ("nonsense", ["nonsense"]),
    ],
)
def test_a_sensor_returns_one_claim_or_several(given: Any, claims: list[Any]) -> None:  # noqa: ANN401 - anything
    """Or none, where nothing was claimed."""
    assert references.each_of(given) == claims


#: What Airflow's serialization reads in a dict, at any depth; and texts that encoders and databases refuse.
HOSTILE: list[dict[str, Any]] = [
    {"__id__": 7},
    {"__classname__": "builtins.dict", "__version__": 1, "__data__": {}},
    {"a": [{"__type": "airflow.sdk.definitions.asset.Asset", "__var": {"name": "x", "uri": "x://y"}}]},
    {"__type": "pandas.core.frame.DataFrame", "__var": "QVJST1cx"},
    {"\ud800": "\udfff"},
    {"text": "\x00 {{ 1 / 0 }}"},
    {"n": float("inf")},
]


@pytest.mark.parametrize("payload", HOSTILE, ids=repr)
def test_a_payload_is_no_object_of_airflows(payload: dict[str, Any]) -> None:
    """A task receives the payload that was published, with any keys."""
    message = replace(MESSAGE, payload=payload, headers={"__id__": "7"}, id="__classname__")
    pushed = serialize(references.to_xcom(REFERENCE, HERE, count=1, size=1, messages=[message]))
    pulled: Any = deserialize(json.loads(json.dumps(pushed, ensure_ascii=False).encode()))
    assert references.inline_messages(pulled) == [message]
    assert references.as_received(pulled)["messages"] == [references.fields_of(message)]
    [item] = references.decoded_messages(deserialize(serialize([references.text_of(message)])))
    assert item["payload"] == payload


@pytest.mark.parametrize("messages", [None, [], [{"id": "a"}], [5], [{**references.fields_of(MESSAGE), "new": 1}]])
@pytest.mark.parametrize("render", [list, json.dumps])
def test_messages_that_cannot_be_read_did_not_come_along(messages: list[Any] | None, render: Any) -> None:  # noqa: ANN401 - a function of anything
    """Messages of an unknown format count as absent, as the bucket has them. An empty list is a list."""
    expected = [] if messages == [] else None
    carried = None if messages is None else render(messages)
    assert references.inline_messages({**REFERENCE.to_dict(), "messages": carried}) == expected


def test_messages_of_a_former_release() -> None:
    """A run that began before an upgrade goes on: messages that are dicts in XCom are read."""
    former = WRITTEN | {"messages": [references.fields_of(MESSAGE)]}
    assert references.inline_messages(former) == [MESSAGE]
    assert references.as_received(former)["messages"] == [references.fields_of(MESSAGE)]
    assert references.as_received([former, None])[1] is None
    assert references.decoded_messages([references.fields_of(MESSAGE)]) == [references.fields_of(MESSAGE)]


def test_the_size_is_that_of_the_json() -> None:
    """In bytes, as XCom stores it."""
    assert references.size_of([MESSAGE, MESSAGE]) == 2 * len(json.dumps(references.fields_of(MESSAGE)))


def test_a_message_that_cannot_be_written_stays_in_the_bucket() -> None:
    """It fails nothing, and the other messages of its claim stay in the bucket too."""
    payload: dict[str, Any] = {}
    for _ in range(100_000):
        payload = {"in": payload}
    deep = replace(MESSAGE, payload=payload)
    assert references.text_of(deep) is None
    assert references.size_of([MESSAGE, deep]) > references.MAX_INLINE_BYTES
    assert "messages" not in references.to_xcom(REFERENCE, HERE, count=2, size=1, messages=[MESSAGE, deep])


def test_a_loop_over_a_claim_says_what_to_call() -> None:
    """A task that takes the fields of a claim for messages gets an error with the right call."""
    claim = references.as_received(WRITTEN)
    assert claim == WRITTEN | {"messages": claim["messages"]}
    for field in claim:
        with pytest.raises(AttributeError, match=r"for message in PawnQueueHook\(\)\.messages\(claim\)"):
            _ = field.payload
        with pytest.raises(TypeError, match=r"for message in PawnQueueHook\(\)\.messages\(claim\)"):
            _ = field["payload"]
        assert field[0] + field[1:] == field
    assert json.loads(json.dumps(claim)) == deserialize(serialize(claim)) == claim
    assert copy.deepcopy(claim) == pickle.loads(pickle.dumps(claim)) == claim  # noqa: S301 - our own


def test_texts_that_no_parser_can_read() -> None:
    """They are refused as not a claim, and raise no other error."""
    for text in ("[" * 100_000, "(" * 100_000):
        assert references.literal(text) == text


@pytest.mark.parametrize("generation", [float("inf"), float("nan"), "9" * 5000, None, []])
def test_a_generation_that_is_no_number_is_refused(generation: object) -> None:
    """The error is the same as for any other wrong reference."""
    with pytest.raises(InvalidArgumentError):
        references.from_xcom({**WRITTEN, "generation": generation}, HERE, "ack")


@pytest.mark.parametrize("messages", ["x", "[" * 100_000])
def test_messages_that_are_not_json_are_refused(messages: str) -> None:
    """The error says where a task finds them."""
    with pytest.raises(InvalidArgumentError, match="read them from the bucket"):
        references.as_received({**WRITTEN, "messages": messages})

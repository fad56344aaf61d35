"""Claims in XCom: as dicts, as the texts that templates make of them, and never another queue's."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_pawnqueue.engine import Claim, InvalidArgumentError, MemoryStore, Message, Settings, SyncPawnQueue
from airflow_provider_pawnqueue.engine.claims import ClaimReference
from airflow_provider_pawnqueue.hooks import references
from tests.support.airflow_names import deserialize, serialize

HERE = Settings(s3={"bucket_name": "queues", "key_prefix": "team"})
REFERENCE = ClaimReference("orders", "d-t-0123", 2, "session")
MESSAGE = Message("id", "orders", "shop", datetime(2025, 1, 2, 3, 4, 5, 6, UTC), {"ü": [1, None]}, {"a": "b"}, 3)
WRITTEN = references.to_xcom(REFERENCE, HERE, count=1, size=10, messages=[MESSAGE])


def test_a_reference_goes_through_xcom() -> None:
    """As what Airflow and JSON make of it."""
    assert json.loads(json.dumps(WRITTEN)) == WRITTEN
    assert deserialize(serialize(WRITTEN)) == WRITTEN
    assert references.from_xcom(WRITTEN, HERE, "ack") == REFERENCE
    assert WRITTEN["queue"] == "queues/team/"
    assert (WRITTEN["count"], WRITTEN["bytes"]) == (1, 10)


@pytest.mark.parametrize("render", [str, json.dumps])
def test_a_reference_may_be_rendered(render: Any) -> None:  # noqa: ANN401 - a function of anything
    """By a template, to JSON or to how Python writes a dict; its messages come along."""
    assert references.from_xcom(render(WRITTEN), HERE, "ack") == REFERENCE
    assert references.inline_messages(render(WRITTEN)) == [MESSAGE]
    assert references.each_of(render(WRITTEN)) == [WRITTEN]
    assert references.each_of(render([WRITTEN, None])) == [WRITTEN]
    assert references.each_of(render(None)) == []


def test_what_the_engine_gives_is_a_reference_too() -> None:
    """A claim, and what it was handed over as."""
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
    """By the names of both."""
    there = Settings(s3={"bucket_name": "others"})
    with pytest.raises(InvalidArgumentError, match=r"'queues/team/'.*'others/'.*pawnqueue_conn_id"):
        references.from_xcom(WRITTEN, there, "ack")
    bare = REFERENCE.to_dict()  # by the engine alone, which does not say
    assert references.from_xcom(bare, there, "ack") == REFERENCE


@pytest.mark.parametrize("given", ["no claim at all", "5", "[1]", "", 5, {"topic": "orders"}])
def test_what_is_no_reference_is_refused(given: Any) -> None:  # noqa: ANN401 - anything
    """In a sentence that says what to pass."""
    with pytest.raises(InvalidArgumentError, match="is no claim") as wrong:
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
    """Or none, where nothing had come."""
    assert references.each_of(given) == claims


@pytest.mark.parametrize("messages", [None, [], [{"id": "a"}], [5], [{**references.written(MESSAGE), "new": 1}]])
def test_messages_that_cannot_be_read_did_not_come_along(messages: list[Any] | None) -> None:
    """Another release wrote them, and the bucket has them too; no message at all is none."""
    expected = [] if messages == [] else None
    assert references.inline_messages({**REFERENCE.to_dict(), "messages": messages}) == expected


def test_the_size_is_that_of_the_json() -> None:
    """In bytes, as XCom stores it."""
    assert references.size_of([MESSAGE, MESSAGE]) == 2 * len(
        json.dumps(references.written(MESSAGE), ensure_ascii=False).encode()
    )

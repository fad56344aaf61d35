"""Payloads: what JSON would turn into something else is refused, by its place, before any request is made."""

from __future__ import annotations

import enum
import json
import math
from collections import OrderedDict
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pawnqueue import InvalidPayloadError, InvalidTopicError
from pawnqueue.domain.record import canonical
from pawnqueue.publish.payload import checked_payload
from pawnqueue.settings import LimitsSettings
from tests.pawnqueue.virtual import TOPIC, Process, World

MIB = 1024**2


def nested(kind: type, depth: int) -> Any:  # noqa: ANN401 - lists or dicts
    """A list or dict of this many levels."""
    inner: Any = 1
    for _ in range(depth):
        inner = [inner] if kind is list else {"a": inner}
    return inner


def containing_itself() -> list[Any]:
    """A list that is its own element."""
    snake: list[Any] = []
    snake.append(snake)
    return snake


def dict_containing_itself() -> dict[str, Any]:
    """A dict that is its own value."""
    snake: dict[str, Any] = {}
    snake["a"] = snake
    return snake


class Colour(enum.Enum):
    """No JSON type."""

    RED = "red"


BAD_VALUES = {
    "datetime": datetime(2026, 1, 1, tzinfo=UTC),
    "date": date(2026, 1, 1),
    "nan": math.nan,
    "inf": math.inf,
    "minus inf": -math.inf,
    "set": {1},
    "frozenset": frozenset(),
    "bytes": b"x",
    "bytearray": bytearray(b"x"),
    "Decimal": Decimal("1.5"),
    "UUID": UUID(int=0),
    "complex": 1j,
    "object": object(),
    "enum": Colour.RED,
    "generator": iter([1]),
    "surrogate": "\ud800",
    "number beyond Python's own limit": 10**5000,
}


@pytest.mark.parametrize("value", BAD_VALUES.values(), ids=BAD_VALUES)
async def test_a_bad_value_is_named_by_its_place(world: World, ann: Process, value: object) -> None:
    """What JSON has no type for is refused with the path to it; nothing was published, no request made."""
    before = world.bucket.snapshot()
    payloads = [{}, {}, {}, {"a": [1, 2, {"b": value}]}]
    with ann.client.counting() as requests, pytest.raises(InvalidPayloadError) as caught:
        await ann.queue.publish(TOPIC, payloads)
    assert str(caught.value).startswith("payloads[3].a[2].b ")
    assert "Nothing was published" in str(caught.value)
    assert caught.value.topic == TOPIC
    assert not requests
    assert world.bucket.snapshot() == before


@pytest.mark.parametrize("key", [1, None, 1.5, True, (1, 2), b"x", "\ud800"], ids=repr)
async def test_a_key_that_is_no_text_is_named_by_its_place(ann: Process, key: object) -> None:
    """JSON's keys are text: another one is refused, as it would silently become one."""
    with ann.client.counting() as requests, pytest.raises(InvalidPayloadError) as caught:
        await ann.queue.publish(TOPIC, [{"a": [{key: 1}]}])
    assert str(caught.value).startswith("payloads[0].a[0] ")
    str(caught.value).encode()  # can be logged
    assert not requests


@pytest.mark.parametrize("payload", [None, [], "text", 1, [("a", 1)], {1, 2}, Colour.RED], ids=repr)
async def test_a_payload_that_is_no_object_is_refused(ann: Process, payload: object) -> None:
    """A payload is a JSON object, so that every message can grow a field."""
    with (
        ann.client.counting() as requests,
        pytest.raises(InvalidPayloadError, match=r"^payloads\[1\] for topic 'orders' is an? "),
    ):
        await ann.queue.publish(TOPIC, [{}, payload])  # type: ignore[list-item]
    assert not requests


@pytest.mark.parametrize("kind", [list, dict])
async def test_a_payload_nested_too_deeply_is_refused(ann: Process, kind: type) -> None:
    """A hundred thousand levels are an error that says so, not Python's own."""
    with ann.client.counting() as requests, pytest.raises(InvalidPayloadError, match="nested more than 64 deep"):
        await ann.queue.publish(TOPIC, [{"a": nested(kind, 100_000)}])
    assert not requests


@pytest.mark.parametrize("payload", [{"a": containing_itself()}, dict_containing_itself()], ids=["list", "dict"])
async def test_a_payload_that_contains_itself_is_refused(ann: Process, payload: dict[str, Any]) -> None:
    """What has no end is nested too deeply."""
    with ann.client.counting() as requests, pytest.raises(InvalidPayloadError, match="nested more than"):
        await ann.queue.publish(TOPIC, [payload])
    assert not requests


async def test_the_depth_that_is_allowed_is_allowed(ann: Process) -> None:
    """The greatest depth that the settings let through arrives as it was."""
    payload = nested(dict, 64)
    await ann.queue.publish(TOPIC, [payload])
    [message] = await ann.queue.claim(TOPIC, "c")
    assert message.payload == payload
    with pytest.raises(InvalidPayloadError):
        await ann.queue.publish(TOPIC, [nested(dict, 65)])


async def test_any_depth_that_can_be_set_arrives(world: World) -> None:
    """With ``limits.max_payload_depth`` at its greatest, such a payload is published and read."""
    greatest = next(depth for depth in range(2000, 0, -1) if _is_accepted(depth))
    process = await world.process(limits={"max_payload_depth": greatest})
    payload = nested(dict, greatest)
    await process.queue.publish(TOPIC, [payload])
    [message] = await process.queue.claim(TOPIC, "c")
    assert message.payload == payload


def _is_accepted(depth: int) -> bool:
    try:
        LimitsSettings(max_payload_depth=depth)
    except Exception:  # noqa: BLE001 - whatever the settings say to it
        return False
    return True


async def test_a_payload_over_the_limit_is_refused(ann: Process) -> None:
    """5 MiB of canonical JSON are the most by default, to the byte."""
    frame = len(json.dumps({"a": ""}, separators=(",", ":")))
    await ann.queue.publish(TOPIC, [{"a": "x" * (5 * MIB - frame)}])
    with ann.client.counting() as requests, pytest.raises(InvalidPayloadError, match=r"5,242,881 bytes"):
        await ann.queue.publish(TOPIC, [{}, {"a": "x" * (5 * MIB - frame + 1)}])
    assert not requests
    assert len(await ann.queue.claim(TOPIC, "c")) == 1


async def test_the_limit_counts_bytes_not_characters(world: World) -> None:
    """Text outside ASCII counts as what it takes in UTF-8."""
    process = await world.process(limits={"max_payload_bytes": 20})
    await process.queue.publish(TOPIC, [{"a": "x" * 10}])
    with pytest.raises(InvalidPayloadError, match=r"limits\.max_payload_bytes is 20"):
        await process.queue.publish(TOPIC, [{"a": "ä" * 10}])


async def test_a_topics_name_is_checked_before_the_payloads(ann: Process) -> None:
    """The error names what is wrong first: there is no such topic name."""
    with pytest.raises(InvalidTopicError):
        await ann.queue.publish("a/b", [{"a": math.nan}])


GOOD = {
    "empty": {},
    "beyond 64 bits": {"a": 2**64, "b": -(2**200), "c": 2**63 - 1},
    "unicode": {"ключ": "значение", "🦀": "\x00\x1f\u2028", "": ""},
    "tuple": {"a": (1, (2, 3))},
    "floats": {"a": 1.5, "b": -0.0, "c": 1e308, "d": 5e-324, "e": 0.1 + 0.2},
    "constants": {"a": None, "b": True, "c": False},
    "ordered": OrderedDict(z=1, a=2),
    "names of ours": {"payload": 1, "id": 2, "v": 99, "__class__": "x"},
}


@pytest.mark.parametrize("payload", GOOD.values(), ids=GOOD)
async def test_what_json_has_arrives_as_it_was(ann: Process, payload: dict[str, Any]) -> None:
    """A payload that JSON can carry is what the consumer is given; tuples arrive as lists."""
    await ann.queue.publish(TOPIC, [payload])
    [message] = await ann.queue.claim(TOPIC, "c")
    assert message.payload == json.loads(json.dumps(payload))


async def test_a_payload_may_be_changed_after_it_was_published(ann: Process) -> None:
    """What was sent is what the payload was when publish returned."""
    payload = {"a": [1]}
    await ann.queue.publish(TOPIC, [payload])
    payload["a"].append(2)
    [message] = await ann.queue.claim(TOPIC, "c")
    assert message.payload == {"a": [1]}


async def test_a_generator_may_yield_one_dict_changed(ann: Process) -> None:
    """Each payload is what it was when it was yielded, down to its leaves."""

    def changing() -> Iterator[dict[str, Any]]:
        payload: dict[str, Any] = {"n": 0, "in": {"n": 0}, "list": [{"n": 0}], "tuple": ([0],)}
        for number in range(3):
            payload["n"] = payload["in"]["n"] = payload["list"][0]["n"] = payload["tuple"][0][0] = number
            yield payload

    await ann.queue.publish(TOPIC, changing())
    assert [message.payload for message in await ann.queue.claim(TOPIC, "c")] == [
        {"n": number, "in": {"n": number}, "list": [{"n": number}], "tuple": [[number]]} for number in range(3)
    ]


async def test_headers_are_what_they_were_when_publish_was_called(ann: Process) -> None:
    """What changes them while the payloads are made, or sent, changes no message."""
    headers = {"a": "1"}

    def changing() -> Iterator[dict[str, Any]]:
        for number in range(3):
            headers["a"] = f"changed {number}"
            yield {"n": number}

    def change(*_: object) -> None:
        headers["a"] = "changed while it was sent"

    ann.client.meanwhile = change
    await ann.queue.publish(TOPIC, changing(), headers=headers)
    assert [dict(message.headers) for message in await ann.queue.claim(TOPIC, "c")] == [{"a": "1"}] * 3


async def test_a_payload_changed_while_it_is_sent_is_sent_as_it_was(ann: Process) -> None:
    """Another task that goes on with the dict, while requests are under way, changes no message."""
    payload: dict[str, Any] = {"n": 1, "list": [1]}

    def change(*_: object) -> None:
        payload["n"] += 1
        payload["list"].append(2)

    ann.client.meanwhile = change
    await ann.queue.publish(TOPIC, [payload, payload])
    ann.client.heal()
    assert [message.payload for message in await ann.queue.claim(TOPIC, "c")] == [{"n": 1, "list": [1]}] * 2


async def test_a_long_place_is_told_by_its_ends(ann: Process) -> None:
    """Of a place that fills a page the error shows where it begins and where it ends."""
    with pytest.raises(InvalidPayloadError) as caught:
        await ann.queue.publish(TOPIC, [{"a": {"k" * 1000: [1, {"end": math.nan}]}}])
    assert str(caught.value).startswith("payloads[0].a.kkk")
    assert "kkk[1].end for topic" in str(caught.value)
    assert len(str(caught.value)) < 300


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=15,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4))
def test_every_json_object_is_a_payload(payload: dict[str, Any]) -> None:
    """Whatever JSON can carry is accepted, and written in the bucket's one form."""
    assert checked_payload(payload, LimitsSettings(), TOPIC, 0) == canonical(payload)

"""Records: canonical JSON, nothing lost that is not known, newer formats refused by name, garbage told from records."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pawnqueue import CompatibilityError
from pawnqueue.domain.claim_record import ClaimRecord, Decision, Member
from pawnqueue.domain.record import FORMAT, Record, UnreadableRecordError, canonical
from pawnqueue.domain.records import BucketRecord, DeadReason, RegistrationRecord, TopicRecord, TopicSettings
from pawnqueue.domain.times import iso
from pawnqueue.runtime.clock import SystemClock

KEY = "orders/.topic"
MINIMAL = b'{"topic":"orders"}'

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)
known = {info.alias or name for name, info in TopicRecord.model_fields.items()}
unknown = st.dictionaries(st.text().filter(lambda name: name not in known), values, max_size=5)


# --- canonical ---


def test_json_has_one_form() -> None:
    """Keys are sorted, nothing is spaced, text is UTF-8: equal data are equal bytes."""
    assert canonical({"b": [1, {"d": None, "c": 2.5}], "a": "ü"}) == '{"a":"ü","b":[1,{"c":2.5,"d":null}]}'.encode()
    assert canonical({"x": 1, "y": 2}) == canonical({"y": 2, "x": 1})


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_json_has_not_is_refused(number: float) -> None:
    """NaN and infinities are no JSON."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical({"x": number})


@given(values)
def test_canonical_is_read_back(value: Any) -> None:  # noqa: ANN401 - any JSON value
    """What was written is what is read."""
    assert json.loads(canonical(value)) == value


# --- unknown fields ---


@given(
    fields=unknown,
    settings=st.dictionaries(st.text().filter(lambda name: name not in TopicSettings.model_fields), values),
)
def test_what_is_not_known_is_kept(fields: dict[str, Any], settings: dict[str, Any]) -> None:
    """Fields that this version does not know survive a rewrite, at every level."""
    body = canonical({**fields, "topic": "orders", "settings": {**settings, "max_deliveries": 3, "packs": True}})
    record = TopicRecord.decode(body, KEY)
    written = json.loads(record.model_copy(update={"created_at": "now"}).stamped("n").encode())
    assert written == {
        **fields,
        "topic": "orders",
        "settings": {**settings, "max_deliveries": 3, "packs": True},
        "created_at": "now",
        "v": FORMAT,
        "nonce": "n",
    }


@pytest.mark.parametrize(
    "name", ["model_config", "model_fields", "__class__", "name", "encode", "decode", "what", "stamped"]
)
def test_a_field_may_have_any_name(name: str) -> None:
    """A stranger's field named like something of ours is only a field."""
    record = TopicRecord.decode(canonical({"topic": "orders", name: {"x": 1}}), KEY)
    assert json.loads(record.stamped("n").encode())[name] == {"x": 1}


def test_a_topics_name_is_stored_as_its_topic() -> None:
    """Bodies are what they were before the field was called by another name here."""
    record = TopicRecord(topic="orders", created_at="then").stamped("n")
    assert record.name == "orders"
    assert record.encode() == (
        b'{"created_at":"then","nonce":"n","settings":{"max_deliveries":10},"topic":"orders","v":1}'
    )
    stranger = TopicRecord.decode(b'{"name":"theirs","topic":"orders"}', KEY).model_copy(update={"name": "ours"})
    assert json.loads(stranger.encode()) == {
        "created_at": "",
        "name": "theirs",
        "nonce": "",
        "settings": {"max_deliveries": 10},
        "topic": "ours",
        "v": 0,
    }


# --- formats ---


@pytest.mark.parametrize("version", [FORMAT + 1, 99, 2**31 - 1])
@pytest.mark.parametrize("kind", [TopicRecord, RegistrationRecord, BucketRecord])
def test_a_newer_format_is_refused_by_name(kind: type[Record], version: int) -> None:
    """A body of a newer format is refused, naming its key and its format, whatever else is in it."""
    with pytest.raises(CompatibilityError) as caught:
        kind.decode(canonical({"v": version}), "some/key")
    assert str(caught.value) == (
        f"The {kind.what} some/key has format {version}, and this version of airflow-provider-pawnqueue reads up to "
        f"format {FORMAT}: upgrade it in this process."
    )


def test_a_body_without_a_format_is_the_published_library_s() -> None:
    """Its format is 0, and it is written anew in ours."""
    record = TopicRecord.decode(MINIMAL, KEY)
    assert record.v == 0
    assert record.stamped("n").v == FORMAT
    assert record.v == 0


# --- garbage ---

GARBAGE = {
    "empty": b"",
    "text": b"hello",
    "list": b"[]",
    "string": b'"orders"',
    "null": b"null",
    "number": b"5",
    "half": b'{"topic": "or',
    "missing": b"{}",
    "wrong-type": b'{"topic": 5}',
    "wrong-inside": b'{"topic": "orders", "settings": {"max_deliveries": "many"}}',
    "settings-null": b'{"topic": "orders", "settings": null}',
    "format-text": b'{"topic": "orders", "v": "new"}',
    "format-null": b'{"topic": "orders", "v": null}',
    "format-infinite": b'{"topic": "orders", "v": 1e999}',
    "deep-lists": b"[" * 100_000 + b"]" * 100_000,
    "deep-objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep-field": b'{"topic": "orders", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "huge-integer": b'{"topic": "orders", "x": ' + b"9" * 100_000 + b"}",
    "no-utf-8": b'{"topic": "\xff\xfe"}',
    "no-format": b'{"topic": "orders", "v": 1000000000000000000000000000000}',
    "negative-format": b'{"topic": "orders", "v": -1}',
    "surrogate-name": b'{"topic": "orders", "\\ud800": 1}',
    "surrogate": b'{"topic": "orders", "x": "a\\\\\\ud800b"}',
    "surrogate-inside": b'{"topic": "orders", "x": {"y": ["\\uDFFF"]}}',
    "surrogate-topic": b'{"topic": "\\ud800"}',
    "surrogate-in-utf-8": b'{"topic": "\xed\xa0\x80"}',
    "nan": b'{"topic": "orders", "x": NaN}',
    "infinity": b'{"topic": "orders", "x": -Infinity}',
    "overflow": b'{"topic": "orders", "x": 1e999}',
    "utf-16": '{"topic": "orders"}'.encode("utf-16"),
    "nested": b'{"topic": "orders", "x": ' + b"[" * 100 + b"]" * 100 + b"}",
    "zeros": bytes(1000),
}


@pytest.mark.parametrize("body", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_told_from_records(body: bytes) -> None:
    """What is no record of the kind is unreadable, and the error names the key."""
    with pytest.raises(UnreadableRecordError, match=r"^orders/\.topic is not (JSON(: it .*)?|a JSON object|a topic)$"):
        TopicRecord.decode(body, KEY)


STRANGE = {
    "long-integer": b'{"topic": "orders", "x": ' + b"9" * 4000 + b"}",
    "pair": b'{"topic": "orders", "x": "\\ud83d\\ude00"}',
    "zero-character": b'{"topic": "\\u0000"}',
    "twice": b'{"topic": "first", "topic": "orders"}',
    "byte-order-mark": b'\xef\xbb\xbf{"topic": "orders"}',
    "true-format": b'{"topic": "orders", "v": true}',
    "nested": b'{"topic": "orders", "x": ' + b"[" * 99 + b"]" * 99 + b"}",
}


@pytest.mark.parametrize("body", STRANGE.values(), ids=STRANGE.keys())
def test_strange_records_are_written_again(body: bytes) -> None:
    """A record with what hardly anybody writes is read, and what is written in its place is read as the same."""
    record = TopicRecord.decode(body, KEY)
    written = record.stamped("n").encode()
    assert written.decode("utf-8")
    again = TopicRecord.decode(written, KEY)
    assert again == TopicRecord.decode(again.encode(), KEY)
    assert again.name == record.name
    assert again.model_extra == record.model_extra


def test_half_a_surrogate_pair_of_a_users_text_makes_no_garbage() -> None:
    """A reason may be an exception's text with a path that is not UTF-8: the record is read again."""
    reason = DeadReason(reason="lost \udcff", error="\ud800")
    found = DeadReason.decode(reason.encode(), "t/dead-letter/x.reason.json")
    assert (found.reason, found.error) == ("lost ?", "?")


@given(st.binary(max_size=200))
def test_no_body_crashes_the_reader(body: bytes) -> None:
    """Any bytes are a record, garbage, or of a newer format."""
    for kind in (TopicRecord, RegistrationRecord, BucketRecord):
        with contextlib.suppress(UnreadableRecordError, CompatibilityError):
            kind.decode(body, KEY).encode()


@given(values)
def test_no_json_crashes_the_reader(value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Nor does any JSON, in whatever place."""
    for data in (value, {"topic": value}, {"topic": "orders", "settings": value}, {"topic": "orders", "v": value}):
        with contextlib.suppress(UnreadableRecordError, CompatibilityError):
            TopicRecord.decode(canonical(data), KEY).encode()


# --- write ids ---


def test_nonces_are_fresh() -> None:
    """Every write has a write id of its own, of 256 bits; so two writes of one record are different bodies."""
    clock = SystemClock()
    nonces = {clock.nonce() for _ in range(1000)}
    assert len(nonces) == 1000
    assert {len(nonce) for nonce in nonces} == {64}
    assert all(int(nonce, 16) < 2**256 for nonce in nonces)
    record = TopicRecord(topic="orders")
    assert len({record.stamped(nonce).encode() for nonce in nonces}) == 1000
    assert record.nonce == ""


def test_ids_are_version_4_and_fresh() -> None:
    """So is every id."""
    clock = SystemClock()
    assert len({clock.uuid() for _ in range(1000)}) == 1000
    assert clock.uuid()[14] == "4"


def test_times_are_written_with_their_zone() -> None:
    """``+00:00`` and never ``Z``, always with microseconds: pawn-queue reads it, and it sorts as text."""
    assert iso(0) == "1970-01-01T00:00:00.000000+00:00"
    assert iso(1_800_000_000.25) == "2027-01-15T08:00:00.250000+00:00"


# --- settings ---


@pytest.mark.parametrize("value", [0, -1, "many", 1.5, [], {}])
def test_deliveries_are_counted_from_one(value: object) -> None:
    """A topic's limit is a number from 1, or None for no limit."""
    with pytest.raises(ValidationError):
        TopicSettings.model_validate({"max_deliveries": value})
    assert TopicSettings.model_validate({"max_deliveries": None}).max_deliveries is None


def test_records_are_frozen() -> None:
    """A record is changed by copying it."""
    with pytest.raises(ValidationError):
        TopicRecord(topic="orders").name = "other"  # type: ignore[misc]


def test_a_claim_record_is_written_the_same_however_often_it_was_changed() -> None:
    """What was made of it before is used again only where it is still so."""
    uuids = [str(UUID(int=number)) for number in range(40)]
    members = {uuid: Member(name=f"20260101T000000_000000-{uuid}.json") for uuid in uuids}
    record = ClaimRecord(claim_id="run", members=members, other={"b": 1, "a": "ü"})
    for turn, uuid in enumerate(reversed(uuids)):
        how = Decision(how="acked") if turn % 2 else Decision(how="dead", reason="ü\n", until=1.5)
        settled = {**record.settled, uuid: how}
        if turn % 7 == 0:
            settled[uuids[-1]] = Decision(how="gone", by="claim")
        record = record.model_copy(update={"settled": settled, "until": float(turn)}).stamped(f"n{turn}")
        if turn == 20:
            record = record.model_copy(
                update={"members": {**members, uuids[0]: members[uuids[0]].model_copy(update={"size": 3})}}
            )
        body = record.encode()
        assert body.rstrip(b" ") == canonical(record.model_dump(mode="json"))
        assert ClaimRecord.model_validate_json(body) == record

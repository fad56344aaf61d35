"""What is read from the bucket is bounded and validated at decode: whatever does not fit is garbage (§1)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue.catalog import letters
from pawnqueue.domain import layout, size_hint
from pawnqueue.domain.bounds import (
    LATEST_PLACE,
    MAX_HOLDER_CHARACTERS,
    MAX_REASON_CHARACTERS,
    MOST_RANGES,
    NotJsonError,
    parse_json,
)
from pawnqueue.domain.claim_record import ClaimRecord
from pawnqueue.domain.envelope import Envelope
from pawnqueue.domain.lease import Lease
from pawnqueue.domain.object_sizes import MAX_SMALL_RECORD_BYTES
from pawnqueue.domain.record import Record, UnreadableRecordError
from pawnqueue.domain.records import DeadReason, RegistrationRecord
from pawnqueue.domain.write_record import WriteRecord
from tests.pawnqueue.virtual import OVERDUE, TOPIC, numbered, numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.pawnqueue.virtual import Process, World

UUID = "11111111-2222-4333-8444-555555555555"
OTHER = "99999999-2222-4333-8444-555555555555"
NAME = f"20261118T000000_000000-{UUID}.json"
STAGED = layout.staged_name(0, "0" * 32, 0)
LEASE = layout.lease(TOPIC, UUID)
CLAIM = layout.claim(TOPIC, "c.0")
WRITE = layout.write(TOPIC, "w")
PERSON = layout.registration("producers", UUID)

HELD: dict[str, Any] = {"v": 1, "key": NAME, "claim": "c.0", "until": 1.0, "ttl": 1.0, "deliveries": 1}
BATCH: dict[str, Any] = {"v": 1, "claim_id": "c", "generation": 0, "members": {UUID: {"name": NAME}}}
BEGUN: dict[str, Any] = {
    "v": 1, "write_id": "w", "state": "begun", "count": 5, "begun": 5, "place": 1,
    "objects": [{"name": STAGED, "size": 500, "count": 5}],
}  # fmt: skip
SEEN: dict[str, Any] = {"role": "producers", "name": "n", "entity_id": UUID, "registered_at": "", "last_seen": ""}

LONG = 10**4000
HOLDERS = ("owner", "consumer", "session")
TOO_LONG = "x" * (MAX_HOLDER_CHARACTERS + 1)
MANY = 20_000
GOOD: list[tuple[type[Record], str, Mapping[str, Any]]] = [
    (Lease, LEASE, HELD),
    (ClaimRecord, CLAIM, BATCH),
    (WriteRecord, WRITE, BEGUN),
    (RegistrationRecord, PERSON, SEEN),
    (WriteRecord, WRITE, {**BEGUN, "published": 4, "lost": [{"first": 0, "count": 1}, {"first": 2, "count": 2}]}),
    (WriteRecord, WRITE, {**BEGUN, "place": LATEST_PLACE}),
    (ClaimRecord, CLAIM, {**BATCH, **dict.fromkeys(HOLDERS, "\n" * MAX_HOLDER_CHARACTERS)}),
]
#: By the record that is forged: its fields that do not fit.
FORGED: list[tuple[type[Record], str, Mapping[str, Any], dict[str, Any]]] = [
    *((Lease, LEASE, HELD, {"deliveries": value}) for value in (LONG, 2**31, -1, 1.5)),
    *((Lease, LEASE, HELD, {"until": value}) for value in (1e300, LONG, -1, 253_402_300_800)),
    *((Lease, LEASE, HELD, {"ttl": value}) for value in (1e300, -1)),
    (Lease, LEASE, HELD, {"key": NAME.replace(UUID, OTHER)}),
    *((Lease, LEASE, HELD, {"key": value}) for value in ("..", f"\n{NAME}", f"x/{NAME}", f"{'x' * 255}{NAME}")),
    (Lease, LEASE, HELD, {"claim": "../c.0"}),
    (Lease, LEASE, HELD, {"key": ""}),
    (Lease, LEASE, HELD, {"state": "moving"}),
    (Lease, LEASE, HELD, {"state": "moving", "source": ".."}),
    (Lease, layout.lease(TOPIC, OTHER), HELD, {}),
    *((ClaimRecord, CLAIM, BATCH, {field: 1e300}) for field in ("until", "session_until", "created_at", "lasts")),
    *((ClaimRecord, CLAIM, BATCH, {"claim_id": value}) for value in ("other", "..", "c\n")),
    (ClaimRecord, CLAIM, BATCH, {"generation": 1}),
    (ClaimRecord, CLAIM, BATCH, {"generation": LONG}),
    (ClaimRecord, CLAIM, BATCH, {"members": {OTHER: {"name": NAME}}}),
    (ClaimRecord, CLAIM, BATCH, {"members": {UUID: {"name": NAME, "deliveries": 2**31}}}),
    (ClaimRecord, CLAIM, BATCH, {"members": {UUID: {"name": NAME, "size": LONG}}}),
    (ClaimRecord, CLAIM, BATCH, {"members": {UUID: {"name": f"x\x7f{NAME}"}}}),
    (ClaimRecord, CLAIM, BATCH, {"settled": {OTHER: {"how": "acked"}}}),
    (ClaimRecord, CLAIM, BATCH, {"settled": {UUID: {"how": "released", "until": 1e300}}}),
    (ClaimRecord, CLAIM, BATCH, {"settled": {UUID: {"how": "acked", "id": TOO_LONG}}}),
    *((ClaimRecord, CLAIM, BATCH, {field: TOO_LONG}) for field in HOLDERS),
    (Lease, LEASE, HELD, {"consumer_id": TOO_LONG}),
    (WriteRecord, WRITE, BEGUN, {"holder": TOO_LONG}),
    (DeadReason, letters.reason_key_of(TOPIC, UUID), {"reason": "r"}, {"consumer": TOO_LONG}),
    (WriteRecord, layout.write(TOPIC, "x"), BEGUN, {}),
    (WriteRecord, WRITE, BEGUN, {"objects": []}),
    (WriteRecord, WRITE, BEGUN, {"count": 6}),
    (WriteRecord, WRITE, BEGUN, {"count": -5, "begun": -5, "objects": []}),
    (WriteRecord, WRITE, BEGUN, {"published": 5, "begun": 6}),
    (WriteRecord, WRITE, BEGUN, {"published": 5, "begun": 4}),
    (WriteRecord, WRITE, BEGUN, {"begun": 6}),
    (WriteRecord, WRITE, BEGUN, {"published": -1}),
    *((WriteRecord, WRITE, BEGUN, {"place": value}) for value in (LONG, 1e30, -1, LATEST_PLACE + 1)),
    *(
        (WriteRecord, WRITE, BEGUN, {"published": 4, "lost": [{"first": first, "count": n} for first, n in ranges]})
        for ranges in ([(0, 0)], [(4, 1)], [(0, 5)], [(1, 1), (0, 1)], [(0, 2), (1, 2)], [(1, 1), (1, 1)], [(-1, 1)])
    ),
    (
        WriteRecord,
        WRITE,
        BEGUN,
        {
            "state": "done",
            **dict.fromkeys(("count", "published", "begun"), 2 * MOST_RANGES + 2),
            "lost": [{"first": 2 * n, "count": 1} for n in range(MOST_RANGES + 1)],
        },
    ),
    (WriteRecord, WRITE, BEGUN, {"until": 1e300}),
    (WriteRecord, WRITE, BEGUN, {"created_at": -1e300}),
    (
        WriteRecord,
        WRITE,
        BEGUN,
        {"count": 20_000, "begun": 20_000, "objects": [{"name": STAGED, "size": 2_000_000, "count": 20_000}]},
    ),
    *(
        (WriteRecord, WRITE, BEGUN, {"objects": [{"name": name, "size": 500, "count": 5}]})
        for name in ("..", "", "x", f"{STAGED}\n", f"../{STAGED}")
    ),
    (WriteRecord, WRITE, BEGUN, {"objects": [{"name": STAGED, "size": 249, "count": 5}]}),
    (WriteRecord, WRITE, BEGUN, {"count": 10, "objects": BEGUN["objects"] * 2}),
    (WriteRecord, WRITE, BEGUN, {"dropped": [".."]}),
    *((RegistrationRecord, PERSON, SEEN, {"name": value}) for value in ("\ud800", "", "a\nb", "\x1b[2J", "x" * 257)),
    (RegistrationRecord, PERSON, SEEN, {"role": "consumers"}),
    (RegistrationRecord, PERSON, SEEN, {"entity_id": OTHER}),
    (RegistrationRecord, layout.registration("producers", OTHER), SEEN, {}),
    (RegistrationRecord, f"{TOPIC}/producers/{UUID}.json", SEEN, {}),
]


@pytest.mark.parametrize(("kind", "key", "body"), GOOD, ids=[kind.__name__ for kind, _, _ in GOOD])
def test_what_fits_is_read(kind: type[Record], key: str, body: Mapping[str, Any]) -> None:
    """The records that the forged ones below are made of are good ones."""
    assert kind.decode(json.dumps(body).encode(), key)


@pytest.mark.parametrize(
    ("kind", "key", "body", "forged"), FORGED, ids=[f"{kind.__name__}-{str(f)[:50]}" for kind, _, _, f in FORGED]
)
def test_what_does_not_fit_is_garbage(
    kind: type[Record], key: str, body: Mapping[str, Any], forged: Mapping[str, Any]
) -> None:
    """A number, a time or a name out of bounds, a key of another record, fields that contradict each other."""
    with pytest.raises(UnreadableRecordError):
        kind.decode(json.dumps({**body, **forged}).encode(), key)


@pytest.mark.parametrize("character", ["x", "\x01", "\U0001f980"])
def test_reasons_and_errors_are_cut_where_they_are_read(character: str) -> None:
    """Whatever copies them into another record has to have room for what is beside them."""
    text, kept = character * 130_000, character * MAX_REASON_CHARACTERS
    told = {"reason": text, "error": text}
    members = {UUID: {"name": NAME, **told}}
    batch = {**BATCH, "members": members, "settled": {UUID: {"how": "dead", **told}}}
    record = ClaimRecord.decode(json.dumps(batch).encode(), CLAIM)
    lease = Lease.decode(json.dumps({**HELD, **told}).encode(), LEASE)
    letter = {**told, "given_reason": text, "given_error": text}
    dead = DeadReason.decode(json.dumps(letter).encode(), letters.reason_key_of(TOPIC, UUID))
    for each in (record.members[UUID], record.settled[UUID], lease, dead):
        assert (each.reason, each.error) == (kept, kept)
    assert (dead.given_reason, dead.given_error) == (kept, kept)
    assert len(dead.encode()) < MAX_SMALL_RECORD_BYTES


def message(payload: str) -> bytes:
    """Return a message with this text as its payload."""
    return f'{{"id": "{UUID}", "payload": {payload}}}'.encode()


MALFORMED = {
    "half of a pair in a value": '{"secret": "\\ud800"}',
    "half of a pair in a key": '{"secret\\uDC00": 1}',
    "half of a pair, deep": '{"a": [{"secret": ["x\\uD83D"]}]}',
    "nested": '{"secret": ' + "[" * 500 + "]" * 500 + "}",
    "nested past Python": '{"secret": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "NaN": '{"secret": NaN}',
    "an infinity": '{"secret": -Infinity}',
    "too large for a float": '{"secret": 1e999}',
    "too long for an integer": '{"secret": ' + "9" * 5000 + "}",
    "not JSON": '{"secret": ',
    "not an object": '"secret"',
}


@pytest.mark.parametrize("payload", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_payload_is_buried_and_not_quoted(world: World, ann: Process, payload: str) -> None:
    """It is a dead letter, byte for byte, whose reason says what is wrong without a word of the payload."""
    world.fill([message(payload)])
    await ann.queue.publish(TOPIC, numbered(1))
    await world.later(1)

    assert numbers(await ann.queue.claim(TOPIC, "c", max_messages=9)) == [0]
    [letter] = await ann.queue.dead_letters(TOPIC)
    assert (letter.reason, letter.message) == ("malformed", None)
    assert "secret" not in letter.error + letter.fault
    assert world.bucket.body(letters.key_of(TOPIC, letter.id)) == message(payload)


WELL_FORMED = {
    "a pair": '{"x": "\\ud83d\\ude00"}',
    "a backslash before a u": '{"x": "\\\\ud800"}',
    "nested as deeply as anybody may publish": '{"x": ' + "[" * 499 + "]" * 499 + "}",
    "many brackets in a text": '{"x": "' + "[{" * 1000 + '"}',
    "many lists": '{"x": [' + ",".join(["[[]]"] * 1000) + "]}",
    "a long integer": '{"x": ' + "9" * 4000 + "}",
    "a large number": '{"x": 1e308}',
}


@pytest.mark.parametrize("payload", WELL_FORMED.values(), ids=WELL_FORMED)
def test_strange_payloads_are_read(payload: str) -> None:
    """What can be written again as strict JSON in UTF-8 is a payload."""
    found = Envelope.decode(message(payload), "k").payload
    assert found == json.loads(payload)
    assert json.dumps(found, ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize("depth", [1, 2, 7])
@pytest.mark.parametrize(("opening", "closing"), ["[]", ('{"a":', "}")])
def test_depth_is_counted_from_one(depth: int, opening: str, closing: str) -> None:
    """A list in no other one is one deep."""
    body = (opening * depth + "1" + closing * depth).encode()
    assert parse_json(body, max_depth=depth)
    with pytest.raises(NotJsonError, match=f"nested more than {depth - 1} deep"):
        parse_json(body, max_depth=depth - 1)


async def test_one_forged_lease_stops_nobody(world: World, ann: Process) -> None:
    """Its message waits for an ordinary claim's time, and the others are delivered at once."""
    uuids = world.fill([{"id": OTHER, "payload": {"n": n}} for n in range(4)])
    names = world.bucket.below("messages/")
    forged = [{"deliveries": 10**200}, {"until": 1e300}, {"deliveries": 2**31}]
    for uuid, name, fields in zip(uuids, names, forged, strict=False):
        world.bucket.plant(layout.lease(TOPIC, uuid), {**HELD, "key": name, **fields})
    await world.later(1)

    assert numbers(await ann.queue.claim(TOPIC, "c", max_messages=9)) == [3]
    assert await ann.queue.stats(TOPIC)
    await ann.queue.sweep(TOPIC)
    await world.later(OVERDUE)
    assert numbers(await ann.queue.claim(TOPIC, "c", max_messages=9)) == [0, 1, 2, 3]


async def test_deliveries_end_at_what_spark_can_hold(world: World, ann: Process) -> None:
    """A forged count at the bound is counted no further: its lease can still be read."""
    world.topic(max_deliveries=None)
    [uuid] = world.fill([{"id": OTHER, "payload": {"n": 0}}])
    [name] = world.bucket.below("messages/")
    world.bucket.plant(layout.lease(TOPIC, uuid), {**HELD, "key": name, "state": "released", "deliveries": 2**31 - 1})
    await world.later(100)
    [message] = await ann.queue.claim(TOPIC, "c")
    assert message.deliveries == 2**31 - 1
    assert world.bucket.lease(uuid).deliveries == 2**31 - 1


@pytest.mark.parametrize(
    "forged", [f for kind, _, _, f in FORGED if kind is WriteRecord and f], ids=lambda f: str(f)[:50]
)
async def test_a_forged_write_ends_no_sweep(world: World, ann: Process, forged: Mapping[str, Any]) -> None:
    """It is reported by its key; everything behind it is swept, within a few requests."""
    body = json.dumps({**BEGUN, **forged}).encode()
    world.bucket.plant(WRITE, size_hint.padded(body, size_hint.WRITE_STATES["begun"], 0.0))
    with ann.client.counting() as requests:
        report = await ann.queue.sweep(TOPIC)
    assert [failure for failure in report.failures if WRITE in failure]
    assert layout.swept(TOPIC) in world.bucket.below()
    assert requests.total() < 50


async def test_a_write_of_which_nothing_is_begun_goes_on(world: World, ann: Process) -> None:
    """A record of a write that was decided, and of which no chunk was begun, is carried out like any other."""
    row = json.dumps({"id": OTHER, "payload": {"n": 0}}).encode() + b"\n"
    staged = {"name": STAGED, "size": len(row), "count": 1}
    place = int(world.clock.server() * 1e6)
    world.bucket.plant(WRITE, {**BEGUN, "count": 1, "begun": 0, "place": place, "objects": [staged]})
    world.bucket.plant(layout.staged_object(TOPIC, "w", STAGED), row)
    report = await ann.queue.sweep(TOPIC)
    assert (report.finished_writes, report.failures) == (1, [])
    assert numbers(await ann.queue.claim(TOPIC, "c")) == [0]


@pytest.mark.parametrize(
    "rows",
    [
        b" " * 60,
        (b"{}" + b" " * 60 + b"\n") * 5,
        json.dumps({"id": "../../x", "payload": {}}).encode() + b" " * 60 + b"\n",
        (b" " * 60 + b"\n") * 5,
        b"x" * 60,
    ],
    ids=["none", "no messages", "an id that leaves the folder", "empty", "too few"],
)
async def test_forged_rows_are_not_published(world: World, ann: Process, rows: bytes) -> None:
    """A staged object that is not what its record says counts as gone: nothing of it is written anywhere."""
    count = max(1, rows.count(b"\n"))
    staged = {"name": STAGED, "size": len(rows), "count": count}
    world.bucket.plant(WRITE, {**BEGUN, "count": count, "begun": count, "objects": [staged]})
    world.bucket.plant(layout.staged_object(TOPIC, "w", STAGED), rows)
    report = await ann.queue.sweep(TOPIC)
    assert report.failures == []
    assert world.bucket.below("messages/") == []
    assert [key for _, key in ann.client.requests if ".." in key] == []


async def test_a_planted_registration_stops_nobody(world: World, ann: Process) -> None:
    """Names that nobody could register are left out of the list."""
    await ann.queue.register_consumer("good")
    for name in ("\ud800", "\x00", "x" * 1000):
        world.bucket.plant(layout.registration("consumers", world.clock.uuid()), {**SEEN, "name": name})
    assert [each.name for each in await ann.queue.list_consumers()] == ["good"]

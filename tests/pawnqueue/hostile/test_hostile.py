"""What somebody who may write to the bucket can do to those who consume from it, and what not: SECURITY.md."""

from __future__ import annotations

import ast
import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pawnqueue
from pawnqueue.catalog import letters as dead_letters
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain.claim_record import ClaimRecord
from pawnqueue.domain.lease import Lease
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.domain.write_record import WriteRecord
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered, numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(pawnqueue.__file__).parent.parent
PACKAGES = ("pawnqueue", "pyspark_pawnqueue", "airflow_provider_pawnqueue")
STAMP = "20261118T000000_000000"
OTHER = "11111111-2222-4333-8444-555555555555"
STRANGE = "../../victim/messages/x.json"


def held(name: str, **fields: Any) -> Mapping[str, Any]:
    """Return a lease that is long over, of a claim that has a record."""
    return {"v": 1, "state": "held", "until": 1.0, "ttl": 1.0, "key": name, "claim": "forged.0", **fields}


def decided(uuid: str, name: str, how: str) -> Mapping[str, Any]:
    """Return a record that says what was decided of a message."""
    member = {uuid: {"name": name}}
    return {"v": 1, "claim_id": "forged", "state": "expired", "members": member, "settled": {uuid: {"how": how}}}


OUT_OF_THE_FOLDER = {
    "a member's name": (ClaimRecord, {"claim_id": "c", "members": {OTHER: {"name": STRANGE}}}),
    "a member's uuid": (ClaimRecord, {"claim_id": "c", "members": {STRANGE: {"name": "x.json"}}}),
    "a claim's id": (ClaimRecord, {"claim_id": STRANGE}),
    "a write's id": (WriteRecord, {"write_id": STRANGE}),
    "a staged object": (WriteRecord, {"write_id": "w", "objects": [{"name": STRANGE, "size": 1, "count": 1}]}),
    "a dropped object": (WriteRecord, {"write_id": "w", "dropped": [STRANGE]}),
    "a lease's message": (Lease, {"key": STRANGE}),
    "a dead letter's uuid": (Lease, {"state": "moving", "source": STRANGE}),
}


@pytest.mark.parametrize(("kind", "body"), OUT_OF_THE_FOLDER.values(), ids=OUT_OF_THE_FOLDER)
def test_a_record_that_names_another_folder_is_garbage(
    kind: type[ClaimRecord | WriteRecord | Lease], body: Mapping[str, Any]
) -> None:
    """What a record names becomes the last part of a key: with a slash it would be another topic's."""
    with pytest.raises(UnreadableRecordError):
        kind.decode(json.dumps(body).encode(), "some/key")


@pytest.mark.parametrize("how", ["acked", "dead", "released"])
async def test_a_forged_record_reaches_no_other_topic(world: World, ann: Process, how: str) -> None:
    """Consumers and janitors with rights on all topics send no request that leaves the record's own."""
    world.topic("victim")
    [victim] = world.fill([{"id": OTHER, "payload": {}}], topic="victim")
    [name] = world.bucket.below("messages/", topic="victim")
    before = {key: found for key, found in world.bucket.snapshot().items() if key.startswith("victim/")}
    [uuid] = world.fill([{"id": OTHER, "payload": {"n": 0}}])
    strange = f"../../victim/messages/{name}"
    world.bucket.plant(layout.lease(TOPIC, uuid), held(strange))
    world.bucket.plant(layout.claim(TOPIC, "forged.0"), decided(uuid, strange, how))
    world.bucket.plant(
        layout.lease(TOPIC, victim), {"v": 1, "state": "moving", "until": 1.0, "key": strange, "source": strange}
    )
    await world.later(600)

    assert numbers(await ann.queue.claim(TOPIC, "c")) == [0]
    await ann.queue.sweep(TOPIC)

    assert {key: found for key, found in world.bucket.snapshot().items() if key.startswith("victim/")} == before
    assert [key for _, key in ann.client.requests if ".." in key] == []


async def test_a_forged_record_deletes_messages_of_its_topic(world: World, ann: Process) -> None:
    """A writer of claims and leases can have messages removed, as others carry out what a record has decided."""
    [uuid] = world.fill([{"id": OTHER, "payload": {"n": 0}}])
    [name] = world.bucket.below("messages/")
    world.bucket.plant(layout.lease(TOPIC, uuid), held(name))
    world.bucket.plant(layout.claim(TOPIC, "forged.0"), decided(uuid, name, "acked"))
    await world.later(600)

    assert not await ann.queue.claim(TOPIC, "c", wait=5)
    assert world.bucket.below("messages/") == []


async def test_a_forged_lease_keeps_a_message_until_it_is_deleted(world: World, ann: Process) -> None:
    """It holds for as long as it says, be it a century; the message itself is untouched, and others are delivered."""
    await ann.queue.publish(TOPIC, numbered(2))
    first, _ = world.bucket.below("messages/")
    parsed = units.parse(first)
    assert parsed is not None
    key = layout.lease(TOPIC, parsed.id)
    world.bucket.plant(key, held(first, until=world.clock.server() + 100 * 365 * 86400))
    await world.later()

    claim = await ann.queue.claim(TOPIC, "c", max_messages=9)
    assert numbers(claim) == [1]
    await ann.queue.ack(claim)
    world.bucket.remove(key)
    await world.later()
    assert numbers(await ann.queue.claim(TOPIC, "c", max_messages=9)) == [0]


async def test_another_spelling_of_a_record_s_key_is_a_stranger(world: World, ann: Process) -> None:
    """A generation with leading zeros names a record that has another key: it is left alone, and reported by sweeps."""
    record = {"v": 1, "claim_id": "job", "generation": 7, "state": "open", "until": 4e9}
    planted = {"job": (layout.claim(TOPIC, "job.007"), record), "other": (layout.claim(TOPIC, "other.00"), "x")}
    for number, (claim_id, (key, body)) in enumerate(planted.items()):
        world.bucket.plant(key, body)
        await ann.queue.publish(TOPIC, numbered(1, number))
        before = len(ann.client.requests)
        assert list(await ann.queue.release(TOPIC, claim_id, "c")) == []
        claim = await ann.queue.claim(TOPIC, "c", claim_id=claim_id)
        assert numbers(claim) == [number]
        await ann.queue.ack(claim)
        assert len(ann.client.requests) - before < 40
    assert {key for key, _ in planted.values()} <= set((await ann.queue.sweep(TOPIC)).strangers)


async def test_a_copy_of_a_message_is_delivered_again(world: World, ann: Process) -> None:
    """Nothing is signed: what was acked can be put back, under its id or any other, from any producer."""
    [published] = await ann.queue.publish(TOPIC, numbered(1), producer="shop")
    [name] = world.bucket.below("messages/")
    body = world.bucket.body(units.key_of(TOPIC, name))
    await ann.queue.ack(await ann.queue.claim(TOPIC, "c"))
    world.bucket.plant(units.key_of(TOPIC, f"{STAMP}-{OTHER}.json"), body)
    world.fill([{**json.loads(body), "producer_id": "who I like to be"}])

    again = await ann.queue.claim(TOPIC, "c", max_messages=9)
    assert again.ids == [published, published]
    assert "who I like to be" in {message.producer_id for message in again}


async def test_two_messages_under_one_uuid_are_both_delivered(world: World, ann: Process) -> None:
    """A uuid is its publisher's to choose: an existing one costs neither message its delivery."""
    for number, stamp in enumerate((STAMP, STAMP.replace("2026", "0001"))):
        body = {"id": OTHER, "payload": {"n": number}}
        world.bucket.plant(units.key_of(TOPIC, f"{stamp}-{OTHER}.json"), json.dumps(body))
    seen = []
    while claim := await ann.queue.claim(TOPIC, "c", max_messages=9):
        seen += numbers(claim)
        await ann.queue.ack(claim)
        await world.later(60)
    assert sorted(seen) == [0, 1]


STRANGE_FIELDS: dict[str, Mapping[str, Any]] = {
    "an id that is empty": {"id": ""},
    "an id that is long": {"id": "x" * 1_000_000},
    "an id of another message": {"id": OTHER},
    "no time": {"created_at": "yesterday"},
    "a time past all": {"created_at": "99999-01-01T00:00:00+00:00"},
    "a time before all": {"created_at": "0001-01-01T00:00:00+23:59"},
    "a format before the first": {"v": -5},
    "a format that is a switch": {"v": True},
    "a huge priority": {"priority": 10**4000},
    "many headers": {"headers": {f"h{number}": "x" for number in range(20_000)}},
    "another topic": {"topic": "../victim"},
    "fields of Python's": {"__class__": "x", "model_config": {}, "payload": {"__proto__": 1, "n": 0}},
}


@pytest.mark.parametrize("fields", STRANGE_FIELDS.values(), ids=STRANGE_FIELDS)
async def test_strange_fields_stop_nobody(
    world: World, ann: Process, caplog: pytest.LogCaptureFixture, fields: Mapping[str, Any]
) -> None:
    """A message whose fields are what nobody publishes is delivered or buried, shown and redriven like any other."""
    caplog.set_level(logging.DEBUG)
    world.fill([{"id": OTHER, "payload": {"n": 0}, **fields}])
    await ann.queue.publish(TOPIC, numbered(1, 1))
    await world.later(1)
    assert len(await ann.queue.peek(TOPIC)) >= 1
    claim = await ann.queue.claim(TOPIC, "c", max_messages=9)
    assert numbers(claim)[-1] == 1
    for message in claim:
        assert message.created_at.tzinfo
    await ann.queue.nack(claim, reason="looked at")
    await ann.queue.dead_letters(TOPIC)
    await ann.queue.redrive(TOPIC)
    await ann.queue.sweep(TOPIC)
    await world.later(60)
    assert numbers(await ann.queue.claim(TOPIC, "c", max_messages=9))[-1] == 1
    assert max(len(record.getMessage()) for record in caplog.records) < 5_000


#: Python's calendar ends within the first one's day, and the last microseconds before its end round up in a float.
TIMES_OUT_OF_BOUNDS = [
    "99991231T235959_999999",
    "99990101T000000_000001",
    "19691231T235959_999999",
    "00010101T000000_0",
]


@pytest.mark.parametrize("stamp", TIMES_OUT_OF_BOUNDS)
async def test_a_time_out_of_bounds_in_a_name_stops_nobody(world: World, ann: Process, stamp: str) -> None:
    """A message whose body and name have no time within the bounds of §1 is as old as can be, in every look."""
    forged = f"!9-{stamp.ljust(22, '0')}-{OTHER}.json"
    world.bucket.plant(units.key_of(TOPIC, forged), {"id": "x", "payload": {"n": 0}})
    await ann.queue.publish(TOPIC, numbered(1, 1))
    await world.later(1)

    assert next(message.created_at for message in await ann.queue.peek(TOPIC)) == datetime.fromtimestamp(0, UTC)
    assert 0 <= (await ann.queue.stats(TOPIC)).oldest_age_seconds < 60
    [portion] = await ann.queue.portions(TOPIC, parts=1)
    assert len(await ann.queue.read(portion)) == 2
    claim = await ann.queue.claim(TOPIC, "c", max_messages=9)
    assert numbers(claim) == [0, 1]
    assert len(await ann.queue.messages(claim.reference)) == 2
    await ann.queue.nack(claim, reason="looked at")

    # The time of a letter is that of the name in its reason, and anything may be there.
    world.bucket.plant(
        dead_letters.reason_key_of(TOPIC, OTHER), {"reason": "r", "at": "9999-12-31T23:59:59", "name": forged}
    )
    letters = {letter.id: letter for letter in await ann.queue.dead_letters(TOPIC)}
    letter = letters[OTHER]
    assert letter.message is not None
    assert letter.message.created_at == datetime.fromtimestamp(0, UTC)
    assert letter.buried_at.year < 9999


@pytest.mark.parametrize("depth", [65, 300, 700, 900, 950, 980, 1000, 10_000])
async def test_nesting_past_the_limit_stops_nobody(world: World, ann: Process, depth: int) -> None:
    """A payload that is nested more deeply than may be published is delivered, or buried; those around it come."""
    deep = '{"id": "x", "payload": {"n": 0, "deep": ' + "[" * depth + "]" * depth + "}}"
    world.fill([deep])
    await ann.queue.publish(TOPIC, numbered(1, 1))
    await world.later(1)

    claim = await ann.queue.claim(TOPIC, "c", max_messages=9)
    assert numbers(claim)[-1] == 1
    await ann.queue.nack(claim, reason="looked at")
    await ann.queue.dead_letters(TOPIC)
    await ann.queue.sweep(TOPIC)
    assert world.bucket.below("messages/") == []


async def test_what_others_wrote_makes_no_lines_in_the_log(
    world: World, ann: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """Line breaks and terminal sequences in keys, ids, reasons and names of consumers are written out."""
    caplog.set_level(logging.DEBUG)
    evil = "x\n2026-11-18 root logged in \x1b[2J"
    [uuid, other] = world.fill([{"id": evil, "payload": {}, "producer_id": evil}, "bad" + evil])
    for unit, name in zip([uuid, other], world.bucket.below("messages/"), strict=True):
        world.bucket.plant(layout.lease(TOPIC, unit), held(name, consumer_id=evil, reason=evil, error=evil))
    record = {"v": 1, "claim_id": "forged", "owner": evil, "consumer": evil, "session": evil, "until": 1.0}
    world.bucket.plant(layout.claim(TOPIC, "forged.0"), {**record, "members": {}})
    world.bucket.plant(f"{TOPIC}/messages/{evil}", "a key")
    world.bucket.plant(f"{TOPIC}/claims/{evil}", "a key")
    await world.later(600)

    claim = await ann.queue.claim(TOPIC, "c", max_messages=9)
    await ann.queue.nack(claim, reason=evil, error=evil)
    await ann.queue.dead_letters(TOPIC)
    await ann.queue.sweep(TOPIC)
    told = [record.getMessage() for record in caplog.records]
    assert told
    assert [line for line in told if not line.isprintable()] == []


#: What makes an object, or a program, of text or bytes; of the modules, whatever of them is imported.
EXECUTES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "eval", "exec", "compile", "__import__"}
#: Its own exceptions, from bytes that it has made on the same line; and payloads are written by it, and never read.
OF_ITS_OWN = {("pawnqueue/errors.py", "pickle"), ("pawnqueue/publish/plain_json.py", "marshal")}


def test_no_payload_is_ever_executed() -> None:
    """No file of the packages imports what unpickles, or calls what evaluates; and its YAML loader is a safe one."""
    found = set()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import():
                    names |= {each.name.partition(".")[0] for each in node.names}
                case ast.ImportFrom(module=str(module)):
                    names.add(module.partition(".")[0])
                case ast.Call(func=ast.Name(id=name)):
                    names.add(name)
        found |= {(str(path.relative_to(ROOT)), name) for name in names & EXECUTES}
    assert found == OF_ITS_OWN
    assert "marshal.load" not in (ROOT / "pawnqueue/publish/plain_json.py").read_text()
    assert "class Loader(yaml.SafeLoader)" in (ROOT / "pawnqueue/settings/yaml_file.py").read_text()


async def test_a_dead_letter_is_overwritten_by_one_under_its_uuid(world: World, ann: Process) -> None:
    """A publisher that knows the uuid of a dead letter can have it replaced by another one that is buried."""
    [victim] = await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"), reason="wrong")
    assert len(await ann.queue.dead_letters(TOPIC)) == 1
    world.bucket.plant(units.key_of(TOPIC, f"{STAMP}-{victim}.json"), "no message")
    await world.later(60)

    assert not await ann.queue.claim(TOPIC, "c")
    [letter] = await ann.queue.dead_letters(TOPIC)
    assert (letter.id, letter.message) == (victim, None)

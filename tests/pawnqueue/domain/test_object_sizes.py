"""What is read from the bucket is bounded: an object that is larger than any of ours is garbage, or left to others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import InvalidArgumentError, ObjectTooLargeError, StagedGoneError
from pawnqueue.catalog import letters, units
from pawnqueue.claims import claiming, packs
from pawnqueue.domain import claim_record, layout, object_sizes, share, write_record
from pawnqueue.domain import lease as leases
from pawnqueue.domain.bounds import (
    LATEST_TIME,
    LONGEST_MESSAGE_ID_BYTES,
    LONGEST_NAME_BYTES,
    MAX_HOLDER_CHARACTERS,
    MOST_COUNT,
    MOST_OBJECT_BYTES,
    MOST_RANGES,
)
from pawnqueue.domain.claim_record import ClaimRecord, Decision, Member, PartDecision
from pawnqueue.domain.claim_terms import ClaimTerms
from pawnqueue.domain.lease import Lease
from pawnqueue.domain.numbers import MAX_PACK_MESSAGES
from pawnqueue.domain.numbers import between as numbers_between
from pawnqueue.domain.object_sizes import (
    CLAIM_MEMBER_BYTES,
    CLAIM_OTHER_BYTES,
    CLAIM_PART_BYTES,
    ENVELOPE_OVERHEAD_BYTES,
    FENCED_NUMBERS_FACTOR,
    MAX_CLAIM_FIRST_PARTS,
    MAX_CLAIM_MESSAGES,
    MAX_CLAIM_PACKED_MESSAGES,
    MAX_CLAIM_PARTS,
    MAX_CLAIM_RECORD_BYTES,
    MAX_LEASE_BYTES,
    MAX_SMALL_RECORD_BYTES,
    MAX_STAGED_OBJECTS,
    MAX_UNKNOWN_BYTES,
    MAX_WRITE_RECORD_BYTES,
    STAGED_OBJECT_BYTES,
)
from pawnqueue.domain.record import Record, UnreadableRecordError, to_json
from pawnqueue.domain.share import Share
from pawnqueue.domain.write_record import Rows, StagedObject, WriteRecord
from pawnqueue.publish import writes
from pawnqueue.registers import claim_records
from pawnqueue.registers.claim_records import MEMBER_BYTES
from pawnqueue.terms import CheckedTerms
from tests.pawnqueue.publish.written import COUNT, WRITE, staged
from tests.pawnqueue.virtual import TOPIC, Bucket, Process, World, numbered, numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pawnqueue.stores.port import StoredObject

LIMIT = 1000
TOO_LARGE = LIMIT + ENVELOPE_OVERHEAD_BYTES + 1


def padded(body: Mapping[str, Any], size: int) -> bytes:
    """A valid body, with spaces behind it."""
    return json.dumps(body).encode().ljust(size)


@pytest.fixture
async def small(world: World) -> Process:
    """A process that takes small messages only."""
    return await world.process(limits={"max_payload_bytes": LIMIT})


@pytest.fixture
def downloaded(world: World, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How large the bodies are that the bucket has handed out."""
    sizes: list[int] = []
    original = Bucket.get

    async def get(self: Bucket, key: str, most: int) -> StoredObject | None:
        found = await original(self, key, most)
        sizes.append(len(found.body) if found else 0)
        return found

    monkeypatch.setattr(Bucket, "get", get)
    for folder in ("claims", "writes"):
        monkeypatch.setitem(object_sizes._REGISTERS, folder, MAX_SMALL_RECORD_BYTES)  # quicker to plant
    return sizes


async def test_a_message_that_grows_after_it_was_listed_is_given_back(
    world: World, small: Process, downloaded: list[int]
) -> None:
    """⚑ §5.6: it is neither downloaded nor buried nor counted, and is left to a consumer that takes it."""
    [uuid] = await small.queue.publish(TOPIC, numbered(1))
    await small.queue.publish(TOPIC, numbered(1, 1))
    key = units.key_of(TOPIC, world.bucket.below("messages/")[0])

    def overwrite(kind: str, asked: str) -> None:
        if (kind, asked) == ("GET", key) and len(world.bucket.body(key)) < TOO_LARGE:
            world.bucket.plant(key, padded({"id": uuid, "payload": {"n": 7}}, TOO_LARGE))

    small.client.meanwhile = overwrite
    claim = await small.queue.claim(TOPIC, "small")
    assert numbers(claim) == [1]
    await small.queue.ack(claim)
    assert not await small.queue.claim(TOPIC, "small")
    assert max(downloaded) < TOO_LARGE
    assert world.bucket.below("dead-letter/") == []
    large = await world.process()
    [message] = await large.queue.claim(TOPIC, "large")
    assert (message.payload["n"], message.deliveries) == (7, 1)


async def test_a_claimed_message_that_grows_is_not_read(world: World, small: Process, downloaded: list[int]) -> None:
    """Portions, and an attachment, read no more of a claimed message than a claim does."""
    [uuid] = await small.queue.publish(TOPIC, numbered(1))
    claim = await small.queue.claim(TOPIC, "c", claim_id="run", ttl=600)
    key = units.key_of(TOPIC, world.bucket.below("messages/")[0])
    world.bucket.plant(key, padded({"id": uuid, "payload": {"n": 7}}, TOO_LARGE))
    with pytest.raises(ObjectTooLargeError, match=key):
        await small.queue.messages(claim.reference)
    attached = await small.queue.attach(claim.hand_over(), ttl=600)
    assert list(attached) == []
    assert max(downloaded) < TOO_LARGE


async def test_looks_leave_out_what_is_too_large(world: World, small: Process, downloaded: list[int]) -> None:
    """Peek shows the others; a dead letter tells that it is too large, and one with a large reason is found."""
    world.fill([padded({"id": "large", "payload": {}}, TOO_LARGE)])
    [dead] = await small.queue.publish(TOPIC, numbered(1, 1))
    await small.queue.nack(await small.queue.claim(TOPIC, "c"), reason="wrong")
    await small.queue.publish(TOPIC, numbered(1, 2))
    assert numbers(await small.queue.peek(TOPIC)) == [2]
    world.bucket.plant(letters.key_of(TOPIC, dead), padded({"id": dead, "payload": {}}, TOO_LARGE))
    [letter] = await small.queue.dead_letters(TOPIC)
    assert letter.message is None
    assert f"{TOO_LARGE:,} bytes" in letter.fault
    reason = letters.reason_key_of(TOPIC, dead)
    world.bucket.plant(reason, padded({"v": 1, "reason": "x"}, MAX_SMALL_RECORD_BYTES + 1))
    [letter] = await small.queue.dead_letters(TOPIC)
    assert reason in letter.fault
    found = await small.queue.find(TOPIC, dead)
    assert found is not None
    assert (found.state, found.reason) == ("dead", "")
    with pytest.raises(InvalidArgumentError, match="has no dead letter"):
        await small.queue.redrive(TOPIC, ids=["none"])
    assert max(downloaded) <= MAX_SMALL_RECORD_BYTES


async def test_a_claim_record_that_is_larger_than_any_is_garbage(
    world: World, ann: Process, downloaded: list[int]
) -> None:
    """It covers nothing and settles nothing: its message is delivered when the lease's time is over."""
    [uuid] = await ann.queue.publish(TOPIC, numbered(1))
    name = world.bucket.below("messages/")[0]
    lease = {"v": 1, "state": "held", "until": world.clock.server() + 100, "key": name, "claim": "forged.0"}
    world.bucket.plant(layout.lease(TOPIC, uuid), lease)
    record = {"v": 1, "claim_id": "forged", "until": world.clock.server() + 10_000, "members": {uuid: {"name": name}}}
    world.bucket.plant(layout.claim(TOPIC, "forged.0"), padded(record, MAX_SMALL_RECORD_BYTES + 1))
    await world.later(200)
    await ann.queue.stats(TOPIC)
    assert numbers(await ann.queue.claim(TOPIC, "c")) == [0]
    await ann.queue.sweep(TOPIC)
    assert max(downloaded) <= MAX_SMALL_RECORD_BYTES


async def test_a_write_record_that_is_larger_than_any_is_garbage(
    world: World, ann: Process, downloaded: list[int]
) -> None:
    """A sweep goes on behind it, and a topic in which it lies works."""
    record = {"v": 1, "write_id": WRITE, "state": "begun", "count": 1}
    world.bucket.plant(layout.write(TOPIC, WRITE), padded(record, MAX_SMALL_RECORD_BYTES + 1))
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.sweep(TOPIC)
    assert numbers(await ann.queue.claim(TOPIC, "c")) == [0]
    assert max(downloaded) <= MAX_SMALL_RECORD_BYTES


async def test_a_staged_object_that_grows_is_not_read(world: World, small: Process, downloaded: list[int]) -> None:
    """It is not what was staged: the commit says so, as where it is gone."""
    parts = await staged(small)
    key = layout.staged_object(TOPIC, WRITE, parts[0].objects[0].name)
    original = small.client.meanwhile

    def overwrite(kind: str, asked: str) -> None:
        if (kind, asked) == ("GET", key):
            world.bucket.plant(key, b" " * (STAGED_OBJECT_BYTES + TOO_LARGE))

    small.client.meanwhile = overwrite
    with pytest.raises(StagedGoneError, match=key):
        await small.queue.commit_write(TOPIC, WRITE, parts)
    small.client.meanwhile = original
    assert max(downloaded) < STAGED_OBJECT_BYTES


async def test_a_claims_record_never_outgrows_what_is_read_of_it(ann: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are cut until the record fits, the decisions stay; and no claim takes more messages than a record holds."""
    most = 1_000_000
    monkeypatch.setattr(claim_records, "MAX_CLAIM_RECORD_BYTES", most)
    text = "\x01" * 2000
    uuids = [f"00000000-0000-4000-8000-{number:012d}" for number in range(30)]
    record = ClaimRecord(
        claim_id="run",
        members={uuid: Member(name=f"m{uuid}", reason=text, error=text) for uuid in uuids},
        settled={uuid: Decision(how="dead", reason=text, error=text) for uuid in uuids},
    )
    cut = claim_records._fitting(record)
    assert len(cut.encode()) <= most < len(record.encode())
    assert {decision.how for decision in cut.settled.values()} == {"dead"}
    assert min(len(decision.error) for decision in cut.settled.values()) > 1000
    assert claim_records._fitting(cut) is cut
    terms = CheckedTerms.of(ann.queue.settings, ClaimTerms(topic=TOPIC, consumer="c", max_messages=10**9))
    assert terms.max_messages == MAX_CLAIM_PACKED_MESSAGES


@pytest.mark.parametrize(("too_long", "longest"), [("x" * 256, "x" * 255), ("\x01" * 43, "\x01" * 42)])
async def test_a_message_with_a_very_long_id_is_buried(world: World, ann: Process, too_long: str, longest: str) -> None:
    """A claim's record keeps ids that a publisher chose, so they are bounded: by what they take there."""
    world.fill([{"id": too_long, "payload": {}}, {"id": longest, "payload": {}}])
    await world.later(1)
    claim = await ann.queue.claim(TOPIC, "c")
    assert claim.ids == [longest]
    assert len(await ann.queue.dead_letters(TOPIC)) == 1


def test_a_claim_record_that_can_be_read_can_be_fenced() -> None:
    """Every member has room for the longest name, the longest id and a decision, however many members there are."""
    uuid, lasting = "ABCDEF00-0000-4000-8000-000000000000", LATEST_TIME - 0.1
    member = Member(name='"' * LONGEST_NAME_BYTES, size=MOST_OBJECT_BYTES, deliveries=MOST_COUNT)
    decision = Decision(how="released", until=lasting, max_deliveries=MOST_COUNT, id="x" * LONGEST_MESSAGE_ID_BYTES)
    without = ClaimRecord(claim_id="c").model_copy(update={"members": {}, "settled": {}})
    record = without.model_copy(update={"members": {uuid: member}, "settled": {uuid: decision}})
    per_member = len(Record.encode(record)) - len(Record.encode(without))
    assert per_member <= MEMBER_BYTES + 2 * LONGEST_NAME_BYTES + LONGEST_MESSAGE_ID_BYTES
    holder = "\x01" * MAX_HOLDER_CHARACTERS
    full = without.model_copy(
        update={"owner": holder, "consumer": holder, "session": holder, "claim_id": "c" * 255, "nonce": "n" * 64}
    )
    assert len(Record.encode(full)) + MAX_UNKNOWN_BYTES + 3 <= CLAIM_OTHER_BYTES
    assert MEMBER_BYTES + 2 * LONGEST_NAME_BYTES + LONGEST_MESSAGE_ID_BYTES <= CLAIM_MEMBER_BYTES
    assert MAX_CLAIM_MESSAGES * CLAIM_MEMBER_BYTES + CLAIM_OTHER_BYTES <= MAX_CLAIM_RECORD_BYTES


def test_the_texts_of_a_claim_record_make_room_for_its_names_and_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that was read with as many texts, names and ids as it can have is smaller after it was fenced."""
    monkeypatch.setattr(claim_records, "MAX_CLAIM_RECORD_BYTES", 300_000)
    uuids = [f"00000000-0000-4000-8000-{number:012d}" for number in range(150)]
    text, name = "\x01" * 200, '"' * 213
    record = ClaimRecord(
        claim_id="run",
        members={uuid: Member(name=f"{name}-{uuid}.json", reason=text) for uuid in uuids},
        settled={uuid: Decision(how="acked", id="\x01" * 42) for uuid in uuids[:75]},
    )
    left = {uuid: Decision(how="released", by="other", max_deliveries=MOST_COUNT) for uuid in record.unsettled}
    fenced = record.model_copy(update={"state": "expired", "settled": {**record.settled, **left}})
    assert len(claim_records._fitting(fenced).encode()) <= 300_000 < len(fenced.encode())


# --- packs ---

UNIT = "ABCDEF00-0000-4000-8000-000000000000.0-4096"
PACK = f"{'x' * (LONGEST_NAME_BYTES - 53)}-ABCDEF00-0000-4000-8000-000000000000.4096.jsonl.zst"
LEASE_KEY = layout.lease(TOPIC, UNIT)
EVEN, ODD = (sum(1 << number for number in range(start, MAX_PACK_MESSAGES, 2)) for start in (0, 1))


def test_the_largest_lease_of_a_pack_can_be_read() -> None:
    """⚑ §1: each message with a history of its own, and texts: after every hand-out, lapse and release it is small."""
    text, holder = "\x01" * 2000, "\x01" * MAX_HOLDER_CHARACTERS
    shares = [
        Share(of=1 << number, deliveries=MOST_COUNT - number, until=1e11 + number / 3, lapsed=MOST_COUNT)
        for number in range(MAX_PACK_MESSAGES)
    ]
    shares = [each.model_copy(update={"reason": text, "error": text}) for each in shares]
    claim = f"{'c' * 128}.{'9' * 18}"
    for _ in range(2):
        times: dict[str, Any] = {"until": 1e11 + 1 / 3, "ttl": 1e9 + 1 / 3}
        held = leases.held_pack(UNIT, PACK, shares, EVEN, consumer=holder, claim=claim, **times)
        told = packs.after_hand_out(held)
        freed = leases.released_pack(UNIT, PACK, told.shares, consumer=holder, claim=claim, now=1e9)
        split = leases.split(UNIT, PACK, freed.shares, 41, consumer=holder, now=1e9)
        for lease in (held, told, freed, split):
            body = lease.stamped("n" * 64).encode()
            assert len(body) <= MAX_LEASE_BYTES
            assert len(Lease.decode(body, LEASE_KEY).shares) >= MAX_PACK_MESSAGES - 1  # two may become alike
        shares = [each.model_copy(update={"reason": text, "error": text}) for each in freed.shares]


def test_a_lease_that_can_be_read_can_be_taken_over() -> None:
    """⚑ §1: texts that fill a lease, are cut by the next process that writes its shares."""
    shares = [{"of": str(number), "reason": "r" * 2000, "error": "e" * 1990 + str(number)} for number in range(191)]
    body = json.dumps({"v": 1, "state": "released", "key": PACK, "shares": shares}).encode()
    assert MAX_LEASE_BYTES - 20_000 < len(body) <= MAX_LEASE_BYTES
    lease = Lease.decode(body, LEASE_KEY)
    holder = "\x01" * MAX_HOLDER_CHARACTERS
    held = leases.held_pack(UNIT, PACK, lease.shares, EVEN & 255, consumer=holder, claim="c.0", until=1e11, ttl=1e9)
    again = held.encode()
    assert len(again) <= MAX_LEASE_BYTES
    assert share.union(Lease.decode(again, LEASE_KEY).shares) == share.union(lease.shares)


def test_a_part_of_a_pack_takes_no_more_than_is_reckoned() -> None:
    """A share, and a decision, without its texts and numbers; and the member that has them, with the longest name."""
    lasting = LATEST_TIME - 0.1
    part = PartDecision(of=1, how="released", until=lasting, max_deliveries=MOST_COUNT, by="closing")
    one = Share(of=1, deliveries=MOST_COUNT, lapsed=MOST_COUNT, until=lasting, reason="x", error="x")
    for each in (part, one):
        assert len(to_json(each.model_dump(mode="json"))) + 1 <= CLAIM_PART_BYTES
    member = Member(name=PACK, size=MOST_OBJECT_BYTES, shares=[one], rest=2, decided=[part])
    whole = Decision(how="released", until=lasting, max_deliveries=MOST_COUNT, id="x" * LONGEST_MESSAGE_ID_BYTES)
    empty = ClaimRecord(claim_id="c").model_copy(update={"members": {}, "settled": {}})
    full = empty.model_copy(update={"members": {UNIT: member}, "settled": {UNIT: whole}})
    assert len(Record.encode(full)) - len(Record.encode(empty)) <= CLAIM_MEMBER_BYTES + 2 * CLAIM_PART_BYTES


def test_the_largest_claim_of_packs_can_be_settled_in_any_way() -> None:
    """⚑ §1: as many packs as it may have, each with six kinds of decisions, and its numbers as scattered as can be."""
    kinds = 6
    assert MAX_CLAIM_FIRST_PARTS * (1 + kinds) <= MAX_CLAIM_PARTS
    a_number, a_run = len("4095,"), len("4094-4095,")
    # It was given these, and others are left; and each message may be decided by itself.
    numbers_ = 2 * a_run * MAX_CLAIM_FIRST_PARTS + a_number * MAX_CLAIM_PACKED_MESSAGES
    needed = CLAIM_MEMBER_BYTES * MAX_CLAIM_FIRST_PARTS + CLAIM_PART_BYTES * MAX_CLAIM_PARTS
    assert needed + FENCED_NUMBERS_FACTOR * numbers_ <= MAX_CLAIM_RECORD_BYTES - CLAIM_OTHER_BYTES


def _with_packs(count: int, decided: int = EVEN) -> ClaimRecord:
    parts = [PartDecision(of=decided, how="acked")] if decided else []
    uuids = [f"00000000-0000-4000-8000-{number:012d}" for number in range(count)]
    members = {
        layout.pack_unit_id(uuid, MAX_PACK_MESSAGES): Member(
            name=f"x-{uuid}.4096.jsonl.zst", shares=[Share(of=EVEN | ODD, deliveries=1)], decided=parts
        )
        for uuid in uuids
    }
    return ClaimRecord(claim_id="run", members=members)


def test_a_claim_of_packs_that_can_be_read_can_be_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """⚑ §1: where each pack is decided in part, its fence adds one with as many numbers, and it is read again."""
    key = layout.claim(TOPIC, "run.0")
    monkeypatch.setattr(claim_record, "MAX_CLAIM_RECORD_BYTES", 1_000_000)
    monkeypatch.setattr(claim_records, "MAX_CLAIM_RECORD_BYTES", 1_000_000)
    most = next(count for count in range(1, 100) if not _is_read(_with_packs(count + 1), key))
    assert most > 5
    record = ClaimRecord.decode(_with_packs(most).encode(), key)
    left = dict.fromkeys(record.unsettled, Decision(how="released", by="other", reason="r" * 2000, error="e" * 2000))
    fenced = claim_records._fitting(record.with_decisions(left).model_copy(update={"state": "expired"}))
    assert len(fenced.encode()) <= 1_000_000
    again = ClaimRecord.decode(fenced.encode(), key)
    assert again.is_settled
    assert {each.how for each in again.all_decisions()} == {"acked", "released"}


def _is_read(record: ClaimRecord, key: str) -> bool:
    try:
        ClaimRecord.decode(record.encode(), key)
    except UnreadableRecordError:
        return False
    return True


@pytest.mark.parametrize("limit", [20, 4200])
def test_more_different_decisions_than_a_record_holds_are_joined(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """⚑ §1: what was decided stays, and the longest delay counts. As long as there is room, nothing is joined."""
    monkeypatch.setattr(claim_records, "MAX_CLAIM_PARTS", limit)
    monkeypatch.setattr(claim_record, "MAX_CLAIM_PARTS", limit)
    record = _with_packs(2, decided=0)
    new: dict[str, Decision] = {}
    for unit_id in record.members:
        for number in range(2000):
            how: Any = "dead" if number % 2 else "released"
            new[layout.entry_of(unit_id, number)] = Decision(how=how, until=1000.0 + number, reason=f"r{number}")
    fitting = claim_records._fitting(record.with_decisions(new))
    again = ClaimRecord.decode(fitting.encode(), layout.claim(TOPIC, "run.0"))
    for unit_id, member in again.members.items():
        assert len(member.decided) == (2 if limit == 20 else 2000)
        for number in (0, 1, 1998, 1999):
            decision = again.decision_of(layout.entry_of(unit_id, number))
            assert decision is not None
            assert decision.how == ("dead" if number % 2 else "released")
            assert decision.until == (2998.0 + number % 2 if limit == 20 else 1000.0 + number)
        assert again.undecided(unit_id) == numbers_between(2000, MAX_PACK_MESSAGES)


def test_numbers_are_a_text_in_a_stored_claim() -> None:
    """A set that is written as one large integer would be much longer when it is written again."""
    record = json.loads(_with_packs(1).encode())
    [member] = record["members"].values()
    for wrong in ({"shares": [{"of": EVEN}]}, {"rest": 1}, {"decided": [{"of": 4, "how": "acked"}]}):
        body = json.dumps({**record, "members": dict.fromkeys(record["members"], member | wrong)}).encode()
        with pytest.raises(UnreadableRecordError):
            ClaimRecord.decode(body, layout.claim(TOPIC, "run.0"))


async def test_a_claim_begins_with_no_more_parts_than_its_record_holds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """⚑ §1: packs whose messages have many histories are claimed a few at a time, and all of them in the end."""
    monkeypatch.setattr(claiming, "MAX_CLAIM_FIRST_PARTS", 7)
    world.topic(packs=True)
    ann = await world.process()
    for first in (0, 10, 20):
        world.plant_pack(10, first)
    claim = await ann.queue.claim(TOPIC, "c", max_messages=30)
    for number in (1, 3, 5, 12, 14, 22):
        await ann.queue.requeue(claim, [claim[number]], reason=f"r{number}")
    await ann.queue.requeue(claim)
    sizes = [len(await ann.queue.claim(TOPIC, "c", max_messages=30)) for _ in range(3)]
    assert (sum(sizes), sizes[0]) == (30, 10)


def _begun(objects: int, *, dropped: int = 0, theirs: str = "", in_object: str = "") -> bytes:
    staged_objects = [
        {"name": layout.staged_name(0, "0" * 32, number), "size": 100, "count": 1, "theirs": in_object}
        for number in range(objects)
    ]
    names = [layout.staged_name(1, "0" * 32, number) for number in range(dropped)]
    record = {"v": 1, "write_id": WRITE, "state": "begun", "count": objects, "objects": staged_objects}
    return json.dumps({**record, "dropped": names, "theirs": theirs}).encode()


def test_a_write_record_that_can_be_read_can_be_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a publisher may add to it is bounded: fields that we do not know, its own and its objects', and objects."""
    key, half = layout.write(TOPIC, WRITE), "x" * (MAX_UNKNOWN_BYTES // 2)
    monkeypatch.setattr(write_record, "MAX_STAGED_OBJECTS", 10)
    for good in (_begun(7, dropped=3), _begun(1, theirs=half, in_object=half[100:])):
        assert WriteRecord.decode(good, key).count
    for bad in (_begun(7, dropped=4), _begun(11), _begun(1, theirs=half, in_object=half)):
        with pytest.raises(UnreadableRecordError):
            WriteRecord.decode(bad, key)


def test_the_largest_write_has_room_for_its_progress() -> None:
    """With as many staged objects as it can have, it notes as many lost rows as it may, and stays readable."""
    one = StagedObject(name=layout.staged_name(0, "0" * 32, 0), size=MOST_OBJECT_BYTES, count=MOST_COUNT)
    without = WriteRecord(write_id="w" * 255, holder="\x01" * MAX_HOLDER_CHARACTERS)
    per_object = len(without.model_copy(update={"objects": [one]}).encode()) - len(without.encode())
    per_object = max(
        per_object,
        len(Record.encode(without.model_copy(update={"objects": [one, one]})))
        - len(Record.encode(without.model_copy(update={"objects": [one]}))),
    )
    lost = [Rows(first=MOST_COUNT, count=MOST_COUNT)] * MOST_RANGES
    rest = len(without.model_copy(update={"lost": lost}).encode()) + MAX_UNKNOWN_BYTES
    assert MAX_STAGED_OBJECTS * per_object + rest <= MAX_WRITE_RECORD_BYTES


async def test_a_commit_of_too_many_objects_decides_nothing(ann: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record would not be read by anyone. The error says what to do."""
    monkeypatch.setattr(writes, "MAX_STAGED_OBJECTS", 1)
    parts = await staged(ann)
    with pytest.raises(InvalidArgumentError, match=r"has 2 staged objects.*at most 1\."):
        await ann.queue.commit_write(TOPIC, WRITE, parts)
    monkeypatch.undo()
    assert (await ann.queue.commit_write(TOPIC, WRITE, parts)).count == COUNT

"""What a claim's record may take of a reader's memory (§1): members, unknown fields, and large records at once."""

from __future__ import annotations

import json

import pytest

from pawnqueue.claims import register_cache
from pawnqueue.domain import layout
from pawnqueue.domain.claim_record import ClaimRecord
from pawnqueue.domain.object_sizes import MAX_CLAIM_MESSAGES
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.registers.claim_records import ClaimRecordRegister
from tests.pawnqueue.virtual import TOPIC, World

MAX_UNKNOWN_BYTES = 64 * 1024


UUID = "11111111-2222-4333-8444-{:012}"


def _claim_body(members: int, settled: int, **more: object) -> bytes:
    names = {UUID.format(n): {"name": f"20260101T000000_000000-{UUID.format(n)}.json"} for n in range(members)}
    decided = {UUID.format(n): {"how": "acked"} for n in range(settled)}
    record = {"v": 1, "claim_id": "c", "members": names, "settled": decided, **more}
    return json.dumps(record).encode()


def test_a_claim_record_has_no_more_members_than_a_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is garbage before any member is made of it."""
    key = layout.claim(TOPIC, "c.0")
    full, over = _claim_body(MAX_CLAIM_MESSAGES, 1), _claim_body(MAX_CLAIM_MESSAGES + 1, 1)
    assert len(ClaimRecord.decode(full, key).members) == MAX_CLAIM_MESSAGES
    monkeypatch.setattr(ClaimRecord, "model_validate", None)  # nothing may be built
    for body in (over, _claim_body(1, MAX_CLAIM_MESSAGES + 1)):
        with pytest.raises(UnreadableRecordError):
            ClaimRecord.decode(body, key)


def test_a_claim_record_keeps_a_bounded_size_of_unknown_fields() -> None:
    """Its own and those of its members count together."""
    key, half = layout.claim(TOPIC, "c.0"), "x" * (MAX_UNKNOWN_BYTES // 2)
    kept = ClaimRecord.decode(_claim_body(1, 1, theirs=half), key)
    assert half.encode() in kept.encode()
    with pytest.raises(UnreadableRecordError):
        ClaimRecord.decode(_claim_body(1, 1, theirs=half + half), key)
    record = json.loads(_claim_body(2, 2, theirs=half))
    record["settled"][UUID.format(1)]["theirs"] = half
    with pytest.raises(UnreadableRecordError):
        ClaimRecord.decode(json.dumps(record).encode(), key)


async def test_large_records_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sizes bound how many, and one that is larger than the bound is read alone. All are read in the end."""
    monkeypatch.setattr(register_cache, "MAX_LARGE_BYTES_AT_ONCE", 3_000)
    monkeypatch.setattr(register_cache, "LARGE_RECORD_BYTES", 100)
    async with World() as w:
        a = await w.process()
        for n in range(9):
            body = ClaimRecord(
                claim_id=f"c{n}", until=w.clock.server() + 100, ttl=100.0, nonce="x" * (800 if n else 5_000)
            )
            w.bucket.plant(layout.claim(TOPIC, f"c{n}.0"), body.encode())
        keys = [layout.claim(TOPIC, f"c{n}.0") for n in range(9)]
        sizes = {key: len(w.bucket.body(key)) for key in keys}
        finder = a.queue._claims._topic(TOPIC).finder
        under_way: list[str] = []
        most = 0

        async def read(register: ClaimRecordRegister) -> None:
            nonlocal most
            under_way.append(register._key)
            size = sum(sizes[key] for key in under_way)
            assert size <= 3_000 or len(under_way) == 1
            most = max(most, len(under_way))
            await w.clock.sleep(1)
            under_way.remove(register._key)

        monkeypatch.setattr(ClaimRecordRegister, "read", read)
        await finder.covered()
        assert most > 1

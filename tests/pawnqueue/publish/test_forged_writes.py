"""A forged write record costs its topic's sweep little, and nobody else anything."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest

from pawnqueue import StagedGoneError, WriteBusyError
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain.bounds import LATEST_TIME, MIN_STAGED_ROW_BYTES, MOST_COUNT, MOST_PAYLOAD_DEPTH
from pawnqueue.domain.write_record import Rows
from pawnqueue.maintenance import sweep_writes as swept
from pawnqueue.maintenance.sweep_report import SweepReport
from pawnqueue.publish import decided_writes, write_traces
from pawnqueue.registers.write_records import DATE_STEP_SECONDS, HOLD_SECONDS
from tests.pawnqueue.publish.written import (
    COUNT,
    OVER,
    SMALL,
    WRITE,
    committed,
    cut,
    of_strategy,
    record,
    staged,
    visible,
)
from tests.pawnqueue.virtual import MARGIN, TOPIC, World

if TYPE_CHECKING:
    from tests.pawnqueue.virtual import Process

STRATEGIES: Final = ("conditional_write", "csprng_verify")
#: More than a sweep of one forged record needs; the sweep is cut off after as many.
MANY_REQUESTS: Final = 300
MISSING: Final = {"name": layout.staged_name(0, "0" * 32, 0), "size": MOST_COUNT * MIN_STAGED_ROW_BYTES}


def forge(world: World, **fields: Any) -> None:
    """Plant a record of a write that has many messages, of which nothing is stored."""
    count = fields.get("count", MOST_COUNT)
    body = {
        "v": 1, "nonce": "n", "write_id": "forged", "state": "begun", "created_at": 1.0, "until": 0.0,
        "place": 10**15, "count": count, "published": 1, "begun": 1, "holder": "h",
        "objects": [{**MISSING, "count": count}], **fields,
    }  # fmt: skip
    world.bucket.plant(layout.write(TOPIC, "forged"), json.dumps(body).ljust(640))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("stored", [None, b"", b"{}\n"], ids=["missing", "empty", "shorter"])
async def test_rows_that_are_gone_are_noted_in_one_step(strategy: str, stored: bytes | None) -> None:
    """However many messages a record says are missing: no request is sent for each of them."""
    async with of_strategy(strategy) as world:
        ann = await world.process()
        forge(world)
        if stored is not None:
            world.bucket.plant(layout.staged_object(TOPIC, "forged", str(MISSING["name"])), stored)
        await world.later(OVER)
        ann.client.inject("dies", passed=MANY_REQUESTS, times=1)
        report = await ann.queue.sweep(TOPIC)
        assert (report.finished_writes, report.failures) == (1, [])
        found = record(world, "forged")
        assert found is not None
        assert (found.state, found.lost) == ("done", [Rows(first=1, count=MOST_COUNT - 1)])


async def test_a_changed_object_is_read_once(world: World, ann: Process) -> None:
    """An object of the right size, which has other lines: the rest of it is noted in one step as well."""
    body = b"x" * (5_000 * MIN_STAGED_ROW_BYTES)
    forge(world, count=5_000, objects=[{"name": MISSING["name"], "size": len(body), "count": 5_000}])
    world.bucket.plant(layout.staged_object(TOPIC, "forged", str(MISSING["name"])), body)
    await world.later(OVER)
    with ann.client.counting() as requests:
        assert (await ann.queue.sweep(TOPIC)).finished_writes == 1
    assert requests.total() < 30
    found = record(world, "forged")
    assert found is not None
    assert found.lost == [Rows(first=1, count=4_999)]


async def test_a_commit_under_the_forged_id_comes_to_an_end(world: World, ann: Process) -> None:
    """It takes the same path, and names the messages that are missing."""
    forge(world)
    await world.later(OVER)
    ann.client.inject("dies", passed=MANY_REQUESTS, times=1)
    with pytest.raises(StagedGoneError, match=f"rows 1-{MOST_COUNT - 1}"):
        await ann.queue.commit_write(TOPIC, "forged", [])


@pytest.mark.parametrize("bound", ["steps", "seconds"])
async def test_a_sweep_does_a_part_of_a_write(
    world: World, ann: Process, bob: Process, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes to the other writes of the topic; the next sweeps do the rest, and nothing twice."""
    monkeypatch.setattr(decided_writes, "PIECES_PER_NOTE", SMALL)
    if bound == "steps":
        monkeypatch.setattr(swept, "MAX_STEPS_PER_SWEEP", 1)
    else:
        monkeypatch.setattr(swept, "MAX_SECONDS_PER_SWEEP", 1e-9)
        bob.client.latency = 0.001
    await cut(ann, "dies after", 2)
    await world.later(OVER)
    reports, seen = [], []
    while not reports or not reports[-1].finished_writes:
        reports.append(await bob.queue.sweep(TOPIC))
        seen.append(len(visible(world)))
        assert len(reports) <= COUNT
    assert [report.failures for report in reports if report.failures] == []
    assert [report.finished_writes for report in reports] == [0, 0, 1]
    assert all(after - before <= SMALL for before, after in pairwise([0, *seen]))
    assert visible(world) == list(range(COUNT))


async def test_a_time_that_no_holder_writes_is_not_waited_for(world: World, ann: Process, bob: Process) -> None:
    """A holder's time ends at most HOLD seconds, and a margin, behind the store's own date of its record."""
    await cut(ann, "dies after", 2)
    decided = record(world)
    assert decided is not None
    world.bucket.plant(layout.write(TOPIC, WRITE), decided.model_copy(update={"until": LATEST_TIME}).encode())
    with pytest.raises(WriteBusyError) as busy:
        await committed(bob)
    assert busy.value.retry_after <= HOLD_SECONDS + 2 * MARGIN + DATE_STEP_SECONDS
    await world.later(busy.value.retry_after + 1)
    assert await bob.queue.sweep(TOPIC) == SweepReport(TOPIC, finished_writes=1)
    assert visible(world) == list(range(COUNT))


async def test_unread_records_are_waited_for_from_the_records_own_date(
    world: World, ann: Process, bob: Process
) -> None:
    """A forged beginning of the wait, far ahead, makes it no longer: half a write does not stay for ever."""
    await cut(ann, "dies after", 3)
    decided = record(world)
    assert decided is not None
    forged = decided.model_copy(update={"unread_since": LATEST_TIME})
    world.bucket.plant(layout.write(TOPIC, WRITE), forged.encode())
    world.bucket.plant(layout.claim(TOPIC, "c.0"), "garbage")
    await world.later(OVER)
    bob.client.inject("denied", "GET", layout.claim(TOPIC, "c.0"))
    assert (await bob.queue.sweep(TOPIC)).failures
    await world.later(write_traces.MAX_WAIT_FOR_RECORDS_SECONDS)
    assert (await bob.queue.sweep(TOPIC)).finished_writes == 1
    assert visible(world) == list(range(COUNT))


async def test_every_row_that_is_staged_has_the_bytes_that_are_asked_for(world: World, ann: Process) -> None:
    """The smallest message fits the bound by which a record's counts are judged, and so does a stranger's."""
    world.topic("t")
    smallest = await ann.queue.stage("t", "w", 0, [{}])
    assert smallest.objects[0].size >= MIN_STAGED_ROW_BYTES
    stranger = json.dumps({"id": layout.written_id("t", "w", 0, 0), "payload": {}}, separators=(",", ":"))
    assert len(stranger) >= MIN_STAGED_ROW_BYTES


@pytest.mark.parametrize("depth", [300, MOST_PAYLOAD_DEPTH])
async def test_a_row_with_a_deep_unknown_field_is_published(world: World, ann: Process, depth: int) -> None:
    """What can be read can be written: the field stays in the message, and the write is finished."""
    parts = await staged(ann, 1, parts=1)
    [one] = parts[0].objects
    key = layout.staged_object(TOPIC, WRITE, one.name)
    row = json.loads(world.bucket.body(key))
    theirs: list[Any] = []
    for _ in range(depth - 1):
        theirs = [theirs]
    body = json.dumps({**row, "theirs": theirs}).encode() + b"\n"
    world.bucket.plant(key, body)
    forged = replace(parts[0], objects=(one.model_copy(update={"size": len(body)}),))
    assert (await ann.queue.commit_write(TOPIC, WRITE, [forged])).count == 1
    [name] = world.bucket.below("messages/")
    assert json.loads(world.bucket.body(units.key_of(TOPIC, name)))["theirs"] == theirs

"""Writes that are staged and committed in a world, and what is to be seen of them afterwards."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain.pack import lines_of
from pawnqueue.domain.write_record import WriteRecord
from pawnqueue.registers.write_records import HOLD_SECONDS
from tests.pawnqueue.virtual import TOPIC, Died, World, numbered

if TYPE_CHECKING:
    from pawnqueue import Staged, Written
    from tests.pawnqueue.virtual import Effect, Process

WRITE = "run-1"
#: Three to a note of progress: seven messages have three chunks.
SMALL, COUNT = 3, 7
#: The numbers of those seven.
EVERY = list(range(COUNT))
#: After this long nobody can doubt that the committer is not trusted any more.
OVER = HOLD_SECONDS + 10
A_DAY = 86_400.0


async def staged(process: Process, count: int = COUNT, *, write_id: str = WRITE, parts: int = 2) -> list[Staged]:
    """Stage numbered messages, cut into parts."""
    found = []
    for part in range(parts):
        first, last = count * part // parts, count * (part + 1) // parts
        found.append(await process.queue.stage(TOPIC, write_id, part, numbered(last - first, first)))
    return found


async def committed(process: Process, count: int = COUNT, *, write_id: str = WRITE, wait: float = 0.0) -> Written:
    """Stage and commit numbered messages."""
    return await process.queue.commit_write(TOPIC, write_id, await staged(process, count, write_id=write_id), wait=wait)


async def cut(process: Process, effect: Effect, number: int, count: int = COUNT) -> None:
    """Stage, and commit with a process that dies at its so-manieth request, counted from 0."""
    parts = await staged(process, count)
    process.client.inject(effect, passed=number, times=1)
    with pytest.raises(Died):
        await process.queue.commit_write(TOPIC, WRITE, parts)


def lines(world: World) -> list[bytes]:
    """The messages in the topic, in order: single ones, and those of packs."""
    found = []
    for name in sorted([*world.bucket.below("messages/"), *world.bucket.below("packs/")]):
        unit, body = units.parse(name), world.bucket.body(units.key_of(TOPIC, name))
        assert unit is not None
        found += lines_of(body, unit.count, name) if layout.is_pack_name(name) else [body]
    return found


def visible(world: World) -> list[int]:
    """Which messages are in the topic, in order."""
    return [json.loads(line)["payload"]["n"] for line in lines(world)]


def ids(world: World) -> list[str]:
    """The ids of the messages in the topic, in order."""
    return [json.loads(line)["id"] for line in lines(world)]


def expected_ids(count: int = COUNT, parts: int = 2) -> list[str]:
    """The ids of the write's messages, whichever process publishes them."""
    sizes = [count * (part + 1) // parts - count * part // parts for part in range(parts)]
    return [layout.written_id(TOPIC, WRITE, part, n) for part, size in enumerate(sizes) for n in range(size)]


def left(world: World) -> list[str]:
    """What is staged."""
    return world.bucket.below("staged/")


def record(world: World, write_id: str = WRITE) -> WriteRecord | None:
    """The record of a write, if there is one."""
    key = layout.write(TOPIC, write_id)
    there = f"{write_id}.json" in world.bucket.below("writes/")
    return WriteRecord.decode(world.bucket.body(key), key) if there else None


async def consumed(process: Process, claim_id: str | None) -> Counter[int]:
    """Claim all there is, and ack it."""
    claim = await process.queue.claim(TOPIC, "c", max_messages=1000, claim_id=claim_id)
    found = Counter(message.payload["n"] for message in claim)
    await process.queue.ack(claim)
    return found


def of_strategy(strategy: str, *, packs: bool | None = None) -> World:
    """A world whose processes agreed on a strategy, with a topic that allows packs or not."""
    world = World(strategy)
    world.topic(packs=packs)
    return world


async def writer(world: World) -> Process:
    """A process that stages two messages a pack where the topic allows packs: seven messages are four packs."""
    return await world.process(packs={"messages": 2})


async def requests_of_a_commit(strategy: str = "conditional_write", *, packs: bool | None = None) -> int:
    """How many requests it makes."""
    async with of_strategy(strategy, packs=packs) as world:
        process = await writer(world)
        parts = await staged(process)
        with process.client.counting() as requests:
            await process.queue.commit_write(TOPIC, WRITE, parts)
        return requests.total()

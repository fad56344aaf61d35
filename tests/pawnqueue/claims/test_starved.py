"""Messages that nobody here can take, however many there are, keep no good one waiting (§5.6, §5.7)."""

from __future__ import annotations

import asyncio

import pytest

from pawnqueue.catalog import units
from tests.pawnqueue.virtual import TOPIC, World, numbered, numbers

STRATEGIES = pytest.mark.parametrize("strategy", ["conditional_write", "csprng_verify"])
NEWER = {"v": 2}
MALFORMED = {"no": "message"}


def plant(w: World, count: int, body: object) -> None:
    """Put bad messages before all good ones."""
    for i in range(count):
        name = f"20251231T000000_{i:06}-11111111-2222-4333-8444-{i:012}"
        w.bucket.plant(f"{units.folder(TOPIC)}{name}.json", body)  # type: ignore[arg-type]


@STRATEGIES
@pytest.mark.parametrize("body", [NEWER, MALFORMED], ids=["newer", "malformed"])
async def test_a_good_message_behind_bad_ones_is_had_within_a_minute(strategy: str, body: object) -> None:
    """Of 700 that are bad, each batch that follows another bad one is twice as large."""
    async with World(strategy) as w:
        a = await w.process()
        plant(w, 700, body)
        await a.queue.publish(TOPIC, numbered(1))
        began = w.clock.elapsed()
        claim = await a.queue.claim(TOPIC, "c", max_messages=1, wait=60)
        assert numbers(claim) == [0]
        assert w.clock.elapsed() - began < 60


@STRATEGIES
async def test_good_messages_keep_coming_though_bad_ones_come_back(strategy: str) -> None:
    """For an hour: what was put aside is tried after what is new, and costs a bounded number of requests."""
    async with World(strategy) as w:
        a = await w.process()
        plant(w, 200, NEWER)
        before = len(a.client.requests)
        waited = []
        for n in range(12):
            publishing = asyncio.create_task(_publish_later(w, n))
            began = w.clock.elapsed()
            claim = await a.queue.claim(TOPIC, "c", max_messages=1, wait=600)
            assert numbers(claim) == [n]
            waited.append(w.clock.elapsed() - began - 300)
            await a.queue.ack(claim)
            await publishing
        assert max(waited) < 15
        # Each bad one is tried 11 times in this hour, for 5 requests at most each time. The rest are looks.
        assert len(a.client.requests) - before < 200 * 11 * 5 + 3600


async def _publish_later(w: World, n: int) -> None:
    await w.clock.sleep(300)
    w.fill([{"id": f"m{n}", "payload": {"n": n}}])


@STRATEGIES
async def test_what_is_put_aside_gets_a_turn_beside_a_flood_of_new_messages(strategy: str) -> None:
    """What went wrong for a while is had though there is always something newer."""
    async with World(strategy) as w:
        a = await w.process()
        old = w.fill([{"id": f"old{n}", "payload": {"n": n}} for n in range(3)])
        a.client.inject("denied", "GET", f"*messages/*{old[0][:8]}*")
        a.client.inject("denied", "GET", f"*messages/*{old[1][:8]}*")
        assert numbers(await a.queue.claim(TOPIC, "c", max_messages=3)) == [2]
        a.client.heal()
        await w.later(11)
        w.fill([{"id": f"new{n}", "payload": {"n": 10 + n}} for n in range(100)])
        had = []
        for _ in range(5):
            had += numbers(await a.queue.claim(TOPIC, "c", max_messages=1))
        assert {0, 1} <= set(had)


@STRATEGIES
async def test_a_batch_behind_bad_ones_is_no_larger_than_what_is_wanted(strategy: str) -> None:
    """The good messages that a larger batch has won beside are given back as they were: for the first delivery."""
    async with World(strategy) as w:
        a, b = await w.process(), await w.process()
        plant(w, 30, MALFORMED)
        await b.queue.publish(TOPIC, numbered(40))
        claim = await a.queue.claim(TOPIC, "c", max_messages=2, claim_id="run", wait=60)
        assert numbers(claim) == [0, 1]
        assert len(claim.ids) == 2
        others = []
        while batch := await a.queue.claim(TOPIC, "d", max_messages=40, wait=60):
            others += [(message.payload["n"], message.deliveries) for message in batch]
            if len(others) == 38:
                break
        assert sorted(others) == [(n, 1) for n in range(2, 40)]

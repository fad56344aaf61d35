"""keep_alive: renewals in the background, which follow the claim's own time and never end in silence."""

from __future__ import annotations

import asyncio
import math

import pytest

from airflow_provider_pawnqueue.engine import ConfigError, LeaseLostError, QueueClosedError, layout
from tests.engine.virtual import MARGIN, OVERDUE, TOPIC, TTL, Process, World, numbered, numbers


@pytest.mark.parametrize("ttl", [0, MARGIN, -1, math.nan, math.inf, "x"], ids=repr)
async def test_a_time_that_is_none_is_refused(ann: Process, ttl: float) -> None:
    """Keeping alive takes the times that claiming takes."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    with ann.client.counting() as requests, pytest.raises(ConfigError):
        ann.queue.keep_alive(claim, ttl=ttl)
    assert not requests


async def test_a_closed_queue_keeps_nothing(ann: Process) -> None:
    """Keeping alive through a closed queue is an error."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    await ann.queue.aclose()
    with pytest.raises(QueueClosedError):
        ann.queue.keep_alive(claim)


async def test_keep_alive_holds_a_claim_over_long_work(world: World, ann: Process, bob: Process) -> None:
    """For twenty times its time nobody else has the messages, and then they are settled."""
    await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c")
    async with ann.queue.keep_alive(claim) as keeper:
        for _ in range(20):
            await world.later(TTL)
            assert not await bob.queue.claim(TOPIC, "d")
        assert not keeper.lost.is_set()
        assert (await ann.queue.ack(claim)).complete


async def test_keep_alive_ends_with_its_block(world: World, ann: Process, bob: Process) -> None:
    """No task and no renewal is left behind, and the claim runs out like any other."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    before = asyncio.all_tasks()
    async with ann.queue.keep_alive(claim):
        await world.later(100)
        assert asyncio.all_tasks() != before
    assert asyncio.all_tasks() == before
    with ann.client.counting() as requests:
        await world.later(OVERDUE)
    assert not requests
    assert numbers(await bob.queue.claim(TOPIC, "d")) == [0]


async def test_keep_alive_lets_the_errors_of_its_block_through(ann: Process) -> None:
    """What the work raises is raised, and the background task has ended."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    before = asyncio.all_tasks()
    with pytest.raises(ZeroDivisionError):
        async with ann.queue.keep_alive(claim):
            1 / 0  # noqa: B018 - the work
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("kind", ["sync", "async", "none", "failing"])
async def test_a_loss_is_told_once(world: World, ann: Process, bob: Process, kind: str) -> None:
    """When the claim is fenced, ``.lost`` is set and ``on_lost`` called with the error, once; the block goes on."""
    told: list[LeaseLostError] = []

    async def later(error: LeaseLostError) -> None:
        await world.clock.sleep(1)
        told.append(error)

    def fail(error: LeaseLostError) -> None:
        told.append(error)
        raise ZeroDivisionError

    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    on_lost = {"sync": told.append, "async": later, "none": None, "failing": fail}[kind]
    async with ann.queue.keep_alive(claim, on_lost=on_lost) as keeper:
        record = world.bucket.record(f"{claim.claim_id}.0")
        world.bucket.plant(layout.claim(TOPIC, record.stem), record.model_copy(update={"state": "expired"}).encode())
        await asyncio.wait_for(keeper.lost.wait(), 5)
        await world.later(200)
        assert keeper.lost.is_set()
    assert len(told) == (0 if kind == "none" else 1)
    assert all(isinstance(error, LeaseLostError) for error in told)
    assert claim.lost


async def test_keep_alive_survives_errors_of_the_store(world: World, ann: Process, bob: Process) -> None:
    """Renewals that fail for a while are tried again, and the claim is kept."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", ttl=120)
    async with ann.queue.keep_alive(claim, ttl=120) as keeper:
        for _ in range(5):
            ann.client.inject("lost", key="*/claims/*")
            await world.later(60)
            ann.client.heal()
            await world.later(60)
            assert not await bob.queue.claim(TOPIC, "d")
        assert not keeper.lost.is_set()
    assert (await ann.queue.ack(claim)).complete


@pytest.mark.parametrize("effect", ["lost", "denied", "slow"])
async def test_a_store_that_stays_away_is_told_at_the_deadline(world: World, ann: Process, effect: str) -> None:
    """A claim that cannot be renewed is lost at its deadline, not when the store's patience ends."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    times: list[float] = []
    async with ann.queue.keep_alive(claim, on_lost=lambda _: times.append(world.clock.elapsed())):
        if effect == "slow":
            ann.client.latency = 1000
        else:
            ann.client.inject(effect, key="*/claims/*")
        deadline = claim.deadline
        await world.later(300)
    assert claim.lost
    assert len(times) == 1
    assert times[0] <= deadline + 0.5


async def test_keep_alive_of_a_claim_that_was_settled_asks_nothing_more(world: World, ann: Process) -> None:
    """Once all is settled there is nothing to keep: no request is made, and nothing is lost."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    async with ann.queue.keep_alive(claim) as keeper:
        await world.later(TTL)
        await ann.queue.ack(claim)
        before = world.bucket.snapshot()
        with ann.client.counting() as requests:
            await world.later(TTL * 10)
        assert not requests
        assert not keeper.lost.is_set()
    assert world.bucket.snapshot() == before


async def test_keep_alive_renews_no_oftener_than_asked(world: World, ann: Process) -> None:
    """``interval`` is the time between two renewals; without it, a third of the time at most."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", ttl=60)
    for asked, seconds in (({"ttl": 60, "interval": 20}, 200), ({"ttl": 12}, 40)):
        before = len(renewals(ann))
        async with ann.queue.keep_alive(claim, **asked):
            await world.later(seconds + 0.5)
        assert len(renewals(ann)) - before == 10


def renewals(process: Process) -> list[str]:
    """What was sent to renew a claim."""
    return [key for kind, key in process.client.requests if kind == "PUT" and "/claims/" in key]

"""What the queue costs in requests, counted by the simulated store (docs/protocol.md, section 8)."""

from __future__ import annotations

import statistics
import uuid
from typing import TYPE_CHECKING

import pytest

from pawnqueue import PawnQueue
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain import lease as leases
from pawnqueue.domain.claim_record import ClaimRecord, Member
from pawnqueue.domain.envelope import Envelope
from tests.sim.bucket import EPOCH
from tests.sim.prepared import SETTINGS, establish
from tests.sim.weather import CALM
from tests.sim.world import World

if TYPE_CHECKING:
    import random

    from tests.sim.processes import Process

TOPIC = "orders"
FOLDERS = ("messages/", "leases/", "claims/")


def new_world(seed: int) -> World:
    """A calm world with a topic, and listings of a thousand keys a page as real stores have."""
    world = World(seed, weather=CALM, page_size=1000, kept=0)
    establish(world.bucket, TOPIC)
    return world


def plant(world: World, count: int, ids: random.Random) -> list[tuple[str, str]]:
    """Put pending messages into the topic, and return their uuids and names, in order."""
    made = []
    for number in range(count):
        one = str(uuid.UUID(int=ids.getrandbits(128), version=4))
        name = units.name_at(EPOCH - 10_000 + number / 100, one)
        envelope = Envelope(id=one, topic=TOPIC, payload={"n": number})
        world.bucket.plant(units.key_of(TOPIC, name), envelope.encode())
        made.append((one, name))
    return made


async def drain(process: Process, batch: int) -> int:
    """Claim and ack in batches until there is nothing; return how many messages that were."""
    done = 0
    async with PawnQueue.open(SETTINGS, store=process.store, clock=process.clock) as queue:
        while claim := await queue.claim(TOPIC, process.name, max_messages=batch, ttl=60):
            result = await queue.ack(claim)
            assert len(result.acked) == len(claim)
            done += len(claim)
    return done


def consumed(seed: int, consumers: int, count: int = 1000) -> float:
    """Let the consumers claim and ack the messages in batches of 100, and return the requests a message."""
    world = new_world(seed)
    plant(world, count, world.stream("ids"))

    async def scenario(world: World) -> list[int]:
        processes = [world.process(f"C{number}") for number in range(consumers)]
        tasks = [process.spawn(drain(process, 100)) for process in processes]
        await world.until_idle()
        return [task.result() for task in tasks]

    assert sum(world.run(scenario)) == count
    return world.requests / count


def test_one_consumer_makes_few_requests() -> None:
    """Claim and ack of 1,000 messages in batches of 100 take at most 2.3 requests a message, opening included."""
    assert consumed(1, 1) <= 2.3


def test_four_consumers_get_out_of_each_others_way() -> None:
    """Four consumers take at most 4 requests a message, in the median over seeds."""
    assert statistics.median(consumed(seed, 4) for seed in range(15)) <= 4.0


def test_twenty_consumers_that_begin_together_do_not_run_at_one_head() -> None:
    """Twenty consumers that begin at once take at most 4.5 requests a message of 3,000, in the median over seeds."""
    assert statistics.median(consumed(seed, 20, 3000) for seed in range(3)) <= 4.5


def test_renewing_is_one_request() -> None:
    """A claim of 1,000 messages is renewed by one request."""
    world = new_world(2)
    plant(world, 1000, world.stream("ids"))

    async def work(process: Process) -> int:
        async with PawnQueue.open(SETTINGS, store=process.store, clock=process.clock) as queue:
            claim = await queue.claim(TOPIC, "c", max_messages=1000, ttl=120)
            assert len(claim) == 1000
            before = world.requests
            await queue.renew(claim)
            return world.requests - before

    async def scenario(world: World) -> int:
        process = world.process("C")
        task = process.spawn(work(process))
        await world.until_idle()
        return task.result()

    assert world.run(scenario) == 1


def test_an_idle_poll_is_one_listing() -> None:
    """A poll of an empty topic is one LIST, also right after its last message."""
    world = new_world(3)
    plant(world, 5, world.stream("ids"))

    async def work(process: Process) -> list[int]:
        async with PawnQueue.open(SETTINGS, store=process.store, clock=process.clock) as queue:
            await queue.ack(await queue.claim(TOPIC, "c"))
            costs = []
            for _ in range(4):
                before = world.requests
                assert not await queue.claim(TOPIC, "c")
                costs.append(world.requests - before)
            return costs

    async def scenario(world: World) -> list[int]:
        process = world.process("C")
        task = process.spawn(work(process))
        await world.until_idle()
        return task.result()

    assert world.run(scenario)[1:] == [1, 1, 1]


@pytest.mark.parametrize("renewed", [False, True])
def test_a_claim_behind_many_that_are_in_flight(renewed: bool) -> None:  # noqa: FBT001 - a parameter
    """A claim of 10 of 100,000 pending, with 5,000 in flight at their head, looks around with at most 20 requests.

    That is beside what the ten messages cost themselves (a lease and a GET each) and the claim record. The leases in
    flight are fresh, or their own time is long over and five renewed records cover them: none of them is read.
    """
    world = new_world(4)
    messages = plant(world, 100_000, world.stream("ids"))
    written = EPOCH - (600 if renewed else 5)
    for batch in range(5):
        members = dict(messages[batch * 1000 : (batch + 1) * 1000])
        stem = ClaimRecord(claim_id=f"busy-{batch}", until=EPOCH + 50, ttl=60)
        for one, name in members.items():
            lease = leases.held(one, name, consumer="x", claim=stem.stem, deliveries=1, until=written + 60, ttl=60)
            world.bucket.plant(layout.lease(TOPIC, one), lease.encode(), written=written)
        record = stem.model_copy(update={"members": {one: Member(name=name) for one, name in members.items()}})
        world.bucket.plant(layout.claim(TOPIC, stem.stem), record.encode())

    async def work(process: Process) -> int:
        async with PawnQueue.open(SETTINGS, store=process.store, clock=process.clock) as queue:
            await queue.stats(TOPIC)  # what is read once a process: the topic, the time
            before = world.requests
            claim = await queue.claim(TOPIC, "c", max_messages=10, ttl=60)
            assert len(claim) == 10
            assert [message.payload["n"] for message in claim] == list(range(5000, 5010))
            return world.requests - before

    async def scenario(world: World) -> int:
        process = world.process("C")
        task = process.spawn(work(process))
        await world.until_idle()
        return task.result()

    assert world.run(scenario) - (10 + 10 + 1) <= 20

"""In which order messages come: what docs/explanation/ordering.md says, where no other test shows it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pawnqueue import PawnQueue, Settings
from pawnqueue.domain import layout
from tests.pawnqueue.virtual import OVERDUE, TOPIC, Client, Process, World, numbered, numbers

if TYPE_CHECKING:
    from pawnqueue.runtime.clock import Clock

#: After this long, two estimates of the store's time agree which of two moments was first.
ERROR_SECONDS = 2.0


class WrongDate:
    """The clock of a machine whose date is wrong by some seconds."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds

    def __getattr__(self, name: str) -> object:
        """Everything but the date is as it was."""
        return getattr(self._clock, name)

    def wall(self) -> float:
        """See the port."""
        return self._clock.wall() + self._seconds


async def all_that_come(process: Process, most: int = 10) -> list[int]:
    """Claim and ack until nothing comes, and return the numbers of the messages."""
    had: list[int] = []
    while claim := await process.queue.claim(TOPIC, "c", max_messages=most):
        had += numbers(claim)
        await process.queue.ack(claim)
    return had


async def test_publishers_follow_the_stores_time(world: World, bob: Process) -> None:
    """Messages of several publishers come as they were published, whatever the dates of their machines say."""
    settings = Settings(s3={"bucket_name": "virtual"})
    publishers = [
        await PawnQueue.open(settings, store=Client(world.bucket), clock=WrongDate(world.clock, seconds))  # type: ignore[arg-type]
        for seconds in (-3600, 0, 3600)
    ]
    for number in range(9):
        await publishers[-number % 3].publish(TOPIC, numbered(1, number))
        await world.later(ERROR_SECONDS)
    assert await all_that_come(bob) == list(range(9))
    for publisher in publishers:
        await publisher.aclose()


async def test_a_consumer_may_see_a_part_of_a_call(ann: Process, bob: Process) -> None:
    """The messages of a call are put at the same time: until it returns, a later one may be stored before the first."""
    may_land = asyncio.Event()
    had: list[int] = []

    async def hold_the_first(kind: str, key: str) -> None:
        if kind == "PUT" and "/messages/" in key and not had:
            had.append(-1)
            await may_land.wait()

    ann.client.meanwhile = hold_the_first
    call = asyncio.create_task(ann.queue.publish(TOPIC, numbered(3), pack=False))
    while len(had) < 3:
        had += await all_that_come(bob)
        await asyncio.sleep(0)
    may_land.set()
    await call
    assert [*had, *await all_that_come(bob)] == [-1, 1, 2, 0]


async def test_a_requeued_message_has_its_place_again(world: World, ann: Process, bob: Process) -> None:
    """It comes before what was published after it: at once to its process, and to others within a full poll."""
    await ann.queue.publish(TOPIC, numbered(6))
    await ann.queue.requeue(await ann.queue.claim(TOPIC, "c", max_messages=1))
    assert numbers(await ann.queue.claim(TOPIC, "c", max_messages=2)) == [0, 1]
    assert numbers(await bob.queue.claim(TOPIC, "d", max_messages=1)) == [2]
    await ann.queue.aclose()  # which gives back 0 and 1
    await world.later(11)
    assert await all_that_come(bob) == [0, 1, 3, 4, 5]


async def test_others_overtake_a_message_that_was_requeued_with_a_delay(world: World, ann: Process) -> None:
    """Until its delay is over. Then it comes before what was published after it."""
    await ann.queue.publish(TOPIC, numbered(2))
    await ann.queue.requeue(await ann.queue.claim(TOPIC, "c", max_messages=1), delay=20)
    assert await all_that_come(ann) == [1]
    await ann.queue.publish(TOPIC, numbered(1, 2))
    await world.later(25)
    assert await all_that_come(ann) == [0, 2]


async def test_messages_of_a_dead_consumer_come_late(world: World, ann: Process, bob: Process) -> None:
    """Others overtake them until the claim's time is over. Then they come before what was published after them."""
    await ann.queue.publish(TOPIC, numbered(4))
    assert numbers(await ann.queue.claim(TOPIC, "c", max_messages=2)) == [0, 1]
    ann.client.dead = True
    assert await all_that_come(bob) == [2, 3]
    world.fill([{"id": "new", "payload": {"n": 4}}])
    await world.later(OVERDUE)
    assert await all_that_come(bob) == [0, 1, 4]
    ann.client.dead = False


async def test_consumers_overtake_each_other(ann: Process, bob: Process) -> None:
    """Each has its own messages in order. What one of them holds, the other one passes by."""
    await ann.queue.publish(TOPIC, numbered(30))
    slow = await ann.queue.claim(TOPIC, "c", max_messages=10)
    assert await all_that_come(bob) == list(range(10, 30))
    assert numbers(slow) == list(range(10))


async def test_a_claim_passes_by_the_other_kind(world: World) -> None:
    """The first message decides whether a claim has single messages or packs. Those of the other kind come next."""
    world.topic(packs=True)
    ann = await world.process()
    for number, pack in enumerate([False, True, False, True]):
        await ann.queue.publish(TOPIC, numbered(2, 2 * number), pack=pack)
    claims = [await ann.queue.claim(TOPIC, "c", max_messages=100) for _ in range(2)]
    assert [[message.payload["n"] for message in claim] for claim in claims] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert all(layout.is_of_pack(message.unit) for message in claims[1])


async def test_a_pack_is_in_order(world: World) -> None:
    """The messages of packs come in publish order, also where several consumers share a pack."""
    world.topic(packs=True)
    ann = await world.process()
    await ann.queue.publish(TOPIC, numbered(250))
    had: list[int] = []
    while claim := await ann.queue.claim(TOPIC, "c", max_messages=30):
        had += [message.payload["n"] for message in claim]
        await ann.queue.ack(claim)
    assert had == list(range(250))

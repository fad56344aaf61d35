"""A claim is given back by its id (§4, Idempotent by claim id): all that it has, and never a new one begun for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import ClaimBusyError, LeaseLostError, StoreError, SyncPawnQueue, events
from pawnqueue.domain import layout
from pawnqueue.domain.claim_record import Decision
from tests.pawnqueue.virtual import OVERDUE, TOPIC, TTL, Died, Process, World, numbered, numbers
from tests.support.claims import late
from tools.kit.stores import MemoryStore

if TYPE_CHECKING:
    from pawnqueue import Claim

RECORD = layout.claim(TOPIC, "run.0")
SESSION = 10.0
#: After so long a session of SESSION seconds is over, and its claim is not.
LATER = 15.0


async def left(process: Process, **options: Any) -> Claim:
    """Claim five messages for a task whose process does not go on with them; settle two."""
    await process.queue.publish(TOPIC, numbered(5))
    claim = await process.queue.claim(TOPIC, "c", claim_id="run", owner="dag", session_ttl=SESSION, **options)
    await process.queue.ack(claim, claim.ids[0])
    await process.queue.nack(claim, claim.ids[1])
    return claim


async def test_all_that_is_left_is_given_back(world: World, ann: Process, bob: Process) -> None:
    """The others have it at once, with the reason; what was settled stays so, and the record is closed."""
    claim = await left(ann)
    await world.later(LATER)
    assert await bob.queue.release(TOPIC, "run", "dag", reason="its task was ended") == claim.ids[2:]
    record = world.bucket.record("run.0")
    assert (record.state, record.unsettled) == ("closed", [])
    assert record.settled[claim.ids[2]] == Decision(how="released", reason="its task was ended", by="other")
    taken = await bob.queue.claim(TOPIC, "d")
    assert numbers(taken) == [2, 3, 4]
    assert [message.deliveries for message in taken] == [2, 2, 2]
    with pytest.raises(LeaseLostError):
        await ann.queue.renew(claim)
    assert (await late(ann.queue.ack(claim, claim.ids[2:]))).lost == claim.ids[2:]
    again = await ann.queue.claim(TOPIC, "c", claim_id="run", owner="dag")
    assert (again.ids, again.was_handed_out) == ([], True)


async def test_what_it_costs(world: World, ann: Process, bob: Process) -> None:
    """The record is found, read, decided and closed; each lease is read and given back; no message is read."""
    await ann.queue.publish(TOPIC, numbered(3))
    await ann.queue.claim(TOPIC, "c", claim_id="run", owner="dag", session_ttl=SESSION)
    await world.later(LATER)
    with bob.client.counting() as requests:
        assert len(await bob.queue.release(TOPIC, "run", "dag")) == 3
    assert requests == {"LIST": 1, "GET": 1 + 3 + 1, "PUT": 1 + 3 + 1}
    with bob.client.counting() as requests:
        assert await bob.queue.release(TOPIC, "run", "dag") == []
    assert requests == {"LIST": 1, "GET": 1}
    with bob.client.counting() as requests:
        assert await bob.queue.release(TOPIC, "never", "dag") == []
    assert requests == {"LIST": 1}


async def test_who_was_left_is_not_waited_for(ann: Process, bob: Process) -> None:
    """A session that has given its time back keeps nobody."""
    claim = await left(ann)
    await ann.queue.leave(claim)
    assert await bob.queue.release(TOPIC, "run", ["other", "dag"]) == claim.ids[2:]


async def test_who_works_for_it_keeps_it(world: World, ann: Process, bob: Process) -> None:
    """It is busy at once: by whom, and until when; nothing is changed."""
    claim = await left(ann)
    before, began = world.bucket.snapshot(), world.clock.elapsed()
    with pytest.raises(ClaimBusyError, match=r"on behalf of 'dag', for 1\d more seconds .*: release it then") as caught:
        await bob.queue.release(TOPIC, "run", "dag")
    assert (caught.value.owner, caught.value.operation) == ("dag", "release")
    assert world.clock.elapsed() - began < 1
    assert world.bucket.snapshot() == before
    await ann.queue.ack(claim)


async def test_the_janitors_renewals_do_not_keep_it(world: World, ann: Process, bob: Process) -> None:
    """The claim's own time does not matter, neither in the long run nor when it is over: its session's does."""
    claim = await left(ann)
    world.alter("run.0", until=world.clock.server() + 5000)
    await world.later(LATER)
    assert await bob.queue.release(TOPIC, "run", "dag") == claim.ids[2:]
    claim = await bob.queue.claim(TOPIC, "c", claim_id="two", owner="dag")
    await world.later(2 * OVERDUE)
    assert await ann.queue.release(TOPIC, "two", "dag") == claim.ids


def _ended(world: World) -> None:
    world.alter("run.0", state="expired")


def _of_another(world: World) -> None:
    world.alter("run.0", owner="another")


def _gone(world: World) -> None:
    world.bucket.remove(RECORD)


def _garbage(world: World) -> None:
    world.bucket.plant(RECORD, "x")


def _followed(world: World) -> None:
    record = world.bucket.record("run.0")
    following = record.model_copy(update={"generation": 1, "owner": "another"})
    world.bucket.plant(layout.claim(TOPIC, "run.1"), following.encode())


@pytest.mark.parametrize("otherwise", [_ended, _of_another, _gone, _garbage, _followed])
async def test_nothing_is_begun_and_nothing_of_others_given_back(
    world: World, ann: Process, bob: Process, otherwise: Callable[[World], None]
) -> None:
    """Ended, another owner's, or not there: nothing is written, though there is plenty to claim."""
    await left(ann)
    await ann.queue.publish(TOPIC, numbered(5))
    otherwise(world)
    await world.later(LATER)
    before = world.bucket.snapshot()
    assert await bob.queue.release(TOPIC, "run", "dag") == []
    assert world.bucket.snapshot() == before


async def test_two_at_once(world: World, ann: Process, bob: Process) -> None:
    """One of the two gives the messages back and returns them; each has one turn, whichever was faster."""
    eve = await world.process()
    for seed in range(20):
        claim = await left(ann)
        await world.later(LATER)
        world.stagger((bob, eve), seed, at_most=1.0)
        both = await asyncio.gather(*(each.queue.release(TOPIC, "run", "dag") for each in (bob, eve)))
        assert sorted(both) == [[], claim.ids[2:]]
        assert world.bucket.record("run.0").state == "closed"
        bob.client.heal()
        eve.client.heal()
        taken = await bob.queue.claim(TOPIC, "d")
        assert [message.deliveries for message in taken] == [2, 2, 2]
        await bob.queue.ack(taken)
        world.bucket.remove(RECORD)


async def test_beside_who_resumes_it(world: World, ann: Process, bob: Process) -> None:
    """Either it is released, or it is busy and somebody's: never both."""
    eve = await world.process()
    for seed in range(20):
        claim = await left(ann)
        await world.later(LATER)
        world.stagger((bob, eve), seed, at_most=1.0)
        released, resumed = await asyncio.gather(
            bob.queue.release(TOPIC, "run", "dag"),
            eve.queue.claim(TOPIC, "c", claim_id="run", owner="dag", ttl=60),
            return_exceptions=True,
        )
        bob.client.heal()
        eve.client.heal()
        assert not isinstance(resumed, BaseException)
        if resumed:
            assert isinstance(released, ClaimBusyError)
            assert resumed.ids == claim.ids[2:]
        else:
            assert released == claim.ids[2:]
            resumed = await bob.queue.claim(TOPIC, "d")
        await (eve if isinstance(released, ClaimBusyError) else bob).queue.ack(resumed)
        world.bucket.remove(RECORD)


@pytest.mark.parametrize("key", [RECORD, "*/leases/*"])
async def test_lost_answers(world: World, ann: Process, bob: Process, key: str) -> None:
    """What was done without an answer is found out: the messages are returned, and given back once."""
    claim = await left(ann)
    await world.later(LATER)
    bob.client.inject("answer lost", "PUT", key, times=1)
    assert await bob.queue.release(TOPIC, "run", "dag") == claim.ids[2:]
    assert [message.deliveries for message in await bob.queue.claim(TOPIC, "d")] == [2, 2, 2]


@pytest.mark.parametrize("key", [RECORD, "*/leases/*"])
@pytest.mark.parametrize("effect", ["dies", "dies after"])
async def test_whoever_comes_next_finishes_it(world: World, ann: Process, bob: Process, effect: Any, key: str) -> None:  # noqa: ANN401 - a Literal
    """Its process dies before or after it has decided, or half-way through the leases: the next call goes on."""
    claim = await left(ann)
    await world.later(LATER)
    bob.client.inject(effect, "PUT", key, times=1)
    with pytest.raises(Died):
        await bob.queue.release(TOPIC, "run", "dag")
    decided = (key, effect) != (RECORD, "dies")
    eve = await world.process()
    assert await eve.queue.release(TOPIC, "run", "dag") == ([] if decided else claim.ids[2:])
    assert world.bucket.record("run.0").state == "closed"
    assert numbers(await eve.queue.claim(TOPIC, "d")) == [2, 3, 4]


async def test_a_store_that_does_not_answer(world: World, ann: Process, bob: Process) -> None:
    """That is an error, and changes nothing; a later try succeeds."""
    claim = await left(ann)
    await world.later(LATER)
    bob.client.inject("lost", "PUT", RECORD)
    with pytest.raises(StoreError):
        await bob.queue.release(TOPIC, "run", "dag")
    bob.client.heal()
    assert await bob.queue.release(TOPIC, "run", "dag") == claim.ids[2:]


async def test_what_is_being_settled_is_left_to_who_settles_it(world: World, ann: Process, bob: Process) -> None:
    """All is decided, by a session that may be alive: nothing is given back, and nothing is done a second time."""
    claim = await left(ann)
    ann.client.inject("denied", "DELETE", "*/leases/*")
    await ann.queue.ack(claim, claim.ids[2:])
    ann.client.heal()
    with bob.client.counting() as requests:
        assert await bob.queue.release(TOPIC, "run", "dag") == []
    assert requests == {"LIST": 1, "GET": 1}
    await world.later(LATER)
    assert await bob.queue.release(TOPIC, "run", "dag") == []
    assert world.bucket.record("run.0").state == "closed"
    assert world.bucket.below("leases/") == []


async def test_who_is_cancelled_has_decided_or_not(world: World, ann: Process, bob: Process) -> None:
    """What was decided is carried out, whenever the call is cancelled; nothing is left halfway."""
    for steps in range(12):
        claim = await left(ann)
        await world.later(LATER)
        bob.client.latency = 0.1
        task = asyncio.create_task(bob.queue.release(TOPIC, "run", "dag"))
        await world.clock.sleep(0.05 + 0.1 * steps)
        task.cancel()
        [_] = await asyncio.gather(task, return_exceptions=True)
        bob.client.latency = 0.0
        await world.later(1)
        if world.bucket.record("run.0").state == "open":
            assert await bob.queue.release(TOPIC, "run", "dag") == claim.ids[2:]
        taken = await bob.queue.claim(TOPIC, "d")
        assert [message.deliveries for message in taken] == [2, 2, 2]
        await bob.queue.ack(taken)
        world.bucket.remove(RECORD)


async def test_it_is_told(world: World, ann: Process) -> None:
    """As a settlement: how many were given back, of which claim."""
    claim = await left(ann)
    await ann.queue.leave(claim)
    bob, heard = await world.process(), list[events.Event]()
    bob.queue._context.events._listener = heard.append
    await bob.queue.release(TOPIC, "run", "dag")
    [told] = [event for event in heard if isinstance(event, events.Settled)]
    assert (told.claim, told.released) == ("run.0", tuple(claim.ids[2:]))


def test_without_await() -> None:
    """The sync twin does the same, and draws owners in its caller's thread."""
    with SyncPawnQueue.open(store=MemoryStore()) as queue:
        queue.create_topic(TOPIC)
        ids = queue.publish(TOPIC, numbered(2))
        claim = queue.claim(TOPIC, "c", claim_id="run", owner="dag", ttl=TTL)
        queue.leave(claim)
        assert queue.release(TOPIC, "run", (owner for owner in ("x", "dag")), reason="why") == ids

"""Claims by an id: nobody is refused, silenced or kept waiting by what concerns others (§4, Sessions)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from pawnqueue import ClaimBusyError, LeaseLostError, PawnQueue, PawnQueueError, Settings, StoreError
from pawnqueue.domain import layout
from pawnqueue.domain.claim_record import ClaimRecord
from tests.pawnqueue.claims.polled import GIVEN_BACK, cancelled, had, slow
from tests.pawnqueue.virtual import MARGIN, TOPIC, Client, Died, Process, World, numbered, numbers
from tests.support.clock import StandingClock

SIX_HOURS = 21_600.0


def plant_absurd_record(world: World) -> None:
    """Put garbage where the record of the last generation that a key has room for would be."""
    world.bucket.plant(layout.claim(TOPIC, "run.999999999"), b"garbage")


async def test_garbage_in_the_last_generation_makes_no_two_holders(world: World, ann: Process, bob: Process) -> None:
    """A consumer that claims by the id and keeps the claim alive learns it before another has any of its messages."""
    await ann.queue.publish(TOPIC, numbered(2))
    plant_absurd_record(world)
    claim = None
    with suppress(PawnQueueError):
        claim = await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=30)
    if not claim:
        assert numbers(await had(world, bob, 2, 60)) == [0, 1]
        return
    async with ann.queue.keep_alive(claim) as kept:
        await world.later(40)
        other = await bob.queue.claim(TOPIC, "d")
        assert kept.lost.is_set() or not set(other.ids) & set(claim.ids)


async def test_garbage_in_the_last_generation_costs_a_claim_nothing(world: World, ann: Process, bob: Process) -> None:
    """A call with the id gets the messages, and is found by it: nobody else has such a claim (§5.6)."""
    await ann.queue.publish(TOPIC, numbered(2))
    plant_absurd_record(world)
    assert numbers(await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=30)) == [0, 1]
    with pytest.raises(ClaimBusyError):
        await bob.queue.claim(TOPIC, "c", claim_id="run", ttl=30)


async def test_keep_alive_tells_of_a_claim_that_was_ended_while_its_machine_stood_still(
    world: World, ann: Process
) -> None:
    """The janitor fenced it and gave everything back meanwhile: its consumer gets an error as soon as it goes on."""
    clock, client = StandingClock(world.clock), Client(world.bucket)
    queue = await PawnQueue.open(Settings(s3={"bucket_name": "virtual"}), store=client, clock=clock)
    await queue.publish(TOPIC, numbered(3))
    claim = await queue.claim(TOPIC, "c", ttl=30)
    told: list[LeaseLostError] = []
    goes_on = asyncio.Event()

    async def stand_still(kind: str, key: str) -> None:
        await goes_on.wait()

    async def ended(record: ClaimRecord) -> str:
        return "ended"

    async with queue.keep_alive(claim, on_lost=told.append) as kept:
        await world.later(2)
        client.meanwhile = stand_still
        for _ in range(45):
            await world.later(1)
            clock.stood += 1
        await ann.queue.sweep(TOPIC, ask=ended)  # type: ignore[arg-type]
        assert world.bucket.record(f"{claim.claim_id}.{claim.generation}").state != "open"
        client.heal()
        goes_on.set()
        await world.later(25)
        assert kept.lost.is_set()
        assert len(told) == 1
    await queue.aclose()


async def test_an_id_that_was_used_up_meanwhile_costs_others_nothing(world: World, ann: Process, bob: Process) -> None:
    """A late call with an id that another process has finished raises an error, and keeps nothing from others."""
    other = await world.process()
    assert not await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=SIX_HOURS)
    await other.queue.publish(TOPIC, numbered(3))
    claim = await bob.queue.claim(TOPIC, "c", claim_id="run", ttl=SIX_HOURS)
    assert numbers(claim) == [0, 1, 2]
    await bob.queue.ack(claim)
    await other.queue.publish(TOPIC, numbered(4, 10))
    again = await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=SIX_HOURS)
    assert (numbers(again), set(again.decided.values())) == ([], {"acked"})
    assert numbers(await had(world, other, 4, GIVEN_BACK)) == [10, 11, 12, 13]


async def test_of_two_claims_by_one_id_at_once_the_loser_keeps_nothing(
    world: World, ann: Process, bob: Process
) -> None:
    """One has its ten messages; the ten that the other had won leases of, others have soon."""
    other = await world.process()
    await other.queue.publish(TOPIC, numbered(20))
    ann.client.latency = bob.client.latency = 0.02
    both = await asyncio.gather(
        *(one.queue.claim(TOPIC, "c", claim_id="run", ttl=3600, max_messages=10) for one in (ann, bob)),
        return_exceptions=True,
    )
    [claim] = [one for one in both if not isinstance(one, BaseException) and one]
    rest = await had(world, other, 20 - len(claim), GIVEN_BACK, max_messages=20)
    assert sorted(numbers(claim) + numbers(rest)) == list(range(20))


async def test_a_claimer_that_is_overtaken_by_its_retry_keeps_nothing(world: World, ann: Process, bob: Process) -> None:
    """A retry adopts the leases that it sees while they are still being won: the rest others have soon."""
    other = await world.process()
    await other.queue.publish(TOPIC, numbered(200))
    ann.client.latency = 0.05
    asked = {"claim_id": "run", "ttl": 3600, "max_messages": 200}
    first = asyncio.ensure_future(ann.queue.claim(TOPIC, "c", **asked))
    await world.later(0.32)
    seen: list[int] = []
    for process, work in ((bob, bob.queue.claim(TOPIC, "c", **asked)), (ann, first)):
        with suppress(ClaimBusyError, LeaseLostError):
            claim = await work
            seen += numbers(claim)
            await process.queue.ack(claim)
    assert seen
    seen += numbers(await had(world, other, 200 - len(seen), GIVEN_BACK, max_messages=200))
    assert sorted(seen) == list(range(200))


async def test_a_message_whose_claim_was_finished_is_told_though_a_newer_process_has_its_lease(
    world: World, ann: Process, bob: Process
) -> None:
    """Another version took what a dead process gave back: a call with the id returns at once what was decided."""
    ids = await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=60)
    ann.client.inject("dies", "PUT", "*/claims/*", passed=1)
    with pytest.raises(Died):
        await ann.queue.nack(claim, requeue=True)
    assert world.bucket.record("run.0").state == "open"
    world.bucket.plant(layout.lease(TOPIC, ids[1]), {"v": 2, "state": "held"})
    again = await bob.queue.claim(TOPIC, "c", claim_id="run", wait=10)
    assert (numbers(again), again.decided) == ([], dict.fromkeys(ids, "released"))
    assert numbers(await had(world, await world.process(), 1, GIVEN_BACK)) == [0]


async def test_orphans_in_their_last_seconds_are_waited_for(world: World, ann: Process, bob: Process) -> None:
    """Leases that are too old to be adopted, and not old enough to be taken: a call that waits gets their messages."""
    await ann.queue.publish(TOPIC, numbered(3))
    ann.client.inject("dies", "PUT", "*/claims/*")
    with pytest.raises(Died):
        await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=30)
    await world.later(28.6)
    assert numbers(await bob.queue.claim(TOPIC, "c", claim_id="run", ttl=30, wait=60)) == [0, 1, 2]


async def test_bad_messages_at_the_head_do_not_use_a_claim_by_id_up(world: World, ann: Process) -> None:
    """The first claim of one message has the good one behind 45 malformed ones."""
    world.fill(["x"] * 45)
    await world.later(1)
    await ann.queue.publish(TOPIC, numbered(1))
    assert numbers(await ann.queue.claim(TOPIC, "c", max_messages=1, claim_id="run", wait=30)) == [0]


async def test_a_record_that_may_not_be_written_is_what_is_told(world: World, ann: Process, bob: Process) -> None:
    """Another owner that comes by the id gets the 403, and no error that others keep working for it."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.claim(TOPIC, "c", claim_id="run", owner="first")
    await world.later()
    bob.client.inject("denied", "PUT", "*/claims/run*")
    with pytest.raises(StoreError, match="denied"):
        await bob.queue.claim(TOPIC, "c", claim_id="run", owner="second")


@pytest.mark.parametrize("by", ["the same process", "another one"])
async def test_a_claim_that_is_resumed_and_cancelled_can_be_resumed_again(
    world: World, ann: Process, bob: Process, by: str
) -> None:
    """Cancelled while it read the messages, it has nothing: its owner need not wait for a session of nobody's."""
    await ann.queue.publish(TOPIC, numbered(3))
    await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=20)
    await world.later(25)
    slow(world, bob, "GET", "/messages/", 1)
    await cancelled(world, bob.queue.claim(TOPIC, "c", claim_id="run", ttl=3600), 0.5)
    bob.client.heal()
    other = bob
    if by == "another one":
        await bob.queue.aclose()
        other = await world.process()
    assert numbers(await other.queue.claim(TOPIC, "c", claim_id="run", ttl=3600, wait=5)) == [0, 1, 2]


async def test_an_attachment_that_is_cancelled_can_be_made_again(world: World, ann: Process, bob: Process) -> None:
    """By the same reference, at once."""
    await ann.queue.publish(TOPIC, numbered(3))
    reference = (await ann.queue.claim(TOPIC, "c", ttl=3600)).hand_over()
    slow(world, bob, "GET", "/messages/", 1)
    await cancelled(world, bob.queue.attach(reference, ttl=3600), 0.5)
    bob.client.heal()
    assert numbers(await bob.queue.attach(reference, ttl=3600, wait=5)) == [0, 1, 2]


async def test_a_shorter_session_is_not_as_long_as_the_one_before_it(world: World, ann: Process, bob: Process) -> None:
    """Handed over by one of six hours to one of a minute that dies: a retry has the claim after that minute."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=SIX_HOURS)
    started = world.clock.elapsed()
    attached = await bob.queue.attach(claim.hand_over(), ttl=600, session_ttl=60)
    assert attached.seconds_left <= 60 - (world.clock.elapsed() - started)
    retry = await world.process()
    assert numbers(
        await retry.queue.claim(TOPIC, "c", claim_id="run", ttl=600, session_ttl=60, wait=60 + 2 * MARGIN + 10)
    ) == [0, 1]


async def test_leases_that_were_adopted_too_late_do_not_count(world: World, ann: Process, bob: Process) -> None:
    """Their record took so long that none of their messages could be handed out: the next delivery is the first."""
    await ann.queue.publish(TOPIC, numbered(3))
    ann.client.inject("dies", "PUT", "*/claims/*")
    with pytest.raises(Died):
        await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=30)
    await world.later(20)
    slow(world, bob, "PUT", "/claims/", 8)
    claim = await bob.queue.claim(TOPIC, "c", claim_id="run", ttl=30)
    bob.client.heal()
    got = list(claim) or await had(world, await world.process(), 3, 60)  # the next generation may have them at once
    assert [message.deliveries for message in got] == [1, 1, 1]


async def test_ids_that_found_nothing_are_not_remembered_for_ever(world: World, ann: Process) -> None:
    """A process that claims by a new id for each run, for months, does not grow by each."""
    for number in range(2000):
        await ann.queue.claim(TOPIC, "c", claim_id=f"run-{number}")
    await world.later(5000)
    await ann.queue.claim(TOPIC, "c", claim_id="last")
    assert len(ann.queue._claims._topic(TOPIC).by_id._without_record) <= 1000


async def test_a_name_is_no_hand_over(ann: Process) -> None:
    """A claim's reference names it for readers; its holder works on, until it is handed over by the same reference."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", ttl=3600)
    assert len(await ann.queue.messages(claim.reference)) == 1
    assert claim.hand_over() == claim.reference

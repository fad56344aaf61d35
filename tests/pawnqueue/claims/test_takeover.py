"""Take-over: messages of a claim that is over come to others, and those of a live one never (§4)."""

from __future__ import annotations

import asyncio

import pytest

from pawnqueue import LeaseLostError, Settlement
from pawnqueue.claims.register_cache import RENEWED_RECORD_RECHECK_SECONDS
from pawnqueue.domain import layout
from tests.pawnqueue.virtual import MARGIN, OVERDUE, TOPIC, TTL, Died, Process, World, numbered, numbers
from tests.support.claims import late


async def test_a_claim_that_is_over_is_fenced_and_its_messages_delivered(
    world: World, ann: Process, bob: Process
) -> None:
    """Its record says so; its holder finds out at its next renewal and settlement; the new holder has the messages."""
    await ann.queue.publish(TOPIC, numbered(3))
    old = await ann.queue.claim(TOPIC, "c", claim_id="old")
    await world.later()
    new = await bob.queue.claim(TOPIC, "d")
    assert new.ids == old.ids
    assert [message.deliveries for message in new] == [2, 2, 2]
    assert world.bucket.record("old.0").state == "expired"
    with pytest.raises(LeaseLostError, match="old"):
        await ann.queue.renew(old)
    assert old.lost
    assert await late(ann.queue.ack(old)) == Settlement(lost=old.ids)
    assert (await bob.queue.ack(new)).complete


async def test_an_holder_whose_time_was_kept_short_finds_out_by_its_next_renewal(
    world: World, ann: Process, bob: Process
) -> None:
    """A holder that still believes in its claim is refused, once somebody has fenced it."""
    await ann.queue.publish(TOPIC, numbered(1))
    old = await ann.queue.claim(TOPIC, "c")
    await world.later()
    assert await bob.queue.claim(TOPIC, "d")
    old.trusted_until = lambda **_: float("inf")  # type: ignore[attr-defined]
    with pytest.raises(LeaseLostError, match="somebody has ended it"):
        await ann.queue.renew(old)


async def test_fencing_is_one_request_whatever_the_size(world: World, ann: Process, bob: Process) -> None:
    """The record of five hundred leases is read to see whether it covers them, read again, and fenced once."""
    await ann.queue.publish(TOPIC, numbered(500))
    await ann.queue.claim(TOPIC, "c", max_messages=500, claim_id="old")
    await world.later()
    assert len(await bob.queue.claim(TOPIC, "d", max_messages=500)) == 500
    sent = [(kind, key) for kind, key in bob.client.requests if key.endswith("/claims/old.0.json")]
    assert [kind for kind, _ in sent] == ["GET", "GET", "PUT"]


async def test_a_live_claim_is_left_alone(world: World, ann: Process, bob: Process) -> None:
    """Until its time and the margin are over, nobody takes, fences or changes anything of a claim."""
    await ann.queue.publish(TOPIC, numbered(2))
    await ann.queue.claim(TOPIC, "c")
    before = world.bucket.snapshot()
    for _ in range(3):
        assert not await bob.queue.claim(TOPIC, "d")
        await world.later((TTL + MARGIN - 2) / 3)
    assert not await bob.queue.claim(TOPIC, "d")
    assert world.bucket.snapshot() == before


async def test_a_renewed_claim_is_covered_by_its_record(world: World, ann: Process, bob: Process) -> None:
    """Long after the time in its leases, a claim that is renewed is left alone, and none of its leases is read."""
    await ann.queue.publish(TOPIC, numbered(200))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=200)
    with bob.client.counting() as requests:
        for _ in range(30):
            await world.later(TTL / 2)
            await ann.queue.renew(claim)
            assert not await bob.queue.claim(TOPIC, "d")
    leases = [key for kind, key in bob.client.requests if kind == "GET" and "/leases/" in key]
    records = [key for kind, key in bob.client.requests if kind == "GET" and "/claims/" in key]
    assert leases == []
    assert len(records) <= 30 * TTL / 2 / RENEWED_RECORD_RECHECK_SECONDS + 1  # it may have given something back since
    assert requests["LIST"] <= 90
    assert (await ann.queue.ack(claim)).complete


async def test_new_messages_are_found_behind_a_live_claim(world: World, ann: Process, bob: Process) -> None:
    """Thousands of messages that others hold are no obstacle to those behind them."""
    await ann.queue.publish(TOPIC, numbered(2500))
    await ann.queue.claim(TOPIC, "c", max_messages=2500, ttl=600)
    await ann.queue.publish(TOPIC, numbered(5, 2500))
    with bob.client.counting() as requests:
        assert numbers(await bob.queue.claim(TOPIC, "d")) == list(range(2500, 2505))
    assert requests == {"LIST": 3 + 3, "PUT": 6, "GET": 5}


async def test_a_lease_whose_claimer_died_before_its_record(world: World, ann: Process, bob: Process) -> None:
    """Its record is created, fenced and empty, and the messages are delivered."""
    await ann.queue.publish(TOPIC, numbered(3))
    ann.client.inject("dies", "PUT", "*/claims/*")
    with pytest.raises(Died):
        await ann.queue.claim(TOPIC, "c", claim_id="old")
    assert len(world.bucket.below("leases/")) == 3
    assert not await bob.queue.claim(TOPIC, "d")
    await world.later()
    assert numbers(await bob.queue.claim(TOPIC, "d")) == [0, 1, 2]
    record = world.bucket.record("old.0")
    assert (record.state, record.members) == ("expired", {})


async def test_a_claimer_that_comes_too_late_with_its_record_has_nothing(
    world: World, ann: Process, bob: Process
) -> None:
    """A process that was taken for dead between its leases and its record gets an error that its claim is lost."""
    await ann.queue.publish(TOPIC, numbered(3))
    taken: list[int] = []

    async def overtake(kind: str, key: str) -> None:
        if kind == "PUT" and "/claims/" in key and not taken:
            await world.clock.sleep(OVERDUE)
            taken.extend(numbers(await bob.queue.claim(TOPIC, "d")))

    ann.client.meanwhile = overtake
    with pytest.raises(LeaseLostError, match="ttl is too short"):
        await ann.queue.claim(TOPIC, "c")
    assert taken == [0, 1, 2]


async def test_a_lease_that_landed_late_is_free_when_its_time_is_over(world: World, ann: Process, bob: Process) -> None:
    """A lease that names a live claim which does not know it is taken over, and the claim is not fenced for it."""
    ids = await ann.queue.publish(TOPIC, numbered(3))
    ann.client.inject("answer lost", "PUT", layout.lease(TOPIC, ids[0]))
    ann.client.inject("lost", "GET", layout.lease(TOPIC, ids[0]))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="live", ttl=200)
    ann.client.heal()
    assert claim.ids == ids[1:]
    assert set(world.bucket.below("leases/")) == {f"{one}.lease" for one in ids}
    await world.later(190 - (world.clock.elapsed() - 1000))
    await ann.queue.renew(claim, ttl=200)
    await world.later(60)
    assert (await bob.queue.claim(TOPIC, "d")).ids == ids[:1]
    assert world.bucket.record("live.0").state == "open"
    assert (await ann.queue.ack(claim)).complete


async def test_what_was_decided_is_carried_out_and_not_delivered_again(
    world: World, ann: Process, bob: Process
) -> None:
    """Of a claim that died in the middle of its settlements, the decided ones are finished, the others delivered."""
    await ann.queue.publish(TOPIC, numbered(5))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="old")
    ann.client.inject("lost", "DELETE")
    ann.client.inject("lost", "COPY")
    ann.client.inject("lost", "PUT", "*/leases/*")
    for settle in (
        ann.queue.ack(claim, claim.ids[0]),
        ann.queue.nack(claim, claim.ids[1], reason="bad"),
        ann.queue.nack(claim, claim.ids[2], requeue=True),
    ):
        assert len((await settle).unfinished) == 1
    assert len(world.bucket.below("messages/")) == 5
    await world.later(OVERDUE)
    first = await bob.queue.claim(TOPIC, "d")
    second = await bob.queue.claim(TOPIC, "d")
    assert sorted(numbers(first) + numbers(second)) == [2, 3, 4]
    assert len(world.bucket.below("messages/")) == 3
    assert set(world.bucket.below("dead-letter/")) == {f"{claim.ids[1]}.json", f"{claim.ids[1]}.reason.json"}
    record = world.bucket.record("old.0")
    assert {one: decision.how for one, decision in record.settled.items()} == {
        claim.ids[0]: "acked",
        claim.ids[1]: "dead",
        claim.ids[2]: "released",
    }


async def test_a_claim_that_was_fenced_early_is_waited_for(world: World, ann: Process, bob: Process) -> None:
    """Fenced on somebody's behalf, its process may be alive: its messages stay with it until its last time is over."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=120)

    async def ended(_: object) -> str:
        return "ended"

    report = await bob.queue.sweep(TOPIC, ask=ended)
    assert report.fenced_claims == 1
    assert world.bucket.record("run.0").state == "expired"
    await world.later(100)
    assert not await bob.queue.claim(TOPIC, "d")
    with pytest.raises(LeaseLostError):
        await ann.queue.renew(claim)
    assert (await late(ann.queue.ack(claim))).lost == claim.ids
    await world.later(120 - 100 + OVERDUE - TTL)
    assert numbers(await bob.queue.claim(TOPIC, "d")) == [0, 1]


async def test_only_one_of_many_takers_has_each_message(world: World, ann: Process) -> None:
    """Consumers that meet at an abandoned claim share nothing."""
    await ann.queue.publish(TOPIC, numbered(50))
    await ann.queue.claim(TOPIC, "c", max_messages=50)
    takers = [await world.process() for _ in range(6)]
    await world.later()
    seen: list[int] = []

    async def take(process: Process) -> None:
        for _ in range(6):
            seen.extend(numbers(await process.queue.claim(TOPIC, "d", max_messages=10, ttl=600)))

    await asyncio.gather(*map(take, takers))
    assert sorted(seen) == list(range(50))


async def test_a_taker_that_dies_after_the_fence_leaves_the_messages_free(
    world: World, ann: Process, bob: Process
) -> None:
    """Fenced and not yet taken, messages come to the next consumer at once."""
    await ann.queue.publish(TOPIC, numbered(2))
    await ann.queue.claim(TOPIC, "c")
    await world.later()
    bob.client.inject("dies", "PUT", "*/leases/*")
    with pytest.raises(Died):
        await bob.queue.claim(TOPIC, "d")
    assert numbers(await (await world.process()).queue.claim(TOPIC, "e")) == [0, 1]


async def test_a_record_that_was_removed_by_hand_is_a_claim_that_is_over(
    world: World, ann: Process, bob: Process
) -> None:
    """Without its record a claim cannot settle, and its messages are delivered when its leases' time is over."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    world.bucket.remove(layout.claim(TOPIC, "run.0"))
    with pytest.raises(LeaseLostError):
        await ann.queue.renew(claim)
    assert (await late(ann.queue.ack(claim))).lost == claim.ids
    await world.later()
    assert numbers(await bob.queue.claim(TOPIC, "d")) == [0, 1]


async def test_a_shorter_renewal_shortens_nothing_and_misleads_nobody(world: World, ann: Process, bob: Process) -> None:
    """A claim that has longer to live than it was renewed for is covered by its record: none of its leases is read."""
    await ann.queue.publish(TOPIC, numbered(50))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=50, ttl=TTL)
    await ann.queue.renew(claim, ttl=1000)
    await ann.queue.renew(claim, ttl=10)
    await world.later(500)
    assert not await bob.queue.claim(TOPIC, "d")
    assert not [key for kind, key in bob.client.requests if kind == "GET" and "/leases/" in key]
    assert (await ann.queue.ack(claim)).complete

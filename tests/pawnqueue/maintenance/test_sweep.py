"""The janitor: what a sweep does, what it reports, and what it leaves alone (§5)."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from pawnqueue import QueueClosedError, TopicNotFoundError
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain import lease as leases
from pawnqueue.domain.claim_record import ClaimRecord
from tests.pawnqueue.maintenance.swept import UUID, a_bit_of_everything, abandoned, redrive_stopped, report, unnoted
from tests.pawnqueue.virtual import OVERDUE, TOPIC, TTL, Died, Process, World, numbered, numbers
from tests.support.clock import EPOCH

if TYPE_CHECKING:
    from pawnqueue.claims.claim import Claim


async def test_a_topic_in_order_has_nothing_to_sweep(world: World, ann: Process) -> None:
    """A sweep of what is pending, in flight, delayed and dead changes nothing and reports zeros."""
    await ann.queue.publish(TOPIC, numbered(4))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=3)
    await ann.queue.nack(claim, claim.ids[0])
    await ann.queue.nack(claim, claim.ids[1], requeue=True, delay=100)
    before = unnoted(world)
    assert await ann.queue.sweep(TOPIC) == report()
    assert unnoted(world) == before


async def test_a_sweep_finishes_what_a_dead_process_had_decided(world: World, ann: Process) -> None:
    """The claim is fenced, its decisions are carried out, its record is closed; what was undecided is free."""
    await abandoned(world, acked=2, buried=1, released=1)
    await world.later()
    assert await ann.queue.sweep(TOPIC) == report(fenced_claims=1, finished_effects=4, given_back=2, closed_claims=1)
    assert len(world.bucket.below("messages/")) == 3
    assert len(world.bucket.below("dead-letter/")) == 2
    assert world.bucket.record("left.0").state == "closed"
    assert numbers(await ann.queue.claim(TOPIC, "d")) == [3, 4, 5]


async def test_a_sweep_fences_a_claim_of_which_nothing_was_decided(world: World, ann: Process) -> None:
    """Its record ends, and its messages come to the next consumer."""
    await abandoned(world)
    await world.later()
    assert await ann.queue.sweep(TOPIC) == report(fenced_claims=1, given_back=6, closed_claims=1)
    assert numbers(await ann.queue.claim(TOPIC, "d")) == [0, 1, 2, 3, 4, 5]


async def test_a_live_claim_is_left_alone(world: World, ann: Process, bob: Process) -> None:
    """Until its time and the margin are over, nothing of a claim is changed, however long it is renewed."""
    await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c")
    await ann.queue.ack(claim, claim.ids[:1])
    for _ in range(6):
        await world.later(TTL / 2)
        await ann.queue.renew(claim)
        before = unnoted(world)
        assert await bob.queue.sweep(TOPIC) == report()
        assert unnoted(world) == before
    assert (await ann.queue.ack(claim)).complete


async def test_a_sweep_finishes_moves(world: World, ann: Process) -> None:
    """A redrive whose process died is finished once its lock is over, and not before."""
    await redrive_stopped(world)
    assert await ann.queue.sweep(TOPIC) == report()
    await world.later(70)
    assert await ann.queue.sweep(TOPIC) == report(finished_moves=1)
    assert world.bucket.below("dead-letter/") == []
    assert numbers(await ann.queue.claim(TOPIC, "d")) == [50]


@pytest.mark.parametrize("state", ["held", "released", "of garbage", "of a claim that never was"])
async def test_a_lease_without_a_message_is_removed_when_it_is_over(world: World, ann: Process, state: str) -> None:
    """Overdue and free, it protects nothing; before that it is left alone."""
    name = f"20260101T000000_000000-{UUID}.json"
    until = EPOCH + 100
    body = {
        "held": leases.held(UUID, name, consumer="c", claim="", deliveries=1, until=until, ttl=100).encode(),
        "released": leases.released(
            UUID, name, consumer="c", claim="x.0", deliveries=1, until=until, now=EPOCH
        ).encode(),
        "of garbage": b"garbage",
        "of a claim that never was": leases.held(
            UUID, name, consumer="c", claim="x.0", deliveries=1, until=until, ttl=100
        ).encode(),
    }[state]
    world.bucket.plant(layout.lease(TOPIC, UUID), body)
    await world.later(TTL - 5)
    assert await ann.queue.sweep(TOPIC) == report()
    await world.later(100)
    assert await ann.queue.sweep(TOPIC) == report(removed_leases=1)
    assert world.bucket.below("leases/") == []


async def test_a_lease_of_a_live_claim_is_no_orphan(world: World, ann: Process, bob: Process) -> None:
    """Its message was deleted by hand, its own time is over; its claim is renewed, so it is not free."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c")
    await ann.queue.renew(claim, ttl=500)
    world.bucket.remove(units.key_of(TOPIC, world.bucket.below("messages/")[0]))
    await world.later(200)
    assert await bob.queue.sweep(TOPIC) == report()
    assert len(world.bucket.below("leases/")) == 2
    assert (await ann.queue.ack(claim)).complete


async def test_a_lease_whose_message_appears_between_the_lists_is_left_alone(world: World, ann: Process) -> None:
    """A message that the second listing did not show is looked for before its lease is removed."""
    name = f"20260101T000000_000000-{UUID}.json"
    made = leases.released(UUID, name, consumer="c", claim="", deliveries=3, until=0, now=EPOCH)
    world.bucket.plant(layout.lease(TOPIC, UUID), made.encode())

    def appear(kind: str, key: str) -> None:
        if kind == "LIST" and "/dead-letter/" in key:
            world.bucket.plant(units.key_of(TOPIC, name), '{"id":"x","payload":{}}')

    ann.client.meanwhile = appear
    assert await ann.queue.sweep(TOPIC) == report()
    ann.client.heal()
    assert [message.deliveries for message in await ann.queue.claim(TOPIC, "c")] == [4]


async def test_a_lease_that_changes_while_it_is_judged_is_left_alone(world: World, ann: Process) -> None:
    """Only the lease that was seen after the message was looked for is removed."""
    name = f"20260101T000000_000000-{UUID}.json"
    made = leases.released(UUID, name, consumer="c", claim="", deliveries=3, until=0, now=EPOCH)
    key = layout.lease(TOPIC, UUID)
    world.bucket.plant(key, made.encode())

    def change(kind: str, _key: str) -> None:
        if kind == "HEAD":
            world.bucket.plant(key, made.encode())

    ann.client.meanwhile = change
    assert await ann.queue.sweep(TOPIC) == report()
    assert world.bucket.below("leases/") == [f"{UUID}.lease"]


@pytest.mark.parametrize("folder", ["claims", "leases", "messages", "dead-letter"])
@pytest.mark.parametrize("how", ["acked", "dead"])
async def test_what_is_published_claimed_and_settled_during_a_sweep_stays_settled(
    world: World, folder: str, how: str
) -> None:
    """Whichever listing it comes before: a claim that died before its effects is closed only when they are done."""
    dead, slow = [await world.process(claims={"record_retention_seconds": 3600}) for _ in range(2)]
    await dead.queue.publish(TOPIC, numbered(1, 50))
    await dead.queue.claim(TOPIC, "c", claim_id="other", ttl=3000)
    begun: list[Claim] = []

    async def meanwhile(kind: str, key: str) -> None:
        if kind == "LIST" and key == f"{TOPIC}/{folder}/" and not begun:
            await dead.queue.publish(TOPIC, numbered(1))
            begun.append(await dead.queue.claim(TOPIC, "c", claim_id="run"))
            dead.client.inject("dies", "DELETE", "*/messages/*")
            with pytest.raises(Died):
                await (dead.queue.ack(begun[0]) if how == "acked" else dead.queue.nack(begun[0]))

    async def ask(_: ClaimRecord) -> None:
        await world.later()  # the other claim's owner takes long to be asked about

    slow.client.meanwhile = meanwhile
    await slow.queue.sweep(TOPIC, ask=ask)
    slow.client.heal()
    for _ in range(2):
        await world.later(3000)
        await slow.queue.sweep(TOPIC)
    late = await world.process()
    assert numbers(await late.queue.claim(TOPIC, "d")) == [50]


async def test_claims_are_listed_before_what_they_have(ann: Process) -> None:
    """What a listed record had and neither list shows is gone: there was no time in which it was not there yet."""
    await ann.queue.sweep(TOPIC)
    listed = [key for kind, key in ann.client.requests if kind == "LIST"]
    assert listed.index(layout.claims(TOPIC)) < listed.index(layout.leases(TOPIC))


async def test_what_was_carried_out_is_not_carried_out_again(world: World, ann: Process, bob: Process) -> None:
    """Of a claim of thousands that is all but done, a sweep does what is left."""
    await ann.queue.publish(TOPIC, numbered(30))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=30, claim_id="run")
    await ann.queue.nack(claim, claim.ids[:29])
    await world.later()
    with bob.client.counting() as requests:
        assert (await bob.queue.sweep(TOPIC)).finished_effects == 29
    assert (requests["COPY"], requests["DELETE"]) == (0, 0)


async def test_leases_are_listed_before_messages(ann: Process) -> None:
    """A message that existed when its lease was listed is then in the second list, or was settled in between."""
    await ann.queue.sweep(TOPIC)
    listed = [key for kind, key in ann.client.requests if kind == "LIST"]
    assert listed.index(layout.leases(TOPIC)) < listed.index(units.folder(TOPIC))


async def test_a_dry_run_changes_nothing_and_reports_the_same(world: World, ann: Process) -> None:
    """What it says would be done is what the next sweep does."""
    await a_bit_of_everything(world)
    before = world.bucket.snapshot()
    dry = await ann.queue.sweep(TOPIC, dry_run=True)
    assert world.bucket.snapshot() == before
    real = await ann.queue.sweep(TOPIC)
    assert dry.dry_run
    dry.dry_run = False
    assert dry == real
    assert real == report(
        fenced_claims=2,
        finished_effects=4 + 3,
        given_back=2,
        closed_claims=2,
        finished_moves=1,
        removed_leases=1,
        removed_leftovers=2,
        strangers=[f"{TOPIC}/messages/stranger"],
    )


@pytest.mark.parametrize(
    "state", ["open and over", "open and live", "fenced early", "without a record", "not a member", "garbage"]
)
async def test_a_dry_run_judges_orphans_as_a_sweep_does(world: World, ann: Process, bob: Process, state: str) -> None:
    """Whatever became of their claims, it counts the leases that a sweep would remove."""
    ids = await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    if state == "open and live":
        await ann.queue.renew(claim, ttl=500)
    if state == "fenced early":
        await ann.queue.renew(claim, ttl=500)

        async def ended(_: object) -> str:
            return "ended"

        await bob.queue.sweep(TOPIC, ask=ended)
    record = layout.claim(TOPIC, "run.0")
    if state == "without a record":
        world.bucket.remove(record)
    if state == "garbage":
        world.bucket.plant(record, "garbage")
    if state == "not a member":
        await ann.queue.renew(claim, ttl=500)
        data = json.loads(world.bucket.body(record))
        del data["members"][ids[0]]
        world.bucket.plant(record, data)
    world.bucket.remove(*(units.key_of(TOPIC, name) for name in world.bucket.below("messages/")))
    await world.later(200)
    before = world.bucket.snapshot()
    dry = await bob.queue.sweep(TOPIC, dry_run=True)
    assert world.bucket.snapshot() == before
    real = await bob.queue.sweep(TOPIC)
    dry.dry_run = False
    assert dry == real
    expected = {"open and live": 0, "fenced early": 0, "not a member": 1}.get(state, 2)
    assert real.removed_leases == expected


async def test_a_second_pass_reports_zeros(world: World, ann: Process) -> None:
    """A sweep is idempotent: what was done is not done or counted again."""
    await a_bit_of_everything(world)
    await ann.queue.sweep(TOPIC)
    before = unnoted(world)
    assert await ann.queue.sweep(TOPIC) == report(strangers=[f"{TOPIC}/messages/stranger"])
    assert unnoted(world) == before


@pytest.mark.parametrize("seed", range(5))
async def test_two_sweeps_at_once_are_harmless(world: World, ann: Process, seed: int) -> None:
    """However they interleave, the bucket is afterwards as after one, and nothing failed."""
    await a_bit_of_everything(world)
    sweepers = [await world.process() for _ in range(3)]
    world.stagger(sweepers, seed, at_most=1)
    reports = await asyncio.gather(*(process.queue.sweep(TOPIC) for process in sweepers))
    assert not [failure for one in reports for failure in one.failures]
    assert sum(one.fenced_claims for one in reports) == 2
    assert sorted(numbers(await ann.queue.claim(TOPIC, "d"))) == [3, 4, 5, 50]
    assert len(world.bucket.below("dead-letter/")) == 2
    messages = [units.parse(name) for name in world.bucket.below("messages/")]
    assert world.bucket.below("leases/") == sorted(f"{one.id}.lease" for one in messages if one is not None)


async def test_a_sweep_beside_working_consumers_loses_nothing(world: World) -> None:
    """Consumers and janitors at once: each message is settled once, and the topic is empty in the end."""
    processes = [await world.process() for _ in range(4)]
    await processes[0].queue.publish(TOPIC, numbered(60))
    seen: list[int] = []

    async def consume(process: Process) -> None:
        while world.bucket.below("messages/"):
            claim = await process.queue.claim(TOPIC, "c", max_messages=7)
            await world.clock.sleep(world.clock.uniform(0, 5))
            settlement = await process.queue.ack(claim)
            seen.extend(message.payload["n"] for message in claim if message.id in settlement.acked)

    async def clean(process: Process) -> None:
        while world.bucket.below("messages/"):
            assert not (await process.queue.sweep(TOPIC)).failures
            await world.clock.sleep(1)

    await asyncio.gather(*map(consume, processes[:3]), clean(processes[3]))
    assert sorted(seen) == list(range(60))
    assert world.bucket.below("leases/") == []


async def test_what_could_not_be_done_is_told_and_done_by_the_next_sweep(world: World, ann: Process) -> None:
    """Failures are in the report, and nothing that depends on them was done."""
    await abandoned(world, acked=2, buried=1)
    await world.later()
    ann.client.inject("lost", "COPY")
    first = await ann.queue.sweep(TOPIC)
    assert (first.fenced_claims, first.finished_effects, first.closed_claims, len(first.failures)) == (1, 2, 0, 1)
    ann.client.heal()
    assert await ann.queue.sweep(TOPIC) == report(finished_effects=3, closed_claims=1)
    assert len(world.bucket.below("dead-letter/")) == 2


async def test_a_sweep_through_many_pages(world: World, ann: Process) -> None:
    """Thousands of orphans go in one pass."""
    for number in range(2500):
        world.bucket.plant(layout.lease(TOPIC, f"{number:08d}-2222-4333-8444-555555555555"), "{}")
    await world.later(OVERDUE)
    assert await ann.queue.sweep(TOPIC) == report(removed_leases=2500)


async def test_an_unknown_topic_and_a_closed_queue(ann: Process) -> None:
    """Sweeping nothing says that it is nothing."""
    with pytest.raises(TopicNotFoundError):
        await ann.queue.sweep("nowhere")
    await ann.queue.aclose()
    with pytest.raises(QueueClosedError):
        await ann.queue.sweep(TOPIC)

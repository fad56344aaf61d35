"""The janitor: what a sweep does, what it reports, and what it leaves alone (§5)."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pawnqueue.engine import QueueClosedError, StoreError, TopicNotFoundError, layout
from airflow_provider_pawnqueue.engine.janitor import Report, Verdict
from airflow_provider_pawnqueue.engine.leases import lease as leases
from airflow_provider_pawnqueue.engine.records import ClaimRecord
from tests.engine.virtual import (
    OVERDUE,
    TOPIC,
    TTL,
    Died,
    Effect,
    Kind,
    Process,
    World,
    numbered,
    numbers,
)
from tests.support.clock import EPOCH
from tools.kit.stores import Answer, CarryOut, Request

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.claims.claim import Claim

OTHER = "99999999-2222-4333-8444-555555555555"
UUID = "11111111-2222-4333-8444-555555555555"
RETENTION = 86_400.0
AN_HOUR = 3600.0


def report(**counts: Any) -> Report:
    """A report that says only this."""
    return Report(TOPIC, **counts)


async def abandoned(world: World, **settled: int) -> None:
    """Leave a claim whose process died after it had decided so many of its messages."""
    process = await world.process()
    await process.queue.publish(TOPIC, numbered(6))
    claim = await process.queue.claim(TOPIC, "c", max_messages=6, claim_id="left")
    process.client.inject("lost", "DELETE")
    process.client.inject("lost", "COPY")
    process.client.inject("lost", "PUT", "*/leases/*")
    ids = list(claim.ids)
    for how, count in settled.items():
        some, ids = ids[:count], ids[count:]
        if how == "acked":
            await process.queue.ack(claim, some)
        else:
            await process.queue.nack(claim, some, requeue=how == "released")
    process.client.dead = True


async def redrive_stopped(world: World) -> None:
    """Leave a redrive whose process died between its COPY and its DELETE."""
    process = await world.process()
    await process.queue.publish(TOPIC, numbered(1, 50))
    await process.queue.nack(await process.queue.claim(TOPIC, "c"))
    process.client.inject("dies", "DELETE", "*/dead-letter/*")
    with pytest.raises(Died):
        await process.queue.redrive(TOPIC)


async def acked_halfway(world: World) -> None:
    """Leave a claim whose messages are deleted and whose leases are not."""
    process = await world.process()
    await process.queue.publish(TOPIC, numbered(3))
    claim = await process.queue.claim(TOPIC, "c", claim_id="halfway")
    process.client.inject("dies", "DELETE", "*/leases/*")
    with pytest.raises(Died):
        await process.queue.ack(claim)


async def a_bit_of_everything(world: World) -> None:
    """Leave one of each thing that a janitor does."""
    await acked_halfway(world)
    await redrive_stopped(world)
    await abandoned(world, acked=2, buried=1, released=1)
    world.bucket.plant(layout.lease(TOPIC, UUID), "{}")
    world.bucket.plant(layout.dead_reason(TOPIC, OTHER), '{"reason":"bad"}')
    world.bucket.plant("_probe/old.probe", "x")
    world.bucket.plant(f"{TOPIC}/messages/stranger", "x")
    await world.later(AN_HOUR + 100)


async def test_a_topic_in_order_has_nothing_to_sweep(ann: Process) -> None:
    """A sweep of what is pending, in flight, delayed and dead changes nothing and reports zeros."""
    await ann.queue.publish(TOPIC, numbered(4))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=3)
    await ann.queue.nack(claim, claim.ids[0])
    await ann.queue.nack(claim, claim.ids[1], requeue=True, delay=100)
    before = ann.client.bucket.snapshot()
    assert await ann.queue.sweep(TOPIC) == report()
    assert ann.client.bucket.snapshot() == before


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
        before = world.bucket.snapshot()
        assert await bob.queue.sweep(TOPIC) == report()
        assert world.bucket.snapshot() == before
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
    """Overdue and free, it stands for nothing; before that it is left alone."""
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
    world.bucket.remove(layout.message(TOPIC, world.bucket.below("messages/")[0]))
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
            world.bucket.plant(layout.message(TOPIC, name), '{"id":"x","payload":{}}')

    ann.client.meanwhile = appear
    assert await ann.queue.sweep(TOPIC) == report()
    ann.client.heal()
    assert [message.deliveries for message in await ann.queue.claim(TOPIC, "c")] == [4]


async def test_a_lease_that_changes_while_it_is_judged_is_left_alone(world: World, ann: Process) -> None:
    """What is removed is what was there after the message was looked for."""
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
    """A message that was there when its lease was listed is then in the second list, or was settled in between."""
    await ann.queue.sweep(TOPIC)
    listed = [key for kind, key in ann.client.requests if kind == "LIST"]
    assert listed.index(layout.leases(TOPIC)) < listed.index(layout.messages(TOPIC))


async def test_closed_records_are_removed_past_their_retention_only(world: World, ann: Process) -> None:
    """Until then they answer who settles again; open and fenced ones stay."""
    await ann.queue.publish(TOPIC, numbered(2))
    await ann.queue.ack(await ann.queue.claim(TOPIC, "c", claim_id="done", max_messages=1))
    await world.later(RETENTION - 10)
    await ann.queue.claim(TOPIC, "c", claim_id="open", max_messages=1, ttl=1000)
    assert await ann.queue.sweep(TOPIC) == report()
    await world.later(20)
    assert await ann.queue.sweep(TOPIC) == report(removed_records=1)
    assert world.bucket.below("claims/") == ["open.0.json"]


async def test_the_retention_can_be_set(world: World) -> None:
    """``claims.record_retention_seconds`` says how long."""
    process = await world.process(claims={"record_retention_seconds": 5})
    await process.queue.publish(TOPIC, numbered(1))
    await process.queue.ack(await process.queue.claim(TOPIC, "c", claim_id="run"))
    await world.later(8)
    assert await process.queue.sweep(TOPIC) == report(removed_records=1)


@pytest.mark.parametrize("effect", ["lost", "denied"])
async def test_a_record_that_could_not_be_deleted_is_swept_up(
    world: World, ann: Process, bob: Process, effect: Effect
) -> None:
    """That of a claim whose id was made up, and which is settled: it is closed, and removed past its retention."""
    await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c")
    ann.client.inject(effect, "DELETE", "*/claims/*")
    assert (await ann.queue.ack(claim)).complete
    assert world.bucket.record(f"{claim.claim_id}.0").state == claim.state == "open"
    assert world.bucket.below("messages/") == world.bucket.below("leases/") == []
    await world.later(200)
    assert await bob.queue.sweep(TOPIC) == report(fenced_claims=1, finished_effects=3, closed_claims=1)
    assert world.bucket.record(f"{claim.claim_id}.0").state == "closed"
    await world.later(RETENTION + 10)
    assert await bob.queue.sweep(TOPIC) == report(removed_records=1)
    assert world.bucket.below("claims/") == []


async def test_lone_reasons_are_removed_after_an_hour(world: World, ann: Process) -> None:
    """A reason whose dead letter is gone is a leftover; a young one may be half a burial."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"))
    world.bucket.plant(layout.dead_reason(TOPIC, UUID), "{}")
    await world.later(AN_HOUR - 10)
    assert await ann.queue.sweep(TOPIC) == report()
    await world.later(20)
    assert await ann.queue.sweep(TOPIC) == report(removed_leftovers=1)
    assert len(world.bucket.below("dead-letter/")) == 2


async def test_a_burial_that_is_finished_late_keeps_its_reason(world: World, ann: Process) -> None:
    """A sweep that completes an old half burial does not take the reason for a leftover."""
    await abandoned(world, buried=2)
    await world.later(AN_HOUR * 5)
    assert await ann.queue.sweep(TOPIC) == report(fenced_claims=1, finished_effects=2, given_back=4, closed_claims=1)
    assert len(world.bucket.below("dead-letter/")) == 4


async def test_a_reason_whose_burial_is_not_finished_is_no_leftover(world: World, ann: Process) -> None:
    """Its message is still leased, and its dead letter comes in time."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", ttl=AN_HOUR * 5)
    ann.client.inject("lost", "COPY")
    await ann.queue.nack(claim)
    ann.client.heal()
    await world.later(AN_HOUR * 2)
    assert await ann.queue.sweep(TOPIC) == report()
    assert len(world.bucket.below("dead-letter/")) == 1
    await ann.queue.ack(claim)
    assert len(world.bucket.below("dead-letter/")) == 2


async def test_probe_leftovers_are_removed_after_an_hour(world: World, ann: Process) -> None:
    """Objects of processes that died while they probed or asked for the time."""
    world.bucket.plant("_probe/a.probe", "x")
    await world.later(AN_HOUR - 10)
    world.bucket.plant("_probe/b.probe", "x")
    assert await ann.queue.sweep(TOPIC) == report()
    await world.later(20)
    assert await ann.queue.sweep(TOPIC) == report(removed_leftovers=1)
    assert [key for key in world.bucket.below() if key.startswith("_probe/")] == ["_probe/b.probe"]


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
    world.bucket.remove(*(layout.message(TOPIC, name) for name in world.bucket.below("messages/")))
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
    before = world.bucket.snapshot()
    assert await ann.queue.sweep(TOPIC) == report(strangers=[f"{TOPIC}/messages/stranger"])
    assert world.bucket.snapshot() == before


@pytest.mark.parametrize("seed", range(5))
async def test_two_sweeps_at_once_are_harmless(world: World, ann: Process, seed: int) -> None:
    """However they interleave, the bucket is afterwards as after one, and nothing failed."""
    await a_bit_of_everything(world)
    sweepers = [await world.process() for _ in range(3)]
    world.clock._random.seed(seed)

    async def stagger(_kind: str, _key: str) -> None:
        await world.clock.sleep(world.clock.uniform(0, 1))

    for process in sweepers:
        process.client.meanwhile = stagger
    reports = await asyncio.gather(*(process.queue.sweep(TOPIC) for process in sweepers))
    assert not [failure for one in reports for failure in one.failures]
    assert sum(one.fenced_claims for one in reports) == 2
    assert sorted(numbers(await ann.queue.claim(TOPIC, "d"))) == [3, 4, 5, 50]
    assert len(world.bucket.below("dead-letter/")) == 2
    messages = [layout.parse_message(name) for name in world.bucket.below("messages/")]
    assert world.bucket.below("leases/") == sorted(f"{one.uuid}.lease" for one in messages if one is not None)


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


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("verdict", ["going", "ended", None])
async def test_the_janitor_speaks_for_owners(
    world: World, ann: Process, bob: Process, verdict: Verdict | None, *, dry_run: bool
) -> None:
    """A run that goes on is renewed, one that has ended is fenced, and of what is not known nothing is changed."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.claim(TOPIC, "c", claim_id="run", owner="dag")
    await world.later(20)
    asked: list[str] = []

    async def ask(record: ClaimRecord) -> Verdict | None:
        asked.append(record.owner)
        return verdict

    before = world.bucket.snapshot()
    result = await bob.queue.sweep(TOPIC, ask=ask, dry_run=dry_run)
    assert asked == ["dag"]
    counts = {"going": {"renewed_claims": 1}, "ended": {"fenced_claims": 1}, None: {}}[verdict]
    assert result == report(dry_run=dry_run, **counts)
    record = world.bucket.record("run.0")
    if dry_run or verdict is None:
        assert world.bucket.snapshot() == before
    elif verdict == "going":
        assert record.state == "open"
        assert record.until == pytest.approx(world.clock.server() + TTL, abs=1)
    else:
        assert record.state == "expired"


async def test_an_unknown_topic_and_a_closed_queue(ann: Process) -> None:
    """Sweeping nothing says that it is nothing."""
    with pytest.raises(TopicNotFoundError):
        await ann.queue.sweep("nowhere")
    await ann.queue.aclose()
    with pytest.raises(QueueClosedError):
        await ann.queue.sweep(TOPIC)


# --- a fault of one object concerns that object ---


async def going(_: ClaimRecord) -> Verdict:
    """Say of every run that it goes on."""
    return "going"


async def ended(_: ClaimRecord) -> Verdict:
    """Say of every run that it has ended."""
    return "ended"


async def abandoned_under(world: World, *claim_ids: str) -> None:
    """Leave claims of two messages each, one of them acked and not deleted, whose process has died."""
    process = await world.process()
    await process.queue.publish(TOPIC, numbered(2 * len(claim_ids)))
    process.client.inject("denied", "DELETE", "*/messages/*")
    for claim_id in claim_ids:
        claim = await process.queue.claim(TOPIC, "c", max_messages=2, claim_id=claim_id)
        await process.queue.ack(claim, claim.ids[:1])
    process.client.dead = True


def orphan(world: World, uuid: str) -> str:
    """Plant a released lease that stands for no message, and return its key."""
    made = leases.released(
        uuid, f"20260101T000000_000000-{uuid}.json", consumer="c", claim="", deliveries=1, until=0, now=EPOCH
    )
    key = layout.lease(TOPIC, uuid)
    world.bucket.plant(key, made.encode())
    return key


def newer(world: World, key: str) -> None:
    """Write an object anew, as a version of ours would that does not exist yet."""
    body = world.bucket.body(key)
    changed = json.dumps({**json.loads(body), "v": 99}).encode()
    size = next(size for size in range(len(body), 10_000, 64) if size >= len(changed))
    world.bucket.plant(key, changed.ljust(size))  # LIST tells of it what it did before


@pytest.mark.parametrize("effect", ["lost", "denied"])
@pytest.mark.parametrize("kind", ["GET", "PUT"])
async def test_a_record_that_cannot_be_read_or_written_stops_no_other(
    world: World, ann: Process, kind: Kind, effect: Effect, caplog: pytest.LogCaptureFixture
) -> None:
    """The claims beside it are finished; it is reported by its key and logged once, and finished by the next sweep."""
    await abandoned_under(world, "a", "b", "c")
    await world.later()
    ann.client.inject(effect, kind, "*/claims/b.0.json")
    with caplog.at_level(logging.WARNING):
        report_ = await ann.queue.sweep(TOPIC)
    assert [world.bucket.record(f"{one}.0").state for one in "abc"] == ["closed", "open", "closed"]
    assert (report_.finished_effects, report_.given_back, report_.closed_claims) == (2, 2, 2)
    [failure] = report_.failures
    assert failure.startswith(f"{TOPIC}/claims/b.0.json: ")
    [line] = [one for one in caplog.records if "b.0.json" in one.getMessage()]
    assert line.levelname == "WARNING"
    ann.client.heal()
    assert await ann.queue.sweep(TOPIC) == report(fenced_claims=1, finished_effects=1, given_back=1, closed_claims=1)


@pytest.mark.parametrize("effect", ["lost", "denied"])
@pytest.mark.parametrize("kind", ["GET", "PUT"])
async def test_a_lease_that_cannot_be_read_or_written_stops_no_other(
    world: World, ann: Process, kind: Kind, effect: Effect
) -> None:
    """The other messages of its own claim are given back, and its claim is closed when it is given back too."""
    await abandoned(world)
    [first, *_] = [one.uuid for name in world.bucket.below("messages/") if (one := layout.parse_message(name))]
    await world.later()
    ann.client.inject(effect, kind, f"*/leases/{first}.lease")
    report_ = await ann.queue.sweep(TOPIC)
    assert (report_.given_back, report_.closed_claims, len(report_.failures)) == (5, 0, 1)
    [(stuck, why)] = report_.stuck.items()
    assert first in stuck
    assert why in report_.failures[0]
    assert report_.failures[0].startswith(f"{stuck}: ")
    ann.client.heal()
    assert await ann.queue.sweep(TOPIC) == report(given_back=1, closed_claims=1)
    assert numbers(await ann.queue.claim(TOPIC, "d")) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("effect", ["lost", "denied"])
@pytest.mark.parametrize(("kind", "folder"), [("GET", "leases"), ("HEAD", "messages"), ("DELETE", "leases")])
async def test_an_orphan_that_cannot_be_judged_or_removed_stops_no_other(
    world: World, ann: Process, kind: Kind, folder: str, effect: Effect
) -> None:
    """Its lease stays, and is reported by its key."""
    keys = [orphan(world, one) for one in (UUID, OTHER)]
    ann.client.inject(effect, kind, f"*/{folder}/*{UUID}*")
    report_ = await ann.queue.sweep(TOPIC)
    assert report_.removed_leases == 1
    assert [failure.partition(": ")[0] for failure in report_.failures] == [keys[0]]
    ann.client.heal()
    assert await ann.queue.sweep(TOPIC) == report(removed_leases=1)


@pytest.mark.parametrize("effect", ["lost", "denied"])
async def test_an_orphan_of_a_claim_that_cannot_be_read_stops_no_other(
    world: World, ann: Process, effect: Effect
) -> None:
    """Whether it is free nobody can tell; the orphans of other claims are removed."""
    await ann.queue.publish(TOPIC, numbered(2))
    for claim_id in ("a", "b"):
        await ann.queue.claim(TOPIC, "c", max_messages=1, claim_id=claim_id)
    world.bucket.remove(*(layout.message(TOPIC, name) for name in world.bucket.below("messages/")))
    await world.later()
    ann.client.inject(effect, "GET", "*/claims/a.0.json")
    report_ = await ann.queue.sweep(TOPIC)
    assert report_.removed_leases == 1
    assert [failure.partition(": ")[0] for failure in report_.failures] == [f"{TOPIC}/claims/a.0.json"]
    ann.client.heal()
    assert (await ann.queue.sweep(TOPIC)).removed_leases == 1


async def test_objects_of_a_newer_format_stop_no_other(world: World, ann: Process) -> None:
    """A record and a lease of a version to come are left as they are, and reported."""
    await abandoned_under(world, "a", "b")
    theirs = [layout.claim(TOPIC, "a.0"), orphan(world, UUID)]
    for key in theirs:
        newer(world, key)
    orphan(world, OTHER)
    await world.later()
    before = world.bucket.snapshot()
    report_ = await ann.queue.sweep(TOPIC)
    assert (report_.closed_claims, report_.removed_leases) == (1, 1)
    assert [failure.partition(": ")[0] for failure in report_.failures] == theirs
    assert all("format 99" in failure for failure in report_.failures)
    assert {key: world.bucket.snapshot()[key] for key in theirs} == {key: before[key] for key in theirs}


@pytest.mark.parametrize("effect", ["lost", "denied"])
async def test_a_reason_that_cannot_be_judged_stops_no_other(world: World, ann: Process, effect: Effect) -> None:
    """The other leftovers are removed."""
    for uuid in (UUID, OTHER):
        world.bucket.plant(layout.dead_reason(TOPIC, uuid), "{}")
    await world.later(AN_HOUR + 10)
    ann.client.inject(effect, "HEAD", f"*{UUID}*")
    report_ = await ann.queue.sweep(TOPIC)
    assert report_.removed_leftovers == 1
    assert [failure.partition(": ")[0] for failure in report_.failures] == [layout.dead_reason(TOPIC, UUID)]


@pytest.mark.parametrize("effect", ["lost", "denied"])
async def test_a_move_that_cannot_be_finished_stops_no_other(world: World, ann: Process, effect: Effect) -> None:
    """The other dead letter comes back, and what is swept after the moves is swept."""
    await ann.queue.publish(TOPIC, numbered(2))
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"))
    bob = await world.process()
    bob.client.inject("lost", "COPY")
    await bob.queue.redrive(TOPIC)
    first = world.bucket.below("dead-letter/")[0]
    world.bucket.plant(layout.dead_reason(TOPIC, UUID), "{}")
    await world.later(AN_HOUR + 70)
    ann.client.inject(effect, "HEAD", f"*/{first}")
    report_ = await ann.queue.sweep(TOPIC)
    assert (report_.finished_moves, report_.removed_leftovers, len(report_.failures)) == (1, 1, 1)
    ann.client.heal()
    assert await ann.queue.sweep(TOPIC) == report(finished_moves=1)


@pytest.mark.parametrize("count", [10, 300])
async def test_objects_that_are_stuck_cost_a_sweep_seconds(world: World, ann: Process, count: int) -> None:
    """Whether ten or hundreds of them answer 500 for ever: no object is worth minutes of the others' time."""
    stuck = [f"{number:08d}-2222-4333-8444-555555555555" for number in range(count)]
    for uuid in stuck:
        orphan(world, uuid)
    await abandoned_under(world, *(f"stuck-{number}" for number in range(10)))
    await world.later()
    ann.client.inject("lost", "GET", "*-2222-4333-*")
    ann.client.inject("lost", "GET", "*/stuck-*")
    started = world.clock.elapsed()
    report_ = await ann.queue.sweep(TOPIC)
    assert world.clock.elapsed() - started < 15
    assert len(report_.failures) == count + 10


async def test_effects_that_cannot_be_finished_are_told_by_message(world: World, ann: Process) -> None:
    """What was decided of which message, and why it is not done: in the report of every sweep, until it is."""
    await abandoned(world, acked=2, buried=1)
    await world.later()
    acked, _, dead = (layout.message(TOPIC, name) for name in world.bucket.below("messages/")[:3])
    ann.client.inject("denied", "DELETE", acked)
    ann.client.inject("denied", "COPY")
    for expected in ({"finished_effects": 1, "given_back": 3, "fenced_claims": 1}, {"finished_effects": 1}):
        report_ = await ann.queue.sweep(TOPIC)
        assert set(report_.stuck) == {acked, dead}
        assert "DELETE" in report_.stuck[acked]
        assert "COPY" in report_.stuck[dead]
        assert sorted(one.partition(": ")[0] for one in report_.failures) == [acked, dead]
        assert "it is acked by claim left.0" in " ".join(report_.failures)
        assert report_ == report(**expected, stuck=report_.stuck, failures=report_.failures)
    assert numbers(await ann.queue.claim(TOPIC, "d")) == [3, 4, 5]
    ann.client.heal()
    assert await ann.queue.sweep(TOPIC) == report(finished_effects=3, closed_claims=1)


@pytest.mark.parametrize("folder", ["leases", "messages", "claims", "dead-letter"])
async def test_an_outage_ends_the_sweep(ann: Process, folder: str) -> None:
    """A LIST that fails is no fault of one object: nothing is known, and the sweep says so."""
    ann.client.inject("lost", "LIST", f"{TOPIC}/{folder}/")
    with pytest.raises(StoreError):
        await ann.queue.sweep(TOPIC)


# --- speaking for owners ---


async def claims_of(process: Process, count: int) -> list[Claim]:
    """Claim so many messages, each by a claim of its own: run-0, run-1 and so on."""
    await process.queue.publish(TOPIC, numbered(count))
    return [
        await process.queue.claim(TOPIC, "c", max_messages=1, claim_id=f"run-{number}", owner=f"dag-{number}")
        for number in range(count)
    ]


async def test_a_question_that_fails_concerns_its_claim(
    world: World, ann: Process, bob: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are asked about, renewed and ended; it is left alone, reported and logged."""
    await claims_of(ann, 3)

    async def ask(record: ClaimRecord) -> Verdict:
        if record.owner == "dag-1":
            raise ZeroDivisionError("no such dag")
        return "ended" if record.owner == "dag-2" else "going"

    await world.later(10)
    before = world.bucket.body(layout.claim(TOPIC, "run-1.0"))
    with caplog.at_level(logging.WARNING):
        report_ = await bob.queue.sweep(TOPIC, ask=ask)
    assert (report_.renewed_claims, report_.fenced_claims) == (1, 1)
    assert world.bucket.body(layout.claim(TOPIC, "run-1.0")) == before
    [failure] = report_.failures
    assert failure.startswith(f"{TOPIC}/claims/run-1.0.json: ")
    assert "ZeroDivisionError: no such dag" in failure
    assert "no such dag" in caplog.text


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_question_that_is_never_answered_concerns_its_claim(
    world: World, ann: Process, bob: Process, *, stubborn: bool
) -> None:
    """It is waited for a minute; the others are asked about, the rest is swept, and the report says what was not."""
    await claims_of(ann, 3)
    orphan(world, UUID)

    async def ask(record: ClaimRecord) -> Verdict:
        try:
            if record.owner == "dag-1":
                await world.clock.sleep(10_000)
        except asyncio.CancelledError:
            if not stubborn:
                raise
        return "ended" if record.owner == "dag-2" else "going"

    before = world.bucket.body(layout.claim(TOPIC, "run-1.0"))
    started = world.clock.elapsed()
    await world.later(10)
    report_ = await bob.queue.sweep(TOPIC, ask=ask)
    assert world.clock.elapsed() - started == pytest.approx(70, abs=5)
    assert (report_.renewed_claims, report_.fenced_claims, report_.removed_leases) == (1, 2, 1)
    [failure] = report_.failures
    assert failure == f"{TOPIC}/claims/run-1.0.json: it was asked about, and there was no answer within 60 seconds"
    assert world.bucket.body(layout.claim(TOPIC, "run-1.0")) != before, "meanwhile it was over, and nobody renewed it"


@pytest.mark.parametrize(("seconds", "renewed"), [(10, 1), (TTL - 1, 1), (TTL, 0), (OVERDUE, 0)])
async def test_a_slow_answer_renews_from_when_it_came(
    world: World, ann: Process, bob: Process, seconds: float, renewed: int
) -> None:
    """Not from when it was asked for; and what was over meanwhile is not renewed, but ended if anybody may take it."""
    await claims_of(ann, 1)
    created = world.bucket.record("run-0.0").created_at

    async def ask(_: ClaimRecord) -> Verdict:
        await world.clock.sleep(seconds)
        return "going"

    report_ = await bob.queue.sweep(TOPIC, ask=ask)
    assert report_.renewed_claims == renewed
    record = world.bucket.record("run-0.0")
    if renewed:
        assert record.until == pytest.approx(created + seconds + TTL, abs=1)
    else:
        assert record.until == pytest.approx(created + TTL)
        assert record.state == ("closed" if seconds == OVERDUE else "open")


async def test_every_open_claim_is_asked_about(world: World, bob: Process) -> None:
    """The ten thousand and first as well, and not too many at a time."""
    until = world.clock.server() + 1000
    for number in range(10_050):
        record = ClaimRecord(claim_id=f"{number:05d}", owner="dag", until=until, ttl=1000, created_at=until - 1000)
        world.bucket.plant(layout.claim(TOPIC, record.stem), record.encode())
    asked: set[str] = set()
    busy, most = 0, 0

    async def ask(record: ClaimRecord) -> None:
        nonlocal busy, most
        busy, most = busy + 1, max(most, busy + 1)
        await asyncio.sleep(0)
        busy -= 1
        asked.add(record.claim_id)

    assert await bob.queue.sweep(TOPIC, ask=ask) == report()
    assert len(asked) == 10_050
    assert most <= bob.queue._context.at_once


def alter(world: World, stem: str, **fields: Any) -> ClaimRecord:
    """Write a claim record anew with these fields."""
    record = world.bucket.record(stem).model_copy(update=fields)
    world.bucket.plant(layout.claim(TOPIC, stem), record.encode())
    return record


async def test_going_renews_the_claims_time_and_not_its_sessions(world: World, ann: Process, bob: Process) -> None:
    """A claim lives as long as its run; a retry that takes it up waits only until its dead process is not trusted."""
    await claims_of(ann, 1)
    session_until = world.clock.server() + 12
    alter(world, "run-0.0", session_until=session_until)
    for _ in range(5):
        await world.later(TTL / 2)
        assert await bob.queue.sweep(TOPIC, ask=going) == report(renewed_claims=1)
    record = world.bucket.record("run-0.0")
    assert record.session_until == record.session_end == session_until
    assert record.until == record.free_at == pytest.approx(world.clock.server() + TTL, abs=1)


@pytest.mark.parametrize(("lasts", "expected"), [(0.0, TTL), (100.0, 100.0)])
async def test_going_gives_what_a_renewal_gives(
    world: World, ann: Process, bob: Process, lasts: float, expected: float
) -> None:
    """``lasts``, where the record says so; and LIST tells of it what the record does."""
    await claims_of(ann, 1)
    alter(world, "run-0.0", lasts=lasts)
    await world.later(5)
    for _ in range(2):
        assert await bob.queue.sweep(TOPIC, ask=going) == report(renewed_claims=1)
        record = world.bucket.record("run-0.0")
        assert record.until == pytest.approx(world.clock.server() + expected, abs=1)
        assert (record.ttl, record.lasts) == (pytest.approx(expected), expected)
        await world.later(3)


async def test_going_never_shortens_a_claim_and_keeps_to_its_greatest_age(
    world: World, ann: Process, bob: Process
) -> None:
    """It has more time than a renewal would give it, or as much as it may ever have: nothing is written."""
    await claims_of(ann, 2)
    now = world.clock.server()
    alter(world, "run-0.0", until=now + 500)
    alter(world, "run-1.0", created_at=now - 86_400 + 20)
    before = world.bucket.snapshot()
    assert await bob.queue.sweep(TOPIC, ask=going) == report()
    assert world.bucket.snapshot() == before


async def test_a_claim_whose_run_has_ended_is_given_back_after_its_sessions_time(
    world: World, ann: Process, bob: Process
) -> None:
    """Not after its leases' time, nor after the claim's: the next sweep opens them to whoever comes, and counts."""
    await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=1200)
    alter(world, "run.0", session_until=world.clock.server() + 150)
    await world.later(100)
    assert await bob.queue.sweep(TOPIC, ask=ended) == report(fenced_claims=1)
    assert await bob.queue.sweep(TOPIC) == report(), "its process may be alive, and know nothing yet"
    await world.later(45)
    assert await bob.queue.sweep(TOPIC) == report()
    assert not await bob.queue.claim(TOPIC, "d")
    await world.later(10)
    assert await bob.queue.sweep(TOPIC) == report(given_back=3, closed_claims=1)
    taken = await bob.queue.claim(TOPIC, "d")
    assert [message.deliveries for message in taken] == [2, 2, 2]
    late = await ann.queue.ack(claim)
    assert (late.lost, late.complete) == (claim.ids, False), "it was too late, and is told so"
    assert (await bob.queue.ack(taken)).complete


async def test_what_was_given_back_was_not_decided_by_its_owner(world: World, ann: Process, bob: Process) -> None:
    """A retry by the same id is told what its predecessor had decided, and nothing of what was taken from it."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    await ann.queue.ack(claim, claim.ids[:1])
    await world.later()
    assert (await bob.queue.sweep(TOPIC)).given_back == 1
    again = await bob.queue.claim(TOPIC, "c", claim_id="run")
    assert (list(again), again.was_handed_out, dict(again.decided)) == ([], True, {claim.ids[0]: "acked"})
    assert (await bob.queue.ack(again, claim.ids)).lost == claim.ids[1:]


@pytest.mark.parametrize("step", range(24))
@pytest.mark.parametrize("who", ["a consumer", "a janitor"])
async def test_giving_back_beside_others_gives_each_message_to_one(
    world: World, ann: Process, bob: Process, step: int, who: str
) -> None:
    """Whichever request of a sweep a consumer or another janitor comes before: nobody gets what another one has."""
    await abandoned(world, acked=1, released=1)
    await world.later()
    taken: list[int] = []
    requests = 0

    async def meddle(_kind: str, _key: str) -> None:
        nonlocal requests
        requests += 1
        if requests == step + 1 and who == "a consumer":
            taken.extend(numbers(await bob.queue.claim(TOPIC, "d", max_messages=3)))
        elif requests == step + 1:
            await bob.queue.sweep(TOPIC)

    ann.client.meanwhile = meddle
    assert not (await ann.queue.sweep(TOPIC)).failures
    ann.client.heal()
    assert not (await ann.queue.sweep(TOPIC)).failures
    taken += numbers(await bob.queue.claim(TOPIC, "d"))
    assert sorted(taken) == [1, 2, 3, 4, 5]
    assert not await ann.queue.claim(TOPIC, "e")
    assert world.bucket.record("left.0").state == "closed"


# --- a claim's id may be used again when its record is gone ---


async def forgotten_and_claimed_again(world: World, process: Process) -> Claim:
    """Let somebody else sweep a claim away, which keeps no closed records, and claim anew by its id."""
    for _ in range(2):
        await process.queue.sweep(TOPIC)
        await world.later(2)
    assert not [name for name in world.bucket.below("claims/") if name.startswith("run.")]
    return await process.queue.claim(TOPIC, "d", claim_id="run", ttl=600)


async def test_a_sweep_that_was_paused_does_not_remove_a_new_claims_record(world: World) -> None:
    """It had read a closed record; when it wakes, another claim has the same key."""
    slow, quick = [await world.process(claims={"record_retention_seconds": 0}) for _ in range(2)]
    await slow.queue.publish(TOPIC, numbered(2))
    await slow.queue.ack(await slow.queue.claim(TOPIC, "c", claim_id="run", max_messages=1))
    await world.later(2)
    claims: list[Claim] = []

    async def pause(request: Request, carry_out: CarryOut) -> Answer:
        found = await carry_out()
        if (request.call, request.key) == ("get", layout.claim(TOPIC, "run.0")) and not claims:
            claims.append(await forgotten_and_claimed_again(world, quick))
            await world.later(10)
        return found

    slow.client.hook = pause
    assert await slow.queue.sweep(TOPIC) == report()
    assert world.bucket.record("run.0").state == "open"
    assert (await quick.queue.ack(claims[0])).complete


@pytest.mark.parametrize("decided", [False, True])
async def test_a_sweep_that_was_paused_does_not_release_a_new_claims_leases(world: World, *, decided: bool) -> None:
    """It had read a claim that has ended; when it wakes, the leases are those of another claim with the same id."""
    dead, slow, quick = [await world.process(claims={"record_retention_seconds": 0}) for _ in range(3)]
    await dead.queue.publish(TOPIC, numbered(1))
    claim = await dead.queue.claim(TOPIC, "c", claim_id="run")
    if decided:
        dead.client.inject("lost", "PUT", "*/leases/*")
        await dead.queue.nack(claim, requeue=True)
    dead.client.dead = True
    await world.later()
    claims: list[Claim] = []

    async def pause(kind: str, key: str) -> None:
        if kind == "GET" and key.startswith(layout.leases(TOPIC)) and not claims:
            claims.append(await forgotten_and_claimed_again(world, quick))

    slow.client.meanwhile = pause
    await slow.queue.sweep(TOPIC)
    slow.client.heal()
    assert numbers(claims[0]) == [0]
    assert not await slow.queue.claim(TOPIC, "e"), "it is held by the new claim"
    assert (await quick.queue.ack(claims[0])).complete


async def test_what_a_new_claim_has_settled_is_not_judged_by_what_was_listed_before_it(world: World) -> None:
    """A record is deleted and made anew between its listing and its reading, by one who died before the effects."""
    slow, quick = [await world.process(claims={"record_retention_seconds": 0}) for _ in range(2)]
    await slow.queue.publish(TOPIC, numbered(1))
    await slow.queue.ack(await slow.queue.claim(TOPIC, "c", claim_id="run"))
    await world.later(2)
    claims: list[Claim] = []

    async def pause(kind: str, key: str) -> None:
        if kind == "GET" and key == layout.claim(TOPIC, "run.0") and not claims:
            await quick.queue.publish(TOPIC, numbered(1, 1))
            claims.append(await forgotten_and_claimed_again(world, quick))
            quick.client.inject("dies", "DELETE", "*/messages/*")
            with pytest.raises(Died):
                await quick.queue.ack(claims[0])
            await world.later(700)

    slow.client.meanwhile = pause
    for _ in range(3):
        await slow.queue.sweep(TOPIC)
        await world.later(2)
    assert numbers(claims[0]) == [1]
    assert not await slow.queue.claim(TOPIC, "e"), "it was acked"
    assert world.bucket.below("messages/") == world.bucket.below("claims/") == []

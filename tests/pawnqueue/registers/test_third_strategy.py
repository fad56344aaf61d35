"""The port is true: a strategy whose registers are no single objects carries the queue, and nothing else knows of it.

It is ``tests/support/chained_blocks.py``; here it is entered into the list of strategies, and no more is done for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import pytest

from pawnqueue import CompatibilityError, ConfigError, LeaseLostError, MemoryStore, PawnQueue, TopicNotFoundError
from pawnqueue.domain import layout
from pawnqueue.domain.record import Record
from pawnqueue.domain.records import BucketRecord, TopicRecord
from pawnqueue.registers import strategies
from pawnqueue.registers.strategy import Abilities, Step
from pawnqueue.runtime.clock import SystemClock
from pawnqueue.settings import RetrySettings
from pawnqueue.stores.port import Done, Expect, Refusal, Refused
from pawnqueue.stores.retry import ResilientStore
from tests.pawnqueue.publish.written import COUNT, OVER, WRITE, committed, staged, visible
from tests.pawnqueue.virtual import OVERDUE, TOPIC, TTL, Died, Process, World, numbered, numbers
from tests.support import chained_blocks
from tests.support.chained_blocks import KEPT, MOST, ChainedBlocks
from tests.support.claims import late

if TYPE_CHECKING:
    from pawnqueue import Claim

FIRST = "/0000000000"
RECORD = layout.BUCKET_RECORD
REFUSED = Refused(Refusal.CONDITION)
CHAINED = {"concurrency": {"strategy": "chained_blocks"}}


@pytest.fixture(autouse=True)
def _in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the queue knows of it."""
    monkeypatch.setattr(strategies, "STRATEGIES", (*strategies.STRATEGIES, chained_blocks.STRATEGY))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A bucket whose processes agreed on it, with a topic."""
    async with World() as world:
        marker = layout.topic_marker(TOPIC)
        world.bucket.plant(RECORD, BucketRecord(strategy="chained_blocks").encode())
        world.bucket.remove(marker)
        world.bucket.plant(marker + FIRST, TopicRecord(topic=TOPIC, nonce="first").encode())
        yield world


def blocks(world: World, folder: str) -> dict[str, int]:
    """How many blocks each register of a folder has."""
    found: dict[str, int] = {}
    for name in world.bucket.below(folder):
        register, _, block = name.partition("/")
        assert block[:10].isdigit(), name
        found[register] = found.get(register, 0) + 1
    return found


# --- opening ---


async def test_it_is_agreed_on_by_its_name() -> None:
    """A setting chooses it, and all others follow; the bucket's record is one object, and a marker is not."""
    store = MemoryStore()
    async with PawnQueue.open(CHAINED, store=store) as queue:
        assert queue.strategy == "chained_blocks"
        await queue.create_topic(TOPIC)
    async with PawnQueue.open(store=store) as queue:
        assert await queue.list_topics() == [TOPIC]
    keys = sorted(store._objects)
    assert keys == [RECORD, layout.topic_marker(TOPIC) + FIRST]
    with pytest.raises(ConfigError, match="agreed on chained_blocks"):
        await PawnQueue.open({"concurrency": {"strategy": "conditional_write"}}, store=store)


async def test_an_older_process_is_told_to_be_upgraded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that does not have it opens nothing, and changes nothing."""
    store = MemoryStore()
    async with PawnQueue.open(CHAINED, store=store):
        pass
    monkeypatch.setattr(strategies, "STRATEGIES", strategies.STRATEGIES[:-1])
    before = dict(store._objects)
    with pytest.raises(CompatibilityError, match=r"'chained_blocks'.*upgrade"):
        await PawnQueue.open(store=store)
    assert store._objects == before


def test_it_is_preferred_as_it_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with conditional creates alone carries it, if it is listed before the one that any store carries."""
    without_updates = Abilities(updates="If-Match is ignored")
    assert strategies.best(without_updates)[0].name == "csprng_verify"
    first, *rest = strategies.STRATEGIES
    monkeypatch.setattr(strategies, "STRATEGIES", (first, *reversed(rest)))
    assert strategies.best(Abilities()) == (first, "")
    assert strategies.best(without_updates) == (chained_blocks.STRATEGY, "If-Match is ignored")
    assert strategies.best(Abilities(creates="no", updates="no"))[0].name == "csprng_verify"
    # Its registers are no single objects, and the bucket's record is one.
    assert strategies.founder(chained_blocks.STRATEGY, Abilities()) is first
    assert strategies.founder(chained_blocks.STRATEGY, without_updates).name == "csprng_verify"


# --- messages ---


async def test_publish_claim_renew_ack(world: World, ann: Process) -> None:
    """A message's whole life; what it leaves is its claim's record if that had a name, and nothing if it had none."""
    ids = await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="named")
    assert claim.ids == ids
    assert numbers(claim) == [0, 1, 2]
    assert len(blocks(world, "leases/")) == 3
    await ann.queue.renew(claim)
    assert (await ann.queue.ack(claim)).acked == ids
    assert world.bucket.below("messages/") == world.bucket.below("leases/") == []
    assert [*blocks(world, "claims/")] == ["named.0.json"]
    await ann.queue.publish(TOPIC, numbered(2))
    assert (await ann.queue.ack(await ann.queue.claim(TOPIC, "c"))).complete
    assert [*blocks(world, "claims/")] == ["named.0.json"]
    assert not await ann.queue.claim(TOPIC, "c")


async def test_what_is_given_back_is_delivered_when_it_is_due(world: World, ann: Process, bob: Process) -> None:
    """By anybody, once more counted, and not before."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"), requeue=True, delay=100, reason="later")
    assert (await bob.queue.stats(TOPIC)).delayed == 1
    await world.later(90)
    assert not await bob.queue.claim(TOPIC, "d")
    await world.later(30)
    [message] = await bob.queue.claim(TOPIC, "d")
    assert message.deliveries == 2


async def test_dead_letters_come_back(world: World, ann: Process, bob: Process) -> None:
    """A dead letter is redriven once, whichever process does it, and delivered as a new message."""
    ids = await ann.queue.publish(TOPIC, numbered(4))
    assert (await ann.queue.nack(await ann.queue.claim(TOPIC, "c"), reason="bad")).buried == ids
    assert world.bucket.below("leases/") == []
    found = await ann.queue.find(TOPIC, ids[0])
    assert found is not None
    assert (found.state, found.reason) == ("dead", "bad")
    await world.later(5)
    both = await asyncio.gather(ann.queue.redrive(TOPIC), bob.queue.redrive(TOPIC))
    assert sorted(one for result in both for one in result.moved) == sorted(ids)
    claim = await bob.queue.claim(TOPIC, "d")
    assert sorted(claim.ids) == sorted(ids)
    assert {message.deliveries for message in claim} == {1}
    assert (await bob.queue.ack(claim)).complete
    assert world.bucket.below("messages/") == world.bucket.below("leases/") == []


async def test_a_redrive_that_died_is_finished(world: World, ann: Process, bob: Process) -> None:
    """Its lock is a register too: a process that meets it overdue goes on."""
    [one] = await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"))
    await world.later(5)
    ann.client.inject("dies", "DELETE", "*/dead-letter/*")
    with pytest.raises(Died):
        await ann.queue.redrive(TOPIC)
    await world.later(70)
    assert (await bob.queue.sweep(TOPIC)).finished_moves == 1
    assert (await bob.queue.claim(TOPIC, "d")).ids == [one]
    assert world.bucket.below("dead-letter/") == []


# --- claims ---


async def test_take_over(world: World, ann: Process, bob: Process) -> None:
    """Until a claim is over nobody gets its messages; then another does, and its holder gets an error."""
    ids = await ann.queue.publish(TOPIC, numbered(3))
    old = await ann.queue.claim(TOPIC, "c", claim_id="old")
    assert not await bob.queue.claim(TOPIC, "d")
    await world.later()
    new = await bob.queue.claim(TOPIC, "d")
    assert new.ids == ids
    assert [message.deliveries for message in new] == [2, 2, 2]
    with pytest.raises(LeaseLostError):
        await ann.queue.renew(old)
    assert (await late(ann.queue.ack(old))).lost == ids
    assert (await bob.queue.ack(new)).acked == ids


async def test_what_died_before_its_record_is_taken(world: World, ann: Process, bob: Process) -> None:
    """Leases without a record are free when their time is over, and no hand-out was counted."""
    await ann.queue.publish(TOPIC, numbered(2))
    ann.client.inject("dies", "PUT", "*/claims/*")
    with pytest.raises(Died):
        await ann.queue.claim(TOPIC, "c")
    await world.later()
    assert [message.deliveries for message in await bob.queue.claim(TOPIC, "d")] == [1, 1]


async def test_a_claim_that_is_renewed_for_long(world: World, ann: Process, bob: Process) -> None:
    """It is left alone by others, and its record stays short."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c")
    for _ in range(5 * MOST):
        await world.later(TTL / 2)
        await ann.queue.renew(claim)
        assert not await bob.queue.claim(TOPIC, "d")
    [(_, length)] = blocks(world, "claims/").items()
    assert KEPT < length <= MOST + 1
    assert (await ann.queue.ack(claim)).complete
    assert world.bucket.below("claims/") == []


async def test_the_same_claim_by_its_id(world: World, ann: Process, bob: Process) -> None:
    """Its owner gets the same messages from another process, its first session is refused, the next owner a new one."""
    ids = await ann.queue.publish(TOPIC, numbered(2))
    first = await ann.queue.claim(TOPIC, "c", claim_id="job", owner="run", session_ttl=10)
    again = await bob.queue.claim(TOPIC, "c", claim_id="job", owner="run", wait=60)
    assert again.ids == ids
    with pytest.raises(LeaseLostError):
        await ann.queue.renew(first)
    assert (await bob.queue.ack(again)).acked == ids
    later = await ann.queue.publish(TOPIC, numbered(1))
    cleared = await ann.queue.claim(TOPIC, "c", claim_id="job", owner="cleared")
    assert (cleared.ids, cleared.generation) == (later, 1)
    assert sorted(blocks(world, "claims/")) == ["job.0.json", "job.1.json"]


async def test_the_janitor_finishes_what_others_left(world: World, ann: Process, bob: Process) -> None:
    """What was decided is carried out, what was not is given back, what is past its time is removed, to the last."""
    ids = await ann.queue.publish(TOPIC, numbered(6))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="left")
    for kind, key in (("DELETE", "*"), ("COPY", "*"), ("PUT", "*/leases/*")):
        ann.client.inject("lost", kind, key)  # type: ignore[arg-type]
    await ann.queue.ack(claim, ids[:2])
    await ann.queue.nack(claim, ids[2:4])
    ann.client.dead = True
    await world.later(3 * TTL)
    assert (await bob.queue.sweep(TOPIC, dry_run=True)).finished_effects == 4
    report = await bob.queue.sweep(TOPIC)
    assert (report.finished_effects, report.given_back, report.closed_claims) == (4, 2, 1)
    assert (report.failures, report.strangers) == ([], [])
    stats = await bob.queue.stats(TOPIC)
    assert (stats.pending, stats.dead) == (2, 2)
    assert (await bob.queue.ack(await bob.queue.claim(TOPIC, "d"))).acked == ids[4:]
    await world.later(90_000)
    assert (await bob.queue.sweep(TOPIC)).removed_records == 1
    assert world.bucket.below("leases/") == world.bucket.below("claims/") == []


async def test_a_lease_without_a_message_is_removed(world: World, ann: Process, bob: Process) -> None:
    """The last trace of what was settled goes with the next sweep."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c")
    ann.client.inject("lost", "DELETE", "*/leases/*")
    await ann.queue.ack(claim)
    ann.client.dead = True
    assert len(blocks(world, "leases/")) == 2
    await world.later(OVERDUE)
    await bob.queue.sweep(TOPIC)
    await bob.queue.sweep(TOPIC)
    assert world.bucket.below("leases/") == []


# --- races ---


@pytest.mark.parametrize("seed", range(6))
async def test_two_consumers_share_no_message(world: World, seed: int) -> None:
    """Whatever becomes of their requests, nobody has what the other one has, and all is settled once."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    publisher = await world.process()
    left = set(await publisher.queue.publish(TOPIC, numbered(150)))
    held: dict[str, Process] = {}
    settled: list[str] = []

    async def consume(process: Process) -> None:
        while left:
            claim: Claim = await process.queue.claim(TOPIC, "c", max_messages=chance.randint(1, 20))
            assert held.keys().isdisjoint(claim.ids)
            held.update(dict.fromkeys(claim.ids, process))
            await world.clock.sleep(chance.uniform(0, 2))
            for one in claim.ids:
                del held[one]
            if claim and chance.random() < 0.2:
                await process.queue.nack(claim, requeue=True)
                continue
            acked = (await process.queue.ack(claim)).acked
            settled.extend(acked)
            left.difference_update(acked)
            await world.clock.sleep(chance.uniform(0, 1))

    consumers = [await world.process() for _ in range(2)]
    for process in consumers:
        process.client.latency = 0.01
        for _ in range(15):
            effect = chance.choice(("lost", "answer lost"))
            key = chance.choice(("*/leases/*", "*/claims/*"))
            process.client.inject(effect, "PUT", key, times=2, passed=chance.randint(5, 150))
    await asyncio.gather(*map(consume, consumers))
    assert len(settled) == len(set(settled)) == 150
    await world.later()
    await publisher.queue.sweep(TOPIC)
    assert world.bucket.below("messages/") == world.bucket.below("leases/") == []


# --- all other registers ---


async def test_a_topics_settings_are_changed_by_all(world: World, ann: Process, bob: Process) -> None:
    """Two who change them at once both succeed, and the topic is deleted with all that is in it."""
    await asyncio.gather(*(one.queue.update_topic(TOPIC, max_deliveries=n) for n, one in enumerate((ann, bob), 3)))
    assert len(world.bucket.below(".topic/")) == 3
    await ann.queue.publish(TOPIC, numbered(3))
    await ann.queue.claim(TOPIC, "c", max_messages=2)
    await bob.queue.delete_topic(TOPIC, force=True)
    assert [key for key in world.bucket.below() if key.startswith(TOPIC)] == []
    with pytest.raises(TopicNotFoundError):
        await bob.queue.publish(TOPIC, numbered(1))
    await ann.queue.create_topic(TOPIC)
    assert (await ann.queue.topic(TOPIC)).settings.max_deliveries == 10


async def test_an_empty_topic_is_deleted_with_what_claims_have_left(world: World, ann: Process) -> None:
    """Records of claims that have ended go with it; a lease that is held keeps it."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="named")
    with pytest.raises(Exception, match="1 message in flight"):
        await ann.queue.delete_topic(TOPIC)
    await ann.queue.ack(claim)
    await ann.queue.delete_topic(TOPIC)
    assert [key for key in world.bucket.below() if key.startswith(TOPIC)] == []


async def test_a_name_has_one_registration(world: World, ann: Process, bob: Process) -> None:
    """In whatever process it registers, and however often it is seen after that."""
    entries = await asyncio.gather(*(one.queue.register_consumer("billing") for one in (ann, bob)))
    assert len({entry.id for entry in entries}) == 1
    await world.later(700)
    [entry] = await bob.queue.list_consumers()
    assert entry.name == "billing"
    assert entry.last_seen > entry.registered_at
    keys = [key for key in world.bucket.below() if "/consumers/" in key]
    assert {key.rpartition("/")[0] for key in keys} == {layout.registration("consumers", entry.id)}
    assert len(keys) <= MOST + 1


# --- single registers ---

KEY = "orders/leases/1.lease"


def registers(store: MemoryStore) -> ChainedBlocks:
    """The strategy on a store."""
    clock = SystemClock()
    return ChainedBlocks(ResilientStore(store, RetrySettings(), clock), clock, at_once=8)


async def made(chained: ChainedBlocks, updates: int = 0) -> list[str]:
    """Create the register and change it; return its versions."""
    versions: list[str] = []
    for _ in range(updates + 1):
        [outcome] = await chained.write([Step(KEY, Record(), versions[-1] if versions else Expect.NOTHING)])
        assert isinstance(outcome, Done)
        versions.append(outcome.version)
    return versions


async def listed(chained: ChainedBlocks, folder: str = "") -> list[tuple[str, str]]:
    """Keys and versions in a listing."""
    return [(info.key, info.version) async for page in chained.pages(folder) for info in page]


async def test_every_version_is_told_alike() -> None:
    """By who wrote it, by GET, by HEAD and by LIST."""
    chained = registers(MemoryStore())
    for version in await made(chained, 2):
        assert version
    found = await chained.read(KEY)
    assert found is not None
    assert await listed(chained) == [(KEY, version)]
    assert (found.info.key, found.info.version) == (KEY, version)
    assert await chained.head(KEY) == found.info
    assert found.info.size == len(found.body)


async def test_of_many_one_wins() -> None:
    """Of twenty writers that expect one state one wins, create or update; one that expects an older one is refused."""
    chained = registers(MemoryStore())
    old: Sequence[str] = []
    expect: str | Expect = Expect.NOTHING
    for _ in range(3 * MOST):
        steps = [Step(KEY, Record(), expect)] * 20  # type: ignore[arg-type]
        won = [one for one in await chained.write(steps) if one != REFUSED]
        [outcome] = won
        assert isinstance(outcome, Done)
        assert await chained.write([Step(KEY, Record(), one) for one in old]) == [REFUSED] * len(old)
        old = [*old, *([expect] if isinstance(expect, str) else [])]
        expect = outcome.version


async def test_what_was_deleted_is_not_changed() -> None:
    """Not by a process that knew it, not where it was created again; and no block of it is left."""
    store = MemoryStore()
    chained = registers(store)
    versions = await made(chained, 2)
    assert await chained.delete([KEY]) == {}
    assert store._objects == {}
    assert await chained.write([Step(KEY, Record(), version) for version in versions]) == [REFUSED] * 3
    assert store._objects == {}
    assert await chained.read(KEY) is None
    await made(chained)
    assert await chained.write([Step(KEY, Record(), version) for version in versions]) == [REFUSED] * 3
    assert len(store._objects) == 1


async def test_a_listing_shows_each_register_once() -> None:
    """Over pages, and beside what is none; and is cleared as it was listed."""
    store = MemoryStore()
    chained = registers(store)
    keys = [f"t/leases/{number:04d}.lease" for number in range(700)]
    for outcome in await chained.write([Step(key, Record()) for key in keys]):
        assert isinstance(outcome, Done)
        expect = outcome.version
    versions = dict(await listed(chained, "t/leases/"))
    await chained.write([Step(key, Record(), versions[key]) for key in keys])
    assert versions[keys[-1]] == expect
    strangers = ["t/leases/0000.lease", "t/leases/0300.leas", "t/messages/1.json", "t/leases/x/0000000007.y"]
    for key in strangers:
        await store.put(key, b"{}")
    everything = [key for key, _ in await listed(chained, "t/")]
    assert sorted(everything) == sorted([*keys, *strangers])
    assert [key for key, _ in await listed(chained, "t/leases/0")] == [*sorted([*keys, strangers[0], strangers[1]])]
    behind = [info.key async for page in chained.pages("t/leases/0", start_after=keys[500]) for info in page]
    assert behind == keys[501:]
    assert await chained.delete(everything) == {}
    assert store._objects == {}


async def test_a_staged_write_is_decided_by_it(world: World, ann: Process, bob: Process) -> None:
    """One whose committer died is finished by a sweep, and is done once; its record is no single object."""
    parts = await staged(ann)
    ann.client.inject("dies after", "PUT", "*/messages/*", passed=3, times=1)
    with pytest.raises(Died):
        await ann.queue.commit_write(TOPIC, WRITE, parts)
    await world.later(OVER)
    assert (await bob.queue.sweep(TOPIC)).finished_writes == 1
    assert (await committed(bob)).already
    assert visible(world) == list(range(COUNT))
    assert set(blocks(world, "writes/")) == {f"{WRITE}.json"}

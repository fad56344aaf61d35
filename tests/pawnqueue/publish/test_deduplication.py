"""Deduplication: of the messages with one key, one is published in the topic's window; none is swallowed."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import (
    ConfigError,
    InvalidArgumentError,
    MemoryStore,
    NewMessage,
    PawnQueue,
    PublishError,
    SyncPawnQueue,
    TopicNotFoundError,
    events,
)
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain.dedup_segment import SHARDS, DedupSegment
from pawnqueue.domain.records import DEFAULT_DEDUP_WINDOW_SECONDS
from pawnqueue.maintenance.sweep_claims import TRACE_RETENTION_SECONDS
from pawnqueue.maintenance.sweep_dedup import KEPT_AFTER_WINDOW_SECONDS
from pawnqueue.publish import dedup_log
from pawnqueue.publish.deduplication import NOTE_WITHIN_SECONDS
from pawnqueue.registers.dedup_segments import RESERVED_SECONDS
from tests.pawnqueue.virtual import TOPIC, Died, Process, World, numbered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HOUR = DEFAULT_DEDUP_WINDOW_SECONDS
OVER = RESERVED_SECONDS + 5
MESSAGES = f"*/{units.folder('x')[2:]}*"
SEGMENTS = "*/dedup/*"


@pytest.fixture(params=["conditional_write", "csprng_verify"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A bucket of either strategy, with a topic that allows packs."""
    async with World(request.param) as world:
        world.topic(packs=True, dedup_window_seconds=HOUR)
        yield world
        for process in world._processes:  # the dead ones are closed, too
            process.client.dead = False
            process.client.heal()


@pytest.fixture
async def ann(world: World) -> Process:
    """A process that has opened the queue."""
    return await world.process()


@pytest.fixture
async def bob(world: World) -> Process:
    """Another one."""
    return await world.process()


#: Without conditional writes a compare-and-set is several requests, and their number depends on the pauses.
WHERE_A_STEP_IS_A_REQUEST = pytest.mark.parametrize("world", ["conditional_write"], indirect=True)


def key_of(payload: dict[str, Any]) -> str:
    """Return the number of a payload as its key."""
    return str(payload["n"])


def messages(world: World) -> list[str]:
    """What lies in the topic."""
    return [*world.bucket.below("messages/"), *world.bucket.below("packs/")]


async def consumed(process: Process) -> list[int]:
    """Claim and ack all that the topic has; return the numbers."""
    found = []
    while claim := await process.queue.claim(TOPIC, "c", max_messages=1000):
        found += [message.payload["n"] for message in claim]
        await process.queue.ack(claim)
    return found


def segments(world: World) -> dict[str, DedupSegment]:
    """The segments of the topic's log, by their names."""
    names = world.bucket.below("dedup/")
    keys = {name: f"{layout.dedup(TOPIC)}{name}" for name in names}
    return {name: DedupSegment.decode(world.bucket.body(key), key) for name, key in keys.items()}


async def test_a_key_is_published_once(world: World, ann: Process, bob: Process) -> None:
    """A second message of a key is not published, by whichever process: the result has the first one's id."""
    first = await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")
    again = await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")
    others = await bob.queue.publish(TOPIC, numbered(1), dedup_key="a")
    assert first == again == others
    assert (first.duplicates, again.duplicates, others.duplicates) == ((), (0,), (0,))
    assert len(messages(world)) == 1
    assert await consumed(bob) == [0]


async def test_a_key_whose_message_was_consumed_is_published_once(ann: Process, bob: Process) -> None:
    """It counts in the window whether or not its message is still there."""
    [first] = await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")
    assert await consumed(bob) == [0]
    assert (await bob.queue.publish(TOPIC, numbered(1), dedup_key="a")) == [first]
    assert not await consumed(bob)


async def test_duplicates_of_one_call(ann: Process) -> None:
    """The first message of a key is published, in packs as well; the places of the others are named."""
    ids = await ann.queue.publish(TOPIC, [{"n": number % 150} for number in range(300)], dedup_key=key_of)
    assert ids.duplicates == tuple(range(150, 300))
    assert ids[:150] == ids[150:]
    more = await ann.queue.publish(TOPIC, numbered(200), dedup_key=key_of)
    assert more.duplicates == tuple(range(150))
    assert sorted(await consumed(ann)) == list(range(200))


async def test_a_message_has_its_key(world: World, ann: Process) -> None:
    """Each message can have a key of its own, which its consumer sees."""
    new = [NewMessage({"n": number}, dedup_key=f"k{number}") for number in range(2)]
    await ann.queue.publish(TOPIC, new)
    assert {json.loads(world.bucket.body(units.key_of(TOPIC, name)))["dedup_key"] for name in messages(world)} == {
        "k0",
        "k1",
    }
    claim = await ann.queue.claim(TOPIC, "c", max_messages=2)
    assert {message.dedup_key for message in claim} == {"k0", "k1"}


async def test_after_the_window_a_key_is_published_again(world: World, ann: Process) -> None:
    """The window is counted from the message that was published."""
    [first] = await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")
    await world.later(HOUR - 5)
    assert (await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")).duplicates
    await world.later(10)
    again = await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")
    assert not again.duplicates
    assert again != [first]


@pytest.mark.parametrize(("window", "is_duplicate"), [(60.0, False), (2 * HOUR, True)])
async def test_a_window_that_is_changed(world: World, ann: Process, window: float, *, is_duplicate: bool) -> None:
    """A live topic's window, lowered or raised, counts for what was published before, within a minute."""
    await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")
    other = await world.process()
    await other.queue.update_topic(TOPIC, dedup_window_seconds=window)
    await world.later(61 if window < HOUR else HOUR + 60)
    assert bool((await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")).duplicates) is is_duplicate


@pytest.mark.parametrize("window", [None, 0, -1, True, "an hour", float("inf"), float("nan"), 10**9])
async def test_windows_that_are_refused(ann: Process, window: Any) -> None:  # noqa: ANN401 - anything
    """A topic's window is a number of seconds; a topic that has one keeps one."""
    with pytest.raises(ConfigError, match="dedup_window_seconds"):
        await ann.queue.update_topic(TOPIC, dedup_window_seconds=window)


async def test_the_first_publisher_with_a_key_sets_the_window(world: World, ann: Process) -> None:
    """It tells sweeps that the topic has keys. A window that somebody has set meanwhile stays."""
    await ann.queue.create_topic("others")
    assert (await ann.queue.topic("others")).settings.dedup_window_seconds is None
    await ann.queue.publish("others", numbered(1), dedup_key="a")
    assert (await ann.queue.topic("others")).settings.dedup_window_seconds == HOUR
    await ann.queue.create_topic("more")
    bob = await world.process()
    await bob.queue.update_topic("more", dedup_window_seconds=60)
    await ann.queue.publish("more", numbered(1), dedup_key="a")
    assert (await ann.queue.topic("more")).settings.dedup_window_seconds == 60


WRONG: list[tuple[Any, Any, str]] = [
    (numbered(2), "a", "is a key for 2 messages"),
    (numbered(1), "", "Message 0 .* has a wrong deduplication key"),
    (numbered(1), 7, "Message 0 .* wrong deduplication key, a int"),
    (numbered(2), lambda payload: None if payload["n"] else "a", "Message 1 .* has no deduplication key"),
    (numbered(2), lambda payload: "" if payload["n"] else "a", "Message 1"),
    (numbered(1), lambda payload: payload["id"], "failed for message 0 .* KeyError"),
    (numbered(1), "é" * 513, "1,024 bytes"),
    (numbered(1), "\ud800", "Message 0"),
    ([NewMessage({"n": 0}, dedup_key="a"), {"n": 1}], None, "Message 1 .* has no deduplication key"),
]


@pytest.mark.parametrize(("payloads", "key", "why"), WRONG)
async def test_keys_that_are_refused(
    world: World,
    ann: Process,
    payloads: Any,  # noqa: ANN401 - anything
    key: Any,  # noqa: ANN401 - anything
    why: str,
) -> None:
    """The error names the message, and nothing is published."""
    with pytest.raises(InvalidArgumentError, match=why):
        await ann.queue.publish(TOPIC, payloads, dedup_key=key)
    assert not messages(world)
    assert not world.bucket.below("dedup/")


async def test_staged_messages_have_no_keys(world: World, ann: Process) -> None:
    """A key that would be ignored is refused."""
    with pytest.raises(InvalidArgumentError, match="have no deduplication keys"):
        await ann.queue.stage(TOPIC, "w", 0, [NewMessage({"n": 0}, dedup_key="a")])
    assert not world.bucket.below("staged/")


def test_the_synchronous_twin() -> None:
    """It takes the same keys, calls the function in its caller's thread, and returns the duplicates."""
    with SyncPawnQueue.open(s3={"bucket_name": "virtual"}, store=MemoryStore()) as queue:
        queue.create_topic(TOPIC)
        assert queue.publish(TOPIC, numbered(3), dedup_key=key_of).duplicates == ()
        assert queue.publish(TOPIC, numbered(4), dedup_key=key_of).duplicates == (0, 1, 2)
        assert queue.publish(TOPIC, numbered(1), dedup_key="0").duplicates == (0,)
        with pytest.raises(InvalidArgumentError, match="Message 0"):
            queue.publish(TOPIC, numbered(1), dedup_key="")


async def test_an_event_names_the_messages_that_were_published_before() -> None:
    """It has their ids; what was published has an event of its own."""
    told: list[events.Event] = []
    settings: dict[str, Any] = {"s3": {"bucket_name": "virtual"}, "registry": {"register_consumers": False}}
    async with PawnQueue.open(settings, store=MemoryStore(), on_event=told.append) as queue:
        await queue.create_topic(TOPIC)
        ids = await queue.publish(TOPIC, [{"n": 1}, {"n": 2}, {"n": 1}], dedup_key=key_of)
    assert events.Published(topic=TOPIC, ids=tuple(ids[:2])) in told
    [event] = [event for event in told if isinstance(event, events.Deduplicated)]
    assert event == events.Deduplicated(topic=TOPIC, ids=(ids[0],))
    assert event.sentence() == f"Not published into topic 'orders', as their keys were before: 1 message ({ids[0]})."


# --- what it costs ---


@WHERE_A_STEP_IS_A_REQUEST
async def test_what_a_single_message_costs(world: World, ann: Process) -> None:
    """One compare-and-set more than without a key, which notes the message before, too."""
    for number in range(20):
        await ann.queue.publish(TOPIC, numbered(1), dedup_key=f"before {number}")
    with ann.client.counting() as counted:
        for number in range(20):
            await ann.queue.publish(TOPIC, numbered(1), dedup_key=str(number))
    assert counted["PUT"] == 40
    assert sum(counted.values()) <= 41  # and one look whether the topic exists


@WHERE_A_STEP_IS_A_REQUEST
async def test_what_a_pack_costs(world: World, ann: Process) -> None:
    """At most a compare-and-set for each shard, however many messages it has."""
    await ann.queue.publish(TOPIC, numbered(1000), dedup_key=lambda payload: f"before {payload['n']}")
    with ann.client.counting() as counted:
        await ann.queue.publish(TOPIC, numbered(1000), dedup_key=key_of)
    assert counted["PUT"] == 1 + SHARDS
    assert sum(counted.values()) <= 2 + SHARDS


async def test_a_known_duplicate_costs_no_request(ann: Process) -> None:
    """A process knows what it has published."""
    await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")
    with ann.client.counting() as counted:
        await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")
    assert not counted


async def test_calls_at_the_same_time_share_a_compare_and_set(ann: Process) -> None:
    """Of fifty calls, the first has one for itself, and the others share the next."""
    ann.client.latency = 0.02
    await ann.queue.publish(TOPIC, numbered(SHARDS * 4), dedup_key=lambda payload: f"before {payload['n']}")
    calls = [ann.queue.publish(TOPIC, numbered(1), dedup_key=str(number)) for number in range(50)]
    with ann.client.counting() as counted:
        await asyncio.gather(*calls)
    assert counted["PUT"] <= 50 + 2 * SHARDS


async def test_what_was_published_is_noted_soon(world: World, ann: Process) -> None:
    """In the background, where no other message of the shard comes; and by closing the queue."""
    await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")
    assert [each.reserved != [] for each in segments(world).values()] == [True]
    await world.later(NOTE_WITHIN_SECONDS + 5)
    assert [each.reserved for each in segments(world).values()] == [[]]
    bob = await world.process()
    await bob.queue.publish(TOPIC, numbered(1), dedup_key="b")
    await bob.queue.aclose()
    assert [each.reserved for each in segments(world).values()] == [[]] * len(segments(world))


# --- many publishers, and dying ones ---


@pytest.mark.parametrize("seed", range(8))
async def test_many_publishers_of_the_same_keys(world: World, seed: int) -> None:
    """Of the messages of each key, one is published, and all calls return its id."""
    processes = [await world.process() for _ in range(4)]
    world.stagger(processes, seed, at_most=0.05)
    results = await asyncio.gather(*(each.queue.publish(TOPIC, numbered(12), dedup_key=key_of) for each in processes))
    assert len({tuple(ids) for ids in results}) == 1
    assert sum(len(ids.duplicates) for ids in results) == 3 * 12
    assert sorted(await consumed(processes[0])) == list(range(12))


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("number", range(8))
async def test_every_crash_point(world: World, bob: Process, number: int, *, packs: bool) -> None:
    """Wherever a publisher dies, the next one publishes what was not published, and nothing else."""
    dying = await world.process()
    dying.client.inject("dies" if number % 2 else "dies after", passed=number // 2)
    payloads = numbered(5)
    with suppress(Died, PublishError, ExceptionGroup):
        await dying.queue.publish(TOPIC, payloads, dedup_key=key_of, pack=packs)
    dying.client.dead = True
    ids = await bob.queue.publish(TOPIC, payloads, dedup_key=key_of, pack=packs)
    assert sorted(await consumed(bob)) == list(range(5))
    assert len(set(ids)) == 5


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("packs", [False, True])
async def test_a_message_that_was_consumed_before_its_key_was_noted(
    world: World, bob: Process, *, named: bool, packs: bool
) -> None:
    """Its publisher died after the PUT: the record of the claim that had it tells the next one, and a sweep."""
    dying = await world.process()
    await dying.queue.publish(TOPIC, numbered(3), dedup_key=key_of, pack=packs)
    dying.client.dead = True
    claim = await bob.queue.claim(TOPIC, "c", max_messages=3, claim_id="named" if named else None)
    await bob.queue.ack(claim)
    assert not messages(world)
    ids = await bob.queue.publish(TOPIC, numbered(3), dedup_key=key_of)
    assert ids.duplicates == (0, 1, 2)
    assert not messages(world)


async def test_a_sweep_resolves_keys_before_it_removes_the_records_that_tell_of_them(world: World) -> None:
    """A record that is only a trace goes soon; then the log knows the keys."""
    dying, bob = await world.process(), await world.process()
    await dying.queue.publish(TOPIC, numbered(3), dedup_key=key_of)
    dying.client.dead = True
    assert await consumed(bob) == [0, 1, 2]
    assert len(world.bucket.below("claims/")) == 1
    await bob.queue.sweep(TOPIC)
    assert len(world.bucket.below("claims/")) == 1
    await world.later(TRACE_RETENTION_SECONDS + OVER)
    await bob.queue.sweep(TOPIC)
    assert not world.bucket.below("claims/")
    assert (await bob.queue.publish(TOPIC, numbered(3), dedup_key=key_of)).duplicates == (0, 1, 2)


async def test_a_sweep_keeps_the_traces_of_what_is_reserved(world: World, bob: Process) -> None:
    """Even with no retention at all, the record stays while the publisher may live."""
    cid = await world.process(claims={"record_retention_seconds": 0})
    dying = await world.process()
    await dying.queue.publish(TOPIC, numbered(1), dedup_key=key_of)
    dying.client.dead = True
    await cid.queue.ack(await cid.queue.claim(TOPIC, "c", claim_id="named"))
    await world.later(6)
    await cid.queue.sweep(TOPIC)
    assert (await bob.queue.publish(TOPIC, numbered(1), dedup_key=key_of)).duplicates == (0,)


async def test_a_publisher_that_is_late_sends_nothing(world: World, ann: Process) -> None:
    """Its reservation took so long that others may have taken over: the message failed."""
    await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")
    slow = [40.0]

    async def wait(kind: str, key: str) -> None:
        if kind == "PUT" and "/dedup/" in key and slow:
            await world.later(slow.pop())

    ann.client.meanwhile = wait
    with pytest.raises(PublishError) as caught:
        await ann.queue.publish(TOPIC, numbered(1), dedup_key="b")
    assert list(caught.value.failed) == caught.value.ids
    assert len(messages(world)) == 1


async def test_what_was_never_sent_has_its_id(world: World, bob: Process) -> None:
    """The next publisher uses the id that was reserved: a request that lands late makes no second message."""
    dying = await world.process()
    dying.client.inject("dies", "PUT", MESSAGES)
    with pytest.raises((Died, ExceptionGroup)):
        await dying.queue.publish(TOPIC, numbered(1), dedup_key="a")
    [segment] = segments(world).values()
    await world.later(OVER)
    await bob.queue.sweep(TOPIC)
    [swept] = segments(world).values()
    assert [each.unsent for each in swept.reserved] == [True]
    [message_id] = await bob.queue.publish(TOPIC, numbered(1), dedup_key="a")
    [name] = messages(world)
    assert name == f"{segment.reserved[0].unit}.json"
    assert message_id in name


async def test_a_publish_that_failed_frees_its_key(ann: Process, bob: Process) -> None:
    """Nobody waits for it."""
    ann.client.inject("denied", "PUT", MESSAGES)
    with pytest.raises(PublishError) as caught:
        await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")
    assert list(caught.value.failed) == caught.value.ids
    began = bob.client.bucket.clock.elapsed()
    assert not (await bob.queue.publish(TOPIC, numbered(1), dedup_key="a")).duplicates
    assert bob.client.bucket.clock.elapsed() - began < 5


async def test_a_publish_whose_outcome_is_unknown_is_not_repeated(world: World) -> None:
    """The retry looks for its message, and returns the same id, published or not."""
    ann = await world.process(retry={"budget_seconds": 0})
    ann.client.inject("answer lost", "PUT", MESSAGES, times=1)
    ann.client.inject("denied", "HEAD", MESSAGES, times=1)
    with pytest.raises(PublishError) as caught:
        await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")
    assert list(caught.value.unknown) == caught.value.ids
    assert await ann.queue.publish(TOPIC, numbered(1), dedup_key="a") == caught.value.ids
    assert len(messages(world)) == 1


async def test_a_reservation_without_an_answer_sends_nothing(world: World, bob: Process) -> None:
    """Its messages failed. If it was written, the next publisher finds out that nothing was sent."""
    ann = await world.process(retry={"budget_seconds": 0})
    ann.client.inject("answer lost", "PUT", SEGMENTS, times=1)
    ann.client.inject("lost", "GET", SEGMENTS)
    ann.client.inject("lost", "HEAD", SEGMENTS)
    ann.client.inject("lost", "LIST", SEGMENTS)
    with pytest.raises(PublishError) as caught:
        await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")
    assert list(caught.value.failed) == caught.value.ids
    assert not messages(world)
    await bob.queue.publish(TOPIC, numbered(1), dedup_key="a")
    assert len(messages(world)) == 1


async def test_a_pack_is_not_sent_without_one_of_its_keys(world: World, bob: Process) -> None:
    """A reservation that lands late says that its message is in the pack: it must be, or the pack must not be."""
    ann = await world.process(retry={"budget_seconds": 0})
    await ann.queue.publish(TOPIC, numbered(100), dedup_key=lambda payload: f"before {payload['n']}")
    fault = ann.client.inject("answer lost", "PUT", f"{SEGMENTS[:-1]}*-1.*", times=1)
    for kind in ("GET", "HEAD", "LIST"):
        ann.client.inject("lost", kind, SEGMENTS)  # type: ignore[arg-type]
    with pytest.raises(PublishError):
        await ann.queue.publish(TOPIC, numbered(100), dedup_key=key_of)
    if ann.queue._context.registers.is_certain:
        assert fault.hits
    assert len(messages(world)) == 1
    await bob.queue.publish(TOPIC, numbered(100), dedup_key=key_of)
    assert sorted(await consumed(bob))[-200:] == sorted([*range(100), *range(100)])


# --- segments ---


async def test_segments_follow_each_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is sealed when it is full, and what it says counts as long as the window lasts."""
    monkeypatch.setattr(dedup_log, "SEAL_ROWS", 3)
    ann, bob = await world.process(), await world.process()
    for number in range(40):
        who = (ann, bob)[number % 2]
        assert not (await who.queue.publish(TOPIC, [{"n": number}], dedup_key=key_of)).duplicates
    assert len(segments(world)) > 2 * SHARDS
    assert (await bob.queue.publish(TOPIC, numbered(40), dedup_key=key_of)).duplicates == tuple(range(40))
    cid = await world.process()
    assert (await cid.queue.publish(TOPIC, numbered(40), dedup_key=key_of)).duplicates == tuple(range(40))
    assert not any(each.sealed and each.published == "" for each in segments(world).values())


async def test_a_sweep_removes_segments_after_the_window(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest one of each shard stays, as the next one begins behind it."""
    monkeypatch.setattr(dedup_log, "SEAL_ROWS", 3)
    ann = await world.process()
    for number in range(40):
        await ann.queue.publish(TOPIC, [{"n": number}], dedup_key=key_of)
    before = set(segments(world))
    await ann.queue.sweep(TOPIC)
    assert set(segments(world)) == before
    await world.later(HOUR + KEPT_AFTER_WINDOW_SECONDS + 10)
    await ann.queue.sweep(TOPIC)
    assert len(segments(world)) == SHARDS
    assert not (await ann.queue.publish(TOPIC, numbered(40), dedup_key=key_of)).duplicates


async def test_a_publisher_that_slept_begins_no_old_segment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows a segment that is long removed, and goes on behind the newest one."""
    monkeypatch.setattr(dedup_log, "SEAL_ROWS", 1)
    ann, bob = await world.process(), await world.process()
    await ann.queue.publish(TOPIC, numbered(8), dedup_key=key_of)
    for _ in range(3):
        await world.later(HOUR + KEPT_AFTER_WINDOW_SECONDS + 10)
        await bob.queue.publish(TOPIC, numbered(8), dedup_key=key_of)
        await bob.queue.sweep(TOPIC)
    numbers = {parsed[2] for name in segments(world) if (parsed := layout.parse_dedup_segment(f"t/dedup/{name}"))}
    assert 0 not in numbers
    assert (await ann.queue.publish(TOPIC, numbered(8), dedup_key=key_of)).duplicates == tuple(range(8))


GARBAGE = [b"", b"{", b"[]", b'{"v":1,"published":"x"}', b'{"v":1,"published":"AAAA"}', b"x" * 5_000_000]


@pytest.mark.parametrize("body", GARBAGE, ids=range(len(GARBAGE)))
async def test_garbage_in_the_log_keeps_nobody_from_publishing(world: World, ann: Process, body: bytes) -> None:
    """Messages of its keys may be published once more. Deduplication goes on in the next segment."""
    await ann.queue.publish(TOPIC, numbered(20), dedup_key=key_of)
    for name in segments(world):
        world.bucket.plant(f"{layout.dedup(TOPIC)}{name}", body)
    bob = await world.process()
    assert (await bob.queue.publish(TOPIC, numbered(20), dedup_key=key_of)).duplicates == ()
    assert (await ann.queue.publish(TOPIC, numbered(21), dedup_key=key_of)).duplicates == tuple(range(20))
    assert not (await bob.queue.sweep(TOPIC)).failures


async def test_forged_times_swallow_nothing_for_ever(world: World, ann: Process) -> None:
    """No time in a segment is later than the store's date of it."""
    dying = await world.process()
    dying.client.inject("dies", "PUT", MESSAGES)
    with pytest.raises((Died, ExceptionGroup)):
        await dying.queue.publish(TOPIC, numbered(1), dedup_key="a")
    [(name, segment)] = segments(world).items()
    far = [each.model_copy(update={"at": 2e11, "until": 2e11}) for each in segment.reserved]
    forged = segment.model_copy(update={"reserved": far, "nonce": "f"})
    world.bucket.plant(f"{layout.dedup(TOPIC)}{name}", forged.encode())
    assert not (await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")).duplicates
    assert len(messages(world)) == 1


async def test_a_topic_that_is_created_again_has_no_keys(world: World, ann: Process, bob: Process) -> None:
    """What was published into the former one does not keep a message out of it, in any process."""
    await ann.queue.publish(TOPIC, numbered(3), dedup_key=key_of)
    await world.later(5)
    await bob.queue.delete_topic(TOPIC, force=True)
    assert not world.bucket.below("dedup/")
    await bob.queue.create_topic(TOPIC)
    assert not (await bob.queue.publish(TOPIC, numbered(3), dedup_key=key_of)).duplicates
    with pytest.raises(TopicNotFoundError, match="was deleted"):
        await ann.queue.publish(TOPIC, numbered(4), dedup_key=key_of)
    assert (await ann.queue.publish(TOPIC, numbered(4), dedup_key=key_of)).duplicates == (0, 1, 2)


async def test_a_duplicate_needs_to_know_its_topic(world: World, ann: Process) -> None:
    """It fails if the store does not tell whether the topic was created again."""
    await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")
    await world.later(5)
    ann.client.inject("denied", "GET", "*/.topic")
    with pytest.raises(PublishError) as caught:
        await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")
    assert list(caught.value.failed) == caught.value.ids
    ann.client.heal()
    assert (await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")).duplicates == (0,)


async def test_what_is_left_of_a_former_topics_log_does_not_count(world: World, ann: Process, bob: Process) -> None:
    """A segment that was not deleted with its topic is another topic's: nothing is swallowed."""
    await ann.queue.publish(TOPIC, numbered(3), dedup_key=key_of)
    left = {key: body for key, (_, body) in world.bucket.snapshot().items() if "/dedup/" in key}
    await world.later(5)
    await bob.queue.delete_topic(TOPIC, force=True)
    await bob.queue.create_topic(TOPIC)
    for key, body in left.items():
        world.bucket.plant(key, body)
    assert not (await bob.queue.publish(TOPIC, numbered(3), dedup_key=key_of)).duplicates
    await world.later(HOUR + KEPT_AFTER_WINDOW_SECONDS + 10)
    await bob.queue.sweep(TOPIC)
    assert not set(left) & set(world.bucket.snapshot())


async def test_a_dead_letter_that_is_redriven_is_no_new_message(ann: Process) -> None:
    """Nor is a message that is given back."""
    await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"), reason="bad")
    await ann.queue.redrive(TOPIC)
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"), requeue=True)
    assert await consumed(ann) == [0]
    assert (await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")).duplicates

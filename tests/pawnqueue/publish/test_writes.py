"""Staged writes: nothing of one is seen before it is decided, and all of it after that, once, whatever dies."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from pawnqueue import (
    InvalidArgumentError,
    InvalidPayloadError,
    NewMessage,
    PublishError,
    StagedGoneError,
    StoreError,
    TopicNotEmptyError,
    TopicNotFoundError,
    WriteBusyError,
)
from pawnqueue import events as happened
from pawnqueue.domain import layout
from pawnqueue.publish import decided_writes, staging
from pawnqueue.registers.write_records import HOLD_SECONDS
from tests.pawnqueue.publish.written import (
    COUNT,
    EVERY,
    OVER,
    WRITE,
    committed,
    consumed,
    cut,
    expected_ids,
    ids,
    left,
    of_strategy,
    record,
    requests_of_a_commit,
    staged,
    visible,
    writer,
)
from tests.pawnqueue.virtual import MARGIN, TOPIC, Died, Process, World, numbered, numbers

if TYPE_CHECKING:
    from tests.pawnqueue.virtual import Effect, Kind

pytestmark = pytest.mark.usefixtures("small_chunks")


# --- staging ---


async def test_nothing_staged_is_seen(world: World, ann: Process, bob: Process) -> None:
    """Before the commit no consumer is given anything, and nothing counts."""
    await staged(ann)
    assert visible(world) == []
    assert not await bob.queue.claim(TOPIC, "c")
    assert (await bob.queue.stats(TOPIC)).pending == 0


async def test_after_the_commit_all_of_it_is(world: World, ann: Process, bob: Process) -> None:
    """All messages, in the order of parts and rows, whichever part was passed first; nothing is staged any more."""
    first, second = await staged(ann)
    written = await ann.queue.commit_write(TOPIC, WRITE, [second, first])
    assert (written.count, written.already) == (COUNT, False)
    assert visible(world) == EVERY
    assert numbers(await bob.queue.claim(TOPIC, "c", max_messages=10)) == EVERY
    assert left(world) == []


async def test_ids_are_made_of_the_write_the_part_and_the_place(world: World, ann: Process) -> None:
    """A message of a write keeps its id, in whichever process and however often it is staged."""
    await committed(ann)
    assert ids(world) == expected_ids()
    assert layout.written_id("other", WRITE, 0, 0) not in ids(world)


async def test_a_message_names_its_write(ann: Process, bob: Process) -> None:
    """A consumer can tell which write published it, or that none did."""
    await committed(ann, 1)
    await ann.queue.publish(TOPIC, numbered(1))
    assert [each.write_id for each in await bob.queue.claim(TOPIC, "c", max_messages=2)] == [WRITE, ""]


async def test_a_staged_message_is_like_a_published_one(world: World, ann: Process) -> None:
    """Payload, headers, producer and time are those that publish would have given it."""
    part = await ann.queue.stage(TOPIC, WRITE, 0, [NewMessage({"a": "ä\n\u2028"}, {"h": "1"})], producer="shop")
    await ann.queue.commit_write(TOPIC, WRITE, [part])
    producer = await ann.queue.register_producer("shop")
    [message] = await ann.queue.claim(TOPIC, "c")
    assert (dict(message.payload), dict(message.headers), message.producer_id) == (
        {"a": "ä\n\u2028"},
        {"h": "1"},
        producer.id,
    )
    assert abs(message.created_at.timestamp() - world.clock.server()) < 5


async def test_a_part_goes_on_behind_what_was_staged(world: World, ann: Process) -> None:
    """More messages than memory has are staged bit by bit, as one part; places and ids go on."""
    part = await ann.queue.stage(TOPIC, WRITE, 0, numbered(2))
    part = await ann.queue.stage(TOPIC, WRITE, 0, [], after=part)
    part = await ann.queue.stage(TOPIC, WRITE, 0, numbered(COUNT - 2, 2), after=part)
    assert len(part) == COUNT
    await ann.queue.commit_write(TOPIC, WRITE, [part])
    assert visible(world) == EVERY
    assert ids(world) == expected_ids(parts=1)


async def test_an_object_is_not_made_too_large(world: World, ann: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are cut into objects by their bytes, and come together again in order."""
    monkeypatch.setattr(staging, "STAGED_OBJECT_BYTES", 500)
    part = await ann.queue.stage(TOPIC, WRITE, 0, numbered(20))
    assert len(part.objects) > 5
    assert all(each.size < 1000 for each in part.objects)
    await ann.queue.commit_write(TOPIC, WRITE, [pickle.loads(pickle.dumps(part))])  # noqa: S301 - made on the line itself
    assert visible(world) == list(range(20))


async def test_a_bad_payload_stages_nothing(world: World, ann: Process) -> None:
    """What is no JSON object is refused with its place, as publish does."""
    with pytest.raises(InvalidPayloadError, match=r"payloads\[1\]\.a"):
        await ann.queue.stage(TOPIC, WRITE, 0, [{}, {"a": float("nan")}])
    assert left(world) == []


async def test_an_attempt_that_fails_leaves_nothing(
    world: World, ann: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an object cannot be staged, those beside it are removed again."""
    monkeypatch.setattr(staging, "STAGED_OBJECT_BYTES", 100)
    ann.client.inject("denied", "PUT", "*.000003.jsonl")
    with pytest.raises(StoreError):
        await ann.queue.stage(TOPIC, WRITE, 0, numbered(10))
    assert left(world) == []


@pytest.mark.parametrize(
    ("write_id", "part"), [("", 0), ("a/b", 0), (".a", 0), ("x" * 129, 0), (WRITE, -1), (WRITE, "0"), (WRITE, True)]
)
async def test_wrong_names_are_refused(ann: Process, write_id: str, part: int) -> None:
    """An id that makes no key, and a part that is not a number, raise errors before any request."""
    with ann.client.counting() as requests, pytest.raises(InvalidArgumentError, match=r"write id|part"):
        await ann.queue.stage(TOPIC, write_id, part, numbered(1))
    assert not requests


async def test_what_was_not_staged_for_it_is_refused(world: World, ann: Process) -> None:
    """Another write's parts, a part twice, and an invalid part raise errors, and nothing is published."""
    parts = await staged(ann)
    other = await staged(ann, write_id="other")
    for given in (other, [*parts, parts[0]], ["x"], None):
        with pytest.raises(InvalidArgumentError, match="Nothing was published"):
            await ann.queue.commit_write(TOPIC, WRITE, given)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="after must be what"):
        await ann.queue.stage(TOPIC, WRITE, 0, [], after=parts[1])
    assert visible(world) == []


# --- committing ---


async def test_a_write_is_done_once(world: World, ann: Process, bob: Process, caplog: pytest.LogCaptureFixture) -> None:
    """Committed again, with rows of its own, it publishes nothing, removes those, and has the first one's outcome."""
    await committed(ann)
    written = await committed(bob)
    assert (written.count, written.already) == (COUNT, True)
    assert not caplog.records
    assert (await committed(bob, 2)).count == COUNT
    assert "another write id" in caplog.text
    caplog.clear()
    others = await ann.queue.stage(TOPIC, WRITE, 0, [{"n": number, "other": True} for number in range(COUNT)])
    assert (await ann.queue.commit_write(TOPIC, WRITE, [others])).already
    assert "another write id" in caplog.text, "as many, and others"
    assert visible(world) == EVERY
    assert left(world) == []


async def test_a_write_of_nothing_is_done(world: World, ann: Process) -> None:
    """No part, and parts without rows, are committed like others, and are done then."""
    empty = await ann.queue.stage(TOPIC, WRITE, 0, [])
    assert (await ann.queue.commit_write(TOPIC, WRITE, [empty])).count == 0
    assert (await ann.queue.commit_write(TOPIC, "none", [])).count == 0
    assert (await ann.queue.commit_write(TOPIC, "none", [])).already
    assert visible(world) == []


async def test_rows_of_a_write_that_was_done_without_any(
    world: World, ann: Process, bob: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """They are not published, and that is an error, unless it was meant."""
    await ann.queue.commit_write(TOPIC, WRITE, [])
    with pytest.raises(InvalidArgumentError, match=r"without any rows, and is done: the 7 rows .* were not published"):
        await committed(bob)
    assert not caplog.records
    written = await bob.queue.commit_write(TOPIC, WRITE, await staged(bob), allow_empty=True)
    assert (written.count, written.already) == (0, True)
    assert "another write id" in caplog.text
    assert (visible(world), left(world)) == ([], [])


async def test_what_a_commit_costs(ann: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """One PUT a message, and a dozen requests beside them; a note of progress for each further chunk."""
    monkeypatch.setattr(decided_writes, "PIECES_PER_NOTE", 100)
    parts = await staged(ann, 250)
    with ann.client.counting() as requests:
        await ann.queue.commit_write(TOPIC, WRITE, parts)
    # The record is looked for and made; two notes; done. Two objects are read; staged objects are listed twice.
    assert requests == {"GET": 1 + 2, "LIST": 2, "PUT": 250 + 1 + 2 + 1, "DELETE": 1}


async def test_it_is_told_what_happens(world: World) -> None:
    """A write is decided, and done: two events."""
    told: list[happened.Event] = []
    process = await world.process()
    process.queue._context.events._listener = told.append
    await committed(process)
    kinds = [type(event).__name__ for event in told]
    assert kinds == ["WriteDecided", "WriteDone"]
    assert "7 messages" in told[-1].sentence()


async def test_an_unknown_topic_is_an_error(ann: Process) -> None:
    """Neither is anything staged for it, nor committed into it."""
    with pytest.raises(TopicNotFoundError):
        await ann.queue.stage("nowhere", WRITE, 0, numbered(1))
    with pytest.raises(TopicNotFoundError):
        await ann.queue.commit_write("nowhere", WRITE, [])


async def test_a_topic_that_was_deleted_gets_nothing(world: World, ann: Process, bob: Process) -> None:
    """Deleted between staging and commit, also behind the committer's back: nothing is published; an error says so."""
    parts = await staged(ann)
    await bob.queue.delete_topic(TOPIC)
    with pytest.raises((TopicNotFoundError, StagedGoneError)):
        await ann.queue.commit_write(TOPIC, WRITE, parts)
    assert world.bucket.below("") == [layout.BUCKET_RECORD]


async def test_a_topic_that_is_deleted_meanwhile_gets_nothing(world: World, ann: Process) -> None:
    """Its marker goes just before the decision: what was written is withdrawn, the record too."""
    parts = await staged(ann)

    def delete(kind: Kind, key: str) -> None:
        if (kind, key) == ("PUT", layout.write(TOPIC, WRITE)):
            world.bucket.remove(layout.topic_marker(TOPIC))
            ann.client.meanwhile = None
            world.clock.now += 5  # it does not rely any more on having seen it

    ann.client.meanwhile = delete
    with pytest.raises(TopicNotFoundError):
        await ann.queue.commit_write(TOPIC, WRITE, parts)
    assert world.bucket.below("") == [layout.BUCKET_RECORD]


async def test_a_topic_with_an_unfinished_write_is_not_deleted(world: World, ann: Process, bob: Process) -> None:
    """Its messages are to come; once it is done, and they are consumed, the topic goes with the record."""
    await cut(ann, "dies after", 2)
    with pytest.raises(TopicNotEmptyError, match="write that is not fully published"):
        await bob.queue.delete_topic(TOPIC)
    await world.later(OVER)
    await bob.queue.sweep(TOPIC)
    await consumed(bob, "all")
    await bob.queue.delete_topic(TOPIC)
    assert world.bucket.below("") == [layout.BUCKET_RECORD]


async def test_a_topic_is_deleted_with_its_writes(world: World, ann: Process, bob: Process) -> None:
    """By force, staged rows and records go like everything else."""
    await cut(ann, "dies after", 2)
    await staged(bob, write_id="other")
    await bob.queue.delete_topic(TOPIC, force=True)
    assert world.bucket.below("") == [layout.BUCKET_RECORD]


# --- what was staged is gone ---


async def test_an_aborted_write_is_not_committed(world: World, ann: Process) -> None:
    """What was staged is removed; a commit that relies on it says so, and publishes nothing; staged anew, it goes."""
    parts = await staged(ann)
    assert await ann.queue.abort_write(TOPIC, WRITE) == 2
    assert left(world) == []
    with pytest.raises(StagedGoneError, match="Nothing was published"):
        await ann.queue.commit_write(TOPIC, WRITE, parts)
    assert visible(world) == []
    assert not (await committed(ann)).already
    assert visible(world) == EVERY


async def test_an_abort_removes_what_it_was_given(world: World, ann: Process) -> None:
    """With parts, it leaves those of others alone, which are committed."""
    parts, others = await staged(ann), await staged(ann)
    assert await ann.queue.abort_write(TOPIC, WRITE, parts) == 2
    assert (await ann.queue.commit_write(TOPIC, WRITE, others)).count == COUNT
    assert visible(world) == EVERY


async def test_what_was_decided_is_not_aborted(world: World, ann: Process, bob: Process) -> None:
    """An abort that comes after the decision changes nothing: the write is finished."""
    await cut(ann, "dies after", 2)
    assert await bob.queue.abort_write(TOPIC, WRITE) == 0
    await world.later(OVER)
    await committed(bob)
    assert visible(world) == EVERY


async def test_an_abort_and_a_commit_at_once(world: World, ann: Process, bob: Process) -> None:
    """Whichever turn they take: all of it is published, or nothing is, and an error says so."""
    for seed in range(40):
        write_id = f"w{seed}"
        before = len(visible(world))
        parts = await staged(ann, write_id=write_id)
        world.stagger([ann, bob], seed, at_most=0.5)
        outcomes = await asyncio.gather(
            ann.queue.commit_write(TOPIC, write_id, parts),
            bob.queue.abort_write(TOPIC, write_id),
            return_exceptions=True,
        )
        ann.client.heal()
        bob.client.heal()
        published = len(visible(world)) - before
        if isinstance(outcomes[0], StagedGoneError):
            assert published == 0
        else:
            assert outcomes[0].count == published == COUNT  # type: ignore[union-attr]


async def test_an_abort_beats_a_decision_that_lands_late(world: World, ann: Process, bob: Process) -> None:
    """A record of which nobody knows whether it will land is refused once the objects are to be removed."""
    parts = await staged(ann)
    ann.client.inject("lost", "PUT", layout.write(TOPIC, WRITE))
    with pytest.raises(StoreError):
        await ann.queue.commit_write(TOPIC, WRITE, parts)
    assert await bob.queue.abort_write(TOPIC, WRITE) == 2
    ann.client.heal()
    with pytest.raises(StagedGoneError):
        await ann.queue.commit_write(TOPIC, WRITE, parts)
    assert visible(world) == []


# --- crashes ---


@pytest.mark.parametrize("effect", ["dies", "dies after"])
@pytest.mark.parametrize("finisher", ["commit", "sweep"])
@pytest.mark.parametrize("strategy", ["conditional_write", "csprng_verify"])
@pytest.mark.parametrize("packs", [None, True])
async def test_every_crash_point_is_finished(
    effect: Effect, finisher: str, strategy: str, *, packs: bool | None
) -> None:
    """Cut before and after each request, then committed again, or swept: all of it once, or nothing and not staged."""
    seen: Counter[str] = Counter()
    for number in range(await requests_of_a_commit(strategy, packs=packs)):
        async with of_strategy(strategy, packs=packs) as world:
            ann, bob = await writer(world), await writer(world)
            await cut(ann, effect, number)
            decided = record(world)
            if decided is None:
                assert visible(world) == []
            seen[decided.state if decided else "undecided"] += 1
            await world.later(OVER)
            if finisher == "commit":
                assert (await committed(bob)).count == COUNT
            else:
                for _ in range(2):
                    await bob.queue.sweep(TOPIC)
                    await world.later(2 * 86_400)
            assert visible(world) == (EVERY if decided or finisher == "commit" else [])
            assert set(ids(world)) <= set(expected_ids())
            assert left(world) == []
    assert set(seen) == {"undecided", "begun", "done"}


@pytest.mark.parametrize("effect", ["lost", "answer lost"])
@pytest.mark.parametrize("packs", [None, True])
async def test_an_unknown_outcome_is_looked_into(effect: Effect, *, packs: bool | None) -> None:
    """Whatever request of a commit goes unanswered once, and whether or not it arrived: all of it once."""
    world = of_strategy("conditional_write", packs=packs)
    ann = await writer(world)
    for number in range(await requests_of_a_commit(packs=packs)):
        write_id, before = f"w{number}", len(visible(world))
        parts = await staged(ann, write_id=write_id)
        ann.client.inject(effect, passed=number, times=1)
        assert (await ann.queue.commit_write(TOPIC, write_id, parts)).count == COUNT
        ann.client.heal()
        assert visible(world)[before:] == EVERY


async def test_what_cannot_be_published_now_follows(world: World, ann: Process, bob: Process) -> None:
    """A store that refuses some messages: the error says that it is decided, and the next commit publishes them."""
    parts = await staged(ann)
    ann.client.inject("denied", "PUT", "*/messages/*", passed=2, times=1)
    with pytest.raises(PublishError, match=r"decided.* 1 of its 7 messages"):
        await ann.queue.commit_write(TOPIC, WRITE, parts)
    await world.later(OVER)
    assert (await bob.queue.commit_write(TOPIC, WRITE, [])).already
    assert visible(world) == EVERY


@pytest.mark.parametrize("key", ["*/messages/*", "*/staged/*", "*/writes/*"])
@pytest.mark.parametrize("kind", ["PUT", "GET", "LIST"])
async def test_a_commit_that_failed_in_good_order_is_tried_again_at_once(kind: Kind, key: str) -> None:
    """By whoever comes: what the store has rejected will not land."""
    number = 0
    while True:
        async with World() as world:
            ann, bob = await world.process(), await world.process()
            parts = await staged(ann)
            fault = ann.client.inject("denied", kind, key, passed=number, times=1)
            [outcome] = await asyncio.gather(ann.queue.commit_write(TOPIC, WRITE, parts), return_exceptions=True)
            if not fault.hits:
                break
            assert isinstance(outcome, StoreError | PublishError) or key == "*/staged/*"  # it is cleared by others, too
            assert (await bob.queue.commit_write(TOPIC, WRITE, parts)).count == COUNT
            assert visible(world) == EVERY
            number += 1


async def test_the_process_itself_goes_on_at_once_where_its_time_could_not_be_given_back(
    world: World, ann: Process, bob: Process
) -> None:
    """It knows that nothing of its own is under way; nobody else does, and waits."""
    parts = await staged(ann)
    ann.client.inject("denied", "PUT", "*/messages/*", passed=2, times=1)
    ann.client.inject("lost", "PUT", "*/writes/*", passed=1)
    with pytest.raises(PublishError, match="decided"):
        await ann.queue.commit_write(TOPIC, WRITE, parts)
    ann.client.heal()
    with pytest.raises(WriteBusyError):
        await bob.queue.commit_write(TOPIC, WRITE, parts)
    assert (await ann.queue.commit_write(TOPIC, WRITE, parts)).count == COUNT
    assert visible(world) == EVERY


async def test_a_decision_without_an_answer_is_gone_on_with_at_once(world: World, ann: Process) -> None:
    """Nobody knows whether it is decided, and nothing was sent: the next commit of this process finds out."""
    parts = await staged(ann)
    ann.client.inject("answer lost", "PUT", "*/writes/*")
    ann.client.inject("denied", "GET", "*/writes/*", passed=1)
    with pytest.raises(StoreError):
        await ann.queue.commit_write(TOPIC, WRITE, parts)
    ann.client.heal()
    assert record(world) is not None
    assert (await ann.queue.commit_write(TOPIC, WRITE, parts)).count == COUNT
    assert visible(world) == EVERY


async def test_a_commit_whose_requests_may_land_keeps_its_time(world: World, ann: Process, bob: Process) -> None:
    """A message of which nobody knows whether it was published may land: nobody looks for it before that."""
    parts = await staged(ann)
    ann.client.inject("lost", "PUT", "*/messages/*", passed=2)
    with pytest.raises(PublishError, match="after 30 seconds"):
        await ann.queue.commit_write(TOPIC, WRITE, parts)
    ann.client.heal()
    for process in (ann, bob):
        with pytest.raises(WriteBusyError):
            await process.queue.commit_write(TOPIC, WRITE, parts)
    await world.later(OVER)
    assert (await ann.queue.commit_write(TOPIC, WRITE, parts)).count == COUNT
    assert visible(world) == EVERY


# --- several committers ---


async def test_who_comes_while_another_commits_is_told(world: World, ann: Process, bob: Process) -> None:
    """Until when; and a call that waits gets the other one's outcome."""
    parts = await staged(bob)

    async def meanwhile(kind: Kind, key: str) -> None:
        if kind == "PUT" and "/messages/" in key:
            ann.client.meanwhile = None
            with pytest.raises(WriteBusyError, match="wait=") as caught:
                await bob.queue.commit_write(TOPIC, WRITE, parts)
            assert 0 < caught.value.retry_after <= HOLD_SECONDS + MARGIN + 1

    ann.client.meanwhile = meanwhile
    assert not (await committed(ann)).already
    assert (await bob.queue.commit_write(TOPIC, WRITE, parts)).already
    assert visible(world) == EVERY


async def test_who_waits_finishes_what_another_one_left(world: World, ann: Process, bob: Process) -> None:
    """The next process waits for the time of the dead one, and then goes on."""
    await cut(ann, "dies after", 4)
    written = await committed(bob, wait=120)
    assert (written.count, written.already) == (COUNT, True)
    assert visible(world) == EVERY


@pytest.mark.parametrize(("strategy", "slowness"), [("conditional_write", 0.5), ("csprng_verify", 0.1)])
@pytest.mark.parametrize("packs", [None, True])
async def test_two_committers_at_once(strategy: str, slowness: float, *, packs: bool | None) -> None:
    """One of them decides, and both return one outcome: each message is published once, in whichever turn."""
    world = of_strategy(strategy, packs=packs)
    ann, bob = await writer(world), await writer(world)
    for seed in range(40):
        write_id, before = f"w{seed}", len(visible(world))
        mine = await staged(ann, write_id=write_id)
        yours = await staged(bob, write_id=write_id)
        world.stagger([ann, bob], seed, at_most=slowness)
        outcomes = await asyncio.gather(
            ann.queue.commit_write(TOPIC, write_id, mine, wait=300),
            bob.queue.commit_write(TOPIC, write_id, yours, wait=300),
        )
        ann.client.heal()
        bob.client.heal()
        assert sorted(each.already for each in outcomes) == [False, True]
        assert visible(world)[before:] == EVERY
    for process in (ann, bob):
        await process.queue.aclose()


async def test_who_is_late_sends_nothing(world: World, bob: Process) -> None:
    """A committer that is frozen is taken over; it does not send what it had not sent, and gets the outcome."""
    ann = await world.process(concurrency={"max_in_flight": 1})  # all others of the chunk come after the first
    parts = await staged(ann)
    delivered: Counter[int] = Counter()

    async def stand_still(kind: Kind, key: str) -> None:
        if kind == "PUT" and "/messages/" in key and delivered.total() == 0:
            ann.client.meanwhile = None
            await world.later(OVER)
            await committed(bob)
            delivered.update(await consumed(bob, "all"))

    ann.client.meanwhile = stand_still
    written = await ann.queue.commit_write(TOPIC, WRITE, parts)
    assert written.count == COUNT
    assert delivered == Counter(EVERY)
    # The one PUT that was under way all the while lands: nobody can call it back. (§7: the same id.)
    assert visible(world) == [0]


async def test_a_slow_store_is_waited_for(world: World) -> None:
    """Where a chunk takes longer than it is trusted, it is noted anew, and goes on."""
    ann = await world.process(concurrency={"max_in_flight": 1})
    parts = await staged(ann)

    async def slowly(kind: Kind, key: str) -> None:
        if kind == "PUT" and "/messages/" in key:
            await world.clock.sleep(13)

    ann.client.meanwhile = slowly
    assert not (await ann.queue.commit_write(TOPIC, WRITE, parts)).already
    assert visible(world) == EVERY


async def test_many_die_and_one_is_left(world: World) -> None:
    """Each takes over from the last, and dies a little later: at the end each message is there once."""
    first = await world.process()
    await cut(first, "dies after", 3)
    for _ in range(6):
        await world.later(OVER)
        process = await world.process()
        parts = await staged(process)
        process.client.inject("dies after", "PUT", "*/messages/*", times=1)
        process.client.inject("dies after", "PUT", "*/writes/*", passed=1, times=1)
        try:
            await process.queue.commit_write(TOPIC, WRITE, parts)
        except Died:
            continue
    await world.later(OVER)
    last = await world.process()
    assert (await committed(last)).count == COUNT
    assert visible(world) == EVERY
    assert left(world) == []


async def test_a_record_that_is_none_is_told(world: World, ann: Process) -> None:
    """Garbage under its key is neither done nor undecided: nobody publishes by it."""
    world.bucket.plant(layout.write(TOPIC, WRITE), "garbage")
    with pytest.raises(StoreError, match="under another id"):
        await committed(ann)
    assert visible(world) == []

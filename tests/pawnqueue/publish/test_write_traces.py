"""What a write looks for when it is not known what was sent: no message that was consumed is published again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from pawnqueue import StoreError
from pawnqueue.domain import layout
from pawnqueue.publish import write_traces
from pawnqueue.stores.port import Unknown
from tests.pawnqueue.publish.written import (
    A_DAY,
    COUNT,
    EVERY,
    OVER,
    SMALL,
    WRITE,
    committed,
    consumed,
    cut,
    expected_ids,
    ids,
    of_strategy,
    record,
    requests_of_a_commit,
    staged,
    visible,
    writer,
)
from tests.pawnqueue.virtual import TOPIC, Died, Process, World

if TYPE_CHECKING:
    from pawnqueue import Staged
    from tests.pawnqueue.virtual import Effect
    from tools.kit.stores import Answer, CarryOut, Request


pytestmark = pytest.mark.usefixtures("small_chunks")


@pytest.mark.parametrize("packs", [None, True])
async def test_what_was_consumed_is_not_sent_again(*, packs: bool | None) -> None:
    """Consumers ack what they see while a write is half published: each message is delivered once all the same."""
    for number in range(await requests_of_a_commit(packs=packs)):
        async with of_strategy("conditional_write", packs=packs) as world:
            ann, bob, eve = [await writer(world) for _ in range(3)]
            await cut(ann, "dies after", number)
            delivered = await consumed(eve, "first")
            await world.later(OVER)
            await committed(bob)
            delivered += await consumed(eve, "second")
            assert delivered == Counter(EVERY)


@pytest.mark.parametrize("finisher", ["commit", "sweep"])
@pytest.mark.parametrize("packs", [None, True])
async def test_what_claims_without_an_id_consumed_is_not_sent_again(finisher: str, *, packs: bool | None) -> None:
    """A claim with a made-up id keeps its record while a write that it had messages of is not done (§7)."""
    for number in range(await requests_of_a_commit(packs=packs)):
        async with of_strategy("conditional_write", packs=packs) as world:
            ann, bob, eve = [await writer(world) for _ in range(3)]
            await cut(ann, "dies after", number)
            first = await eve.queue.claim(TOPIC, "c", max_messages=100)
            await eve.queue.ack(first)
            if finisher == "commit":
                await world.later(OVER)
                await committed(bob)
            elif record(world) is None:
                continue
            else:
                await world.later(3 * 86_400)  # past the retention of records
                await bob.queue.sweep(TOPIC)
            assert Counter([*first.ids, *ids(world)]) == Counter(expected_ids())


async def test_records_are_kept_while_a_write_cannot_be_finished(world: World, ann: Process, bob: Process) -> None:
    """Sweeps that cannot finish a write remove no record in which its messages are looked for."""
    ann.client.inject("dies", "PUT", layout.write(TOPIC, WRITE), passed=1)  # the first chunk is sent, and not noted
    with pytest.raises(Died):
        await committed(ann)
    first = await bob.queue.claim(TOPIC, "c", max_messages=100)
    await bob.queue.ack(first)
    await bob.queue.publish(TOPIC, [{"n": 100}])
    await world.later(3 * 86_400)
    bob.client.inject("denied", "PUT", layout.write(TOPIC, WRITE))
    assert (await bob.queue.sweep(TOPIC)).failures
    bob.client.heal()
    await world.later(OVER)
    await bob.queue.sweep(TOPIC)
    assert len(first) == SMALL
    assert sorted(visible(world)) == [*EVERY[SMALL:], 100]


async def test_a_claim_without_an_id_leaves_no_record_of_a_write_that_is_done(
    world: World, ann: Process, bob: Process
) -> None:
    """One HEAD tells that the write is done, once in a process; then records are deleted as ever."""
    await committed(ann)
    looks = 0
    for _ in range(3):
        claim = await bob.queue.claim(TOPIC, "c", max_messages=2)
        with bob.client.counting() as requests:
            await bob.queue.ack(claim)
        looks += requests["HEAD"]
    assert looks == 1
    assert requests == {"PUT": 1, "DELETE": 2}
    assert world.bucket.below("claims/") == []


async def test_a_message_with_a_false_time_says_nothing_of_a_later_write(
    world: World, ann: Process, bob: Process
) -> None:
    """Anybody can publish one that names a write of the future: records that the write needs are kept all the same."""
    forged = {"id": "i", "payload": {"n": 100}, "write_id": WRITE, "created_at": "9998-12-31T00:00:00+00:00"}
    world.fill([forged])
    assert await consumed(bob, None) == {100: 1}
    assert world.bucket.below("claims/") == []
    await _cut_behind_the_first_chunk(ann)
    delivered = await consumed(bob, None)
    await world.later(OVER)
    await (await world.process()).queue.sweep(TOPIC)
    delivered += await consumed(bob, None)
    assert delivered == Counter(EVERY)


async def test_a_message_with_a_false_time_says_nothing_of_the_write_after_this_one(
    world: World, ann: Process, bob: Process
) -> None:
    """The write that it names is done, and its id is used again once its record is gone."""
    await committed(ann)
    forged = {"id": "i", "payload": {"n": 100}, "write_id": WRITE, "created_at": "9998-12-31T00:00:00+00:00"}
    world.fill([forged])
    assert len(await consumed(bob, None)) == COUNT + 1
    for _ in range(3):
        await world.later(A_DAY)
        await ann.queue.sweep(TOPIC)
    assert record(world) is None
    await _cut_behind_the_first_chunk(ann)
    delivered = await consumed(bob, None)
    await world.later(OVER)
    await (await world.process()).queue.sweep(TOPIC)
    delivered += await consumed(bob, None)
    assert delivered == Counter(EVERY)


async def test_a_record_is_kept_where_it_cannot_be_told_whether_a_write_is_done(world: World, ann: Process) -> None:
    """Neither the store tells it, nor a message that was buried unread: the record is closed, and kept."""
    world.topic(TOPIC, max_deliveries=1)
    bob = await world.process()
    await committed(ann)
    bob.client.inject("denied", "HEAD", layout.write(TOPIC, WRITE))
    await bob.queue.ack(await bob.queue.claim(TOPIC, "c", max_messages=COUNT - 1))
    assert len(world.bucket.below("claims/")) == 1
    bob.client.heal()
    await bob.queue.nack(await bob.queue.claim(TOPIC, "c"), requeue=True)
    assert len(world.bucket.below("claims/")) == 1
    assert not await bob.queue.claim(TOPIC, "c")
    assert len(world.bucket.below("claims/")) == 2


async def test_a_write_id_of_a_stranger_costs_nobody_the_message(world: World, bob: Process) -> None:
    """Another program's field of that name, and a name that leaves the folder, are as if they were not there."""
    for given in (7, None, ["a"], "", "../../x", "a/b", "\n", "x" * 300):
        [uuid] = world.fill([{"id": "i", "payload": {}, "write_id": given}])
        claim = await bob.queue.claim(TOPIC, "c")
        assert [message.write_id for message in claim] == [""]
        await bob.queue.ack(claim)
        assert uuid not in "".join(world.bucket.below("messages/"))


@pytest.mark.parametrize("claim_id", ["first", None])
async def test_what_is_acked_before_an_answer_is_missed_is_not_sent_again(
    ann: Process, bob: Process, claim_id: str | None
) -> None:
    """Of a PUT without an answer nothing is left but the claim's record, in which it is found: nothing comes twice."""
    parts = await staged(ann)
    delivered: Counter[int] = Counter()
    unheard = iter(("first",))

    async def hook(request: Request, carry_out: CarryOut) -> Answer:
        answer = await carry_out()
        if request.call != "put" or "/messages/" not in request.key or next(unheard, None) is None:
            return answer
        delivered.update(await consumed(bob, claim_id))
        return Unknown(StoreError("It took too long.", transient=True))

    ann.client.hook = hook
    await ann.queue.commit_write(TOPIC, WRITE, parts)
    delivered.update(await consumed(bob, "second"))
    assert delivered == Counter(EVERY)


@pytest.mark.parametrize("packs", [None, True])
async def test_many_unanswered_requests_share_a_look_at_the_claims(*, packs: bool | None) -> None:
    """A store that fails to answer a whole chunk is asked for its claims once or twice, and not for each message."""
    async with of_strategy("conditional_write", packs=packs) as world:
        ann = await writer(world)
        parts = await staged(ann)
        ann.client.latency = 0.1
        ann.client.inject("lost", *(("COPY", "*/packs/*") if packs else ("PUT", "*/messages/*")), times=3)
        await ann.queue.commit_write(TOPIC, WRITE, parts)
        looks = [key for kind, key in ann.client.requests if kind == "LIST" and "/claims/" in key]
        assert len(looks) <= 2
        assert visible(world) == EVERY


@pytest.mark.parametrize("finisher", ["commit", "sweep"])
@pytest.mark.parametrize("effect", ["denied", "lost"])
async def test_a_claim_record_that_cannot_be_read_holds_a_write_up_for_a_while(
    world: World, ann: Process, bob: Process, finisher: str, effect: Effect
) -> None:
    """Then the write is finished without it; only what the record may name, of one chunk, is published twice."""
    parts = await _cut_behind_the_first_chunk(ann)
    first = await bob.queue.claim(TOPIC, "c", max_messages=1, claim_id="kept")
    await bob.queue.ack(first)
    eve = await world.process()
    eve.client.inject(effect, "GET", layout.claim(TOPIC, "kept.0"))
    for _ in range(int(write_traces.MAX_WAIT_FOR_RECORDS_SECONDS // 100)):
        await world.later(100)
        if finisher == "sweep":
            assert any(WRITE in failure for failure in (await eve.queue.sweep(TOPIC)).failures)
        else:
            with pytest.raises(StoreError, match=r"cannot be read"):
                await eve.queue.commit_write(TOPIC, WRITE, parts)
        assert visible(world) == [1, 2]
    await world.later(130)
    await (eve.queue.sweep(TOPIC) if finisher == "sweep" else eve.queue.commit_write(TOPIC, WRITE, parts))
    assert sorted(visible(world)) == EVERY
    assert ids(world).count(first.ids[0]) == 1  # the same id, which consumers deduplicate by


async def test_a_claim_record_that_can_be_read_again_is_a_trace(world: World, ann: Process, bob: Process) -> None:
    """A store that fails for a minute makes no duplicate, and the wait begins anew the next time."""
    await _cut_behind_the_first_chunk(ann)
    await bob.queue.ack(await bob.queue.claim(TOPIC, "c", max_messages=1, claim_id="kept"))
    eve = await world.process()
    eve.client.inject("denied", "GET", layout.claim(TOPIC, "kept.0"))
    await world.later(100)
    await eve.queue.sweep(TOPIC)
    unfinished = record(world)
    assert unfinished is not None
    assert unfinished.unread_since > 0
    eve.client.heal()
    await eve.queue.sweep(TOPIC)
    finished = record(world)
    assert finished is not None
    assert (finished.state, finished.unread_since) == ("done", 0.0)
    assert visible(world) == EVERY[1:]


async def _cut_behind_the_first_chunk(process: Process) -> list[Staged]:
    """Commit with a process that dies when its first chunk is sent and not noted."""
    parts = await staged(process)
    process.client.inject("dies", "PUT", layout.write(TOPIC, WRITE), passed=1)
    with pytest.raises(Died):
        await process.queue.commit_write(TOPIC, WRITE, parts)
    return parts


@pytest.mark.parametrize("effect", ["denied", "lost"])
@pytest.mark.parametrize("packs", [None, True])
async def test_records_are_kept_while_the_record_of_a_write_cannot_be_read(
    effect: Effect, *, packs: bool | None
) -> None:
    """A sweep that cannot read it does not know when the write was decided: it removes no closed record."""
    async with of_strategy("conditional_write", packs=packs) as world:
        ann, bob, eve = [await writer(world) for _ in range(3)]
        await _cut_behind_the_first_chunk(ann)
        delivered = await consumed(eve, "first")
        assert delivered
        await world.later(2 * A_DAY)  # nobody sweeps for so long
        bob.client.inject(effect, "GET", layout.write(TOPIC, WRITE))
        assert (await bob.queue.sweep(TOPIC)).failures
        bob.client.heal()
        await world.later(OVER)
        await bob.queue.sweep(TOPIC)
        delivered += await consumed(eve, "second")
        assert delivered == Counter(EVERY)


async def test_a_record_that_is_garbage_keeps_others_for_a_while(world: World, bob: Process) -> None:
    """Anybody may store it, and no sweep can read it: after a week it says no more about closed records."""
    world.fill([{"id": "i", "payload": {"n": 100}}])
    assert await consumed(bob, "first") == {100: 1}
    await world.later(2 * A_DAY)
    world.bucket.plant(layout.write(TOPIC, "garbage"), "x")
    for kept in (1, 0):
        assert (await bob.queue.sweep(TOPIC)).failures
        assert len(world.bucket.below("claims/")) == kept
        await world.later(8 * A_DAY)

"""Settle: what becomes of messages, whatever becomes of the requests that settle them."""

from __future__ import annotations

import asyncio
import json

import pytest

from pawnqueue import InvalidArgumentError, QueueClosedError, Settlement
from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout
from tests.pawnqueue.claims.settled import claimed, settled_as
from tests.pawnqueue.virtual import TOPIC, TTL, Kind, Process, World, numbers
from tests.support.claims import late

#: What a settlement of each kind cannot do without.
FAILING = {
    "ack": ("DELETE", "*/messages/*"),
    "bury": ("COPY", "*/dead-letter/*"),
    "release": ("PUT", "*/leases/*"),
}


async def test_what_was_acked_is_gone(world: World, ann: Process) -> None:
    """Message and lease are deleted, the record is closed, and nobody is given the messages again."""
    claim = await claimed(ann, claim_id="run")
    settlement = await ann.queue.ack(claim)
    assert settlement == Settlement(acked=claim.ids)
    assert settlement.complete
    assert world.bucket.below("messages/") == world.bucket.below("leases/") == world.bucket.below("dead-letter/") == []
    assert world.bucket.record("run.0").state == claim.state == "closed"
    assert claim.decided == dict.fromkeys(claim.ids, "acked")
    await world.later()
    assert not await ann.queue.claim(TOPIC, "c")


async def test_an_unanswered_write_of_a_record_that_others_renew_is_no_unknown_settlement() -> None:
    """Where ``csprng_verify`` cannot tell whether its write has landed, the record is read, and the rest is settled."""
    async with World("csprng_verify") as world:
        ann = await world.process()
        claim = await claimed(ann, claim_id="run")
        fault = ann.client.inject("lost", "PUT", "*/claims/run.0.json", times=1)
        renewed: list[str] = []

        def meanwhile(kind: Kind, key: str) -> None:
            if fault.hits and kind == "HEAD" and "/claims/" in key and not renewed:
                renewed.append(key)
                world.alter("run.0", until=world.clock.server() + TTL)

        ann.client.meanwhile = meanwhile
        assert await ann.queue.ack(claim) == Settlement(acked=claim.ids)
        assert renewed and world.bucket.below("messages/") == []  # noqa: PT018 - one state


@pytest.mark.parametrize("how", ["ack", "bury", "release"])
async def test_the_record_of_a_claim_that_nobody_can_ask_for_is_deleted(world: World, ann: Process, how: str) -> None:
    """Settled to the end, a claim whose id was made up goes with its last leases, where a named one costs a PUT."""
    counts = {}
    for claim_id in ("run", None):
        claim = await claimed(ann, claim_id=claim_id)
        with ann.client.counting() as counts[claim_id]:
            assert (await settled_as(how, ann, claim)).complete
        assert claim.state == "closed"
        assert world.bucket.below("claims/") == ["run.0.json"]
        world.bucket.remove(*(units.key_of(TOPIC, name) for name in world.bucket.below("messages/")))
    assert counts[None] - counts["run"] == ({"DELETE": 1} if how == "release" else {})
    assert counts["run"] - counts[None] == {"PUT": 1}


async def test_a_record_is_not_deleted_while_something_is_undecided(world: World, ann: Process) -> None:
    """It alone remembers what was decided: it stays, open, until the last message has its fate."""
    claim = await claimed(ann, 4)
    for one, how in zip(claim.ids, ["ack", "bury", "release", "ack"], strict=True):
        assert claim.state == world.bucket.record(f"{claim.claim_id}.0").state == "open"
        await settled_as(how, ann, claim, [one])
    assert world.bucket.below("claims/") == []


async def test_a_record_is_not_deleted_before_all_effects_are_confirmed(
    world: World, ann: Process, bob: Process
) -> None:
    """It alone remembers what is left to do, and is deleted when that is done."""
    for how, (kind, key) in FAILING.items():
        claim = await claimed(ann, ttl=300)
        ann.client.inject("lost", kind, key)
        settlement = await settled_as(how, ann, claim)
        assert not settlement.complete
        assert set(settlement.unfinished) == set(claim.ids)
        assert claim.state == world.bucket.record(f"{claim.claim_id}.0").state == "open"
        ann.client.heal()
        assert (await settled_as(how, ann, claim)).complete
        assert claim.state == "closed"
        assert world.bucket.below("claims/") == []
        assert len(world.bucket.below("messages/")) == (3 if how == "release" else 0)
    await bob.queue.ack(await bob.queue.claim(TOPIC, "d"))
    assert world.bucket.below("messages/") == world.bucket.below("claims/") == []


@pytest.mark.parametrize("when", ["at once", "during the settlement"])
async def test_the_record_of_a_claim_that_was_handed_over_is_kept(
    world: World, ann: Process, bob: Process, when: str
) -> None:
    """A process may come with the reference: the record is closed, and shows what was decided for its retention."""
    claim = await claimed(ann)
    if when == "at once":
        reference = claim.hand_over()
        await bob.queue.ack(await bob.queue.attach(reference))
    else:
        references = []

        def hand_over(kind: str, key: str) -> None:
            if kind == "DELETE" and "/messages/" in key:
                references.append(claim.hand_over())

        ann.client.meanwhile = hand_over
        assert (await ann.queue.ack(claim)).complete
        [reference] = references
    assert world.bucket.record(f"{claim.claim_id}.0").state == "closed"
    assert (await bob.queue.attach(reference)).decided == dict.fromkeys(claim.ids, "acked")
    await world.later(80_000)
    assert (await bob.queue.sweep(TOPIC)).removed_records == 0
    await world.later(10_000)
    assert (await bob.queue.sweep(TOPIC)).removed_records == 1


async def test_a_delete_of_the_record_whose_answer_was_lost_is_repeated(world: World, ann: Process) -> None:
    """A record that is gone already is as good as deleted."""
    claim = await claimed(ann)
    fault = ann.client.inject("answer lost", "DELETE", "*/claims/*", times=2)
    assert (await ann.queue.ack(claim)).complete
    assert fault.hits == 2
    assert claim.state == "closed"
    assert world.bucket.below("claims/") == []


async def test_what_was_nacked_is_buried_byte_for_byte(world: World, ann: Process) -> None:
    """The dead letter is the envelope as it was published, under its key's uuid; the reason is beside it."""
    body = '{"payload" : {"ü": [1, 2.50,\n 1e2], "a":"\\u00fc\\ud83e\\udd80"}, "id":"same", "extra": 1}   '
    [uuid] = world.fill([body])
    claim = await ann.queue.claim(TOPIC, "worker", claim_id="run")
    settlement = await ann.queue.nack(claim, reason="bad", error="Traceback: …")
    assert settlement.buried == ["same"]
    assert world.bucket.body(letters.key_of(TOPIC, uuid)) == body.encode()
    reason = json.loads(world.bucket.body(letters.reason_key_of(TOPIC, uuid)))
    assert {name: reason[name] for name in ("reason", "error", "deliveries", "consumer", "claim", "v")} == {
        "reason": "bad",
        "error": "Traceback: …",
        "deliveries": 1,
        "consumer": "worker",
        "claim": "run.0",
        "v": 1,
    }
    assert reason["at"].startswith("2026-01-01T00:0")
    assert reason["name"].endswith(f"-{uuid}.json")
    assert world.bucket.below("messages/") == world.bucket.below("leases/") == []


async def test_what_was_requeued_is_there_for_anyone_at_once(world: World, ann: Process, bob: Process) -> None:
    """A released message is delivered again without anybody's waiting, with its deliveries counted."""
    claim = await claimed(ann)
    assert (await ann.queue.nack(claim, requeue=True)).released == claim.ids
    assert claim.state == "closed"
    again = await bob.queue.claim(TOPIC, "d")
    assert again.ids == claim.ids
    assert [message.deliveries for message in again] == [2, 2, 2]


async def test_what_was_delayed_is_not_delivered_before(world: World, ann: Process, bob: Process) -> None:
    """A message requeued with a delay is given to nobody until then, and to somebody after it."""
    claim = await claimed(ann, 1)
    await ann.queue.nack(claim, requeue=True, delay=100)
    for process in (ann, bob):
        assert not await process.queue.claim(TOPIC, "d")
    await world.later(98)
    assert not await bob.queue.claim(TOPIC, "d")
    await world.later(4)
    assert numbers(await bob.queue.claim(TOPIC, "d")) == [0]


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), 1e12, "5"], ids=repr)
async def test_a_delay_that_is_none_is_refused(world: World, ann: Process, delay: float) -> None:
    """A delay is a number of seconds from 0; nothing is settled by another one."""
    claim = await claimed(ann, 1)
    before = world.bucket.snapshot()
    with pytest.raises(InvalidArgumentError):
        await ann.queue.nack(claim, requeue=True, delay=delay)
    assert world.bucket.snapshot() == before


@pytest.mark.parametrize("delay", [5, 0.001], ids=repr)
async def test_a_delay_of_what_is_not_given_back_is_refused(world: World, ann: Process, delay: float) -> None:
    """A delay without ``requeue`` would bury what should be tried again: an error says so, before any burial."""
    claim = await claimed(ann, 1)
    before = world.bucket.snapshot()
    with ann.client.counting() as requests, pytest.raises(InvalidArgumentError, match="requeue=True"):
        await ann.queue.nack(claim, delay=delay)
    assert not requests
    assert world.bucket.snapshot() == before
    assert (await ann.queue.nack(claim, delay=0)).buried == claim.ids


@pytest.mark.parametrize("given", [{"reason": 5}, {"error": ValueError("x")}, {"reason": None}], ids=str)
async def test_a_reason_that_is_no_text_is_refused(world: World, ann: Process, given: dict[str, str]) -> None:
    """Reason and error are text; nothing is settled by anything else."""
    claim = await claimed(ann, 1)
    before = world.bucket.snapshot()
    with pytest.raises(InvalidArgumentError):
        await ann.queue.nack(claim, **given)
    assert world.bucket.snapshot() == before


async def test_an_error_that_no_file_could_hold_is_kept_all_the_same(world: World, ann: Process) -> None:
    """An error's text with half a surrogate pair (a strange file name, say) can be buried and read."""
    claim = await claimed(ann, 1)
    assert (await ann.queue.nack(claim, error="no such file: \udcff")).complete
    found = await ann.queue.find(TOPIC, claim.ids[0])
    assert found is not None
    assert "no such file" in found.error


@pytest.mark.parametrize("character", ["x", "ü", "\U0001f980"])
async def test_a_long_reason_or_error_is_cut(world: World, ann: Process, character: str) -> None:
    """Of each, 2,000 characters are kept, as the record holds them for each message; what fits is kept whole."""
    claim = await claimed(ann, 2, claim_id="run")
    await ann.queue.nack(claim, claim.ids[0], reason=character * 100_000, error="b" + character * 100_000)
    await ann.queue.nack(claim, claim.ids[1], reason=character * 2000, error=character * 2000)
    told = [json.loads(world.bucket.body(letters.reason_key_of(TOPIC, one))) for one in claim.ids]
    assert [one["reason"] for one in told] == [character * 2000] * 2
    assert [one["error"] for one in told] == ["b" + character * 1999, character * 2000]
    assert len(world.bucket.body(layout.claim(TOPIC, "run.0"))) < 4 * 4 * 2000 + 2000


async def test_some_ids_are_settled_and_the_others_stay(world: World, ann: Process, bob: Process) -> None:
    """Each message can have a fate of its own; the record is closed when all have theirs."""
    claim = await claimed(ann, 5)
    ids = claim.ids
    assert (await ann.queue.ack(claim, ids[:2])).acked == ids[:2]
    assert claim.state == "open"
    assert len(world.bucket.below("messages/")) == 3
    assert (await ann.queue.nack(claim, ids[2])).buried == [ids[2]]  # a lone id may be given as it is
    assert (await ann.queue.nack(claim, [ids[3]], requeue=True)).released == [ids[3]]
    assert claim.state == "open"
    assert (await bob.queue.claim(TOPIC, "d")).ids == [ids[3]]
    assert (await ann.queue.ack(claim)) == Settlement(
        acked=[ids[0], ids[1], ids[4]], buried=[ids[2]], released=[ids[3]]
    )
    assert claim.state == "closed"
    assert claim.decided == dict(zip(ids, ["acked", "acked", "dead", "released", "acked"], strict=True))


@pytest.mark.parametrize("claim_id", ["run", None])
async def test_the_first_decision_stands(world: World, ann: Process, claim_id: str | None) -> None:
    """Settling twice returns what was decided the first time, and makes no request, record or no record."""
    claim = await claimed(ann, 2, claim_id=claim_id)
    await ann.queue.ack(claim)
    assert len(world.bucket.below("claims/")) == (1 if claim_id else 0)
    before = world.bucket.snapshot()
    with ann.client.counting() as requests:
        assert (await ann.queue.ack(claim)).acked == claim.ids
        assert (await ann.queue.nack(claim)).acked == claim.ids
        assert (await ann.queue.nack(claim, requeue=True)).acked == claim.ids
        assert (await ann.queue.ack(claim, claim.ids[1])).acked == claim.ids[1:]
    assert not requests
    assert claim.decided == dict.fromkeys(claim.ids, "acked")
    assert world.bucket.snapshot() == before


async def test_settling_nothing_is_no_request(ann: Process) -> None:
    """No ids, or a claim without messages: nothing is asked of the store."""
    claim = await claimed(ann, 1)
    empty = await ann.queue.claim(TOPIC, "c")
    with ann.client.counting() as requests:
        for one, ids in ((claim, []), (empty, None)):
            assert await ann.queue.ack(one, ids) == Settlement()
            assert await ann.queue.nack(one, ids) == Settlement()
            assert await ann.queue.nack(one, ids, requeue=True) == Settlement()
    assert not requests


async def test_settling_through_a_closed_queue_is_an_error(ann: Process) -> None:
    """Once closed, a queue settles nothing."""
    claim = await claimed(ann, 1)
    await ann.queue.aclose()
    with pytest.raises(QueueClosedError):
        await ann.queue.ack(claim)
    with pytest.raises(QueueClosedError):
        await ann.queue.nack(claim, requeue=True)


@pytest.mark.parametrize("how", ["ack", "bury", "release"])
async def test_who_was_fenced_changes_nothing(world: World, ann: Process, bob: Process, how: str) -> None:
    """After another consumer took the messages over, all of them are lost to the first, and stay with the other."""
    claim = await claimed(ann)
    await world.later()
    taken = await bob.queue.claim(TOPIC, "d")
    assert taken.ids == claim.ids
    before = world.bucket.snapshot()
    settlement = await settled_as(how, ann, claim)
    assert settlement == Settlement(lost=claim.ids)
    assert world.bucket.snapshot() == before
    assert (await bob.queue.ack(taken)).complete


async def test_what_was_settled_before_the_fence_is_not_lost(world: World, ann: Process, bob: Process) -> None:
    """Of a claim that was fenced, what it had decided is still told as decided, and only the rest as lost."""
    claim = await claimed(ann, 4)
    await ann.queue.ack(claim, claim.ids[:2])
    await world.later()
    assert (await bob.queue.claim(TOPIC, "d")).ids == claim.ids[2:]
    assert await late(ann.queue.ack(claim)) == Settlement(acked=claim.ids[:2], lost=claim.ids[2:])


async def test_a_claim_past_its_time_may_settle_until_it_is_fenced(world: World, ann: Process, bob: Process) -> None:
    """Nobody has taken it over, so its decision is the only one."""
    claim = await claimed(ann)
    await world.later()
    assert (await ann.queue.ack(claim)).complete
    assert not await bob.queue.claim(TOPIC, "d")


async def test_when_the_store_does_not_answer_the_outcome_is_unknown(world: World, ann: Process) -> None:
    """A settlement of which nobody can tell is said to be unknown, and changes nothing that it did not decide."""
    claim = await claimed(ann, ttl=300)
    ann.client.inject("lost", "PUT", "*/claims/*")
    settlement = await ann.queue.ack(claim)
    assert settlement == Settlement(unknown=claim.ids)
    assert len(world.bucket.below("messages/")) == 3
    ann.client.heal()
    assert (await ann.queue.ack(claim)).acked == claim.ids
    assert not world.bucket.below("messages/")


async def test_an_unknown_settlement_that_landed_is_found_when_it_is_settled_again(world: World, ann: Process) -> None:
    """Settling again tells what was decided, another decision notwithstanding, and carries it out."""
    claim = await claimed(ann, ttl=300)
    ann.client.inject("answer lost", "PUT", "*/claims/*")
    ann.client.inject("lost", "GET", "*/claims/*")
    assert (await ann.queue.ack(claim)).unknown == claim.ids
    ann.client.heal()
    assert len(world.bucket.below("messages/")) == 3
    assert (await ann.queue.nack(claim)).acked == claim.ids
    assert not world.bucket.below("messages/")
    assert claim.state == "closed"


async def test_a_lost_answer_is_looked_up(world: World, ann: Process) -> None:
    """A decision whose answer was lost is found in the record, and the settlement is known after all."""
    claim = await claimed(ann)
    ann.client.inject("answer lost", "PUT", "*/claims/*", times=1)
    assert (await ann.queue.ack(claim)).acked == claim.ids
    assert claim.state == "closed"


async def test_a_claim_can_be_settled_from_several_tasks(world: World, ann: Process) -> None:
    """Messages of one claim that are settled concurrently each have one decision, and the record is closed."""
    claim = await claimed(ann, 20)
    settlements = await asyncio.gather(*(ann.queue.ack(claim, [one]) for one in claim.ids))
    assert all(settlement.complete for settlement in settlements)
    assert claim.state == "closed"
    assert world.bucket.below("messages/") == world.bucket.below("leases/") == []


async def test_what_is_settled_at_once_is_written_at_once(world: World, ann: Process) -> None:
    """The first settlement writes the record; what comes meanwhile goes into its next write, and has its own answer."""
    claim = await claimed(ann, 200)
    ann.client.latency = 0.02
    records: list[str] = []

    def note(kind: Kind, key: str) -> None:
        if kind == "PUT" and "/claims/" in key:
            records.append(key)

    ann.client.meanwhile = note
    async with asyncio.TaskGroup() as group:
        acks = []
        for one in claim.ids[:-1]:
            acks.append(group.create_task(ann.queue.ack(claim, [one])))
            await world.later(0.001)
        later = group.create_task(ann.queue.nack(claim, claim.ids[:1]))
        last = group.create_task(ann.queue.bury(claim, claim.ids[-1:], reason="r"))
    assert [done.result().acked for done in acks] == [[one] for one in claim.ids[:-1]]
    assert later.result().acked == claim.ids[:1], "the first decision counts"
    assert last.result().buried == claim.ids[-1:]
    assert len(records) <= 16, "0.2 seconds, of which a write takes 0.02"
    assert claim.state == "closed"


async def test_nobody_has_an_answer_before_the_decision_is_written(world: World, ann: Process) -> None:
    """Of settlements that are written together, none is answered while the write is under way, and none if it fails."""
    claim = await claimed(ann, 4)
    ann.client.inject("lost", "PUT", "*/claims/*")
    done = await asyncio.gather(*(ann.queue.ack(claim, [one]) for one in claim.ids))
    assert [settlement.unknown for settlement in done] == [[one] for one in claim.ids]
    assert len(world.bucket.below("messages/")) == 4


async def test_one_that_is_cancelled_leaves_the_others_to_it(world: World, ann: Process) -> None:
    """A caller that gives up waiting for a settlement that others share does not end theirs."""
    claim = await claimed(ann, 3)
    ann.client.latency = 0.5
    tasks = [asyncio.create_task(ann.queue.ack(claim, [one])) for one in claim.ids]
    await world.later(0.1)
    tasks[0].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(done[0], asyncio.CancelledError)
    assert [settlement.acked for settlement in done[1:]] == [[one] for one in claim.ids[1:]]  # type: ignore[union-attr]


async def test_all_of_a_claim_is_settled_in_one_decision(world: World, ann: Process) -> None:
    """What failed is given back with its own reason, the rest is acked, and the record is written for both at once."""
    claim = await claimed(ann, 4, claim_id="run")
    with ann.client.counting() as requests:
        done = await ann.queue.settle(claim, requeue={claim.ids[1]: "no such order", claim.ids[3]: "too late"})
    assert done == Settlement(acked=[claim.ids[0], claim.ids[2]], released=[claim.ids[1], claim.ids[3]])
    assert requests["PUT"] == 4  # the decision, two leases, and that all is carried out
    await world.later(30)
    again = await ann.queue.claim(TOPIC, "c", max_messages=4)
    assert numbers(again) == [1, 3]
    await ann.queue.nack(again)
    page = await ann.queue.dead_letters(TOPIC, newest_first=False)
    assert {letter.deliveries for letter in page} == {2}


async def test_what_failed_may_be_buried(ann: Process) -> None:
    """Each dead letter tells its own reason."""
    claim = await claimed(ann)
    done = await ann.queue.settle(claim, bury={claim.ids[0]: "no such order", claim.ids[2]: "too late"})
    assert done == Settlement(acked=[claim.ids[1]], buried=[claim.ids[0], claim.ids[2]])
    page = await ann.queue.dead_letters(TOPIC)
    assert {letter.id: letter.reason for letter in page} == {claim.ids[0]: "no such order", claim.ids[2]: "too late"}


@pytest.mark.parametrize("failed", [["an id"], {"an id": 1}, "an id"])
async def test_what_failed_is_told_with_a_reason(ann: Process, failed: object) -> None:
    """Anything else is refused, and nothing is settled."""
    claim = await claimed(ann)
    with pytest.raises(InvalidArgumentError, match="as a dict, messages of its claim, or their ids, and why"):
        await ann.queue.settle(claim, requeue=failed)  # type: ignore[arg-type] - on purpose
    assert len((await ann.queue.ack(claim)).acked) == 3

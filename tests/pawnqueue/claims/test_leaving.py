"""Leaving a claim: this process works on it no more, and the next process, by reference or by id, need not wait."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from pawnqueue import ClaimBusyError, LeaseLostError, PawnQueue, Settings, events
from pawnqueue.domain import layout
from tests.pawnqueue.virtual import OVERDUE, TOPIC, TTL, Client, Died, Process, World, numbered, numbers
from tests.support.claims import late

RECORD = f"{TOPIC}/claims/*"


@pytest.mark.parametrize("by", ["reference", "id"])
async def test_who_comes_next_has_it_at_once(world: World, ann: Process, bob: Process, by: str) -> None:
    """The same messages in the same order, without waiting, whichever way he comes."""
    await ann.queue.publish(TOPIC, numbered(5))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    before = world.clock.elapsed()
    reference = await ann.queue.leave(claim)
    assert (reference.claim_id, reference.session) == ("run", claim.session)
    if by == "reference":
        again = await bob.queue.attach(reference.to_dict())
    else:
        again = await bob.queue.claim(TOPIC, "c", claim_id="run")
    assert world.clock.elapsed() == before
    assert (again.ids, numbers(again)) == (claim.ids, list(range(5)))
    assert (await bob.queue.ack(again)).complete


async def test_who_left_it_works_on_it_no_more(world: World, ann: Process, bob: Process) -> None:
    """It is trusted for no second longer, and neither renewed nor settled, whether or not somebody has come."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    await ann.queue.leave(claim)
    for _ in range(2):
        assert claim.seconds_left == 0
        with pytest.raises(LeaseLostError, match="handed over"):
            await ann.queue.renew(claim)
        assert (await late(ann.queue.ack(claim))).lost == claim.ids
        again = await bob.queue.claim(TOPIC, "c", claim_id="run")
        await bob.queue.leave(again)
    assert len(world.bucket.below("messages/")) == 2


@pytest.mark.parametrize("count", [1, 300])
async def test_it_is_one_request_whatever_its_size(ann: Process, count: int) -> None:
    """The record is written once, and nothing is read."""
    await ann.queue.publish(TOPIC, numbered(count))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=count)
    with ann.client.counting() as requests:
        reference = await ann.queue.leave(claim)
    assert requests == {"PUT": 1}
    with ann.client.counting() as requests:
        assert await ann.queue.leave(claim) == reference
    assert not requests


@pytest.mark.parametrize("what", ["settled", "empty", "ended"])
async def test_where_nothing_is_left_there_is_nothing_to_ask(ann: Process, bob: Process, what: str) -> None:
    """The reference is all that there is."""
    if what != "empty":
        await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    if what != "empty":
        await ann.queue.ack(claim)
    if what == "ended":
        claim = await bob.queue.claim(TOPIC, "c", claim_id="run")
    process = bob if what == "ended" else ann
    with process.client.counting() as requests:
        reference = await process.queue.leave(claim)
    assert not requests
    assert (reference.claim_id, reference.generation) == ("run", 0)


async def test_who_found_it_settled_leaves_it_without_asking_for_the_time(world: World, ann: Process) -> None:
    """A process that did nothing else yet, as the next try of a settlement that was killed once it had decided."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    await ann.queue.ack(claim)
    settings = Settings(s3={"bucket_name": "virtual"})
    async with await PawnQueue.open(settings, store=Client(world.bucket), clock=world.clock) as fresh:
        found = await fresh.attach(claim.hand_over(), payloads=False)
        assert not found
        assert (await fresh.leave(found)).claim_id == "run"


async def test_what_is_left_waits_for_its_time_like_what_is_held(world: World, ann: Process, bob: Process) -> None:
    """Nobody else is given its messages while its time lasts, and everybody afterwards; closing gives nothing back."""
    await ann.queue.publish(TOPIC, numbered(2))
    await ann.queue.leave(await ann.queue.claim(TOPIC, "c"))
    await ann.queue.aclose()
    await world.later(TTL - 1)
    assert not await bob.queue.claim(TOPIC, "d")
    await world.later(OVERDUE - TTL + 1)
    assert numbers(await bob.queue.claim(TOPIC, "d")) == [0, 1]


async def test_what_was_settled_before_stays_so(ann: Process, bob: Process) -> None:
    """The next process has the rest."""
    await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    await ann.queue.ack(claim, claim[0])
    await ann.queue.leave(claim)
    again = await bob.queue.claim(TOPIC, "c", claim_id="run")
    assert (numbers(again), again.decided) == ([1, 2], {claim.ids[0]: "acked"})


async def test_what_was_handed_over_can_be_left_too(ann: Process, bob: Process) -> None:
    """Then who comes by its id need not wait either; once somebody has come, the reference is just told again."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    reference = claim.hand_over()
    with pytest.raises(ClaimBusyError):
        await bob.queue.claim(TOPIC, "c", claim_id="run")
    assert await ann.queue.leave(claim) == reference
    again = await bob.queue.claim(TOPIC, "c", claim_id="run")
    assert again
    assert await ann.queue.leave(claim) == reference
    assert (await bob.queue.ack(again)).complete


async def test_who_keeps_it_alive_ends_without_a_word(world: World, ann: Process, bob: Process) -> None:
    """Leaving is no loss: its renewals stop, and do not take it back from who has come."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    async with ann.queue.keep_alive(claim, interval=1) as kept:
        await world.later(5)
        await ann.queue.leave(claim)
        again = await bob.queue.claim(TOPIC, "c", claim_id="run")
        await world.later(5)
        assert not kept.lost.is_set()
    assert claim.lost is None
    assert (await bob.queue.ack(again)).complete


async def test_it_is_told_once(world: World) -> None:
    """Listeners get an event that it was handed over."""
    heard: list[Any] = []
    ann = await world.process()
    ann.queue._context.events._listener = heard.append
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    claim.hand_over()
    await ann.queue.leave(claim)
    assert sum(isinstance(event, events.HandedOver) for event in heard) == 1


@pytest.mark.parametrize("how", ["taken over", "renewed too late", "fenced"])
async def test_what_is_lost_is_not_left(world: World, ann: Process, bob: Process, how: str) -> None:
    """An error says so; its holder is not disturbed."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    if how == "fenced":
        fenced = world.bucket.record("run.0").model_copy(update={"state": "expired"})
        world.bucket.plant(layout.claim(TOPIC, "run.0"), fenced.encode())
    else:
        await world.later()
    if how == "taken over":
        again = await bob.queue.claim(TOPIC, "c", claim_id="run")
    if how == "renewed too late":
        with pytest.raises(LeaseLostError):
            await ann.queue.renew(claim)
    before = world.bucket.snapshot()
    for _ in range(2):
        with pytest.raises(LeaseLostError) as told:
            await ann.queue.leave(claim)
        assert told.value.operation == "leave"
    assert claim.lost
    assert world.bucket.snapshot() == before
    if how == "taken over":
        assert (await bob.queue.ack(again)).complete


async def test_what_nobody_has_taken_yet_can_be_left_late(world: World, ann: Process, bob: Process) -> None:
    """Its time is over, and its record shows that nobody has come: then it is left as ever."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    await world.later()
    reference = await ann.queue.leave(claim)
    assert numbers(await bob.queue.attach(reference)) == [0, 1]


async def test_what_the_janitor_renewed_meanwhile_is_left_on_top_of_it(
    world: World, ann: Process, bob: Process
) -> None:
    """A refusal is no loss: the record is read, and written once more; the claim's own time stays the longer one."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    longer = world.bucket.record("run.0").model_copy(update={"until": world.clock.server() + 500})
    world.bucket.plant(layout.claim(TOPIC, "run.0"), longer.encode())
    await ann.queue.leave(claim)
    record = world.bucket.record("run.0")
    assert (record.session_until, record.until) == (0.0, longer.until)
    assert await bob.queue.claim(TOPIC, "c", claim_id="run")


async def test_a_lost_answer_is_found_out(ann: Process, bob: Process) -> None:
    """The write had landed: that is seen, and it is left."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    ann.client.inject("answer lost", "PUT", RECORD, times=1)
    await ann.queue.leave(claim)
    assert await bob.queue.claim(TOPIC, "c", claim_id="run")


async def test_who_came_before_the_answer_was_found_out_came_by_our_leave(
    world: World, ann: Process, bob: Process
) -> None:
    """The write had landed without an answer, and another session has the claim since: it was left, and not lost."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    ann.client.inject("answer lost", "PUT", RECORD, times=1)
    came = []

    async def come(kind: str, key: str) -> None:
        if "/claims/" in key and world.bucket.record("run.0").session_until == 0 and not came:
            came.append(True)
            came.append(await bob.queue.claim(TOPIC, "c", claim_id="run"))

    ann.client.meanwhile = come
    reference = await ann.queue.leave(claim)
    assert reference.session == claim.session
    assert claim.lost is None
    assert numbers(came[1]) == [0, 1]  # type: ignore[arg-type]
    assert (await bob.queue.ack(came[1])).complete  # type: ignore[arg-type]


@pytest.mark.parametrize("by", ["reference", "id"])
async def test_what_cannot_be_written_is_waited_for(
    world: World, ann: Process, bob: Process, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that never answers raises no error: it is logged, and a call with the id waits for the session's time."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=100)
    ann.client.inject("lost", "PUT", RECORD)
    with caplog.at_level(logging.WARNING, "pawnqueue.claims"):
        reference = await ann.queue.leave(claim)
    assert "is left, but it is not known" in caplog.text
    assert claim.seconds_left == 0
    if by == "reference":
        assert numbers(await bob.queue.attach(reference)) == [0, 1]
        return
    with pytest.raises(ClaimBusyError) as busy:
        await bob.queue.claim(TOPIC, "c", claim_id="run")
    await world.later(busy.value.retry_after)
    assert await bob.queue.claim(TOPIC, "c", claim_id="run")


@pytest.mark.parametrize(("dies", "waits"), [("dies", True), ("dies after", False)])
async def test_who_dies_as_he_leaves(world: World, ann: Process, bob: Process, dies: Any, waits: bool) -> None:  # noqa: ANN401, FBT001
    """Before it was written, the next one by the id waits for the session's time; after it, he does not."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    ann.client.inject(dies, "PUT", RECORD)
    with pytest.raises(Died):
        await ann.queue.leave(claim)
    before = world.clock.elapsed()
    assert await bob.queue.claim(TOPIC, "c", claim_id="run", wait=OVERDUE)
    assert (world.clock.elapsed() - before > TTL - 1) == waits

"""A drain: nothing new is given out, what is worked on finishes, and the rest is given back and named, in time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pawnqueue import InvalidArgumentError, Message, QueueClosedError, QueueDrainedError
from pawnqueue import events as happened
from tests.pawnqueue.listening.working import Handling, listening
from tests.pawnqueue.test_closing import hang
from tests.pawnqueue.virtual import TOPIC, World, numbered, numbers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.pawnqueue.virtual import Effect, Process


async def test_a_waiting_claim_ends_at_once(world: World, ann: Process) -> None:
    """It raises QueueDrainedError, whichever topics it waits for."""
    world.topic("parcels")
    waiting = [asyncio.create_task(ann.queue.claim(topics, "c", wait=3600)) for topics in (TOPIC, [TOPIC, "parcels"])]
    await world.later(100)
    began = world.clock.elapsed()
    drained = await ann.queue.drain(10)
    assert world.clock.elapsed() == began
    assert drained.complete
    for each in waiting:
        with pytest.raises(QueueDrainedError):
            await each


async def test_new_work_is_refused(ann: Process, bob: Process) -> None:
    """Claims, attachments and workers; publishing, renewing and settling go on."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=1)
    reference = await bob.queue.leave(await bob.queue.claim(TOPIC, "c"))
    draining = asyncio.create_task(ann.queue.drain(10))
    await asyncio.sleep(0)
    assert ann.queue.is_draining
    with pytest.raises(QueueDrainedError):
        await ann.queue.claim(TOPIC, "c")
    with pytest.raises(QueueDrainedError):
        await ann.queue.attach(reference)
    await ann.queue.renew(claim)
    await ann.queue.publish(TOPIC, numbered(1))
    assert (await ann.queue.ack(claim)).complete
    assert await draining
    assert not ann.queue.closed


@pytest.mark.parametrize("packed", [False, True])
async def test_handlers_finish_and_the_rest_is_given_back(packed_world: World, *, packed: bool) -> None:
    """The result names it, and others have it at once."""
    world = packed_world
    ann, bob = await world.process(), await world.process()
    ids = await ann.queue.publish(TOPIC, numbered(8), pack=packed)
    handling = Handling()
    async with listening(ann, handling, concurrency=3, max_messages=4) as worker:
        await handling.until(lambda: len(handling.running) == 3)
        await world.later(1)
        draining = asyncio.create_task(ann.queue.drain(20))
        await world.later(1)
        claim = await bob.queue.claim(TOPIC, "other", max_messages=10, wait=15)
        begun = set(handling.numbers)
        assert set(numbers(claim)).isdisjoint(begun)
        handling.end()
        drained, report = await draining, await worker.report()
    assert set(handling.ended) == begun
    assert handling.cancelled == []
    held = {ids[number] for number in range(8)} - {ids[number] for number in begun}
    assert set(drained.given_back) == set(report.given_back)
    assert set(drained.given_back) <= held
    assert drained.complete
    assert report.acked == 3
    rest = await bob.queue.claim(TOPIC, "other", max_messages=10, wait=15)
    assert {*numbers(claim), *numbers(rest)} == set(range(8)) - begun


async def test_handlers_that_do_not_end_are_cancelled_in_time(world: World, ann: Process, bob: Process) -> None:
    """After three quarters of the time, and their messages are given back."""
    ids = await ann.queue.publish(TOPIC, numbered(2))
    handling = Handling()
    async with listening(ann, handling) as worker:
        await handling.until(lambda: len(handling.running) == 2)
        began = world.clock.elapsed()
        draining = asyncio.create_task(ann.queue.drain(8))
        await world.later(5)
        assert not handling.cancelled
        handling.end(1)
        drained = await draining
        assert 6 <= world.clock.elapsed() - began < 7
        report = await worker.report()
    assert handling.cancelled == [0]
    assert (drained.given_back, drained.left) == ([ids[0]], [])
    assert (report.acked, report.given_back) == (1, [ids[0]])
    assert numbers(await bob.queue.claim(TOPIC, "other", wait=15)) == [0]


async def test_handlers_that_refuse_to_end_keep_nothing(world: World, ann: Process, bob: Process) -> None:
    """Their messages are given back all the same, and what the handlers do after that does not count."""
    await ann.queue.publish(TOPIC, numbered(1))
    begun, over = asyncio.Event(), asyncio.Event()

    async def stubborn(message: Message) -> None:
        begun.set()
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    async with listening(ann, stubborn) as worker:
        await begun.wait()
        began = world.clock.elapsed()
        drained = await ann.queue.drain(8)
        assert world.clock.elapsed() - began < 8
        report = await worker.report()
        over.set()
    assert len(drained.given_back) == 1
    assert report.acked == 0
    assert numbers(await bob.queue.claim(TOPIC, "other", wait=15)) == [0]


@pytest.mark.parametrize("timeout", [0, 4])
async def test_the_time_is_kept_whatever_the_store_does(
    world: World,
    ann: Process,
    timeout: float,  # noqa: ASYNC109 - it is passed on
) -> None:
    """What could not be given back is named, by its claim."""
    ids = await ann.queue.publish(TOPIC, numbered(5))
    bare = await ann.queue.claim(TOPIC, "c", max_messages=1)
    handling = Handling()
    async with listening(ann, handling, concurrency=2) as worker:
        await handling.until(lambda: len(handling.running) == 2)
        await world.later(1)
        ann.client.hook = hang
        began = world.clock.elapsed()
        drained = await ann.queue.drain(timeout)
        assert world.clock.elapsed() - began <= timeout + 0.01
        report = await worker.report()
        assert world.clock.elapsed() - began <= timeout + 0.01
    assert not drained.complete
    assert bare.stem in drained.left
    assert len(drained.left) >= 2
    assert drained.given_back == []
    assert set(report.left) <= set(ids)
    assert len(report.left) == 4
    ann.client.hook = None


async def test_other_claims_are_settled_by_their_consumers(world: World, ann: Process) -> None:
    """The drain ends when they are, and not later."""
    await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c")
    draining = asyncio.create_task(ann.queue.drain(20))
    await world.later(3)
    began = world.clock.elapsed()
    await ann.queue.ack(claim)
    drained = await draining
    assert world.clock.elapsed() == began
    assert (drained.given_back, drained.left) == ([], [])


@pytest.mark.parametrize("packed", [False, True])
async def test_what_their_consumers_do_not_settle_is_given_back(packed_world: World, *, packed: bool) -> None:
    """After three quarters of the time."""
    world = packed_world
    ann, bob = await world.process(), await world.process()
    ids = await ann.queue.publish(TOPIC, numbered(3), pack=packed)
    claim = await ann.queue.claim(TOPIC, "c")
    await ann.queue.ack(claim, claim[1])
    began = world.clock.elapsed()
    drained = await ann.queue.drain(20)
    assert 15 <= world.clock.elapsed() - began <= 20
    assert drained.given_back == [ids[0], ids[2]]
    assert drained.complete
    assert sorted(numbers(await bob.queue.claim(TOPIC, "other", wait=15))) == [0, 2]


async def test_claims_by_an_id_may_be_kept(world: World) -> None:
    """As when the queue is closed, where the settings say so; the result names them."""
    ann, bob = await world.process(claims={"keep_when_closed": True}), await world.process()
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    drained = await ann.queue.drain(1)
    assert (drained.given_back, drained.left) == ([], [])
    assert claim.state == "open"
    assert numbers(await bob.queue.claim(TOPIC, "c", claim_id="run")) == [0]


async def test_a_claim_that_is_being_made_gives_out_nothing(world: World, ann: Process, bob: Process) -> None:
    """Whatever request it is at: it raises, and what it had won is free."""
    await ann.queue.publish(TOPIC, numbered(3))
    for number in range(12):
        process = await world.process()
        drains: list[asyncio.Future[object]] = []
        process.client.meanwhile = _drain_at(process, number, drains)
        try:
            claim = await process.queue.claim(TOPIC, "c")
        except QueueDrainedError:
            assert drains
        else:
            assert not drains
            await process.queue.requeue(claim)
        for drain in drains:
            await drain
        assert (await bob.queue.stats(TOPIC)).in_flight == 0


def _drain_at(
    process: Process, number: int, drains: list[asyncio.Future[object]]
) -> Callable[[str, str], Awaitable[None]]:
    """Drain the process's queue at its request of this number, counted from 0."""
    counted = 0

    async def meanwhile(_kind: str, _key: str) -> None:
        nonlocal counted
        counted += 1
        if counted == number + 1:
            drains.append(asyncio.ensure_future(process.queue.drain(5)))
            await asyncio.sleep(0)

    return meanwhile


async def test_a_second_drain_may_be_shorter(world: World, ann: Process) -> None:
    """The first one ends with it."""
    await ann.queue.publish(TOPIC, numbered(1))
    handling = Handling()
    async with listening(ann, handling):
        await handling.until(lambda: handling.running)
        began = world.clock.elapsed()
        first = asyncio.create_task(ann.queue.drain(100))
        await world.later(1)
        second = await ann.queue.drain(4)
        assert await first == second
        assert world.clock.elapsed() - began <= 5.1
    assert len(second.given_back) == 1


async def test_a_drained_queue_is_closed_as_any_other(world: World, ann: Process) -> None:
    """Nothing is left to give back."""
    told: list[happened.Event] = []
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.claim(TOPIC, "c")
    ann.queue._context.events._listener = told.append
    assert not ann.queue.is_draining
    drained = await ann.queue.drain(1)
    await ann.queue.aclose()
    [first] = [event for event in told if isinstance(event, happened.QueueDrained)]
    assert (list(first.given_back), list(first.left)) == (drained.given_back, drained.left)
    assert isinstance(told[-1], happened.QueueClosed)
    assert told[-1].claims == 0
    assert ann.queue.is_draining
    with pytest.raises(QueueClosedError):
        await ann.queue.drain()


async def test_closing_lets_handlers_finish(world: World, ann: Process, bob: Process) -> None:
    """For at most half of its time; then they are cancelled, and their messages given back."""
    await ann.queue.publish(TOPIC, numbered(4))
    handling = Handling()
    async with listening(ann, handling, concurrency=2) as worker:
        await handling.until(lambda: len(handling.running) == 2)
        await world.later(1)
        began = world.clock.elapsed()
        closing = asyncio.create_task(ann.queue.aclose(timeout=10))
        await world.later(2)
        handling.end(0)
        await closing
        assert world.clock.elapsed() - began <= 5
        report = await worker.report()
    assert (handling.ended, handling.cancelled) == ([0], [1])
    assert (report.acked, len(report.given_back)) == (1, 3)
    assert (await bob.queue.stats(TOPIC)).in_flight == 0


async def test_a_drain_with_a_wrong_timeout_is_none(ann: Process) -> None:
    """It raises InvalidArgumentError, and the queue goes on."""
    for wrong in (-1, "x", float("nan"), None):
        with pytest.raises(InvalidArgumentError, match="timeout is a number"):
            await ann.queue.drain(wrong)  # type: ignore[arg-type]
    assert not ann.queue.is_draining


@pytest.mark.parametrize("effect", ["lost", "denied"])
@pytest.mark.parametrize("seconds", [31, 45, 61, 77, 100, 133, 187])
async def test_a_drain_after_an_outage_settles_what_is_done(
    world: World, ann: Process, bob: Process, effect: Effect, seconds: int
) -> None:
    """However long a worker would have waited until it tried again."""
    handling = Handling()
    await ann.queue.publish(TOPIC, numbered(10))
    async with listening(ann, handling, concurrency=10) as worker:
        await handling.until(lambda: len(handling.running) == 10)
        ann.client.inject(effect)
        handling.end()
        await world.later(seconds)
        ann.client.heal()
        assert (await ann.queue.drain(10)).complete
        assert (await worker.report()).acked == 10
    await world.later(40)
    assert not await bob.queue.claim(TOPIC, "c")


async def test_a_drain_during_an_outage_settles_when_it_is_over(world: World, ann: Process) -> None:
    """A worker that ends tries again every two seconds at least."""
    handling = Handling()
    await ann.queue.publish(TOPIC, numbered(3))
    async with listening(ann, handling, concurrency=3) as worker:
        await handling.until(lambda: len(handling.running) == 3)
        ann.client.inject("denied")
        handling.end()
        await world.later(100)
        draining = asyncio.create_task(ann.queue.drain(20))
        await world.later(10)
        ann.client.heal()
        await world.later(5)
        assert draining.done()
        assert (await draining).complete
        assert (await worker.report()).acked == 3


async def test_a_queue_that_a_handler_has_closed_is_closed(world: World, ann: Process) -> None:
    """The handler is cancelled, as closing waits for it; a later call that closes the queue is not."""
    await ann.queue.publish(TOPIC, numbered(1))

    async def handle(_message: Message) -> None:
        await ann.queue.aclose(timeout=20)

    worker = asyncio.ensure_future(ann.queue.listen(TOPIC, handle, consumer="c", concurrency=1))
    await world.later(60)
    assert worker.done()
    await ann.queue.aclose()
    assert ann.queue.closed


async def test_the_log_names_what_a_worker_has_left(
    world: World, ann: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where its claim's time is over, so that the queue holds nothing any more."""
    handling = Handling()
    await ann.queue.publish(TOPIC, numbered(2))
    async with listening(ann, handling, concurrency=2) as worker:
        await handling.until(lambda: len(handling.running) == 2)
        ann.client.inject("denied")
        handling.end()
        await world.later(100)
        await ann.queue.drain(10)
        report = await worker.report()
    assert len(report.left) == 2
    assert "what became of 2 of its messages" in caplog.text
    assert all(each in caplog.text for each in report.left)

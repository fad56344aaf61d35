"""A consumer that is interrupted, or leaves, gives back what it holds: nobody waits for its time to end (§4)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import pytest

from pawnqueue import ClaimBusyError, PawnQueue
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered, numbers
from tools.kit.stores import Answer, CarryOut, HookedStore, Request

if TYPE_CHECKING:
    from pawnqueue.stores.port import ObjectInfo

#: What a cancelled claim may be doing: the request at which it is cancelled, in order.
MOMENTS = [
    ("LIST", "messages"),
    ("PUT", "leases"),
    ("GET", "messages"),
    ("PUT", "claims"),
]


async def cancelled_at(process: Process, kind: str, folder: str, claim_id: str | None) -> None:
    """Claim, and cancel that at the first request of this kind."""
    tasks: list[asyncio.Task[object]] = []

    async def cancel(sent: str, key: str) -> None:
        if sent == kind and f"/{folder}/" in key and tasks:
            tasks.pop().cancel()
            await asyncio.sleep(0)

    task = asyncio.ensure_future(process.queue.claim(TOPIC, "c", ttl=600, claim_id=claim_id))
    tasks.append(task)
    process.client.meanwhile = cancel
    with pytest.raises(asyncio.CancelledError):
        await task
    process.client.heal()


@pytest.mark.parametrize("claim_id", [None, "run"])
@pytest.mark.parametrize(("kind", "folder"), MOMENTS)
async def test_a_cancelled_claim_gives_back_what_it_won(  # noqa: PLR0913, PLR0917 - a matrix
    world: World, ann: Process, bob: Process, kind: str, folder: str, claim_id: str | None
) -> None:
    """Whenever it is cancelled, others have the messages at once, and none of it counts as a delivery."""
    await ann.queue.publish(TOPIC, numbered(5))
    started = world.clock.elapsed()
    await cancelled_at(ann, kind, folder, claim_id)
    claim = await bob.queue.claim(TOPIC, "d")
    assert numbers(claim) == [0, 1, 2, 3, 4]
    assert [message.deliveries for message in claim] == [1] * 5
    assert world.clock.elapsed() - started < 5
    assert (await bob.queue.ack(claim)).complete


@pytest.mark.parametrize(("kind", "folder"), MOMENTS)
async def test_a_cancelled_claim_can_be_made_again(ann: Process, bob: Process, kind: str, folder: str) -> None:
    """The same id and owner have the messages at once: nobody was given them, so it was no batch."""
    await ann.queue.publish(TOPIC, numbered(5))
    await cancelled_at(ann, kind, folder, "run")
    assert numbers(await bob.queue.claim(TOPIC, "c", claim_id="run")) == [0, 1, 2, 3, 4]


async def test_a_janitor_that_renews_meanwhile_does_not_keep_a_cancelled_claim() -> None:
    """A record that names our session is ours, though another write of it was seen while its creation was verified."""
    async with World("csprng_verify") as world:
        ann, bob = await world.process(), await world.process()
        await ann.queue.publish(TOPIC, numbered(3))
        claiming = asyncio.ensure_future(ann.queue.claim(TOPIC, "c", ttl=600, claim_id="run"))
        renewed: list[str] = []

        def meanwhile(kind: str, key: str) -> None:
            if (kind, key.split("/")[1]) == ("PUT", "leases"):
                claiming.cancel()
            if kind == "HEAD" and key in world.bucket.below() and "/claims/" in key and not renewed:
                renewed.append(key)
                world.alter("run.0", until=world.clock.server() + 300)

        ann.client.meanwhile = meanwhile
        with pytest.raises(asyncio.CancelledError):
            await claiming
        assert renewed
        assert numbers(await bob.queue.claim(TOPIC, "d")) == [0, 1, 2]


async def test_who_adopts_what_is_given_back_at_that_moment_does_not_have_it_beside_others(world: World) -> None:
    """The creator of the claim's record decides: the process that gives back, or one that works for the same claim."""
    ann, bob, eve = [await world.process() for _ in range(3)]
    await ann.queue.publish(TOPIC, numbered(3))
    reading = asyncio.Event()

    async def read_for_ever(kind: str, key: str) -> None:
        if kind == "GET" and "/messages/" in key:
            reading.set()
            await asyncio.Event().wait()

    ann.client.meanwhile = read_for_ever
    giving_back = asyncio.ensure_future(ann.queue.claim(TOPIC, "c", ttl=600, claim_id="run"))
    await reading.wait()
    taken: list[int] = []

    async def give_back_and_take(kind: str, key: str) -> None:
        if kind == "PUT" and "/claims/" in key and not giving_back.done():
            ann.client.meanwhile = None
            giving_back.cancel()
            await asyncio.wait((giving_back,))
            taken.extend(numbers(await eve.queue.claim(TOPIC, "d", ttl=600)))

    bob.client.meanwhile = give_back_and_take
    adopted = numbers(await bob.queue.claim(TOPIC, "c", ttl=600, claim_id="run"))
    assert giving_back.cancelled()
    assert sorted(adopted + taken) == [0, 1, 2]


@pytest.mark.parametrize("claim_id", [None, "run"])
async def test_a_queue_that_is_closed_gives_back(
    world: World, ann: Process, bob: Process, caplog: pytest.LogCaptureFixture, claim_id: str | None
) -> None:
    """What it has, and did not hand over, others have at once; it says so in one line."""
    await ann.queue.publish(TOPIC, numbered(6))
    given = await ann.queue.claim(TOPIC, "c", max_messages=2, ttl=600)
    reference = given.hand_over()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=3, ttl=600, claim_id=claim_id)
    await ann.queue.ack(claim, claim.ids[:1])
    with caplog.at_level(logging.INFO):
        await ann.queue.aclose()
    [line] = [record.message for record in caplog.records if "open claim" in record.message]
    assert "2 messages" in line
    assert numbers(await bob.queue.claim(TOPIC, "d")) == [3, 4, 5]
    assert numbers(await bob.queue.attach(reference)) == [0, 1]
    assert world.bucket.below("dead-letter/") == []


async def test_who_closed_in_good_order_may_claim_again(ann: Process, bob: Process) -> None:
    """By the same id and owner: it had not finished with what it gave back."""
    await ann.queue.publish(TOPIC, numbered(3))
    await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=600)
    await ann.queue.aclose()
    again = await bob.queue.claim(TOPIC, "c", claim_id="run")
    assert (numbers(again), again.generation) == ([0, 1, 2], 1)


@pytest.mark.parametrize("by", ["argument", "setting"])
async def test_claims_are_kept_when_closed_if_that_is_wanted(world: World, bob: Process, by: str) -> None:
    """Nobody else gets the messages; a call with the claim's id gets them at once."""
    ann = await world.process(claims={"keep_when_closed": by == "setting"})
    await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=600)
    await (ann.queue.aclose() if by == "setting" else ann.queue.aclose(keep_claims=True))
    assert not await bob.queue.claim(TOPIC, "d")
    with pytest.raises(ClaimBusyError):
        await bob.queue.claim(TOPIC, "d", claim_id="run", owner="other")
    again = await bob.queue.claim(TOPIC, "c", claim_id="run")
    assert (again.ids, again.generation) == (claim.ids, 0)


async def test_an_exception_closes_in_good_order(world: World, bob: Process) -> None:
    """A consumer that raises, or is interrupted, leaves nothing that others wait for."""
    ann = await world.process()
    await ann.queue.publish(TOPIC, numbered(3))
    with pytest.raises(KeyError):  # noqa: PT012 - what is raised inside ends the block
        async with ann.queue:
            await ann.queue.claim(TOPIC, "c", ttl=600)
            raise KeyError
    assert numbers(await bob.queue.claim(TOPIC, "d")) == [0, 1, 2]


async def test_closing_does_not_wait_for_a_store_that_is_silent(world: World, ann: Process) -> None:
    """A store that answers nothing delays the end by seconds, not by the patience of all that is tried."""
    await ann.queue.publish(TOPIC, numbered(3))
    await ann.queue.claim(TOPIC, "c", ttl=600)
    ann.client.inject("lost")
    started = world.clock.elapsed()
    await ann.queue.aclose()
    assert world.clock.elapsed() - started < 40


async def test_what_one_gave_back_oneself_is_there_at_once() -> None:
    """By the dates of a listing it may still be to come, as the store's time is known to half a second at best."""

    async def dated(request: Request, carry_out: CarryOut) -> Answer:
        answer = await carry_out()
        if request.call != "pages" or answer is None:
            return answer
        page = cast("Sequence[ObjectInfo]", answer)
        return [replace(info, last_modified=info.last_modified + timedelta(seconds=1)) for info in page]

    async with PawnQueue.open(store=HookedStore(hook=dated)) as queue:
        await queue.create_topic(TOPIC)
        await queue.publish(TOPIC, numbered(13))
        claim = await queue.claim(TOPIC, "c", max_messages=100)
        await queue.nack(claim, requeue=True)
        await queue.publish(TOPIC, numbered(2))
        assert len(await queue.claim(TOPIC, "c", max_messages=100)) == 15

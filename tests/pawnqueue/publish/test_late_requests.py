"""When a staged write delivers a message a second time: the cases that docs/spark.md names, and no others (§7)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from pawnqueue import StoreError
from pawnqueue.stores.port import Unknown
from tests.pawnqueue.publish.written import (
    COUNT,
    EVERY,
    OVER,
    SMALL,
    WRITE,
    committed,
    consumed,
    expected_ids,
    ids,
    left,
    of_strategy,
    record,
    staged,
    visible,
    writer,
)
from tests.pawnqueue.virtual import TOPIC, Died, Process, World, numbers

if TYPE_CHECKING:
    from tools.kit.stores import Answer, CarryOut, Request

pytestmark = pytest.mark.usefixtures("small_chunks")


async def killed_while_it_publishes(process: Process) -> list[CarryOut]:
    """Commit with a process that is killed with its first chunk under way, and return the requests of that."""
    parts = await staged(process)
    under_way: list[CarryOut] = []

    async def hook(request: Request, carry_out: CarryOut) -> Answer:
        if request.call in {"put", "copy"} and ("/messages/" in request.key or "/packs/" in request.key):
            under_way.append(carry_out)
            raise Died
        return await carry_out()

    process.client.hook = hook
    with pytest.raises(Died):
        await process.queue.commit_write(TOPIC, WRITE, parts)
    process.client.dead = True
    return under_way


async def test_a_put_that_is_carried_out_after_its_message_was_consumed_delivers_it_again() -> None:
    """At most one message for each request that was under way, with the same id."""
    async with of_strategy("conditional_write") as world:
        ann, bob, eve = [await writer(world) for _ in range(3)]
        under_way = await killed_while_it_publishes(ann)
        await world.later(OVER)
        await committed(bob)
        delivered = await consumed(eve, "first")
        for carry_out in under_way:
            await carry_out()
        assert 0 < len(under_way) <= SMALL
        assert set(ids(world)) <= set(expected_ids())
        delivered += await consumed(eve, "second")
        assert delivered == Counter(EVERY) + Counter(EVERY[: len(under_way)])


async def test_a_copy_that_is_carried_out_after_the_write_is_done_delivers_nothing() -> None:
    """What it would copy was deleted with the write's end."""
    async with of_strategy("conditional_write", packs=True) as world:
        ann, bob, eve = [await writer(world) for _ in range(3)]
        under_way = await killed_while_it_publishes(ann)
        await world.later(OVER)
        await committed(bob)
        assert await consumed(eve, "first") == Counter(EVERY)
        for carry_out in under_way:
            await carry_out()
        assert under_way
        assert (visible(world), left(world)) == ([], [])


async def test_a_copy_that_is_carried_out_before_the_write_is_done_delivers_its_pack_again() -> None:
    """Its messages were consumed by then. They have the same ids, and no other pack comes twice."""
    async with of_strategy("conditional_write", packs=True) as world:
        ann, bob, eve = [await writer(world) for _ in range(3)]
        first, *_ = await killed_while_it_publishes(ann)
        await world.later(OVER)
        delivered: Counter[int] = Counter()

        async def hook(request: Request, carry_out: CarryOut) -> Answer:
            found = record(world)
            if request.call == "put" and "/writes/" in request.key and visible(world) and not delivered:
                assert found is not None
                assert found.state == "begun"
                delivered.update(await consumed(eve, "first"))
                await first()
            return await carry_out()

        bob.client.hook = hook
        await committed(bob)
        again = Counter(visible(world)[:2])
        delivered += await consumed(eve, "second")
        assert delivered == Counter(EVERY) + again
        assert again == Counter(EVERY[:2])


@pytest.mark.parametrize("packs", [None, True])
async def test_what_leaves_no_trace_is_published_again(*, packs: bool | None) -> None:
    """pawn-queue's consumers delete a message without one. They see no packs."""
    async with of_strategy("conditional_write", packs=packs) as world:
        ann, bob = await writer(world), await writer(world)
        parts = await staged(ann)
        # Its first messages or packs are stored, and not noted.
        ann.client.inject("dies", "PUT", "*/writes/*", passed=1)
        with pytest.raises(Died):
            await ann.queue.commit_write(TOPIC, WRITE, parts)
        taken = world.bucket.below("messages/")
        for name in taken:
            world.bucket.remove(f"{TOPIC}/messages/{name}")
        await world.later(OVER)
        await committed(bob)
        assert (visible(world), len(taken)) == (EVERY, 0 if packs else SMALL)
        assert ids(world) == expected_ids()


async def test_a_request_without_an_answer_that_is_carried_out_late(world: World, ann: Process, bob: Process) -> None:
    """A committer that lives sends the message again. The first request may come after its ack."""
    parts = await staged(ann)
    late: list[CarryOut] = []

    async def hook(request: Request, carry_out: CarryOut) -> Answer:
        if request.call == "put" and "/messages/" in request.key and not late:
            late.append(carry_out)
            return Unknown(StoreError("It took too long.", transient=True))
        return await carry_out()

    ann.client.hook = hook
    await ann.queue.commit_write(TOPIC, WRITE, parts)
    delivered = await consumed(bob, "first")
    assert delivered == Counter(EVERY)
    for carry_out in late:
        await carry_out()
    assert len(visible(world)) == 1
    assert set(ids(world)) <= set(expected_ids())
    assert sum(delivered.values()) == COUNT


@pytest.mark.parametrize("claim_id", ["kept", None])
async def test_packs_that_were_consumed_in_slices_are_not_published_again(claim_id: str | None) -> None:
    """Their slices are in the records of claims, under the name of the pack."""
    async with of_strategy("conditional_write", packs=True) as world:
        ann, bob, eve = [await writer(world) for _ in range(3)]
        parts = await staged(ann)
        ann.client.inject("dies", "PUT", "*/writes/*", passed=1)
        with pytest.raises(Died):
            await ann.queue.commit_write(TOPIC, WRITE, parts)
        delivered: Counter[int] = Counter()
        for number in range(len(EVERY)):
            claim = await eve.queue.claim(TOPIC, "c", max_messages=1, claim_id=claim_id and f"{claim_id}-{number}")
            delivered.update(numbers(claim))
            await eve.queue.ack(claim)
        assert 0 < len(delivered) < len(EVERY)
        assert world.bucket.below("packs/") == []
        await world.later(OVER)
        await committed(bob)
        delivered += await consumed(eve, None)
        assert delivered == Counter(EVERY)

"""Deleting a topic: what prevents it, what goes with it, and what is left where it is interrupted."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING

import pytest

from pawnqueue import StoreError, TopicNotEmptyError, TopicNotFoundError
from pawnqueue.domain import layout
from pawnqueue.domain.claim_record import ClaimRecord, Member
from pawnqueue.maintenance.removal import Removed
from tests.pawnqueue.virtual import TOPIC, Kind, Process, World, numbered, numbers
from tests.support.claims import late
from tools.kit.stores import Answer, CarryOut, Request

if TYPE_CHECKING:
    from typing import Literal

MARKER = layout.topic_marker(TOPIC)


def everything(world: World) -> list[str]:
    """The keys of the topic."""
    return [key for key in world.bucket.below() if key.startswith(f"{TOPIC}/")]


async def fill(process: Process) -> None:
    """Leave something of every kind in the topic: 1 delayed, 2 dead, 4 in flight, 3 pending, a closed claim."""
    queue = process.queue
    await queue.publish(TOPIC, numbered(11))
    await queue.ack(await queue.claim(TOPIC, "c", max_messages=1, claim_id="closed"))
    await queue.nack(await queue.claim(TOPIC, "c", max_messages=1), requeue=True, delay=5000)
    await queue.nack(await queue.claim(TOPIC, "c", max_messages=2))
    await queue.claim(TOPIC, "c", max_messages=4, claim_id="open", ttl=600)


# --- what prevents it ---


async def test_what_is_in_a_topic_is_told_roughly(world: World, ann: Process) -> None:
    """The error says how many messages are pending, delayed, in flight and dead, and how to be rid of them."""
    await fill(ann)
    before = world.bucket.snapshot()
    with ann.client.counting() as requests, pytest.raises(TopicNotEmptyError) as caught:
        await ann.queue.delete_topic(TOPIC)
    assert str(caught.value) == (
        "Topic 'orders' was not deleted, as it holds 3 pending messages, 1 delayed message, 4 messages in flight and 2 "
        "dead letters. Consume, redrive or sweep them, or delete them with the topic: "
        "delete_topic('orders', force=True)."
    )
    assert requests == {"GET": 1, "LIST": 4}
    assert world.bucket.snapshot() == before
    await world.later(1100)  # a LIST tells a claim's time roughly
    with pytest.raises(TopicNotEmptyError, match="holds 7 pending messages, 1 delayed message and 2 dead letters"):
        await ann.queue.delete_topic(TOPIC)


async def test_a_full_topic_is_not_counted_to_the_end(world: World, ann: Process) -> None:
    """Of very many messages it is said that there are so many at least, and the look is a few requests."""
    world.fill("{}" for _ in range(12_000))
    with ann.client.counting() as requests, pytest.raises(TopicNotEmptyError, match=r"at least 10,000 pending"):
        await ann.queue.delete_topic(TOPIC)
    assert requests["LIST"] <= 15


async def test_delayed_messages_can_be_deleted_by_the_advice(ann: Process) -> None:
    """What nobody can consume now is named as delayed, and goes with ``force``."""
    await ann.queue.publish(TOPIC, numbered(2))
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"), requeue=True, delay=5000)
    with pytest.raises(TopicNotEmptyError, match=r"holds 2 delayed messages\..*force=True"):
        await ann.queue.delete_topic(TOPIC)
    await ann.queue.delete_topic(TOPIC, force=True)
    assert await ann.queue.list_topics() == []


async def test_what_claims_have_left_that_have_ended_goes_with_the_topic(world: World, ann: Process) -> None:
    """Closed records do not prevent it, however many; none of them is read, and none is left."""
    for number in range(30):
        await ann.queue.publish(TOPIC, numbered(1))
        await ann.queue.ack(await ann.queue.claim(TOPIC, "c", claim_id=f"run-{number}"))
    assert len(world.bucket.below("claims/")) == 30
    with ann.client.counting() as requests:
        await ann.queue.delete_topic(TOPIC)
    assert requests["GET"] == 2  # the marker, before the look and after it
    assert everything(world) == []


@pytest.mark.parametrize("state", ["open", "expired"])
async def test_a_claim_that_is_not_settled_stands_in_the_way(
    world: World, ann: Process, state: Literal["open", "expired"]
) -> None:
    """A record with an unsettled member is read, and named; another process may be about to settle it."""
    uuid = world.clock.uuid()
    members = {uuid: Member(name=f"20260101T000000_000000-{uuid}.json")}
    record = ClaimRecord(claim_id="run", state=state, until=world.clock.server() + 60, members=members)
    world.bucket.plant(layout.claim(TOPIC, record.stem), record.encode())
    with pytest.raises(TopicNotEmptyError, match=r"holds 1 claim that is not settled \(run\.0\)\. "):
        await ann.queue.delete_topic(TOPIC)
    assert len(everything(world)) == 2
    await ann.queue.delete_topic(TOPIC, force=True)
    assert everything(world) == []


async def test_a_claim_whose_effects_are_done_does_not(world: World, ann: Process) -> None:
    """Where only the closing of its record was lost, or a record is garbage, nothing is left to be done for it."""
    await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    ann.client.inject("denied", "PUT", "*/claims/*", passed=1)
    await ann.queue.ack(claim)
    ann.client.heal()
    assert world.bucket.record("run.0").state == "open"
    world.bucket.plant(layout.claim(TOPIC, "garbage.0"), "x")
    await ann.queue.delete_topic(TOPIC)
    assert everything(world) == []


async def test_effects_that_are_not_done_stand_in_the_way(world: World, ann: Process) -> None:
    """Where the message of an ack is still there, or its lease, the topic is not empty."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    ann.client.inject("denied", "DELETE", "*/leases/*")
    await ann.queue.ack(claim)
    ann.client.heal()
    with pytest.raises(TopicNotEmptyError, match=r"holds 1 lease without a message\. .*sweep"):
        await ann.queue.delete_topic(TOPIC)


# --- with all that is in it ---


async def test_with_force_everything_goes(world: World, ann: Process, bob: Process) -> None:
    """Messages, dead letters, claims and unknown objects; their holders get an error; other topics stay."""
    await fill(ann)
    world.bucket.plant(f"{TOPIC}/strange/x", "")
    world.topic("orders-2")
    await bob.queue.publish("orders-2", numbered(2))
    held = await bob.queue.claim(TOPIC, "c", max_messages=2)
    await ann.queue.delete_topic(TOPIC, force=True)
    assert everything(world) == []
    assert numbers(await bob.queue.claim("orders-2", "c")) == [0, 1]
    settlement = await late(bob.queue.ack(held))
    assert not settlement.acked
    assert everything(world) == []
    await ann.queue.create_topic(TOPIC)
    await bob.queue.publish(TOPIC, numbered(1, 7))
    assert numbers(await ann.queue.claim(TOPIC, "c", claim_id="open")) == [7]


async def test_with_force_publishers_stop_first_and_leases_outlive_messages(world: World, ann: Process) -> None:
    """The marker goes before the messages, and these before what tells who has them."""
    await fill(ann)
    before = len(ann.client.requests)
    await ann.queue.delete_topic(TOPIC, force=True)
    gone = [key for kind, key in ann.client.requests[before:] if kind == "DELETE"]
    assert gone[0] == MARKER
    assert "/messages/" in gone[1]
    assert not any("/messages/" in key for key in gone[2:])


async def test_with_force_a_topic_that_is_created_anew_meanwhile_stays(world: World, ann: Process) -> None:
    """What somebody writes who has created the topic again is theirs."""
    await fill(ann)

    def create_anew(kind: Kind, key: str) -> None:
        if kind == "LIST" and key == f"{TOPIC}/":
            ann.client.meanwhile = None
            world.topic()
            world.fill(["{}"])

    ann.client.meanwhile = create_anew
    await ann.queue.delete_topic(TOPIC, force=True)
    assert MARKER in everything(world)
    assert len(world.bucket.below("messages/")) == 1


async def test_with_force_a_topic_that_others_go_on_writing_into_is_told(world: World, ann: Process) -> None:
    """Publishers of another library need not look for the marker: where they do not stop, the topic is there again."""

    def publish(kind: Kind, key: str) -> None:
        if kind == "LIST":
            world.fill(["{}"])

    ann.client.meanwhile = publish
    with pytest.raises(StoreError, match="other processes keep writing to it"):
        await ann.queue.delete_topic(TOPIC, force=True)
    assert MARKER in everything(world)


async def test_with_force_a_topic_that_is_not_there_is_an_error(ann: Process) -> None:
    """There is nothing to delete."""
    with pytest.raises(TopicNotFoundError):
        await ann.queue.delete_topic("nowhere", force=True)


# --- interrupted ---


@pytest.mark.parametrize("force", [True, False], ids=["force", "empty"])
@pytest.mark.parametrize("how", ["cancelled", "cancelled twice", "denied"])
async def test_whatever_interrupts_a_deletion_leaves_no_message_without_its_topic(*, force: bool, how: str) -> None:
    """At whichever request it is interrupted: messages that are left are in a topic, with its settings."""
    number = 0
    while await _is_interrupted(number, how, force=force):
        number += 1
    assert number > 5


async def _is_interrupted(number: int, how: str, *, force: bool) -> bool:
    """Interrupt a deletion at this request; return whether it made so many."""
    async with World() as world:
        world.topic(max_deliveries=3)
        ann = await world.process()
        if force:
            await fill(ann)
        ann.client.latency = 0.02
        deleting = asyncio.create_task(ann.queue.delete_topic(TOPIC, force=force))
        count = itertools.count()

        def interrupt(kind: Kind, _: str) -> None:
            if kind == "PUT" or next(count) != number:  # where nothing can be written, nothing can be restored
                return
            if how == "denied":
                raise StoreError("Denied.")
            deleting.cancel()
            if how == "cancelled twice":
                asyncio.get_running_loop().call_later(0, deleting.cancel)

        ann.client.meanwhile = interrupt
        await world.later(0.5)
        if not force:  # a publisher that looked for the topic before it was deleted is as late as that
            world.fill(["{}"])
        [outcome] = await asyncio.gather(deleting, return_exceptions=True)
        ann.client.meanwhile = None
        left = everything(world)
        if any("/messages/" in key for key in left):
            assert MARKER in left
            assert (await ann.queue.topic(TOPIC)).settings.max_deliveries == 3
        return not isinstance(outcome, TopicNotEmptyError | Removed)


@pytest.mark.parametrize("force", [True, False], ids=["force", "empty"])
async def test_a_deletion_that_fails_forgets_nothing_that_has_ended(*, force: bool) -> None:
    """At whichever request it fails: the owner of a claim id gets no second batch, and a done write is not repeated."""
    number = 0
    while await _fails_at(number, force=force):
        number += 1
    assert number > 5


async def _fails_at(number: int, *, force: bool) -> bool:
    """Let a deletion fail at this request, if that is before it removes records; return whether it was."""
    async with World() as world:
        ann = await world.process()
        queue = ann.queue
        await queue.publish(TOPIC, numbered(1))
        await queue.ack(await queue.claim(TOPIC, "c", claim_id="run"))
        parts = [await queue.stage(TOPIC, "write", 0, numbered(1))]
        await queue.commit_write(TOPIC, "write", parts)
        await queue.ack(await queue.claim(TOPIC, "c", claim_id="of-the-write"))
        await queue.stage(TOPIC, "other", 0, numbered(1))
        await queue.sweep(TOPIC)  # which leaves its note
        if force:
            await queue.publish(TOPIC, numbered(1))
        count = itertools.count()

        def fail(kind: Kind, key: str) -> None:
            if kind == "PUT" or next(count) != number or (kind == "DELETE" and "/claims/" in key):
                return
            raise StoreError("Denied.")

        ann.client.meanwhile = fail
        [outcome] = await asyncio.gather(queue.delete_topic(TOPIC, force=force), return_exceptions=True)
        ann.client.meanwhile = None
        if isinstance(outcome, Removed):
            return False
        assert MARKER in everything(world)
        await queue.publish(TOPIC, numbered(1))
        assert not await queue.claim(TOPIC, "c", claim_id="run")
        again = [await queue.stage(TOPIC, "write", 0, numbered(1))]
        assert (await queue.commit_write(TOPIC, "write", again)).already
        return True


async def test_a_marker_that_is_being_deleted_is_waited_for(world: World, ann: Process) -> None:
    """A cancellation while the marker's DELETE is under way does not let it land behind the marker's return."""
    landing: list[asyncio.Task[Answer]] = []

    async def land_late(carry_out: CarryOut) -> Answer:
        await world.later(1)
        return await carry_out()

    async def send(request: Request, carry_out: CarryOut) -> Answer:
        if request.call != "delete":
            return await carry_out()
        landing.append(asyncio.create_task(land_late(carry_out)))
        return await asyncio.shield(landing[-1])  # its sender may end: it is under way

    ann.client.hook = send
    deleting = asyncio.create_task(ann.queue.delete_topic(TOPIC, force=True))
    await world.later(0.5)
    assert ann.client.requests[-1] == ("DELETE", MARKER)
    deleting.cancel()
    [outcome] = await asyncio.gather(deleting, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError)
    await asyncio.gather(*landing)
    assert everything(world) == [MARKER]


async def test_a_marker_that_cannot_be_restored_is_told(
    world: World, ann: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in the log says what is left, and how to have it back."""
    await fill(ann)
    for effect in ("denied", "lost"):
        ann.client.inject("denied", "DELETE", "*/leases/*")
        ann.client.inject(effect, "PUT", MARKER)  # type: ignore[arg-type]
        with pytest.raises(StoreError, match="deleted in part only"):
            await ann.queue.delete_topic(TOPIC, force=True)
        ann.client.heal()
        world.topic()
    told = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 2
    advice = "create_topic('orders') makes its remaining messages available again"
    assert all(advice in record.getMessage() for record in told)

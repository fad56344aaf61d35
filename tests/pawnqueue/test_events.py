"""Events: what an operator reads in the log, and what ``on_event`` gets."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import MemoryStore, PawnQueue, SyncPawnQueue, events
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered
from tests.support.claims import late

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = "a payload that is nobody's business"


async def opened(world: World, listener: Callable[[events.Event], None]) -> PawnQueue:
    """Open the queue of the world's bucket in a process that gets its events."""
    settings = {"s3": {"bucket_name": "virtual"}, "registry": {"register_consumers": False}}
    return await PawnQueue.open(settings, store=world.bucket, clock=world.clock, on_event=listener)


async def test_a_messages_life_is_told(world: World) -> None:
    """Each step once, with the ids that tie them together."""
    told: list[events.Event] = []
    async with await opened(world, told.append) as queue:
        await queue.create_topic("more")
        ids = await queue.publish(TOPIC, numbered(4))
        claim = await queue.claim(TOPIC, "billing", max_messages=4)
        await queue.renew(claim)
        await queue.ack(claim, ids[:1])
        await queue.nack(claim, ids[1], reason="bad")
        await queue.nack(claim, ids[2], requeue=True)
    kinds = [type(one) for one in told]
    assert kinds == [
        events.QueueOpened,
        events.TopicChanged,
        events.Published,
        events.Claimed,
        events.Renewed,
        events.Settled,
        events.MessageBuried,
        events.Settled,
        events.Settled,
        events.GivenBack,
        events.QueueClosed,
    ]
    of = {type(one): one for one in reversed(told)}
    stem = claim.stem
    assert of[events.Published] == events.Published(topic=TOPIC, ids=tuple(ids))
    assert of[events.Claimed] == events.Claimed(topic=TOPIC, claim=stem, ids=tuple(ids), consumer="billing")
    assert of[events.Settled] == events.Settled(topic=TOPIC, claim=stem, acked=(ids[0],))
    assert of[events.MessageBuried] == events.MessageBuried(
        topic=TOPIC, message=ids[1], reason="bad", deliveries=1, claim=stem
    )
    assert of[events.QueueClosed] == events.QueueClosed(claims=1, messages=1, kept=False, complete=True)


async def test_a_loss_and_a_take_over_are_told_to_both(world: World) -> None:
    """A take-over reports whose claim it was; the former holder reports the loss, once."""
    mine: list[events.Event] = []
    theirs: list[events.Event] = []
    ann, bob = await opened(world, mine.append), await opened(world, theirs.append)
    await ann.publish(TOPIC, numbered(2))
    claim = await ann.claim(TOPIC, "slow")
    await world.later()
    taken = await bob.claim(TOPIC, "quick")
    assert [one for one in theirs if isinstance(one, events.TakenOver)] == [
        events.TakenOver(topic=TOPIC, claim=claim.stem, consumer="slow", messages=2)
    ]
    result = await late(ann.ack(claim))
    assert [one.lost for one in mine if isinstance(one, events.Settled)] == [tuple(result.lost)]
    for _ in range(2):
        with pytest.raises(Exception, match="is lost"):
            await ann.renew(claim)
    assert len([one for one in mine if isinstance(one, events.ClaimLost)]) == 1
    await bob.ack(taken)
    for queue in (ann, bob):
        await queue.aclose()


async def test_the_janitor_redrives_and_purges_in_the_open(world: World) -> None:
    """A sweep tells its numbers, a redrive and a purge what they did."""
    told: list[events.Event] = []
    async with await opened(world, told.append) as queue:
        await queue.publish(TOPIC, numbered(2))
        await queue.nack(await queue.claim(TOPIC, "c"))
        await world.later(5)
        await queue.redrive(TOPIC)
        await queue.sweep(TOPIC)
        await queue.purge(TOPIC)
    said = [one.sentence() for one in told if one.subject in {"dead_letters", "janitor", "topics"}]
    assert said[2:] == [
        "Redrove 2 dead letters of topic 'orders'; 0 were skipped, and 0 failed.",
        "Swept topic 'orders': nothing to do.",
        "Topic 'orders' was purged.",
    ]


async def test_what_a_listener_raises_changes_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, with its trace the first time, and the queue goes on."""

    def broken(event: events.Event) -> None:
        raise ZeroDivisionError(type(event).__name__)

    async with await opened(world, broken) as queue:
        ids = await queue.publish(TOPIC, numbered(1))
        assert (await queue.ack(await queue.claim(TOPIC, "c"))).acked == ids
    failures = [record for record in caplog.records if record.exc_info]
    assert [record.getMessage() for record in failures] == [
        "on_event failed on QueueOpened: ZeroDivisionError: QueueOpened"
    ]
    assert "on_event failed on Published: ZeroDivisionError: Published" in caplog.text


async def test_the_log_can_be_followed(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """At INFO: opened, buried, taken over, given back; at DEBUG each step, with ids. Payloads are in neither."""
    caplog.set_level(logging.DEBUG, logger="pawnqueue")
    async with await opened(world, lambda _: None) as queue:
        [one] = await queue.publish(TOPIC, [{"text": SECRET}])
        claim = await queue.claim(TOPIC, "c")
        await queue.nack(claim, reason="bad")
    lines = {(record.name, record.levelno): record.getMessage() for record in caplog.records}
    assert "Opened the queue in bucket 'virtual', with conditional_write." in caplog.text
    assert one in lines["pawnqueue.publish", logging.DEBUG]
    assert claim.stem in caplog.text
    assert f"Message {one} of topic 'orders' is a dead letter, after 1 delivery: 'bad'" in caplog.text
    assert lines["pawnqueue.dead_letters", logging.INFO]
    assert SECRET not in caplog.text


def test_every_event_has_a_sentence_and_a_subject() -> None:
    """Each is one line, says which topic it concerns, and its logger is below ``pawnqueue``."""
    samples: dict[str, Any] = {
        "topic": TOPIC, "bucket": "b", "strategy": "s", "claims": 2, "messages": 3, "kept": True, "complete": False,
        "what": "created", "ids": ("a",) * 9, "claim": "c.0", "consumer": "c", "seconds": 3.0, "why": "it is so",
        "message": "m", "reason": "r", "deliveries": 2, "moved": 1, "skipped": 2, "failed": 3, "dry_run": True,
        "counts": (("closed_claims", 2),), "failures": 1, "operation": "GetObject", "write_id": "w", "count": 2,
        "rows": "3-5", "looked_at": 7, "removal": "then", "limits": "keeps the latest 3",
        "given_back": ("a",) * 9, "left": ("c.0",), "error": "ValueError", "where": "work.py:7", "delay": 2.5,
        "pending": 4, "max_pending": 4, "waits": True,
    }  # fmt: skip
    kinds = [one for one in vars(events).values() if isinstance(one, type) and issubclass(one, events.Event)]
    public = [kind for kind in kinds if kind is not events.Event and not kind.__name__.startswith("_")]
    assert len(public) > 10
    for kind in public:
        fields = kind.__dataclass_fields__
        event = kind(**{name: value for name, value in samples.items() if name in fields})
        assert "\n" not in event.sentence()
        assert not set("{}") & set(event.sentence())
        assert events.logger_of(event.subject).name == f"pawnqueue.{event.subject}"
        if "topic" in fields:
            assert repr(TOPIC) in event.sentence()


def test_the_synchronous_queue_tells_too() -> None:
    """In the thread of its loop; a repeated request is an event as well."""
    told: list[events.Event] = []
    with SyncPawnQueue.open(store=MemoryStore(), on_event=told.append) as queue:
        queue.create_topic(TOPIC)
    assert [type(one) for one in told] == [events.QueueOpened, events.TopicChanged, events.QueueClosed]


async def test_a_request_that_is_sent_again_is_told(world: World, ann: Process) -> None:
    """With its operation and why, at DEBUG: it is no news by itself."""
    told: list[events.Event] = []
    process = await world.process()
    process.queue._context.events._listener = told.append
    process.client.inject("lost", "GET", "*/messages/*", times=1)
    await ann.queue.publish(TOPIC, numbered(1))
    assert len(await process.queue.peek(TOPIC)) == 1
    assert [one.operation for one in told if isinstance(one, events.RequestRepeated)] == ["GET"]


@pytest.mark.parametrize("kind", ["a lambda", "an object"])
async def test_a_coroutine_that_nobody_awaits_is_told_once(
    world: World, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """What returns a coroutine is no listener, and only shows when it is called."""

    async def heard(event: events.Event) -> None:
        raise AssertionError(event)

    class Hearer:
        async def __call__(self, event: events.Event) -> None:
            raise AssertionError(event)

    listener: Any = Hearer() if kind == "an object" else functools.partial(lambda tell, told: tell(told), heard)
    async with await opened(world, listener) as queue:
        await queue.publish(TOPIC, numbered(2))
    assert caplog.text.count("on_event returns a coroutine, which nobody awaits") == 1


async def test_a_cancellation_from_a_listener_cancels_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """It concerns the listener alone."""

    def cancelled(_: events.Event) -> None:
        raise asyncio.CancelledError

    async with await opened(world, cancelled) as queue:
        assert len(await queue.publish(TOPIC, numbered(2))) == 2
    assert "on_event failed on Published: CancelledError" in caplog.text

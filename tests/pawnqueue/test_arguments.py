"""Wrong arguments: each raises one sentence that says what to pass instead, and nothing is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pawnqueue import (
    Claim,
    InvalidArgumentError,
    InvalidPayloadError,
    InvalidTopicError,
    MemoryStore,
    NewMessage,
    PawnQueue,
    PawnQueueError,
    SyncPawnQueue,
)
from tests.pawnqueue.virtual import TOPIC, Process, numbered

#: What somebody calls, and what answers it.
MISUSES: dict[str, tuple[Callable[[Any, Claim], Awaitable[object]], str]] = {
    "ack(message)": (lambda q, c: q.ack(c[0]), r"ack takes a claim first.* given a Message: ack\(claim, message\)"),
    "ack(None)": (lambda q, _: q.ack(None), "ack takes a claim first, as claim\\(\\) or attach\\(\\) gave it"),
    "ack('id')": (lambda q, c: q.ack(c.ids[0]), "ack takes a claim first"),
    "ack(claim, 5)": (lambda q, c: q.ack(c, 5), r"ack takes messages of its claim, or their ids, .*not 5: ack\(claim"),
    "ack(claim, [None])": (lambda q, c: q.ack(c, [None]), "ack takes messages of its claim, or their ids.* not None"),
    "ack(claim, claim)": (lambda q, c: q.ack(c, c), "ack takes messages of its claim"),
    "nack(None)": (lambda q, _: q.nack(None), "nack takes a claim first"),
    "nack(requeue='yes')": (lambda q, c: q.nack(c, requeue="yes"), "requeue is True or False, not 'yes'"),
    "nack(delay=5)": (lambda q, c: q.nack(c, delay=5), "delay is for messages that are given back: call requeue"),
    "nack(delay=eleven years)": (lambda q, c: q.nack(c, requeue=True, delay=4e8), "from 0 to ten years, not 40000000"),
    "nack(delay=NaN)": (lambda q, c: q.nack(c, requeue=True, delay=float("nan")), "delay is a number of seconds"),
    "requeue(None)": (lambda q, _: q.requeue(None), "requeue takes a claim first"),
    "requeue(delay=-1)": (lambda q, c: q.requeue(c, delay=-1), "delay is a number of seconds from 0 to ten years"),
    "bury(reason='')": (lambda q, c: q.bury(c, reason=" "), "bury takes a reason"),
    "settle(bury=5)": (lambda q, c: q.settle(c, bury=5), "settle takes bury as a dict"),
    "settle(bury={5: why})": (lambda q, c: q.settle(c, bury={5: "why"}), "settle takes bury as a dict.* not 5: settle"),
    "ack(claim, another claim's)": (
        lambda q, c: q.ack(c, ["0f8fad5b-d9cb-469f-a165-70867728950e"]),
        "Claim .* has no message '0f8fad5b-.*', so nothing was settled",
    ),
    "release(reason=5)": (lambda q, _: q.release(TOPIC, "a", "c", reason=5), r"reason is a text, not 5: use str"),
    "release(claim_id='a/b')": (lambda q, _: q.release(TOPIC, "a/b", "c"), "'a/b' is not a valid claim id"),
    "release(owner='')": (lambda q, _: q.release(TOPIC, "a", ""), "owner is a text of 1 to 1,024 characters, not ''"),
    "release(owner=None)": (lambda q, _: q.release(TOPIC, "a", None), "owner is a text of 1 to 1,024 characters"),
    "release(owner=[5])": (lambda q, _: q.release(TOPIC, "a", [5]), "owner is a text of 1 to 1,024 characters, not 5"),
    "nack(reason=5)": (lambda q, c: q.nack(c, reason=5), r"reason is a text, not 5: use str"),
    "nack(error=ValueError())": (lambda q, c: q.nack(c, error=ValueError("x")), r"error is a text, not ValueError"),
    "renew(None)": (lambda q, _: q.renew(None), "renew takes a claim first"),
    "renew(ttl=1)": (lambda q, c: q.renew(c, ttl=1), r"ttl=1: pass a number of seconds above claims\.margin_seconds=2"),
    "leave(None)": (lambda q, _: q.leave(None), "leave takes a claim first"),
    "publish(t, dict)": (
        lambda q, _: q.publish(TOPIC, {"a": 1}),
        r"this is one of them: publish\('orders', \[payload\]",
    ),
    "publish(t, None)": (lambda q, _: q.publish(TOPIC, None), "this is a NoneType"),
    "publish(t, 'text')": (lambda q, _: q.publish(TOPIC, "text"), "this is a str"),
    "publish(t, NewMessage)": (lambda q, _: q.publish(TOPIC, NewMessage({})), "this is one of them"),
    "publish(t, [5])": (lambda q, _: q.publish(TOPIC, [5]), r"payloads\[0\] for topic 'orders' is an int"),
    "publish(headers=5)": (lambda q, _: q.publish(TOPIC, [{}], headers=5), "headers for topic 'orders' is an int"),
    "publish(its own headers)": (
        lambda q, _: q.publish(TOPIC, [{}, NewMessage({}, headers={"a": 5})]),
        r"payloads\[1\]\.headers\['a'\] for topic 'orders' is an int",
    ),
    "publish(create='yes')": (lambda q, _: q.publish(TOPIC, [{}], create="yes"), "create is True or False"),
    "publish(producer='')": (lambda q, _: q.publish(TOPIC, [{}], producer=""), "name of a producer or consumer"),
    "claim(consumer='')": (lambda q, _: q.claim(TOPIC, ""), "consumer is a text of 1 to 1,024 characters"),
    "claim(owner='')": (lambda q, _: q.claim(TOPIC, "c", owner=""), "owner is a text of 1 to 1,024 characters"),
    "claim(claim_id=5)": (lambda q, _: q.claim(TOPIC, "c", claim_id=5), "5 is not a valid claim id: use a text"),
    "claim(ttl=0)": (lambda q, _: q.claim(TOPIC, "c", ttl=0), "ttl=0: pass a number of seconds above"),
    "claim(session_ttl=-1)": (lambda q, _: q.claim(TOPIC, "c", session_ttl=-1), "session_ttl=-1: pass a number"),
    "claim(session_ttl>ttl)": (lambda q, _: q.claim(TOPIC, "c", ttl=9, session_ttl=10), "session_ttl=10 is more than"),
    "claim(wait=-1)": (lambda q, _: q.claim(TOPIC, "c", wait=-1), "wait is a number of seconds from 0"),
    "claim(max_messages=0)": (
        lambda q, _: q.claim(TOPIC, "c", max_messages=0),
        "max_messages is a whole number from 1",
    ),
    "claim(max_bytes=0)": (lambda q, _: q.claim(TOPIC, "c", max_bytes=0), "max_bytes is a whole number from 1"),
    "attach(None)": (lambda q, _: q.attach(None), "This is not a claim reference.*pass what hand_over"),
    "attach(payloads='no')": (
        lambda q, c: q.attach({"topic": TOPIC, "claim_id": c.claim_id, "generation": 0, "session": "s"}, payloads="no"),
        "payloads is True or False, not 'no'",
    ),
    "messages(None)": (lambda q, _: q.messages(None), "This is not a claim reference.*pass what hand_over"),
    "known_claims(t, 5)": (
        lambda q, _: q.known_claims(TOPIC, 5),
        "known_claims takes ids of claims, one or many, not 5",
    ),
    "known_claims(t, ['a/b'])": (
        lambda q, _: q.known_claims(TOPIC, ["a/b"]),
        "'a/b' is not a valid claim id: use a text",
    ),
    "backlog(t, 0)": (lambda q, _: q.backlog(TOPIC, 0), "at_least is a whole number from 1, not 0"),
    "find(t, '../x')": (lambda q, _: q.find(TOPIC, "../x"), r"'\.\./x' is not a message id: pass the UUID"),
    "find(t, None)": (lambda q, _: q.find(TOPIC, None), "None is not a message id"),
    "redrive(t, unknown)": (
        lambda q, _: q.redrive(TOPIC, ["0f8fad5b-d9cb-469f-a165-70867728950e"]),
        r"Topic 'orders' has no dead letter 0f8fad5b-.*: nothing was redriven\. dead_letters\(\) lists",
    ),
    "redrive(t, 5)": (lambda q, _: q.redrive(TOPIC, 5), "redrive takes ids of messages, one or many, not 5"),
    "dead_letters(after='x')": (
        lambda q, _: q.dead_letters(TOPIC, after="x"),
        r"after='x' is not a place .*pass the \.next",
    ),
    "purge(messages='all')": (lambda q, _: q.purge(TOPIC, messages="all"), "messages is True or False, not 'all'"),
    "delete_topic(force=1)": (lambda q, _: q.delete_topic(TOPIC, force=1), "force is True or False, not 1"),
    "sweep(ask='x')": (lambda q, _: q.sweep(TOPIC, ask="x"), "ask is a function of one argument, an open claim"),
    "peek(t, 0)": (lambda q, _: q.peek(TOPIC, 0), "max_messages is a whole number from 1, not 0"),
    "a topic '../x'": (lambda q, _: q.claim("../x", "c"), r"'\.\./x' \(4 characters\) is not a valid topic name"),
    "register_consumer(None)": (lambda q, _: q.register_consumer(None), "not a valid name of a producer or consumer"),
}


@pytest.mark.parametrize("misuse", MISUSES)
async def test_a_misuse_is_told_in_a_sentence(ann: Process, misuse: str) -> None:
    """One error of ours, which is a ValueError too, before any request is sent; and the claim is as it was."""
    call, sentence = MISUSES[misuse]
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=2)
    with ann.client.counting() as requests, pytest.raises(InvalidArgumentError, match=sentence) as told:
        await call(ann.queue, claim)
    assert isinstance(told.value, ValueError)
    assert str(told.value).endswith(".")
    # An id that might be somewhere has to be looked for, in a topic that may have packs.
    assert sum(requests.values()) == (2 if "has no dead letter" in str(told.value) else 0)
    assert (await ann.queue.ack(claim)).complete


@pytest.mark.parametrize("kind", [InvalidTopicError, InvalidPayloadError])
def test_kinds_of_wrong_arguments_are_wrong_arguments(kind: type[PawnQueueError]) -> None:
    """A handler of the one catches the others."""
    assert issubclass(kind, InvalidArgumentError)


@pytest.mark.parametrize("interval", ["x", -1, 0, 1e9])
def test_keep_alive_refuses_before_the_block(interval: Any) -> None:  # noqa: ANN401 - anything
    """What is no interval, no callback and no claim."""
    with SyncPawnQueue.open(store=MemoryStore()) as queue:
        queue.create_topic(TOPIC)
        queue.publish(TOPIC, numbered(1))
        claim = queue.claim(TOPIC, "c")
        with pytest.raises(InvalidArgumentError, match="interval="), queue.keep_alive(claim, interval=interval):
            pass
        with pytest.raises(InvalidArgumentError, match="on_lost is a function"), queue.keep_alive(claim, on_lost="x"):  # type: ignore[arg-type]
            pass
        with pytest.raises(InvalidArgumentError, match="keep_alive takes a claim first"), queue.keep_alive(None):  # type: ignore[arg-type]
            pass


async def test_messages_are_settled_as_they_were_given() -> None:
    """By themselves, by their ids, one or many, in any mixture; those that were not meant stay in the claim."""
    async with PawnQueue.open(store=MemoryStore()) as queue:
        await queue.create_topic(TOPIC)
        await queue.publish(TOPIC, numbered(6))
        claim = await queue.claim(TOPIC, "c")
        assert (await queue.ack(claim, claim[0])).acked == claim.ids[:1]
        assert (await queue.ack(claim, claim[1:3])).acked == claim.ids[1:3]
        assert (await queue.nack(claim, [claim[3], claim.ids[4]])).buried == claim.ids[3:5]
        assert (await queue.ack(claim, claim.ids[5])).acked == claim.ids[5:]
        assert (await queue.ack(claim, [])).complete


def test_a_queue_belongs_to_its_loop() -> None:
    """Used, or closed, from another one it says so; its own loop closes it."""
    loop = asyncio.new_event_loop()

    async def opened() -> PawnQueue:
        return await PawnQueue.open(store=MemoryStore())

    queue = loop.run_until_complete(opened())
    try:
        for call in (queue.list_topics, queue.aclose, queue.probe):
            with pytest.raises(InvalidArgumentError, match="opened in another event loop"):
                asyncio.run(call())  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="opened in another event loop"):
            queue.keep_alive(None)  # type: ignore[arg-type]
        assert not queue.closed
    finally:
        loop.run_until_complete(queue.aclose())
        loop.close()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"store": MemoryStore}, r"is not a store: pass an object such as MemoryStore\(\)"),
        ({"store": 5}, "store=5 is not a store"),
        ({"store": MemoryStore(), "on_event": 5}, "on_event is a function of one argument"),
        ({"store": MemoryStore(), "on_event": asyncio.sleep}, "put the event into an asyncio.Queue"),
    ],
)
async def test_what_nothing_can_be_opened_with(wrong: dict[str, Any], sentence: str) -> None:
    """Told before anything is asked of the store."""
    with pytest.raises(InvalidArgumentError, match=sentence):
        await PawnQueue.open(**wrong)


async def test_with_without_async_is_told_in_a_sentence() -> None:
    """For a queue that is about to be opened, and for one that is: it stays open, as nothing was done."""
    opening: Any = PawnQueue.open(store=MemoryStore())
    async with opening as opened:
        for misused in (opening, opened):
            said = r"write `async with PawnQueue\.open.*or `with SyncPawnQueue\.open"
            with pytest.raises(TypeError, match=said), misused:
                pytest.fail("it was entered")
        assert not opened.closed


async def test_both_queues_say_which_they_are() -> None:
    """Their bucket, their strategy, and whether they are closed; no secret."""
    settings = {"s3": {"bucket_name": "queues", "aws_access_key_id": "AKIAKEY", "aws_secret_access_key": "hush"}}
    queue = await PawnQueue.open(settings, store=MemoryStore())
    assert repr(queue) == "<PawnQueue 'queues': conditional_write>"
    await queue.aclose()
    assert repr(queue) == "<PawnQueue 'queues': closed>"
    with SyncPawnQueue.open(settings, store=MemoryStore()) as twin:
        assert repr(twin) == "<SyncPawnQueue 'queues': conditional_write>"


PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "misuse.md"


async def test_the_page_has_what_is_said(ann: Process) -> None:
    """Each misuse is in the table of docs/reference/misuse.md, with the sentence that answers it."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=2)
    rows = []
    for misuse, (call, _) in MISUSES.items():
        with pytest.raises(InvalidArgumentError) as told:
            await call(ann.queue, claim)
        rows.append(f"| `{misuse}` | {told.value} |")
    assert [line for line in PAGE.read_text().splitlines() if line.startswith("| `")] == rows

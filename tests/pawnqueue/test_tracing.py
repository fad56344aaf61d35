"""Spans of OpenTelemetry: which ones a queue makes, how they belong together, and what is in them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.trace import SpanKind, StatusCode

from pawnqueue import (
    BuryMessage,
    HandedMessage,
    InvalidArgumentError,
    LeaseLostError,
    MemoryStore,
    Message,
    NewMessage,
    PawnQueue,
    PublishError,
    RequeueMessage,
    SyncPawnQueue,
    TopicNotFoundError,
)
from pawnqueue.publish.payload import MAX_HEADER_BYTES
from pawnqueue.tracing import MAX_LINKS, Tracing
from tests.pawnqueue.virtual import TOPIC, Client, numbered
from tests.support.claims import late

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Span

    from tests.pawnqueue.virtual import World

FOREIGN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SETTINGS = {"s3": {"bucket_name": "virtual"}, "registry": {"register_consumers": False}}
SECRET = "a payload that is nobody's business"


class Spans:
    """What was traced."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracing = Tracing(self.provider)
        self.tracer = self.provider.get_tracer("test")

    def all(self) -> list[ReadableSpan]:
        """Return all that have ended."""
        return list(self._kept.get_finished_spans())

    def names(self) -> list[str]:
        """Return their names."""
        return [span.name for span in self.all()]

    def named(self, name: str) -> list[ReadableSpan]:
        """Return those with a name."""
        return [span for span in self.all() if span.name == name]

    def only(self, name: str) -> ReadableSpan:
        """Return the one with a name."""
        [span] = self.named(name)
        return span


@pytest.fixture
def spans() -> Iterator[Spans]:
    """What is traced in a test."""
    made = Spans()
    yield made
    made.provider.shutdown()


@pytest.fixture
async def queue(spans: Spans) -> AsyncIterator[PawnQueue]:
    """A traced queue with a topic."""
    async with PawnQueue.open(store=MemoryStore(), tracing=spans.tracing) as queue:
        await queue.create_topic(TOPIC)
        yield queue


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Return the attributes of a span."""
    return dict(span.attributes or {})


def header(context: trace.SpanContext) -> str:
    """Return a context as W3C Trace Context writes it."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def carried(span: ReadableSpan) -> str:
    """Return the header that carries a span's context."""
    assert span.context is not None
    return header(span.context)


def linked(span: ReadableSpan) -> list[str]:
    """Return the contexts that a span links to, as headers."""
    return [header(link.context) for link in span.links]


def parent(span: ReadableSpan) -> int | None:
    """Return the id of a span's parent."""
    return None if span.parent is None else span.parent.span_id


async def listen_to(queue: PawnQueue, handler: Any, count: int = 1, **more: Any) -> None:  # noqa: ANN401 - any function
    """Listen until the handler was called this often and what it did is settled."""
    seen = 0

    async def handle(message: Message) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            asyncio.get_running_loop().call_soon(lambda: draining.append(asyncio.ensure_future(queue.drain())))
        await handler(message)

    draining: list[asyncio.Future[Any]] = []
    await queue.listen(TOPIC, handle, consumer="billing", handle_signals=False, **more)
    await asyncio.gather(*draining)


async def nothing(_message: Message) -> None:
    """Handle a message that needs no work."""


# --- publishing ---


async def test_a_message_carries_the_context_of_its_publication(queue: PawnQueue, spans: Spans) -> None:
    """A call of publish is a span of kind PRODUCER, a child of the caller's, and each message has its context."""
    with spans.tracer.start_as_current_span("request") as request:
        [message_id] = await queue.publish(TOPIC, [{"n": 0}], producer="shop", headers={"tenant": "blue"})

    span = spans.only(f"publish {TOPIC}")
    assert span.kind is SpanKind.PRODUCER
    assert parent(span) == request.get_span_context().span_id
    assert attributes(span) == {
        "messaging.system": "pawnqueue",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": TOPIC,
        "messaging.client.id": "shop",
        "messaging.message.id": message_id,
    }
    [message] = await queue.claim(TOPIC, "billing")
    assert message.headers == {"tenant": "blue", "traceparent": carried(span)}


@pytest.mark.parametrize("pack", [True, False])
async def test_all_messages_of_a_call_have_its_context(queue: PawnQueue, spans: Spans, *, pack: bool) -> None:
    """Single messages as well as those of a pack."""
    await queue.publish(TOPIC, numbered(3), pack=pack)

    span = spans.only(f"publish {TOPIC}")
    assert attributes(span)["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in attributes(span)
    claim = await queue.claim(TOPIC, "billing", max_messages=3)
    assert [message.headers for message in claim] == [{"traceparent": carried(span)}] * 3


async def test_calls_that_share_a_pack_have_a_span_each(queue: PawnQueue, spans: Spans) -> None:
    """A group commit stores messages of several calls in one object; each message has its own call's context."""
    await asyncio.gather(*(queue.publish(TOPIC, [{"n": n}]) for n in range(20)))

    claim = await queue.claim(TOPIC, "billing", max_messages=20)
    by_id = {attributes(span)["messaging.message.id"]: span for span in spans.named(f"publish {TOPIC}")}
    assert len(claim) == len(by_id) == 20
    assert {message.id: message.headers["traceparent"] for message in claim} == {
        message_id: carried(span) for message_id, span in by_id.items()
    }


async def test_deduplicated_messages_carry_a_context_too(queue: PawnQueue, spans: Spans) -> None:
    """The message that is stored has the context of the call that stored it."""
    for _ in range(2):
        await queue.publish(TOPIC, [{"n": 0}], dedup_key="once")

    first, second = spans.named(f"publish {TOPIC}")
    [message] = await queue.claim(TOPIC, "billing")
    assert message.headers == {"traceparent": carried(first)}
    assert attributes(first)["messaging.message.id"] == attributes(second)["messaging.message.id"] == message.id


async def test_a_context_of_the_callers_own_is_kept(queue: PawnQueue, spans: Spans) -> None:
    """The span links to it, and is of kind CLIENT if no message has the span's own context."""
    own = {"traceparent": FOREIGN, "tracestate": "shop=1"}
    await queue.publish(TOPIC, [{"n": 0}], headers=own)
    await queue.publish(TOPIC, [NewMessage({"n": 1}, headers=own), {"n": 2}])

    alone, mixed = spans.named(f"publish {TOPIC}")
    assert (alone.kind, linked(alone)) == (SpanKind.CLIENT, [FOREIGN])
    assert (mixed.kind, linked(mixed)) == (SpanKind.PRODUCER, [FOREIGN])
    claim = await queue.claim(TOPIC, "billing", max_messages=3)
    assert [message.headers for message in claim] == [own, own, {"traceparent": carried(mixed)}]


async def test_a_tracestate_is_handed_on(queue: PawnQueue, spans: Spans) -> None:
    """What a vendor adds to a trace comes with it."""
    from_outside = trace.NonRecordingSpan(
        trace.SpanContext(
            1, 2, is_remote=True, trace_flags=trace.TraceFlags(1), trace_state=trace.TraceState([("a", "b")])
        )
    )
    with trace.use_span(from_outside):
        await queue.publish(TOPIC, [{"n": 0}])

    [message] = await queue.claim(TOPIC, "billing")
    assert message.headers["tracestate"] == "a=b"
    assert spans.only(f"claim {TOPIC}").links[0].context.trace_state.to_header() == "a=b"


async def test_a_trace_that_is_not_sampled_is_handed_on_as_such() -> None:
    """So that consumers do not sample it either."""
    tracing = Tracing(TracerProvider(sampler=ALWAYS_OFF))
    async with PawnQueue.open(store=MemoryStore(), tracing=tracing) as queue:
        await queue.create_topic(TOPIC)
        await queue.publish(TOPIC, [{"n": 0}])
        [message] = await queue.claim(TOPIC, "billing")
        *_, flags = message.headers["traceparent"].split("-")
        assert not int(flags, 16) & trace.TraceFlags.SAMPLED


async def test_headers_that_are_full_get_no_context(queue: PawnQueue) -> None:
    """A message that could be published without tracing can be published with it."""
    full = {"x": "y" * (MAX_HEADER_BYTES - 20)}
    await queue.publish(TOPIC, [{"n": 0}], headers=full)

    [message] = await queue.claim(TOPIC, "billing")
    assert message.headers == full


async def test_a_publication_that_fails_is_an_error(queue: PawnQueue, spans: Spans) -> None:
    """The span names the exception's class, and not its text."""
    with pytest.raises(TopicNotFoundError):
        await queue.publish("absent", [{"n": 0}])

    span = spans.only("publish absent")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "pawnqueue.errors.TopicNotFoundError"
    assert (span.status.description, span.events) == (None, ())


async def test_publishing_nothing_is_not_traced(queue: PawnQueue, spans: Spans) -> None:
    """There is no message that a span could belong to."""
    await queue.publish(TOPIC, [])
    assert spans.all() == []


# --- claiming ---


@pytest.mark.parametrize("pack", [True, False])
async def test_a_claim_links_to_its_messages(queue: PawnQueue, spans: Spans, *, pack: bool) -> None:
    """It is of kind CLIENT, and has a link for each message that has a context."""
    ids = [*await queue.publish(TOPIC, numbered(2), pack=pack), *await queue.publish(TOPIC, numbered(1), pack=pack)]
    with spans.tracer.start_as_current_span("work") as work:
        claim = await queue.claim(TOPIC, "billing", max_messages=10)

    first, second = (carried(span) for span in spans.named(f"publish {TOPIC}"))
    span = spans.only(f"claim {TOPIC}")
    assert claim.ids == ids
    assert span.kind is SpanKind.CLIENT
    assert parent(span) == work.get_span_context().span_id
    assert linked(span) == [first, first, second]
    assert attributes(span) == {
        "messaging.system": "pawnqueue",
        "messaging.operation.name": "claim",
        "messaging.operation.type": "receive",
        "messaging.destination.name": TOPIC,
        "messaging.consumer.group.name": "billing",
        "messaging.batch.message_count": 3,
        "pawnqueue.claim": claim.stem,
    }


async def test_the_links_of_a_claim_are_bounded(queue: PawnQueue, spans: Spans) -> None:
    """A claim of many messages links to the first ones."""
    await queue.publish(TOPIC, numbered(MAX_LINKS + 50))
    claim = await queue.claim(TOPIC, "billing", max_messages=1000)

    span = spans.only(f"claim {TOPIC}")
    assert attributes(span)["messaging.batch.message_count"] == len(claim) == MAX_LINKS + 50
    assert len(span.links) == MAX_LINKS


async def test_a_span_of_a_claim_begins_with_its_call(queue: PawnQueue, spans: Spans) -> None:
    """It lasts for as long as the caller has waited."""
    claiming = asyncio.ensure_future(queue.claim(TOPIC, "billing", wait=30))
    await asyncio.sleep(0.05)
    await queue.publish(TOPIC, [{"n": 0}])
    assert await claiming

    claim, publication = spans.only(f"claim {TOPIC}"), spans.only(f"publish {TOPIC}")
    assert claim.start_time is not None
    assert claim.end_time is not None
    assert publication.start_time is not None
    assert claim.start_time < publication.start_time < claim.end_time


async def test_claims_that_find_nothing_make_no_span(queue: PawnQueue, spans: Spans) -> None:
    """As polls would fill the traces."""
    assert not await queue.claim(TOPIC, "billing")
    assert spans.all() == []


async def test_a_claim_that_fails_is_an_error(queue: PawnQueue, spans: Spans) -> None:
    """Of several topics none is named, as none was claimed from."""
    with pytest.raises(TopicNotFoundError):
        await queue.claim([TOPIC, "absent"], "billing")
    assert spans.all() == []  # the arguments were wrong: nothing was claimed

    await queue.publish(TOPIC, [{"n": 0}])
    claim = await queue.claim([TOPIC], "billing")
    await queue.ack(claim)
    with pytest.raises(LeaseLostError):
        await queue.attach(dict(claim.reference.to_dict(), generation=7))
    span = spans.only(f"attach {TOPIC}")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "pawnqueue.errors.LeaseLostError"


async def test_attaching_is_receiving(queue: PawnQueue, spans: Spans) -> None:
    """Of a claim without payloads nothing is linked to, as its messages were not read."""
    await queue.publish(TOPIC, numbered(2))
    claim = await queue.claim(TOPIC, "billing", max_messages=2, claim_id="mine")
    await queue.attach(claim.hand_over(), payloads=False)

    span = spans.only(f"attach {TOPIC}")
    assert attributes(span)["messaging.operation.type"] == "receive"
    assert attributes(span)["messaging.batch.message_count"] == 2
    assert attributes(span)["messaging.consumer.group.name"] == "billing"
    assert linked(span) == []


@pytest.mark.parametrize("value", ["", "x", "00-zz", FOREIGN * 40, "00-" + "0" * 32 + "-" + "0" * 16 + "-00"])
async def test_a_strange_header_is_not_linked_to(queue: PawnQueue, spans: Spans, value: str) -> None:
    """Anyone may write a message."""
    await queue.publish(TOPIC, [{"n": 0}], headers={"traceparent": value, "tracestate": value})
    [message] = await queue.claim(TOPIC, "billing")

    assert message.headers["traceparent"] == value
    assert linked(spans.only(f"claim {TOPIC}")) == []


# --- settling ---


@pytest.mark.parametrize("pack", [True, False])
async def test_each_settlement_is_a_span(queue: PawnQueue, spans: Spans, *, pack: bool) -> None:
    """It is named as the call is, and says how many messages were settled."""
    ids = await queue.publish(TOPIC, numbered(6), pack=pack)
    claim = await queue.claim(TOPIC, "billing", max_messages=6)
    with spans.tracer.start_as_current_span("work") as work:
        await queue.ack(claim, ids[:2])
    await queue.requeue(claim, ids[2], reason=SECRET)
    await queue.bury(claim, ids[3], reason=SECRET)
    await queue.nack(claim, ids[4])
    await queue.settle(claim)

    ack = spans.only(f"ack {TOPIC}")
    assert ack.kind is SpanKind.CLIENT
    assert parent(ack) == work.get_span_context().span_id
    assert attributes(ack) == {
        "messaging.system": "pawnqueue",
        "messaging.operation.name": "ack",
        "messaging.operation.type": "settle",
        "messaging.destination.name": TOPIC,
        "messaging.consumer.group.name": "billing",
        "messaging.batch.message_count": 2,
        "pawnqueue.claim": claim.stem,
    }
    for name, message_id in zip(("requeue", "bury", "nack"), ids[2:5], strict=True):
        assert attributes(spans.only(f"{name} {TOPIC}"))["messaging.message.id"] == message_id
    assert attributes(spans.only(f"settle {TOPIC}"))["messaging.batch.message_count"] == 6  # it tells of all


async def test_a_settlement_that_comes_too_late_is_an_error(world: World, spans: Spans) -> None:
    """It says how many messages were meant."""
    async with PawnQueue.open(SETTINGS, store=world.bucket, clock=world.clock, tracing=spans.tracing) as queue:
        await queue.publish(TOPIC, numbered(2))
        claim = await queue.claim(TOPIC, "billing", max_messages=2)
        other = await world.process()
        await world.later()
        assert len(await other.queue.claim(TOPIC, "other", max_messages=2)) == 2
        await late(queue.ack(claim))

    span = spans.only(f"ack {TOPIC}")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "pawnqueue.errors.LeaseLostError"
    assert attributes(span)["messaging.batch.message_count"] == 2


# --- listening ---


@pytest.mark.parametrize("pack", [True, False])
async def test_a_handler_runs_in_the_trace_of_its_message(queue: PawnQueue, spans: Spans, *, pack: bool) -> None:
    """Its span is a child of the message's context, links to it, and is the current one while the handler runs."""
    current = []

    async def handler(_message: Message) -> None:
        current.append(trace.get_current_span().get_span_context().span_id)

    ids = await queue.publish(TOPIC, numbered(3), pack=pack)
    await listen_to(queue, handler, 3, concurrency=1)

    publication = spans.only(f"publish {TOPIC}")
    handled = spans.named(f"process {TOPIC}")
    assert [attributes(span)["messaging.message.id"] for span in handled] == ids
    assert [span.context.span_id for span in handled if span.context] == current
    for span in handled:
        assert span.kind is SpanKind.CONSUMER
        assert carried(publication) == linked(span)[0]
        assert publication.context is not None
        assert parent(span) == publication.context.span_id
    assert attributes(handled[0]) == {
        "messaging.system": "pawnqueue",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": TOPIC,
        "messaging.consumer.group.name": "billing",
        "messaging.message.id": ids[0],
        "pawnqueue.deliveries": 1,
    }
    settled = spans.named(f"settle {TOPIC}")
    assert sum(attributes(span)["messaging.batch.message_count"] for span in settled) == 3
    assert all(attributes(span)["messaging.operation.type"] == "settle" for span in settled)
    assert [attributes(span)["messaging.operation.type"] for span in spans.named(f"claim {TOPIC}")]


async def test_a_worker_that_is_started_in_a_span_stays_in_it(queue: PawnQueue, spans: Spans) -> None:
    """Then the handlers' spans are children of that span, and only link to the messages' contexts."""
    await queue.publish(TOPIC, [{"n": 0}])
    with spans.tracer.start_as_current_span("job") as job:
        await listen_to(queue, nothing)

    span = spans.only(f"process {TOPIC}")
    assert parent(span) == job.get_span_context().span_id
    assert linked(span) == [carried(spans.only(f"publish {TOPIC}"))]


async def test_a_message_without_a_context_begins_a_trace(spans: Spans) -> None:
    """It was published without tracing."""
    store = MemoryStore()
    async with PawnQueue.open(store=store) as plain:
        await plain.create_topic(TOPIC)
        await plain.publish(TOPIC, [{"n": 0}])
    async with PawnQueue.open(store=store, tracing=spans.tracing) as queue:
        await listen_to(queue, nothing)

    span = spans.only(f"process {TOPIC}")
    assert (parent(span), linked(span)) == (None, [])


async def test_what_a_handler_publishes_belongs_to_its_message(queue: PawnQueue, spans: Spans) -> None:
    """So a trace goes on from topic to topic."""
    await queue.create_topic("next")

    async def handler(_message: Message) -> None:
        await queue.publish("next", [{"n": 1}])

    await queue.publish(TOPIC, [{"n": 0}])
    await listen_to(queue, handler)

    first, second = spans.only(f"publish {TOPIC}"), spans.only("publish next")
    handled = spans.only(f"process {TOPIC}")
    assert handled.context is not None
    assert first.context is not None
    assert second.context is not None
    assert parent(second) == handled.context.span_id
    assert first.context.trace_id == second.context.trace_id


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (ValueError(SECRET), "ValueError"),
        (RequeueMessage(reason=SECRET), None),
        (BuryMessage(SECRET), None),
    ],
)
async def test_a_handler_that_fails_is_an_error(
    queue: PawnQueue, spans: Spans, error: Exception, named: str | None
) -> None:
    """What it raises on purpose, to requeue or bury its message, is not."""

    async def handler(_message: Message) -> None:
        raise error

    await queue.publish(TOPIC, [{"n": 0}])
    await listen_to(queue, handler)

    span = spans.only(f"process {TOPIC}")
    assert attributes(span).get("error.type") == named
    assert (span.status.status_code is StatusCode.ERROR) is (named is not None)


async def test_a_handler_whose_claim_is_lost_is_an_error(world: World, spans: Spans) -> None:
    """It was cancelled."""
    async with PawnQueue.open(SETTINGS, store=world.bucket, clock=world.clock, tracing=spans.tracing) as queue:
        begun, cancelled = asyncio.Event(), asyncio.Event()

        async def handler(_message: Message) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        await queue.publish(TOPIC, [{"n": 0}])
        listening = asyncio.ensure_future(queue.listen(TOPIC, handler, consumer="billing", handle_signals=False))
        await begun.wait()
        [held] = queue._drain.workers[0].claims
        world.fence(held)
        await cancelled.wait()
        await queue.drain()
        assert (await listening).lost == 1

    span = spans.only(f"process {TOPIC}")
    assert attributes(span)["error.type"] == "asyncio.exceptions.CancelledError"


# --- threads ---


def test_a_synchronous_queue_takes_part_in_its_callers_trace(spans: Spans) -> None:
    """Its event loop is in another thread, and its spans are children of the caller's all the same."""
    with SyncPawnQueue.open(store=MemoryStore(), tracing=spans.tracing) as queue:
        queue.create_topic(TOPIC)
        with spans.tracer.start_as_current_span("request") as request:
            queue.publish(TOPIC, [{"n": 0}])
            claim = queue.claim(TOPIC, "billing")
            queue.ack(claim)
        queue.publish(TOPIC, [{"n": 1}])

    *inside, after = [span for span in spans.all() if span.name != "request"]
    assert [span.name for span in inside] == [f"publish {TOPIC}", f"claim {TOPIC}", f"ack {TOPIC}"]
    assert {parent(span) for span in inside} == {request.get_span_context().span_id}
    assert parent(after) is None
    assert claim[0].headers["traceparent"] == carried(inside[0])


def test_a_handler_in_a_thread_has_its_span(spans: Spans) -> None:
    """What it publishes there belongs to its message."""
    seen = []
    done = threading.Semaphore(0)
    with SyncPawnQueue.open(store=MemoryStore(), tracing=spans.tracing) as queue:
        queue.create_topic(TOPIC)
        queue.create_topic("next")
        queue.publish(TOPIC, numbered(3))

        def handler(message: HandedMessage) -> None:
            seen.append((message.id, trace.get_current_span().get_span_context().span_id))
            queue.publish("next", [{"after": message.id}])
            done.release()

        listening = threading.Thread(target=lambda: queue.listen(TOPIC, handler, consumer="billing", concurrency=2))
        listening.start()
        for _ in range(3):
            assert done.acquire(timeout=30)
        queue.drain()
        listening.join()

    handled = {attributes(span)["messaging.message.id"]: span for span in spans.named(f"process {TOPIC}")}
    assert {message_id: span.context.span_id for message_id, span in handled.items() if span.context} == dict(seen)
    assert sorted(parent(span) or 0 for span in spans.named("publish next")) == sorted(span_id for _, span_id in seen)


# --- what is not traced, and what must not fail ---


async def test_a_span_tells_nothing_that_is_confidential(queue: PawnQueue, spans: Spans) -> None:
    """No payload, no header of the caller's, no reason and no text of an exception."""

    async def handler(_message: Message) -> None:
        raise ValueError(SECRET)

    await queue.publish(TOPIC, [{"note": SECRET}] * 2, headers={"note": SECRET})
    claim = await queue.claim(TOPIC, "billing", max_messages=1)
    await queue.bury(claim, reason=SECRET, error=SECRET)
    await listen_to(queue, handler)

    assert len(spans.all()) >= 5
    assert [span.name for span in spans.all() if SECRET in span.to_json()] == []


async def test_the_attributes_are_those_of_the_conventions(queue: PawnQueue, spans: Spans) -> None:
    """Each attribute of messaging is one that OpenTelemetry names, and so is each type of an operation."""
    await queue.publish(TOPIC, numbered(2), producer="shop")
    await queue.ack(await queue.claim(TOPIC, "billing", max_messages=1))
    await listen_to(queue, nothing)

    known = {value for name, value in vars(messaging_attributes).items() if name.startswith("MESSAGING_")}
    types = {each.value for each in messaging_attributes.MessagingOperationTypeValues}
    named = {name for span in spans.all() for name in attributes(span)}
    assert named - known == {"pawnqueue.claim", "pawnqueue.deliveries"}
    assert {attributes(span)["messaging.operation.type"] for span in spans.all()} <= types


class Broken(SpanProcessor):
    """An export that fails."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Fail."""
        del span, parent_context
        raise RuntimeError("cannot start")


class BrokenAtTheEnd(SpanProcessor):
    """An export that fails later."""

    def on_end(self, span: ReadableSpan) -> None:
        """Fail."""
        del span
        raise RuntimeError("cannot end")


@pytest.mark.parametrize("processor", [Broken(), BrokenAtTheEnd()])
async def test_tracing_that_fails_changes_nothing(processor: SpanProcessor, caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged, and each call does what it would have done."""
    provider = TracerProvider()
    provider.add_span_processor(processor)
    async with PawnQueue.open(store=MemoryStore(), tracing=Tracing(provider)) as queue:
        await queue.create_topic(TOPIC)
        await queue.publish(TOPIC, numbered(2))
        claim = await queue.claim(TOPIC, "billing", max_messages=1)
        assert (await queue.ack(claim)).acked == claim.ids
        await listen_to(queue, nothing)
        assert (await queue.stats(TOPIC)).pending == 0
    assert "pawnqueue.tracing" in {record.name for record in caplog.records}


async def test_a_claim_is_returned_whatever_tracing_does(
    queue: PawnQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else nobody would have its messages before its time is over."""

    def broken(*_: object) -> None:
        raise RuntimeError("no links")

    await queue.publish(TOPIC, [{"n": 0}])
    monkeypatch.setattr("pawnqueue.tracing._links", broken)
    assert len(await queue.claim(TOPIC, "billing")) == 1
    assert [record.name for record in caplog.records] == ["pawnqueue.tracing"]


async def test_an_outage_is_an_error_of_its_span(world: World, spans: Spans) -> None:
    """Also where a settlement raises nothing, but says that it is not known what became of the messages."""
    client = Client(world.bucket)
    async with PawnQueue.open(SETTINGS, store=client, clock=world.clock, tracing=spans.tracing) as queue:
        await queue.publish(TOPIC, [{"n": 0}])
        claim = await queue.claim(TOPIC, "billing")
        client.inject("denied", "PUT")
        with pytest.raises(PublishError):
            await queue.publish(TOPIC, [{"n": 1}])
        assert (await queue.ack(claim)).unknown == claim.ids
        client.heal()
    assert attributes(spans.named(f"publish {TOPIC}")[1])["error.type"] == "pawnqueue.errors.PublishError"
    assert attributes(spans.only(f"ack {TOPIC}"))["error.type"] == "unknown"


async def test_only_tracing_traces() -> None:
    """Another argument is refused with what to pass instead."""
    with pytest.raises(InvalidArgumentError, match=r"Tracing\(\)"):
        await PawnQueue.open(store=MemoryStore(), tracing=True)  # type: ignore[arg-type]


def test_without_tracing_opentelemetry_is_not_imported() -> None:
    """Neither by importing the queue nor by using it; and messages get no header."""
    program = (
        "import json, sys\n"
        "from pawnqueue import MemoryStore, SyncPawnQueue\n"
        "with SyncPawnQueue.open(store=MemoryStore()) as queue:\n"
        "    queue.create_topic('orders')\n"
        "    queue.publish('orders', [{'n': 0}])\n"
        "    claim = queue.claim('orders', 'billing')\n"
        "    queue.ack(claim)\n"
        "print(json.dumps([sorted(sys.modules), dict(claim[0].headers)]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules, headers = json.loads(done.stdout)
    assert headers == {}
    assert "pawnqueue.spans" in modules
    assert [name for name in modules if name.partition(".")[0] == "opentelemetry" or name == "pawnqueue.tracing"] == []


def test_without_opentelemetry_tracing_says_what_to_install() -> None:
    """An import error names the extra."""
    program = "import sys; sys.modules['opentelemetry'] = None; import pawnqueue.tracing"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'pawnqueue-engine[opentelemetry]'" in done.stderr.splitlines()[-1]

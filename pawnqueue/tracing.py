"""Spans of OpenTelemetry for a queue: ``PawnQueue.open(..., tracing=Tracing())``.

It needs the extra ``pawnqueue-engine[opentelemetry]``. Names, kinds and attributes follow OpenTelemetry's semantic
conventions for messaging. A span has no payload, no header and no text of an exception.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Final

try:
    from opentelemetry import trace
    from opentelemetry.context import Context, get_current
    from opentelemetry.trace import INVALID_SPAN, Link, Span, SpanContext, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as missing:
    raise ImportError(
        "pawnqueue.tracing needs opentelemetry-api: pip install 'pawnqueue-engine[opentelemetry]'"
    ) from missing

from pawnqueue.errors import QueueClosedError, QueueDrainedError
from pawnqueue.listening.outcomes import is_on_purpose
from pawnqueue.spans import C, Held, I, M, N, Spans

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from pawnqueue.domain.settlement import Settlement

logger = logging.getLogger("pawnqueue.tracing")

#: A span links to at most this many messages, the first ones. OpenTelemetry's SDK keeps as many by default.
MAX_LINKS: Final = 128
#: The header that carries a message's context, in the form of W3C Trace Context.
TRACEPARENT: Final = "traceparent"

_W3C: Final = TraceContextTextMapPropagator()


class Tracing(Spans):
    """Makes a span for each call that publishes, claims or settles, and for each message that a worker handles.

    A published message gets the context of its span as the headers ``traceparent`` and ``tracestate``, unless it has a
    ``traceparent`` already. One object may serve any number of queues.

    :param tracer_provider: makes the spans; without it, the global provider of OpenTelemetry.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("pawnqueue", tracer_provider=tracer_provider)

    async def publish(
        self, send: Callable[[Sequence[N]], Awaitable[I]], topic: str, messages: Sequence[N], producer: str | None
    ) -> I:
        """Send the messages in a span, with its context in their headers."""
        if not messages:
            return await send(messages)
        foreign = [message.headers for message in messages if TRACEPARENT in message.headers]
        is_source = len(foreign) < len(messages)
        attributes = _attributes("publish", "send", topic)
        _count(attributes, len(messages))
        if producer is not None:
            attributes["messaging.client.id"] = producer
        kind = SpanKind.PRODUCER if is_source else SpanKind.CLIENT
        with self._span(kind, attributes, _links(foreign)) as span:
            carrier: dict[str, str] = {}
            _W3C.inject(carrier)
            if is_source and carrier:
                messages = [
                    message if TRACEPARENT in message.headers else message.with_headers(carrier) for message in messages
                ]
            ids = await send(messages)
            if len(ids) == 1:
                span.set_attribute("messaging.message.id", ids[0])
            return ids

    async def receive(
        self, work: Awaitable[C], operation: str, topics: Sequence[str], consumer: str | None = None
    ) -> C:
        """Make a span of a claim that has messages, or that fails. It begins when the call began.

        A call that finds nothing makes no span, as most calls of a poll do.
        """
        began = time.time_ns()
        attributes = _attributes(operation, "receive", topics[0] if len(topics) == 1 else None)
        if consumer is not None:
            attributes["messaging.consumer.group.name"] = consumer
        try:
            claim = await work
        except (QueueClosedError, QueueDrainedError):
            raise
        except Exception as error:
            with self._span(SpanKind.CLIENT, attributes, began=began) as span:
                _fail(span, _type_of(error))
            raise
        try:
            if len(claim):
                self._note_received(claim, operation, began)
        except Exception:  # the claim has been won: its caller has to have it
            logger.exception("The span of claim %s could not be made.", claim.stem)
        return claim

    def _note_received(self, claim: Held, operation: str, began: int) -> None:
        attributes = _of_claim(claim, operation, "receive")
        attributes["messaging.batch.message_count"] = len(claim)
        first = list(islice(claim, MAX_LINKS)) if claim.has_payloads else []
        if len(claim) == 1 and first:
            attributes["messaging.message.id"] = first[0].id
        with self._span(SpanKind.CLIENT, attributes, _links(message.headers for message in first), began=began):
            pass

    def process(self, handle: Callable[[M], Awaitable[object]], consumer: str) -> Callable[[M], Awaitable[object]]:
        """Return a handler that works on each message in a span, which links to the message's context.

        Its parent is the span in which the worker was started; without one, the message's context.
        """
        around = get_current()
        has_parent = trace.get_current_span(around).get_span_context().is_valid

        async def handled(message: M) -> object:
            attributes = _attributes("process", "process", message.topic)
            attributes["messaging.message.id"] = message.id
            attributes["messaging.consumer.group.name"] = consumer
            attributes["pawnqueue.deliveries"] = message.deliveries
            links = _links([message.headers])
            parent = around if has_parent or not links else _W3C.extract(message.headers, around)
            with self._span(SpanKind.CONSUMER, attributes, links, parent=parent):
                return await handle(message)

        return handled

    async def settle(self, work: Awaitable[Settlement], operation: str, claim: Held) -> Settlement:
        """Settle messages in a span."""
        name = "settle" if operation == "listen" else operation
        with self._span(SpanKind.CLIENT, _of_claim(claim, name, "settle")) as span:
            try:
                done = await work
            except Exception as error:
                _note_settled(span, getattr(error, "settlement", None))
                raise
            _note_settled(span, done)
            if done.unknown:
                _fail(span, "unknown")
            return done

    @contextmanager
    def _span(
        self,
        kind: SpanKind,
        attributes: Mapping[str, str | int],
        links: Sequence[Link] = (),
        *,
        parent: Context | None = None,
        began: int | None = None,
    ) -> Iterator[Span]:
        """Make a span for the length of a block. A tracer that fails is logged, and changes nothing."""
        name = str(attributes["messaging.operation.name"])
        if "messaging.destination.name" in attributes:
            name = f"{name} {attributes['messaging.destination.name']}"
        try:
            span = self._tracer.start_span(
                name, parent, kind, attributes, links, start_time=began, record_exception=False
            )
        except Exception:
            logger.exception("The span %r could not be started. The call goes on without it.", name)
            span = INVALID_SPAN
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield span
        except BaseException as error:
            if not is_on_purpose(error):
                _fail(span, _type_of(error))
            raise
        finally:
            try:
                span.end()
            except Exception:
                logger.exception("The span %r could not be ended.", name)


def _attributes(operation: str, kind: str, topic: str | None) -> dict[str, str | int]:
    """Return what each span has."""
    attributes: dict[str, str | int] = {
        "messaging.system": "pawnqueue",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
    if topic is not None:
        attributes["messaging.destination.name"] = topic
    return attributes


def _of_claim(claim: Held, operation: str, kind: str) -> dict[str, str | int]:
    attributes = _attributes(operation, kind, claim.topic)
    attributes["messaging.consumer.group.name"] = claim.consumer
    attributes["pawnqueue.claim"] = claim.stem
    return attributes


def _count(attributes: dict[str, str | int], count: int) -> None:
    """Note how many messages a call publishes. By the conventions, a call for one message has no number."""
    if count != 1:
        attributes["messaging.batch.message_count"] = count


def _note_settled(span: Span, done: Settlement | None) -> None:
    if done is None:
        return
    ids = [message_id for message_id, _ in done]
    span.set_attribute("messaging.batch.message_count", len(ids))
    if len(ids) == 1:
        span.set_attribute("messaging.message.id", ids[0])


def _links(headers: Iterable[Mapping[str, str]]) -> list[Link]:
    """Return links to the contexts in the headers of messages, as far as these have one."""
    return [Link(context) for each in islice(headers, MAX_LINKS) if (context := _context_in(each)).is_valid]


def _context_in(headers: Mapping[str, str]) -> SpanContext:
    return trace.get_current_span(_W3C.extract(headers, Context())).get_span_context()


def _fail(span: Span, error_type: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))


def _type_of(error: BaseException) -> str:
    """Return an exception's class. Its text is left out, as it may have a part of a payload in it."""
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"

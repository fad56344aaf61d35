"""Publish: one concurrent PUT for each message, and the outcome of each: stored, failed or unknown (§7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout
from pawnqueue.domain.envelope import Envelope
from pawnqueue.domain.lease import Lease
from pawnqueue.domain.object_sizes import MAX_SMALL_RECORD_BYTES
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.domain.records import DeadReason
from pawnqueue.domain.times import iso
from pawnqueue.domain.write_record import TICKS_PER_SECOND
from pawnqueue.errors import (
    CompatibilityError,
    InvalidPayloadError,
    ObjectTooLargeError,
    PublishError,
    StoreError,
    TopicNotFoundError,
)
from pawnqueue.events import Published, logger_of
from pawnqueue.publish.payload import checked_headers, checked_payload
from pawnqueue.runtime.cancellation import finish_despite_cancellation
from pawnqueue.runtime.concurrency import all_of, for_each
from pawnqueue.stores.port import Done, Unknown

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.settings import LimitsSettings

logger = logger_of("publish")


@dataclass(frozen=True, slots=True)
class Sent:
    """The outcome of one message."""

    landed: bool | None  # None: unknown
    fault: StoreError | None = None  # None although it did not land: it was not to be sent any more


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to publish that is more than a payload."""

    payload: Mapping[str, Any] = field(repr=False)
    """The JSON object."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Text to text, in addition to those of the call. If both have a name, this value is used."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A message to publish, copied and checked."""

    payload: dict[str, Any]
    headers: dict[str, str]


def checked_messages(
    payloads: object, headers: Mapping[str, str] | None, limits: LimitsSettings, topic: str, *, first: int = 0
) -> list[Checked]:
    """Return checked copies of the payloads, or raise an error that names the wrong one and the place in it.

    :param first: the number of the first of them.
    """
    if isinstance(payloads, Mapping | NewMessage | str | bytes) or not isinstance(payloads, Iterable):
        what = "one of them" if isinstance(payloads, Mapping | NewMessage) else f"a {type(payloads).__name__}"
        raise InvalidPayloadError(
            f"publish takes payloads, as a list or any other iterable of dicts, and this is {what}: "
            f"publish({topic!r}, [payload]). Nothing was published.",
            topic=topic,
            operation="publish",
        )
    common = checked_headers(headers, topic)
    checked = []
    for position, payload in enumerate(payloads, first):
        given = payload if isinstance(payload, NewMessage) else NewMessage(payload)
        # They are checked together, as their common size is bounded.
        own = common if not given.headers else checked_headers(_merge_headers(common, given.headers), topic, position)
        checked.append(Checked(checked_payload(given.payload, limits, topic, position), own))
    return checked


def _merge_headers(common: dict[str, str], own: object) -> object:
    return {**common, **own} if isinstance(own, Mapping) else own


class Publisher:
    """Publishes messages into topics of one bucket."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._last = 0  # in ticks

    def place(self, now: float, count: int) -> int:
        """Return the place in the queue, in ticks, of the first of these messages; the others follow, a tick apart.

        They come behind all messages that this publisher has placed before.
        """
        first = max(round(now * TICKS_PER_SECOND), self._last + 1)
        self._last = first + max(count, 1) - 1
        return first

    async def publish(
        self,
        topic: str,
        messages: Sequence[Checked],
        *,
        producer_id: str,
        topic_exists: Callable[[str], Awaitable[bool]],
    ) -> list[str]:
        """Publish checked payloads, and return their ids in order.

        :param topic_exists: says whether the topic still exists. It is asked beside the messages' PUTs, not before.
        :raises TopicNotFoundError: it does not: the messages that were written are removed again.
        """
        now = await self._context.time.now()
        # Id and key are fixed before the first attempt, so that every retry writes the same object.
        envelopes = []
        for place, message in enumerate(messages, self.place(now, len(messages))):
            stamp = place / TICKS_PER_SECOND
            envelope = Envelope(
                id=self._context.clock.uuid(),
                topic=topic,
                producer_id=producer_id,
                created_at=iso(stamp),
                payload=message.payload,
                headers=message.headers,
            )
            envelopes.append((units.name_at(stamp, envelope.id), envelope))
        results, there = await all_of(
            for_each(lambda each_: send(self._context, topic, *each_), envelopes, at_once=self._context.at_once),
            topic_may_exist(topic, topic_exists),
        )
        # Without its bucket the topic does not exist either: if nothing was written, the store's own error is raised.
        if not there and any(result.landed is not False for result in results):
            await finish_despite_cancellation(lambda: self._withdraw(topic, envelopes, results))
        ids: list[str] = [envelope.id for _, envelope in envelopes]
        failed: dict[str, StoreError] = {
            message_id: r.fault for message_id, r in zip(ids, results, strict=True) if r.fault and r.landed is False
        }
        unknown: dict[str, StoreError] = {
            message_id: r.fault for message_id, r in zip(ids, results, strict=True) if r.fault and r.landed is None
        }
        if failed or unknown:
            raise _publish_error(topic, ids, failed, unknown)
        self._context.events.tell(Published(topic=topic, ids=tuple(ids)))
        return ids

    async def _withdraw(
        self, topic: str, envelopes: Sequence[tuple[str, Envelope]], results: Sequence[Sent]
    ) -> NoReturn:
        """Remove messages from a topic that was deleted meanwhile, and raise."""
        keys = {units.key_of(topic, name): envelope.id for name, envelope in envelopes}
        left = {keys[key] for key in await self._context.store.delete(list(keys))}
        left |= {envelope.id for (_, envelope), result in zip(envelopes, results, strict=True) if result.landed is None}
        sentence = f"Topic {topic!r} was deleted. "
        if left:
            sentence += (
                f"Of {len(left)} of the {len(keys)} messages ({min(left)}, for example) it is not known whether they "
                "were removed again: if the topic is created again, those that were not are delivered. The others were "
                "not published."
            )
        else:
            sentence += f"Nothing was published: create it with create_topic({topic!r})."
        raise TopicNotFoundError(sentence, topic=topic, operation="publish")


async def send(  # noqa: PLR0913, PLR0917 - a message, its place, and two questions that only some ask
    context: Context,
    topic: str,
    name: str,
    envelope: Envelope,
    may_send: Callable[[], bool] | None = None,
    is_sent: Callable[[], Awaitable[bool]] | None = None,
) -> Sent:
    """Put a message into the topic. Before a retry, look whether an earlier attempt has landed.

    :param may_send: called before each attempt.
    :param is_sent: says whether an attempt without an answer has landed, in place of :func:`has_landed`.
    """
    key = units.key_of(topic, name)
    body = envelope.encode()
    backoff = context.store.backoff()
    in_doubt = False
    while True:
        if may_send is not None and not may_send():
            return Sent(None if in_doubt else False)
        try:
            outcome = await context.store.put(key, body)
        except StoreError as error:
            return Sent(None if in_doubt else False, error)
        if not isinstance(outcome, Unknown):
            # A plain PUT has no condition: a store that refuses it has not stored it.
            refused = None if isinstance(outcome, Done) else StoreError(f"The store refused {key}.", topic=topic)
            return Sent((None if in_doubt else False) if refused else True, refused)
        in_doubt = True
        try:
            if await (is_sent() if is_sent is not None else has_landed(context, topic, name, envelope.id)):
                return Sent(landed=True)
        except StoreError as error:
            return Sent(None, error)
        if not await backoff.pause():
            return Sent(None, backoff.exceeded(outcome.fault))


async def has_landed(context: Context, topic: str, name: str, uuid: str) -> bool:
    """Say whether an attempt without an answer has landed: the message, its lease or its dead letter is stored.

    §7: a message that was claimed and settled meanwhile has left none of them, and is sent again. It is then
    delivered twice, under one id: the only duplicate that a publisher can make.

    ⚑ §7: a lease or a dead letter is a trace of the message whose full name is in its body, and of no other one.
    Another message may have the same uuid: anybody can publish one, and so does a write whose id is used again. If the
    body has no name, the message is sent again, as a duplicate is better than a loss.
    """
    stored, leased, buried = await all_of(
        context.store.head(units.key_of(topic, name)),
        _leased_name(context, topic, uuid),
        _buried_name(context, topic, uuid),
    )
    return stored is not None or name in (leased, buried)


async def _leased_name(context: Context, topic: str, uuid: str) -> str:
    """Return the name of the message whose lease is kept under this uuid; "" where there is none, or it has no name."""
    key = layout.lease(topic, uuid)
    found = await context.registers.look(key)
    try:
        return Lease.decode(found.body, key).key if found is not None else ""
    except (UnreadableRecordError, CompatibilityError):
        return ""


async def _buried_name(context: Context, topic: str, uuid: str) -> str:
    """Return the name that the dead letter under this uuid had, from its reason, which is written before the letter."""
    key = letters.reason_key_of(topic, uuid)
    try:
        found = await context.store.get(key, MAX_SMALL_RECORD_BYTES)
        return DeadReason.decode(found.body, key).name if found is not None else ""
    except (ObjectTooLargeError, UnreadableRecordError, CompatibilityError):
        return ""


async def topic_may_exist(topic: str, ask: Callable[[str], Awaitable[bool]]) -> bool:
    """Say whether the topic exists, or may exist as the store does not answer.

    Published messages are delivered if the topic exists, or is created again.
    """
    try:
        return await ask(topic)
    except StoreError as error:
        logger.warning("It is not known whether topic %r still exists: %s", topic, error)
        return True


def _publish_error(
    topic: str, ids: list[str], failed: dict[str, StoreError], unknown: dict[str, StoreError]
) -> PublishError:
    first = next(iter([*failed.values(), *unknown.values()]))
    parts = []
    if failed:
        parts.append(f"{len(failed)} were not published")
    if unknown:
        parts.append(f"of {len(unknown)} it is not known whether they were")
    return PublishError(
        f"Of {len(ids)} messages for topic {topic!r}, {' and '.join(parts)}: {first} "
        "The error's .failed, .unknown and .published name them. Publish the failed ones again. The unknown ones may "
        "be stored: publishing them again may store them twice.",
        topic=topic,
        operation="publish",
        cause=first,
        ids=ids,
        failed=failed,
        unknown=unknown,
    )

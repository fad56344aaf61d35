"""Publish: one PUT a message, concurrently; the outcome of each is known, or said to be unknown (§7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout
from pawnqueue.domain.object_sizes import MAX_SMALL_RECORD_BYTES
from pawnqueue.domain.records import TICKS_PER_SECOND, DeadReason, Envelope, Lease, UnreadableRecordError
from pawnqueue.domain.times import iso
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
    """What became of one message."""

    landed: bool | None  # None: nobody can tell
    fault: StoreError | None = None  # none, where it did not land: it was not to be sent any more


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to publish, where a payload alone does not say all of it."""

    payload: Mapping[str, Any] = field(repr=False)
    """The JSON object."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Text to text. Beside those of the call; where both have a name, this one's holds."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What is to be published, copied and found to be in order."""

    payload: dict[str, Any]
    headers: dict[str, str]


def checked_messages(
    payloads: object, headers: Mapping[str, str] | None, limits: LimitsSettings, topic: str, *, first: int = 0
) -> list[Checked]:
    """Return copies of the payloads, or raise naming the one, and the place in it, that is wrong.

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
        # Checked together: their size counts together.
        own = common if not given.headers else checked_headers(_joined(common, given.headers), topic, position)
        checked.append(Checked(checked_payload(given.payload, limits, topic, position), own))
    return checked


def _joined(common: dict[str, str], own: object) -> object:
    return {**common, **own} if isinstance(own, Mapping) else own


class Publisher:
    """Writes messages into topics of one bucket."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._last = 0  # in ticks

    def place(self, now: float, count: int) -> int:
        """Return the place in the queue, in ticks, of the first of so many messages; the others follow, a tick apart.

        They are behind all that this publisher has placed before.
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
        # Id and key are fixed before the first attempt: whatever is sent again aims at the same object.
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
        # A bucket that is gone has no topic either: where nothing was written, the store's own words say why.
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
            raise _error(topic, ids, failed, unknown)
        self._context.events.tell(Published(topic=topic, ids=tuple(ids)))
        return ids

    async def _withdraw(
        self, topic: str, envelopes: Sequence[tuple[str, Envelope]], results: Sequence[Sent]
    ) -> NoReturn:
        """Remove messages from a topic that was deleted behind its publisher's back, and say so."""
        keys = {units.key_of(topic, name): envelope.id for name, envelope in envelopes}
        left = {keys[key] for key in await self._context.store.delete(list(keys))}
        left |= {envelope.id for (_, envelope), result in zip(envelopes, results, strict=True) if result.landed is None}
        sentence = f"Topic {topic!r} does not exist any more: it was deleted. "
        if left:
            sentence += (
                f"Of {len(left)} of the {len(keys)} messages ({min(left)}, say) it is not known whether they "
                "could be removed again, and they are delivered if it is created again; of the others none was "
                "published."
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
    """Put a message into the topic; what is sent again is looked for first.

    :param may_send: asked before each attempt.
    :param is_sent: says whether an attempt without an answer has arrived, in place of :func:`has_landed`.
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
            # A plain PUT has no condition; a store that refuses one did not take it.
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
    """Say whether an attempt without an answer arrived: the message is stored, or left a lease or a dead letter.

    §7: A message that was claimed and settled meanwhile has left none of them, and is sent again. It is then
    delivered twice, under one id: the one duplicate that a publisher can make.

    ⚑ §7: A lease and a dead letter are a trace of the message whose full name is in their bodies, and of no other one.
    Another message may have the same uuid: anybody can publish one, and so does a write whose id is used again. Where
    the body has no name, the message is sent again, as a duplicate costs less than a loss.
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
    """Return the name that the dead letter under this uuid had, by its reason, which is written before the letter."""
    key = letters.reason_key_of(topic, uuid)
    try:
        found = await context.store.get(key, MAX_SMALL_RECORD_BYTES)
        return DeadReason.decode(found.body, key).name if found is not None else ""
    except (ObjectTooLargeError, UnreadableRecordError, CompatibilityError):
        return ""


async def topic_may_exist(topic: str, ask: Callable[[str], Awaitable[bool]]) -> bool:
    """Say whether the topic that is published into is there; where nobody can tell, it is.

    What was published is there if the topic is, or is created again.
    """
    try:
        return await ask(topic)
    except StoreError as error:
        logger.warning("It could not be found out whether topic %r is there still: %s", topic, error)
        return True


def _error(topic: str, ids: list[str], failed: dict[str, StoreError], unknown: dict[str, StoreError]) -> PublishError:
    first = next(iter([*failed.values(), *unknown.values()]))
    parts = []
    if failed:
        parts.append(f"{len(failed)} were not published")
    if unknown:
        parts.append(f"of {len(unknown)} it is not known whether they were")
    return PublishError(
        f"Of {len(ids)} messages for topic {topic!r}, {' and '.join(parts)}: {first} "
        "The error's .failed, .unknown and .published name them. Publish the failed ones again; what is unknown may be "
        "there, and would then be there twice.",
        topic=topic,
        operation="publish",
        cause=first,
        ids=ids,
        failed=failed,
        unknown=unknown,
    )

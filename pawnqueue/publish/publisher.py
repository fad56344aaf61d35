"""Publish checked messages: make their objects, put these into the topic, and return or raise each outcome (§7).

The steps: check (:mod:`.new_messages`), wait for others (:mod:`.group_commit`), pack (:mod:`.packing`), put
(:mod:`.sending`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from pawnqueue.catalog import units
from pawnqueue.domain.dedup_segment import hash_of_key
from pawnqueue.domain.records import DEFAULT_DEDUP_WINDOW_SECONDS
from pawnqueue.domain.write_record import TICKS_PER_SECOND
from pawnqueue.errors import PawnQueueError, StoreError
from pawnqueue.events import Published
from pawnqueue.publish.deduplication import Deduplication
from pawnqueue.publish.group_commit import Call, GroupCommit
from pawnqueue.publish.packing import units_of
from pawnqueue.publish.publish_errors import publish_error, withdrawn_error
from pawnqueue.publish.publish_once import PublishedIds, PublishOnce
from pawnqueue.publish.sending import send, topic_may_exist
from pawnqueue.runtime.cancellation import finish_despite_cancellation
from pawnqueue.runtime.concurrency import all_of, for_each

if TYPE_CHECKING:
    from pawnqueue.bucket.topics import KnownTopics
    from pawnqueue.context import Context
    from pawnqueue.domain.records import TopicRecord
    from pawnqueue.publish.new_messages import Checked
    from pawnqueue.publish.packing import NewUnit, NewUnits
    from pawnqueue.publish.sending import Sent
    from pawnqueue.settings import PacksSettings


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of the messages that were put into a topic together."""

    sent: Mapping[str, Sent]
    """By the messages' ids."""
    left: set[str] | None = None
    """None, or if the topic was deleted the ids of messages that may not have been removed again."""


class Publisher:
    """Publishes messages into topics of one bucket."""

    def __init__(self, context: Context, topics: KnownTopics) -> None:
        self._context = context
        self._topics = topics
        self._last = 0  # in ticks
        linger = context.settings.packs.linger_seconds
        self._deduplication = Deduplication(context)
        self._groups = GroupCommit(context.clock, linger, self._commit)

    def place(self, now: float, count: int) -> int:
        """Return the place in the queue, in ticks, of the first of these messages; the others follow, a tick apart.

        They come behind all messages that this publisher has placed before.
        """
        first = max(round(now * TICKS_PER_SECOND), self._last + 1)
        self._last = first + max(count, 1) - 1
        return first

    async def publish(
        self, topic: str, messages: Sequence[Checked], *, producer_id: str, packs: PacksSettings | None
    ) -> list[str]:
        """Publish checked messages, and return their ids in order.

        :param packs: how large the packs are; None: each message is an object of its own.
        :raises TopicNotFoundError: the topic does not exist any more: what was written is removed again.
        """
        made = await self._make_units(topic, messages, [producer_id] * len(messages), packs)
        outcome = await self._put(topic, made.units)
        return self._conclude(topic, made.ids, outcome)

    async def publish_once(
        self, topic: TopicRecord, messages: Sequence[Checked], *, producer_id: str, packs: PacksSettings | None
    ) -> PublishedIds:
        """Publish messages with deduplication keys, but for those whose key was published in the topic's window.

        :raises TopicNotFoundError: the topic does not exist any more, or was created again: nothing was published.
        """
        if topic.settings.dedup_window_seconds is None:  # ⚑ §7: it tells sweeps that the topic has keys
            window = {"dedup_window_seconds": DEFAULT_DEDUP_WINDOW_SECONDS}
            topic = await self._topics.update(topic.name, window, unset_only=True)
        call = PublishOnce(
            self._context, self._topics, self._deduplication, place=self.place, topic=topic, producer_id=producer_id
        )
        return await call.publish(messages, packs)

    async def count_new(self, topic: TopicRecord, messages: Sequence[Checked], *, anew: bool) -> int:
        """Return how many of the messages have a key that is not known to be published.

        :param anew: read again what other processes have noted.
        """
        keys = {hash_of_key(message.dedup_key or "") for message in messages}
        window = topic.settings.dedup_window_seconds or DEFAULT_DEDUP_WINDOW_SECONDS
        return await self._deduplication.count_new(topic, keys, window, anew=anew)

    async def publish_together(self, topic: str, messages: Sequence[Checked], *, producer_id: str) -> list[str]:
        """Publish messages in a pack with those of other calls that wait; as single messages if no other call waits."""
        return await self._groups.publish(topic, messages, producer_id)

    async def aclose(self) -> None:
        """End the calls that are under way together, and note which keys were published."""
        await all_of(self._groups.aclose(), self._deduplication.aclose())

    async def _commit(self, topic: str, calls: Sequence[Call]) -> None:
        """Put the messages of some calls into the topic, and set the outcome of each call."""
        messages = [message for call in calls for message in call.messages]
        producers = [call.producer_id for call in calls for _ in call.messages]
        packs = self._context.settings.packs if len(calls) > 1 else None
        made = await self._make_units(topic, messages, producers, packs)
        outcome = await self._put(topic, made.units)
        ids = iter(made.ids)
        for call in calls:
            own = list(islice(ids, len(call.messages)))
            if call.outcome.done():  # its caller was cancelled
                continue
            try:
                call.outcome.set_result(self._conclude(topic, own, outcome))
            except PawnQueueError as error:
                call.outcome.set_exception(error)

    async def _make_units(
        self, topic: str, messages: Sequence[Checked], producer_ids: Sequence[str], packs: PacksSettings | None
    ) -> NewUnits:
        time = self._context.time
        place = self.place(await time.now(), len(messages))
        # ⚑ §1: a delay begins when the message was surely published, whatever the error of this process's time.
        return units_of(
            self._context.clock, topic, messages, producer_ids, place=place, packs=packs, error_seconds=time.error
        )

    async def _put(self, topic: str, made: Sequence[NewUnit]) -> _Outcome:
        """Put units into the topic. Beside their PUTs, not before, ask whether the topic still exists."""
        has_packs = any(unit.is_pack for unit in made)
        results, there = await all_of(
            for_each(
                lambda unit: self._send(topic, unit),
                made,
                at_once=self._context.at_once,
            ),
            topic_may_exist(topic, partial(self._topics.exists, with_packs=has_packs)),
        )
        sent = {
            message_id: result for unit, result in zip(made, results, strict=True) for message_id in unit.message_ids
        }
        # Without its bucket the topic does not exist either: if nothing was written, the store's own error is raised.
        if there or all(result.landed is False for result in results):
            return _Outcome(sent)
        return _Outcome(sent, await finish_despite_cancellation(lambda: self._withdraw(topic, made, results)))

    async def _send(self, topic: str, unit: NewUnit) -> Sent:
        key, body = units.key_of(topic, unit.name), unit.body()
        return await send(self._context, topic, unit.name, unit.id, lambda: self._context.store.put(key, body))

    async def _withdraw(self, topic: str, made: Sequence[NewUnit], results: Sequence[Sent]) -> set[str]:
        """Remove units from a topic that was deleted meanwhile; return the ids of messages that may be left."""
        by_key = {units.key_of(topic, unit.name): unit for unit in made}
        kept = [by_key[key] for key in await self._context.store.delete(list(by_key))]
        kept += [unit for unit, result in zip(made, results, strict=True) if result.landed is None]
        return {message_id for unit in kept for message_id in unit.message_ids}

    def _conclude(self, topic: str, ids: list[str], outcome: _Outcome) -> list[str]:
        """Return the ids of one call's messages, or raise what became of them."""
        if outcome.left is not None:
            raise withdrawn_error(topic, ids, outcome.left.intersection(ids))
        failed: dict[str, StoreError] = {}
        unknown: dict[str, StoreError] = {}
        for message_id in ids:
            result = outcome.sent[message_id]
            if result.fault is not None:
                (unknown if result.landed is None else failed)[message_id] = result.fault
        if failed or unknown:
            raise publish_error(topic, ids, failed, unknown)
        self._context.events.tell(Published(topic=topic, ids=tuple(ids)))
        return ids

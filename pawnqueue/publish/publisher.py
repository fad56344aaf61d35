"""Publish checked messages: make their objects, put these into the topic, and return or raise each outcome (§7).

The steps: check (:mod:`.new_messages`), pack (:mod:`.packing`), put (:mod:`.sending`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from pawnqueue.catalog import units
from pawnqueue.domain.write_record import TICKS_PER_SECOND
from pawnqueue.errors import PublishError, StoreError, TopicNotFoundError
from pawnqueue.events import Published
from pawnqueue.publish.packing import units_of
from pawnqueue.publish.sending import send, topic_may_exist
from pawnqueue.runtime.cancellation import finish_despite_cancellation
from pawnqueue.runtime.concurrency import all_of, for_each

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.publish.new_messages import Checked
    from pawnqueue.publish.packing import NewUnit
    from pawnqueue.publish.sending import Sent
    from pawnqueue.settings import PacksSettings


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
        packs: PacksSettings | None,
        topic_exists: Callable[[str], Awaitable[bool]],
    ) -> list[str]:
        """Publish checked messages, and return their ids in order.

        :param packs: how large the packs are; None: each message is an object of its own.
        :param topic_exists: says whether the topic still exists. It is asked beside the messages' PUTs, not before.
        :raises TopicNotFoundError: it does not: what was written is removed again.
        """
        place = self.place(await self._context.time.now(), len(messages))
        made = units_of(self._context.clock, topic, messages, place=place, producer_id=producer_id, packs=packs)
        results = await self._put(topic, made, topic_exists)
        ids = [message_id for unit in made for message_id in unit.message_ids]
        failed: dict[str, StoreError] = {}
        unknown: dict[str, StoreError] = {}
        for unit, result in zip(made, results, strict=True):
            if result.fault is not None:
                outcome = unknown if result.landed is None else failed
                outcome.update(dict.fromkeys(unit.message_ids, result.fault))
        if failed or unknown:
            raise _publish_error(topic, ids, failed, unknown)
        self._context.events.tell(Published(topic=topic, ids=tuple(ids)))
        return ids

    async def _put(
        self, topic: str, made: Sequence[NewUnit], topic_exists: Callable[[str], Awaitable[bool]]
    ) -> list[Sent]:
        """Put units into the topic, and return the outcome of each."""
        results, there = await all_of(
            for_each(
                lambda unit: send(self._context, topic, unit.name, unit.id, unit.body()),
                made,
                at_once=self._context.at_once,
            ),
            topic_may_exist(topic, topic_exists),
        )
        # Without its bucket the topic does not exist either: if nothing was written, the store's own error is raised.
        if not there and any(result.landed is not False for result in results):
            await finish_despite_cancellation(lambda: self._withdraw(topic, made, results))
        return list(results)

    async def _withdraw(self, topic: str, made: Sequence[NewUnit], results: Sequence[Sent]) -> NoReturn:
        """Remove units from a topic that was deleted meanwhile, and raise."""
        by_key = {units.key_of(topic, unit.name): unit for unit in made}
        kept = [by_key[key] for key in await self._context.store.delete(list(by_key))]
        kept += [unit for unit, result in zip(made, results, strict=True) if result.landed is None]
        left = {message_id for unit in kept for message_id in unit.message_ids}
        sentence = f"Topic {topic!r} was deleted. "
        if left:
            count = sum(len(unit.message_ids) for unit in made)
            sentence += (
                f"Of {len(left)} of the {count} messages ({min(left)}, for example) it is not known whether they "
                "were removed again: if the topic is created again, those that were not are delivered. The others were "
                "not published."
            )
        else:
            sentence += f"Nothing was published: create it with create_topic({topic!r})."
        raise TopicNotFoundError(sentence, topic=topic, operation="publish")


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

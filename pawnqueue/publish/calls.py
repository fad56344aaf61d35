"""One call of publish, once its messages are checked: it is admitted, and takes one of the ways into its topic (§7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pawnqueue.errors import QueueFullError
from pawnqueue.publish.publish_once import PublishedIds

if TYPE_CHECKING:
    from pawnqueue.domain.records import TopicRecord
    from pawnqueue.publish.backpressure import Admission, Backpressure
    from pawnqueue.publish.new_messages import Checked
    from pawnqueue.publish.publisher import Publisher
    from pawnqueue.settings import PacksSettings


@dataclass(frozen=True, slots=True)
class PublishCalls:
    """Carries out calls of publish for one open queue."""

    publisher: Publisher
    backpressure: Backpressure

    async def publish(  # noqa: PLR0913 - what a call says of its messages
        self,
        topic: TopicRecord,
        messages: Sequence[Checked],
        *,
        producer_id: str,
        packs: PacksSettings | None,
        may_share: bool,
        wait: float | None,
        has_keys: bool,
    ) -> PublishedIds:
        """Publish checked messages, and return their ids in order.

        :param packs: how large the packs are; None: the call makes none.
        :param may_share: messages of a call that makes no packs may be in a pack with those of other calls.
        :param wait: for how many seconds to wait for room; None: as the topic's settings say.
        """
        with await self._admit(topic, messages, wait, has_keys=has_keys):
            if has_keys:
                return await self.publisher.publish_once(topic, messages, producer_id=producer_id, packs=packs)
            if packs is None and may_share:
                ids = await self.publisher.publish_together(topic.name, messages, producer_id=producer_id)
            else:
                ids = await self.publisher.publish(topic.name, messages, producer_id=producer_id, packs=packs)
            return PublishedIds(ids)

    async def _admit(
        self, topic: TopicRecord, messages: Sequence[Checked], wait: float | None, *, has_keys: bool
    ) -> Admission:
        """Wait until the topic has room for these messages, but for those that were published before."""
        if not has_keys or topic.settings.max_pending is None:
            return await self.backpressure.admit(topic, len(messages), wait)
        new = await self.publisher.count_new(topic, messages, anew=False)
        try:
            return await self.backpressure.admit(topic, new, wait)
        except QueueFullError:
            left = await self.publisher.count_new(topic, messages, anew=True)
            if left >= new:
                raise
            return await self.backpressure.admit(topic, left, wait)

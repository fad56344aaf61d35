"""Hold publishers up while a topic has ``max_pending`` messages (§7)."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from pawnqueue.catalog.unit_listing import UnitListing
from pawnqueue.errors import QueueFullError
from pawnqueue.events import TopicFull
from pawnqueue.runtime.concurrency import SharedWork

if TYPE_CHECKING:
    from types import TracebackType

    from pawnqueue.context import Context
    from pawnqueue.domain.records import TopicRecord, TopicSettings

#: A count of an empty topic is used for at most this long, and one of a topic that is half full for half as long.
MAX_COUNT_SECONDS: Final = 30.0
#: A count of a topic that is full, or nearly, is used for at least this long, and for this long for each LIST that it
#: took.
MIN_COUNT_SECONDS: Final = 1.0
COUNT_SECONDS_PER_LIST: Final = 0.25


@dataclass(slots=True)
class _Count:
    """How many messages a topic had, as this process has counted them."""

    pending: int
    began: float  # elapsed
    limit: int  # it was counted up to this
    requests: int
    before: int  # how many messages this process had published into it by then, of those that it is sure of

    @property
    def least_seconds(self) -> float:
        """For how long it is used at least."""
        return min(max(MIN_COUNT_SECONDS, self.requests * COUNT_SECONDS_PER_LIST), MAX_COUNT_SECONDS)


@dataclass(slots=True)
class _TopicRoom:
    """What this process knows of one topic's room."""

    listing: UnitListing
    count: _Count | None = None
    admitted: int = 0
    """How many messages this process has been allowed to publish, since it was opened."""
    under_way: int = 0
    """How many of them may not be stored yet."""

    def pending(self, count: _Count) -> int:
        """Return how many messages the topic has at most, but for those that other processes have published since."""
        return count.pending + self.admitted - count.before


@dataclass(slots=True)
class Admission:
    """Messages that may be published now. While they are, no count is relied on to show them."""

    room: _TopicRoom | None = None
    messages: int = 0

    def __enter__(self) -> Self:
        """Begin to publish them."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End it: they are stored, or it has failed."""
        if self.room is not None:
            self.room.under_way -= self.messages


@dataclass(slots=True)
class Backpressure:
    """Counts the messages of topics with ``max_pending``, for all publishing calls of one open queue."""

    context: Context
    recent_topic: Callable[[str], Awaitable[TopicRecord | None]]
    """Returns a topic's record as it was a few seconds ago, or later."""

    check_open: Callable[[], None]
    _rooms: dict[str, _TopicRoom] = field(default_factory=dict)
    _counting: SharedWork[str, None] = field(default_factory=SharedWork)

    async def admit(self, topic: TopicRecord, messages: int, wait: float | None) -> Admission:
        """Wait until the topic has room for this many messages, and return the admission of these.

        :param wait: for how many seconds to wait at most; None: as the topic's settings say.
        :raises QueueFullError: it has no room.
        """
        limit = topic.settings.max_pending
        if limit is None or not messages:
            return Admission()
        clock, began, is_told = self.context.clock, self.context.clock.elapsed(), False
        room = self._rooms.setdefault(topic.name, _TopicRoom(UnitListing(self.context, topic.name)))
        while limit is not None:
            count = await self._counted(topic, room, messages, limit)
            if room.pending(count) + messages <= limit:
                room.admitted += messages
                room.under_way += messages
                return Admission(room, messages)
            # This process may have read the settings a minute ago. A raised limit is to let messages in soon.
            topic = await self.recent_topic(topic.name) or topic
            if topic.settings.max_pending != limit:
                limit = topic.settings.max_pending
                continue
            left = began + _patience(topic.settings, wait) - clock.elapsed()
            if not is_told:
                is_told = True
                pending = room.pending(count)
                self.context.events.tell(
                    TopicFull(topic=topic.name, messages=messages, pending=pending, max_pending=limit, waits=left > 0)
                )
            if left <= 0 or messages > limit:
                raise _full_error(topic.name, room.pending(count), limit, messages, count.least_seconds)
            due = count.began + count.least_seconds - clock.elapsed()
            await clock.sleep(min(max(due, 0.0) + clock.uniform(0, 0.1), left))
            self.check_open()
        return Admission()

    async def _counted(self, topic: TopicRecord, room: _TopicRoom, messages: int, limit: int) -> _Count:
        """Return a count that may still be relied on."""
        count = room.count
        while count is None or self._is_due(room, count, messages, limit):
            await self._counting.do(topic.name, lambda: self._count(topic, room, limit))
            is_counted, count = room.count is not count, room.count
            if is_counted and count is not None and count.limit >= limit:
                return count
        return count

    def _is_due(self, room: _TopicRoom, count: _Count, messages: int, limit: int) -> bool:
        """⚑ §7: say whether to count anew: the sooner the less room is left, and the more was published here since."""
        if count.limit < limit and count.pending >= count.limit:
            return True  # it went no further
        age, free = self.context.clock.elapsed() - count.began, limit - room.pending(count)
        if free < messages:
            return age >= count.least_seconds
        return age >= max(count.least_seconds, MAX_COUNT_SECONDS * free / limit)

    async def _count(self, topic: TopicRecord, room: _TopicRoom, limit: int) -> None:
        """Count what is in the topic, up to the limit: a LIST for each page."""
        began = self.context.clock.elapsed()
        if not topic.may_have_packs:  # another process may have allowed them since
            topic = await self.recent_topic(topic.name) or topic
        # ⚑ §7: what is under way may land behind the LIST.
        before = room.admitted - room.under_way
        pending = requests = 0
        async with aclosing(room.listing.pages(packs=topic.may_have_packs)) as pages:
            async for page in pages:
                pending += sum(unit.count for unit in page.units)
                requests += 1
                if pending >= limit:
                    break
        room.count = _Count(pending, began, limit, requests, before)


def _patience(settings: TopicSettings, wait: float | None) -> float:
    """Return for how many seconds a call waits for room."""
    if wait is not None:
        return wait
    return settings.overload_timeout_seconds if settings.overload == "block" else -math.inf


def _full_error(topic: str, pending: int, limit: int, messages: int, retry_after: float) -> QueueFullError:
    if messages > limit:
        advice = f"{messages:,} at once never fit: publish fewer in one call, or raise max_pending by update_topic."
    else:
        advice = f"there is no room for {messages:,} more. Publish again later, or raise max_pending by update_topic."
    return QueueFullError(
        f"Topic {topic!r} has {pending:,} messages that are not finished, of at most {limit:,} (max_pending): {advice} "
        "Nothing was published.",
        topic=topic,
        operation="publish",
        pending=pending,
        max_pending=limit,
        retry_after=retry_after,
    )

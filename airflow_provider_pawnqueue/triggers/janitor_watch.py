"""Whoever waits for a topic says so, once, where no janitor has been seen in it for an hour."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from airflow_provider_pawnqueue.engine import PawnQueueError

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine import PawnQueue

logger = logging.getLogger(__name__)

#: So long a topic may be without a janitor; as often it is asked.
AN_HOUR: Final = timedelta(hours=1)


class JanitorWatch:
    """Looks after the janitor of one topic."""

    def __init__(self, queue: PawnQueue, topic: str) -> None:
        self._queue = queue
        self._topic = topic
        self._next = 0.0  # by the loop's time
        self._has_warned = False

    async def look(self) -> None:
        """Ask when the topic was last swept, if it is time to; nothing that goes wrong here concerns who waits."""
        now = asyncio.get_running_loop().time()
        if now < self._next:
            return
        self._next = now + AN_HOUR.total_seconds()
        try:
            topic = await self._queue.topic(self._topic)
        except PawnQueueError as error:
            logger.debug("When topic %s was swept could not be asked: %s", self._topic, error)
            return
        last = topic.swept_at or topic.created_at
        is_missed = last is None or datetime.now(UTC) - last > AN_HOUR
        if is_missed and not self._has_warned:
            logger.warning(
                "No janitor has been seen in topic %s %s. Claims are kept by their ttl alone, and those of runs that "
                "died wait for its end: put a DAG of airflow_provider_pawnqueue.dags.janitor_dag beside this one.",
                self._topic,
                "for an hour" if topic.swept_at is None else f"since {topic.swept_at:%Y-%m-%d %H:%M} UTC",
            )
        self._has_warned = is_missed

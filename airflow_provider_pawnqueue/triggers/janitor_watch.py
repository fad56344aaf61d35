"""Whether a janitor looks after a topic, and what to say where none does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from pawnqueue import PawnQueueError

if TYPE_CHECKING:
    from pawnqueue import PawnQueue

logger = logging.getLogger(__name__)

#: How long a topic may be without a sweep, and how often that is asked.
AN_HOUR: Final = timedelta(hours=1)
_SHOWN: Final = 3  # topics, in a sentence about many
_ADVICE: Final = (
    "Claims are kept by their ttl alone, and those of runs that died wait for its end: "
    "put a DAG of airflow_provider_pawnqueue.dags.janitor_dag into the DAGs folder, and unpause it."
)


def is_swept(swept_at: datetime | None) -> bool:
    """Return whether a topic was swept within the last hour."""
    return swept_at is not None and datetime.now(UTC) - swept_at <= AN_HOUR


def no_janitor(topics: Sequence[str]) -> str:
    """Say that no janitor has swept these topics within the last hour, and what to do."""
    some = ", ".join(topics[:_SHOWN])
    if len(topics) > _SHOWN:
        some += f" and {len(topics) - _SHOWN} more"
    return f"No janitor has swept {some} within the last hour. {_ADVICE}"


class JanitorWatch:
    """Looks after the janitor of one topic."""

    def __init__(self, queue: PawnQueue, topic: str) -> None:
        self._queue = queue
        self._topic = topic
        self._next = 0.0  # by the loop's time
        self._has_warned = False

    async def look(self) -> None:
        """Ask when the topic was last swept, once an hour, and warn once. A failure here fails no waiting task."""
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
        is_missed = not is_swept(last)  # a new topic has an hour
        if is_missed and not self._has_warned:
            logger.warning(no_janitor([self._topic]))
        self._has_warned = is_missed

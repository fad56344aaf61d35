"""Warns about topics that no janitor sweeps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from pawnqueue import PawnQueue, PawnQueueError

logger = logging.getLogger(__name__)

#: How long a topic may be without a sweep, and how often that is checked.
SWEEP_PERIOD: Final = timedelta(hours=1)
_MAX_TOPICS_SHOWN: Final = 3
_ADVICE: Final = (
    "Nothing renews the claims of running DAGs, and those of failed runs last for their whole ttl: "
    "put a DAG of airflow_provider_pawnqueue.dags.janitor_dag into the DAGs folder, and unpause it."
)


def is_swept(swept_at: datetime | None) -> bool:
    """Return whether a topic was swept within the last hour."""
    return swept_at is not None and datetime.now(UTC) - swept_at <= SWEEP_PERIOD


def no_janitor(topics: Sequence[str]) -> str:
    """Return the warning that no janitor has swept these topics within the last hour, with what to do."""
    some = ", ".join(topics[:_MAX_TOPICS_SHOWN])
    if len(topics) > _MAX_TOPICS_SHOWN:
        some += f" and {len(topics) - _MAX_TOPICS_SHOWN} more"
    return f"No janitor has swept {some} within the last hour. {_ADVICE}"


class JanitorWatch:
    """Checks once an hour whether a janitor sweeps one topic."""

    def __init__(self, queue: PawnQueue, topic: str) -> None:
        self._queue = queue
        self._topic = topic
        self._next = 0.0  # by the loop's time
        self._has_warned = False

    async def look(self) -> None:
        """Check when the topic was last swept, at most once an hour, and warn once. A failure fails no waiting task."""
        now = asyncio.get_running_loop().time()
        if now < self._next:
            return
        self._next = now + SWEEP_PERIOD.total_seconds()
        try:
            topic = await self._queue.topic(self._topic)
        except PawnQueueError as error:
            logger.debug("It is not known when topic %s was last swept: %s", self._topic, error)
            return
        last = topic.swept_at or topic.created_at
        is_missed = not is_swept(last)  # a new topic counts as swept when it was created
        if is_missed and not self._has_warned:
            logger.warning(no_janitor([self._topic]))
        self._has_warned = is_missed

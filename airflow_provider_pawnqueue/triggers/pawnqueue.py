"""Triggers: one that claims messages for a sensor, and one that tells an asset watcher of a backlog.

Airflow imports this module in the event loop that all triggers share, so it imports little: see :func:`_load`.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Sequence
from types import ModuleType
from typing import Any

from airflow.providers.common.compat.triggers import BaseEventTrigger
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_pawnqueue.hooks.arguments import DEFAULT_CONN_ID, checked_count, checked_seconds, checked_text


class PawnQueueClaimTrigger(BaseTrigger):
    """Waits for messages, claims them for a task, and fires once with references to the claims.

    It may be run again at any time, here or by another triggerer: it finds the claim that it has made by the owner's
    name. What it has claimed is released only when a user ends the task.

    :param topics: the topics to wait for. The trigger fires as soon as one of them has messages.
    :param owner: on whose behalf: the task, its run, and how often that run was cleared.

    The other arguments are those of :class:`~pawnqueue.domain.claim_terms.ClaimTerms`.
    """

    def __init__(  # noqa: PLR0913 - the terms that a sensor passes on
        self,
        *,
        topics: Sequence[str],
        owner: str,
        consumer: str,
        pawnqueue_conn_id: str = DEFAULT_CONN_ID,
        max_messages: int | None = None,
        min_messages: int = 1,
        max_wait: float | None = None,
        ttl: float | None = None,
        **later: Any,
    ) -> None:
        super().__init__()
        del later  # a newer release may have stored arguments that this one does not know
        self.topics = list(topics)
        self.pawnqueue_conn_id = pawnqueue_conn_id
        #: The terms of each claim, by the names of their fields.
        self.terms: dict[str, Any] = {
            "owner": owner,
            "consumer": consumer,
            "max_messages": max_messages,
            "min_messages": min_messages,
            "max_wait": max_wait,
            "ttl": ttl,
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments by which Airflow makes the trigger again."""
        kwargs = {"topics": self.topics, "pawnqueue_conn_id": self.pawnqueue_conn_id, **self.terms}
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and fire once: with the claims, or with an error."""
        trigger_runs = await _load()
        yield TriggerEvent(await trigger_runs.claim_event(self))

    async def on_kill(self) -> None:
        """Release what was claimed, as a user has ended the task. A restart of the triggerer does not call this."""
        try:
            trigger_runs = await _load()
            await trigger_runs.release(self)
        except Exception as error:  # noqa: BLE001 - at the end of a process, Python itself refuses threads and more
            self.log.warning("What was claimed could not be released, and waits for its ttl: %s", error)


class PawnQueueEventTrigger(BaseEventTrigger):
    """Fires while a topic has a backlog, for an ``AssetWatcher``. It claims nothing: the DAG's own task does that.

    An event must not carry a claim: Airflow starts one run for a burst of asset events, and loses those of a
    triggerer's last second. While messages are left, the trigger fires again after its last event was answered by a
    claim. It repeats an event without an answer at growing intervals. So no message is stranded, and few runs find
    nothing.

    :param topic: the topic to listen to.
    :param min_messages: fire only when this many messages can be claimed.
    :param ring_every: the shortest time between two events, in seconds.
    :param queue: the triggerer queue to run in, as Airflow's base class takes it (Airflow 3.4).
    """

    def __init__(
        self,
        *,
        topic: str,
        pawnqueue_conn_id: str = DEFAULT_CONN_ID,
        min_messages: int = 1,
        ring_every: float = 30.0,
        queue: str | None = None,
        **later: Any,
    ) -> None:
        super().__init__(**({} if queue is None else {"queue": queue}))
        if getattr(self, "queue", None) != queue:  # an older base class ignores it
            raise ValueError(f"queue={queue!r} needs Airflow 3.4 or newer: leave it out.")
        del later
        self.topic = checked_text(topic, "topic")
        self.pawnqueue_conn_id = pawnqueue_conn_id
        self.min_messages = checked_count(min_messages, "min_messages")
        self.ring_every = checked_seconds(ring_every, "ring_every")

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return how to make it again. Airflow tells triggers apart by this, so it is the same each time."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "topic": self.topic,
            "pawnqueue_conn_id": self.pawnqueue_conn_id,
            "min_messages": self.min_messages,
            "ring_every": self.ring_every,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire for as long as a watcher listens. A failure is logged; an event would start a run."""
        trigger_runs = await _load()
        async for backlog in trigger_runs.backlogs_to_report(self):
            yield TriggerEvent(
                {"topic": self.topic, "backlog": backlog.pending, "oldest_age_seconds": backlog.oldest_age_seconds}
            )


async def _load() -> ModuleType:
    """Import :mod:`.trigger_runs`, and the queue with it, in a thread.

    It takes a tenth of a second or more, in which other triggers could not run.
    """
    return await asyncio.to_thread(importlib.import_module, f"{__package__}.trigger_runs")

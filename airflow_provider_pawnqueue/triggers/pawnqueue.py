"""Triggers: one that claims for a sensor, and one that rings for an asset watcher and claims nothing.

Airflow imports this in the event loop that all triggers share, so it imports little; see :func:`_load`.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from airflow.providers.common.compat.triggers import BaseEventTrigger
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_pawnqueue.hooks.arguments import DEFAULT_CONN_ID, checked_count, checked_seconds, checked_text

_WAITING: Final = f"{__package__}.waiting"


class PawnQueueClaimTrigger(BaseTrigger):
    """Waits for messages, claims them for a task, and fires once with references to the claims.

    It may be run again at any time, here or by another triggerer: by the owner's name it finds the claim that it has
    made. What it has claimed is released when a user ends the task, and by nothing else.

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
        """Wait, and fire once: with the claims, or with what only a person can mend."""
        await _load()
        from airflow_provider_pawnqueue.triggers import waiting  # noqa: PLC0415 - loaded by now

        yield TriggerEvent(await waiting.event_of(self))

    async def on_kill(self) -> None:
        """Give back what was claimed, as a user has ended the task. Not at a restart of the triggerer: that goes on."""
        try:
            await _load()
            from airflow_provider_pawnqueue.triggers import waiting  # noqa: PLC0415 - loaded by now

            await waiting.release(self)
        except Exception as error:  # noqa: BLE001 - at the end of a process, Python itself refuses threads and more
            self.log.warning("What was claimed is given back when its time is over: %s", error)


class PawnQueueEventTrigger(BaseEventTrigger):
    """Rings while there is a backlog, for an ``AssetWatcher``. It claims nothing: the DAG's own task does that.

    Airflow starts one run for a burst of asset events, and loses those of a triggerer's last second, so an event must
    not carry a claim. The trigger rings again while messages are left, once its last ring was answered by a claim; a
    ring without an answer is repeated ever more seldom. So nothing is stranded, and few runs find nothing.

    :param topic: the topic to listen to.
    :param min_messages: ring only when this many messages can be claimed.
    :param ring_every: the shortest time between two rings, in seconds.
    :param queue: the queue of triggers to run in, as Airflow's base class takes it (Airflow 3.4).
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
        if getattr(self, "queue", None) != queue:  # an older base class ignores what it does not know
            raise ValueError(f"queue={queue!r} needs Airflow 3.4 or newer: leave it out.")
        del later
        self.topic = checked_text(topic, "topic")
        self.pawnqueue_conn_id = pawnqueue_conn_id
        self.min_messages = checked_count(min_messages, "min_messages")
        self.ring_every = checked_seconds(ring_every, "ring_every")

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Say how it is made again; the same text each time, as Airflow tells triggers apart by it."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "topic": self.topic,
            "pawnqueue_conn_id": self.pawnqueue_conn_id,
            "min_messages": self.min_messages,
            "ring_every": self.ring_every,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ring for as long as a watcher listens. A failure is logged and never an event, which would start a run."""
        await _load()
        from airflow_provider_pawnqueue.triggers import waiting  # noqa: PLC0415 - loaded by now

        async for backlog in waiting.rings_of(self):
            yield TriggerEvent(
                {
                    "topic": self.topic,
                    "backlog": backlog.pending,
                    "oldest_age_seconds": backlog.oldest_age_seconds,
                }
            )


async def _load() -> None:
    """Import the queue in a thread: a tenth of a second or more, for which all triggers would stand still."""
    await asyncio.to_thread(importlib.import_module, _WAITING)

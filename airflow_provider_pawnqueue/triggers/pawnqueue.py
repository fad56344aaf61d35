"""Triggers: one that claims for a sensor, and one that rings for an asset watcher and claims nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.providers.common.compat.triggers import BaseEventTrigger
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_pawnqueue.engine import PawnQueueError, QueueClosedError, StoreError
from airflow_provider_pawnqueue.hooks import claiming
from airflow_provider_pawnqueue.hooks.claiming import Wish
from airflow_provider_pawnqueue.hooks.connection import DEFAULT_CONN_ID
from airflow_provider_pawnqueue.hooks.patience import awaited_patiently
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.triggers.polling import poll_of

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine import Backlog, PawnQueue
    from airflow_provider_pawnqueue.triggers.polling import Waiter

#: For so long who ends a task waits for what is under way on its behalf; Airflow grants 30 seconds.
PATIENCE: Final = 10.0


class PawnQueueClaimTrigger(BaseTrigger):
    """Waits for messages, claims them for a task, and fires once with references to the claims.

    It may be run again at any time, here or by another triggerer: by the owner's name it finds the claim that it has
    made. What it has claimed is released when a user ends the task, and by nothing else.

    :param topics: the topics to wait for; it fires as soon as one of them has something.
    :param owner: on whose behalf: the task, its run, and how often that was cleared.
    """

    def __init__(  # noqa: PLR0913 - what a sensor passes on
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
        del later  # what a newer release has stored is no reason to fail here
        self.topics = list(topics)
        self.owner = owner
        self.consumer = consumer
        self.pawnqueue_conn_id = pawnqueue_conn_id
        self.max_messages = max_messages
        self.min_messages = min_messages
        self.max_wait = max_wait
        self.ttl = ttl

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Say how it is made again."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "topics": self.topics,
            "owner": self.owner,
            "consumer": self.consumer,
            "pawnqueue_conn_id": self.pawnqueue_conn_id,
            "max_messages": self.max_messages,
            "min_messages": self.min_messages,
            "max_wait": self.max_wait,
            "ttl": self.ttl,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and fire once: with the claims, or with what only a person can mend."""
        hook = PawnQueueHook(self.pawnqueue_conn_id)
        try:
            await awaited_patiently(hook.client, "Opening the queue")
            claims = await hook.awaited(self._claims)
        except (PawnQueueError, AirflowNotFoundException) as error:
            yield TriggerEvent(failure(error))
        else:
            yield TriggerEvent({"claims": claims})

    async def on_kill(self) -> None:
        """Give back what was claimed, as a user has ended the task. Not at a restart of the triggerer: that goes on."""
        await PawnQueueHook(self.pawnqueue_conn_id).awaited(self._release)

    def wish(self, topic: str) -> Wish:
        """Say what is waited for in one of the topics."""
        return Wish(topic, self.owner, self.consumer, self.max_messages, self.min_messages, self.max_wait, self.ttl)

    async def _claims(self, queue: PawnQueue) -> list[dict[str, Any]]:
        """Wait for the first topic that has something, and take what others have by then."""
        joined = []
        for topic in self.topics:
            poll = poll_of(queue, topic)
            joined.append((poll, poll.join(self.wish(topic))))
        futures = [waiter.given for _, waiter in joined]
        try:
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
            for poll, waiter in joined:
                poll.last_call(waiter)
            await asyncio.wait(futures)
            return self._taken([waiter for _, waiter in joined])
        finally:
            for poll, waiter in joined:
                poll.leave(waiter)

    def _taken(self, waiters: Sequence[Waiter]) -> list[dict[str, Any]]:
        claims: list[dict[str, Any]] = []
        errors: list[PawnQueueError] = []
        for waiter in waiters:
            try:
                claim = waiter.take()
            except PawnQueueError as error:
                errors.append(error)
                self.log.warning("Nothing was claimed in topic %s: %s", waiter.wish.topic, error)
            else:
                claims += [] if claim is None else [claim]
        if errors and not claims:
            raise errors[0]
        return claims

    async def _release(self, queue: PawnQueue) -> None:
        for topic in self.topics:
            try:
                count = await claiming.released(queue, self.wish(topic), "its task was ended by a user", wait=PATIENCE)
            except PawnQueueError as error:
                self.log.warning("What was claimed in topic %s is had again when its time is over: %s", topic, error)
            else:
                self.log.info("Gave back %d messages of topic %s, as a user has ended the task.", count, topic)


def failure(error: Exception) -> dict[str, Any]:
    """Write an error as an event has it: its sentence, and whether another try may go better."""
    # A queue is closed where its process ends: the task's next try waits in another one.
    is_transient = isinstance(error, QueueClosedError) or (isinstance(error, StoreError) and error.transient)
    return {"error": str(error), "transient": is_transient}


class PawnQueueEventTrigger(BaseEventTrigger):
    """Rings while there is a backlog, for an ``AssetWatcher``. It claims nothing: the DAG's own task does that.

    Airflow starts one run for a burst of asset events, and loses those of a triggerer's last second, so an event must
    not carry a claim. This one rings again as long as there is anything left: nothing is stranded.

    :param topic: the topic to listen to.
    :param min_messages: ring only when so many can be claimed.
    :param ring_every: while they are there, ring again every so many seconds.
    """

    def __init__(
        self,
        *,
        topic: str,
        pawnqueue_conn_id: str = DEFAULT_CONN_ID,
        min_messages: int = 1,
        ring_every: float = 30.0,
        **later: Any,
    ) -> None:
        super().__init__()
        del later
        self.topic = topic
        self.pawnqueue_conn_id = pawnqueue_conn_id
        self.min_messages = min_messages
        self.ring_every = ring_every

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Say how it is made again; the same text each time, as Airflow tells triggers apart by it."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "topic": self.topic,
            "pawnqueue_conn_id": self.pawnqueue_conn_id,
            "min_messages": self.min_messages,
            "ring_every": self.ring_every,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ring for as long as somebody watches. What only a person can mend is raised: an event would start a run."""
        hook = PawnQueueHook(self.pawnqueue_conn_id)
        while True:
            backlog = await hook.awaited(self._heard)
            yield TriggerEvent(
                {
                    "topic": self.topic,
                    "backlog": backlog.pending,
                    "oldest_age_seconds": backlog.oldest_age_seconds,
                }
            )
            await asyncio.sleep(self.ring_every)

    async def _heard(self, queue: PawnQueue) -> Backlog:
        async with poll_of(queue, self.topic).bell(self.min_messages) as heard:
            rung = await heard.get()
            if isinstance(rung, PawnQueueError):
                raise rung
            return rung

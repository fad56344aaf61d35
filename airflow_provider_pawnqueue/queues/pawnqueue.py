"""The queue for Airflow's common messaging: ``MessageQueueTrigger(scheme="pawnqueue", topic="orders")``."""

from __future__ import annotations

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
from airflow.triggers.base import BaseEventTrigger

from airflow_provider_pawnqueue.triggers.pawnqueue import PawnQueueEventTrigger


class PawnQueueMessageQueueProvider(BaseMessageQueueProvider):
    """Fires while a topic has a backlog. The trigger's arguments are those of :class:`PawnQueueEventTrigger`."""

    scheme = "pawnqueue"

    def trigger_class(self) -> type[BaseEventTrigger]:
        """Return the event trigger."""
        return PawnQueueEventTrigger

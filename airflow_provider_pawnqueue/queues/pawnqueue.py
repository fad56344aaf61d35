"""The queue for Airflow's common messaging: ``MessageQueueTrigger(scheme="pawnqueue", topic="orders")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider

from airflow_provider_pawnqueue.triggers.pawnqueue import PawnQueueEventTrigger

if TYPE_CHECKING:
    from airflow.triggers.base import BaseEventTrigger


class PawnQueueMessageQueueProvider(BaseMessageQueueProvider):
    """Fires while a topic has a backlog. The trigger's arguments are those of :class:`PawnQueueEventTrigger`."""

    scheme = "pawnqueue"

    def trigger_class(self) -> type[BaseEventTrigger]:
        """Return the event trigger."""
        return PawnQueueEventTrigger

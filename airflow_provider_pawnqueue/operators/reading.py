"""Reading a claim's messages, for tasks that are mapped over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_pawnqueue.hooks import references
from airflow_provider_pawnqueue.operators.arguments import checked_count
from airflow_provider_pawnqueue.operators.base import failures
from airflow_provider_pawnqueue.operators.settling import ClaimOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class PawnQueueMessagesOperator(ClaimOperator):
    """Returns the messages of a claim, a dict each; with ``batch``, in lists of so many.

    :param claim: what the sensor returned.
    :param batch: how many a list has.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("claim", "batch", "pawnqueue_conn_id")

    def __init__(self, *, claim: Any, batch: int | None = None, **kwargs: Any) -> None:  # noqa: ANN401 - as the sensor returned it
        super().__init__(claim=claim, **kwargs)
        self.batch = batch

    def execute(self, context: Context) -> list[Any]:
        """Read them."""
        del context
        with failures():
            found = [self.hook.messages(claim, shared=True) for claim in self.claims()]
        each = [references.written(message) for messages in found for message in messages]
        if self.batch is None:
            return list(each)
        size = checked_count(self.batch, "batch")
        return [each[at : at + size] for at in range(0, len(each), size)]

"""The operator that reads a claim's messages, for tasks that are mapped over them.

⚑ A message that Airflow cannot carry is reported as failed, so that it does not keep other messages from their tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import Context

from airflow_provider_pawnqueue.hooks import references
from airflow_provider_pawnqueue.hooks.arguments import check_early, checked_count
from airflow_provider_pawnqueue.operators.base import failures
from airflow_provider_pawnqueue.operators.claim_operator import ClaimOperator
from airflow_provider_pawnqueue.operators.outputs import MessagesOutput
from pawnqueue.events import one_line


class PawnQueueMessagesOperator(ClaimOperator):
    """Returns the messages of a claim as dicts; with ``batch``, in lists of at most ``batch`` messages.

    In XCom each item is a JSON text, because Airflow would interpret some keys of dicts. Tasks that are given
    ``output`` receive dicts. ``ti.xcom_pull()`` and the output of a mapped operator give the texts:
    ``json.loads(item)``.

    :param claim: what the sensor returned.
    :param batch: the largest number of messages in a list.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("claim", "batch", "pawnqueue_conn_id")

    def __init__(self, *, claim: Any, batch: int | None = None, **kwargs: Any) -> None:  # noqa: ANN401 - as the sensor returned it
        # In a block the user does not see this task: a worker that dies here should not cost a delivery.
        super().__init__(claim=claim, **{"retries": 3, "retry_delay": timedelta(seconds=10), **kwargs})
        self.batch = check_early(batch, checked_count, "batch")

    @property
    def output(self) -> MessagesOutput:
        """The messages, for tasks that are mapped over them."""
        return MessagesOutput(self)

    def execute(self, context: Context) -> list[str]:
        """Read the messages."""
        del context
        hook = self.hook
        with failures():
            found = [message for claim in self.claims() for message in hook.messages(claim, shared=True)]
        each = [(message, references.text_of(message)) for message in found]
        not_carried = {
            message.id: f"Airflow cannot carry it: {references.obstacle_in(message.payload)}"
            for message, text in each
            if text is None
        }
        if not_carried:
            ids = one_line(", ".join(not_carried))
            self.log.error("These messages are given to no task, because Airflow cannot carry them: %s", ids)
            hook.report(failed=not_carried)
        texts = [text for _, text in each if text is not None]
        if self.batch is None:
            return texts
        size = checked_count(self.batch, "batch")
        return [f"[{', '.join(texts[at : at + size])}]" for at in range(0, len(texts), size)]

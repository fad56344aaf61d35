"""Reading a claim's messages, for tasks that are mapped over them.

⚑ A message that Airflow cannot carry keeps no other one from its task: it is reported as failed, by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_pawnqueue.hooks import references
from airflow_provider_pawnqueue.hooks.arguments import check_constants, checked_count
from airflow_provider_pawnqueue.operators.base import failures
from airflow_provider_pawnqueue.operators.claim_operator import ClaimOperator
from airflow_provider_pawnqueue.operators.outputs import MessagesOutput
from pawnqueue.events import one_line

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from pawnqueue import Message


class PawnQueueMessagesOperator(ClaimOperator):
    """Returns the messages of a claim, a dict each; with ``batch``, in lists of at most ``batch`` messages.

    In XCom each item is a JSON text, as Airflow reads the keys of dicts as its own. Tasks that are given ``output``
    receive dicts; ``ti.xcom_pull()``, and the output of a mapped one, give the texts: ``json.loads(item)``.

    :param claim: what the sensor returned.
    :param batch: how many messages a list has at most.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("claim", "batch", "pawnqueue_conn_id")

    def __init__(self, *, claim: Any, batch: int | None = None, **kwargs: Any) -> None:  # noqa: ANN401 - as the sensor returned it
        check_constants(checked_count, batch=batch)
        # It only reads, and in a block it is not the user's own: a worker that dies here should not cost a delivery.
        kwargs.setdefault("retries", 3)
        kwargs.setdefault("retry_delay", timedelta(seconds=10))
        super().__init__(claim=claim, **kwargs)
        self.batch = batch

    @property
    def output(self) -> MessagesOutput:
        """The messages, for the tasks that work on them."""
        return MessagesOutput(self)

    def execute(self, context: Context) -> list[str]:
        """Read them."""
        del context
        hook = self.hook
        with failures():
            found = [message for claim in self.claims() for message in hook.messages(claim, shared=True)]
        each = [(message, references.text_of(message)) for message in found]
        kept_back = {message.id: _why_not(message) for message, text in each if text is None}
        if kept_back:
            self.log.error(
                "No task is given these messages, as Airflow cannot carry them: %s", one_line(", ".join(kept_back))
            )
            hook.report(failed=kept_back)
        texts = [text for _, text in each if text is not None]
        if self.batch is None:
            return texts
        size = checked_count(self.batch, "batch")
        return [f"[{', '.join(texts[at : at + size])}]" for at in range(0, len(texts), size)]


def _why_not(message: Message) -> str:
    return f"Airflow cannot carry it: {references.obstacle_in(message.payload)}"

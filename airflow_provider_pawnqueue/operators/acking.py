"""Operators by which a DAG itself says what becomes of messages: acked, requeued, or buried."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from airflow.providers.common.compat.sdk import Context

from airflow_provider_pawnqueue.hooks.arguments import (
    check_early,
    checked_delay,
    checked_flag,
    checked_ids,
    checked_text,
)
from airflow_provider_pawnqueue.operators.claim_operator import ClaimOperator


class PawnQueueAckOperator(ClaimOperator):
    """Acks messages of a claim; returns the counts: ``{"acked": 3, "buried": 0, "released": 0}``.

    :param claim: what the sensor returned.
    :param ids: the ids of the messages; without it, all that are not settled.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("claim", "ids", "pawnqueue_conn_id")

    def __init__(self, *, claim: Any, ids: Sequence[str] | str | None = None, **kwargs: Any) -> None:  # noqa: ANN401 - as above
        super().__init__(claim=claim, **kwargs)
        self.ids = check_early(ids, checked_ids, "ids")

    def execute(self, context: Context) -> dict[str, int]:
        """Ack the messages."""
        del context
        return self.settle_ids(self.ids, self.hook.ack)


class PawnQueueRequeueOperator(ClaimOperator):
    """Requeues messages of a claim; returns the counts, as the ack operator does.

    They are delivered again, ``max_deliveries`` times in all. Then they become dead letters, with the reason given
    here.

    :param claim: what the sensor returned.
    :param ids: the ids of the messages; without it, all that are not settled.
    :param delay: do not deliver them again for this many seconds.
    :param reason: why they are requeued.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("claim", "ids", "delay", "reason", "pawnqueue_conn_id")

    def __init__(
        self,
        *,
        claim: Any,  # noqa: ANN401 - as above
        ids: Sequence[str] | str | None = None,
        delay: float = 0.0,
        reason: str = "requeued by its DAG",
        **kwargs: Any,
    ) -> None:
        super().__init__(claim=claim, **kwargs)
        self.ids = check_early(ids, checked_ids, "ids")
        self.delay = check_early(delay, checked_delay, "delay")
        self.reason = reason

    def execute(self, context: Context) -> dict[str, int]:
        """Requeue the messages."""
        del context
        delay = checked_delay(self.delay)
        return self.settle_ids(self.ids, partial(self.hook.requeue, delay=delay, reason=self.reason))


class PawnQueueBuryOperator(ClaimOperator):
    """Buries messages of a claim, as dead letters; returns the counts, as the ack operator does.

    :param claim: what the sensor returned.
    :param ids: the ids of the messages; without it, all that are not settled.
    :param reason: why; the dead letters keep it.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("claim", "ids", "reason", "pawnqueue_conn_id")

    def __init__(
        self,
        *,
        claim: Any,  # noqa: ANN401 - as above
        ids: Sequence[str] | str | None = None,
        reason: str = "buried by its DAG",
        **kwargs: Any,
    ) -> None:
        super().__init__(claim=claim, **kwargs)
        self.ids = check_early(ids, checked_ids, "ids")
        self.reason = check_early(reason, checked_text, "reason")

    def execute(self, context: Context) -> dict[str, int]:
        """Bury the messages."""
        del context
        return self.settle_ids(self.ids, partial(self.hook.bury, reason=self.reason))


class PawnQueueNackOperator(PawnQueueRequeueOperator):
    """Buries messages of a claim, as pawn-queue's nack does, or requeues them; returns the counts.

    The names of :class:`PawnQueueBuryOperator` and :class:`PawnQueueRequeueOperator` say which of the two they do.

    :param claim: what the sensor returned.
    :param ids: the ids of the messages; without it, all that are not settled.
    :param requeue: deliver them again; without it, they become dead letters.
    :param delay: with ``requeue``, do not deliver them again for this many seconds.
    :param reason: why; the dead letters keep it.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("claim", "ids", "requeue", "delay", "reason", "pawnqueue_conn_id")

    def __init__(self, *, requeue: bool = False, reason: str = "nacked by its DAG", **kwargs: Any) -> None:
        super().__init__(reason=reason, **kwargs)
        self.requeue = check_early(requeue, checked_flag, "requeue")

    def execute(self, context: Context) -> dict[str, int]:
        """Bury or requeue the messages."""
        del context
        requeue, delay = checked_flag(self.requeue, "requeue"), checked_delay(self.delay)
        return self.settle_ids(self.ids, partial(self.hook.nack, requeue=requeue, delay=delay, reason=self.reason))

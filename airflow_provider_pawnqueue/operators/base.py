"""What all operators of the queue share: their connection, and how they fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, BaseOperator

from airflow_provider_pawnqueue.hooks.arguments import DEFAULT_CONN_ID
from airflow_provider_pawnqueue.hooks.diagnosis import in_airflow
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.hooks.retries import may_succeed_later
from airflow_provider_pawnqueue.links import TopicLink
from pawnqueue import ClaimBusyError, PawnQueueError, PublishError, QueueClosedError, QueueFullError, StoreError


class PawnQueueOperator(BaseOperator):
    """An operator that uses the queue of a connection.

    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    operator_extra_links = (TopicLink(),)
    ui_color = "#e8f0d8"

    def __init__(self, *, pawnqueue_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pawnqueue_conn_id = pawnqueue_conn_id

    @property
    def hook(self) -> PawnQueueHook:
        """The hook of the operator's connection."""
        return PawnQueueHook(self.pawnqueue_conn_id)


@contextmanager
def failures() -> Iterator[None]:
    """Fail the task with the sentence of an error of the queue, without retries if another try would fail too."""
    try:
        yield
    except PawnQueueError as error:
        raise failure_of(error) from error


def failure_of(error: PawnQueueError) -> AirflowException:
    """Return the exception by which a task fails for an error of the queue."""
    return (AirflowException if _is_worth_a_retry(error) else AirflowFailException)(in_airflow(error))


def _is_worth_a_retry(error: PawnQueueError) -> bool:
    """Say whether another try may succeed, and would do nothing twice."""
    if isinstance(error, StoreError):
        return may_succeed_later(error)
    if isinstance(error, PublishError):
        # Only if nothing was published: another try would publish those messages again.
        return set(error.failed) == set(error.ids) and all(map(may_succeed_later, error.failed.values()))
    return isinstance(error, (ClaimBusyError, QueueClosedError, QueueFullError))

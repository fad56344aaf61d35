"""A task group that begins with a claim and ends with its settlement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import TaskGroup
from airflow.sdk.definitions.xcom_arg import PlainXComArg

from airflow_provider_pawnqueue.hooks.connection import DEFAULT_CONN_ID
from airflow_provider_pawnqueue.operators.reading import PawnQueueMessagesOperator
from airflow_provider_pawnqueue.operators.settling import PawnQueueSettleOperator
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, XComArg


class ClaimOutput(PlainXComArg):
    """The claim, as tasks are given it; and its messages, for tasks that are mapped over them."""

    def __init__(self, sensor: PawnQueueSensor) -> None:
        super().__init__(sensor)
        self.sensor = sensor
        self.settle: PawnQueueSettleOperator | None = None

    @property
    def messages(self) -> XComArg:
        """Its messages, a dict each (``id``, ``payload``, ``headers``, ``deliveries``): ``work.expand(message=...)``.

        They go through XCom: this is for hundreds, not for many thousands.
        """
        return PawnQueueMessagesOperator(
            task_id="messages", claim=self, pawnqueue_conn_id=self.sensor.pawnqueue_conn_id
        ).output

    def batches(self, size: int) -> XComArg:
        """Its messages, in lists of so many: ``work.expand(messages=claim.batches(50))``."""
        return PawnQueueMessagesOperator(
            task_id=f"batches_of_{size}", claim=self, batch=size, pawnqueue_conn_id=self.sensor.pawnqueue_conn_id
        ).output


@contextmanager
def claimed(  # noqa: PLR0913 - all but the topic have a default
    topic: str | Sequence[str],
    *,
    group_id: str | None = None,
    on_failure: str = "requeue",
    delay: float = 0.0,
    pawnqueue_conn_id: str = DEFAULT_CONN_ID,
    deferrable: bool = True,
    **sensor_arguments: Any,
) -> Iterator[ClaimOutput]:
    """Claim messages, work on them in the tasks of a block, and settle them by what became of those tasks.

    The group has a task ``claim``, which waits; then yours; then ``settle``, which runs whatever becomes of them.

    :param topic: the topic, or a list of them.
    :param group_id: the group's name; without it, that of the topic.
    :param on_failure: what becomes of messages whose task failed: ``requeue`` or ``bury``.
    :param delay: requeue: not to be delivered for so many seconds.
    :param sensor_arguments: any others of :class:`PawnQueueSensor`: ``max_messages``, ``min_messages``, ``ttl``, ...
    """
    first = topic if isinstance(topic, str) else topic[0]
    with TaskGroup(group_id or first.replace(".", "_")) as group:
        sensor = PawnQueueSensor(
            task_id="claim", topic=topic, pawnqueue_conn_id=pawnqueue_conn_id, deferrable=deferrable, **sensor_arguments
        )
        claim = ClaimOutput(sensor)
        yield claim
        work = [task for task in group.iter_tasks() if task.task_id != sensor.task_id]
        settle = PawnQueueSettleOperator(
            task_id="settle", claim=claim, on_failure=on_failure, delay=delay, pawnqueue_conn_id=pawnqueue_conn_id
        )
        claim.settle = settle
        _bind(sensor, work, settle)


def _bind(sensor: BaseOperator, work: Sequence[Any], settle: BaseOperator) -> None:
    """Let each task of the block come after the claim and before its settlement, given the claim or not."""
    ours = {task.task_id for task in work}
    for task in work:
        if not task.upstream_task_ids & (ours | {sensor.task_id}):
            task.set_upstream(sensor)
        if not task.downstream_task_ids & ours:
            task.set_downstream(settle)

"""A task group that begins with a claim and ends with its settlement."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.common.compat.sdk import TaskGroup

from airflow_provider_pawnqueue.hooks.arguments import DEFAULT_CONN_ID
from airflow_provider_pawnqueue.operators.outputs import ClaimsOutput
from airflow_provider_pawnqueue.operators.reading import PawnQueueMessagesOperator
from airflow_provider_pawnqueue.operators.settling import PawnQueueSettleOperator
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, XComArg


class ClaimOutput(ClaimsOutput):
    """The claim, as tasks are given it; and its messages, for tasks that are mapped over them.

    Behind the block, ``claim >> task`` lets a task come after the settlement, whatever became of the work.
    """

    def __init__(self, sensor: PawnQueueSensor) -> None:
        super().__init__(sensor)
        self.sensor = sensor
        self.settle: PawnQueueSettleOperator | None = None
        self._read: dict[str, XComArg] = {}

    @property
    def messages(self) -> XComArg:
        """Its messages, a dict each (``id``, ``payload``, ``headers``, ``deliveries``): ``work.expand(message=...)``.

        They go through XCom: this is for hundreds, not for many thousands.
        """
        return self._reading("messages", None)

    def batches(self, size: int) -> XComArg:
        """Its messages, in lists of at most ``size``: ``work.expand(messages=claim.batches(50))``."""
        return self._reading(f"batches_of_{size}", size)

    @property
    def settled(self) -> XComArg:
        """What became of the messages, behind the block: ``alert(claim.settled)``.

        A dict: how many were ``acked``, ``buried`` and ``released`` (given back), and ``why``, a list of ``outcome``,
        ``reason``, ``count`` and the first ``ids``.
        """
        if self.settle is None:
            raise ValueError(
                "claim.settled is asked for behind the block of its `with claimed(...)`: in it nothing is settled yet."
            )
        return self.settle.settled

    @property
    def leaves(self) -> list[Any]:
        """What comes before a task in ``claim >> task``: the claim in its block, and its settlement behind it."""
        return super().leaves if self.settle is None else self.settled.leaves

    def set_downstream(self, task_or_task_list: Any, edge_modifier: Any = None) -> None:  # noqa: ANN401 - as Airflow has it
        """Let tasks come after the claim in its block, and after its settlement behind it."""
        if self.settle is None:
            super().set_downstream(task_or_task_list, edge_modifier)
        else:
            self.settled.set_downstream(task_or_task_list, edge_modifier)

    def _reading(self, task_id: str, batch: int | None) -> XComArg:
        """Return the output of the task that reads them, which is made where it is first asked for."""
        if task_id not in self._read:
            if self.settle is not None:
                raise ValueError(
                    "The messages of a claim are asked for in the block of its `with claimed(...)`: behind it they are "
                    "settled."
                )
            self._read[task_id] = PawnQueueMessagesOperator(
                task_id=task_id,
                claim=self,
                batch=batch,
                pawnqueue_conn_id=self.sensor.pawnqueue_conn_id,
                task_group=self.sensor.task_group,
            ).output
        return self._read[task_id]


#: What the name of a task group may not have in it: topics may be templates.
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")


@contextmanager
def claimed(  # noqa: PLR0913 - all but the topic have a default
    topic: str | Sequence[str],
    *,
    group_id: str | None = None,
    on_failure: str = "requeue",
    on_reported: str | None = None,
    delay: float = 0.0,
    pawnqueue_conn_id: str = DEFAULT_CONN_ID,
    deferrable: bool = True,
    **sensor_arguments: Any,
) -> Iterator[ClaimOutput]:
    """Claim messages, work on them in the tasks of a block, and settle them by what became of those tasks.

    The group has a task ``claim``, which waits; then yours; then ``settle``, which runs whatever becomes of them.
    Yours are those that are made in the block. One behind it that is given the claim is refused, before anything is
    settled.

    :param topic: the topic, or a list of them: then tasks are given a list of claims.
    :param group_id: the group's name; without it, that of the topic.
    :param on_failure: what becomes of messages whose task failed: ``requeue`` or ``bury``.
    :param on_reported: what becomes of messages that a task reported as failed, ``requeue`` or ``bury``; without it,
        what ``on_failure`` says.
    :param delay: requeue: not to be delivered for so many seconds.
    :param pawnqueue_conn_id: the connection that says where the queue is. Tasks of the block that use the hook name it
        too: ``PawnQueueHook(conn_id)``.
    :param deferrable: wait in the triggerer, which needs no worker. Else ``claim`` polls.
    :param sensor_arguments: any others of :class:`PawnQueueSensor`, and of tasks: ``max_messages``, ``min_messages``,
        ``ttl``, ``timeout``, ``soft_fail``, ``retries``, ...
    """
    if not topic:
        raise ValueError(f"claimed(topic={topic!r}): name a topic, or a list of topics.")
    first = topic[0] if isinstance(topic, (list, tuple)) else topic  # else what a mapped group is given
    named = _NO_NAME.sub("_", first if isinstance(first, str) else "").strip("_") or "claimed"
    # Several blocks for one topic are "orders", "orders__1", ...; a name that was given is taken as it is.
    with TaskGroup(group_id or named, add_suffix_on_collision=group_id is None) as group:
        sensor = PawnQueueSensor(
            task_id="claim", topic=topic, pawnqueue_conn_id=pawnqueue_conn_id, deferrable=deferrable, **sensor_arguments
        )
        claim = ClaimOutput(sensor)
        yield claim
        work = [task for task in group.iter_tasks() if task.task_id != sensor.task_id]
        settle = PawnQueueSettleOperator(
            task_id="settle",
            claim=claim,
            on_failure=on_failure,
            on_reported=on_reported,
            delay=delay,
            pawnqueue_conn_id=pawnqueue_conn_id,
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

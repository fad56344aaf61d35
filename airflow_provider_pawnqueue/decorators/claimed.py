"""A task group that begins with a claim and ends with its settlement."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from airflow.providers.common.compat.sdk import BaseOperator, TaskGroup, XComArg

from airflow_provider_pawnqueue.hooks.arguments import DEFAULT_CONN_ID
from airflow_provider_pawnqueue.operators.outputs import ClaimsOutput
from airflow_provider_pawnqueue.operators.reading import PawnQueueMessagesOperator
from airflow_provider_pawnqueue.operators.settling import PawnQueueSettleOperator
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor


class ClaimOutput(ClaimsOutput):
    """The claim of a block: pass it to tasks, or map tasks over its messages.

    After the block, ``claim >> task`` lets a task come after the settlement, whether the work succeeded or not.
    """

    def __init__(self, sensor: PawnQueueSensor) -> None:
        super().__init__(sensor)
        self.sensor = sensor
        self.settle: PawnQueueSettleOperator | None = None
        self._messages: dict[str, XComArg] = {}

    @property
    def messages(self) -> XComArg:
        """Its messages as dicts (``id``, ``payload``, ``headers``, ``deliveries``): ``work.expand(message=...)``.

        They go through XCom, which is made for hundreds of messages, not for many thousands.
        """
        return self._output_of_reader("messages", None)

    def batches(self, size: int) -> XComArg:
        """Its messages, in lists of at most ``size``: ``work.expand(messages=claim.batches(50))``."""
        return self._output_of_reader(f"batches_of_{size}", size)

    @property
    def settled(self) -> XComArg:
        """What became of the messages, for tasks after the block: ``alert(claim.settled)``.

        A dict: how many were ``acked``, ``buried`` and ``released`` (given back), and ``why``, a list of ``outcome``,
        ``reason``, ``count`` and the first ``ids``.
        """
        if self.settle is None:
            raise ValueError(
                "Use claim.settled after the block of its `with claimed(...)`: in the block nothing is settled yet."
            )
        return self.settle.settled

    @property
    def leaves(self) -> list[Any]:
        """What Airflow puts ``task`` after in ``claim >> task``: the sensor in the block, the settlement after it."""
        return super().leaves if self.settle is None else self.settled.leaves

    def set_downstream(self, task_or_task_list: Any, edge_modifier: Any = None) -> None:  # noqa: ANN401 - as Airflow has it
        """Let tasks come after the claim inside the block, and after its settlement after the block."""
        if self.settle is None:
            super().set_downstream(task_or_task_list, edge_modifier)
        else:
            self.settled.set_downstream(task_or_task_list, edge_modifier)

    def _output_of_reader(self, task_id: str, batch: int | None) -> XComArg:
        """Return the output of the task that reads the messages; make that task on the first call."""
        if task_id not in self._messages:
            if self.settle is not None:
                raise ValueError(
                    "Use the messages of a claim in the block of its `with claimed(...)`: after it they are settled."
                )
            self._messages[task_id] = PawnQueueMessagesOperator(
                task_id=task_id,
                claim=self,
                batch=batch,
                pawnqueue_conn_id=self.sensor.pawnqueue_conn_id,
                task_group=self.sensor.task_group,
            ).output
        return self._messages[task_id]


#: Characters that the name of a task group may not have; a topic may be a template.
_NOT_IN_A_GROUP_ID: Final = re.compile(r"[^A-Za-z0-9_-]+")


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

    The block is a task group. Its first task, ``claim``, waits for messages. Then come your tasks, which are those made
    inside the block. Its last task, ``settle``, runs even if one of them failed. If a task after the block is given the
    claim, ``settle`` fails before it settles anything.

    :param topic: the topic, or a list of topics, whose tasks are given a list of claims.
    :param group_id: the group's name; without it, the topic's.
    :param on_failure: what becomes of messages whose task failed: ``requeue`` or ``bury``.
    :param on_reported: what becomes of messages that a task reported as failed, ``requeue`` or ``bury``; without it,
        the same as ``on_failure``.
    :param delay: do not deliver requeued messages again for this many seconds.
    :param pawnqueue_conn_id: the connection that says where the queue is. Tasks of the block that use the hook name it
        too: ``PawnQueueHook(conn_id)``.
    :param deferrable: wait in the triggerer, which occupies no worker. Otherwise ``claim`` polls on a worker.
    :param sensor_arguments: other arguments of :class:`PawnQueueSensor` and of tasks: ``max_messages``,
        ``min_messages``, ``ttl``, ``timeout``, ``soft_fail``, ``retries``, ...
    """
    if not topic:
        raise ValueError(f"claimed(topic={topic!r}): name a topic, or a list of topics.")
    first = topic[0] if isinstance(topic, (list, tuple)) else topic  # which may be the argument of a mapped group
    name = _NOT_IN_A_GROUP_ID.sub("_", first if isinstance(first, str) else "").strip("_") or "claimed"
    # Several blocks for one topic are named "orders", "orders__1", ...; a given group_id is used as it is.
    with TaskGroup(group_id or name, add_suffix_on_collision=group_id is None) as group:
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
        _connect(sensor, work, settle)


def _connect(sensor: BaseOperator, work: Sequence[Any], settle: BaseOperator) -> None:
    """Let each task of the block come after the claim and before the settlement, even if it is not given the claim."""
    ids = {task.task_id for task in work}
    for task in work:
        if not task.upstream_task_ids & (ids | {sensor.task_id}):
            task.set_upstream(sensor)
        if not task.downstream_task_ids & ids:
            task.set_downstream(settle)

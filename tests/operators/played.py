"""A claim, a DAG that works on it and settles it, and what became of its tasks."""

from __future__ import annotations

import itertools
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_pawnqueue.operators.pawnqueue import (
    PawnQueueMessagesOperator,
    PawnQueueSettleOperator,
)
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor
from pawnqueue import SyncPawnQueue
from tests.support.airflow import TOPIC, FakeTask, context_of

_RUNS = itertools.count()
NOBODY = context_of(FakeTask("any"))


def claim_of(
    queue: SyncPawnQueue, count: int = 3, *, topic: str = TOPIC, task_id: str = "claim", clear_number: int | None = None
) -> dict[str, Any]:
    """Publish messages and claim them with the sensor; return the claim, with its messages, as tasks receive it.

    :param clear_number: how often the run that claims was cleared; without it, the claim has a run of its own.
    """
    queue.publish(topic, [{"n": number, "id": f"order-{number}"} for number in range(count)])
    sensor = PawnQueueSensor(task_id=task_id, topic=topic, deferrable=False, poke_interval=0.05, timeout=5)
    ti = FakeTask(task_id, run_id=f"run-{next(_RUNS)}" if clear_number is None else "run")
    claim: dict[str, Any] = sensor.output.decoded(sensor.execute(context_of(ti, clear_number=clear_number or 0)))
    return claim


def counts_of(settlement: dict[str, Any]) -> tuple[int, int, int]:
    """Return how many messages a settlement has acked, buried, and given back."""
    return settlement["acked"], settlement["buried"], settlement["released"]


def ids_of(claim: dict[str, Any]) -> list[str]:
    """Return the ids of a claim's messages."""
    return [message["id"] for message in claim["messages"]]


def left(queue: SyncPawnQueue, topic: str = TOPIC) -> tuple[int, int, int]:
    """Return how many messages are pending, in flight, and dead."""
    stats = queue.stats(topic)
    return stats.pending, stats.in_flight, stats.dead


def reasons(queue: SyncPawnQueue) -> dict[int, str]:
    """Return the reasons of the dead letters, by the numbers in their payloads."""
    return {
        letter.message.payload["n"]: letter.reason for letter in queue.dead_letters(TOPIC).letters if letter.message
    }


class Play:
    """A DAG of a sensor, work, and a settlement, and what became of its tasks."""

    def __init__(self, **more: Any) -> None:
        with DAG("dag", schedule=None) as self.dag:
            self.sensor = PawnQueueSensor(task_id="claim", topic=TOPIC)
            self.work(self.sensor.output)
            self.settle = PawnQueueSettleOperator(task_id="settle", claim=self.sensor.output, **more)
            for one in list(self.dag.tasks):
                if one.task_id not in ("claim", "settle") and not one.downstream_task_ids:
                    one >> self.settle
        self.ti = FakeTask("settle", states={"claim": "success", "settle": "running"})

    def work(self, claim: Any) -> None:
        """Make the tasks between the claim and its settlement."""

        @task
        def work(claim: Any) -> None: ...

        @task
        def after() -> None: ...

        work(claim) >> after()

    def ended(self, claim: Any, **states: str | None) -> dict[str, Any]:
        """Settle after the tasks have ended in these states."""
        self.ti.states |= states
        self.settle.claim = claim
        return self.settle.execute(self.ti.get_template_context())


class Mapped(Play):
    """The same DAG, with work that is mapped over the messages."""

    over: Any = None

    def work(self, claim: Any) -> None:
        """Make the tasks between the claim and its settlement."""
        reading = PawnQueueMessagesOperator(task_id="messages", claim=claim)

        @task
        def work(message: Any) -> None: ...

        work.expand(message=reading.output)


class Chosen(Mapped):
    """The same DAG, with work that is mapped over the result of a user's task."""

    def work(self, claim: Any) -> None:
        """Make the tasks between the claim and its settlement."""

        @task
        def messages(claim: Any) -> Any: ...

        @task
        def work(message: Any) -> None: ...

        work.expand(message=messages(claim))


def mapped(claim: dict[str, Any], over: Any, play: Play | None = None, **states: str) -> Play:
    """Return a play whose mapped task was given these items, with the states of its indexes."""
    play = Mapped(on_failure="bury") if play is None else play
    play.ti.xcom_push("return_value", over, task_id="messages")
    play.ti.states |= {"messages": "success"} | states
    return play

"""Which messages an index of a mapped task decides about, and which state that Airflow reports is its own."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, task, task_group

from airflow_provider_pawnqueue.hooks.task_notes import SKIPPED_KEY
from airflow_provider_pawnqueue.operators import skips
from airflow_provider_pawnqueue.operators.pawnqueue import PawnQueueSettleOperator
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor
from pawnqueue import MemoryStore, SyncPawnQueue
from pawnqueue.catalog import units
from tests.operators.played import Play, claim_of, ids_of, left, mapped
from tests.support.airflow import TOPIC, FakeTask, connected, context_of

TOPICS = [TOPIC, "other", "more"]


def test_a_deleted_task_was_named_like_an_index(queue: SyncPawnQueue) -> None:
    """The row of the deleted task is not taken for the state of the index."""
    claim = claim_of(queue, 2)
    play = mapped(claim, claim["messages"], work_0="success", work_1="failed")
    play.ti.deleted = {"work_1": "removed"}
    with pytest.raises(AirflowFailException, match=r"1 acked, 1 buried.*work\[1\] \(failed\)"):
        play.ended(claim)


@pytest.mark.parametrize("state", ["upstream_failed", None])
def test_all_indexes_were_removed(queue: SyncPawnQueue, state: str | None) -> None:
    """A task whose indexes were removed has not run. After a failed input, no message is to blame for that."""
    claim = claim_of(queue, 2)
    play = mapped(claim, claim["messages"], work_0="removed", work_1="removed")
    play.ti.states |= {"work": state} if state else {}
    with pytest.raises(AirflowFailException, match="2 given back" if state else "2 buried"):
        play.ended(claim)


class Several:
    """A sensor that is mapped over topics, work that is mapped over its claims, and one settlement of all."""

    def __init__(self, queue: SyncPawnQueue, *, group: bool, claims: int = 2) -> None:
        with DAG("dag", schedule=None):
            sensor = PawnQueueSensor.partial(task_id="claim").expand(topic=TOPICS[:claims])

            @task
            def work(claim: Any) -> None: ...

            @task
            def after() -> None: ...

            @task_group
            def each(claim: Any) -> None:
                work(claim) >> after()

            done: Any = (each if group else work).expand(claim=sensor.output)
            self.settle = PawnQueueSettleOperator(task_id="settle", claim=sensor.output)
            done >> self.settle
        for topic in TOPICS[1:claims]:
            queue.create_topic(topic)
        self.queue, self.topics = queue, TOPICS[:claims]
        self.settle.claim = [claim_of(queue, 2, topic=topic) for topic in self.topics]
        self.ti = FakeTask("settle")
        for index, claim in enumerate(self.settle.claim):
            self.ti.states[f"claim_{index}"] = "success"
            self.ti.xcom_push("return_value", claim, task_id="claim", map_index=index)

    def ended(self, **states: str) -> str:
        """Let the tasks have ended so, settle, and return what was said."""
        self.ti.states |= {name.replace("each__", "each."): state for name, state in states.items()}
        try:
            return str(self.settle.execute(context_of(self.ti)))
        except AirflowFailException as error:
            return str(error)

    @property
    def left(self) -> list[int]:
        """How many messages of each topic wait to be delivered again."""
        return [left(self.queue, topic)[0] for topic in self.topics]


@pytest.mark.parametrize("failed", [0, 1])
def test_a_group_that_is_mapped_over_claims(queue: SyncPawnQueue, failed: int) -> None:
    """Each index decides about the claim that it was given, in every task of the group."""
    play = Several(queue, group=True)
    states = {f"each__{name}_{index}": "success" for name in ("work", "after") for index in range(2)}
    states |= {f"each__work_{failed}": "failed", f"each__after_{failed}": "upstream_failed"}
    assert "2 acked, 0 buried, 2 given back" in play.ended(**states)
    assert play.left == [2 if index == failed else 0 for index in range(2)]


def test_a_task_that_is_mapped_over_claims(queue: SyncPawnQueue) -> None:
    """Each index of a mapped task decides about the claim that it was given."""
    play = Several(queue, group=False)
    assert "2 acked, 0 buried, 2 given back" in play.ended(work_0="success", work_1="failed")
    assert play.left == [0, 2]


@pytest.mark.parametrize("skipped", [None, 0])
def test_a_claim_that_no_index_was_given(queue: SyncPawnQueue, skipped: int | None) -> None:
    """If an index of the sensor was cleared alone, all claims are given back: no index has worked on its claim."""
    play = Several(queue, group=True, claims=3)
    if skipped is not None:
        play.ti.states[f"claim_{skipped}"] = "skipped"
        del play.ti.xcoms["claim", "return_value", skipped], play.settle.claim[skipped]
    states = {f"each__{name}_{index}": "success" for name in ("work", "after") for index in range(2)}
    assert f"0 acked, 0 buried, {2 * len(play.settle.claim)} given back" in play.ended(**states)


def test_an_index_was_skipped_by_hand_and_another_one_by_itself(
    queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that skips itself in one index does not explain a skip in another index."""
    monkeypatch.setattr(skips, "SKIP_NOTE_WAIT_SECONDS", 0.0)
    play = Several(queue, group=True)
    play.ti.xcom_push(SKIPPED_KEY, value=True, task_id="each.work", map_index=0)
    states = {"each__work_0": "skipped", "each__after_0": "skipped"}
    said = play.ended(**states, each__work_1="success", each__after_1="skipped")
    assert "2 acked, 0 buried, 2 given back" in said
    assert "each.after[1] (skipped)" in said
    assert play.left == [0, 2]


class Named(Play):
    """Work that is mapped over names of topics."""

    def work(self, claim: Any) -> None:
        """Make the tasks between the claim and its settlement."""

        @task
        def work(claim: Any, topic: str) -> None: ...

        work.partial(claim=claim).expand(topic=TOPICS)


def test_a_literal_names_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of the DAG file that an index was given is not taken for a message's id: its failure concerns all."""
    store, uuid = MemoryStore(), "11111111-2222-4333-8444-555555555555"
    with contextmanager(connected)(monkeypatch, store=store) as queue:
        planted = json.dumps({"id": TOPIC, "topic": TOPIC, "payload": {"n": 9}}).encode()
        store._write(units.key_of(TOPIC, f"20200101T000000_000000-{uuid}.json"), planted)
        claim = claim_of(queue, 2)
        assert TOPIC in ids_of(claim)
        with pytest.raises(AirflowFailException, match="0 acked, 0 buried, 3 given back"):
            Named().ended(claim, work_0="failed", work_1="success", work_2="success")

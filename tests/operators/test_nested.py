"""A block inside another block: what becomes of the outer messages if the inner claim is skipped."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, task

from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.hooks.task_notes import SKIPPED_KEY
from airflow_provider_pawnqueue.operators import skips
from pawnqueue import SyncPawnQueue
from tests.operators.played import claim_of, left
from tests.support.airflow import TOPIC, FakeTask, context_of

INNER = ("claim", "both", "after", "settle")


class Nested:
    """Work on an outer claim, and work on both of them in an inner block, which a branch may leave out."""

    def __init__(self, queue: SyncPawnQueue) -> None:
        with DAG("dag", schedule=None) as dag, claimed(TOPIC, group_id="outer", on_failure="bury") as outer:

            @task
            def alone(claim: Any) -> None: ...

            @task
            def both(outer: Any, inner: Any) -> None: ...

            @task
            def after() -> None: ...

            begun = alone(outer)
            with claimed("other", group_id="inner", soft_fail=True) as inner:
                both(outer, inner) >> after()
            begun >> inner.sensor
        self.dag, self.queue = dag, queue
        self.settle: Any = dag.get_task("outer.settle")
        self.settle.claim = claim_of(queue, 2, task_id="outer.claim")
        self.ti = FakeTask("outer.settle", states={"outer.claim": "success", "outer.alone": "success"})

    def ended(self, **inner: str) -> dict[str, Any]:
        """Let the tasks of the inner block have ended so, and settle the outer claim."""
        self.ti.states |= {f"outer.inner.{name}": inner.get(name, "skipped") for name in INNER}
        told: dict[str, Any] = self.settle.execute(context_of(self.ti))
        return told

    def skips_itself(self, task_id: str) -> None:
        """Let a task say that it has skipped itself."""
        self.ti.xcom_push(SKIPPED_KEY, value=True, task_id=task_id)


@pytest.fixture
def nested(queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch) -> Nested:
    """Return such a DAG; no test waits for a note of a skip."""
    monkeypatch.setattr(skips, "SKIP_NOTE_WAIT_SECONDS", 0.0)
    return Nested(queue)


def test_an_inner_claim_is_skipped(nested: Nested) -> None:
    """The work on both claims did not run, so the outer messages are given back, and none is buried."""
    nested.skips_itself("outer.inner.claim")
    with pytest.raises(
        AirflowFailException, match=r"2 given back.*inner.both \(skipped\), outer.inner.after \(skipped\)\."
    ):
        nested.ended()
    assert left(nested.queue) == (2, 0, 0), "nothing is to blame, so nothing is buried"
    why = "outer.inner.both was skipped, because a claim was that it should have worked on"
    assert [each["reason"] for each in nested.ti.xcom_pull("outer.settle")["why"]] == [why]


def test_work_on_both_runs_without_an_inner_claim(nested: Nested) -> None:
    """The outer messages are acked if that work succeeds, though the inner settlement is skipped."""
    nested.skips_itself("outer.inner.claim")
    assert nested.ended(both="success", after="success")["acked"] == 2


def test_work_on_both_skips_itself(nested: Nested) -> None:
    """The outer messages are acked, as in any block whose task skips itself."""
    nested.skips_itself("outer.inner.both")
    assert nested.ended(claim="success", settle="success")["acked"] == 2


def test_a_branch_leaves_out_the_inner_block(nested: Nested) -> None:
    """The outer messages are acked: the DAG has decided that they need no more work."""
    nested.ti.xcom_push("skipmixin_key", {"skipped": ["outer.inner.claim"]}, task_id="outer.alone")
    assert nested.ended()["acked"] == 2


def test_an_inner_claim_is_skipped_by_hand(nested: Nested) -> None:
    """Nobody has worked on the outer messages, so they are not acked."""
    with pytest.raises(AirflowFailException, match=r"2 buried.*inner.claim \(skipped\)"):
        nested.ended()

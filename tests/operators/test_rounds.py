"""What tasks noted before their run was cleared does not count afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import task

from airflow_provider_pawnqueue import plugin
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.hooks.task_notes import REPORT_KEY, SKIPPED_KEY
from airflow_provider_pawnqueue.operators import skips
from pawnqueue import SyncPawnQueue
from tests.operators.played import Play, claim_of, ids_of
from tests.support.airflow import FakeTask


def test_a_task_had_skipped_itself_before_its_run_was_cleared(
    queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it has not run again, nobody has worked on the new claim: its messages are given back, and none is buried."""
    monkeypatch.setattr(skips, "SKIP_NOTE_WAIT_SECONDS", 0.0)
    claim, play = claim_of(queue), Play(on_failure="bury")
    play.ti.xcom_push(SKIPPED_KEY, value=True, task_id="work")
    play.ti.clear_number = 1
    with pytest.raises(AirflowFailException, match="0 acked, 0 buried, 3 given back"):
        play.ended(claim, work="skipped", after="success")


class Branched(Play):
    """Work, and a second task that a branch beside the claim may leave out."""

    def work(self, claim: Any) -> None:
        """Make the tasks between the claim and its settlement."""

        @task
        def work(claim: Any) -> None: ...

        @task
        def after() -> None: ...

        @task
        def branch() -> None: ...

        [work(claim), branch()] >> after()


@pytest.mark.parametrize("state", ["success", "skipped", None])
def test_a_branch_had_left_out_work_before_its_run_was_cleared(
    queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    """If the branch has not run again, it does not explain why the work was skipped."""
    monkeypatch.setattr(skips, "SKIP_NOTE_WAIT_SECONDS", 0.0)
    claim, play = claim_of(queue), Branched()
    play.ti.xcom_push("skipmixin_key", {"skipped": ["after"]}, task_id="branch")
    play.ti.clear_number = 1
    if state == "success":
        assert play.ended(claim, work="success", branch=state, after="skipped")["acked"] == 3
    else:
        with pytest.raises(AirflowFailException, match="3 given back"):
            play.ended(claim, work="success", branch=state, after="skipped")


def test_what_was_reported_before_a_run_was_cleared(queue: SyncPawnQueue) -> None:
    """What a cleared task reported as done is not acked; what an uncleared task reported as failed still is."""
    claim, play = claim_of(queue), Play()
    play.ti.clear_number = 2
    told = {"failed": {}, "done": ids_of(claim), "round": 1}
    play.ti.xcom_push(REPORT_KEY, json.dumps(told), task_id="work")
    with pytest.raises(AirflowFailException, match="3 given back"):
        play.ended(claim, work=None, after="success")
    claim, play = claim_of(queue), Play(on_failure="bury")
    play.ti.clear_number = 1
    play.ti.xcom_push(REPORT_KEY, json.dumps({"failed": {ids_of(claim)[0]: "no stock"}, "done": []}), task_id="work")
    assert play.ended(claim, work="success", after="success")["buried"] == 1


def test_what_was_told_since_a_run_was_cleared(queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes and reports of the run's second round count."""
    claim, play = claim_of(queue), Play()
    play.ti.clear_number = 1
    work: Any = FakeTask("work")
    work.task, work.clear_number, work.xcoms = play.dag.get_task("work"), 1, play.ti.xcoms
    plugin.on_task_instance_skipped(None, work)
    assert play.ended(claim, work="skipped", after="skipped")["acked"] == 3

    claim, play = claim_of(queue), Play()
    play.ti.clear_number, work.xcoms = 1, play.ti.xcoms
    monkeypatch.setattr("airflow.providers.common.compat.sdk.get_current_context", work.get_template_context)
    for message in ids_of(claim)[:2]:
        PawnQueueHook.report(done=[message])
    with pytest.raises(AirflowFailException, match="2 acked, 0 buried, 1 given back"):
        play.ended(claim, work="failed", after="success")

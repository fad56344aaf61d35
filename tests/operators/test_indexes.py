"""What an index of a mapped task speaks for, and which row of the run is its own."""

from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_pawnqueue.engine import SyncPawnQueue
from tests.operators.played import claim_of, mapped


def test_a_deleted_task_was_named_like_an_index(queue: SyncPawnQueue) -> None:
    """Its row is left in the run, and hides the row of an index to whoever asks for all states."""
    claim = claim_of(queue, 2)
    play = mapped(claim, claim["messages"], work_0="success", work_1="failed")
    play.ti.deleted = {"work_1": "removed"}
    with pytest.raises(AirflowFailException, match=r"1 acked, 1 buried.*work\[1\] \(failed\)"):
        play.ended(claim)


@pytest.mark.parametrize("state", ["upstream_failed", None])
def test_all_indexes_were_removed(queue: SyncPawnQueue, state: str | None) -> None:
    """The run was cleared, and what the task was mapped over failed: it has not run, whatever it had before."""
    claim = claim_of(queue, 2)
    play = mapped(claim, claim["messages"], work_0="removed", work_1="removed")
    play.ti.states |= {"work": state} if state else {}
    with pytest.raises(AirflowFailException, match="2 given back" if state else "2 buried"):
        play.ended(claim)

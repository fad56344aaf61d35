"""Claims of packs, to the operators: each message of theirs is settled, reported and mapped over by its id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.hooks.task_notes import REPORT_KEY
from airflow_provider_pawnqueue.operators.pawnqueue import PawnQueueAckOperator, PawnQueueBuryOperator
from tests.operators.played import NOBODY, Play, claim_of, counts_of, ids_of, left, mapped, reasons
from tests.support.airflow import TOPIC, connected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pawnqueue import SyncPawnQueue


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncPawnQueue]:
    """The queue of the default connection, whose topic allows packs; two messages are enough for one."""
    for queue in connected(monkeypatch, packs={"min_messages": 2}):
        queue.update_topic(TOPIC, packs=True)
        yield queue


def test_each_message_has_its_task(queue: SyncPawnQueue) -> None:
    """Of a mapped task, one instance fails: its message is buried, and the others are acked."""
    claim = claim_of(queue, 3)
    assert "#" in PawnQueueHook().messages(claim)[0].unit
    play = mapped(claim, claim["messages"], work_0="success", work_1="failed", work_2="success")
    with pytest.raises(AirflowFailException, match="2 acked, 1 buried, 0 given back"):
        play.ended(claim)
    assert left(queue) == (0, 0, 1)


@pytest.mark.parametrize("acked", [[1], [0, 1], [0, 1, 2]])
def test_what_a_task_has_acked_concerns_no_other_message(queue: SyncPawnQueue, acked: list[int]) -> None:
    """A message that its task acked before it failed stays acked, and the others are acked too."""
    claim = claim_of(queue, 3)
    PawnQueueHook().ack(claim, [ids_of(claim)[number] for number in acked])
    with pytest.raises(AirflowFailException):
        mapped(claim, claim["messages"], work_0="success", work_1="failed", work_2="success").ended(claim)
    assert left(queue) == (0, 0, 0)


def test_a_report_names_messages(queue: SyncPawnQueue) -> None:
    """A message that a task reports as failed is buried alone."""
    claim, play = claim_of(queue, 3), Play(on_failure="bury")
    play.ti.xcom_push(REPORT_KEY, {"failed": {ids_of(claim)[1]: "no stock"}}, task_id="work")
    settled = play.ended(claim, work="success", after="success")
    assert counts_of(settled) == (2, 1, 0)
    assert settled["why"][0]["ids"] == [ids_of(claim)[1]]
    assert reasons(queue) == {1: "work: no stock"}


def test_ids_are_settled(queue: SyncPawnQueue) -> None:
    """Some by one operator, the rest by another. A letter is written once all of its pack is settled."""
    claim = claim_of(queue, 3)
    with pytest.raises(AirflowFailException, match="nobody"):
        PawnQueueBuryOperator(task_id="bury", claim=claim, ids=["nobody"], reason="x").execute(NOBODY)
    bury = PawnQueueBuryOperator(task_id="bury", claim=claim, ids=ids_of(claim)[:1], reason="no such order")
    assert bury.execute(NOBODY)["buried"] == 1
    assert reasons(queue) == {}
    assert PawnQueueAckOperator(task_id="ack", claim=claim).execute(NOBODY)["acked"] == 2
    assert reasons(queue) == {0: "no such order"}
    assert left(queue) == (0, 0, 1)


def test_the_hook_settles_by_messages(queue: SyncPawnQueue) -> None:
    """A message that was read, or came by XCom, means itself."""
    claim, hook = claim_of(queue, 3), PawnQueueHook()
    first, second, _ = hook.messages(claim)
    done = hook.settle(claim, bury={first: "no stock"}, requeue={second.id: "later"})
    assert (done.buried, done.released, len(done.acked)) == ([first.id], [second.id], 1)

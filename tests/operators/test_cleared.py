"""Part of a run is cleared: only tasks that have seen the new claim can have its messages acked."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import task, task_group

from airflow_provider_pawnqueue import plugin
from airflow_provider_pawnqueue.hooks.task_notes import REPORT_KEY
from airflow_provider_pawnqueue.operators import skips
from airflow_provider_pawnqueue.operators.pawnqueue import PawnQueueMessagesOperator
from pawnqueue import SyncPawnQueue
from tests.operators.played import Mapped, Play, claim_of, left
from tests.support.airflow import FakeTask


@pytest.fixture(autouse=True)
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener starts no thread in this process, and no test waits for a note of a skip."""
    monkeypatch.setattr(plugin.SUPERVISION, "watch_this_task", lambda: None)
    monkeypatch.setattr(skips, "SKIP_NOTE_WAIT_SECONDS", 0.0)


class Grouped(Play):
    """Two tasks in a group that is mapped over the messages."""

    def work(self, claim: Any) -> None:
        """Make the tasks between the claim and its settlement."""
        reading = PawnQueueMessagesOperator(task_id="messages", claim=claim)

        @task
        def first(message: Any) -> None: ...

        @task
        def second() -> None: ...

        @task_group
        def each(message: Any) -> None:
            first(message) >> second()

        each.expand(message=reading.output)


class Shared(Play):
    """Two tasks beside each other."""

    def work(self, claim: Any) -> None:
        """Make the tasks between the claim and its settlement."""

        @task
        def total(claim: Any) -> None: ...

        @task
        def send(claim: Any) -> None: ...

        total(claim)
        send(claim)


class Joined(Play):
    """Work, and an empty operator, which Airflow's scheduler ends without a worker."""

    def work(self, claim: Any) -> None:
        """Make the tasks between the claim and its settlement."""

        @task
        def work(claim: Any) -> None: ...

        work(claim) >> EmptyOperator(task_id="join")


class Cleared:
    """A run that has acked three messages; then part of it is cleared, and its sensor claims three others."""

    #: What Airflow ends by itself has no worker that could begin it.
    empty = "join"

    def __init__(self, queue: SyncPawnQueue, play: Play, names: list[str], *, is_raised: bool = True) -> None:
        self.queue, self.play, self.names = queue, play, names
        self.number = 0
        self.claim()
        self.play.ti.states |= dict.fromkeys([*names, self.empty], "success")
        if "messages" in names:
            self.reads()
        self.begin(*names)
        assert self.play.ended(self.claimed)["acked"] == 3
        # Airflow counts it unless it is asked to clear tasks and not their run.
        self.number = 1 if is_raised else 0
        self.play.ti.clear_number = self.number

    def claim(self) -> None:
        """Let the sensor claim three new messages."""
        self.begin("claim")
        self.claimed = claim_of(self.queue, clear_number=self.number)
        self.play.ti.xcom_push("return_value", self.claimed, task_id="claim")

    def reads(self) -> None:
        """Let the task that reads the messages for the indexes run."""
        self.play.ti.xcom_push("return_value", self.claimed["messages"], task_id="messages")

    def begin(self, *names: str, resumed: bool = False, number: int | None = None, **given: Any) -> None:
        """Let tasks begin, or indexes of them."""
        for name in names:
            task_id, _, index = name.partition("_")
            ti: Any = FakeTask(task_id, map_index=int(index) if index else -1)
            ti.xcoms, ti.clear_number = self.play.ti.xcoms, self.number if number is None else number
            ti.task = self.play.dag.get_task(task_id)
            if given:
                ti.task = ti.task.prepare_for_execution()
                ti.task.op_kwargs = given
            if resumed:
                ti._ti_context_from_server = type("Context", (), {"next_method": "execute_complete"})
            else:
                for key in [key for key in ti.xcoms if key[0] == task_id and key[2] == ti.map_index]:
                    if key[1] != "return_value":
                        del ti.xcoms[key]
            plugin.on_task_instance_running(None, ti)

    def given_back(self, **states: str | None) -> str:
        """Settle, and return the error. All messages are given back; none is acked or buried."""
        dead = left(self.queue)[2]
        with pytest.raises(AirflowFailException, match="0 acked, 0 buried, 3 given back") as raised:
            self.play.ended(self.claimed, **states)
        assert left(self.queue)[2] == dead
        return str(raised.value)


MAPPED = ["messages", "work_0", "work_1", "work_2"]
GROUPED = ["messages", *(f"each.{name}_{index}" for name in ("first", "second") for index in range(3))]


@pytest.fixture(params=[True, False], ids=["counted", "uncounted"])
def is_raised(request: pytest.FixtureRequest) -> bool:
    """Whether Airflow counts that the run was cleared."""
    return bool(request.param)


@pytest.mark.parametrize("on_failure", ["requeue", "bury"])
@pytest.mark.parametrize(
    ("kind", "names", "again", "early"),
    [
        (Mapped, MAPPED, ["work_0"], "messages"),
        (Mapped, MAPPED, ["work_0", "work_1", "work_2"], "messages"),
        (Mapped, MAPPED, ["messages"], "work"),
        (Mapped, MAPPED, [], "messages"),
        (Grouped, GROUPED, ["each.first_1", "each.second_1"], "messages"),
        (Play, ["work", "after"], [], "work"),
        (Play, ["work", "after"], ["after"], "work"),
        (Shared, ["total", "send"], ["total"], "send"),
    ],
)
def test_tasks_that_were_not_cleared(  # noqa: PLR0913, PLR0917 - what was cleared, of what, and how
    queue: SyncPawnQueue, kind: Any, names: list[str], again: list[str], early: str, on_failure: str, *, is_raised: bool
) -> None:
    """If a task was not cleared, all messages of the new claim are given back, whatever the other tasks did."""
    cleared = Cleared(queue, kind(on_failure=on_failure), names, is_raised=is_raised)
    cleared.claim()
    if "messages" in again:
        cleared.reads()
    cleared.begin(*again)
    assert f"{early} (before the claim)" in cleared.given_back()


def test_an_index_that_fails_again_on_its_former_message(queue: SyncPawnQueue) -> None:
    """No message of the new claim is buried, because the failed index has seen none of them."""
    cleared = Cleared(queue, Mapped(on_failure="bury"), MAPPED)
    cleared.claim()
    cleared.begin("work_1")
    assert "work[1] (failed)" in cleared.given_back(work_1="failed")


@pytest.mark.parametrize("state", ["failed", "skipped", None])
def test_a_task_that_had_not_succeeded_was_not_cleared(
    queue: SyncPawnQueue, state: str | None, *, is_raised: bool
) -> None:
    """Its failure buries no message of the new claim, and what it reported as done is not acked."""
    cleared = Cleared(queue, Play(on_failure="bury"), ["work", "after"], is_raised=is_raised)
    cleared.claim()
    cleared.play.ti.xcom_push(REPORT_KEY, {"done": [each["id"] for each in cleared.claimed["messages"]]}, "work")
    cleared.begin("after")
    cleared.given_back(work=state)


@pytest.mark.parametrize(
    ("kind", "names"), [(Mapped, MAPPED), (Grouped, GROUPED), (Play, ["work", "after"]), (Joined, ["work"])]
)
def test_all_is_cleared(queue: SyncPawnQueue, kind: Any, names: list[str], *, is_raised: bool) -> None:
    """The messages of the new claim are acked. An empty operator, which notes nothing, does not prevent that."""
    cleared = Cleared(queue, kind(), names, is_raised=is_raised)
    cleared.claim()
    if "messages" in names:
        cleared.reads()
        cleared.begin("messages")
    cleared.begin(*names)
    assert cleared.play.ended(cleared.claimed)["acked"] == 3


def test_each_index_still_speaks_for_its_own(queue: SyncPawnQueue) -> None:
    """If all was cleared, the message of a failed index is buried, and that of one that never began given back."""
    cleared = Cleared(queue, Mapped(on_failure="bury"), MAPPED)
    cleared.claim()
    cleared.reads()
    cleared.begin("messages", "work_0", "work_1")
    with pytest.raises(AirflowFailException, match="1 acked, 1 buried, 1 given back"):
        cleared.play.ended(cleared.claimed, work_1="failed", work_2="failed")


@pytest.mark.parametrize("told", ["success", "skipped"])
def test_a_task_was_queued_as_its_sensor_was_cleared(queue: SyncPawnQueue, told: str) -> None:
    """Airflow runs such a task with the former claim, though in the new round: the new claim is given back."""
    cleared = Cleared(queue, Shared(on_failure="bury"), ["total", "send"])
    cleared.begin("send")
    if told == "skipped":
        send: Any = FakeTask("send")
        send.task, send.clear_number, send.xcoms = cleared.play.dag.get_task("send"), 1, cleared.play.ti.xcoms
        plugin.on_task_instance_skipped(None, send)
    cleared.claim()
    cleared.begin("total")
    assert "send (before the claim)" in cleared.given_back(send=told)


def test_a_task_was_given_the_former_claim(queue: SyncPawnQueue) -> None:
    """It was given the former claim before the sensor claimed again, so it has not seen the new claim."""
    cleared = Cleared(queue, Shared(), ["total", "send"])
    former = cleared.claimed
    cleared.claim()
    cleared.begin("total", claim=cleared.claimed)
    cleared.begin("send", claim=former)
    assert "send (before the claim)" in cleared.given_back()


def test_an_index_was_given_messages_of_the_former_claim(queue: SyncPawnQueue) -> None:
    """It began after the sensor claimed again, but before the new messages were read: it has not seen the new claim."""
    cleared = Cleared(queue, Mapped(), MAPPED)
    cleared.claim()
    cleared.begin("work_0", "work_1", "work_2")
    cleared.reads()
    cleared.begin("messages")
    assert "work (before the claim)" in cleared.given_back()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_task_was_deferred_as_its_sensor_was_cleared(queue: SyncPawnQueue, *, is_known: bool) -> None:
    """When it resumes, it goes on with the former claim: it has not seen the new one."""
    cleared = Cleared(queue, Shared(), ["total", "send"])
    if is_known:
        cleared.claim()
        cleared.begin("total", "send")
        cleared.begin("send", resumed=True)
        assert cleared.play.ended(cleared.claimed)["acked"] == 3
        cleared.number = cleared.play.ti.clear_number = 2
    cleared.claim()
    cleared.begin("total")
    cleared.begin("send", resumed=True)
    assert "send (before the claim)" in cleared.given_back()


def test_the_record_of_the_former_claim_is_gone(queue: SyncPawnQueue) -> None:
    """The generation begins at 0 again, but the number of clearings shows that the tasks began before the claim."""
    play = Play()
    play.ti.clear_number = 1
    play.ti.states |= {"work": "success", "after": "success"}
    claimed = claim_of(queue, clear_number=1)
    with pytest.raises(AirflowFailException, match=r"3 given back.*work \(before the claim\), after"):
        play.ended(claimed)


def test_the_log_says_what_to_clear(queue: SyncPawnQueue, capsys: pytest.CaptureFixture[str]) -> None:
    """The warning names the task that claims."""
    cleared = Cleared(queue, Play(), ["work", "after"])
    cleared.claim()
    cleared.given_back()
    assert "clear the task that claims (claim) with all tasks after it" in capsys.readouterr().out

"""Acking, nacking and settling: which claims are accepted, and how errors are raised."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSkipException

from airflow_provider_pawnqueue.hooks import retries
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.hooks.task_notes import REPORT_KEY
from airflow_provider_pawnqueue.operators.pawnqueue import (
    PawnQueueAckOperator,
    PawnQueueBuryOperator,
    PawnQueueMessagesOperator,
    PawnQueueNackOperator,
    PawnQueueRequeueOperator,
    PawnQueueSettleOperator,
)
from pawnqueue import InvalidArgumentError, MemoryStore, Message, StoreError, SyncPawnQueue
from tests.operators.played import NOBODY, Mapped, Play, claim_of, counts_of, ids_of, left, mapped, reasons
from tests.support.airflow import TOPIC, FakeTask, connected, context_of
from tools.kit.stores import HookedStore

if TYPE_CHECKING:
    from tools.kit.stores import Answer, CarryOut, Request


def test_how_a_task_reports(queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may call ``PawnQueueHook.report`` several times; the last report about a message counts."""
    ti = FakeTask("work", map_index=2)
    monkeypatch.setattr("airflow.providers.common.compat.sdk.get_current_context", lambda: context_of(ti))
    PawnQueueHook.report(failed={"a": "too early", "b": ValueError("no")}, done=["c"])
    PawnQueueHook.report(done=["a"])
    PawnQueueHook.report(failed={"c": "after all"})
    assert json.loads(ti.xcoms["work", REPORT_KEY, 2]) == {
        "failed": {"b": "ValueError: no", "c": "after all"},
        "done": ["a"],
    }
    for wrong in ({"failed": ["a"]}, {"done": "a"}, {"failed": {1: "x"}}):
        with pytest.raises(InvalidArgumentError, match="report takes"):
            PawnQueueHook.report(**wrong)  # type: ignore[arg-type]


def test_nobody_reports_outside_of_a_task() -> None:
    """The error says that no task runs here."""
    with pytest.raises(InvalidArgumentError, match="no task runs here"):
        PawnQueueHook.report(done=["a"])


def test_several_claims(queue: SyncPawnQueue) -> None:
    """Each claim is settled, and a failed message affects only its own claim."""
    queue.create_topic("other")
    claims = [claim_of(queue, 2), claim_of(queue, 2, topic="other")]
    over = [message for claim in claims for message in claim["messages"]]
    play = mapped(claims[0], over, Mapped(), work_0="success", work_1="success", work_2="failed", work_3="success")
    with pytest.raises(AirflowFailException, match="3 acked, 0 buried, 1 given back"):
        play.ended(claims)
    assert (left(queue), left(queue, "other")) == ((0, 0, 0), (1, 0, 0))


@pytest.mark.parametrize("operator", [PawnQueueAckOperator, PawnQueueRequeueOperator, PawnQueueBuryOperator])
def test_ids_of_several_claims(queue: SyncPawnQueue, operator: Any) -> None:
    """Each id is settled in the claim to which it belongs; an unknown id prevents all of it."""
    queue.create_topic("other")
    claims = [claim_of(queue, 2), claim_of(queue, 2, topic="other")]
    meant = [ids_of(claim)[1] for claim in claims]
    with pytest.raises(
        AirflowFailException, match=r"in claim .* topic orders, claim .* topic other, so nothing.*\['nobody'\]"
    ):
        operator(task_id="some", claim=claims, ids=[*meant, "nobody"]).execute(NOBODY)
    assert left(queue) == left(queue, "other") == (0, 2, 0)
    assert sum(operator(task_id="some", claim=claims, ids=meant).execute(NOBODY).values()) == 2
    assert left(queue)[1] == left(queue, "other")[1] == 1


def test_the_hook_settles_by_messages_and_refuses_strangers(queue: SyncPawnQueue) -> None:
    """The hook settles and refuses the same messages as the queue does."""
    claim, hook = claim_of(queue, 2), PawnQueueHook()
    with pytest.raises(InvalidArgumentError, match="has no message 'nobody', so nothing was settled"):
        hook.settle(claim, requeue={"nobody": "later"})
    first, _ = hook.messages(claim)
    done = hook.settle(claim, bury={first: "no stock"})
    assert (done.buried, len(done.acked)) == ([first.id], 1)


def test_what_others_wrote_begins_no_line_of_the_log(
    queue: SyncPawnQueue, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither an id nor an error can forge a line of the log, or control the terminal that shows it."""
    claim, play = claim_of(queue, 2), Play(on_failure="bury")
    forged = "no stock\n[2026-11-19] ERROR - topic invoices was deleted\x1b[2J"
    play.ti.xcom_push(REPORT_KEY, {"failed": {ids_of(claim)[1]: forged}}, task_id="work")
    with caplog.at_level("INFO"):
        play.ended(claim, work="success", after="success")
    told = [*(record.getMessage() for record in caplog.records), *"".join(capfd.readouterr()).splitlines()]
    assert any("were not done" in line for line in told)
    assert not [line for line in told if line.startswith("[2026-11-19]") or "\x1b[2J" in line or "\n" in line]


def test_one_of_several_is_lost(queue: SyncPawnQueue) -> None:
    """The other claims are settled, and the task fails with the sentence of the lost one."""
    queue.create_topic("other")
    claims = [claim_of(queue, 2), claim_of(queue, 2, topic="other")]
    queue.sweep(TOPIC, ask=lambda _: "ended")
    with pytest.raises(AirflowFailException, match=f"of topic '{TOPIC}' has ended unsettled"):
        Play().ended(claims, work="success", after="success")
    assert left(queue, "other") == (0, 0, 0)


@pytest.mark.parametrize("nothing", [None, [], "", "None", [None]], ids=repr)
def test_no_claim(queue: SyncPawnQueue, nothing: Any) -> None:
    """If the sensor was skipped, the settlement is skipped too."""
    play = Play()
    play.ti.states["claim"] = "skipped"
    with pytest.raises(AirflowSkipException):
        play.ended(nothing, work="skipped", after="skipped")
    with pytest.raises(AirflowSkipException):
        PawnQueueAckOperator(task_id="ack", claim=nothing).execute(NOBODY)


@pytest.mark.parametrize("name", ["claim", "claim_1"])
def test_a_claim_that_is_not_in_xcom(queue: SyncPawnQueue, name: str) -> None:
    """If the sensor has claimed but nothing can be settled, the task fails."""
    play = Play()
    play.ti.states = {name: "success", "settle": "running"}
    # A person may have marked it as successful while it waited: then there is nothing that could have been pushed.
    with pytest.raises(AirflowFailException, match=r"not in XCom.*marked as successful.*clear it.*do_xcom_push"):
        play.ended(None, work="success", after="success")


def test_only_what_failed_is_cleared(queue: SyncPawnQueue) -> None:
    """The claim has ended, so the work that ran again had none of its messages: the task fails."""
    claim, play = claim_of(queue, 2), Play()
    with pytest.raises(AirflowFailException, match="2 given back"):
        play.ended(claim, work="failed", after="upstream_failed")
    play.ti.states |= {"work": "success", "after": "success"}
    with pytest.raises(AirflowFailException, match="Clear the task that claims as well"):
        play.settle.execute(context_of(play.ti, clear_number=1))
    assert left(queue) == (2, 0, 0)


def test_a_settlement_is_cleared_alone(queue: SyncPawnQueue) -> None:
    """If all messages were acked before, it succeeds with the same result."""
    claim, play = claim_of(queue, 2), Play()
    play.ended(claim, work="success", after="success")
    assert play.settle.execute(context_of(play.ti, clear_number=1))["acked"] >= 0


@pytest.mark.parametrize(
    ("claim", "sentence"),
    [
        ("garbage", "claim='garbage' is not a claim: pass what the sensor returned"),
        (17, "is not a claim"),
        ({"topic": TOPIC}, "not a claim reference"),
        (
            {"topic": TOPIC, "claim_id": "x", "generation": 0, "session": "s", "queue": "elsewhere/"},
            "pawnqueue_conn_id",
        ),
        ({"topic": TOPIC, "claim_id": "x", "generation": 0, "session": "s"}, "no record any more"),
        ({"topic": "nowhere", "claim_id": "x", "generation": 0, "session": "s"}, "nowhere"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("operator", [PawnQueueAckOperator, PawnQueueNackOperator, PawnQueueMessagesOperator])
def test_bad_claims(queue: SyncPawnQueue, operator: Any, claim: Any, sentence: str) -> None:
    """The task fails without retries, and the error says what to do."""
    with pytest.raises(AirflowFailException, match=sentence):
        operator(task_id="one", claim=claim).execute(NOBODY)


def test_an_expired_claim(queue: SyncPawnQueue) -> None:
    """Others have its messages, so nothing is settled, and the task fails."""
    claim = claim_of(queue, 2)
    queue.sweep(TOPIC, ask=lambda _: "ended")
    for operator in (PawnQueueAckOperator, PawnQueueNackOperator):
        with pytest.raises(AirflowFailException, match="has ended unsettled"):
            operator(task_id="one", claim=claim).execute(NOBODY)
    with pytest.raises(AirflowFailException, match="has ended unsettled"):
        Play().ended(claim, work="success", after="success")
    queue.sweep(TOPIC)
    assert left(queue)[2] == 0


def test_settled_twice(queue: SyncPawnQueue) -> None:
    """The second time changes nothing and returns the same, because a first try may have died after it settled."""
    claim = claim_of(queue, 2)
    assert Play().ended(claim, work="success", after="success")["acked"] == 2
    assert Play().ended(claim, work="success", after="success")["acked"] == 2
    assert PawnQueueAckOperator(task_id="ack", claim=claim).execute(NOBODY)["acked"] == 0


def test_a_wrong_argument(queue: SyncPawnQueue) -> None:
    """It is refused before anything is settled."""
    claim = claim_of(queue, 1)
    for name, rendered in (("on_failure", "explode"), ("on_reported", "explode"), ("delay", "soon")):
        play, sentence = Play(**{name: "{{ params.given }}"}), f"{name}='{rendered}'"
        setattr(play.settle, name, rendered)
        with pytest.raises(AirflowFailException, match=sentence):
            play.ended(claim, work="success", after="success")
    assert left(queue) == (0, 1, 0)


def test_ack(queue: SyncPawnQueue) -> None:
    """All, or the named ones, by list or by a template's text; a missing one is an error."""
    claim = claim_of(queue, 4)
    first, second, third, _ = ids_of(claim)
    for ids, count in ((first, 1), ([second], 1), (f"['{third}']", 1), ([], 0)):
        assert PawnQueueAckOperator(task_id="ack", claim=claim, ids=ids).execute(NOBODY)["acked"] == count
    with pytest.raises(AirflowFailException, match="nothing was settled: \\['nobody-knows-it'\\]"):
        PawnQueueAckOperator(task_id="ack", claim=claim, ids=["nobody-knows-it", ids_of(claim)[3]]).execute(NOBODY)
    assert PawnQueueAckOperator(task_id="ack", claim=str(claim)).execute(NOBODY)["acked"] == 1
    assert left(queue) == (0, 0, 0)


def test_requeue(queue: SyncPawnQueue) -> None:
    """Some are given back at once, some later, with a reason."""
    claim = claim_of(queue, 2)
    first, second = ids_of(claim)
    done = PawnQueueRequeueOperator(task_id="requeue", claim=claim, ids=[first]).execute(NOBODY)
    assert done == {"acked": 0, "buried": 0, "released": 1}
    PawnQueueRequeueOperator(task_id="requeue", claim=claim, ids=[second], delay="90").execute(NOBODY)
    stats = queue.stats(TOPIC)
    assert (stats.pending, stats.delayed) == (1, 1)


def test_bury(queue: SyncPawnQueue) -> None:
    """The dead letter keeps the reason; an unknown id is named in the error."""
    claim = claim_of(queue, 2)
    bury = PawnQueueBuryOperator(task_id="bury", claim=claim, ids=ids_of(claim)[:1], reason="no such order")
    assert bury.execute(NOBODY)["buried"] == 1
    assert reasons(queue) == {0: "no such order"}
    with pytest.raises(AirflowFailException, match="nobody-knows-it"):
        PawnQueueBuryOperator(task_id="bury", claim=claim, ids=["nobody-knows-it"]).execute(NOBODY)


@pytest.mark.parametrize("requeue", [True, "True", "true"])
def test_nack_gives_back(queue: SyncPawnQueue, requeue: Any) -> None:
    """With ``requeue`` the messages are given back, after a delay if there is one."""
    claim = claim_of(queue, 2)
    first, second = ids_of(claim)
    nack = PawnQueueNackOperator(task_id="nack", claim=claim, ids=[first], requeue=requeue)
    assert nack.execute(NOBODY) == {"acked": 0, "buried": 0, "released": 1}
    nack = PawnQueueNackOperator(task_id="nack", claim=claim, ids=[second], requeue=requeue, delay="90")
    nack.execute(NOBODY)
    stats = queue.stats(TOPIC)
    assert (stats.pending, stats.delayed) == (1, 1)


@pytest.mark.parametrize("requeue", [False, "False"])
def test_nack_buries(queue: SyncPawnQueue, requeue: Any) -> None:
    """Without ``requeue`` the message is buried with the reason."""
    claim = claim_of(queue, 1)
    nack = PawnQueueNackOperator(task_id="nack", claim=claim, requeue=requeue, reason="no such order")
    assert nack.execute(NOBODY)["buried"] == 1
    assert reasons(queue) == {0: "no such order"}


def reading(claim: Any, **more: Any) -> Any:
    """Return what tasks receive that are given the output of the reading operator."""
    one = PawnQueueMessagesOperator(task_id="messages", claim=claim, **more)
    in_xcom = one.execute(NOBODY)
    assert all(isinstance(item, str) for item in in_xcom)
    return one.output.decoded(in_xcom)


def test_messages(queue: SyncPawnQueue) -> None:
    """Unsettled messages come as dicts or in lists of at most ``batch`` dicts; in XCom each item is a text."""
    claim = claim_of(queue, 5)
    assert reading(claim) == claim["messages"]
    assert [len(batch) for batch in reading(claim, batch="2")] == [2, 2, 1]
    PawnQueueAckOperator(task_id="ack", claim=claim, ids=ids_of(claim)[:3]).execute(NOBODY)
    assert len(reading(claim)) == 2
    with pytest.raises(AirflowFailException, match="batch=0"):
        reading(claim, batch=0)


class Deep(PawnQueueMessagesOperator):
    """An operator whose claim has a message that JSON cannot hold, between two good ones."""

    @property
    def hook(self) -> Any:
        """See the operator's."""
        return self

    def messages(self, claim: Any, **_: Any) -> list[Message]:
        """See the hook's."""
        payload: dict[str, Any] = {}
        for _ in range(100_000):
            payload = {"in": payload}
        whole = PawnQueueHook().messages(claim, shared=True)
        return [whole[0], replace(whole[1], payload=payload), whole[2]]

    def report(self, *, failed: dict[str, str]) -> None:
        """See the hook's."""
        self.failed = failed


def test_one_message_that_cannot_be_written(queue: SyncPawnQueue) -> None:
    """It is reported as failed, and tasks are given the other messages."""
    claim = claim_of(queue, 3)
    one = Deep(task_id="messages", claim=claim)
    assert one.output.decoded(one.execute(NOBODY)) == [claim["messages"][0], claim["messages"][2]]
    assert list(one.failed) == [ids_of(claim)[1]]


class Silent(HookedStore):
    """A store that does not answer writes of claim records."""

    is_silent = False

    async def answer(self, request: Request, carry_out: CarryOut) -> Answer:
        """See the port."""
        if self.is_silent and "/claims/" in request.key:
            raise StoreError("nobody there", transient=True)
        return await super().answer(request, carry_out)


def test_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """After it has waited long enough, the task fails in such a way that Airflow retries it."""
    monkeypatch.setattr(retries, "TASK_OUTAGE_SECONDS", 0.0)
    store = Silent(MemoryStore())
    connecting = connected(monkeypatch, store=store, retry={"budget_seconds": 0.1})
    claim = claim_of(next(connecting), 1)
    store.is_silent = True
    with pytest.raises(AirflowException) as raised:
        Play().ended(claim, work="success", after="success")
    assert type(raised.value) is AirflowException
    store.is_silent = False
    assert Play().ended(claim, work="success", after="success")["acked"] == 1
    assert next(connecting, None) is None


def test_its_templates() -> None:
    """These arguments may be templates."""
    assert PawnQueueSettleOperator.template_fields == (
        "claim",
        "on_failure",
        "on_reported",
        "delay",
        "reason",
        "pawnqueue_conn_id",
    )
    assert PawnQueueAckOperator.template_fields == ("claim", "ids", "pawnqueue_conn_id")
    assert PawnQueueNackOperator.template_fields == ("claim", "ids", "requeue", "delay", "reason", "pawnqueue_conn_id")
    assert PawnQueueMessagesOperator.template_fields == ("claim", "batch", "pawnqueue_conn_id")


class Read(HookedStore):
    """A store that counts how many messages are read."""

    count = 0

    async def answer(self, request: Request, carry_out: CarryOut) -> Answer:
        """See the port."""
        self.count += request.kind == "GET" and "/messages/" in request.key
        return await super().answer(request, carry_out)


def test_messages_are_read_only_where_their_ids_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim knows its messages' ids without reading them, unless one of them is a redriven message."""
    store = Read(MemoryStore())
    with contextmanager(connected)(monkeypatch, store=store) as queue:
        claim = claim_of(queue, 8)
        again = ids_of(claim)[3]
        store.count = 0
        play = Play(on_failure="bury")
        play.ti.xcom_push(REPORT_KEY, {"failed": {again: "no stock"}}, task_id="work")
        assert counts_of(play.ended(claim, work="success", after="success")) == (7, 1, 0)
        assert store.count == 0

        queue.redrive(TOPIC)
        claim = claim_of(queue, 2)
        assert again in ids_of(claim)
        assert len(ids_of(claim)) == 3
        store.count = 0
        play = Play(on_failure="bury")
        play.ti.xcom_push(REPORT_KEY, {"failed": {again: "no stock"}}, task_id="work")
        assert counts_of(play.ended(claim, work="success", after="success")) == (2, 1, 0)
        assert store.count == 3
        [letter] = queue.dead_letters(TOPIC)
        assert letter.message.id == again

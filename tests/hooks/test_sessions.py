"""A claim is one process's at a time: it is kept while that works, left when it ends, and stopped where it is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_pawnqueue.hooks import references, sessions, stopping
from airflow_provider_pawnqueue.hooks.clients import Clients
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from pawnqueue import ClaimBusyError, InvalidArgumentError, LeaseLostError, MemoryStore, SyncPawnQueue
from pawnqueue.domain import layout
from tests.hooks.opening import MARK, done, program
from tests.support.faults import FaultServer


@pytest.fixture
def claim(hook: PawnQueueHook) -> dict[str, Any]:
    """A claim of three messages, as the sensor returns it."""
    hook.publish("orders", [{"n": n} for n in range(3)])
    made = hook.claim("orders", "c", claim_id="mine", ttl=300, session_ttl=30)
    return references.to_xcom(hook.leave(made), hook.settings, count=3, size=10)


@pytest.fixture
def other(store: MemoryStore) -> Iterator[SyncPawnQueue]:
    """Another process's queue."""
    with SyncPawnQueue.open(store=store) as queue:
        yield queue


@pytest.fixture(autouse=True)
def signal_as_before() -> Iterator[None]:
    """The handler of the signal by which tasks are stopped is as it was."""
    before = signal.getsignal(stopping._SIGNAL)
    yield
    signal.signal(stopping._SIGNAL, before)
    stopping._orders.clear()


def end(store: MemoryStore, held: Any) -> None:  # noqa: ANN401 - the engine's claim
    """Let somebody end the claim."""
    record = held._record.model_copy(update={"state": "expired"})
    store._write(layout.claim("orders", record.stem), record.encode())


def test_a_reference_after_attaching_in_the_same_process(
    hook: PawnQueueHook, claim: dict[str, Any], other: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that this process has attached to is settled in that session, without waiting."""
    monkeypatch.setattr(sessions, "attach_when_free", None)  # what would wait for the other session
    held = hook.attach(claim)
    first, second, third = held.ids
    assert hook.ack(claim, [first]).acked == [first]
    with hook.working_on(claim) as again:
        assert again is held
    with pytest.raises(ClaimBusyError):
        other.attach(references.from_xcom(claim, hook.settings, "attach"))
    assert hook.ack(claim, [second]).acked == [second]
    assert hook.ack(held, [third]).acked == [third]
    assert hook.stats("orders").pending == hook.stats("orders").in_flight == 0


def test_a_task_has_its_messages_alone(
    hook: PawnQueueHook, claim: dict[str, Any], other: SyncPawnQueue, in_a_task: None, here: Clients
) -> None:
    """No other task has them until it ends. Then the next one has them at once."""
    assert [message.payload["n"] for message in hook.messages(claim)] == [0, 1, 2]
    with pytest.raises(ClaimBusyError):
        other.attach(references.from_xcom(claim, hook.settings, "attach"))
    here.close()  # as the end of the process does
    assert len(other.attach(references.from_xcom(claim, hook.settings, "attach"))) == 3


def test_the_end_of_a_process_does_not_stop_its_task(
    hook: PawnQueueHook, claim: dict[str, Any], in_a_task: None, here: Clients, caplog: pytest.LogCaptureFixture
) -> None:
    """Sessions that end with their queue do not count as lost claims."""
    hook.messages(claim)
    here.close()
    time.sleep(0.2)
    assert "is stopped" not in caplog.text


def test_another_one_waits(
    hook: PawnQueueHook, claim: dict[str, Any], other: SyncPawnQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """The second task logs once that it waits, and goes on as soon as the first one has ended."""
    caplog.set_level("INFO")
    reference = references.from_xcom(claim, hook.settings, "attach")
    held = other.attach(reference, session_ttl=30)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(hook.ack, claim)
        time.sleep(1.5)
        assert not waiting.done()
        other.leave(held)
        assert len(waiting.result(10).acked) == 3
    assert caplog.text.count("Waiting until that has ended") == 1


def test_it_does_not_wait_for_ever(hook: PawnQueueHook, claim: dict[str, Any], other: SyncPawnQueue) -> None:
    """In the end the error says which session works on it, and until when."""
    reference = references.from_xcom(claim, hook.settings, "attach")
    other.attach(reference, session_ttl=30)
    began = time.monotonic()
    with pytest.raises(ClaimBusyError):
        sessions.attach_when_free(hook.queue, reference, seconds=0.6)
    assert time.monotonic() - began > 0.5


def test_shared_only_looks(hook: PawnQueueHook, claim: dict[str, Any], other: SyncPawnQueue, in_a_task: None) -> None:
    """A shared read keeps no other task from the claim, and waits for none."""
    assert len(hook.messages(claim, shared=True)) == 3
    held = other.attach(references.from_xcom(claim, hook.settings, "attach"))
    assert len(hook.messages(claim, shared=True)) == 3
    assert held.lost is None
    other.renew(held)


def test_outside_of_a_task_it_only_looks(hook: PawnQueueHook, claim: dict[str, Any], other: SyncPawnQueue) -> None:
    """Without a task, nothing would leave the claim at its end."""
    assert len(hook.messages(claim)) == 3
    assert len(other.attach(references.from_xcom(claim, hook.settings, "attach"))) == 3


async def test_in_the_same_process_nobody_waits(hook: PawnQueueHook, claim: dict[str, Any], in_a_task: None) -> None:
    """Settling by the reference, sync or async, uses the task's session; the rest of the claim stays."""
    first, second, third = hook.messages(claim)
    assert hook.ack(claim, first).acked == [first.id]
    assert hook.messages(claim) == [second, third]
    assert (await asyncio.to_thread(hook.ack, claim, second)).acked == [second.id]
    hook.renew(claim)
    assert hook.nack(claim, third, reason="no").buried == [third.id]
    assert hook.messages(claim) == []


async def test_all_may_be_settled_at_once(hook: PawnQueueHook, claim: dict[str, Any], in_a_task: None) -> None:
    """All messages can be settled by the reference."""
    first, *rest = hook.messages(claim)
    settled = hook.settle(claim, bury={first.id: "no"})
    assert settled.buried == [first.id]
    assert settled.acked == [message.id for message in rest]


def test_calls_by_the_reference_attach_and_leave(hook: PawnQueueHook, claim: dict[str, Any]) -> None:
    """The next call by the reference need not wait."""
    ids = [message.id for message in hook.messages(claim)]
    assert len(ids) == 3
    assert hook.ack(claim, ids[0]).acked == ids[:1]
    assert hook.nack(claim, ids[1], requeue=True).released == ids[1:2]
    hook.renew(claim)
    held = hook.attach(claim)
    with hook.keep_alive(held, interval=0.1) as kept:
        assert not kept.lost.is_set()
    assert hook.settle(held).acked == ids[2:]


def test_a_session_ends_with_a_short_ttl(here: Clients, connection: Callable[..., str], store: MemoryStore) -> None:
    """A session never lasts longer than its claim."""
    hook = PawnQueueHook(connection(extra={"bucket_name": "queues", "visibility_timeout": 10}))
    here.put(hook.address, store)
    hook.create_topic("orders")
    hook.publish("orders", [{"n": 1}])
    reference = hook.leave(hook.claim("orders", "c", claim_id="short"))
    assert sessions.session_ttl(hook.settings, None) == 10
    assert len(hook.ack(reference).acked) == 1


class TestInline:
    """Messages in the reference."""

    def carried(self, hook: PawnQueueHook) -> dict[str, Any]:
        """A claim with its messages, as JSON."""
        held = hook.claim("orders", "c", claim_id="inline", ttl=300)
        messages = list(held)
        told = references.to_xcom(hook.leave(held), hook.settings, count=len(messages), size=1, messages=messages)
        carried: dict[str, Any] = json.loads(json.dumps(told))
        return carried

    def test_they_need_not_be_read_again(self, hook: PawnQueueHook, in_a_task: None) -> None:
        """They are returned without those that are settled by now."""
        ids = hook.publish("orders", [{"n": n} for n in range(3)])
        claim = self.carried(hook)
        assert [message.id for message in hook.messages(claim)] == ids
        hook.ack(claim, ids[0])
        assert [message.id for message in hook.messages(claim)] == ids[1:]

    def test_redriven_ones_are_among_them(self, hook: PawnQueueHook, in_a_task: None) -> None:
        """Redriven messages are returned although their keys do not have their ids."""
        hook.publish("orders", [{"n": 0}, {"n": 1}])
        hook.nack(hook.claim("orders", "c"))
        assert hook.redrive("orders")
        claim = self.carried(hook)
        found = hook.messages(claim)
        assert sorted(message.payload["n"] for message in found) == [0, 1]
        assert hook.ack(claim, [message.id for message in found[:1]]).acked == [found[0].id]
        assert [message.id for message in hook.messages(claim)] == [found[1].id]


class TestWorkingOn:
    """A claim that is worked on for the length of a block."""

    def test_it_is_left_at_the_end(self, hook: PawnQueueHook, claim: dict[str, Any], other: SyncPawnQueue) -> None:
        """An error leaves it too. A block within a block keeps it."""
        for _ in range(2):
            with hook.working_on(claim) as held, hook.working_on(claim, payloads=False) as again:
                assert held is again
        with pytest.raises(ZeroDivisionError), hook.working_on(claim):
            raise ZeroDivisionError
        assert len(other.attach(references.from_xcom(claim, hook.settings, "attach"))) == 3

    def test_threads_share_it(self, hook: PawnQueueHook, claim: dict[str, Any]) -> None:
        """No thread waits for another one, and the last one leaves the claim."""
        ids = [message.id for message in hook.messages(claim)]
        with ThreadPoolExecutor(3) as pool:
            acked = [settled.acked for settled in pool.map(lambda each: hook.ack(claim, each), ids)]
        assert acked == [[each] for each in ids]

    def test_the_thread_that_ends_first_leaves_the_claim_to_the_others(
        self, hook: PawnQueueHook, claim: dict[str, Any]
    ) -> None:
        """A thread that settles does not end the session of one that works on."""
        with hook.working_on(claim) as held:
            with ThreadPoolExecutor(1) as pool:
                assert len(pool.submit(hook.ack, claim, held.ids[0]).result().acked) == 1
            hook.renew(held)
            assert held.seconds_left > 0

    def test_what_messages_began_goes_on_after_a_block(
        self, hook: PawnQueueHook, claim: dict[str, Any], other: SyncPawnQueue, in_a_task: None
    ) -> None:
        """A session that messages() began lasts until the process ends."""
        with hook.working_on(claim):
            hook.messages(claim)
        with pytest.raises(ClaimBusyError):
            other.attach(references.from_xcom(claim, hook.settings, "attach"))

    def test_one_that_has_ended_is_empty(self, hook: PawnQueueHook, claim: dict[str, Any], in_a_task: None) -> None:
        """A task whose claim is settled has nothing to do."""
        hook.ack(claim)
        assert hook.messages(claim) == []
        with hook.working_on(claim) as held:
            assert not held
            assert set(held.decided.values()) == {"acked"}

    def test_one_that_was_taken_over_is_lost(
        self, hook: PawnQueueHook, claim: dict[str, Any], other: SyncPawnQueue, store: MemoryStore, in_a_task: None
    ) -> None:
        """Work and settlements fail: neither takes the claim for done."""
        held = other.attach(references.from_xcom(claim, hook.settings, "attach"))
        other.leave(held)
        end(store, held)
        with pytest.raises(LeaseLostError, match="has ended unsettled"), hook.working_on(claim):
            pass
        with pytest.raises(LeaseLostError, match="has ended unsettled"):
            hook.messages(claim)

    def test_a_lost_claim_fails_a_task_without_another_try(
        self, hook: PawnQueueHook, claim: dict[str, Any], other: SyncPawnQueue, store: MemoryStore, in_a_task: None
    ) -> None:
        """Another try would have the same reference, and fail too."""
        held = other.attach(references.from_xcom(claim, hook.settings, "attach"))
        other.leave(held)
        end(store, held)
        with pytest.raises(AirflowFailException, match="has ended unsettled") as failed:
            hook.messages(claim)
        assert isinstance(failed.value, LeaseLostError)
        with pytest.raises(AirflowFailException, match="it was taken over"):
            hook.messages(claim, shared=True)
        with pytest.raises(AirflowFailException, match="has ended unsettled"):
            hook.ack(claim)

    def test_one_of_another_queue_is_refused(self, hook: PawnQueueHook, claim: dict[str, Any]) -> None:
        """It is refused before any request."""
        with pytest.raises(InvalidArgumentError, match="pawnqueue_conn_id"), hook.working_on({**claim, "queue": "x/"}):
            pass


class TestStopping:
    """Work whose claim is lost is stopped."""

    @pytest.fixture(autouse=True)
    def often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Renew often."""
        monkeypatch.setattr(sessions, "RENEWAL_SECONDS", 0.1)

    def test_it_is_stopped_in_its_sleep(
        self, hook: PawnQueueHook, claim: dict[str, Any], store: MemoryStore, in_a_task: None
    ) -> None:
        """The error is raised in the main thread, wherever it works."""
        hook.messages(claim)

        def work() -> None:
            with hook.working_on(claim) as held:
                end(store, held)
                time.sleep(100)
                pytest.fail("it has slept to the end")

        with pytest.raises(LeaseLostError, match="others may work on its messages"):
            work()

    def test_work_that_catches_each_error_is_stopped(
        self, hook: PawnQueueHook, claim: dict[str, Any], store: MemoryStore, in_a_task: None
    ) -> None:
        """A task that catches the errors of single messages is stopped too."""
        errors = 0
        messages = hook.messages(claim)

        def work() -> None:
            nonlocal errors
            for _ in messages * 300:
                try:
                    time.sleep(0.1)
                except Exception:  # noqa: BLE001 - as users do it, to report it
                    errors += 1
            pytest.fail("it has worked to the end")

        with hook.working_on(claim) as held:
            pass  # which is the session that the task has until its end
        end(store, held)
        with pytest.raises(stopping.WorkStoppedError, match="others may work on its messages"):
            work()
        assert errors == 0

    def test_a_task_keeps_its_own_handler_of_the_signal(
        self, hook: PawnQueueHook, claim: dict[str, Any], store: MemoryStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A task with its own handler of the signal is not interrupted, and the log names the loss."""
        heard: list[int] = []
        signal.signal(stopping._SIGNAL, lambda number, _: heard.append(number))
        with hook.working_on(claim) as held:
            end(store, held)
            give_up = time.monotonic() + 10
            while "is stopped" not in caplog.text and time.monotonic() < give_up:
                time.sleep(0.02)
        assert "is stopped, as its claim is lost" in caplog.text
        assert heard == []

    def test_work_that_has_ended_is_not_stopped(self) -> None:
        """An order that comes after the end of the work raises nothing, and neither does a foreign signal."""
        stopping.let_stop()
        ended = threading.Event()
        ended.set()
        assert not stopping.stop_the_task("too late", ended).is_set()
        os.kill(os.getpid(), stopping._SIGNAL)
        time.sleep(0.05)

    def test_no_other_thread_can_be_stopped(self) -> None:
        """Only the main thread can be stopped."""
        before = signal.getsignal(stopping._SIGNAL)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(stopping.let_stop).result()
        assert signal.getsignal(stopping._SIGNAL) is before


WORK = """
import os, sys, time, signal, logging
from airflow_provider_pawnqueue.hooks import pawnqueue, sessions, stopping, supervision
pawnqueue.in_a_task = lambda: True
sessions.SESSION_TTL_SECONDS, sessions.RENEWAL_SECONDS = {session}, 1.0
supervision.WATCH_SECONDS = 0.1
hook = pawnqueue.PawnQueueHook("q")
claim = dict(topic="orders", claim_id="mine", generation=int(sys.argv[1]), session=sys.argv[2])

def say(*what):
    sys.stdout.write("=> " + " ".join(map(str, what)) + "\\n"); sys.stdout.flush()

def work():
    say(os.getpid(), len(hook.messages(claim)))
"""
# Where nobody is to wait for a session's time, it is longer than a test may take.
LONG = WORK.format(session=600.0)
ENDS = "work(); sys.stdin.readline()"
ORPHANED = f"""{LONG}
supervision.UNWIND_SECONDS = float(sys.argv[4])
if os.fork() == 0:
    work()
    try:
        time.sleep(60)
    except stopping.WorkStoppedError as error:
        say("stopped:", error)
        time.sleep(float(sys.argv[3]))
        sys.exit(0)
    os._exit(1)
time.sleep(60)
"""


FORKED = f"""{LONG}
import multiprocessing
def child():
    try:
        work()
    except Exception as error:
        say(type(error).__name__, error)
    say(len(hook.messages(claim, shared=True)))
work()
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
"""


class Scene:
    """A claim in a store behind HTTP, and processes that work on it."""

    def __init__(self, server: FaultServer, hook: PawnQueueHook) -> None:
        self.server = server
        self.hook = hook
        hook.create_topic("orders")
        hook.publish("orders", [{"n": n} for n in range(3)])
        self.claim = hook.leave(hook.claim("orders", "c", claim_id="mine", ttl=300))

    def start(self, text: str, *arguments: str) -> Any:  # noqa: ANN401 - a process
        """Start a program."""
        claim = str(self.claim.generation), self.claim.session
        return program(text, self.server.endpoint, *claim, *arguments, client="boto3")

    def told(self, process: Any) -> str:  # noqa: ANN401 - a process
        """What it says next."""
        for line in process.stdout:
            if line.startswith(MARK):
                return str(line.removeprefix(MARK).strip())
        raise AssertionError(process.stderr.read())


@pytest.fixture
def scene(here: Clients, connection: Callable[..., str]) -> Iterator[Scene]:
    """A new scene."""
    with FaultServer(buckets=("queues",)) as server:
        login = {"login": "AKTEST", "password": "SKTEST0123456789"}
        yield Scene(server, PawnQueueHook(connection(extra={"bucket_name": "queues"}, host=server.endpoint, **login)))


@pytest.mark.slow
def test_the_next_process_goes_on_when_the_first_has_ended(scene: Scene) -> None:
    """It goes on at once if the first one has left the claim."""
    first = scene.start(LONG + ENDS)
    assert scene.told(first).endswith(" 3")
    second = scene.start(LONG + ENDS)
    time.sleep(3)
    done_out = threading.Thread(target=lambda: done(first), daemon=True)
    first.stdin.write("\n")
    first.stdin.flush()
    done_out.start()
    assert scene.told(second).endswith(" 3")
    second.stdin.write("\n")
    done(second)
    done_out.join(10)


@pytest.mark.slow
def test_the_next_process_waits_for_the_time_of_one_that_was_killed(scene: Scene) -> None:
    """A killed process may be alive, so its session's time has to pass."""
    short = WORK.format(session=6.0) + ENDS
    first = scene.start(short)
    scene.told(first)
    second = scene.start(short)
    time.sleep(2)
    first.kill()
    began = time.monotonic()
    assert scene.told(second).endswith(" 3")
    assert time.monotonic() - began > 2
    second.stdin.write("\n")
    done(second)
    first.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("lives_on", ["0", "2"])
def test_a_task_without_a_supervisor_is_stopped(scene: Scene, lives_on: str) -> None:
    """It is stopped in its sleep, and leaves its claim, for which the next try need not wait."""
    supervisor = scene.start(ORPHANED, lives_on, "8")
    assert scene.told(supervisor).endswith(" 3")
    with pytest.raises(ClaimBusyError):
        scene.hook.attach(scene.claim)
    supervisor.kill()
    assert "stopped: The claim that this task worked on is lost (the supervisor" in scene.told(supervisor)
    held = scene.hook.attach(scene.claim, wait=3)
    assert len(held) == 3
    supervisor.communicate()


@pytest.mark.slow
def test_a_task_without_a_supervisor_that_works_on_is_killed(scene: Scene) -> None:
    """A task that has caught the error is killed."""
    supervisor = scene.start(ORPHANED, "600", "1")
    pid = int(scene.told(supervisor).split()[0])
    supervisor.kill()
    assert "stopped:" in scene.told(supervisor)
    give_up = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < give_up:
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()
    supervisor.communicate()


@pytest.mark.slow
def test_a_child_of_a_task_does_not_wait_for_it(scene: Scene) -> None:
    """It gets an error at once, as the two would wait for each other. A shared read works."""
    parent = scene.start(FORKED)
    assert scene.told(parent).endswith(" 3")
    assert scene.told(parent).startswith("ClaimBusyError Claim mine.0 of topic 'orders' is worked on by the process")
    assert scene.told(parent) == "3"
    parent.communicate()

"""However a task ends, nothing of its job runs on, and no file of it is left."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_pawnqueue.hooks import sessions, stopping
from airflow_provider_pawnqueue.spark.guarded_process import GuardedProcess
from pawnqueue import ClaimReference, MemoryStore
from pawnqueue.domain import layout
from pawnqueue.domain.claim_record import ClaimRecord
from tests.spark.submitted import Place, claim_of, is_running
from tests.support.airflow import TOPIC, connected, context_of
from tools.kit.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pawnqueue import SyncPawnQueue

ROOT = Path(__file__).parents[2]

# What spark-submit makes: a JVM, below it a driver, and below that a worker in a group of its own; and what is as far
# away as can be, in a session of its own with its parent gone. Each says by a file that it runs, the JVM last.
TREE = """
import signal, threading, time


def here(name):
    part = folder / f"{name}.part"
    part.write_text(str(os.getpid()))
    part.rename(folder / f"{name}.pid")


def below(name, work):
    if os.fork() == 0:
        if TERM == "ignored":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        work()
        here(name)
        while True:
            time.sleep(60)


def far():
    os.setsid()
    if os.fork():
        os._exit(0)


def driver():
    below("worker", lambda: os.setpgid(0, 0))


NAMES = ["driver", "worker", *(["far"] if FAR else [])]
below("driver", driver)
if FAR:
    below("far", far)
while not all((folder / f"{name}.pid").exists() for name in NAMES):
    time.sleep(0.01)
print("the secret is SKTEST0123456789", flush=True)
if TERM == "ignored":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
here("jvm")
while True:
    time.sleep(60)
"""


def tree(*, term: str = "heard", far: bool = True) -> str:
    """Return a program that starts all these processes, and waits."""
    return f"TERM = {term!r}\nFAR = {far}\n{TREE}"


@pytest.fixture
def store() -> MemoryStore:
    """The bucket."""
    return MemoryStore()


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch, store: MemoryStore) -> Iterator[SyncPawnQueue]:
    """The queue of the default connection, as another process has it."""
    login = {"aws_access_key_id": "AKTEST", "aws_secret_access_key": "SKTEST0123456789"}
    yield from connected(monkeypatch, store=store, **login)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A worker, on which a job waits until it is ended."""
    made = Place(tmp_path, monkeypatch)
    made.spark_submit(tree())
    return made


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """The handlers of signals are as they were."""
    numbers = (stopping._SIGNAL, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
    stopping._orders.clear()


def processes(place: Place) -> dict[str, int]:
    """The processes of the job, by name."""
    return {path.stem: int(path.read_text()) for path in place.folder.glob("*.pid")}


def running(place: Place) -> dict[str, int]:
    """The running processes of the job, by name."""
    return {name: pid for name, pid in processes(place).items() if is_running(pid)}


@contextmanager
def once_it_runs(place: Place, work: Callable[[], Any]) -> Iterator[None]:
    """Do something as soon as the job runs, in a thread beside the task."""
    failed: list[BaseException] = []

    def wait_and_work() -> None:
        try:
            wait_until(lambda: "jvm" in processes(place), "the job runs")
            work()
        except BaseException as error:  # noqa: BLE001 - the test is to hear of it, and not to wait for the job
            failed.append(error)
            for pid in running(place).values():
                os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=wait_and_work)
    thread.start()
    yield
    thread.join()
    assert failed == []


def take(store: MemoryStore, claim: dict[str, Any]) -> None:
    """End the claim, as a consumer does that takes its session for dead."""
    key = layout.claim(TOPIC, ClaimReference.from_dict(claim).stem)
    record = ClaimRecord.decode(store._objects[key].body, key)
    store._write(key, record.model_copy(update={"state": "expired"}).encode())


def assert_nothing_is_left(place: Place) -> None:
    """Assert that no process and no folder of the job is left."""
    assert sorted(processes(place)) == ["driver", "far", "jvm", "worker"]
    assert running(place) == {}
    assert place.left_behind == []


def test_a_task_that_is_killed(queue: SyncPawnQueue, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Its job ends, with the processes that left its group. The task logs that, and can be retried."""
    claim = claim_of(queue)
    operator = place.operator(claim)

    with (
        once_it_runs(place, operator.on_kill),
        pytest.raises(AirflowException, match="was killed, and its job") as told,
    ):
        operator.execute(context_of(place.ti))

    assert not isinstance(told.value, AirflowFailException)
    assert_nothing_is_left(place)
    assert "This task was killed, so its job ends, including the JVM and the Python driver." in capsys.readouterr().out
    assert len(queue.attach(ClaimReference.from_dict(claim))) == 3  # at once: it was left


def test_killing_a_task_waits_for_no_log(queue: SyncPawnQueue, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow calls on_kill in a handler of signals, which may interrupt the task while it holds its log's lock."""
    operator = place.operator(claim_of(queue))
    log = type(operator).log.fget  # type: ignore[attr-defined]  # Airflow's property

    def not_in_a_handler(self: object) -> object:
        assert threading.current_thread() is threading.main_thread(), "the killing thread would wait for ever"
        return log(self)

    monkeypatch.setattr(type(operator), "log", property(not_in_a_handler), raising=False)
    with once_it_runs(place, operator.on_kill), pytest.raises(AirflowException, match="was killed, and its job"):
        operator.execute(context_of(place.ti))

    assert_nothing_is_left(place)


def test_a_task_that_is_killed_before_its_job_has_begun(
    queue: SyncPawnQueue, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process is started."""
    operator = place.operator(claim_of(queue))
    made = GuardedProcess.__enter__

    def killed_meanwhile(self: GuardedProcess) -> GuardedProcess:
        operator.on_kill()
        return made(self)

    monkeypatch.setattr(GuardedProcess, "__enter__", killed_meanwhile)
    with pytest.raises(AirflowException, match="was killed"):
        operator.execute(context_of(place.ti))

    assert processes(place) == {}
    assert place.left_behind == []


def test_a_job_that_hears_no_sigterm(queue: SyncPawnQueue, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed when its grace is over."""
    monkeypatch.setattr("airflow_provider_pawnqueue.spark.operators.GRACE_SECONDS", 0.5)
    place.spark_submit(tree(term="ignored"))
    operator = place.operator(claim_of(queue))

    with once_it_runs(place, operator.on_kill), pytest.raises(AirflowException, match="was killed"):
        operator.execute(context_of(place.ti))

    assert_nothing_is_left(place)


def test_a_claim_that_is_lost(
    queue: SyncPawnQueue,
    store: MemoryStore,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The job ends at once. The task fails without a retry, and says why."""
    monkeypatch.setattr(sessions, "RENEWAL_SECONDS", 0.2)
    claim = claim_of(queue)

    with (
        once_it_runs(place, lambda: take(store, claim)),
        pytest.raises(AirflowFailException, match="The claim that this task worked on is"),
    ):
        place.run(claim)

    assert_nothing_is_left(place)
    assert (
        "The job is ended now, including the JVM and the Python driver, because its claim is lost"
        in capsys.readouterr().out
    )


def test_a_claim_that_is_lost_where_no_signal_comes_through(
    queue: SyncPawnQueue, store: MemoryStore, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task in another thread than the main one notices it too."""
    monkeypatch.setattr(sessions, "RENEWAL_SECONDS", 0.2)
    claim = claim_of(queue)
    signal.signal(stopping._SIGNAL, lambda *_: None)  # a use of its own for it
    failed: list[BaseException] = []

    def work() -> None:
        try:
            place.run(claim)
        except AirflowFailException as error:
            failed.append(error)

    task = threading.Thread(target=work)
    task.start()
    wait_until(lambda: "jvm" in processes(place), "the job runs")
    take(store, claim)
    task.join()

    assert "The claim that this task worked on is lost" in str(failed[0])
    assert_nothing_is_left(place)


def test_an_error_that_is_raised_while_the_job_is_read(queue: SyncPawnQueue, place: Place) -> None:
    """Airflow raises one if a task takes too long. The job ends before the error goes on."""

    class TooLongError(BaseException):
        pass

    def too_long(*_: Any) -> None:
        raise TooLongError

    signal.signal(signal.SIGALRM, too_long)
    alarm = lambda: os.kill(os.getpid(), signal.SIGALRM)  # noqa: E731 - as a time-out does it

    with once_it_runs(place, alarm), pytest.raises(TooLongError):
        place.run(claim_of(queue))

    assert_nothing_is_left(place)


def test_the_end_is_not_cut_short(queue: SyncPawnQueue, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption is raised only after the job has ended, and the claim is kept until then."""
    monkeypatch.setattr("airflow_provider_pawnqueue.spark.operators.GRACE_SECONDS", 1.0)
    place.spark_submit(tree(term="ignored"))
    heard: list[dict[str, int]] = []

    class AgainError(BaseException):
        pass

    def again(*_: Any) -> None:
        heard.append(running(place))
        raise AgainError(len(heard))

    def twice() -> None:
        for count in (1, 2):
            os.kill(os.getpid(), signal.SIGALRM)
            wait_until(lambda count=count: len(heard) == count, "the alarm is heard")  # type: ignore[misc]

    signal.signal(signal.SIGALRM, again)
    with once_it_runs(place, twice), pytest.raises(AgainError, match="2"):
        place.run(claim_of(queue))

    assert sorted(heard[1]) == ["driver", "far", "jvm", "worker"]
    assert_nothing_is_left(place)


def test_a_guard_that_is_killed(queue: SyncPawnQueue, place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Its task ends what is left of the job, and fails."""
    place.spark_submit(tree(far=False))
    operator = place.operator(claim_of(queue))

    def kill_it() -> None:
        assert operator._process is not None
        assert operator._process.guard is not None
        operator._process.guard.kill()

    with once_it_runs(place, kill_it), pytest.raises(AirflowException, match="killed by signal 9"):
        operator.execute(context_of(place.ti))

    assert sorted(processes(place)) == ["driver", "jvm", "worker"]
    assert running(place) == {}
    assert place.left_behind == []
    assert "This task now kills what is left of the job" in caplog.text


def test_a_jvm_that_dies_takes_the_driver_with_it(queue: SyncPawnQueue, place: Place) -> None:
    """The driver holds the pipe open, and would keep the task waiting."""
    jvm = lambda: os.kill(processes(place)["jvm"], signal.SIGKILL)  # noqa: E731 - one line

    with (
        once_it_runs(place, jvm),
        pytest.raises(AirflowException, match="killed by signal 9, for example"),
    ):
        place.run(claim_of(queue))

    assert_nothing_is_left(place)


def test_descriptors_and_children_are_given_back(queue: SyncPawnQueue, place: Place) -> None:
    """A second task of this process leaves no more open files or children than the first one."""
    place.spark_submit("print('done')")
    place.run(claim_of(queue))
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - it is this process's own
    place.run(claim_of(queue, task_id="again"))

    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - as above
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert [pid for pid in children if not is_running(int(pid))] == []

"""Whichever processes above a job are killed, and whatever the kernel refuses, nothing of the job runs on."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from airflow_provider_pawnqueue.spark import guard
from tests.spark.submitted import is_running
from tools.kit.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
# A task: it runs a job below a guard, and says the guard's pid, and then what the job says. It has forked a process,
# which holds the guard's input open.
TASK: Final = """
import os, sys, time
from airflow_provider_pawnqueue.spark import guard
from airflow_provider_pawnqueue.spark.guarded_process import GuardedProcess

guard.__file__, folder, *command = sys.argv[1:]
with GuardedProcess(command, os.environ, folder=folder, grace=1.0) as running:
    forked = os.fork()
    if forked == 0:
        time.sleep(600)
    print(running.guard.pid, forked, flush=True)
    running.run()
    for line in running.lines(lambda: None):
        print(line, flush=True)
    print("ended", running.wait(lambda: None), flush=True)
"""
# A job as spark-submit makes one: a JVM that ends with its guard, and below it a driver, which says its pid.
DRIVER: Final = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
JOB: Final = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {DRIVER!r}])
"""
# The guard on a system that has no pidfd_open, or refuses it.
REFUSED: Final = """
import os, runpy

def refuse(*_):
    raise OSError({number}, os.strerror({number}))

os.pidfd_open = refuse
runpy.run_path({guard!r}, run_name="__main__")
"""


class Task:
    """A task, as a process of its own, whose job runs."""

    def __init__(self, folder: Path, command: list[str], program: str | None = None) -> None:
        self.folder = folder / "job"
        self.folder.mkdir()
        (self.folder / "connection.yaml").write_text("secret: hunter2")
        self.process = subprocess.Popen(
            [sys.executable, "-c", TASK, program or guard.__file__, str(self.folder), *command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.guard, self.forked = map(int, self.said().split())

    def said(self) -> str:
        """The next line of the task's output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self, *pids: int) -> None:
        """Kill processes, as the out-of-memory killer does."""
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def find_keeper(self) -> int:
        """Return the pid of the guard's keeper."""
        for child in Path(f"/proc/{self.guard}/task/{self.guard}/children").read_text().split():
            if os.getsid(int(child)) != self.guard:
                return int(child)
        raise AssertionError("the guard has no keeper")

    def end(self) -> None:
        """End everything of the task."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        for pid in (self.forked, *(guard.session_members(self.guard) or ())):
            with suppress(ProcessLookupError):  # a keeper ends by itself when its guard is gone
                self.kill(pid)


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[list[Task]]:
    """The tasks that a test has started."""
    started: list[Task] = []
    yield started
    for task in started:
        task.end()


def test_task_and_guard_killed_together(tasks: list[Task], tmp_path: Path) -> None:
    """After ``pkill -9 -f airflow`` the driver ends, and the file with the keys is removed."""
    task = Task(tmp_path, [sys.executable, "-c", JOB])
    tasks.append(task)
    driver = int(task.said())

    task.kill(task.process.pid, task.guard)

    wait_until(lambda: not is_running(driver), "the driver has ended")
    wait_until(lambda: not task.folder.exists(), "the folder is removed")


def test_the_keeper_has_a_name_of_its_own(tasks: list[Task], tmp_path: Path) -> None:
    """A kill by name that hits the guard must not hit the keeper."""
    task = Task(tmp_path, [sys.executable, "-c", JOB])
    tasks.append(task)
    task.said()

    shown = Path(f"/proc/{task.find_keeper()}/cmdline").read_bytes().strip(b"\0")

    assert shown == b"pawnqueue-job-keeper"
    assert b"airflow" in Path(f"/proc/{task.guard}/cmdline").read_bytes()


def test_a_job_that_ends_by_itself_leaves_no_keeper(tasks: list[Task], tmp_path: Path) -> None:
    """The keeper ends too, and the folder stays for the task, which reads the report in it."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    task = Task(tmp_path, [sys.executable, "-c", f"print('works', flush=True); open({str(gate)!r}).read()"])
    tasks.append(task)
    assert task.said() == "works"
    keeper = task.find_keeper()

    gate.write_text("go on")
    assert task.said() == "ended 0"

    wait_until(lambda: not is_running(keeper), "the keeper has ended")
    assert task.folder.exists()


@pytest.mark.parametrize("number", [None, errno.ENOSYS, errno.EPERM])
def test_a_task_that_is_killed_alone(tasks: list[Task], tmp_path: Path, number: int | None) -> None:
    """Its job ends with it, even if the kernel cannot or will not report the end of a process."""
    program = tmp_path / "refused.py"
    program.write_text(REFUSED.format(number=number, guard=guard.__file__))
    task = Task(tmp_path, [sys.executable, "-c", JOB], None if number is None else str(program))
    tasks.append(task)
    driver = int(task.said())

    task.kill(task.process.pid)

    wait_until(lambda: not is_running(driver), "the driver has ended")
    wait_until(lambda: not task.folder.exists(), "the folder is removed")

"""``make demo-queue`` itself, with small numbers: what it shows, that it can fail, and that nothing of it is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.servers

ROOT = Path(__file__).parents[2]
SMALL = ("--orders", "120", "--ttl", "5", "--work", "0.5")
MARK = "PAWNQUEUE_DEMO_TEST"


class Demo:
    """One run of it, whose processes can be told by a variable in their environment."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self.output = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.demo.queue", *SMALL, *arguments],
            cwd=ROOT,
            env={**os.environ, MARK: self.mark, "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def read_until(self, words: str) -> None:
        """Read its output up to the line with these words."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output += line
            if words in line:
                return
        pytest.fail(f"{words!r} was never said:\n{self.output}")

    def finish(self) -> int:
        """Read the rest of its output, and return its exit status."""
        rest, _ = self._process.communicate(timeout=100)
        self.output += rest
        return self._process.returncode

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process that was started, and to none of those that it has started."""
        self._process.send_signal(number)

    def processes(self) -> list[int]:
        """Return all that are left of it, whoever their parent is now."""
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and self._is_of_it(entry)]

    def _is_of_it(self, entry: Path) -> bool:
        try:
            return f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # gone meanwhile, or somebody else's
            return False


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts it; ends whatever a failed test has left of it."""
    started: list[Demo] = []

    def start(*arguments: str) -> Demo:
        started.append(Demo(tmp_path, *arguments))
        return started[-1]

    yield start
    for one in started:
        for pid in one.processes():
            os.kill(pid, signal.SIGKILL)
        one.finish()


def nothing_is_left(of: Demo, seconds: float = 20.0) -> bool:
    """Wait until neither a process nor a file of it is there."""
    give_up = time.monotonic() + seconds
    while of.processes() or any(of.folder.iterdir()):
        if time.monotonic() > give_up:
            return False
        time.sleep(0.05)
    return True


def test_the_demo_adds_up(demo: Callable[..., Demo]) -> None:
    """It exits with 0 and shows a table of which every line holds, in lines that fit a window, and leaves nothing."""
    run = demo()
    assert run.finish() == 0, run.output
    for words in ("published", "acked", "dead", "redelivered", "held twice", "requests a message", "left running"):
        [line] = [line for line in run.output.splitlines() if line.startswith(words)]
        assert line.endswith("   ok"), line
    assert "Consumer 2 is killed (kill -9) while it holds" in run.output
    assert "It adds up" in run.output
    assert max(map(len, run.output.splitlines())) < 100
    assert nothing_is_left(run, seconds=0.0)


def test_the_demo_notices_an_ack_that_is_not_in_the_books(demo: Callable[..., Demo]) -> None:
    """It exits with 1 and names what is wrong, if a message is gone of which nobody said that it was acked."""
    run = demo("--calm", "--work", "0", "--sabotage", "forget-ack")
    assert run.finish() == 1, run.output
    wrong = [line.split("  ")[0] for line in run.output.splitlines() if line.endswith("   WRONG")]
    assert wrong == ["acked", "lost, settled twice, or back after an ack"], run.output
    assert "lost: " in run.output
    assert "IT DOES NOT ADD UP" in run.output


def test_the_demo_notices_a_consumer_that_trusts_its_claim_for_too_long(demo: Callable[..., Demo]) -> None:
    """It exits with 1 and names what is wrong, if consumers work on although their claim's time is over."""
    run = demo("--sabotage", "overstay")
    assert run.finish() == 1, run.output
    wrong = [line.split("  ")[0] for line in run.output.splitlines() if line.endswith("   WRONG")]
    assert wrong == ["held twice"], run.output
    assert "IT DOES NOT ADD UP" in run.output


def test_ctrl_c_leaves_nothing_behind(demo: Callable[..., Demo]) -> None:
    """Interrupted while one consumer is frozen, it says so, exits with 130, and all that it had started is gone."""
    run = demo()
    run.read_until("(SIGSTOP)")
    run.signal(signal.SIGINT)
    assert run.finish() == 130, run.output
    assert "Interrupted" in run.output
    assert nothing_is_left(run, seconds=0.0), (run.processes(), [*run.folder.rglob("*")])


def test_kill_9_of_the_demo_leaves_nothing_behind(demo: Callable[..., Demo]) -> None:
    """Killed while one consumer is frozen, it cannot clean up; what it had started is soon gone all the same."""
    run = demo()
    run.read_until("(SIGSTOP)")
    run.signal(signal.SIGKILL)
    assert nothing_is_left(run), (run.processes(), [*run.folder.rglob("*")])

"""``make demo-queue`` itself, with small numbers: what it shows, that it can fail, and that nothing of it is left."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.demo.process import nothing_is_left

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.demo.process import Demo

pytestmark = pytest.mark.servers

QUEUE = "tools.demo.queue"
SMALL = ("--orders", "120", "--ttl", "5", "--work", "0.5")


def test_the_demo_adds_up(demo: Callable[..., Demo]) -> None:
    """It exits with 0 and shows a table of which every line holds, in lines that fit a window, and leaves nothing."""
    run = demo(QUEUE, *SMALL)
    assert run.finish() == 0, run.output
    for words in ("published", "acked", "dead", "redelivered", "held twice", "processes of the demo"):
        [line] = [line for line in run.output.splitlines() if line.startswith(words)]
        assert line.endswith("   ok"), line
    assert "\nrequests a message, claim and ack " in run.output
    assert "Consumer 2 is killed (kill -9) while it holds" in run.output
    assert "It adds up" in run.output
    assert max(map(len, run.output.splitlines())) < 100
    assert nothing_is_left(run, seconds=0.0)


def test_the_demo_notices_an_ack_that_is_not_in_the_books(demo: Callable[..., Demo]) -> None:
    """It exits with 1 and names what is wrong, if a message is gone of which nobody said that it was acked."""
    run = demo(QUEUE, *SMALL, "--calm", "--work", "0", "--sabotage", "forget-ack")
    assert run.finish() == 1, run.output
    wrong = [line.split("  ")[0] for line in run.output.splitlines() if line.endswith("   WRONG")]
    assert wrong == ["acked", "lost, settled twice, or back after an ack"], run.output
    assert "lost: " in run.output
    assert "IT DOES NOT ADD UP" in run.output


def test_the_demo_notices_a_consumer_that_trusts_its_claim_for_too_long(demo: Callable[..., Demo]) -> None:
    """It exits with 1 and names what is wrong, if consumers work on although their claim's time is over."""
    run = demo(QUEUE, *SMALL, "--sabotage", "overstay")
    assert run.finish() == 1, run.output
    wrong = [line.split("  ")[0] for line in run.output.splitlines() if line.endswith("   WRONG")]
    assert wrong == ["held twice"], run.output
    assert "IT DOES NOT ADD UP" in run.output


def test_ctrl_c_leaves_nothing_behind(demo: Callable[..., Demo]) -> None:
    """Interrupted while one consumer is frozen, it says so, exits with 130, and all that it had started is gone."""
    run = demo(QUEUE, *SMALL)
    run.read_until("(SIGSTOP)")
    run.signal(signal.SIGINT)
    assert run.finish() == 130, run.output
    assert "Interrupted" in run.output
    assert nothing_is_left(run, seconds=0.0), (run.processes(), [*run.folder.rglob("*")])


def test_kill_9_of_the_demo_leaves_nothing_behind(demo: Callable[..., Demo]) -> None:
    """Killed while one consumer is frozen, it cannot clean up; what it had started is soon gone all the same."""
    run = demo(QUEUE, *SMALL)
    run.read_until("(SIGSTOP)")
    run.signal(signal.SIGKILL)
    assert nothing_is_left(run), (run.processes(), [*run.folder.rglob("*")])

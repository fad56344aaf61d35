"""``make demo`` itself, with few orders: a real S3 server, a real Airflow, a real Spark, and nothing of it is left."""

from __future__ import annotations

import re
import signal
import subprocess
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.demo.process import ROOT, nothing_is_left

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.demo.process import Demo

pytestmark = [pytest.mark.airflow, pytest.mark.servers, pytest.mark.spark, pytest.mark.timeout(600)]

PIPELINE = "tools.demo"
FEW = ("--orders", "200")
SECONDS = 500.0


def test_it_adds_up(demo: Callable[..., Demo]) -> None:
    """It exits with 0 and shows a table of which every line holds, in lines that fit a window, and leaves nothing."""
    run = demo(PIPELINE, *FEW)
    assert run.finish(SECONDS) == 0, run.output
    table = [line for line in run.output.splitlines() if line.endswith(("   ok", "   WRONG"))]
    told = {line[:42].strip(): line.endswith("   ok") for line in table}
    assert set(told.values()) == {True}, run.output
    assert {"published", "processed by Spark", "revenue, plum", "processes of the demo that still run"} <= told.keys()
    assert sum(name.startswith("dead: ") for name in told) == 2
    assert " requests to the store (" in run.output
    assert "It adds up" in run.output
    assert max(map(len, run.output.splitlines())) < 110
    assert nothing_is_left(run, seconds=0.0), (run.processes(), [*run.folder.rglob("*")])
    assert (ROOT / ".run" / "demo.svg").read_text(encoding="utf-8").startswith("<svg ")


@pytest.mark.full
def test_ctrl_c_leaves_nothing_behind(demo: Callable[..., Demo]) -> None:
    """Interrupted while Spark works, it says so, exits with 130, and all that it had started is gone."""
    run = demo(PIPELINE, *FEW)
    run.read_until("spark-submit starts a Spark job")
    run.signal(signal.SIGINT)
    assert run.finish(SECONDS) == 130, run.output
    assert "Interrupted" in run.output
    assert nothing_is_left(run, seconds=0.0), (run.processes(), [*run.folder.rglob("*")])


@pytest.mark.full
def test_kill_9_leaves_nothing_behind(demo: Callable[..., Demo]) -> None:
    """Killed while Spark works, it cannot clean up; what it had started is soon gone all the same."""
    run = demo(PIPELINE, *FEW)
    run.read_until("spark-submit starts a Spark job")
    run.signal(signal.SIGKILL)
    assert nothing_is_left(run, seconds=60.0), (run.processes(), [*run.folder.rglob("*")])


@pytest.mark.full
def test_kept_it_can_be_used(demo: Callable[..., Demo]) -> None:
    """It says where everything is; the commands that it shows work; and it ends on a signal."""
    run = demo(PIPELINE, *FEW, "--keep")
    run.read_until("until you press Ctrl-C")
    shown = run.output[run.output.index("Airflow   http") :]
    url = re.search(r"Airflow +(http\S+),", shown)
    assert url
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url[1]}/api/v2/monitor/health", timeout=30) as answer:
        assert b"healthy" in answer.read()
    source, look, publish = [line[10:] for line in shown.splitlines() if re.search("source|airflow pawnq", line)]
    commands = f"{source} && {publish} && {look}"
    said = subprocess.run(["bash", "-euc", commands], capture_output=True, text=True, timeout=120, check=False)
    assert said.returncode == 0, said.stderr
    assert "arriving_orders" in said.stdout
    run.signal(signal.SIGINT)
    assert run.finish(SECONDS) == 0
    assert nothing_is_left(run, seconds=0.0), (run.processes(), [*run.folder.rglob("*")])

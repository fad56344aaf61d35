"""Servers start on ports of their own, and are gone afterwards, whatever happens to the process that started them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.kit import servers
from tools.kit.ports import free_ports
from tools.kit.processes import ServerNotReadyError, ServerProcess
from tools.kit.servers import S3Server, ServerNotInstalledError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

ROOT = Path(__file__).parents[2]
SLEEP = ["sleep", "1000"]


def wait_for_end(pid: int) -> None:
    """Return once the process has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([pidfd], [], [], 10)
    finally:
        os.close(pidfd)
    assert ended


def test_ports_are_different() -> None:
    """No port is given twice."""
    assert len(set(free_ports(50))) == 50


def test_failure_to_start_is_told_at_once() -> None:
    """A command that ends before it is ready raises, with its log's tail and without waiting for the time to pass."""
    with (
        pytest.raises(ServerNotReadyError, match="port is taken"),
        ServerProcess(["bash", "-c", "echo port is taken; exit 3"], ready=lambda: False, start_timeout=600),
    ):
        pass
    with pytest.raises(ServerNotReadyError, match="No such file"), ServerProcess(["/no/such"], ready=lambda: False):
        pass


def test_never_ready() -> None:
    """A command that is not ready in time is ended, and its directory removed."""
    process = ServerProcess(SLEEP, ready=lambda: False, start_timeout=0.1)
    with pytest.raises(ServerNotReadyError, match=r"not ready after 0\.1 s"), process:
        pass
    assert not process.running
    assert not process.directory.exists()


def test_the_whole_group_ends() -> None:
    """Children of the command end with it, those that ignore SIGTERM too."""
    script = "trap '' TERM; sleep 1000 & echo $! > child; wait; sleep 1000"
    process = ServerProcess(["bash", "-c", script], ready=lambda: bool((process.data / "child").exists()), grace=0.2)
    with process:
        child = int((process.data / "child").read_text(encoding="ascii"))
        leader = process.pid
    wait_for_end(child)
    wait_for_end(leader)
    assert not process.directory.exists()
    assert not Path(f"/proc/{leader}").exists(), "the guard has reaped it"


def test_stopping_at_once() -> None:
    """A command that was started a moment ago gets its SIGTERM, and needs no SIGKILL."""
    for _ in range(5):
        with ServerProcess(SLEEP, ready=lambda: True, grace=600):
            pass


def test_a_crashed_server_is_noticed() -> None:
    """A signal reaches the command, and its end is seen."""
    with ServerProcess(SLEEP, ready=lambda: True) as process:
        process.signal(signal.SIGKILL)
        wait_for_end(process.pid)


def test_the_starting_thread_may_end() -> None:
    """A server outlives the thread that started it."""
    process = ServerProcess(SLEEP, ready=lambda: True)
    thread = threading.Thread(target=process.__enter__)
    thread.start()
    thread.join()
    try:
        pidfd = os.pidfd_open(process.pid)
        ended, _, _ = select.select([pidfd], [], [], 0.3)
        os.close(pidfd)
        assert not ended
    finally:
        process.stop()


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit()", "raise KeyboardInterrupt"])
def test_nothing_is_left_of_a_run(end: str) -> None:
    """Server and directory go with the test run, whether it is killed, exits or is interrupted."""
    script = (
        "import os, signal, sys\n"
        "from tools.kit.processes import ServerProcess\n"
        "process = ServerProcess(['sleep', '1000'], ready=lambda: True)\n"
        "process.__enter__()\n"
        "print(process.pid, process._guard.pid, process.directory, flush=True)\n"
        f"{end}\n"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    pid, guard_pid, directory = run.stdout.split()
    wait_for_end(int(pid))
    wait_for_end(int(guard_pid))
    assert not Path(directory).exists()


@pytest.mark.parametrize("start", [servers.seaweedfs, servers.rclone, servers.moto])
def test_servers_serve(start: Callable[[], AbstractContextManager[S3Server]]) -> None:
    """Each server takes an object into a fresh bucket as soon as it is entered."""
    with start() as server:
        client, bucket = server.client(), server.make_bucket()
        client.put_object(Bucket=bucket, Key="a", Body=b"1")
        assert client.get_object(Bucket=bucket, Key="a")["Body"].read() == b"1"
        assert bucket != server.make_bucket()


@pytest.mark.ceph
def test_ceph_serves() -> None:
    """Ceph takes an object into a fresh bucket."""
    test_servers_serve(servers.ceph)


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Ceph is missing, the error says what to install."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServerNotInstalledError, match="ceph-mon ceph-osd ceph-mgr radosgw ceph-common"), servers.ceph():
        pass

"""Processes that fork (Airflow's LocalExecutor and PySpark's daemon do), and processes that end."""

from __future__ import annotations

import base64
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.support.faults import FaultServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pawnqueue import Settings

#: How long a program may take before it counts as hanging: ten times what it needs on a busy machine.
PATIENCE = 60.0

# What every program begins with. Forks happen here, not in pytest: its threads would be part of the experiment.
PRELUDE = """
import asyncio, base64, multiprocessing, os, pickle, select, signal, sys, traceback
from pawnqueue.stores import forks
from pawnqueue.stores.boto3_s3 import Boto3S3
from pawnqueue.stores.connect import connect
from pawnqueue.stores.port import Done

settings = pickle.loads(base64.b64decode(sys.argv[1])).s3


async def work(store, name):
    assert isinstance(await store.put(f"forks/{name}", name.encode()), Done)
    found = await store.get(f"forks/{name}", 2**20)
    assert found is not None and found.body == name.encode()
    assert (await store.head(f"forks/{name}")).version == found.info.version
    assert isinstance(await store.copy(f"forks/{name}", f"forks/{name}-copy"), Done)
    assert f"forks/{name}-copy" in await keys(store)
    assert "forks/" in await store.folders()
    assert await store.delete([f"forks/{name}-copy"]) == {}
    assert f"forks/{name}-copy" not in await keys(store)


async def keys(store):
    return [info.key async for page in store.pages("forks/") for info in page]


def use(store, name):
    asyncio.run(work(store, name))


def fork(function, *arguments):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            function(*arguments)
        except Exception:
            traceback.print_exc()
            os._exit(1)
        sys.exit(0)  # not os._exit: what an interpreter does at its end must not hang either
    return child


def ended_well(child):
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, f"the child ended with {os.waitstatus_to_exitcode(status)}"


def is_on_boto3(store):
    return isinstance(store._current(), Boto3S3)
"""

PARENT_AND_CHILDREN = """
inherited = connect(settings)
use(inherited, "parent")
assert is_on_boto3(inherited) == (settings.client == "boto3")


def grandchild():
    use(inherited, "grandchild-inherited")
    use(connect(settings), "grandchild-new")


def child():
    use(inherited, "child-inherited")
    new = connect(settings)
    use(new, "child-new")
    assert is_on_boto3(inherited) and is_on_boto3(new)
    ended_well(fork(grandchild))
    use(inherited, "child-after")
    asyncio.run(inherited.aclose())


ended_well(fork(child))
use(inherited, "parent-after")
ended_well(fork(child))  # and once more, from a parent that has been on
assert is_on_boto3(inherited) == (settings.client == "boto3")
names = ["parent", "parent-after", "child-inherited", "child-new", "child-after"]
names += ["grandchild-inherited", "grandchild-new"]
assert asyncio.run(keys(inherited)) == sorted(f"forks/{name}" for name in names)
print("well")
"""

MULTIPROCESSING = """
store = connect(settings)
use(store, "parent")
context = multiprocessing.get_context("fork")
children = [context.Process(target=use, args=(store, f"child-{number}")) for number in range(3)]
for child in children:
    child.start()
for child in children:
    child.join()
assert [child.exitcode for child in children] == [0, 0, 0]
use(store, "parent-after")
print("well")
"""

ONLY_MADE = """
made = connect(settings)  # imported and constructed, nothing sent


def child():
    use(made, "child-inherited")
    use(connect(settings), "child-new")
    assert not is_on_boto3(made)


ended_well(fork(child))
use(made, "parent")
assert not is_on_boto3(made)
print("well")
"""

WITHOUT_THE_GUARD = """
store = connect(settings)
use(store, "parent")


def child():
    forks.obstore_hangs_here = lambda: False
    use(connect(settings), "child")


victim = fork(child)
poll = select.poll()
poll.register(os.pidfd_open(victim), select.POLLIN)
if not poll.poll(3000):
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    print("hung")
"""

SHORT = """
asyncio.run(connect(settings).put("ends/x", b""))
print("well")
"""

SERVERS = [
    pytest.param("seaweedfs", marks=pytest.mark.servers),
    pytest.param("rclone", marks=pytest.mark.servers),
    pytest.param("ceph", marks=pytest.mark.ceph),
]


def run(program: str, settings: Settings) -> str:
    """Run the program in a process of its own, with all that it forks, and return what it printed."""
    command = [sys.executable, "-c", PRELUDE + program, base64.b64encode(pickle.dumps(settings)).decode()]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"After {PATIENCE:g} s a forked process still hung. Printed until then:\n{output}")
        finally:
            # Nothing it forked outlives it: the pid, which is the group's id, is still ours until it is reaped.
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output
    return output.strip()


@pytest.mark.parametrize("client", ["obstore", "boto3"])
@pytest.mark.parametrize("server", SERVERS)
def test_a_child_uses_the_store_of_its_parent(
    request: pytest.FixtureRequest, settings_for: Callable[..., Settings], server: str, client: str
) -> None:
    """Child and grandchild of a process that used the store use it too, and it sees what they wrote and goes on."""
    settings = settings_for(request.getfixturevalue(server), s3={"client": client})
    assert run(PARENT_AND_CHILDREN, settings) == "well"


@pytest.mark.servers
@pytest.mark.parametrize("client", ["obstore", "boto3"])
def test_multiprocessing_forks_too(seaweedfs: object, settings_for: Callable[..., Settings], client: str) -> None:
    """Processes of ``multiprocessing``'s fork context use the inherited store, several at once."""
    assert run(MULTIPROCESSING, settings_for(seaweedfs, s3={"client": client})) == "well"


@pytest.mark.servers
def test_a_store_that_was_only_made_stays_fast(seaweedfs: object, settings_for: Callable[..., Settings]) -> None:
    """The child of a parent that made no request uses obstore, and so does the parent after it."""
    assert run(ONLY_MADE, settings_for(seaweedfs)) == "well"


@pytest.mark.servers
def test_without_the_guard_a_child_hangs(seaweedfs: object, settings_for: Callable[..., Settings]) -> None:
    """A child that uses obstore after its parent did hangs: the tests above can fail, and the guard is needed."""
    assert run(WITHOUT_THE_GUARD, settings_for(seaweedfs)) == "hung"


def test_a_short_program_ends_well(settings_for: Callable[..., Settings]) -> None:
    """A program that ends right after its last request ends with status 0, every time."""
    with FaultServer(buckets=("queues",)) as server:
        settings = settings_for(server.s3, s3={"bucket_name": "queues"})
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(run, [SHORT] * 20, [settings] * 20)) == {"well"}

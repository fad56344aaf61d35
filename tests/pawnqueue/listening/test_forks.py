"""Handlers that fork: the child is not the worker, and ends by its own signals."""

from __future__ import annotations

import subprocess
import sys

import pytest

SECONDS = 60.0

CHILD = """
import multiprocessing, os, signal, time
from pawnqueue import MemoryStore, SyncPawnQueue

context = multiprocessing.get_context("fork")

def handle(message):
    child = context.Process(target=time.sleep, args=(600,), daemon=True)
    child.start()
    child.terminate()
    child.join(20)
    print("ended by", child.exitcode, flush=True)
    child.kill()
    os.kill(os.getpid(), signal.SIGTERM)

with SyncPawnQueue.open(store=MemoryStore()) as queue:
    queue.publish("orders", [{"n": 1}], create=True)
    print("acked", queue.listen("orders", handle, consumer="c").acked)
"""

CHILD_OF_THE_LOOP = """
import asyncio, multiprocessing, os, signal, time
from pawnqueue import MemoryStore, PawnQueue

context = multiprocessing.get_context("fork")

def work():
    child = context.Process(target=time.sleep, args=(600,), daemon=True)
    child.start()
    child.terminate()
    child.join(20)
    print("ended by", child.exitcode, flush=True)
    child.kill()

async def handle(message):
    await asyncio.to_thread(work)
    os.kill(os.getpid(), signal.SIGTERM)

async def main():
    async with PawnQueue.open(store=MemoryStore()) as queue:
        await queue.publish("orders", [{"n": 1}], create=True)
        print("acked", (await queue.listen("orders", handle, consumer="c")).acked)

asyncio.run(main())
"""

POOL = """
import multiprocessing, os, signal
from pawnqueue import MemoryStore, SyncPawnQueue

context = multiprocessing.get_context("fork")

def square(number):
    return number * number

def handle(message):
    with context.Pool(2) as pool:
        assert pool.map(square, [1, 2, 3]) == [1, 4, 9]
    print("ended by", -signal.SIGTERM, flush=True)  # the pool has ended its processes so
    os.kill(os.getpid(), signal.SIGTERM)

with SyncPawnQueue.open(store=MemoryStore()) as queue:
    queue.publish("orders", [{"n": 1}], create=True)
    print("acked", queue.listen("orders", handle, consumer="c").acked)
"""


@pytest.mark.parametrize("program", [CHILD, CHILD_OF_THE_LOOP, POOL], ids=["thread", "loop", "pool"])
def test_a_child_of_a_handler_ends_by_sigterm(program: str) -> None:
    """As it does without a worker, and the worker's own signal still drains it."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.stdout.splitlines() == ["ended by -15", "acked 1"], done.stderr

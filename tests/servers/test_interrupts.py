"""A claim that is interrupted, or whose queue is closed, leaves nothing on a real store that others wait for."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import PawnQueue, QueueClosedError

if TYPE_CHECKING:
    from tools.kit.servers import S3Server

pytestmark = pytest.mark.servers

TOPIC = "orders"
MESSAGES = 1000

#: Claims everything, for an hour, and is interrupted, or closed by another thread, some seconds after it began.
CLAIMER = """
import json, os, signal, sys, threading
from pawnqueue import SyncPawnQueue

sections, topic, count, how, seconds = json.loads(sys.argv[1])
try:
    with SyncPawnQueue.open(**sections) as queue:
        queue.stats(topic)
        end = queue.close if how == "close" else lambda: os.kill(os.getpid(), signal.SIGINT)
        timer = threading.Timer(seconds, end)
        timer.start()
        queue.claim(topic, "c", ttl=3600, max_messages=count)
        timer.join()
except BaseException as error:
    print(type(error).__name__)
"""


def sections_of(server: S3Server) -> dict[str, Any]:
    """Settings, as JSON has them, for a bucket that nobody else uses."""
    return {"s3": server.address(server.make_bucket())}


async def fill(sections: dict[str, Any]) -> None:
    """Publish the messages."""
    async with PawnQueue.open(**sections) as queue:
        await queue.create_topic(TOPIC, packs=False)  # a claim wins a lease for each of them
        await queue.publish(TOPIC, [{"n": number} for number in range(MESSAGES)])


async def assert_nothing_is_held(sections: dict[str, Any]) -> None:
    """No held lease is left: another process has all the messages at once."""
    async with PawnQueue.open(**sections) as queue:
        stats = await queue.stats(TOPIC)
        assert (stats.pending, stats.in_flight, stats.dead) == (MESSAGES, 0, 0)
        claim = await queue.claim(TOPIC, "d", max_messages=MESSAGES, wait=10)
        assert len(claim) == MESSAGES
        assert (await queue.ack(claim)).complete


@pytest.mark.parametrize("seconds", [0.15, 0.5])
@pytest.mark.parametrize("how", ["interrupt", "close"])
async def test_a_synchronous_claim_that_is_cut_short_leaves_no_lease(
    seaweedfs: S3Server, how: str, seconds: float
) -> None:
    """By Ctrl-C, or by another thread that closes the queue: what it had won of a thousand messages is free."""
    sections = sections_of(seaweedfs)
    await fill(sections)
    given = json.dumps([sections, TOPIC, MESSAGES, how, seconds])
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", CLAIMER, given], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("KeyboardInterrupt" if how == "interrupt" else "QueueClosedError", ""), done.stderr
    await assert_nothing_is_held(sections)


@pytest.mark.parametrize("seconds", [0.15, 0.5])
async def test_a_claim_whose_queue_is_closed_is_told_so_and_leaves_no_lease(
    seaweedfs: S3Server, seconds: float
) -> None:
    """Another task closes the queue: the claim raises, or had its messages before, and all of them are free."""
    sections = sections_of(seaweedfs)
    await fill(sections)
    queue = await PawnQueue.open(**sections)
    await queue.stats(TOPIC)
    claiming = asyncio.ensure_future(queue.claim(TOPIC, "c", ttl=3600, max_messages=MESSAGES))
    await asyncio.wait((claiming,), timeout=seconds)
    was_under_way = not claiming.done()
    await queue.aclose()
    if was_under_way:
        with pytest.raises(QueueClosedError):
            await claiming
    await assert_nothing_is_held(sections)

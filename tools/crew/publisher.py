"""A publisher: ``python -m tools.crew.publisher``, in a folder with its job."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pawnqueue import PawnQueue
from pawnqueue.runtime.clock import SystemClock
from tools.crew.jobs import DIARY, Publishing
from tools.crew.orders import order
from tools.crew.stopping import told_to_stop
from tools.kit.history import Diary

#: How many orders one call publishes.
CHUNK = 100


async def publish(job: Publishing) -> None:
    """Publish all of them, and write down the ids that were confirmed."""
    stop = told_to_stop()
    clock = SystemClock()
    diary = Diary(Path(DIARY), job.name)
    async with PawnQueue.open(job.settings) as queue:
        for start in range(job.first, job.end, CHUNK):
            if stop.is_set():
                break
            numbers = range(start, min(start + CHUNK, job.end))
            payloads = [order(number, job.poison_every) for number in numbers]
            begun = clock.elapsed()
            ids = await queue.publish(job.topic, payloads, producer=job.name)
            diary.write("published", at=clock.elapsed(), begun=begun, ids=ids)
    diary.write("dropped", at=clock.elapsed(), ids=[], ended=True)
    diary.close()


if __name__ == "__main__":
    asyncio.run(publish(Publishing.read()))

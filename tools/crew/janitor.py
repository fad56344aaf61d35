"""A janitor: ``python -m tools.crew.janitor``, in a folder with its job."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from pawnqueue import PawnQueue, StoreError
from pawnqueue.runtime.clock import SystemClock
from tools.crew.jobs import DIARY, Sweeping
from tools.crew.stopping import told_to_stop
from tools.kit.history import Diary

logger = logging.getLogger(__name__)


async def sweep(job: Sweeping) -> None:
    """Sweep the topic again and again, while others work on it."""
    stop = told_to_stop()
    diary = Diary(Path(DIARY), job.name)
    async with PawnQueue.open(job.settings) as queue:
        while not stop.is_set():
            try:
                report = await queue.sweep(job.topic)
            except StoreError as error:
                logger.warning("%s", error)
            else:
                for failure in report.failures:
                    logger.warning("%s", failure)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), job.every)
    diary.write("dropped", at=SystemClock().elapsed(), ids=[], ended=True)
    diary.close()


if __name__ == "__main__":
    asyncio.run(sweep(Sweeping.read()))

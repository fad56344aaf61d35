"""Sweeping in the simulation: a defect of the engine breaks the schedule, which a sweep itself would survive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pawnqueue import PawnQueue


async def sweep(queue: PawnQueue, topic: str, **how: Any) -> None:
    """Sweep the topic.

    :raises AssertionError: the sweep met a defect.
    """
    report = await queue.sweep(topic, **how)
    if report.defects:
        raise AssertionError(report.failures)

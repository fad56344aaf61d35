"""A trigger that notes how late its triggerer's event loop wakes it. The triggerer imports this, and nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from benchmarks.loop_lag import watch


class LoopLag(BaseTrigger):
    """Notes how late it wakes, beside everything else that its triggerer runs, until it is cancelled."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Say how it is made again."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"path": self.path}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Note."""
        await watch(self.path)
        yield TriggerEvent(None)

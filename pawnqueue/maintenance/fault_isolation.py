"""⚑ §5.6: a fault of one object concerns that object. The others are swept; it is reported and tried again."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, TypeVar

from pawnqueue.errors import PawnQueueError
from pawnqueue.events import logger_of

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.maintenance.sweep_report import SweepReport

logger = logger_of("janitor")

T = TypeVar("T")

#: After so many faults it is the store rather than the objects: each is tried once, so that the sweep comes to an end.
ENOUGH = 30


class Care:
    """What all parts of one sweep share: the topic, the report, and how they take an object that cannot be dealt with.

    An outage is another matter: a LIST that fails ends the sweep.
    """

    def __init__(self, context: Context, topic: str, report: SweepReport) -> None:
        self.topic = topic
        self.report = report
        self.once = context.with_budget(0.0)  # for what must not be repeated later
        self._patient = context.with_budget()
        self._told: set[str] = set()
        self._faults = 0

    @property
    def context(self) -> Context:
        """The bucket, with as much patience as a single object is worth."""
        return self._patient if self._faults < ENOUGH else self.once

    async def alone(self, key: str, work: Awaitable[T], otherwise: T) -> T:
        """Await what is done to one object; its fault is told, and ends nothing else."""
        try:
            return await work
        except PawnQueueError as error:
            self.tell(key, error)
        except Exception as defect:  # noqa: BLE001 - whatever it is, it concerns this object alone
            self._tell_defect(key, defect)
        return otherwise

    async def part(self, key: str, work: Awaitable[None]) -> bool:
        """Await a part of the sweep, and return whether it came to its end. A defect in it does not end the others."""
        try:
            await work
        except PawnQueueError:
            raise  # an outage
        except Exception as defect:  # noqa: BLE001 - it is logged with its traceback, and the other parts are swept
            self._tell_defect(key, defect)
            return False
        return True

    def _tell_defect(self, key: str, defect: Exception) -> None:
        """Report a defect of ours by the object where it showed, and log its traceback: once in a sweep."""
        if key not in self.report.defects:
            self.report.defects.append(key)
            self.report.failures.append(f"{key}: a defect of this version ({type(defect).__name__}): please report it")
            logger.error("Not swept because of a defect of this version: %s", key, exc_info=defect)

    def tell(self, key: str, why: object, *, by_the_store: bool = True) -> None:
        """Report and log that something could not be done to an object: once in a sweep."""
        if key not in self._told:
            self._told.add(key)
            self._faults += by_the_store
            self.report.failures.append(f"{key}: {why}")
            logger.warning("Not swept, and tried again by the next sweep: %s: %s", key, why)

    async def delete(self, keys: Sequence[str], *, context: Context | None = None) -> int:
        """Delete registers and other objects; return how many are gone, or in a dry run how many it would be."""
        if not keys or self.report.dry_run:
            return len(keys)
        failed = await (context or self.context).registers.delete(keys)
        for key, error in failed.items():
            self.tell(key, error)
        return len(keys) - len(failed)

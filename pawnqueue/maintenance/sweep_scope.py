"""What the parts of a sweep share. ⚑ §5.6: a fault of one object concerns that object: it is reported, and retried."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from pawnqueue.errors import PawnQueueError
from pawnqueue.events import logger_of

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.maintenance.sweep_report import SweepReport
    from pawnqueue.stores.port import ObjectInfo

logger = logger_of("janitor")

T = TypeVar("T")

#: A record is deleted only if it was read at most this long ago.
MAX_READ_TO_DELETE_SECONDS = 3.0
#: After this many faults the store is to blame rather than the objects: nothing is retried, so that the sweep ends.
MAX_RETRIED_FAULTS = 30


class SweepScope:
    """What all parts of one sweep share: the topic, the report, and the isolation of objects that fail.

    An outage is not isolated: a LIST that fails ends the sweep.
    """

    def __init__(self, context: Context, topic: str, report: SweepReport) -> None:
        self.topic = topic
        self.report = report
        self.without_retries = context.with_budget(0.0)
        self._with_retries = context.with_budget()
        self._reported: set[str] = set()
        self._faults = 0

    @property
    def context(self) -> Context:
        """The bucket, with the retry budget of a single object."""
        return self._with_retries if self._faults < MAX_RETRIED_FAULTS else self.without_retries

    def sorted_out(self, infos: Iterable[ObjectInfo], parse: Callable[[str], T | None]) -> list[tuple[T, ObjectInfo]]:
        """Return the listed objects that are ours, each with what its key means, and report the strangers."""
        ours = []
        for info in infos:
            parsed = parse(info.key)
            if parsed is None:
                self.report.strangers.append(info.key)
            else:
                ours.append((parsed, info))
        return ours

    async def isolate(self, key: str, work: Awaitable[T], otherwise: T) -> T:
        """Await the work on one object; its error is reported, and ends nothing else."""
        try:
            return await work
        except PawnQueueError as error:
            self.report_failure(key, error)
        except Exception as defect:  # noqa: BLE001 - whatever it is, it concerns this object alone
            self._report_defect(key, defect)
        return otherwise

    async def run_part(self, key: str, work: Awaitable[None]) -> bool:
        """Await a part of the sweep, and return whether it was completed. A defect does not end the other parts."""
        try:
            await work
        except PawnQueueError:
            raise  # an outage
        except Exception as defect:  # noqa: BLE001 - it is logged with its traceback, and the other parts are swept
            self._report_defect(key, defect)
            return False
        return True

    def _report_defect(self, key: str, defect: Exception) -> None:
        """Report a defect of the sweep itself, by the object where it showed, and log its traceback, once."""
        if key not in self.report.defects:
            self.report.defects.append(key)
            self.report.failures.append(f"{key}: a defect of this version ({type(defect).__name__}): please report it")
            logger.error("Not swept because of a defect of this version: %s", key, exc_info=defect)

    def report_failure(self, key: str, why: object, *, is_store_fault: bool = True) -> None:
        """Report and log what could not be done to an object: once in a sweep."""
        if key not in self._reported:
            self._reported.add(key)
            self._faults += is_store_fault
            self.report.failures.append(f"{key}: {why}")
            logger.warning("Not swept, and tried again by the next sweep: %s: %s", key, why)

    async def delete(self, keys: Sequence[str], *, context: Context | None = None) -> int:
        """Delete registers and other objects; return how many were deleted, or would be in a dry run."""
        if not keys or self.report.dry_run:
            return len(keys)
        failed = await (context or self.context).registers.delete(keys)
        for key, error in failed.items():
            self.report_failure(key, error)
        return len(keys) - len(failed)

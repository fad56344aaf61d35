"""What a process cannot know of its clock: that it stood still, before the store shows something young enough.

docs/protocol.md, section 2, tells what is noticed and what is not. A process whose machine was stopped, and that has
since seen nothing younger than its clock allows, trusts what it is given for that much longer. The judge subtracts
this, and so judges within what is promised. As soon as an answer could tell, nothing is subtracted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from pawnqueue.stores.port import ObjectInfo, StoredObject
from pawnqueue.stores.server_time import DATE_ROUNDING_SECONDS
from tests.sim.bucket import EPOCH

if TYPE_CHECKING:
    from tests.sim.processes import Process
    from tests.sim.world import World

#: How much younger than the time that was lost an object must be, to be noticed: a claim's time may be wrong by the
#: margin (2 s) in either direction.
BLUR = 2 * 2.0 + DATE_ROUNDING_SECONDS


class Unseen:
    """For how long each process's clock was stopped without a sign of it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[str, float] = defaultdict(float)  # how much of the lost time the process knows of
        self._noticed: set[str] = set()  # processes that know of a loss, and have not sampled since

    def of(self, process: Process) -> float:
        """Return by how many seconds a process may be behind at most, and cannot know it."""
        return process.clock.lost - self._known[process.name]

    def hear(self, who: str, kind: str, key: str, answer: object) -> None:
        """Look at the dates that a process is shown."""
        process = self._world.processes[who]
        if not process.clock.lost:
            return
        for date in _dates(answer):
            shown = date.timestamp() - EPOCH
            # An answer that comes while the clock is stopped is read when it runs again.
            age, unseen = max(self._world.loop.now, process.clock.stood_until) - shown, self.of(process)
            is_sample = kind == "HEAD" and key.startswith("_probe/")
            if who in self._noticed and is_sample and shown >= process.clock.stood_until:
                self._noticed.discard(who)
                self._known[who] = process.clock.lost
            elif unseen > age + BLUR:  # what it suspects may be short by the object's age, until it samples
                self._noticed.add(who)
                self._known[who] = process.clock.lost - age


def _dates(answer: object) -> Iterator[datetime]:
    match answer:
        case StoredObject():
            yield answer.info.last_modified
        case ObjectInfo():
            yield answer.last_modified
        case ([*page], bool()) if page and isinstance(page[0], ObjectInfo):
            yield max(info.last_modified for info in page)

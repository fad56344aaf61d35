"""What is left alone for a while: a fault of one object concerns that object, and the others are delivered (§5.6)."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine.events import logger_of

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.clock import Clock

logger = logger_of("claims")

#: The first pause; each following one is twice as long, up to the last.
SHORTEST_PAUSE = 10.0
LONGEST_PAUSE = 600.0
#: What is put aside within so many seconds after a warning is told at DEBUG.
A_BATCH = 1.0


@dataclass(slots=True)
class _Entry:
    pause: float
    until: float


class Aside:
    """What cannot be had now, by its name, and when this process tries it again.

    ⚑ §5.6: an object that cannot be read, an effect that the store refuses, a message that this version does not
    understand: each is tried again, ever more seldom, and never waited for by anything else.
    """

    def __init__(self, clock: Clock, topic: str) -> None:
        self._clock = clock
        self._topic = topic
        self._entries: dict[str, _Entry] = {}
        self._told = -math.inf

    def put(self, name: str, why: object, *, quiet: bool = False) -> None:
        """Leave it alone for a while, longer than the last time. The first time is worth a warning."""
        entry = self._entries.get(name)
        now = self._clock.elapsed()
        if entry is None:
            # Where a whole batch is refused for one reason, one line says so.
            quiet = quiet or now - self._told < A_BATCH
            self._told = self._told if quiet else now
            logger.log(
                logging.DEBUG if quiet else logging.WARNING,
                "In topic %r, %s is left alone and tried again later: %s",
                self._topic,
                name,
                why,
            )
        pause = SHORTEST_PAUSE if entry is None else min(entry.pause * 2, LONGEST_PAUSE)
        self._entries[name] = _Entry(pause, now + pause)

    def __contains__(self, name: str) -> bool:
        """Say whether it is left alone now."""
        entry = self._entries.get(name)
        return entry is not None and self._clock.elapsed() < entry.until

    def back_in(self, name: str) -> float:
        """Return in how many seconds it is tried again."""
        entry = self._entries.get(name)
        return 0.0 if entry is None else max(0.0, entry.until - self._clock.elapsed())

    def clear(self, name: str) -> None:
        """Forget what was wrong with it: it is well again."""
        self._entries.pop(name, None)

    def trim(self) -> None:
        """Forget what nobody has met for long: it is gone."""
        now = self._clock.elapsed()
        self._entries = {name: entry for name, entry in self._entries.items() if now < entry.until + LONGEST_PAUSE}

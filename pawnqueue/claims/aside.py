"""What is left alone for a while: a fault of one object concerns that object, and the others are delivered (§5.6)."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pawnqueue.events import logger_of

if TYPE_CHECKING:
    from pawnqueue.runtime.clock import Clock

logger = logger_of("claims")

#: The first pause; each following one is twice as long, up to the last.
SHORTEST_PAUSE = 10.0
LONGEST_PAUSE = 600.0
#: What no look has met for this many seconds is forgotten: it is gone.
FORGOTTEN_AFTER_SECONDS = 3600.0
#: At most this many names are remembered: beyond it, those that were met longest ago are forgotten first.
MAX_NAMES = 200_000
#: What is put aside within so many seconds after a warning is told at DEBUG.
A_BATCH = 1.0


@dataclass(slots=True)
class _Entry:
    pause: float
    until: float
    met: float


class Aside:
    """What cannot be had now, by its name, and when this process tries it again.

    ⚑ §5.6: an object that cannot be read, an effect that the store refuses, a message that this version does not
    understand: each is tried again, ever more seldom, after what was never put aside.
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
        self._entries[name] = _Entry(pause, now + pause, now)

    def __contains__(self, name: str) -> bool:
        """Say whether it is left alone now; note that it was met."""
        entry = self._entries.get(name)
        if entry is None:
            return False
        # ⚑ §5.6: its pauses never begin anew while a look meets it.
        entry.met = now = self._clock.elapsed()
        return now < entry.until

    def was_put(self, name: str) -> bool:
        """Say whether it was put aside before, be its pause over or not."""
        return name in self._entries

    def back_in(self, name: str) -> float:
        """Return in how many seconds it is tried again."""
        entry = self._entries.get(name)
        return 0.0 if entry is None else max(0.0, entry.until - self._clock.elapsed())

    def clear(self, name: str) -> None:
        """Forget what was wrong with it: it is well again."""
        self._entries.pop(name, None)

    def trim(self) -> None:
        """Forget what no look has met for a long time: it is gone."""
        oldest = self._clock.elapsed() - FORGOTTEN_AFTER_SECONDS
        self._entries = {name: entry for name, entry in self._entries.items() if entry.met > oldest}
        if len(self._entries) > MAX_NAMES:
            met_last = sorted(self._entries.items(), key=lambda item: item[1].met)[-MAX_NAMES:]
            self._entries = dict(met_last)


#: A batch that follows bad ones has at most this many messages more than the claim wants.
MAX_BAD_BATCH = 256
#: And at most this many bytes, or what the claim wants where that is more.
MAX_BAD_BATCH_BYTES = 16 * 1024**2


class BadBatches:
    """How large the next batch of a topic is: each batch that is bad altogether, but the first, doubles it.

    ⚑ §5.7: n bad messages take about log2(n) + n / 256 batches, however few messages a claim wants. Of the batch that
    ends them the claim gives back, unseen, the good ones that it does not want.
    """

    def __init__(self) -> None:
        self._in_a_row = 0

    def size(self, wanted: int) -> int:
        """Return how many messages to win for a claim that wants this many."""
        return max(wanted, min(wanted << max(self._in_a_row - 1, 0), MAX_BAD_BATCH))

    def learn(self, *, is_bad: bool) -> None:
        """Note what a batch was."""
        self._in_a_row = min(self._in_a_row + 1, MAX_BAD_BATCH) if is_bad else 0

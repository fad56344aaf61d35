"""Objects that are left alone for a while: a fault of one object concerns that object alone (§5.6)."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pawnqueue.events import logger_of

if TYPE_CHECKING:
    from pawnqueue.runtime.clock import Clock

logger = logger_of("claims")

#: The first pause. Each following one is twice as long, up to the longest.
MIN_PAUSE_SECONDS = 10.0
MAX_PAUSE_SECONDS = 600.0
#: An object that no look has met for this long is gone, and is forgotten.
FORGOTTEN_AFTER_SECONDS = 3600.0
#: How many names are remembered. Beyond it, those that were met longest ago are forgotten first.
MAX_NAMES = 200_000
#: After a warning, further objects that are set aside within this time are logged at DEBUG.
ONE_WARNING_SECONDS = 1.0


@dataclass(slots=True)
class _Entry:
    pause: float
    until: float
    met: float


class SetAside:
    """Names of objects that this process cannot use now, and when it tries each of them again.

    ⚑ §5.6: it may be an object that cannot be read, an effect that the store refuses, or a message of a newer version.
    Each is tried again after longer and longer pauses, and after all objects that were never set aside.
    """

    def __init__(self, clock: Clock, topic: str) -> None:
        self._clock = clock
        self._topic = topic
        self._entries: dict[str, _Entry] = {}
        self._told = -math.inf

    def put(self, name: str, why: object, *, quiet: bool = False) -> None:
        """Set an object aside, for longer than the last time. The first time is logged as a warning."""
        entry = self._entries.get(name)
        now = self._clock.elapsed()
        if entry is None:
            # Where a whole batch is refused for one reason, one line says so.
            quiet = quiet or now - self._told < ONE_WARNING_SECONDS
            self._told = self._told if quiet else now
            logger.log(
                logging.DEBUG if quiet else logging.WARNING,
                "In topic %r, %s is set aside and tried again later: %s",
                self._topic,
                name,
                why,
            )
        pause = MIN_PAUSE_SECONDS if entry is None else min(entry.pause * 2, MAX_PAUSE_SECONDS)
        self._entries[name] = _Entry(pause, now + pause, now)

    def __contains__(self, name: str) -> bool:
        """Say whether it is set aside now, and note that it was met."""
        entry = self._entries.get(name)
        if entry is None:
            return False
        # ⚑ §5.6: its pauses never begin anew while a look meets it.
        entry.met = now = self._clock.elapsed()
        return now < entry.until

    def was_set_aside(self, name: str) -> bool:
        """Say whether it was ever set aside, whether or not its pause is over."""
        return name in self._entries

    def seconds_left(self, name: str) -> float:
        """Return in how many seconds it may be tried again."""
        entry = self._entries.get(name)
        return 0.0 if entry is None else max(0.0, entry.until - self._clock.elapsed())

    def clear(self, name: str) -> None:
        """Forget its fault: it can be used again."""
        self._entries.pop(name, None)

    def trim(self) -> None:
        """Forget the objects that no look has met for a long time."""
        oldest = self._clock.elapsed() - FORGOTTEN_AFTER_SECONDS
        self._entries = {name: entry for name, entry in self._entries.items() if entry.met > oldest}
        if len(self._entries) > MAX_NAMES:
            met_last = sorted(self._entries.items(), key=lambda item: item[1].met)[-MAX_NAMES:]
            self._entries = dict(met_last)


#: A batch that follows bad ones has at most this many messages, or as many as the claim wants.
MAX_BAD_BATCH = 256
#: And at most this many bytes, or as many as the claim wants.
MAX_BAD_BATCH_BYTES = 16 * 1024**2


class BadBatches:
    """The size of a topic's next batch: it doubles with each further batch in which every message was bad.

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

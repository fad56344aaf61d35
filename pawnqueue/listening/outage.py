"""What a worker does while the store does not answer: it says so once, waits longer and longer, and goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pawnqueue.events import StoreAway, StoreBack

if TYPE_CHECKING:
    from pawnqueue.context import Context

FIRST_PAUSE_SECONDS: Final = 0.5
MAX_PAUSE_SECONDS: Final = 30.0
#: The longest pause of a worker that ends: what is done has to be settled in the time that it has left.
MAX_ENDING_PAUSE_SECONDS: Final = 2.0


class Outage:
    """Of one worker. It begins with the first call that fails, and ends with the first one that succeeds."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._since: float | None = None  # elapsed

    @property
    def is_on(self) -> bool:
        """Whether the last call failed."""
        return self._since is not None

    def note(self, why: object) -> None:
        """Note that a call has failed. The first one is logged."""
        if self._since is None:
            self._since = self._context.clock.elapsed()
            self._context.events.tell(StoreAway(why=str(why)))

    def end(self) -> None:
        """Note that a call has succeeded, which is logged after a failure."""
        if self._since is not None:
            self._context.events.tell(StoreBack(seconds=self._context.clock.elapsed() - self._since))
            self._since = None

    def pause(self, failures: int, most: float = MAX_PAUSE_SECONDS) -> float:
        """Return for how many seconds to wait after this number of failures of one call, of which this was the last."""
        longest = min(FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 16), most)
        return longest * self._context.clock.uniform(0.5, 1)

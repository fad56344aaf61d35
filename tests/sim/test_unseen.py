"""The judge takes off what a process cannot know of its clock, and nothing that it was shown."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pawnqueue.stores.port import ObjectInfo
from tests.sim.bucket import EPOCH
from tests.sim.processes import Process
from tests.sim.unseen import Unseen
from tests.sim.weather import CALM
from tests.sim.world import World

OLD = 3.0
OBJECT = ObjectInfo(key="orders/messages/x.json", version='"x"', size=1, last_modified=datetime.now(UTC))


class Watched:
    """One process whose clock is stopped from 0 to 20, and what has to be subtracted from what it believes."""

    def __init__(self) -> None:
        self.world = World("unseen", weather=CALM)
        self.process: Process = self.world.process("A")
        self.unseen = Unseen(self.world)
        self.process.stop_clock(20.0)

    def at(self, when: float, date: float, *, kind: str = "LIST", key: str = "orders/messages/") -> float:
        """Show it an object of this date at this time, and return what it cannot know then."""

        async def passes(world: World) -> None:
            await world.sleep_until(when)

        info = replace(OBJECT, last_modified=datetime.fromtimestamp(EPOCH + date, UTC))
        self.world.loop.run_until_complete(passes(self.world))
        self.unseen.hear("A", kind, key, ([info], False) if kind == "LIST" else info)
        return self.unseen.of(self.process)


@pytest.fixture
def watched() -> Watched:
    """A process whose clock is stopped."""
    return Watched()


def test_what_nothing_shows_is_taken_off(watched: Watched) -> None:
    """An object that its clock allows for says nothing."""
    assert watched.at(30.0, 12.0) == 20.0


def test_what_an_object_shows_it_knows(watched: Watched) -> None:
    """By a younger one it knows how much it has lost, but for the object's age, and by a sample all of it."""
    assert watched.at(30.0, 30.0 - OLD) == OLD
    assert watched.at(31.0, 30.0) == OLD
    assert watched.at(32.0, 32.0, kind="HEAD", key="_probe/x.probe") == 0.0


def test_a_second_time_comes_on_top(watched: Watched) -> None:
    """What it knew before is no news of what it has lost since."""
    watched.at(30.0, 30.0)
    watched.process.stop_clock(7.0)
    assert watched.unseen.of(watched.process) == 7.0


def test_an_answer_that_comes_meanwhile_is_as_old_as_the_end(watched: Watched) -> None:
    """It is read when the clock runs again: then its date is no news any more."""
    assert watched.at(1.0, 1.0) == 20.0


def test_a_sample_of_the_time_before_says_nothing(watched: Watched) -> None:
    """What was written before the clock ran again does not tell the time after it, to any caller."""
    watched.at(30.0, 30.0 - OLD)
    watched.process.stop_clock(10.0)
    assert watched.at(41.0, 31.0, kind="HEAD", key="_probe/x.probe") == 10.0 + OLD

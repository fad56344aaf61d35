"""The judge of paused topics and of ages: from when on the age of a redriven message counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pawnqueue.catalog import units
from pawnqueue.domain import layout, lease
from tests.sim.bucket import EPOCH
from tests.sim.flow import MARKER, SLACK, Seen
from tests.sim.prepared import TOPIC
from tests.sim.stage import Stage
from tests.sim.weather import CALM
from tests.sim.world import World
from tools.kit.history import Holder

if TYPE_CHECKING:
    from collections.abc import Sequence

UNIT = "11111111-1111-4111-8111-111111111111"
NAME = units.name_at(EPOCH, UNIT)
#: Until when a message that was moved at once may be given, in the world's time.
MAX_AGE = 15.0
DUE = MAX_AGE + SLACK


def _given(at: float, *steps: tuple[float, str]) -> Sequence[str]:
    """Carry out the steps of a redrive at these times, let a claim have the message at this time, and judge."""
    world = World("flow", weather=CALM)
    seen = Seen(Stage(world, world.stream("flow")))
    world.bucket.observers.append(seen.see)
    process = world.process("A")

    async def play(_: World) -> None:
        world.bucket.plant(MARKER, b'{"settings":{"max_age_seconds":15}}')
        for when, what in steps:
            await world.sleep_until(when)
            if what == "copy":
                world.bucket.plant(units.key_of(TOPIC, NAME), b'{"id":"another"}')
                continue
            until = EPOCH + when
            made = (
                lease.moving(UNIT, NAME, source=UNIT, until=until, ttl=30.0)
                if what == "lock"
                else lease.released(UNIT, NAME, consumer="redrive", claim="", deliveries=0, until=0.0, now=until)
            )
            world.bucket.plant(layout.lease(TOPIC, UNIT), made.encode())
        await world.sleep_until(at)
        world.bucket.plant(layout.claim(TOPIC, "c.0"), b'{"session":"s"}')
        seen.stage.history.hold(Holder(process.name, "c.0", "s"), UNIT, "another", at, at + 1)

    world.run(play)
    return seen.violations()


@pytest.mark.parametrize(("late", "broken"), [(-1.0, 0), (1.0, 1)])
def test_a_redriven_message_counts_from_its_move(late: float, broken: int) -> None:
    """It is given too old only after its age, and the time that a claim may take, have passed since then."""
    assert len(_given(30 + DUE + late, (29.0, "lock"), (30.0, "copy"), (31.0, "release"))) == broken


@pytest.mark.parametrize(("late", "broken"), [(-1.0, 0), (1.0, 1)])
def test_a_move_that_is_finished_later_counts_from_its_last_copy(late: float, broken: int) -> None:
    """Until its lease was released, nobody could be given the message."""
    steps = (29.0, "lock"), (30.0, "copy"), (90.0, "copy"), (91.0, "release")
    assert len(_given(90 + DUE + late, *steps)) == broken


def test_a_copy_behind_the_release_makes_no_message_younger() -> None:
    """The protocol says that there is none: a message that such a COPY renews is still judged by its move."""
    steps = (29.0, "lock"), (30.0, "copy"), (31.0, "release"), (80.0, "copy")
    assert len(_given(30 + DUE + 1, *steps)) == 1

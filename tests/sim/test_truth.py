"""The judge of waiting, and faults that stay: they say what is so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pawnqueue import StoreError
from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout, lease
from pawnqueue.domain.claim_record import ClaimRecord, Decision, Member
from pawnqueue.stores.port import Done
from tests.sim.bucket import EPOCH
from tests.sim.prepared import TOPIC
from tests.sim.stage import Stage
from tests.sim.truth import Bounds
from tests.sim.weather import CALM
from tests.sim.world import World
from tools.kit.history import History, Holder

if TYPE_CHECKING:
    from tests.sim.processes import Process

UNIT = "11111111-1111-4111-8111-111111111111"
NAME = units.name_at(EPOCH, UNIT)
KEY = units.key_of(TOPIC, NAME)
BOUNDS = Bounds(poll=5.0)


def leased(stage: Stage, stem: str, *, until: float, record: ClaimRecord | None = None) -> None:
    """Let a claim have the message until then, in the world's time."""
    one = lease.held(UNIT, NAME, consumer="A", claim=stem, deliveries=1, until=EPOCH + until, ttl=30.0)
    stage.world.bucket.plant(layout.lease(TOPIC, UNIT), one.encode())
    if record is not None:
        stage.world.bucket.plant(layout.claim(TOPIC, stem), record.encode())


def record_of(*, until: float, session_until: float | None = None, **changed: object) -> ClaimRecord:
    """Make the record of the claim c.0."""
    session = None if session_until is None else EPOCH + session_until
    made = ClaimRecord(claim_id="c", until=EPOCH + until, session_until=session, members={UNIT: Member(name=NAME)})
    return made.model_copy(update=changed)


def judged(stage: Stage, after: float) -> list[str]:
    """Let this much time pass, and judge."""

    async def passes(world: World) -> None:
        stage.truth.judge(BOUNDS)
        await world.sleep(after)

    stage.world.run(passes)
    return stage.violations(left=set())


@pytest.fixture
def stage() -> Stage:
    """A stage with one message."""
    world = World("truth", weather=CALM)
    made = Stage(world, world.stream("truth"))
    world.bucket.plant(KEY, b"{}")
    return made


def test_a_message_that_nobody_takes_waits_too_long(stage: Stage) -> None:
    """A message that was published, and could be claimed all the time, is reported with its lane and its time."""
    assert judged(stage, BOUNDS.of("published") + 1) == [f"waited too long: {UNIT} published 29.0"]


def test_within_its_bound_nothing_is_reported(stage: Stage) -> None:
    """A message may wait for the next look."""
    assert judged(stage, BOUNDS.of("published") - 1) == []


def test_what_a_claim_has_does_not_wait(stage: Stage) -> None:
    """As long as its record lives the message cannot be claimed, whatever its lease says."""
    leased(stage, "c.0", until=30.0, record=record_of(until=500.0))
    assert judged(stage, 490.0) == []


def test_what_was_abandoned_waits_from_the_margin_after_its_time(stage: Stage) -> None:
    """A claim that nobody settles is over 2 s after its time, and is to be taken over within the bound."""
    leased(stage, "c.0", until=30.0, record=record_of(until=100.0))
    bound = BOUNDS.of("abandoned")
    assert judged(stage, 102 + bound + 1) == [f"waited too long: {UNIT} abandoned {bound + 1:.1f}"]


def test_a_fenced_claim_waits_for_its_session_only(stage: Stage) -> None:
    """Once it is fenced, its session's time counts, and not the claim's."""
    record = record_of(until=5000.0, session_until=40.0, state="expired")
    leased(stage, "c.0", until=30.0, record=record)
    bound = BOUNDS.of("abandoned")
    assert judged(stage, 42 + bound + 1) == [f"waited too long: {UNIT} abandoned {bound + 1:.1f}"]


def test_what_was_decided_is_to_be_carried_out(stage: Stage) -> None:
    """A decision whose effect nobody finishes is reported, counted from the lease's own time."""
    leased(stage, "c.0", until=30.0, record=record_of(until=5000.0, settled={UNIT: Decision(how="acked")}))
    bound = BOUNDS.of("decided")
    assert judged(stage, 32 + bound + 1) == [f"waited too long: {UNIT} decided {bound + 1:.1f}"]


def test_what_was_given_back_is_there_at_once(stage: Stage) -> None:
    """When a queue has been closed, its claims are not waited for until their time is over."""
    leased(stage, "c.0", until=5000.0, record=record_of(until=5000.0))
    stage.truth.freed("A", stems=["c.0"])
    bound = BOUNDS.of("given back")
    assert judged(stage, bound + 1) == [f"waited too long: {UNIT} given back {bound + 1:.1f}"]


def test_leases_that_are_won_again_and_again_are_no_delivery(stage: Stage) -> None:
    """A message that claims win and never hand out waits, however short each wait is."""
    for number in range(4):
        leased(stage, f"c{number}.0", until=1000.0)
    assert judged(stage, 1.0) == [f"waited too long: {UNIT} won 4 times and never handed out"]


def test_an_exempt_unit_is_not_judged(stage: Stage) -> None:
    """What a fault that stays concerns may wait."""
    stage.exempt.add(UNIT)
    assert judged(stage, 1000.0) == []


@pytest.mark.parametrize("handed_out", [0, 1, 2])
def test_who_buries_what_was_not_delivered_is_caught(handed_out: int) -> None:
    """Buried as delivered twice: both are in the history, or were cut off at the moment of their hand-out."""
    history = History()
    handed = {f"c{number}.0" for number in range(handed_out)}
    history.buried_too_often(UNIT, 2, listed={"c0.0", "c1.0"}, handed=handed, interrupted={"c1.0"})
    never = f"buried though never delivered so often: {UNIT}, 0 times, and not 2"
    assert history.violations() == ([] if handed_out else [never])


def test_what_no_record_lists_was_not_handed_out() -> None:
    """A kill excuses a hand-out that the bucket shows, not one that it does not."""
    history = History()
    history.buried_too_often(UNIT, 1, listed=set(), handed=set(), interrupted=set())
    assert history.violations() == [f"buried though never delivered so often: {UNIT}, 0 times, and not 1"]


DEAD = letters.reason_key_of(TOPIC, UNIT)


def buried(stage: Stage) -> list[str]:
    """Let the message be buried as delivered once, and judge."""
    stage.truth.most = 1
    stage.world.bucket.plant(DEAD, b'{"reason":"drawn","max_deliveries":1}')
    return [one.partition(":")[0] for one in judged(stage, 1.0)]


@pytest.mark.parametrize(
    ("heard", "paused", "excused"), [(1.0, 0.0, False), (1.0, 95.0, True), (99.0, 0.0, True), (None, 0.0, True)]
)
def test_a_claim_that_knew_of_its_record_in_time_was_to_hand_it_out(
    stage: Stage,
    heard: float | None,
    paused: float,
    excused: bool,  # noqa: FBT001 - a parameter
) -> None:
    """One that heard of it too late, or slept over its time, could not."""
    process = stage.world.process("A")
    record = record_of(until=100.0, consumer="A")
    stage.world.bucket.plant(layout.claim(TOPIC, "c.0"), record.encode())

    async def passes(world: World) -> None:
        if heard is not None:
            await world.sleep(heard)
            process.pause(paused)
            stage.truth.hear("A", "PUT", layout.claim(TOPIC, "c.0"), Done(version="1"))

    stage.world.loop.run_until_complete(passes(stage.world))
    assert buried(stage) == ([] if excused else ["buried though never delivered so often"])


def test_a_second_claim_of_one_name_counts_by_itself(stage: Stage) -> None:
    """Its first record was deleted with its retention: what the first one handed out, the second one did not."""
    process, key = stage.world.process("A"), layout.claim(TOPIC, "c.0")
    for _ in range(2):
        stage.world.bucket.plant(key, record_of(until=100.0, consumer="A").encode())
        stage.truth.hear("A", "PUT", key, Done(version="1"))
        stage.history.hold(Holder("A", "c.0", "s"), UNIT, UNIT, 0.0, 1.0)
        stage.world.bucket.delete("A", [key])
        stage.world.loop.run_until_complete(stage.world.sleep(1.0))
    assert process.alive
    assert stage.truth.most is None
    stage.truth.most = 2
    stage.world.bucket.plant(DEAD, b'{"reason":"drawn","max_deliveries":1}')
    assert judged(stage, 1.0) == [f"buried though never delivered so often: {UNIT}, 1 times, and not 2"]


def test_who_is_given_what_another_one_has_is_caught_however_short_it_is() -> None:
    """Two holders of one message at one moment, one of them for no time at all."""
    history, first, second = History(), Holder("A", "c.0", "s"), Holder("B", "d.0", "t")
    history.hold(first, UNIT, UNIT, 0.0, 10.0)
    history.hold(second, UNIT, UNIT, 5.0, 20.0)
    history.drop(second, 5.0)
    assert [one.partition(":")[0] for one in history.violations()] == ["held twice"]


@pytest.mark.parametrize("denied", [True, False])
def test_a_fault_stays_on_its_object(denied: bool) -> None:  # noqa: FBT001 - a parameter
    """One object cannot be read, copied or deleted; its neighbour in the same bulk delete can."""
    world = World("sticky", weather=CALM)
    for key in ("a", "b"):
        world.bucket.plant(key, b"body")
    world.bucket.sticky.put("a", ("GET", "COPY", "DELETE"), denied=denied)

    async def requests(process: Process) -> list[object]:
        told: list[object] = []
        for _ in range(2):
            with pytest.raises(StoreError) as error:
                await process.store.get("a")
            told.append(error.value.transient)
        if denied:
            with pytest.raises(StoreError):
                await process.store.copy("a", "c")
        told += await process.store.delete(["a", "b"])
        return told

    async def scenario(world: World) -> list[object]:
        process = world.process("A")
        return await process.spawn(requests(process))

    assert world.run(scenario) == [not denied, not denied, "a"]
    assert world.bucket.below() == ["a"]

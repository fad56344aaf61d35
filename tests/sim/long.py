"""Claims of hours: holders that stay alive while clocks drift, and runs that go on although their task was killed."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from pawnqueue import ClaimBusyError, PawnQueue, StoreError
from pawnqueue.catalog import units
from pawnqueue.domain.envelope import Envelope
from tests.sim.actors import ack, act, note
from tests.sim.afterwards import UNTIL_ALL_IS_TAKEN, afterwards, quiet
from tests.sim.bucket import EPOCH
from tests.sim.pack_truth import PackStage, any_stage, has_packs
from tests.sim.planting import plant
from tests.sim.prepared import TOPIC, establish
from tests.sim.stage import RETENTION, TROUBLE, Stage, holder_of, settings_for
from tests.sim.sweeps import sweep
from tests.sim.truth import CALL, ERROR, MARGIN, Bounds
from tests.sim.weather import CALM
from tests.support.claims import trusted_until
from tools.kit.settlements import settlement_of

if TYPE_CHECKING:
    import random

    from pawnqueue import Claim
    from pawnqueue.domain.claim_record import ClaimRecord
    from pawnqueue.maintenance import Verdict
    from tests.sim.processes import Process
    from tests.sim.stage import Actor
    from tests.sim.world import World

#: How far a clock may run away: what deadlines reckon with (``server_time.MAX_DRIFT``).
DRIFT = 200e-6
HOURS = (3600.0, 6 * 3600.0, 12 * 3600.0)
SETTINGS = (settings_for(15.0, RETENTION, oldest=4 * 86_400.0),)

#: The time of a session that runs renew by their process alone.
SESSION = 30.0
#: A run's retry looks again at the latest after this many seconds.
RETRY_PAUSE = 10.0
#: It has the claim when the dead session's time and the margin are over, by its idea of the store's time; and in the
#: worst case a sweep and its own look meet at the record a few times.
RETRY_WITHIN = SESSION + MARGIN + ERROR + RETRY_PAUSE + 2 * CALL
#: A claim by an id that others work for answers at once, or after the ``wait`` that was given.
ANSWERS_WITHIN = CALL


def long(world: World) -> list[str]:
    """Run one such schedule to its end, and return every promise that it broke."""
    world.weather = world.first_weather = CALM
    scene = world.stream("long").choices((_vigil, _run_goes_on, _run_ends, _passed_on), (4, 4, 2, 2))[0]
    if has_packs(world) and world.stream("slices").random() < 0.4:
        scene = _slices_for_hours
    return world.run(scene)


def _staged(world: World, name: str, messages: int) -> Stage:
    """Begin a scene, with this number of messages in its topic, or with a pack of them."""
    stage = any_stage(world, name)
    establish(world.bucket)
    stage.create_topic(None, packs=stage.has_packs)
    if isinstance(stage, PackStage):
        stage.history.published.update(plant(stage, messages))
        return stage
    for number in range(messages):
        one = str(uuid.UUID(int=stage.chance.getrandbits(128), version=4))
        key = units.key_of(TOPIC, units.name_at(EPOCH - 9 + number, one))
        world.bucket.plant(key, Envelope(id=one, topic=TOPIC, payload={}).encode())
        stage.history.published.add(one)
    return stage


def _enter(stage: Stage, name: str, actor: Actor) -> Process:
    """Start a process that acts so, and whose clock runs away as far as one may, or less."""
    process = stage.world.process(name)
    process.clock.rate = 1 / (1 + stage.chance.choice((-DRIFT, DRIFT, stage.chance.uniform(-DRIFT, DRIFT))))
    process.spawn(act(stage, process, actor, SETTINGS))
    return process


def _is_there_any(stage: Stage) -> bool:
    return any(stage.world.bucket.below(folder(TOPIC)) for folder in (units.folder, units.packs_folder))


async def _judged(stage: Stage, poll: float, *, at_most: float) -> list[str]:
    """Let the scene end, in which nothing may wait longer than with pauses like these between two looks."""
    stage.truth.judge(Bounds(poll))
    await stage.world.until_idle(at_most=at_most)
    stage.truth.judge_no_more()
    return stage.violations(left=stage.history.published)


# --- a holder that stays alive ---


async def _vigil(world: World) -> list[str]:
    """One holds a claim of hours to its very end; two wait for that moment, with clocks that drift differently."""
    stage = _staged(world, "vigil", messages=2)
    _enter(stage, "H", _hold_for_hours)
    for name in ("T1", "T2"):
        _enter(stage, name, _wait_for_the_end)
    return await _judged(stage, TAKERS_POLL, at_most=190_000.0)


TAKERS_POLL = 1.0


async def _hold_for_hours(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    ttl = chance.choice(HOURS)
    claim = await queue.claim(TOPIC, process.name, max_messages=2, ttl=ttl, session_ttl=ttl)
    stage.believe(process, claim)
    for _ in range(chance.choice((0, 0, 1, 2))):
        await process.clock.sleep(ttl / 3)
        await queue.renew(claim, ttl=ttl, session_ttl=ttl)
        stage.renewed(process, claim)
    await process.clock.sleep(max(0.0, trusted_until(claim) - process.clock.elapsed()))
    stage.stops(process, claim)


async def _wait_for_the_end(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Look now and then while the claim lasts, and all the time when it ends."""
    loop = stage.world.loop
    await process.clock.sleep(chance.uniform(10, 30))
    if chance.random() < 0.5:
        await queue.claim(TOPIC, process.name, max_messages=2, ttl=8.0)  # it has known the store's time since then
    while _is_there_any(stage):
        ends = max((stage.truth.until_of(stem) or 0.0 for stem in stage.truth.open_claims()), default=0.0)
        if ends - loop.now > 20.0:
            await _sleep(process, ends - loop.now - chance.uniform(6, 12))
            continue
        claim = await queue.claim(TOPIC, process.name, max_messages=2, ttl=8.0)
        if claim:
            stage.believe(process, claim)
            stage.stops(process, claim)
            note(stage, claim, await ack(stage, queue, claim, claim.ids))
        await process.clock.sleep(chance.uniform(0.2, TAKERS_POLL))


async def _sleep(process: Process, seconds: float) -> None:
    """Sleep by the world's time: the drift of hours must not decide when the scene looks."""
    await process.clock.sleep(seconds * process.clock.rate)


# --- a slice that is held for hours ---

#: How many slices of a pack its holder has, and how many the pack has in all.
HELD_SLICES, SLICES = (1, 2), (2, 3, 5)
#: At first the others look every few seconds, and then every few minutes. A janitor sweeps as often.
AT_FIRST, RARELY = 60.0, 400.0


async def _slices_for_hours(world: World) -> list[str]:
    """One holds slices of a pack for hours; the others are settled soon, and nobody is given them again meanwhile."""
    stage = PackStage(world, world.stream("slices for hours"), has_packs=True)
    chance = stage.chance
    establish(world.bucket)
    stage.create_topic(chance.choice((None, 3)), packs=True)
    for _ in range(chance.choice((1, 2))):
        stage.history.published.update(plant(stage, SLICE * chance.choice(SLICES) + chance.choice((0, 1))))
    _enter(stage, "H", _hold_slices)
    for name in ("T1", "T2"):
        taker = _enter(stage, name, _take_other_slices)
        if chance.random() < 0.5:  # some die before they have written that a slice is finished, or just after it
            taker.kill_at_request(chance.randint(8, 60), sent=chance.random() < 0.5)
    _enter(stage, "T3", _take_other_slices)
    _enter(stage, "J", _sweep_for_hours)
    stage.truth.judge(Bounds(RARELY + ALL_TAKEN))
    await world.until_idle(at_most=50_000.0)
    await quiet(stage)
    return await afterwards(stage, UNTIL_ALL_IS_TAKEN)


#: How many messages everybody asks for.
SLICE = 2
#: Until all that was found is taken, which may be one message a claim.
ALL_TAKEN = 30.0


async def _hold_slices(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    ttl = chance.choice(HOURS[:2])
    claim = await queue.claim(TOPIC, process.name, max_messages=SLICE * chance.choice(HELD_SLICES), ttl=ttl)
    if not claim:
        return
    stage.believe(process, claim)
    for _ in range(chance.choice((0, 1, 3))):
        await process.clock.sleep(ttl / 4)
        await queue.renew(claim, ttl=ttl)
        stage.renewed(process, claim)
    if chance.random() < 0.3:
        process.kill()
    await process.clock.sleep(chance.uniform(0, 1) * (trusted_until(claim) - process.clock.elapsed()))
    stage.stops(process, claim)
    draw = chance.random()
    if draw < 0.6:
        note(stage, claim, await ack(stage, queue, claim, claim.ids if draw < 0.4 else claim.ids[:1]))
    elif draw < 0.8:
        note(stage, claim, await settlement_of(queue.requeue(claim, delay=chance.choice((0, 600)))))


async def _take_other_slices(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Take what there is, until nothing is left, and settle it in different ways."""
    loop = stage.world.loop
    await process.clock.sleep(chance.uniform(0, 10))
    while _is_there_any(stage):
        with suppress(StoreError):
            claim = await queue.claim(TOPIC, process.name, max_messages=SLICE, ttl=20.0)
            if claim:
                stage.believe(process, claim)
                stage.stops(process, claim)
                if chance.random() < 0.8:
                    note(stage, claim, await ack(stage, queue, claim, claim.ids))
                continue
        await process.clock.sleep(chance.uniform(1.0, 5.0) if loop.now < AT_FIRST else chance.uniform(60.0, RARELY))


async def _sweep_for_hours(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    while _is_there_any(stage):
        await process.clock.sleep(chance.uniform(10.0, 2 * RARELY))
        with suppress(StoreError):
            await sweep(queue, TOPIC)


# --- a run that goes on ---


async def _run_goes_on(world: World) -> list[str]:
    """A janitor says "going" for a run whose task is killed; its retry has the claim within one session time."""
    stage = _staged(world, "run", messages=3)
    _enter(stage, "J", _say_going)
    lives = stage.chance.choice((2, 3))
    for life in range(lives):
        killed = life < lives - 1
        process = _enter(stage, f"L{life}", _task_that_dies if killed else _task_that_ends)
        if killed:
            world.loop.at(world.loop.now + stage.chance.uniform(60, 900), _kill, process)
        died = await world.until_idle(process, at_most=2500.0)
        if not died:
            break
    stage.retention = 0.0  # the janitor goes home
    await world.until_idle(at_most=4000.0)
    return stage.violations(left=stage.history.published)


async def _run_ends(world: World) -> list[str]:
    """A run ends while its task's session lasts: others have its messages within one session time, not the claim's."""
    stage = _staged(world, "run that ends", messages=3)
    chance = stage.chance
    task = _enter(stage, "L", _task_that_is_ended)
    _enter(stage, "J", _say_going)
    ends = chance.uniform(60, 300)
    if chance.random() < 0.5:
        world.loop.at(ends - chance.uniform(0, 20), _kill, task)
    await world.sleep(ends)
    stage.retention = 0.0  # the janitor that said "going" goes home
    _enter(stage, "E", _say_ended)
    for name in ("T1", "T2"):
        _enter(stage, name, _poll_until_empty)
    return await _judged(stage, ENDERS_POLL, at_most=3000.0)


ENDERS_POLL = 5.0


async def _task_that_is_ended(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Work, keeping the session, until somebody has ended the claim."""
    claim = await _claim_of_run(stage, process, queue, chance)
    if claim is None:
        return
    try:
        while stage.world.loop.now < 1000.0:
            await process.clock.sleep(SESSION / 3)
            await queue.renew(claim, session_ttl=SESSION)
            stage.renewed(process, claim)
    except TROUBLE:
        stage.stops(process, claim)


async def _say_ended(stage: Stage, process: Process, queue: PawnQueue, _: random.Random) -> None:
    """Sweep once: whether the rest is given back by another sweep, or taken, is up to the others."""

    async def ask(_: ClaimRecord) -> Verdict | None:
        return "ended"

    await sweep(queue, TOPIC, ask=ask)


async def _poll_until_empty(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    while _is_there_any(stage) and stage.world.loop.now < 1800.0:
        claim = await queue.claim(TOPIC, process.name, max_messages=2, ttl=20.0)
        if claim:
            stage.believe(process, claim)
            stage.stops(process, claim)
            note(stage, claim, await ack(stage, queue, claim, claim.ids))
        await process.clock.sleep(chance.uniform(1.0, ENDERS_POLL))


# --- what a claim that lives on has given back ---


async def _passed_on(world: World) -> list[str]:
    """A claim of hours gives messages back and goes on renewing; their taker dies, and the next one is not late."""
    stage = _staged(world, "passed on", messages=5)
    await _take_and_die(stage, "Q0")  # others look at all records because of it
    _enter(stage, "H", _give_back_and_renew)
    await world.sleep(6.0)
    _enter(stage, "T", _poll_until_empty)
    return await _judged(stage, ENDERS_POLL, at_most=3000.0)


async def _take_and_die(stage: Stage, name: str) -> None:
    """Have a fresh process, which sees at once what there is, claim one message and die."""

    async def take(_: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
        claim = await queue.claim(TOPIC, process.name, max_messages=1, ttl=5.0)
        if claim:
            stage.believe(process, claim)
        await process.clock.sleep(chance.uniform(0, 2))
        process.kill()

    process = _enter(stage, name, take)
    await stage.world.until_idle(process)
    stage.history.leave(name, stage.world.loop.now)


async def _give_back_and_renew(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    ttl = chance.choice(HOURS)
    claim = await queue.claim(TOPIC, process.name, max_messages=3, ttl=ttl, claim_id="hours")
    stage.believe(process, claim)
    for number in range(60):
        await process.clock.sleep(chance.uniform(2, 6))
        await queue.renew(claim, ttl=ttl)
        stage.renewed(process, claim)
        if number in {8, 20} and number // 10 < len(claim.ids) - 1:
            one = claim.ids[number // 10]
            stage.history.drop(holder_of(process, claim), stage.world.loop.now, {stage.unit_of(claim, one)})
            note(stage, claim, await settlement_of(queue.nack(claim, one, requeue=True)))
            stage.world.loop.at(stage.world.loop.now, _send_for, (stage, f"Q{number}"))
    stage.stops(process, claim)
    note(stage, claim, await ack(stage, queue, claim, claim.ids))


def _send_for(sent: tuple[Stage, str]) -> None:
    stage, name = sent
    stage.world.loop.create_task(_take_and_die(stage, name))


def _kill(process: Process) -> None:
    process.kill()


async def _say_going(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    async def ask(_: ClaimRecord) -> Verdict | None:
        await process.clock.sleep(chance.uniform(0, 0.5))
        return "going"

    while stage.retention:
        await process.clock.sleep(chance.uniform(5, 60))
        await sweep(queue, TOPIC, ask=ask)


async def _task_that_dies(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Work until it is killed, keeping its session."""
    claim = await _claim_of_run(stage, process, queue, chance)
    if claim is None:
        return
    try:
        while True:
            await process.clock.sleep(SESSION / 3)
            await queue.renew(claim, session_ttl=SESSION)
            stage.renewed(process, claim)
    except TROUBLE as error:
        stage.stops(process, claim)
        stage.history.broken.append(f"lost though its run goes on: {holder_of(process, claim).claim} {error}")


async def _task_that_ends(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Work for a moment, and settle."""
    claim = await _claim_of_run(stage, process, queue, chance)
    if claim is not None:
        stage.stops(process, claim)
        note(stage, claim, await ack(stage, queue, claim, claim.ids))


async def _claim_of_run(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> Claim | None:
    """Claim as the run's task does, and again as long as somebody else works for it; and not for long."""
    loop = stage.world.loop
    began = loop.now
    ttl, wait = chance.choice((600.0, 1200.0)), chance.choice((0.0, 0.0, 5.0, 60.0))
    while True:
        started = loop.now
        try:
            claim = await queue.claim(
                TOPIC,
                process.name,
                max_messages=3,
                ttl=ttl,
                session_ttl=SESSION,
                claim_id="task",
                owner="run",
                wait=wait,
            )
        except ClaimBusyError as busy:
            took = loop.now - started
            if took > wait + ANSWERS_WITHIN:
                stage.history.broken.append(f"a claim that waits {wait:g} seconds took {took:.1f}")
            if loop.now - began > RETRY_WITHIN:
                stage.history.broken.append(
                    f"the retry waited too long: {loop.now - began:.1f} seconds, and its error is {busy}"
                )
                return None
            await process.clock.sleep(min(max(busy.retry_after, 0.2), RETRY_PAUSE))
            continue
        except TROUBLE as error:
            stage.history.broken.append(f"the retry failed: {error}")
            return None
        if claim:
            stage.believe(process, claim)
            if loop.now - began > RETRY_WITHIN:
                stage.history.broken.append(f"the retry waited too long: {loop.now - began:.1f} seconds")
            return claim
        stage.history.broken.append(f"the retry was given nothing: {claim!r}")
        return None

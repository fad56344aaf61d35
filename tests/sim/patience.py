"""Does anything wait for long? Two consumers poll all the time in mild weather, and others do what they like.

Every message is timed, from the moment at which it could be claimed (:mod:`tests.sim.truth`).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from pawnqueue import LeaseLostError, PawnQueue
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from tests.sim import manners
from tests.sim.actors import ack, act, note, publish_some, redriver
from tests.sim.afterwards import ids_left
from tests.sim.pack_truth import any_stage
from tests.sim.prepared import TOPIC, establish
from tests.sim.stage import RETENTION, TROUBLE, Stage, holder_of, settings_for
from tests.sim.sweeps import sweep
from tests.sim.truth import Bounds
from tests.sim.weather import Weather
from tools.kit.settlements import settlement_of

if TYPE_CHECKING:
    import random

    from pawnqueue import Claim
    from pawnqueue.domain.claim_record import ClaimRecord
    from pawnqueue.maintenance import Verdict
    from tests.sim.processes import Process
    from tests.sim.world import World

#: The two consumers pause at most so long.
POLL = 5.0
#: They poll for so long, and then until the topic is empty, but not for longer than another while.
LASTS = 110.0
AND_THEN = 240.0
#: The store is busy now and then, and says so; nothing is lost, and nothing comes late.
MILD = Weather(busy=0.02, error=0.01, conflict=0.01, partial=0.02)
#: A call that was cancelled waits for what is under way, and gives back what it has: a request or two, tried again.
CANCELLED_WITHIN = 12.0
#: The shortest claims. Where ``csprng_verify`` sleeps, a claim that is to be kept alive needs seconds more than the
#: margin: two and a half to claim, one and a half for a renewal, and as much again for each that meets a janitor's.
SHORTEST = {True: 4.5, False: 12.0}
#: How many messages a pack has. The pollers claim ten, and the others split what they claim.
PACKS = (1, 2, 4, 12)
#: How much longer a message waits where there are packs: until all that is before it is taken, which may be one message
#: a claim. Without conditional writes a claim and its settlement take some four seconds.
UNTIL_ALL_IS_TAKEN = {True: 30.0, False: 75.0}
#: A delay of one message of a pack that would show if another one had to wait for it.
LONG_DELAY = 90
#: Hours. A process that claims for this long settles all of it, or gives it back.
LONG = 6 * 3600.0

SETTINGS = (settings_for(15.0, RETENTION, oldest=86_400.0),)


def patience(world: World) -> list[str]:
    """Run one such schedule to its end, and return every promise that it broke."""
    mild = replace(MILD, latency=world.still.latency)
    world.weather = world.first_weather = world.still if world.stream("weather").random() < 0.5 else mild
    return world.run(_patience)


async def _patience(world: World) -> list[str]:
    stage = any_stage(world, "patience")
    chance = stage.chance
    establish(world.bucket)
    stage.create_topic(chance.choice((None, 3, 10)), packs=stage.has_packs)
    for name in ("X", "Y"):
        _begin(stage, name, _poller)
    for name in ("P1", "P2"):
        _begin(stage, name, _supplier)
    for number, actor in enumerate(chance.sample(VILLAINS, 4)):
        _begin(stage, f"V{number}", actor)
    longer = UNTIL_ALL_IS_TAKEN[world.bucket.conditional] if stage.has_packs else 0.0
    stage.truth.judge(Bounds(POLL + longer))
    await world.until_idle(at_most=LASTS + AND_THEN + 60.0)
    stage.truth.judge_no_more()
    # What is left over is seen where janitors work; what is left waiting is seen by its bound.
    return stage.violations(left=set(ids_left(stage)))


def _begin(stage: Stage, name: str, actor: object) -> Process:
    process = stage.world.process(name)
    process.spawn(act(stage, process, actor, SETTINGS))  # type: ignore[arg-type]
    return process


async def _supplier(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Publish a few messages every few seconds, as long as there is time to see what becomes of them."""
    packed = stage.world.stream(f"packs {process.name}")
    while stage.world.loop.now < LASTS / 2:
        count = chance.choice((1, 1, 2, 4))
        if stage.has_packs and packed.random() < 0.6:
            await publish_some(stage, queue, packed.choice(PACKS), packed=True)
        else:
            await publish_some(stage, queue, count, packed=False)
        await process.clock.sleep(chance.uniform(0, 12))


async def _poller(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Take what there is, every few seconds."""
    loop = stage.world.loop
    while loop.now < LASTS or (_is_there_any(stage) and loop.now < LASTS + AND_THEN):
        try:
            started = loop.now
            claim = await queue.claim(TOPIC, process.name, max_messages=10, ttl=20.0)
            if loop.now - started > CALL_TAKES:
                stage.history.broken.append(f"a claim that does not wait took {loop.now - started:.1f} seconds")
            if claim:
                stage.believe(process, claim)
                stage.stops(process, claim)
                await _dispatch(stage, queue, claim, chance)
                if stage.has_packs:
                    continue  # a claim of packs may be small, and others wait until it is settled
        except TROUBLE as error:
            stage.truth.interruptions.append((process.name, loop.now))
            # A janitor may end a claim for its run between the record's PUT and its last verification.
            is_ended = isinstance(error, LeaseLostError) and not stage.world.bucket.conditional and loop.now > LASTS / 2
            if stage.world.weather is stage.world.still and not is_ended:
                stage.history.broken.append(f"a claim failed in calm weather: {error!r}")
        await process.clock.sleep(chance.uniform(1.0, POLL))
    stage.truth.judge_no_more()


#: A claim that does not wait: see ``truth.CALL``; with it, one budget of 15 s where the store is busy.
CALL_TAKES = 23.0


def _is_there_any(stage: Stage) -> bool:
    return any(stage.world.bucket.below(folder(TOPIC)) for folder in (units.folder, units.packs_folder))


async def _dispatch(stage: Stage, queue: PawnQueue, claim: Claim, chance: random.Random) -> None:
    """Settle: mostly by acks, and some are given back or buried as long as there is time to see what comes of it."""
    draw = chance.random() if stage.world.loop.now < LASTS / 2 else 0.0
    if draw < 0.7:
        note(stage, claim, await ack(stage, queue, claim, claim.ids))
    elif draw < 0.82:
        note(stage, claim, await settlement_of(queue.nack(claim, requeue=True, delay=chance.choice((0, 5, 25)))))
    elif draw < 0.88:
        note(stage, claim, await settlement_of(queue.nack(claim, reason="drawn")))
    # Else it is forgotten, and waits until its claim's time is over.


# --- actors that make others wait ---


async def _quitter(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Claim for a short time, and die somewhere on the way."""
    process.kill_at_request(chance.randint(4, 30), sent=chance.random() < 0.5)
    ttl = chance.choice((SHORTEST[stage.world.bucket.conditional], 8.0, 20.0))
    for _ in range(4):
        await process.clock.sleep(chance.uniform(0, 10))
        claim = await _try_claim(stage, process, queue, ttl=ttl, most=chance.choice((1, 3)))
        if claim:
            stage.believe(process, claim)
            await process.clock.sleep(chance.uniform(0, ttl / 3))
            stage.stops(process, claim)
            await _dispatch(stage, queue, claim, chance)


async def _leaver(stage: Stage, process: Process, _: PawnQueue, chance: random.Random) -> None:
    """Leave in good order, by an exception for instance, with a claim that is open: it is given back."""
    for _number in range(3):
        await process.clock.sleep(chance.uniform(0, 12))
        stems: list[str] = []
        async with PawnQueue.open(SETTINGS[0], store=process.store, clock=process.clock) as queue:
            claim = await _try_claim(stage, process, queue, ttl=chance.choice((20.0, 600.0)), most=3)
            if claim:
                holder = stage.believe(process, claim)
                await process.clock.sleep(chance.uniform(0, 5))
                stage.stops(process, claim)
                stems.append(holder.claim)
        # What a janitor has ended before it was given back waits for its session's time.
        stage.truth.freed(process.name, stems=[stem for stem in stems if not stage.truth.is_fenced(stem)])


async def _canceller(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Cancel claims at any moment: what they had won is given back by then."""
    loop = stage.world.loop
    for _ in range(5):
        await process.clock.sleep(chance.uniform(0, 8))
        started = loop.now
        try:
            call = queue.claim(TOPIC, process.name, max_messages=3, ttl=chance.choice((8.0, 60.0)))
            claim = await manners.interrupted(process, call, chance)
        except TROUBLE:
            claim = None
        if claim is None:
            stage.truth.interruptions.append((process.name, loop.now))
            stage.truth.freed(process.name, since=started)
            if loop.now - started > CANCELLED_WITHIN + 4.0:  # up to 4 s pass before it is cancelled
                stage.history.broken.append(f"a claim that was cancelled ended after {loop.now - started:.1f} seconds")
        elif claim:
            stage.believe(process, claim)
            stage.stops(process, claim)
            await _dispatch(stage, queue, claim, chance)


async def _owner(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Claim for hours, settle a part at once and the rest later: what is given back is there at once for others.

    Some keep the last one for long, and renew meanwhile: it hides nothing of what they have given back.
    """
    for number in range(3):
        await process.clock.sleep(chance.uniform(0, 6))
        ttl, name = chance.choice((600.0, LONG)), f"{process.name}-{number}"  # named: its record is kept
        claim = await _try_claim(stage, process, queue, ttl=ttl, most=3, claim_id=name)
        if not claim:
            continue
        stage.believe(process, claim)
        try:
            await _part_by_part(stage, process, queue, claim, chance)
        except LeaseLostError:
            stage.stops(process, claim)  # its run has ended


async def _part_by_part(stage: Stage, process: Process, queue: PawnQueue, claim: Claim, chance: random.Random) -> None:
    keeps_the_last = chance.random() < 0.5
    to_refuse = stage.world.stream(f"refused {holder_of(process, claim).claim}").random() < 0.7
    for one in claim.ids:
        await process.clock.sleep(chance.uniform(0, 16 if keeps_the_last else 8))
        if keeps_the_last and one == claim.ids[-1]:
            for _ in range(chance.choice((4, 8, 12))):
                await process.clock.sleep(chance.uniform(4, 8))
                await queue.renew(claim)
                stage.renewed(process, claim)
        stage.history.drop(holder_of(process, claim), stage.world.loop.now, {stage.unit_of(claim, one)})
        unit, is_last = _unit_of(claim, one)
        delay = chance.choice((0, 0, 8))
        if delay and stage.has_packs:
            delay = LONG_DELAY
        # Once, the store does not take the lease from this process for as long as it is patient. Its claim has hours
        # left, and it does nothing for what it has decided: its queue carries it out when the store is back.
        if to_refuse and not delay and is_last:
            to_refuse, process.store.refused = False, layout.lease(TOPIC, unit)
        result = await settlement_of(queue.nack(claim, one, requeue=True, delay=delay))
        note(stage, claim, result)
        was_refused, process.store.refused = process.store.refused, ""
        if was_refused and one in result.released:
            stage.truth.freed(process.name, stems=[holder_of(process, claim).claim], only=[unit])


def _unit_of(claim: Claim, one: str) -> tuple[str, bool]:
    """Return the unit of a message, and whether the claim has no message of that unit behind it."""
    of_each = {message.id: layout.parse_entry(message.unit)[0] for message in claim}
    return of_each[one], one == [message_id for message_id, unit in of_each.items() if unit == of_each[one]][-1]


async def _short_lived(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Claim briefly what others gave back, and forget it: now and then, or as soon as it is free."""
    rounds, pause = chance.choice(((6, 6.0), (40, 1.0)))
    # What it forgets of packs is claimed in small groups, so that forty rounds would be more than two pollers can take.
    for _ in range(min(rounds, 12) if stage.has_packs else rounds):
        await process.clock.sleep(chance.uniform(0, pause))
        claim = await _try_claim(stage, process, queue, ttl=5.0, most=2)
        if claim:
            stage.believe(process, claim)


async def _keeper(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Keep a claim alive over slow work: in calm weather it is not lost, whatever its ttl is."""
    shortest = SHORTEST[stage.world.bucket.conditional]
    for _ in range(2):
        await process.clock.sleep(chance.uniform(0, 8))
        claim = await _try_claim(stage, process, queue, ttl=chance.choice((shortest, max(shortest, 9.0), 20.0)), most=2)
        if not claim:
            continue
        buggy = chance.random() < 0.2
        seconds = chance.uniform(5, 40)
        # ⚑ A renewal for less than the shortest time may be lost to janitors that renew the same record meanwhile.
        kept = await manners.kept_alive(
            stage, process, queue, claim, chance, seconds=seconds, buggy=buggy, shortest=shortest
        )
        if kept:
            await _dispatch(stage, queue, claim, chance)
        elif (
            not buggy
            and stage.world.weather is stage.world.still
            and not stage.truth.was_ended(holder_of(process, claim).claim)
        ):
            stage.history.broken.append(f"lost by keep_alive, though nobody took it: {holder_of(process, claim).claim}")


async def _renewer(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Renew by hand, beside a janitor that renews too: it is not lost as long as nobody ends it."""
    for _ in range(2):
        await process.clock.sleep(chance.uniform(0, 8))
        claim = await _try_claim(stage, process, queue, ttl=20.0, most=2)
        if not claim:
            continue
        stage.believe(process, claim)
        try:
            for _ in range(8):
                await process.clock.sleep(chance.uniform(0, 8))
                await queue.renew(claim, ttl=20.0)
                stage.renewed(process, claim)
        except LeaseLostError:
            if stage.world.weather is stage.world.still and not stage.truth.was_ended(holder_of(process, claim).claim):
                stage.history.broken.append(f"lost, though nobody took it: {holder_of(process, claim).claim}")
        finally:
            stage.stops(process, claim)
        await _dispatch(stage, queue, claim, chance)


async def _janitors(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Sweep twice at once, again and again, on behalf of runs that go on as long as the weather is watched."""

    async def ask(_: ClaimRecord) -> Verdict | None:
        await process.clock.sleep(chance.uniform(0, 0.3))
        return "going" if stage.world.loop.now < LASTS / 2 else "ended"

    while stage.world.loop.now < LASTS:
        await process.clock.sleep(chance.uniform(0, 4))
        await asyncio.gather(sweep(queue, TOPIC, ask=ask), sweep(queue, TOPIC, ask=ask))


async def _try_claim(  # noqa: PLR0913 - what a consumer asks for
    stage: Stage, process: Process, queue: PawnQueue, *, ttl: float, most: int, claim_id: str | None = None
) -> Claim | None:
    try:
        return await queue.claim(TOPIC, process.name, max_messages=most, ttl=ttl, claim_id=claim_id)
    except TROUBLE:
        stage.truth.interruptions.append((process.name, stage.world.loop.now))
        return None


VILLAINS = (
    _quitter,
    _quitter,
    _leaver,
    _canceller,
    _canceller,
    _owner,
    _owner,
    _short_lived,
    _keeper,
    _renewer,
    _janitors,
    redriver,
    manners.newcomer,
    manners.two_minded,
)

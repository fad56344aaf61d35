"""Schedules with packs: claims that take them in part, and settle their messages in all the ways there are.

Single messages are published into the same topic. Some schedules have one poison message instead: every process that is
given it dies.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from pawnqueue import LeaseLostError, PawnQueue, StoreError
from pawnqueue.catalog import letters
from pawnqueue.domain import pack
from tests.sim.actors import (
    claimed,
    dag_janitor,
    janitor,
    keep,
    note,
    publish_some,
    publisher,
    redriver,
    shaken,
    start,
)
from tests.sim.afterwards import UNTIL_ALL_IS_TAKEN, afterwards, quiet
from tests.sim.csprng import FAIR, HARSH, SLOW_BUT_ANSWERED
from tests.sim.manners import hurried, kept_alive
from tests.sim.pack_truth import PackStage
from tests.sim.planting import plant
from tests.sim.prepared import TOPIC, establish
from tests.sim.stage import ALL_SETTINGS, RETENTION, SHORT_RETENTION, TROUBLE, TROUBLED, TTLS
from tools.kit.settlements import settlement_of

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from pawnqueue import Claim, Message, Settlement
    from tests.sim.processes import Process
    from tests.sim.world import World

T = TypeVar("T")

LARGEST_PACK = 12
#: How many messages a consumer asks for.
SIZES = (1, 2, 3, 5, 8, 12, 20)
#: How often a task is started again.
LIVES = 3
#: How many processes one poison message may kill, and others may be tried by, at most.
MAX_LIVES = 40


def packs(world: World) -> list[str]:
    """Run one such schedule to its end, and return every promise that it broke."""
    if not world.bucket.conditional:
        world.weather = world.first_weather = world.stream("packs").choice((FAIR, SLOW_BUT_ANSWERED, HARSH))
    if world.stream("kind").random() < 0.12:
        world.weather = world.first_weather = world.still
        return world.run(_poison)
    return world.run(_packs)


async def _packs(world: World) -> list[str]:
    stage = PackStage(world, world.stream("packs"), has_packs=True, knows_reasons=True)
    chance = stage.chance
    establish(world.bucket)
    stage.retention = chance.choice((RETENTION, SHORT_RETENTION))
    stage.create_topic(chance.choice((None, 1, 3, 10)), packs=True)
    start(stage, "P1", pack_publisher)
    for name in ("A", "B", "C"):
        start(stage, name, consumer)
    for name, actor in (
        ("P2", publisher), ("P3", pack_publisher), ("R1", redriver), ("R2", redriver), ("J1", janitor),
        ("J2", dag_janitor), ("Z1", twin), ("Z2", twin), ("H1", hasty), ("K1", keeper),
    ):  # fmt: skip
        if chance.random() < 0.5:
            start(stage, name, actor)
    if chance.random() < 0.4:
        await _lives(stage, "D1")
    await world.until_idle(at_most=600.0)
    await quiet(stage)
    return await afterwards(stage, UNTIL_ALL_IS_TAKEN)


async def _lives(stage: PackStage, name: str) -> None:
    """Start a task again and again under its one name, as soon as it has died."""
    for life in range(LIVES):
        process = start(stage, f"{name}.{life}", doomed)
        await stage.world.until_idle(process, at_most=TROUBLED)


# --- publishing ---


async def pack_publisher(stage: PackStage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Publish packs of all sizes. Now and then some lines are not messages, or all of it is not a pack."""
    for _ in range(chance.choice((1, 2, 3))):
        await process.clock.sleep(chance.uniform(0, 15))
        count = chance.randint(1, LARGEST_PACK)
        if chance.random() < 0.5:
            await publish_some(stage, queue, count, packed=True)
            continue
        draw = chance.random()
        bad: Sequence[int] = ()
        if draw > 0.8:
            bad = range(count) if draw < 0.86 else chance.sample(range(count), chance.randint(1, count))
        body = chance.choice((b"", b"no pack", pack.pack_body([b"{}"] * (count + 1)))) if draw > 0.96 else None
        stage.history.published.update(plant(stage, count, bad, body=body))


# --- consuming ---


async def consumer(stage: PackStage, process: Process, _: PawnQueue, chance: random.Random) -> None:
    """Claim as many as drawn, settle in all ways there are, and close the queue now and then."""
    claim_id: str | None = None
    settings = chance.choice(ALL_SETTINGS[stage.retention])
    for life in range(3):
        async with PawnQueue.open(settings, store=process.store, clock=process.clock) as queue:
            try:
                for number in range(3):
                    await process.clock.sleep(chance.uniform(0, 10))
                    try:
                        fresh_id = f"{process.name}-{life}{number}"
                        claim_id = await _take(stage, process, queue, chance, claim_id, fresh_id)
                    except TROUBLE as error:
                        await shaken(stage, process, error)
                    if chance.random() < 0.1:
                        break
            finally:
                stage.history.leave(process.name, stage.world.loop.now)  # closing gives back what it has


async def _take(  # noqa: PLR0913, PLR0917 - who claims, and under which name
    stage: PackStage, process: Process, queue: PawnQueue, chance: random.Random, claim_id: str | None, fresh_id: str
) -> str | None:
    """Claim and work once; return the id by which to claim again, as a task's retry does."""
    ttl = chance.choice(TTLS)
    if stage.references and chance.random() < 0.6:
        payloads = chance.random() < 0.6
        await work(stage, process, queue, await queue.attach(stage.references.pop(), ttl=ttl, payloads=payloads), ttl)
        return claim_id
    if claim_id is None and chance.random() < 0.5:
        claim_id = fresh_id
    try:
        claim = await ask(stage, process, queue, chance.choice(SIZES), ttl=ttl, claim_id=claim_id)
        await work(stage, process, queue, claim, ttl)
    except TROUBLE as error:
        await shaken(stage, process, error)
        return claim_id
    return claim_id if not claim else None


async def ask(  # noqa: PLR0913 - what is asked for
    stage: PackStage,
    process: Process,
    queue: PawnQueue,
    most: int,
    *,
    ttl: float,
    claim_id: str | None,
    owner: str | None = None,
) -> Claim:
    """Claim, and remember for how many messages this was."""
    if claim_id is not None:
        stage.asked[claim_id] = max(most, stage.asked.get(claim_id, 0))
    claim = await claimed(stage, process, queue, max_messages=most, ttl=ttl, claim_id=claim_id, owner=owner)
    if claim_id is None:
        stage.asked[claim.claim_id] = most
    return claim


async def work(stage: PackStage, process: Process, queue: PawnQueue, claim: Claim, ttl: float) -> None:
    """Work on a claim, keep it or not, and end in one of many ways."""
    if not claim:
        return
    chance = stage.world.stream(f"work {process.name} {claim.stem} {claim.session}")
    holder = stage.believe(process, claim)
    if chance.random() < 0.3:  # some work without ever renewing, up to their time and past it
        await process.clock.sleep(chance.uniform(0, 1.3) * ttl)
    if not await keep(stage, process, queue, claim, chance, ttl) and chance.random() < 0.5:
        return  # it was lost; the other half tries to settle all the same
    if chance.random() < 0.12:
        return  # it forgets what it has, or gives it back when it closes the queue
    draw = chance.random()
    if draw < 0.1:
        await settle_some(stage, process, queue, claim, chance)
    stage.history.drop(holder, stage.world.loop.now)  # a process that settles, or hands over, has stopped working
    if draw < 0.2:
        stage.references.append(claim.hand_over() if chance.random() < 0.5 else await queue.leave(claim))
        return
    while left := _left_of(stage, claim):
        if chance.random() < 0.1:
            return  # of some nothing is ever decided
        await settle(stage, process, queue, claim, chance, left)
        if chance.random() < 0.3:
            await process.clock.sleep(chance.uniform(0, 3))


async def settle_some(
    stage: PackStage, process: Process, queue: PawnQueue, claim: Claim, chance: random.Random
) -> None:
    """Settle a part of a claim, and go on with the rest."""
    some = chance.sample(_left_of(stage, claim), 1)
    now, given = stage.world.loop.now, {stage.unit_of(claim, one) for one in some}
    for holder, unit in [*stage.history.open_holds]:
        if holder.session == claim.session and unit in given:
            stage.history.drop(holder, now, {unit})
    await settle(stage, process, queue, claim, chance, some)


def _left_of(stage: PackStage, claim: Claim) -> list[str]:
    """Return the ids of messages about which this claim has asked for nothing yet."""
    done = stage.asked_about.setdefault((claim.stem, claim.session), set())
    return [one for one in claim.ids if one not in done]


async def settle(  # noqa: PLR0913, PLR0917 - who settles what, and how
    stage: PackStage, process: Process, queue: PawnQueue, claim: Claim, chance: random.Random, left: Sequence[str]
) -> None:
    """Settle some of these messages, by their ids or by themselves, and write down what was said."""
    now = stage.world.loop.now
    some = list(left) if chance.random() < 0.5 else chance.sample(left, chance.randint(1, len(left)))
    stage.asked_about[claim.stem, claim.session].update(some)
    by_id: dict[str, Message] = {message.id: message for message in claim} if claim.has_payloads else {}
    chosen: list[Message | str] = list(some)
    if by_id and chance.random() < 0.5:
        chosen = [by_id[one] for one in some]
    known = [stage.ids[stage.unit_of(claim, one)] for one in some]
    reason, delay = f"of {process.name} at {now:.2f}", chance.choice((0.0, 0.0, 5.0, 25.0))
    whole = len(some) == len(claim.ids) and chance.random() < 0.8
    draw = chance.random()
    calling: Awaitable[Settlement]
    if draw < 0.5:
        stage.history.asked_to_ack.update(known)
        calling = queue.ack(claim) if whole else queue.ack(claim, chosen)
    elif draw < 0.62:
        _note(stage.to_bury, known, reason)
        calling = queue.bury(claim, reason=reason) if whole else queue.bury(claim, chosen, reason=reason)
    elif draw < 0.82 or len(left) != len(claim.ids):
        _note(stage.requeued, known, reason)
        calling = queue.requeue(claim, None if whole else chosen, reason=reason, delay=delay)
    else:  # all at once: some are given back, some buried, and the rest acked
        kinds = [chance.choice(("ack", "ack", "bury", "requeue")) for _ in some]
        back = {one: reason for one, kind in zip(chosen, kinds, strict=True) if kind == "requeue"}
        dead = {one: reason for one, kind in zip(chosen, kinds, strict=True) if kind == "bury"}
        _note(stage.requeued, [one for one, kind in zip(known, kinds, strict=True) if kind == "requeue"], reason)
        _note(stage.to_bury, [one for one, kind in zip(known, kinds, strict=True) if kind == "bury"], reason)
        named = {one for one, kind in zip(known, kinds, strict=True) if kind != "ack"}
        every = {stage.ids[stage.unit_of(claim, one)] for one in claim.ids}
        stage.history.asked_to_ack.update(every - named)
        stage.asked_about[claim.stem, claim.session].update(claim.ids)
        calling = queue.settle(claim, requeue=back, bury=dead, delay=delay)
    result = await settlement_of(calling)
    note(stage, claim, result)
    for one in result.released:
        stage.note_delay(stage.unit_of(claim, one), claim, reason, now + delay)


def _note(reasons: dict[str, set[str]], ids: Iterable[str], reason: str) -> None:
    for one in ids:
        reasons[one].add(reason)


async def twin(stage: PackStage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Claim by an id that another process uses as well, as a zombie and its retry do."""
    for attempt in range(5):
        await process.clock.sleep(chance.uniform(0, 8))
        owner = f"run-{attempt}" if chance.random() < 0.3 else "run"
        ttl = chance.choice(TTLS)
        try:
            claim = await ask(stage, process, queue, 5, ttl=ttl, claim_id="job", owner=owner)
            await work(stage, process, queue, claim, ttl)
        except TROUBLE as error:
            await shaken(stage, process, error)


async def doomed(stage: PackStage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Live one life of a task: claim under its id, and most often die on the way. The next life begins anew."""
    owner, ttl = process.name.partition(".")[0], chance.choice(TTLS)
    try:
        claim = await ask(stage, process, queue, chance.choice(SIZES), ttl=ttl, claim_id=owner, owner=owner)
        if claim:
            process.kill_at_request(chance.randint(1, 16), sent=chance.random() < 0.5)
            await work(stage, process, queue, claim, ttl)
    except TROUBLE as error:
        await shaken(stage, process, error)


async def hasty(stage: PackStage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Cancel every other call at a random moment."""
    for number in range(6):
        await process.clock.sleep(chance.uniform(0, 8))
        ttl = chance.choice(TTLS)
        claim_id = f"{process.name}-{number // 2}" if chance.random() < 0.4 else None
        claim: Claim | None = None
        try:
            if chance.random() < 0.2:
                await hurried(stage, process, publish_some(stage, queue, 3, packed=True), chance)
            claim = await hurried(
                stage, process, ask(stage, process, queue, chance.choice(SIZES), ttl=ttl, claim_id=claim_id), chance
            )
            if not claim:
                continue
            stage.believe(process, claim)
            await process.clock.sleep(chance.uniform(0, ttl / 2))
            await hurried(stage, process, queue.renew(claim, ttl=ttl), chance)
            stage.renewed(process, claim)
            stage.stops(process, claim)
            while left := _left_of(stage, claim):
                await hurried(stage, process, settle(stage, process, queue, claim, chance, left), chance)
        except TROUBLE as error:
            if isinstance(error, LeaseLostError) and claim:
                stage.stops(process, claim)
            await shaken(stage, process, error)


async def keeper(stage: PackStage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Work slowly, and let keep_alive renew the claim meanwhile."""
    for _ in range(3):
        await process.clock.sleep(chance.uniform(0, 8))
        try:
            claim = await ask(stage, process, queue, chance.choice(SIZES), ttl=chance.choice(TTLS), claim_id=None)
            seconds = chance.uniform(0, 30)
            if claim and await kept_alive(stage, process, queue, claim, chance, seconds=seconds, buggy=False):
                await settle(stage, process, queue, claim, chance, _left_of(stage, claim))
        except TROUBLE as error:
            await shaken(stage, process, error)


# --- one poison message ---


async def _poison(world: World) -> list[str]:
    """Let all who are given one message die. In the end it alone is a dead letter, and all others are acked.

    In a topic that never buries what is delivered too often, it alone is left.
    """
    stage = PackStage(world, world.stream("poison"), has_packs=True, knows_reasons=True)
    chance = stage.chance
    establish(world.bucket)
    stage.create_topic(chance.choice((3, 10, None)), packs=True)
    ids = [one for _ in range(chance.choice((1, 2, 3))) for one in plant(stage, chance.randint(1, LARGEST_PACK))]
    stage.history.published.update(ids)
    poison = chance.choice(ids)
    most, lives = chance.choice(SIZES), 0
    others = {one for one in ids if one != poison}

    def is_over() -> bool:
        return (stage.truth.most is None or bool(stage.dead)) and others <= {one for _, one, _ in stage.history.acked}

    while not is_over() and lives < MAX_LIVES:
        process = world.process(f"A{lives}")
        process.spawn(_die_of(stage, process, poison, most, is_over))
        await world.until_idle(process, at_most=600.0)
        lives += 1
    broken = [] if is_over() else [f"waits for ever: after {lives} lives something is left"]
    dead = {stage.ids[entry] for entry in stage.dead}
    if dead != {poison} and (dead or stage.truth.most is not None):
        broken.append(f"beside one poison message {len(dead - {poison})} others died, {len(dead)} in all")
    if len(world.bucket.below(letters.folder(TOPIC))) != 2 * len(dead):
        broken.append("there are other dead letters")
    await quiet(stage)
    return broken + await afterwards(stage, UNTIL_ALL_IS_TAKEN)


async def _die_of(stage: PackStage, process: Process, poison: str, most: int, is_over: Callable[[], bool]) -> None:
    """Take what there is until it is the poison; ack the rest, all at once or one after another."""
    loop, one_by_one = stage.world.loop, stage.chance.random() < 0.5
    with suppress(StoreError):
        async with PawnQueue.open(ALL_SETTINGS[RETENTION][0], store=process.store, clock=process.clock) as queue:
            for _ in range(40):
                claim = await ask(stage, process, queue, most, ttl=8.0, claim_id=None)
                if claim:
                    holder = stage.believe(process, claim)
                    for some in [[one] for one in claim.ids] if one_by_one else [claim.ids]:
                        if poison in some:
                            process.kill()
                            await process.clock.sleep(1.0)
                        stage.history.drop(holder, loop.now)
                        stage.history.asked_to_ack.update(some)
                        note(stage, claim, await settlement_of(queue.ack(claim, some)))
                elif is_over():
                    break
                await process.clock.sleep(2.0)

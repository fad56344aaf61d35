"""The actors of the large schedules: publishers, consumers, zombies and their retries, redrivers, janitors."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pawnqueue import ClaimBusyError, LeaseLostError, PawnQueue, PublishError, StoreError
from tests.sim.prepared import TOPIC
from tests.sim.stage import ALL_SETTINGS, TROUBLE, TROUBLED, TTLS, Stage, holder_of
from tests.sim.sweeps import sweep
from tests.support.claims import trusted_until
from tools.kit.settlements import settlement_of

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence

    from pawnqueue import Claim, Settings, Settlement
    from pawnqueue.domain.claim_record import ClaimRecord
    from pawnqueue.maintenance import Verdict
    from tests.sim.processes import Process
    from tests.sim.stage import Actor


def start(stage: Stage, name: str, actor: Actor, settings: Sequence[Settings] = ()) -> Process:
    """Start a process that acts so, and that may be troubled.

    :param settings: one of these is drawn; without any, one of everybody's.
    """
    process = stage.world.process(name)
    process.spawn(act(stage, process, actor, settings or ALL_SETTINGS[stage.retention]))
    process.trouble(TROUBLED, 120)
    return process


async def act(stage: Stage, process: Process, actor: Actor, settings: Sequence[Settings]) -> None:
    """Open the queue, if need be again and again, and act."""
    chance = stage.world.stream(f"actor {process.name}")
    chosen = chance.choice(settings)
    await process.clock.sleep(chance.uniform(0, 5))
    for _ in range(20):
        with suppress(StoreError):
            async with PawnQueue.open(chosen, store=process.store, clock=process.clock) as queue:
                try:
                    await actor(stage, process, queue, chance)
                finally:
                    stage.history.leave(process.name, stage.world.loop.now)  # closing gives back what it has
                return


async def publish_some(stage: Stage, queue: PawnQueue, count: int, *, packed: bool, wait: float | None = None) -> None:
    """Publish numbered messages, and note which of them are known to be published."""
    payloads = [{"n": number} for number in range(count)]
    try:
        ids = await queue.publish(TOPIC, payloads, pack=packed, wait=wait, **stage.schedule())
    except PublishError as error:
        ids = error.published
    except StoreError:
        return
    stage.history.published.update(ids)


async def publisher(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Publish a few messages."""
    for _ in range(chance.choice((1, 2))):
        await process.clock.sleep(chance.uniform(0, 15))
        count = chance.choice((1, 2))
        packed = bool(stage.has_packs) and stage.world.stream(f"packs {process.name}").random() < 0.8
        await publish_some(stage, queue, 3 * count if packed else count, packed=packed)


async def consumer(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Claim, work, settle, in all the ways there are."""
    claim_id: str | None = None
    for number in range(6):
        await process.clock.sleep(chance.uniform(0, 12))
        ttl = chance.choice(TTLS)
        try:
            if stage.references and chance.random() < 0.5:
                claim = await queue.attach(stage.references.pop(), ttl=ttl)
            else:
                # Half of them claim by an id, and by the same one again after a failure, as a task's retry does.
                if claim_id is None and chance.random() < 0.5:
                    claim_id = f"{process.name}-{number}"
                most = chance.choice((1, 2, 3))
                claim = await claimed(stage, process, queue, max_messages=most, ttl=ttl, claim_id=claim_id)
            if claim:
                claim_id = None
            await work(stage, process, queue, claim, chance, ttl)
        except TROUBLE as error:
            await shaken(stage, process, error)


async def forked(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Claim by an id that another process uses as well, as a zombie and its retry do."""
    for attempt in range(5):
        await process.clock.sleep(chance.uniform(0, 8))
        owner = f"run-{attempt}" if chance.random() < 0.3 else "run"
        ttl = chance.choice(TTLS)
        try:
            claim = await claimed(stage, process, queue, max_messages=2, ttl=ttl, claim_id="job", owner=owner)
            await work(stage, process, queue, claim, chance, ttl)
        except TROUBLE as error:
            await shaken(stage, process, error)


async def redriver(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Give dead letters back."""
    for _ in range(5):
        await process.clock.sleep(chance.uniform(2, 25))
        with suppress(StoreError):
            await queue.redrive(TOPIC)


async def janitor(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Sweep."""
    for _ in range(4):
        await process.clock.sleep(chance.uniform(0, 30))
        with suppress(StoreError):
            await sweep(queue, TOPIC, dry_run=chance.random() < 0.1)


async def dag_janitor(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Sweep on behalf of DAG runs: some go on, some have ended although their process is alive and knows nothing."""

    async def ask(record: ClaimRecord) -> Verdict | None:
        await process.clock.sleep(chance.uniform(0, 1))
        return chance.choice(("going", "ended", None))

    for _ in range(8):
        await process.clock.sleep(chance.uniform(0, 15))
        with suppress(StoreError):
            await sweep(queue, TOPIC, ask=ask)


async def claimed(stage: Stage, process: Process, queue: PawnQueue, **options: Any) -> Claim:
    """Claim, and note it if the claim was over before anything could be handed out."""
    claim = await queue.claim(TOPIC, process.name, **options)
    if not claim and claim.lost:
        stage.truth.interruptions.append((process.name, stage.world.loop.now))
    return claim


async def shaken(stage: Stage, process: Process, error: Exception) -> None:
    """Note that a call has failed, and wait as long as it says where it says so."""
    stage.truth.interruptions.append((process.name, stage.world.loop.now))
    if isinstance(error, ClaimBusyError):
        await process.clock.sleep(min(error.retry_after, max(TTLS) + 5))


async def work(  # noqa: PLR0913, PLR0917 - who works, on what, and for how long
    stage: Stage, process: Process, queue: PawnQueue, claim: Claim, chance: random.Random, ttl: float
) -> None:
    """Work on a claim, keeping it, and settle it somehow; what is believed is written down on the way."""
    if not claim:
        return
    holder = stage.believe(process, claim)
    if chance.random() < 0.3:  # some work without ever renewing, up to their time and past it
        await process.clock.sleep(chance.uniform(0, 1.3) * ttl)
    if not await keep(stage, process, queue, claim, chance, ttl) and chance.random() < 0.5:
        return  # it was lost; the other half tries to settle all the same
    if chance.random() < 0.1:
        return  # it forgets what it has
    stage.history.drop(holder, stage.world.loop.now)  # a process that settles, or hands over, has stopped working
    draw = chance.random()
    if draw < 0.15:
        stage.references.append(claim.hand_over() if draw < 0.08 else await queue.leave(claim))
        return
    await settle(stage, process, queue, claim, chance)


async def keep(  # noqa: PLR0913, PLR0917 - as above
    stage: Stage, process: Process, queue: PawnQueue, claim: Claim, chance: random.Random, ttl: float
) -> bool:
    """Renew a claim some times, and say whether it is still ours as far as is known."""
    for _ in range(chance.choice((0, 0, 1, 3, 6))):
        await process.clock.sleep(min(chance.expovariate(3 / ttl), ttl))
        try:
            await queue.renew(claim, ttl=chance.choice(TTLS))
        except LeaseLostError:
            stage.history.drop(holder_of(process, claim), stage.world.loop.now)
            return False
        except StoreError:
            if chance.random() < 0.5:  # nobody knows whether it was renewed: work on for as long as it is trusted
                await process.clock.sleep(max(0.0, 0.9 * (trusted_until(claim) - process.clock.elapsed())))
            continue
        stage.renewed(process, claim)
    return True


async def settle(stage: Stage, process: Process, queue: PawnQueue, claim: Claim, chance: random.Random) -> None:
    """Settle a claim, all at once or one by one, in all the ways there are."""
    ids = list(claim.ids)
    while ids:
        some, ids = (ids, []) if chance.random() < 0.6 else (ids[:1], ids[1:])
        draw = chance.random()
        if draw < 0.65:
            result = await ack(stage, queue, claim, some)
        elif draw < 0.8:
            result = await settlement_of(queue.nack(claim, some, reason="drawn"))
        else:
            result = await settlement_of(queue.nack(claim, some, requeue=True, delay=chance.choice((0, 0, 5, 25))))
        note(stage, claim, result)
        if chance.random() < 0.3:
            await process.clock.sleep(chance.uniform(0, 3))


async def ack(stage: Stage, queue: PawnQueue, claim: Claim, ids: Iterable[str]) -> Settlement:
    """Ack, and write down before that it was asked for: whatever the answer is, they may be gone."""
    ids = list(ids)
    stage.history.asked_to_ack.update(ids)
    return await settlement_of(queue.ack(claim, ids))


def note(stage: Stage, claim: Claim, result: Settlement) -> None:
    """Write down what a settlement said."""
    now = stage.world.loop.now
    stage.history.acked += [(now, one, claim.claim_id) for one in result.acked]
    for how in ("acked", "buried", "released"):
        for one in getattr(result, how):
            stage.history.settled.append((now, stage.unit_of(claim, one), claim.claim_id, how))

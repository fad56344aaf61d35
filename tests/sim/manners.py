"""More ways to use the queue: cancelling, keeping alive, settling twice at once, attaching together, starting anew."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from pawnqueue import LeaseLostError, PawnQueue, PawnQueueError, StoreError
from pawnqueue.domain import layout
from tests.sim.actors import ack, claimed, note, settle, shaken
from tests.sim.prepared import TOPIC
from tests.sim.stage import ALL_SETTINGS, RETENTION, TROUBLE, TTLS, Stage, holder_of, settings_for
from tests.sim.truth import NOT_MALFORMED
from tests.support.claims import trusted_until
from tools.kit.settlements import settlement_of

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Coroutine

    from pawnqueue import Claim, Settlement
    from tests.sim.processes import Process

T = TypeVar("T")

#: The largest payload that a picky consumer takes. What an envelope may have around it (64 KiB) comes to that.
PICKY = 1024
PICKY_SETTINGS = tuple(settings_for(patience, RETENTION, largest=PICKY) for patience in (15.0, 3.0))
#: A payload that is too much for it.
BIG = "x" * (PICKY + 64 * 1024 + 1)
#: Twins claim all at once so often, in seconds.
TOGETHER = 6.0
#: How often actors that leave claims to each other begin with a new one.
LEFT = 15.0
#: keep_alive has to report a loss at once; this many checks, one second apart, may find that it has not.
SILENCE = 3


async def interrupted(process: Process, call: Coroutine[Any, Any, T], chance: random.Random) -> T | None:
    """Await a call for a while, cancel it, and return what it returned if it was faster, or None."""
    task = asyncio.ensure_future(call)
    task.add_done_callback(process.note_return)
    patience = chance.choice((0.0, 0.1, 0.3, 1.0, 4.0)) * chance.random()
    if chance.random() < 0.3:
        with suppress(TimeoutError):
            return await asyncio.wait_for(task, patience)
        return None
    await process.clock.sleep(patience)
    task.cancel()
    if chance.random() < 0.2:  # Ctrl-C, once more
        await process.clock.sleep(chance.random())
        task.cancel()
    [result] = await asyncio.gather(task, return_exceptions=True)
    if isinstance(result, asyncio.CancelledError):
        return None
    if isinstance(result, BaseException):
        raise result
    return result


async def hurried(stage: Stage, process: Process, call: Coroutine[Any, Any, T], chance: random.Random) -> T | None:
    """Cancel every other call at a random moment; return None for it."""
    if chance.random() < 0.5:
        return await call
    result = await interrupted(process, call, chance)
    if result is None:
        stage.truth.interruptions.append((process.name, stage.world.loop.now))
    return result


async def hasty(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Cancel every other call at a random moment: claims, renewals, settlements, publishing."""
    for number in range(6):
        await process.clock.sleep(chance.uniform(0, 8))
        ttl = chance.choice(TTLS)
        claim_id = f"{process.name}-{number // 2}" if chance.random() < 0.4 else None
        try:
            if chance.random() < 0.2:
                stage.history.published.update(
                    await hurried(stage, process, queue.publish(TOPIC, [{"n": number}]), chance) or ()
                )
            claim = await hurried(
                stage, process, claimed(stage, process, queue, max_messages=3, ttl=ttl, claim_id=claim_id), chance
            )
            if not claim:
                continue
            stage.believe(process, claim)
            for _ in range(chance.choice((0, 1, 2))):
                await process.clock.sleep(chance.uniform(0, ttl / 2))
                await hurried(stage, process, queue.renew(claim, ttl=ttl), chance)
                stage.renewed(process, claim)
            stage.stops(process, claim)
            await hurried(stage, process, settle(stage, process, queue, claim, chance), chance)
        except TROUBLE as error:
            if isinstance(error, LeaseLostError) and claim:
                stage.stops(process, claim)
            await shaken(stage, process, error)


async def hasty_twin(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Claim by one id at one moment, as all twins do, and cancel some of it: what one won another one may adopt."""
    loop = stage.world.loop
    for _ in range(12):
        number = int(loop.now // TOGETHER) + 1
        await process.clock.sleep(number * TOGETHER - loop.now + chance.uniform(0, 0.6))
        by_id = {"claim_id": f"twins-{number}", "owner": "twins"} if chance.random() < 0.8 else {}
        try:
            call = claimed(stage, process, queue, max_messages=2, ttl=chance.choice(TTLS), **by_id)
            claim = await (interrupted(process, call, chance) if chance.random() < 0.6 else call)
            if claim:
                stage.believe(process, claim)
                await process.clock.sleep(chance.uniform(0, 3))
                stage.stops(process, claim)
                note(stage, claim, await settlement_of(queue.nack(claim, requeue=True)))
            elif claim is None:
                stage.truth.interruptions.append((process.name, loop.now))
        except TROUBLE:
            stage.truth.interruptions.append((process.name, loop.now))


async def keeper(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Work slowly, and let keep_alive renew the claim meanwhile."""
    for _ in range(4):
        await process.clock.sleep(chance.uniform(0, 8))
        ttl = chance.choice(TTLS)
        try:
            claim = await claimed(stage, process, queue, max_messages=2, ttl=ttl)
            seconds, buggy = chance.uniform(0, 40), chance.random() < 0.1
            if claim and await kept_alive(stage, process, queue, claim, chance, seconds=seconds, buggy=buggy):
                await settle(stage, process, queue, claim, chance)
        except TROUBLE as error:
            await shaken(stage, process, error)


async def kept_alive(  # noqa: PLR0913 - who works, on what, and for how long
    stage: Stage,
    process: Process,
    queue: PawnQueue,
    claim: Claim,
    chance: random.Random,
    *,
    seconds: float,
    buggy: bool,
    shortest: float = 0.0,
) -> bool:
    """Work within a keep_alive, and return whether the claim was kept; it is believed in until keep_alive says no.

    :param shortest: the shortest time that it is renewed for.
    :param buggy: the client library raises an error that nobody expects, once.
    """
    stage.believe(process, claim)
    raises = chance.random() < 0.2

    def on_lost(_: LeaseLostError) -> None:
        stage.stops(process, claim)
        if raises:
            raise RuntimeError("drawn")

    drawn = chance.choice(({}, {}, {"ttl": max(9.0, shortest)}, {"ttl": 20.0, "interval": 3.0}))
    kept, end = True, process.clock.elapsed() + seconds
    try:
        async with queue.keep_alive(claim, on_lost=on_lost, **drawn) as keep:
            process.store.bugs = int(buggy)
            silent = 0
            while process.clock.elapsed() < end and not keep.lost.is_set():
                await process.clock.sleep(1.0)
                if keep.lost.is_set():
                    break
                stage.renewed(process, claim)
                silent = silent + 1 if process.clock.elapsed() > trusted_until(claim) + 1.0 else 0
                if silent == SILENCE:
                    stage.history.broken.append(f"keep_alive ended in silence: {holder_of(process, claim)}")
            kept = not keep.lost.is_set()
    except (RuntimeError, ExceptionGroup):
        kept = False  # on_lost's own
    process.store.bugs = 0
    stage.stops(process, claim)
    return kept


async def two_minded(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Settle the same messages twice at once, in different ways: the first decision wins, and both calls return it."""
    for _ in range(5):
        await process.clock.sleep(chance.uniform(0, 10))
        try:
            claim = await claimed(stage, process, queue, max_messages=3, ttl=chance.choice(TTLS))
            if claim:
                stage.believe(process, claim)
                stage.stops(process, claim)
                await settle_twice(stage, queue, claim, chance)
        except TROUBLE as error:
            await shaken(stage, process, error)


async def settle_twice(stage: Stage, queue: PawnQueue, claim: Claim, chance: random.Random) -> None:
    """Settle overlapping parts of one claim in two or three calls at once."""
    calls: list[Awaitable[Settlement]] = [
        ack(stage, queue, claim, claim.ids[: chance.choice((1, 2, 3))]),
        settlement_of(queue.nack(claim, claim.ids[chance.choice((0, 1)) :], reason="two minds")),
    ]
    if chance.random() < 0.4:
        calls.append(settlement_of(queue.nack(claim, requeue=True, delay=chance.choice((0, 5)))))
    chance.shuffle(calls)
    told: dict[str, str] = {}
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            if not isinstance(result, PawnQueueError):
                raise result
            continue
        note(stage, claim, result)
        for one, how in result:
            if how in {"acked", "buried", "released"} and told.setdefault(one, how) != how:
                stage.history.broken.append(f"settled in two ways at once: {one} {told[one]} and {how}")


async def giver(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Claim, and hand over."""
    for _ in range(4):
        await process.clock.sleep(chance.uniform(0, 12))
        try:
            claim = await claimed(stage, process, queue, max_messages=2, ttl=chance.choice(TTLS))
        except TROUBLE as error:
            await shaken(stage, process, error)
            continue
        if claim:
            stage.believe(process, claim)
            await process.clock.sleep(chance.uniform(0, 2))
            stage.stops(process, claim)
            stage.references.append(claim.hand_over())


async def heir(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Attach to what is handed over, as all the other heirs do at the same moment."""
    seen = 0
    for _ in range(60):
        await process.clock.sleep(1.0)
        if len(stage.references) <= seen:
            continue
        reference, seen = stage.references[seen], seen + 1
        try:
            claim = await queue.attach(reference, ttl=chance.choice(TTLS))
            if claim:
                stage.believe(process, claim)
                await process.clock.sleep(chance.uniform(0, 6))
                stage.stops(process, claim)
                await settle(stage, process, queue, claim, chance)
        except TROUBLE as error:
            await shaken(stage, process, error)


async def leaver(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Work a while on a claim that another left, or on a new one, and leave it to the next, by reference or id.

    All of them claim on behalf of one owner, and a claim goes from hand to hand until somebody settles or releases it.
    """
    for _ in range(10):
        await process.clock.sleep(chance.uniform(0, 5))
        ttl = chance.choice(TTLS)
        claim = None
        try:
            if stage.references and chance.random() < 0.4:
                claim = await queue.attach(stage.references[-1], ttl=ttl)
            elif chance.random() < 0.2:
                await queue.release(TOPIC, f"left-{int(stage.world.loop.now // LEFT)}", "leavers", reason="no more")
            else:
                by_id = {"claim_id": f"left-{int(stage.world.loop.now // LEFT)}", "owner": "leavers"}
                claim = await claimed(stage, process, queue, max_messages=3, ttl=ttl, **by_id)
            if not claim:
                continue
            stage.believe(process, claim)
            if chance.random() < 0.5:
                await process.clock.sleep(chance.uniform(0, 0.5) * ttl)
                await queue.renew(claim)
                stage.renewed(process, claim)
            await leave_or_settle(stage, process, queue, claim, chance)
        except TROUBLE as error:
            if isinstance(error, LeaseLostError) and claim:
                stage.stops(process, claim)
            await shaken(stage, process, error)


async def leave_or_settle(
    stage: Stage, process: Process, queue: PawnQueue, claim: Claim, chance: random.Random
) -> None:
    """Leave a claim most often, sometimes after some of it was settled, and not always to the end of the call."""
    if chance.random() < 0.3:
        note(stage, claim, await ack(stage, queue, claim, claim.ids[:1]))
    stage.stops(process, claim)
    if chance.random() < 0.3:
        await settle(stage, process, queue, claim, chance)
        return
    leaving = queue.leave(claim)
    reference = await (interrupted(process, leaving, chance) if chance.random() < 0.3 else leaving)
    if reference is not None:
        stage.references.append(reference)
    else:
        stage.truth.interruptions.append((process.name, stage.world.loop.now))


async def newcomer(stage: Stage, process: Process, _: PawnQueue, chance: random.Random) -> None:
    """Open the queue anew each time, and begin with anything but a claim."""
    for number in range(4):
        await process.clock.sleep(chance.uniform(0, 12))
        settings = chance.choice(ALL_SETTINGS[stage.retention])
        try:
            async with PawnQueue.open(settings, store=process.store, clock=process.clock) as queue:
                await first_call(stage, queue, chance)
                claim = await claimed(stage, process, queue, claim_id=f"{process.name}-{number // 2}", ttl=8.0)
                if claim:
                    stage.believe(process, claim)
                    stage.stops(process, claim)
                    await settle(stage, process, queue, claim, chance)
        except TROUBLE as error:
            await shaken(stage, process, error)


async def first_call(stage: Stage, queue: PawnQueue, chance: random.Random) -> None:
    """Pass a value that is not a claim."""
    drawn = chance.choice(("sweep", "redrive", "attach", "stats", "find", "peek"))
    match drawn:
        case "attach" if stage.references:
            await queue.attach(stage.references.pop(), ttl=8.0)
        case "find" if stage.history.published:
            await queue.find(TOPIC, min(stage.history.published))
        case "sweep" | "redrive" | "stats" | "peek":
            await getattr(queue, drawn)(TOPIC)
        case _:
            pass


async def doomed(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Live one life of a task: claim under its id, settle, and most often die on the way. The next life begins anew."""
    owner, ttl = process.name.partition(".")[0], chance.choice(TTLS)
    try:
        claim = await claimed(stage, process, queue, max_messages=3, ttl=ttl, claim_id=owner, owner=owner)
    except TROUBLE as error:
        await shaken(stage, process, error)
        return
    if claim:
        stage.believe(process, claim)
        process.kill_at_request(chance.randint(1, 12), sent=chance.random() < 0.5)
        stage.stops(process, claim)
        with suppress(*TROUBLE):
            if chance.random() < 0.5:
                note(
                    stage, claim, await settlement_of(queue.nack(claim, requeue=True, delay=chance.choice((0, 5, 25))))
                )
            else:
                await settle(stage, process, queue, claim, chance)


async def frozen(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Hold claims while the machine is stopped, its clock included: the next answer must reveal it."""
    loop = stage.world.loop
    for _ in range(3):
        await process.clock.sleep(chance.uniform(0, 8))
        ttl = chance.choice(TTLS)
        try:
            claim = await claimed(stage, process, queue, max_messages=2, ttl=ttl)
            if not claim:
                continue
            stage.believe(process, claim)
            loop.at(loop.now + chance.uniform(0.0, 1.0), _stop, (process, chance.uniform(0, 2.5) * ttl))
            await process.clock.sleep(chance.uniform(1.0, 2.0))
            try:
                await wake_up(stage, process, queue, claim, chance)
            finally:
                stage.stops(process, claim)
            await settle(stage, process, queue, claim, chance)
        except TROUBLE as error:
            await shaken(stage, process, error)


def _stop(stopped: tuple[Any, float]) -> None:
    process, seconds = stopped
    if process.alive and not process.world.is_calm and hasattr(process, "stop_clock"):
        process.stop_clock(seconds)


async def wake_up(stage: Stage, process: Process, queue: PawnQueue, claim: Claim, chance: random.Random) -> None:
    """Take the next step after a sleep, whatever it is, and work on if the claim is still trusted.

    Until its first answer nobody can know that the clock was stopped, and the history has the hold's end as if it had
    not been. What an answer can show is the message's holder when it was asked: the taker wrote its lease at least
    twice the margin after what a stopped clock takes for now, and a LIST shows that date. From then on
    it is not believed in. A lease that is gone by then, as its message was settled, shows no date.
    """
    bucket = stage.world.bucket
    step, shown = chance.choice(("renew", "stats", "claim", "publish")), set[str]()
    asked = stage.world.loop.now
    if step == "renew":
        await queue.renew(claim)
    elif step == "claim":
        other = await claimed(stage, process, queue, max_messages=1, ttl=8.0)
        if other:
            stage.believe(process, other)
            stage.stops(process, other)
            await settle(stage, process, queue, other, chance)
    elif step == "publish":
        stage.history.published.update(await queue.publish(TOPIC, [{"step": 1}]))
    if step != "renew":  # a PUT has no date, and a look for more need not show the leases
        asked = stage.world.loop.now
        shown = set(bucket.below(layout.leases(TOPIC)))
        await queue.stats(TOPIC)
        shown.intersection_update(bucket.below(layout.leases(TOPIC)))
    if claim.lost or process.clock.elapsed() >= trusted_until(claim) or stage.world.weather.latency > 0.1:
        return  # a slow store tells its time so badly that nothing follows from it
    for unit in stage.given(claim):
        if step == "renew" or layout.lease(TOPIC, unit) in shown:
            stage.history.hold_again(holder_of(process, claim), unit, asked, asked)
    await process.clock.sleep(chance.uniform(0, 1) * max(0.0, trusted_until(claim) - process.clock.elapsed()))


async def publisher_of_big_ones(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Publish messages that are too large for some consumers, and good for the others."""
    for number in range(2):
        await process.clock.sleep(chance.uniform(0, 15))
        with suppress(StoreError, PawnQueueError):
            ids = await queue.publish(TOPIC, [{"n": number, "text": BIG}])
            stage.history.published.update(ids)
            stage.truth.never.update(dict.fromkeys(ids, NOT_MALFORMED))


async def picky(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Consume with limits that are smaller than everybody else's: what is too large is left to the others."""
    for _ in range(5):
        await process.clock.sleep(chance.uniform(0, 10))
        try:
            claim = await claimed(stage, process, queue, max_messages=3, ttl=chance.choice(TTLS))
            if claim:
                stage.believe(process, claim)
                stage.stops(process, claim)
                note(stage, claim, await ack(stage, queue, claim, claim.ids))
        except TROUBLE as error:
            await shaken(stage, process, error)

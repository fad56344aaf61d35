"""Workers in all weathers: several topics, handlers that fail, hang and refuse to end, outages, kills and drains.

Then, in calm weather, the worker that nobody has killed still works, loses nothing, and is drained.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pawnqueue import BuryMessage, PawnQueue, QueueDrainedError, RequeueMessage, Retry, StoreError
from pawnqueue import events as happened
from tests.sim.actors import ALL_SETTINGS, consumer, janitor, publish_some, publisher, redriver, shaken, start
from tests.sim.afterwards import UNTIL_ALL_IS_TAKEN, afterwards, quiet
from tests.sim.csprng import FAIR, HARSH, SLOW_BUT_ANSWERED
from tests.sim.pack_truth import any_stage
from tests.sim.prepared import TOPIC, establish
from tests.sim.stage import RETENTION, SHORT_RETENTION, TROUBLE, TROUBLED, TTLS, holder_of
from tests.support.claims import trusted_until

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from pawnqueue import Claim, Message
    from tests.sim.processes import Process
    from tests.sim.stage import Stage
    from tests.sim.world import World

#: A topic beside the one that is judged: it is empty.
OTHER = "parcels"
#: The processes of workers, the last of which nobody kills.
WORKERS = ("W1", "W2", "W3")
#: How long the last worker may take in calm weather for a few messages.
CALM_SECONDS = 1500.0
DRAIN_SECONDS = 60.0


def listening(world: World) -> list[str]:
    """Run one such schedule to its end, and return every promise that it broke."""
    if not world.bucket.conditional:
        world.weather = world.first_weather = world.stream("listening").choice((FAIR, SLOW_BUT_ANSWERED, HARSH))
    return world.run(_listening)


@dataclass
class _Listening:
    """What one worker is given, and what its handler has done."""

    stage: Stage
    process: Process
    chance: random.Random
    claims: dict[str, Claim] = field(default_factory=dict)
    """By their names."""
    claim_of: dict[str, Claim] = field(default_factory=dict)
    """The last claim that had it, by a message's unit."""
    done: set[tuple[str, str]] = field(default_factory=set)
    """What the handler has finished, by the claim's name and the message's id, before it was lost."""
    in_calm: set[str] = field(default_factory=set)
    """The names of claims that were made in calm weather."""
    is_drained: bool = False

    async def take(self, claimed: Callable[..., Awaitable[Claim]], *given: Any, **more: Any) -> Claim:
        """Claim as the queue does, and write down what the worker is given."""
        claim = await claimed(*given, **more)
        if self.is_drained:
            self.stage.history.broken.append(f"given after a drain: {len(claim)} messages to {self.process.name}")
        if claim and claim.topic == TOPIC:
            self.stage.believe(self.process, claim)
            self.stage.stops(self.process, claim)  # what waits for a handler is held by nobody yet
            self.claims[claim.stem] = claim
            if self.stage.world.is_calm:
                self.in_calm.add(claim.stem)
            self.claim_of.update((message.unit, claim) for message in claim)
        elif not claim and claim.lost:
            self.stage.truth.interruptions.append((self.process.name, self.stage.world.loop.now))
        return claim

    async def handle(self, message: Message) -> None:
        """Work on a message for a while, and end in one of many ways."""
        stage, process, history, now = self.stage, self.process, self.stage.history, self.stage.world.loop
        claim = self.claim_of[message.unit]
        holder = holder_of(process, claim)
        [unit] = [unit for unit, one in stage.given(claim).items() if one == message.id][:1]
        deadline = stage.virtual(process, trusted_until(claim)) - stage.unseen.of(process)
        history.hold_again(holder, unit, now.now, deadline)
        draw, seconds = self.chance.random(), self.chance.choice((0.0, 0.2, 3.0, 30.0))
        try:
            await self._work(draw, seconds)
        finally:
            history.drop(holder, now.now, {unit})
        history.asked_to_ack.add(message.id)
        if claim.lost is None:
            self.done.add((claim.stem, message.id))

    async def _work(self, draw: float, seconds: float) -> None:
        if self.stage.world.is_calm:
            await self.process.clock.sleep(min(seconds, 25.0))
            return
        if draw < 0.05:
            await asyncio.Event().wait()
        try:
            await self.process.clock.sleep(seconds)
        except asyncio.CancelledError:
            if draw > 0.15:
                raise
            await self.process.clock.sleep(2.0)  # it takes its time
            raise
        if draw > 0.9:
            raise ValueError("drawn")
        if draw > 0.85:
            raise RequeueMessage(self.chance.choice((0, 5, 25)))
        if draw > 0.8:
            raise BuryMessage("drawn")

    def hear(self, event: happened.Event) -> None:
        """Write down renewals, and what was settled; judge that nothing is acked that was not handled."""
        claim = self.claims.get(getattr(event, "claim", ""))
        if claim is None:
            return
        history, now = self.stage.history, self.stage.world.loop.now
        if isinstance(event, happened.Renewed):
            self.stage.renewed(self.process, claim)
        if isinstance(event, happened.ClaimLost) and claim.stem in self.in_calm:
            history.broken.append(f"lost in calm weather: {claim.stem}, {event.why}")
        if isinstance(event, happened.Settled):
            for how in ("acked", "buried", "released"):
                for one in getattr(event, how):
                    history.settled.append((now, self.stage.unit_of(claim, one), claim.claim_id, how))
            for one in event.acked:
                history.acked.append((now, one, claim.claim_id))
                if (claim.stem, one) not in self.done:
                    history.broken.append(f"acked and not done: {one} by {claim.stem}")


async def _listening(world: World) -> list[str]:
    stage = any_stage(world, "listening")
    chance = stage.chance
    establish(world.bucket, OTHER)
    stage.retention = chance.choice((RETENTION, SHORT_RETENTION))
    stage.create_topic(chance.choice((None, 3, 10)), packs=stage.has_packs)
    for name in ("P1", "P2"):
        start(stage, name, publisher)
    survivor = world.process(WORKERS[-1])
    survivor.spawn(_work(stage, survivor, is_survivor=True))
    for name in WORKERS[:-1]:
        process = world.process(name)
        process.spawn(_work(stage, process))
        process.trouble(TROUBLED, 120)
    for name, actor in (("A", consumer), ("R1", redriver), ("J1", janitor)):
        if chance.random() < 0.5:
            start(stage, name, actor)
    if chance.random() < 0.5:
        world.loop.at(world.loop.now + chance.uniform(0, 60), _outage, (world, chance.uniform(5, 90)))
    await world.sleep(TROUBLED + 30)
    for name, process in world.processes.items():
        if name != survivor.name:
            process.kill()
    await world.calm()
    await _calm(stage, survivor)
    await quiet(stage)
    return await afterwards(stage, UNTIL_ALL_IS_TAKEN if stage.has_packs else 40.0)


def _outage(given: tuple[World, float]) -> None:
    world, seconds = given
    if world.is_calm:
        return
    world.weather = replace(world.weather, busy=1.0, late=0.0, lost=0.0, dropped=0.0, vanished=0.0)
    world.loop.at(world.loop.now + seconds, _end_outage, world)


def _end_outage(world: World) -> None:
    if not world.is_calm:
        world.weather = world.first_weather


async def _work(stage: Stage, process: Process, *, is_survivor: bool = False) -> None:
    """Listen, and be drained at some time; the survivor in calm weather alone."""
    chance = stage.world.stream(f"worker {process.name}")
    settings = chance.choice(ALL_SETTINGS[stage.retention])
    for life in range(40):
        worker = _Listening(stage, process, chance)
        try:
            async with PawnQueue.open(
                settings, store=process.store, clock=process.clock, on_event=worker.hear
            ) as queue:
                try:
                    await _listen(worker, queue, is_survivor=is_survivor)
                finally:
                    stage.history.leave(process.name, stage.world.loop.now)
        except StoreError:  # it could not be opened
            await process.clock.sleep(3.0)
            continue
        except TROUBLE as error:
            await shaken(stage, process, error)
        if life >= 3 or is_survivor:
            return


async def _listen(worker: _Listening, queue: PawnQueue, *, is_survivor: bool) -> None:
    stage, process, chance = worker.stage, worker.process, worker.chance
    claimed = queue.claim
    queue.claim = lambda *given, **more: worker.take(claimed, *given, **more)  # type: ignore[assignment,method-assign]
    topics = chance.choice((TOPIC, [TOPIC, OTHER], [OTHER, TOPIC]))
    listening = asyncio.ensure_future(
        queue.listen(
            topics,
            worker.handle,
            consumer=process.name,
            concurrency=chance.choice((1, 2, 5)),
            max_messages=chance.choice((None, 1, 4)),
            # A claim that is renewed lasts for at least 8 seconds on a store without conditions.
            ttl=TTLS[-1] if is_survivor else chance.choice(TTLS if stage.world.bucket.conditional else TTLS[1:]),
            retry=Retry(chance.choice((0, 3)), most=20),
        )
    )
    drained = None
    if is_survivor:
        await stage.world.loop.until(lambda: stage.world.is_calm and "survivor may end" in stage.exempt)
        drained = await queue.drain(DRAIN_SECONDS)
    else:
        await process.clock.sleep(chance.uniform(5, 60))
        if chance.random() < 0.2:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            return
        if chance.random() < 0.3:
            return  # closing the queue ends it
        with suppress(QueueDrainedError):
            drained = await queue.drain(chance.choice((0.5, 5.0, 20.0)))
    worker.is_drained = True
    with suppress(QueueDrainedError):
        await queue.claim(TOPIC, process.name, wait=1.0)
    report = await listening
    if drained is not None and drained.complete and queue._claims.held_now():
        stage.history.broken.append(f"a complete drain holds messages: {process.name}")
    if is_survivor and (drained is None or not drained.complete or report.left):
        stage.history.broken.append(f"not drained in calm weather: {drained}, {report}")


async def _calm(stage: Stage, survivor: Process) -> None:
    """Publish a few messages that the surviving worker has to handle, and have it drained."""
    world = stage.world
    if not survivor.idle:
        before = set(stage.history.published)
        process = world.process("P9")
        process.spawn(_publish(stage, process))
        await world.until_idle(process, at_most=60.0)
        fresh = stage.history.published - before
        acked = {one for _, one, _ in stage.history.acked}
        is_done = await world.until(
            lambda: fresh <= {one for _, one, _ in stage.history.acked[len(acked) :]} | acked, at_most=CALM_SECONDS
        )
        process = world.process("P8")
        process.spawn(_publish(stage, process))
        await world.until_idle(process, at_most=60.0)
        await world.sleep(6.0)  # it is drained while it works
        if not is_done:
            stage.history.broken.append("waits for ever: a worker does not go on in calm weather")
    else:
        stage.history.broken.append("a worker has ended although nobody has drained it")
    stage.exempt.add("survivor may end")
    if not await world.until_idle(survivor, at_most=2 * DRAIN_SECONDS):
        stage.history.broken.append("a drain does not end in time")
    stage.exempt.discard("survivor may end")


async def _publish(stage: Stage, process: Process) -> None:
    async with PawnQueue.open(ALL_SETTINGS[stage.retention][0], store=process.store, clock=process.clock) as queue:
        await publish_some(stage, queue, 6, packed=False)

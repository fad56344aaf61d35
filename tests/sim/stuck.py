"""One object fails for ever: it is the only one that waits. All others are delivered, settled and swept in time."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pawnqueue import PawnQueue, StoreError
from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout
from pawnqueue.domain.envelope import Envelope
from tests.sim.actors import ack, act, note, publish_some
from tests.sim.afterwards import POLL as POLL_AFTERWARDS
from tests.sim.afterwards import UNTIL_ALL_IS_TAKEN, afterwards, quiet
from tests.sim.bucket import EPOCH
from tests.sim.pack_truth import PackStage, any_stage
from tests.sim.planting import plant
from tests.sim.prepared import TOPIC, establish
from tests.sim.stage import RETENTION, TROUBLE, Stage, settings_for
from tests.sim.sweeps import sweep
from tests.sim.truth import NOT_MALFORMED, Bounds, object_of
from tools.kit.settlements import settlement_of

if TYPE_CHECKING:
    import random

    from pawnqueue import Claim
    from pawnqueue.stores.port import StoredObject
    from tests.sim.processes import Process
    from tests.sim.world import World

POLL = 5.0
#: The patience of the most patient of them: so long, a settlement tries what the store refuses.
PATIENCE = 15.0
LASTS = 130.0
AND_THEN = 120.0
#: A claim among whose messages some fail: a few seconds for each kind of what is tried again, whatever else is stuck.
CALL_TAKES = 14.0
#: What ``csprng_verify`` adds to that by its sleeps. A claim that has won what cannot be read tries several times, and
#: each time four batches of registers are written: leases, record, what is given back in the record, and its leases.
SLEEPS_TAKE = 6.0
#: A sweep tries each thing that is stuck, some of them one after another, and goes on.
SWEEP_TAKES = 120.0

#: A denied object is tried again less and less often: this many times at first, and then once in this many seconds, by
#: all.
TRIED_AT_FIRST = 30
TRIED_EVERY = 5.0

#: How many messages a pack has. The pollers claim ten, and those that die split what they claim.
PACKS = (1, 2, 4, 12)
#: How much longer a pack waits: until all that is before it is taken, which may be one message a claim.
UNTIL_PACKS_ARE_TAKEN = 30.0

SETTINGS = (settings_for(PATIENCE, RETENTION), settings_for(3.0, RETENTION))
READ = ("GET", "HEAD")
#: What fails: the folder of its object, and the requests; 403 means one that is denied, 500 one that breaks.
KINDS = (
    ("messages", READ, 403),
    ("messages", ("GET",), 500),
    ("messages", ("COPY",), 403),
    ("messages", ("COPY",), 500),
    ("messages", ("DELETE",), 403),
    ("messages", ("DELETE",), 500),
    ("leases", READ, 403),
    ("leases", ("GET",), 500),
    ("leases", ("DELETE",), 403),
    ("claims", READ, 403),
    ("claims", ("GET",), 500),
    ("dead-letter", READ, 403),
    ("dead-letter", ("COPY",), 403),
    ("dead-letter", ("COPY",), 500),
    ("dead-letter", ("DELETE",), 403),
    ("dead-letter", ("DELETE",), 500),
    ("newer", (), 0),
)
#: The same of packs, in half of the schedules that have any.
KINDS_OF_PACKS = (
    ("packs", READ, 403),
    ("packs", ("GET",), 500),
    ("packs", ("DELETE",), 403),
    ("packs", ("DELETE",), 500),
    ("newer pack", (), 0),
)
#: Why nobody buries what cannot be read.
NEVER = NOT_MALFORMED | {"max_deliveries"}
#: A message that only a later version can read.
LATER = {"v": 99}


@dataclass(slots=True)
class Saboteur:
    """Spoils the so-manieth object of one kind, as soon as it is written; and perhaps more than one."""

    stage: Stage
    folder: str
    kinds: tuple[str, ...]
    status: int
    wait: int
    left: int

    def see(self, _who: str, key: str, before: StoredObject | None, after: StoredObject | None) -> None:
        """Look at a change of the bucket."""
        if after is None:
            return
        if (uuid := layout.parse_lease(key)) and not layout.is_of_pack(uuid):
            self._follow(uuid, after)
        if not self.left or not key.startswith(f"{TOPIC}/{self.folder}/") or key.endswith(".reason.json"):
            return
        if self.folder != "leases" and before is not None:
            return
        if self.folder == "claims" and b'"consumer":"Q' not in after.body:
            return  # one that nobody else has to look at is no fault
        self.wait -= 1
        if self.wait >= 0:
            return
        self.left -= 1
        self.stage.world.bucket.sticky.put(key, self.kinds, denied=self.status == 403)
        self.stage.world.log("", f"from now on {self.status} to {self.kinds} {key}")
        self._exempt(key)

    def _exempt(self, key: str) -> None:
        stage, parsed = self.stage, units.parse(key)
        if parsed is not None:
            stage.exempt.add(layout.uuid_of(parsed.id))
            if "GET" in self.kinds:
                _never_bury(stage, parsed.id)
        elif uuid := layout.parse_lease(key):
            self._exempt_unit(uuid)
        elif letter := letters.parse(key):
            stage.exempt.add(letter[0])
            if "HEAD" in self.kinds and letter[0] in stage.truth.letters:
                # Nobody else can tell whether the message is buried, so its unit waits.
                stage.exempt.add(object_of(stage.truth.letters[letter[0]]))
        else:
            name = key.rpartition("/")[2]
            stage.exempt.add(name)
            for uuid in stage.truth.members_of(name.removesuffix(".json")):
                self._exempt_unit(uuid)

    def _exempt_unit(self, uuid: str) -> None:
        """Let a unit wait. The pack of a slice is left over as well, and the other slices of it must not wait."""
        own = {uuid, f"{layout.uuid_of(uuid)}."} if self.stage.truth.is_slice(uuid) else {layout.uuid_of(uuid)}
        self.stage.exempt |= own

    def _follow(self, uuid: str, after: StoredObject) -> None:
        """Exempt the new place of a dead letter that is spoiled: it cannot be moved there."""
        if self.folder == "dead-letter" and any(
            f'"source":"{one}"'.encode() in after.body for one in self.stage.exempt
        ):
            self.stage.exempt.add(uuid)


def stuck(world: World) -> list[str]:
    """Run one such schedule to its end, and return every promise that it broke."""
    world.weather = world.first_weather = world.still
    return world.run(_stuck)


async def _stuck(world: World) -> list[str]:
    stage = any_stage(world, "stuck")
    chance = stage.chance
    establish(world.bucket)
    stage.create_topic(chance.choice((None, 3, 10)), packs=stage.has_packs)
    folder, kinds, status = chance.choice(KINDS)
    of_packs = world.stream("stuck packs")
    if stage.has_packs and of_packs.random() < 0.5:
        folder, kinds, status = of_packs.choice(KINDS_OF_PACKS)
    if folder == "newer":
        _plant_newer(stage)
    elif folder == "newer pack" and isinstance(stage, PackStage):
        _plant_newer_pack(stage)
    else:
        wait = chance.randint(0, 1 if folder in {"claims", "dead-letter"} else 6)
        saboteur = Saboteur(stage, folder, kinds, status, wait=wait, left=chance.choice((1, 1, 3, 10)))
        world.bucket.observers.append(saboteur.see)
    actors = {"P1": _supplier, "A": _poller, "B": _poller, "Q1": _quitter, "Q2": _quitter}
    for name, actor in {**actors, "J1": _janitor, "R1": _redriver}.items():
        process = world.process(name)
        process.spawn(act(stage, process, actor, SETTINGS))
    # A process that settles what cannot be carried out retries until its patience ends, and does not poll meanwhile.
    stage.truth.judge(Bounds(POLL + PATIENCE + (UNTIL_PACKS_ARE_TAKEN if stage.has_packs else 0.0)))
    await world.until_idle(at_most=LASTS + AND_THEN + 60.0)
    stage.truth.judge_no_more()
    for (kind, key), times in world.bucket.sticky.told.items():
        if times > TRIED_AT_FIRST + world.loop.now / TRIED_EVERY:
            stage.history.broken.append(f"one object was tried all the time: {times} times {kind} {key}")
    await quiet(stage)
    broken = await afterwards(stage, UNTIL_ALL_IS_TAKEN if stage.has_packs else POLL_AFTERWARDS)
    return broken + _waits_with_another(stage)


def _plant_newer(stage: Stage) -> None:
    one = stage.world.process("P0").clock.uuid()
    key = units.key_of(TOPIC, units.name_at(EPOCH - 9, one))
    stage.world.bucket.plant(key, Envelope(id=one, topic=TOPIC, payload={}).model_copy(update=LATER).encode())
    stage.exempt.add(one)
    _never_bury(stage, one)


def _plant_newer_pack(stage: PackStage) -> None:
    """Leave a pack of which one message can only be read by a later version."""
    count = stage.chance.randint(2, max(PACKS))
    newer = stage.chance.randrange(count)
    stage.history.published.update(plant(stage, count, newer=(newer,)))
    one = next(entry for entry in stage.entries if entry.endswith(f"#{newer}"))
    stage.exempt.add(object_of(one))
    stage.truth.never[one] = NEVER


def _never_bury(stage: Stage, unit: str) -> None:
    """Let it break a promise if what cannot be read is buried: a single message, or each one of a pack."""
    uuid = layout.uuid_of(unit)
    of_pack = [entry for entry in stage.ids if object_of(entry) == uuid] if isinstance(stage, PackStage) else []
    stage.truth.never.update(dict.fromkeys([uuid, *of_pack], NEVER))


def _waits_with_another(stage: Stage) -> list[str]:
    """Return the messages that wait although only another one of their pack cannot be read."""
    if not isinstance(stage, PackStage):
        return []
    packs_with_newer = {object_of(one) for one in stage.truth.never if one in stage.entries} - set(stage.truth.never)
    return [
        f"waits for ever: {name}, with another one of its pack"
        for name, entry in stage.entries.items()
        if entry.pack in packs_with_newer and not entry.is_finished and name not in stage.truth.never
    ]


async def _supplier(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Publish a few messages every few seconds."""
    packed = stage.world.stream(f"packs {process.name}")
    for _ in range(5):
        count = chance.choice((1, 2, 4))
        if stage.has_packs and packed.random() < 0.7:
            await publish_some(stage, queue, packed.choice(PACKS), packed=True)
        else:
            await publish_some(stage, queue, count, packed=False)
        await process.clock.sleep(chance.uniform(0, 12))


async def _poller(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Take what there is, and settle it in all the ways there are; nothing that fails is to fail the others."""
    loop = stage.world.loop
    call_takes = CALL_TAKES if stage.world.bucket.conditional else CALL_TAKES + SLEEPS_TAKE
    while loop.now < LASTS or (_is_there_any(stage) and loop.now < LASTS + AND_THEN):
        started = loop.now
        try:
            claim = await queue.claim(TOPIC, process.name, max_messages=10, ttl=20.0)
        except TROUBLE as error:
            stage.history.broken.append(f"one object failed a claim: {type(error).__name__} {error}")
            await process.clock.sleep(POLL)
            continue
        if loop.now - started > call_takes:
            stage.history.broken.append(f"one object delayed a claim by {loop.now - started:.1f} seconds")
        if claim:
            stage.believe(process, claim)
            stage.stops(process, claim)
            with suppress(*TROUBLE):
                await _dispatch(stage, queue, claim, chance)
            if stage.has_packs:
                continue  # a claim of packs may be small, and others wait until it is settled
        await process.clock.sleep(chance.uniform(1.0, POLL))


async def _dispatch(stage: Stage, queue: PawnQueue, claim: Claim, chance: random.Random) -> None:
    """Settle one by one, in different ways."""
    early = stage.world.loop.now < LASTS / 2
    ways: dict[str, list[str]] = {"ack": [], "bury": [], "give back": []}
    for one in claim.ids:
        ways[chance.choices(tuple(ways), (5, 3, 2 if early else 0))[0]].append(one)
    if ways["ack"]:
        note(stage, claim, await ack(stage, queue, claim, ways["ack"]))
    if ways["bury"]:
        note(stage, claim, await settlement_of(queue.nack(claim, ways["bury"], reason="drawn")))
    if ways["give back"]:
        note(
            stage,
            claim,
            await settlement_of(queue.nack(claim, ways["give back"], requeue=True, delay=chance.choice((0, 5)))),
        )


async def _quitter(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Die with a claim that others have to look at, and whose decisions others have to carry out."""
    while stage.world.loop.now < LASTS / 2:
        with suppress(*TROUBLE):
            claim = await queue.claim(TOPIC, process.name, max_messages=4, ttl=8.0)
            if claim:
                stage.believe(process, claim)
                stage.stops(process, claim)
                process.kill_at_request(chance.randint(1, 8), sent=chance.random() < 0.5)
                await _dispatch(stage, queue, claim, chance)
        await process.clock.sleep(chance.uniform(0, 2))


async def _redriver(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Give dead letters back, while there is time to see what becomes of them."""
    while stage.world.loop.now < LASTS / 2:
        await process.clock.sleep(chance.uniform(8, 25))
        with suppress(*TROUBLE):
            await queue.redrive(TOPIC)


async def _janitor(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Sweep: what cannot be read or removed is in the report, and fails no sweep."""
    loop = stage.world.loop
    while loop.now < LASTS:
        await process.clock.sleep(chance.uniform(5, 30))
        started = loop.now
        try:
            await sweep(queue, TOPIC)
        except StoreError as error:
            stage.history.broken.append(f"one object failed a sweep: {type(error).__name__} {error}")
        if loop.now - started > SWEEP_TAKES:
            stage.history.broken.append(f"one object delayed a sweep by {loop.now - started:.1f} seconds")


def _is_there_any(stage: Stage) -> bool:
    below = [key for folder in (units.folder, units.packs_folder) for key in stage.world.bucket.below(folder(TOPIC))]
    return any(not any(unit in key for unit in stage.exempt) for key in below)

"""Play one world: good messages among forged objects, and all that the queue can be asked to do, in any order.

Broken is a world in which anything but an error of ours comes out, which does not end, in which a good message is not
delivered and settled, or in which a forged object reaches what it has nothing to do with. Where the forger has only a
publisher's rights, a good message is also delivered to one consumer at a time, and never again once it is settled.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pawnqueue import Claim, ClaimReference, CompatibilityError, LeaseLostError, PawnQueueError
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain.bounds import MOST_COUNT
from pawnqueue.domain.claim_record import ClaimRecord, Decision
from pawnqueue.domain.lease import Lease
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.domain.records import BucketRecord
from tests.pawnqueue.hostile.forging import CLAIM_IDS, OWNER, SECRET, TOPIC, VICTIM, WRITE_IDS, Forger, Rights
from tests.pawnqueue.hostile.judging import Judge, is_good
from tests.pawnqueue.virtual import World, numbered

#: Most worlds have a few hundred requests. One whose packs have seven hundred bad messages, each of which is buried,
#: redriven and buried again with some thirty requests, was seen to end after 20,211. One that makes more does not end.
MOST_REQUESTS: Final = 60_000
MOST_SLEEPS: Final = 20_000
STEPS: Final = 14
#: In the end consumers poll, a minute apart, and have all good messages before this many polls have found nothing.
#: Polls that find something do not count: a pack whose lease says that its next delivery is the last is handed out
#: message by message, and nothing beside it.
ROUNDS: Final = 40
#: The topics of the other worlds never had packs.
SHARE_WITH_PACKS: Final = 0.8
SHARE_OF_THEFTS: Final = 0.3
_RIGHTS: Final[tuple[Rights, ...]] = ("publisher", "consumer")
_STRATEGIES: Final = ("conditional_write", "csprng_verify")


class Endless(BaseException):
    """The world does not come to its end. Nothing in the engine catches that."""


@dataclass
class Story:
    """What happened in a world."""

    seed: int
    broken: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    requests: int = 0

    def note(self, event: str) -> None:
        """Add what happened."""
        self.events.append(event[:300])

    def breaks(self, what: str) -> None:
        """Add what must not happen."""
        self.broken.append(what)
        self.note(f"BROKEN: {what}")


def play_quietly(seed: int, rights: Rights | None = None) -> Story:
    """Play the world of a seed without its events. A pool's processes find it here, and nothing of ``__main__``."""
    story = play(seed, rights)
    story.events.clear()
    return story


def play(seed: int, rights: Rights | None = None) -> Story:
    """Play the world of a seed.

    :param rights: of the forger; None: by the chance of the seed.
    """
    story = Story(seed)
    overheard = _Overheard(story)
    logger = logging.getLogger("pawnqueue")
    before = logger.level, logger.propagate
    logger.addHandler(overheard)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        asyncio.run(_Play(story, rights).run())
    except Endless as endless:
        story.breaks(f"it does not end: {endless}")
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a finding, with its seed
        story.breaks(f"it died of {type(error).__name__}: {error}"[:300])
    finally:
        logger.removeHandler(overheard)
        logger.setLevel(before[0])
        logger.propagate = before[1]
    return story


class _Overheard(logging.Handler):
    """The log is printable, short, and quotes no payload."""

    def __init__(self, story: Story) -> None:
        super().__init__()
        self._story = story

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if SECRET in message:
            self._story.breaks(f"the log quotes a payload: {message[:200]}")
        if not message.isprintable() or len(message) > 6000:
            self._story.breaks(f"a line of the log is not fit to be read: {message[:200]!r}")
        if record.exc_info:
            self._story.breaks(f"a traceback was logged: {message[:200]} {record.exc_info[1]!r}"[:400])


class _Play:
    def __init__(self, story: Story, rights: Rights | None) -> None:
        self.story = story
        self.chance = random.Random(story.seed)  # noqa: S311 - repeatable on purpose
        self.world = World()
        self.strategy = self.chance.choice(_STRATEGIES)
        drawn = self.chance.choice(_RIGHTS)
        self.rights: Rights = rights or drawn
        self.has_packs = self.chance.random() < SHARE_WITH_PACKS
        #: In some worlds a publisher uses uuids of others' packs: then these may wait, and no more than that.
        self.is_theft = self.rights == "publisher" and self.chance.random() < SHARE_OF_THEFTS
        self.judge = Judge(self._breaks_for_publishers)
        #: Each with the queue of the process that works on it.
        self.claims: list[tuple[Any, Claim]] = []
        self.published = 0

    async def run(self) -> None:
        world = self.world
        world.clock._random.seed(f"clock {self.story.seed}")  # whose uuids the forger does not guess
        world.bucket.plant(layout.BUCKET_RECORD, BucketRecord(strategy=self.strategy).encode())
        world.bucket.page_size = self.chance.choice((1000, 1000, 20, 3))
        world.topic(VICTIM)
        world.fill([{"id": world.clock.uuid(), "payload": {}}], topic=VICTIM)
        untouched = {key: it for key, it in world.bucket.snapshot().items() if key.startswith(f"{VICTIM}/")}
        if self.has_packs:
            world.topic(packs=True)
        forger = Forger(self.chance, world.clock.server(), self.rights)
        self.processes = [await world.process(packs={"min_messages": 4}) for _ in range(2)]
        self.process = self.processes[0]
        for process in self.processes:
            process.client.meanwhile = self._count
        await self._publish()
        self._plant(forger)
        for _ in range(STEPS):
            self.process = self.chance.choice(self.processes)
            await self._step(forger)
        await self._finish()
        after = {key: it for key, it in world.bucket.snapshot().items() if key.startswith(f"{VICTIM}/")}
        if after != untouched:
            self.story.breaks("another topic was touched")
        for process in self.processes:
            await self._guarded("close", process.queue.aclose)

    def _breaks_for_publishers(self, what: str) -> None:
        """A promise that only somebody with a consumer's rights can break is broken."""
        if self.rights == "publisher":
            self.story.breaks(what)

    def _count(self, _kind: str, key: str) -> None:
        self.story.requests += 1
        if self.story.requests > MOST_REQUESTS or len(self.world.clock.slept) > MOST_SLEEPS:
            raise Endless(key)
        if "/../" in key or key.startswith("../") or key.endswith("/..") or not key.isprintable():
            self.story.breaks(f"a request left its folder: {key!r}")

    def _plant(self, forger: Forger) -> None:
        if self.is_theft:
            forger.steal(self.world.bucket.below("packs/")[:2])
        for key, body in forger.objects():
            self.story.note(f"plant {key!r} {body[:200]!r}")
            self.world.bucket.plant(key, body)

    # --- what is done ---

    async def _step(self, forger: Forger) -> None:
        steps: dict[str, Callable[[], Awaitable[Any]]] = {
            "publish": self._publish,
            "claim": lambda: self._claim(None),
            "claims at once": self._claim_at_once,
            "claim by id": lambda: self._claim(self.chance.choice(CLAIM_IDS)),
            "settle": self._settle,
            "renew": self._renew,
            "leave": self._leave,
            "sweep": self._sweep,
            "look": self._look,
            "letters": self._letters,
            "redrive": lambda: self._guarded("redrive", lambda: self._queue.redrive(TOPIC)),
            "write": self._write,
            "abort": lambda: self._guarded("abort", lambda: self._queue.abort_write(TOPIC, "forged")),
            "people": self._people,
            "topics": self._topics,
            "claims": self._of_claims,
            "purge": lambda: self._guarded(
                "purge", lambda: self._queue.purge(TOPIC, messages=False, dead_letters=True)
            ),
            "rewrite": lambda: asyncio.sleep(0, self._rewrite()),
            "settle in part": self._settle_in_part,
            "later": lambda: self.world.later(self.chance.choice((1, 40, 700, 4000))),
            "more": lambda: asyncio.sleep(0, self._plant(forger)),
        }
        drawn = self.chance.choice(list(steps))
        self.story.note(drawn)
        await steps[drawn]()

    @property
    def _queue(self) -> Any:  # noqa: ANN401 - what comes back is looked at whatever it is
        return self.process.queue

    async def _guarded(self, what: str, work: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 - whatever it returns
        """Do something; of its errors, those of ours are answers."""
        try:
            found = await work()
        except PawnQueueError as error:
            self.story.note(f"{what}: {type(error).__name__}: {error}")
            if SECRET in str(error):
                self.story.breaks(f"{what}: an error quotes a payload: {error}"[:300])
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            self.story.breaks(f"{what}: {type(error).__name__}: {error}"[:400])
        else:
            self._check(what, found)
            return found
        return None

    def _check(self, what: str, found: Any) -> None:  # noqa: ANN401 - whatever was returned
        """What the queue returns can be written as strict JSON in UTF-8, and its deliveries fit Spark's integers."""
        for each in found if isinstance(found, list | Claim) else [found]:
            payload = getattr(each, "payload", None)
            deliveries = getattr(each, "deliveries", 0)
            try:
                json.dumps(payload, allow_nan=False, ensure_ascii=False).encode()
                str(each).encode()
                if hasattr(each, "__dataclass_fields__"):
                    str({name: getattr(each, name) for name in each.__dataclass_fields__}).encode()
            except (ValueError, RecursionError) as error:
                self.story.breaks(f"{what} returned what nobody can write: {type(error).__name__}")
            if not 0 <= deliveries <= MOST_COUNT:
                self.story.breaks(f"{what} returned {deliveries} deliveries")

    async def _publish(self) -> None:
        payloads = numbered(self.chance.choice((1, 2, 3, 5, 12, 30)), self.published)
        self.published += len(payloads)
        await self._queue.publish(TOPIC, payloads)

    async def _claim(self, claim_id: str | None, queue: Any = None) -> None:  # noqa: ANN401 - as below
        queue = queue or self._queue
        most = self.chance.choice((1, 3, 50))
        claim = await self._guarded(
            "claim", lambda: queue.claim(TOPIC, OWNER, max_messages=most, claim_id=claim_id, ttl=30)
        )
        if claim:
            self.judge.given(claim, most if claim_id is None else None)
            self.claims.append((queue, claim))

    async def _claim_at_once(self) -> None:
        await asyncio.gather(*(self._claim(None, process.queue) for process in self.processes))

    def _taken(self) -> tuple[Any, Claim] | None:
        """Take one of the claims that are worked on, with its queue."""
        return self.claims.pop(self.chance.randrange(len(self.claims))) if self.claims else None

    async def _settle(self) -> None:
        taken = self._taken()
        if taken is None:
            return
        queue, claim = taken
        match self.chance.randrange(3):
            case 0:
                await self._ack(queue, claim)
            case 1:
                await self._guarded("requeue", lambda: queue.requeue(claim, reason="again"))
                self.judge.ended(claim)
            case _:
                forged = [each for each in claim if "n" not in each.payload]
                if forged:
                    await self._guarded("bury", lambda: queue.bury(claim, forged, reason="odd \ud800"))
                await self._ack(queue, claim)

    async def _settle_in_part(self) -> None:
        """Ack some messages of a claim, and give back others; the rest stays with it."""
        taken = self._taken()
        if taken is None:
            return
        queue, claim = taken
        some = [each for each in claim if self.chance.random() < 0.5]
        given_back = [each for each in some if self.chance.random() < 0.3]
        acked = [each for each in some if each not in given_back]
        if given_back:
            await self._guarded("requeue", lambda: queue.requeue(claim, given_back, reason="again"))
            self.judge.ended(claim, given_back)
        if acked:
            await self._ack(queue, claim, acked)
        self.claims.append(taken)

    async def _ack(self, queue: Any, claim: Claim, some: Sequence[Any] | None = None) -> None:  # noqa: ANN401 - as below
        settled = await self._guarded("ack", lambda: self._acked(queue, claim, some))
        if settled is not None:
            done = set(settled.acked)
            self.judge.acked |= {each.payload["n"] for each in claim if each.id in done and is_good(each.payload)}
            self.judge.ended(claim, some)

    async def _acked(self, queue: Any, claim: Claim, some: Sequence[Any] | None) -> Any:  # noqa: ANN401 - a settlement
        """What was lost of a claim does not hide what was acked of it."""
        try:
            return await queue.ack(claim, some)
        except LeaseLostError as error:
            self.story.note(f"ack: {error}")
            return error.settlement

    def _rewrite(self) -> None:
        """Rewrite the record of a claim that is worked on, and leave its session in it: a member is gone, or lost."""
        if not self.claims or self.rights == "publisher":
            return
        _, claim = self.chance.choice(self.claims)
        key = layout.claim(TOPIC, claim.stem)
        try:
            record = ClaimRecord.decode(self.world.bucket.body(key), key)
        except (KeyError, CompatibilityError, UnreadableRecordError):
            return
        if record.state != "open" or not record.unsettled:
            return
        uuid = self.chance.choice(record.unsettled)
        if self.chance.random() < 0.5:
            changed = {"members": {each: member for each, member in record.members.items() if each != uuid}}
        else:
            changed = {"settled": {**record.settled, uuid: Decision(how="released", by="other")}}
        self.world.bucket.plant(key, record.model_copy(update={**changed, "nonce": "rewritten"}).encode())

    async def _renew(self) -> None:
        for queue, claim in self.claims:
            await self._guarded("renew", lambda queue=queue, claim=claim: queue.renew(claim))  # type: ignore[misc]

    async def _leave(self) -> None:
        taken = self._taken()
        if taken is not None:
            queue, claim = taken
            reference = await self._guarded("leave", lambda: queue.leave(claim))
            self.judge.ended(claim)
            if reference is not None:
                again = await self._guarded("attach", lambda: self._queue.attach(reference))
                if again:
                    self.judge.given(again)
                    self.claims.append((self._queue, again))

    async def _sweep(self) -> None:
        dry_run = self.chance.random() < 0.2
        verdict = self.chance.choice((None, "going", "ended"))

        async def ask(_claim: object) -> Any:  # noqa: ANN401 - a verdict
            return verdict

        report = await self._guarded("sweep", lambda: self._queue.sweep(TOPIC, dry_run=dry_run, ask=ask))
        if report is not None and report.defects:
            self.story.breaks(f"sweep: {report.failures}"[:300])
        if report is not None and SECRET in str(asdict(report)):
            self.story.breaks("sweep: the report quotes a payload")

    async def _look(self) -> None:
        queue = self._queue
        await self._guarded("stats", lambda: queue.stats(TOPIC))
        await self._guarded("backlog", lambda: queue.backlog(TOPIC, claims=True))
        await self._guarded("peek", lambda: queue.peek(TOPIC, 50))
        for key in [*self.world.bucket.below("messages/")[:3], *self.world.bucket.below("packs/")[:3]]:
            parsed = units.parse(key)
            if parsed is not None:
                await self._guarded("find", lambda parsed=parsed: queue.find(TOPIC, parsed.id))  # type: ignore[misc]
        for dead in (False, True):
            portions = await self._guarded("portions", lambda dead=dead: queue.portions(TOPIC, dead=dead))  # type: ignore[misc]
            for portion in portions or []:
                await self._guarded("read", lambda portion=portion: queue.read(portion))  # type: ignore[misc]

    async def _letters(self) -> None:
        page = await self._guarded("dead letters", lambda: self._queue.dead_letters(TOPIC))
        for letter in page or ():
            told = f"{letter.reason}{letter.error}{letter.fault}{letter.given_reason}{letter.given_error}"
            if SECRET in told:
                self.story.breaks(f"a dead letter's reason quotes its payload: {told[:200]}")
            self._check("dead letters", letter)
            if letter.message is not None:
                self.judge.buried(letter.message.payload, letter.reason)
                self._check("dead letters", letter.message)

    async def _write(self) -> None:
        """Write a few rows, under an id that the forger may have guessed; where they were published, they are good."""
        queue, write_id = self._queue, self.chance.choice((*WRITE_IDS, f"own-{self.published}"))
        # Nobody knows whether rows under a guessed id are published.
        payloads = [{"row": 0}, {"row": 1}] if write_id in WRITE_IDS else numbered(2, self.published)
        staged = await self._guarded("stage", lambda: queue.stage(TOPIC, write_id, 0, payloads))
        if staged is None:
            return
        written = await self._guarded("commit", lambda: queue.commit_write(TOPIC, write_id, [staged], wait=100))
        if written is not None and not written.already and write_id not in WRITE_IDS:
            self.published += len(payloads)
        elif write_id not in WRITE_IDS:
            self.story.breaks("a good write was not committed")

    async def _purge(self) -> None:
        await self._guarded("purge", lambda: self._queue.purge(TOPIC, messages=False, dead_letters=True))

    async def _people(self) -> None:
        for call in (self._queue.list_consumers, self._queue.list_producers):
            await self._guarded("list people", call)
        await self._guarded("register", lambda: self._queue.register_consumer(OWNER))

    async def _topics(self) -> None:
        queue = self._queue
        topics = await self._guarded("list topics", queue.list_topics)
        for topic in topics or []:
            await self._guarded("topic", lambda topic=topic: queue.topic(topic))  # type: ignore[misc]
        await self._guarded("delete", lambda: queue.delete_topic("extra", force=True))
        await self._guarded("delete, dry", lambda: queue.delete_topic(TOPIC, dry_run=True))
        await self._guarded("purge, dry", lambda: queue.purge(TOPIC, dry_run=True))

    async def _of_claims(self) -> None:
        queue = self._queue
        await self._guarded("known claims", lambda: queue.known_claims(TOPIC, CLAIM_IDS))
        for claim_id in CLAIM_IDS:
            await self._guarded("last claim", lambda it=claim_id: queue.last_claim(TOPIC, it))  # type: ignore[misc]
            await self._guarded("release", lambda it=claim_id: queue.release(TOPIC, it, OWNER))  # type: ignore[misc]
        self.judge.end_all()
        for claim_id in CLAIM_IDS:
            reference = ClaimReference(TOPIC, claim_id, 0, "s")
            await self._guarded("messages", lambda it=reference: queue.messages(it))  # type: ignore[misc]
            await self._guarded("portions", lambda it=reference: queue.portions(it))  # type: ignore[misc]

    # --- the end ---

    def _remove_newer(self) -> None:
        """Remove what seems to be of a newer format: it holds what it is about until a newer version comes."""
        for folder, kind in (("claims/", ClaimRecord), ("leases/", Lease)):
            for name in self.world.bucket.below(folder):
                key = f"{TOPIC}/{folder}{name}"
                try:
                    kind.decode(self.world.bucket.body(key), key)
                except CompatibilityError:
                    self.world.bucket.remove(key)
                except UnreadableRecordError:
                    pass

    async def _finish(self) -> None:
        """Poll until every good message was delivered and acked."""
        self.claims.clear()
        self._remove_newer()
        polls = in_vain = 0
        while in_vain < ROUNDS:
            await self.world.later(60)
            if polls % 3 == 1:
                await self._sweep()
            await self._guarded("redrive", lambda: self._queue.redrive(TOPIC))
            self.process = self.processes[polls % 2]
            polls += 1
            most = self.chance.choice((7, 300, 300))
            claim = await self._guarded("claim", lambda: self._queue.claim(TOPIC, "last", max_messages=most))  # noqa: B023
            if claim:
                self.judge.given(claim, most)
                await self._ack(self._queue, claim)
            else:
                in_vain += 1
            if self.judge.acked >= set(range(self.published)):
                return
        if self.is_theft:
            return
        missing = sorted(set(range(self.published)) - self.judge.acked)
        self.story.breaks(f"good messages {missing} of {self.published} were not delivered and settled")

"""``csprng_verify``: registers on a store without conditional writes, where the last write wins and is read at once.

A compare-and-set has five steps, and a batch takes them together (each look is one LIST, each sleep is slept once):

1. Look whether the version is the expected one.
2. Write a body with a nonce of 256 bits.
3. Sleep for a random time.
4. See that our body is still stored, several times.
5. Sleep, and see it once more.

⚑ §6, the assumption: *no PUT of a register lands later than the shortest verification (S) after the look on which it
rests*, whether its writer is killed, frozen, cancelled or without an answer. The pauses have to be long enough for the
store. For PUTs that are answered this is measured. Why that is enough:

1. *Of the writers that expect one version, at most one wins.* Let w land at p. Each other writer that expects the same
   version has looked before p, so its PUT lands before p + S or never. The last look of w's verification is later than
   p + S, so it sees each PUT that landed after w. Only the last of them to land can have won.
2. *What was won stays until a writer changes it that has seen it.* The first PUT to land after w lands after that last
   look, so later than p + S. It rests on a look later than p, which saw w.
3. *What has been stored for S is as firm*, whether its writer has finished, has died, or knows the outcome. A reader
   that saw w, and saw it again S later (or knows that w is older than S), has seen what w's last look sees. Before
   that, no reader may rely on w: a writer that has not seen w may still land on top of it, and win. So a reader that
   decides something else by a register (that a claim was fenced, that a lease names a claim) reads it by
   :meth:`CsprngVerify.read` only.

DELETEs are not part of this: what is deleted was settled, whenever the request lands.

A PUT that lands later than S overwrites what another writer has won and does not look at again. If the late PUT was
answered, its own writer does not trust it: the key is looked at again before a PUT that would be late, and a PUT that
was late is *unknown*. The other writer does not learn of it. So a message can be delivered twice, and none is lost.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pawnqueue.domain.identifiers import Version
from pawnqueue.domain.record import nonce_of
from pawnqueue.errors import ConfigError, StoreError
from pawnqueue.events import logger_of
from pawnqueue.registers.one_object import OneObjectEach, check_size, stored
from pawnqueue.registers.strategy import FormField, Step, Strategy
from pawnqueue.runtime.cancellation import finish_despite_cancellation
from pawnqueue.runtime.clock import Clock
from pawnqueue.runtime.concurrency import all_of, for_each
from pawnqueue.stores.port import NO_VERSION, Done, Expect, ObjectInfo, Outcome, Refusal, Refused, StoredObject, Unknown
from pawnqueue.stores.server_time import MAX_DRIFT

if TYPE_CHECKING:
    from pawnqueue.domain.records import BucketRecord
    from pawnqueue.settings import Settings
    from pawnqueue.settings.sections import CsprngVerifySettings
    from pawnqueue.stores.retry import ResilientStore

logger = logger_of("store")

#: From this number of keys in one folder on, the folder is listed. Fewer keys get a HEAD each.
MIN_KEYS_FOR_A_LIST = 8
#: A PUT is begun within this part of the shortest verification after its look. Later, its key is looked at again.
BEGIN_WITHIN = 0.5
#: How many times as long as a write the shortest verification should take.
ROOM = 2.0
#: How often a register that keeps changing is read.
MAX_READS = 20
#: How far the clocks of one store's servers may be apart.
MAX_SERVER_CLOCK_SKEW_SECONDS = 1.0
#: An unanswered PUT has landed, or never will, after this many shortest verifications since its look.
SETTLED_AFTER = 1.0
#: How long the keys of one batch wait, all together, for those that the store does not show.
SHARED_PATIENCE_SECONDS = 3.0

_REFUSED = Refused(Refusal.CONDITION)


@dataclass(slots=True)
class _Write:
    """One step, and what is known of its write."""

    step: Step
    nonce: str
    body: bytes
    looked: float = 0.0
    version: Version = NO_VERSION
    repeated: bool = False  # it was sent more than once, or its answer was missed
    outcome: Outcome | None = None  # None: still in the race


@dataclass(slots=True)
class _Seen:
    """One look at several keys."""

    at: float
    """When the look began."""

    versions: dict[str, str] = field(default_factory=dict)
    """By key, the version of what is stored."""

    faults: dict[str, StoreError] = field(default_factory=dict)
    """By key, why the store does not show it."""


def shortest_verification(settings: CsprngVerifySettings) -> float:
    """Return how long the shortest verification takes, in seconds, by its sleeps alone: a PUT has to be faster."""
    return (2 * settings.jitter_min_ms + settings.verify_retries * settings.verify_retry_delay_ms) / 1000


def advice(look_to_answer: float, settings: CsprngVerifySettings) -> str:
    """Say whether the pauses are long enough for a store with this time from look to answer, or which would be."""
    shortest = shortest_verification(settings)
    wanted = look_to_answer * ROOM
    measured = f"from look to answer a write took up to {look_to_answer * 1000:.0f} ms"
    if wanted <= shortest:
        return f"{measured}, and the shortest verification takes {shortest * 1000:.0f} ms: the pauses are long enough."
    longer = math.ceil((wanted - settings.verify_retries * settings.verify_retry_delay_ms / 1000) / 2 * 100) * 10
    return (
        f"{measured}, and the shortest verification takes {shortest * 1000:.0f} ms: raise "
        f"concurrency.csprng_verify.jitter_min_ms to {longer} and jitter_max_ms to "
        f"{max(longer * 4, settings.jitter_max_ms)}, in every process of the bucket."
    )


@dataclass(slots=True)
class _Learned:
    """What this process has learned of the store, through whichever view of it: its time, and that it is slow."""

    warned: bool = False
    ahead: float = -math.inf  # server time less elapsed time was at least this …
    told_at: float = 0.0  # … then

    def tell(self, info: ObjectInfo, now: float) -> None:
        """Learn from an object that was seen just now: the store's time is not before its Last-Modified."""
        self.ahead = max(info.last_modified.timestamp() - now, self._ahead(now))
        self.told_at = now

    def age(self, info: ObjectInfo, now: float) -> float:
        """Return for how long an object has stood there at least, as far as is known; it was seen just now."""
        self.tell(info, now)
        # Last-Modified is in whole seconds; and the store may have several clocks.
        return now + self._ahead(now) - info.last_modified.timestamp() - 1 - MAX_SERVER_CLOCK_SKEW_SECONDS

    def _ahead(self, now: float) -> float:
        return self.ahead - MAX_DRIFT * (now - self.told_at)


class CsprngVerify(OneObjectEach):
    """See :class:`~.strategy.Registers`.

    :param at_once: how many requests one call may have under way.
    :param learned: what is known of the store already.
    """

    def __init__(
        self,
        store: ResilientStore,
        clock: Clock,
        settings: CsprngVerifySettings,
        *,
        at_once: int,
        learned: _Learned | None = None,
    ) -> None:
        super().__init__(store)
        self._clock = clock
        self._least = settings.jitter_min_ms / 1000
        self._most = settings.jitter_max_ms / 1000
        self._retries = settings.verify_retries
        self._pause = settings.verify_retry_delay_ms / 1000
        #: How long the shortest verification takes, by its sleeps alone: what a PUT must be faster than.
        self.shortest = shortest_verification(settings)
        self._settings = settings
        self._learned = learned or _Learned()
        self._at_once = at_once

    @property
    def is_certain(self) -> bool:
        """See :class:`~.strategy.Registers`: only while no PUT lands late."""
        return False

    async def read(self, key: str) -> StoredObject | None:
        """See :class:`~.strategy.Registers`.

        ⚑ §6: a writer that has not seen what was written just now may overwrite it, and win. What has been stored for
        as long as the shortest verification takes cannot be overwritten so.
        """
        before = ""
        for _ in range(MAX_READS):
            found = await stored(self._store, key)
            if found is None or found.info.version == before:
                return found
            if self._learned.age(found.info, self._clock.elapsed()) >= self.shortest:
                return found
            before = found.info.version
            await self._clock.sleep(self.shortest)
        raise StoreError(f"{key} keeps changing: try again.", transient=True, operation="compare-and-set")

    async def write(self, steps: Sequence[Step]) -> list[Outcome]:
        """See :class:`~.strategy.Registers`."""
        writes = []
        for step in steps:
            nonce = self._clock.nonce()
            writes.append(_Write(step, nonce, step.record.stamped(nonce).encode()))
        await self._look(writes)
        await for_each(self._put_or_tell, _racing(writes), at_once=self._at_once)
        await self._verify(writes)
        return [write.outcome or Done(write.version, repeated=write.repeated) for write in writes]

    def through(self, store: ResilientStore) -> CsprngVerify:
        """See :class:`~.strategy.Registers`."""
        return CsprngVerify(store, self._clock, self._settings, at_once=self._at_once, learned=self._learned)

    async def _look(self, writes: Sequence[_Write]) -> None:
        """Refuse each step whose register does not have the expected version, before anything is written."""
        seen = await self._see(writes)
        for write in _racing(writes):
            write.looked = seen.at
            if seen.versions.get(write.step.key) != _expected(write.step):
                write.outcome = _REFUSED

    async def _put_or_tell(self, write: _Write) -> None:
        """Send one. An error of the store at its key (a denied key, say) concerns no other step."""
        try:
            await self._put(write)
        except StoreError as error:
            write.outcome = Unknown(error)

    async def _put(self, write: _Write) -> None:
        """Send one, and again while it is not answered, until the retry budget is used up.

        ⚑ §6: each attempt is a write of its own, with a look of its own. It is sent only when the attempt before it can
        no longer land: the shortest verification has passed since the look of that attempt.
        """
        check_size(write.step.key, write.body)
        backoff = self._store.backoff()
        unanswered: Unknown | None = None
        while True:
            # ⚑ §6: a PUT that was queued behind many others rests on an old look.
            if self._clock.elapsed() - write.looked > self.shortest * BEGIN_WITHIN:
                write.looked = self._clock.elapsed()
                found = await self._store.head(write.step.key)
                if (found.version if found else None) != _expected(write.step):
                    write.outcome = unanswered or _REFUSED  # an earlier attempt of ours may be what is stored
                    return
            try:
                # ⚑ §6: a request whose connection is cut may land when no other writer expects it any more. One that
                # was answered has landed.
                outcome = await finish_despite_cancellation(
                    lambda: self._store.put(write.step.key, write.body), max_starts=1
                )
            except asyncio.CancelledError:
                self._measure(write)
                raise
            if not isinstance(outcome, Unknown) or await self._has_landed(write):
                break
            unanswered = outcome
            if not await backoff.pause(outcome.fault):
                write.outcome = outcome
                return
            await self._clock.sleep(max(0.0, write.looked + self.shortest * SETTLED_AFTER - self._clock.elapsed()))
        write.repeated = unanswered is not None or isinstance(outcome, Unknown)
        if isinstance(outcome, Done):
            write.version = outcome.version
        elif isinstance(outcome, Refused):
            write.outcome = outcome
        if self._measure(write) >= self.shortest and write.outcome is None:
            # ⚑ §6: it took longer than another writer's verification, which may have won what this PUT overwrote.
            write.outcome = Unknown(_late_put_error(write.step, self.shortest))

    def _measure(self, write: _Write) -> float:
        """Return how long it took from the look until now; warn, once, if that is too long."""
        took = self._clock.elapsed() - write.looked
        if took * ROOM > self.shortest and not self._learned.warned:
            self._learned.warned = True
            logger.warning("csprng_verify: %s", advice(took, self._settings))
        return took

    async def _has_landed(self, write: _Write) -> bool:
        """Say whether a PUT without an answer has landed, and if so, remember its version."""
        try:
            found = await stored(self._store, write.step.key)
        except StoreError as error:
            if not error.transient:
                raise
            return False
        if found is None or nonce_of(found.body, write.step.key) != write.nonce:
            return False
        write.version = found.info.version
        return True

    async def _verify(self, writes: Sequence[_Write]) -> None:
        """Sleep and look, until the PUTs of all concurrent writers have landed and have been seen."""
        pauses = [self._clock.uniform(self._least, self._most), *[self._pause] * self._retries, self._least]
        for pause in pauses:
            racing = _racing(writes)
            if not racing:
                return
            await self._clock.sleep(pause)
            seen = await self._see(racing)
            for write in _racing(racing):
                if seen.versions.get(write.step.key) != write.version:
                    write.outcome = _REFUSED

    async def _see(self, writes: Sequence[_Write]) -> _Seen:
        """Return the present versions of their keys: by a LIST of a folder with many of them, else by a HEAD each.

        ⚑ §5.6: for a key that the store does not show, the outcome of its write is unknown. The others go on: they
        wait for all such keys together no longer than ``SHARED_PATIENCE_SECONDS``.
        """
        seen = _Seen(self._clock.elapsed())
        by_folder: dict[str, list[str]] = defaultdict(list)
        for write in writes:
            by_folder[write.step.key.rpartition("/")[0] + "/"].append(write.step.key)
        single = [key for several in by_folder.values() if len(several) < MIN_KEYS_FOR_A_LIST for key in several]
        listed = [
            self._list(folder, keys, seen) for folder, keys in by_folder.items() if len(keys) >= MIN_KEYS_FOR_A_LIST
        ]
        await all_of(self._heads(single, seen, alone=len(writes) == 1), *listed)
        for write in writes:
            fault = seen.faults.get(write.step.key)
            if fault is not None:
                write.outcome = Unknown(fault, unseen=True)
        return seen

    async def _heads(self, keys: Sequence[str], seen: _Seen, *, alone: bool = False) -> None:
        """Ask for each of these keys.

        :param alone: no other key waits for it, so the whole retry budget may be spent on it.
        """
        began = self._clock.elapsed()
        store = self._store if alone else self._store.with_budget(SHARED_PATIENCE_SECONDS, cut=True)
        hurried = self._store.with_budget(0.0, cut=True)

        async def head(key: str) -> None:
            spent = bool(seen.faults) and self._clock.elapsed() - began >= SHARED_PATIENCE_SECONDS
            try:
                found = await (hurried if spent else store).head(key)
            except StoreError as error:
                seen.faults[key] = error
                return
            if found is not None:
                self._learned.tell(found, self._clock.elapsed())
                seen.versions[key] = found.version

        await for_each(head, keys, at_once=self._at_once)

    async def _list(self, folder: str, keys: Sequence[str], seen: _Seen) -> None:
        wanted = set(keys)
        ghosts: list[str] = []
        try:
            async for page in self._store.pages(folder):
                for info in page:
                    if info.key not in wanted:
                        continue
                    if info.version == NO_VERSION:
                        # The listing may show an object that was deleted a while ago (rclone's does).
                        ghosts.append(info.key)
                    else:
                        self._learned.tell(info, self._clock.elapsed())
                        seen.versions[info.key] = info.version
        except StoreError as error:
            seen.faults.update(dict.fromkeys(wanted - seen.versions.keys(), error))
        else:
            await self._heads(ghosts, seen)


def _racing(writes: Sequence[_Write]) -> list[_Write]:
    return [write for write in writes if write.outcome is None]


def _expected(step: Step) -> str | None:
    return None if step.expect is Expect.NOTHING else step.expect


def _late_put_error(step: Step, limit: float) -> StoreError:
    return StoreError(
        f"Writing {step.key} took longer than {limit:.2f} seconds, so it proves nothing: raise "
        "concurrency.csprng_verify.jitter_min_ms, in every process of the bucket, or use a faster store.",
        transient=True,
        operation="compare-and-set",
    )


def _build(_: BucketRecord, store: ResilientStore, clock: Clock, settings: Settings) -> CsprngVerify:
    concurrency = settings.concurrency
    return CsprngVerify(store, clock, concurrency.csprng_verify, at_once=concurrency.max_in_flight)


def _check(settings: Settings) -> None:
    if not shortest_verification(settings.concurrency.csprng_verify):
        raise ConfigError(
            "concurrency.csprng_verify.jitter_min_ms and verify_retry_delay_ms are both 0: without pauses nothing "
            "is verified; use 100 and 150.",
            operation="open",
        )


STRATEGY = Strategy(
    "csprng_verify",
    _build,
    refusal=lambda _: "",  # what it needs is what the probe demands of any store: the last write wins and is read
    check=_check,
    advice=lambda look_to_answer, settings: advice(look_to_answer, settings.concurrency.csprng_verify),
    form=(
        FormField("jitter_min_ms", "Shortest jitter (ms)", "Only for csprng_verify: the shortest pause after a write."),
        FormField("jitter_max_ms", "Longest jitter (ms)", "Only for csprng_verify: the longest pause after a write."),
    ),
)

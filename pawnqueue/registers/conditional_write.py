"""``conditional_write``: registers on ``If-None-Match: *`` and ``If-Match``, where the probe saw both to be atomic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pawnqueue.domain.record import nonce_of
from pawnqueue.errors import CompatibilityError, StoreError
from pawnqueue.registers.one_object import OneObjectEach, check_size, stored
from pawnqueue.registers.strategy import Abilities, Step, Strategy
from pawnqueue.runtime.clock import Clock
from pawnqueue.runtime.concurrency import for_each
from pawnqueue.stores.port import Done, Expect, Expectation, Outcome, Refusal, Refused, StoredObject, Unknown

if TYPE_CHECKING:
    from pawnqueue.domain.records import BucketRecord
    from pawnqueue.settings import Settings
    from pawnqueue.stores.retry import ResilientStore


class ConditionalWrite(OneObjectEach):
    """See :class:`~.strategy.Registers`.

    :param unquoted: the store wants the ETag of ``If-Match`` without its quotes.
    :param conditional_deletes: the store keeps what a bulk DELETE with ETags does not expect.
    :param at_once: how many requests one call may have under way.
    """

    def __init__(
        self, store: ResilientStore, clock: Clock, *, unquoted: bool, at_once: int, conditional_deletes: bool = False
    ) -> None:
        super().__init__(store)
        self._conditional_deletes = conditional_deletes
        self._clock = clock
        self._unquoted = unquoted
        self._at_once = at_once

    @property
    def is_certain(self) -> bool:
        """See :class:`~.strategy.Registers`: the store refuses a writer that has not seen it."""
        return True

    async def read(self, key: str) -> StoredObject | None:
        """See :class:`~.strategy.Registers`: the store shows only what was written for good."""
        return await stored(self._store, key)

    async def write(self, steps: Sequence[Step]) -> list[Outcome]:
        """See :class:`~.strategy.Registers`."""
        return await for_each(self._take_or_tell, steps, at_once=self._at_once)

    async def _take_or_tell(self, step: Step) -> Outcome:
        """Take one step. An error of the store at its key (a denied key, say) concerns no other step."""
        try:
            return await self._take(step)
        except StoreError as error:
            return Unknown(error)

    def through(self, store: ResilientStore) -> ConditionalWrite:
        """See :class:`~.strategy.Registers`."""
        return ConditionalWrite(
            store,
            self._clock,
            unquoted=self._unquoted,
            at_once=self._at_once,
            conditional_deletes=self._conditional_deletes,
        )

    async def _take(self, step: Step) -> Outcome:
        nonce = self._clock.nonce()
        body = step.record.stamped(nonce).encode()
        check_size(step.key, body)
        backoff = self._store.backoff()
        in_doubt = False  # whether an earlier attempt of ours may have landed, or may still land
        while True:
            outcome = await self._store.put(step.key, body, expect=self._sent(step.expect))
            match outcome:
                case Done():
                    return Done(outcome.version, repeated=in_doubt)
                case Refused(Refusal.CONDITION) if not in_doubt:
                    return outcome
                case Refused(Refusal.UNSUPPORTED):
                    raise CompatibilityError(
                        f"The store does not implement conditional writes any more (at {step.key}), on which this "
                        "bucket's strategy rests: stop every process that uses the bucket before its store is changed.",
                        operation="compare-and-set",
                    )
                case Unknown() | Refused(Refusal.CONDITION):
                    # ⚑ §2: a refusal that follows an unknown attempt may be due to our own write. Unknown is never
                    # read as done or refused: look for our write id.
                    in_doubt = True
                    seen = await self._look(step, nonce)
                    if seen is not None:
                        return seen
                case Refused():
                    pass  # a conflict: another write is under way, and either may win
            if not await backoff.pause():
                if not in_doubt:
                    return outcome
                return outcome if isinstance(outcome, Unknown) else Unknown(_contended_error(step))

    async def _look(self, step: Step, nonce: str) -> Outcome | None:
        """Return what became of our write; None: the expected state is unchanged, so the write can be sent again."""
        try:
            found = await stored(self._store, step.key)
        except StoreError as error:
            if not error.transient:
                raise
            return Unknown(error)
        if found is None:
            return None if step.expect is Expect.NOTHING else Refused(Refusal.CONDITION)
        if nonce_of(found.body, step.key) == nonce:
            return Done(found.info.version, repeated=True)
        # Our attempts that are still under way will be refused: the version, or the absence, that they expect is gone.
        return None if found.info.version == step.expect else Refused(Refusal.CONDITION)

    def _sent(self, expect: Expectation) -> Expectation:
        return expect.strip('"') if self._unquoted and isinstance(expect, str) else expect


def _contended_error(step: Step) -> StoreError:
    return StoreError(
        f"Other writes of {step.key} kept getting in the way: try again.", transient=True, operation="compare-and-set"
    )


def _build(record: BucketRecord, store: ResilientStore, clock: Clock, settings: Settings) -> ConditionalWrite:
    at_once = settings.concurrency.max_in_flight
    return ConditionalWrite(
        store,
        clock,
        unquoted=record.unquoted_if_match,
        at_once=at_once,
        conditional_deletes=record.conditional_deletes,
    )


def _refusal(store: Abilities) -> str:
    return store.creates or store.updates


STRATEGY = Strategy("conditional_write", _build, _refusal)

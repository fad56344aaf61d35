"""``conditional_write``: registers on ``If-None-Match: *`` and ``If-Match``, where the probe saw both to be atomic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pawnqueue.domain.records import nonce_of
from pawnqueue.errors import CompatibilityError, StoreError
from pawnqueue.registers.one_object import OneObjectEach, check_size, stored
from pawnqueue.registers.strategy import Abilities, Step, Strategy
from pawnqueue.runtime.clock import Clock
from pawnqueue.runtime.concurrency import for_each
from pawnqueue.stores.port import (
    Done,
    Expect,
    Expectation,
    Outcome,
    Refusal,
    Refused,
    StoredObject,
    Unknown,
)

if TYPE_CHECKING:
    from pawnqueue.domain.records import BucketRecord
    from pawnqueue.settings import Settings
    from pawnqueue.stores.retry import ResilientStore


class ConditionalWrite(OneObjectEach):
    """See :class:`~.cas.Registers`.

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
        """See :class:`~.cas.Registers`: the store refuses whoever has not seen it."""
        return True

    async def read(self, key: str) -> StoredObject | None:
        """See :class:`~.cas.Registers`: what is there at all was written for good."""
        return await stored(self._store, key)

    async def write(self, steps: Sequence[Step]) -> list[Outcome]:
        """See :class:`~.cas.Registers`."""
        return await for_each(self._take_or_tell, steps, at_once=self._at_once)

    async def _take_or_tell(self, step: Step) -> Outcome:
        """Take one step; what the store will not have of it (a denied key, say) concerns no other step."""
        try:
            return await self._take(step)
        except StoreError as error:
            return Unknown(error)

    def through(self, store: ResilientStore) -> ConditionalWrite:
        """See :class:`~.cas.Registers`."""
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
        in_doubt = False  # an earlier attempt of ours may stand there, or may still land
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
                    # ⚑ §2: a refusal that follows an unknown attempt may be our own write. Unknown is never read as
                    # done or refused: look for our write id.
                    in_doubt = True
                    seen = await self._look(step, nonce)
                    if seen is not None:
                        return seen
                case Refused():  # a conflict: somebody writes at this moment, which says nothing of who will have it
                    pass
            if not await backoff.pause():
                if not in_doubt:
                    return outcome
                return outcome if isinstance(outcome, Unknown) else Unknown(_undecided(step))

    async def _look(self, step: Step, nonce: str) -> Outcome | None:
        """Say what became of our write, or None if it can still be sent again: the expected state is still there."""
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
        # A condition on a version that is gone, or on an absence that has ended, refuses whatever of ours is still
        # under way.
        return None if found.info.version == step.expect else Refused(Refusal.CONDITION)

    def _sent(self, expect: Expectation) -> Expectation:
        return expect.strip('"') if self._unquoted and isinstance(expect, str) else expect


def _undecided(step: Step) -> StoreError:
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

"""``chained_blocks``: a third strategy. A register is a chain of blocks below its key, created once each, read by LIST.

Of conditions it needs ``If-None-Match: *`` alone: nothing is ever replaced. The first block is ``{key}/0000000000``;
its ETag names the chain, and the n-th block behind it is ``{key}/{n}.{chain}``. The register holds what the last block
of the chain holds, so a version is a place in a chain. A writer that expects one creates the block behind it: of all
such writers, one can.

The creator of a block looks at the chain once more before it says so. If its first block is gone, the register was
deleted while the block was under way; if there is a later one, another writer has changed the register since, or the
block came so late that its place had been cleared. Then the register's content is not ours. A deletion removes the
first block
before all others, and with it the chain; a register that is created again is another chain.

The blocks before the last few are cleared as the chain grows. A block that lands when its chain is gone is nobody's: it
is listed as what it is, and removed with its folder.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from pawnqueue.domain.identifiers import Version
from pawnqueue.domain.record import Record, nonce_of
from pawnqueue.errors import StoreError
from pawnqueue.registers.one_object import stored
from pawnqueue.registers.strategy import Abilities, Registers, Step, Strategy
from pawnqueue.runtime.concurrency import for_each
from pawnqueue.stores.port import (
    Done,
    Expect,
    ObjectInfo,
    Outcome,
    Refusal,
    Refused,
    StoredObject,
    Unknown,
)

if TYPE_CHECKING:
    from pawnqueue.domain.records import BucketRecord
    from pawnqueue.runtime.clock import Clock
    from pawnqueue.settings import Settings
    from pawnqueue.stores.retry import ResilientStore

#: How many blocks behind the first one are kept, and from how many on the older ones are cleared.
KEPT = 4
MOST = 8
#: A register whose blocks are cleared while it is read is read so many times.
LOOKS = 20

_BLOCK = re.compile(r"(?P<key>.+)/(?P<place>[0-9]{10})(?:\.(?P<chain>[^/]+))?")
_REFUSED = Refused(Refusal.CONDITION)


@dataclass(frozen=True, slots=True)
class _Block:
    """One object of a register."""

    key: str
    place: int
    chain: str  # of the first one: its own ETag
    info: ObjectInfo

    @property
    def is_first(self) -> bool:
        return self.place == 0

    @property
    def as_register(self) -> ObjectInfo:
        """The version of the register with this content."""
        return ObjectInfo(self.key, self.info.size, _version(self.place, self.chain), self.info.last_modified)


@dataclass(slots=True)
class _Chain:
    """What is below one register's key: the blocks of its chain, in order, and what belongs to none."""

    blocks: list[_Block] = field(default_factory=list)
    strays: list[_Block] = field(default_factory=list)

    @property
    def last(self) -> _Block | None:
        return self.blocks[-1] if self.blocks else None


class ChainedBlocks:
    """See :class:`~pawnqueue.registers.strategy.Registers`.

    :param at_once: how many registers one call has under way.
    """

    def __init__(self, store: ResilientStore, clock: Clock, *, at_once: int) -> None:
        self._store = store
        self._clock = clock
        self._at_once = at_once

    @property
    def is_certain(self) -> bool:
        """See Registers: an existing block is never overwritten."""
        return True

    async def read(self, key: str) -> StoredObject | None:
        """See Registers: the last block, by a LIST and a GET."""
        for _ in range(LOOKS):
            last = (await self._chain(key)).last
            if last is None:
                return None
            found = await stored(self._store, last.info.key)
            if found is not None:
                return StoredObject(last.as_register, found.body)
            # The chain has grown meanwhile, and its older blocks were cleared, or it is gone.
        raise StoreError(f"{key} keeps changing: try again.", transient=True, operation="compare-and-set")

    async def look(self, key: str) -> StoredObject | None:
        """See Registers: an existing object stays."""
        return await self.read(key)

    async def head(self, key: str) -> ObjectInfo | None:
        """See Registers: one LIST."""
        last = (await self._chain(key)).last
        return last.as_register if last else None

    async def pages(self, folder: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo]]:
        """See Registers. Blocks of one register may be on two pages."""
        begun: list[ObjectInfo] = []  # blocks of the last register of the page before
        async with aclosing(self._store.pages(folder, start_after=start_after)) as pages:
            async for page in pages:
                whole = [list(group) for _, group in groupby([*begun, *page], _group)]
                begun = whole.pop()
                if shown := _shown(whole, start_after):
                    yield shown
        if begun and (shown := _shown([begun], start_after)):
            yield shown

    async def write(self, steps: Sequence[Step]) -> list[Outcome]:
        """See Registers."""
        return await for_each(self._take_or_tell, steps, at_once=self._at_once)

    async def overwrite(self, key: str, record: Record) -> Version:
        """See Registers: a block behind whatever is the last one."""
        backoff = self._store.backoff()
        while True:
            last = await self.head(key)
            outcome = await self._take(Step(key, record, last.version if last else Expect.NOTHING))
            if isinstance(outcome, Done):
                return outcome.version
            fault = outcome.fault if isinstance(outcome, Unknown) else StoreError(f"{key} keeps changing.")
            if not await backoff.pause():
                raise backoff.exceeded(fault) from None

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """See Registers: first all first blocks, in one request, which ends the chains; then what is left of them."""
        # A key may also be that of an object as it was listed: no register, or a block without its chain.
        owners = {one: key for key in keys for one in (_block_key(key, 0, ""), key)}
        failed: dict[str, StoreError] = {}
        for name, error in (await self._store.delete(list(owners))).items():
            failed[owners[name]] = error
        ended = [key for key in keys if key not in failed]
        left: dict[str, str] = {}
        for key, chain in zip(ended, await for_each(self._chain, ended, at_once=self._at_once), strict=True):
            left.update({stray.info.key: key for stray in chain.strays})
        for name, error in (await self._store.delete(list(left)) if left else {}).items():
            failed[left[name]] = error
        return failed

    async def delete_versions(self, versions: Mapping[str, Version]) -> Mapping[str, Refused | Unknown]:
        """See Registers: a chain is ended whatever it holds."""
        return {key: Unknown(error) for key, error in (await self.delete(list(versions))).items()}

    def through(self, store: ResilientStore) -> ChainedBlocks:
        """See Registers."""
        return ChainedBlocks(store, self._clock, at_once=self._at_once)

    async def _chain(self, key: str) -> _Chain:
        return _chain_of([info async for page in self._store.pages(f"{key}/") for info in page])

    async def _take_or_tell(self, step: Step) -> Outcome:
        try:
            return await self._take(step)
        except StoreError as error:
            return Unknown(error)

    async def _take(self, step: Step) -> Outcome:
        nonce = self._clock.nonce()
        body = step.record.stamped(nonce).encode()
        place, chain = _behind(step.expect)
        block = _block_key(step.key, place, chain)
        backoff = self._store.backoff()
        in_doubt = False
        while True:
            outcome = await self._store.put(block, body, expect=Expect.NOTHING)
            if isinstance(outcome, Refused) and outcome.why is Refusal.CONDITION and not in_doubt:
                return outcome
            if not isinstance(outcome, Done) and outcome != Refused(Refusal.CONFLICT):
                # It may have landed: a reader knows it by its write id.
                in_doubt = True
                found = await stored(self._store, block)
                if found is not None:
                    outcome = Done(found.info.version) if nonce_of(found.body, block) == nonce else _REFUSED
                    if outcome == _REFUSED:
                        return outcome
            if isinstance(outcome, Done):
                return await self._confirmed(step.key, place, chain or outcome.version.strip('"'), repeated=in_doubt)
            if not await backoff.pause():
                return outcome if isinstance(outcome, Unknown) or not in_doubt else Unknown(_undecided(step))

    async def _confirmed(self, key: str, place: int, chain: str, *, repeated: bool) -> Outcome:
        """Say what became of a block that was created."""
        done = Done(_version(place, chain), repeated=repeated)
        if place == 0:
            return done
        standing = await self._chain(key)
        if not standing.blocks or standing.blocks[0].chain != chain:
            await self._store.delete([_block_key(key, place, chain)])
            return _REFUSED
        if standing.blocks[-1].place != place:
            return _REFUSED
        if len(standing.blocks) > MOST:
            # A process that is reading one of them looks again. Blocks that stay are cleared with the next ones.
            await self._store.delete([block.info.key for block in standing.blocks[1:-KEPT]])
        return done


def _block_key(key: str, place: int, chain: str) -> str:
    return f"{key}/{place:010d}.{chain}" if place else f"{key}/{place:010d}"


def _version(place: int, chain: str) -> Version:
    return Version(f'"{place:010d}.{chain}"')


def _behind(expect: Expect | str) -> tuple[int, str]:
    """Return place and chain of the block behind a version; the chain of a first one is not known yet."""
    if isinstance(expect, Expect):
        return 0, ""
    place, _, chain = expect.strip('"').partition(".")
    return int(place) + 1, chain


def _block(info: ObjectInfo) -> _Block | None:
    match = _BLOCK.fullmatch(info.key)
    if match is None or (int(match["place"]) == 0) != (match["chain"] is None):
        return None
    return _Block(match["key"], int(match["place"]), match["chain"] or info.version.strip('"'), info)


def _group(info: ObjectInfo) -> tuple[bool, str]:
    """Return what distinguishes the blocks of one register in a listing."""
    block = _block(info)
    return (False, info.key) if block is None else (True, block.key)


def _chain_of(infos: Iterable[ObjectInfo]) -> _Chain:
    """Sort what is below one key, which was listed in the order of places."""
    found = _Chain()
    for block in filter(None, map(_block, infos)):
        is_next = block.is_first or (bool(found.blocks) and found.blocks[0].chain == block.chain)
        (found.blocks if is_next else found.strays).append(block)
    return found


def _shown(groups: Iterable[Sequence[ObjectInfo]], start_after: str) -> list[ObjectInfo]:
    """Return registers as such, and the rest as it is."""
    shown: list[ObjectInfo] = []
    for infos in groups:
        if _block(infos[0]) is None:
            shown += infos
            continue
        chain = _chain_of(infos)
        if chain.last is not None and chain.last.key > start_after:
            shown.append(chain.last.as_register)
        elif chain.last is None:
            shown += [stray.info for stray in chain.strays]
    return shown


def _undecided(step: Step) -> StoreError:
    return StoreError(f"It was not found out who has {step.key}.", transient=True, operation="compare-and-set")


def _build(_: BucketRecord, store: ResilientStore, clock: Clock, settings: Settings) -> Registers:
    return ChainedBlocks(store, clock, at_once=settings.concurrency.max_in_flight)


def _refusal(store: Abilities) -> str:
    return store.creates


STRATEGY = Strategy("chained_blocks", _build, _refusal, is_one_object=False)

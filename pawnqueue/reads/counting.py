"""Count what is in a topic, by its listings: all of it, or what could be claimed."""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pawnqueue.catalog import letters, units
from pawnqueue.catalog.message_states import State, states_of
from pawnqueue.claims.recorded import listed_claims
from pawnqueue.domain import layout
from pawnqueue.runtime.concurrency import all_of

if TYPE_CHECKING:
    from pawnqueue.catalog.units import UnitPage
    from pawnqueue.context import Context
    from pawnqueue.stores.port import ObjectInfo


@dataclass(frozen=True, slots=True)
class Stats:
    """A topic in numbers, from LISTs alone."""

    pending: int
    """Messages that could be claimed now."""
    in_flight: int
    """Messages that claims have."""
    delayed: int
    """Messages that were given back with a delay which is not over."""
    dead: int
    """Dead letters."""
    oldest_age_seconds: float | None
    """How long ago the oldest message that is in the topic was published; None where there is none."""

    strangers: int = 0
    """Objects that are none of ours; they are left alone."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """How much there is to be claimed in a topic."""

    pending: int
    """Messages that are neither in flight nor delayed."""

    oldest_age_seconds: float | None
    """How long ago, by the store's time, the oldest of them was published; None where there is none."""

    claims: Mapping[str, bool] = field(default_factory=dict, hash=False)
    """The names of all claims that have a record, ``{claim_id}.{generation}``, and whether each holds messages, as far
    as a LIST tells; empty unless it was asked for."""


async def stats(context: Context, topic: str) -> Stats:
    """Count, by one LIST for each folder and page.

    What a LIST cannot tell is read, a bounded number of objects: once leases look overdue, the records of claims that
    may have been renewed, or may have settled what could not be carried out; and leases whose delay may be over.
    """
    now = await context.now()
    store = context.store
    messages, leases, dead = await all_of(
        units.listed(store, topic),
        _all(context.registers.pages(layout.leases(topic))),
        letters.listed(store, topic),
    )
    tally = _Tally(leases)
    tally.add(messages)
    await tally.judge(context, topic, now)
    return Stats(
        pending=tally.counts["pending"],
        in_flight=tally.counts["in_flight"],
        delayed=tally.counts["delayed"],
        dead=len(dead.letters),
        oldest_age_seconds=_age(tally.oldest, now),
        strangers=tally.strangers + len(dead.strangers),
    )


async def backlog(context: Context, topic: str, at_least: float = math.inf, *, claims: bool = False) -> Backlog:
    """Count what could be claimed: one LIST where there is nothing, else one for each page of messages and of leases.

    What may be made of a message that has a lease is found out as in :func:`stats`, unless there is enough without it.

    :param at_least: stop listing pages of messages once this many were seen.
    :param claims: list the claims too, if there is anything to be claimed.
    """
    counted = await _backlog(context, topic, at_least)
    if not (claims and counted.pending):
        return counted
    return replace(counted, claims=await listed_claims(context, topic))


async def _backlog(context: Context, topic: str, at_least: float) -> Backlog:
    tally: _Tally | None = None
    async for page in units.pages(context.store, topic):
        if tally is None:
            tally = _Tally(await _all(context.registers.pages(layout.leases(topic))))
        tally.add(page)
        if tally.counts["pending"] >= at_least:
            break
    if tally is None:
        return Backlog(0, None)
    now = await context.now()
    if tally.counts["pending"] < at_least:
        await tally.judge(context, topic, now)
    return Backlog(tally.counts["pending"], _age(tally.oldest_pending, now))


class _Tally:
    """The messages of a topic by their states. Those without a lease are pending; the others have to be judged."""

    def __init__(self, leases: Iterable[ObjectInfo]) -> None:
        self.counts: dict[State, int] = {"pending": 0, "in_flight": 0, "delayed": 0}
        self.oldest = self.oldest_pending = math.inf
        self.strangers = 0
        self._leases: dict[str, ObjectInfo] = {}
        self._leased: dict[str, float] = {}  # of each message that has a lease, when it was published
        for info in leases:
            uuid = layout.parse_lease(info.key)
            if uuid is None:
                self.strangers += 1
            else:
                self._leases[uuid] = info

    def add(self, page: UnitPage) -> None:
        """Count what can be told of messages by their keys."""
        self.strangers += len(page.strangers)
        for unit in page.units:
            stamp = units.published_at(unit.name)
            published = math.inf if stamp is None else stamp
            self.oldest = min(self.oldest, published)
            if unit.id in self._leases:
                self._leased[unit.id] = published
            else:
                self._count("pending", published)

    async def judge(self, context: Context, topic: str, now: float) -> None:
        """Count those that have a lease."""
        leases = {uuid: self._leases[uuid] for uuid in self._leased}
        for uuid, state in (await states_of(context, topic, leases, now)).items():
            self._count(state, self._leased[uuid])

    def _count(self, state: State, published: float) -> None:
        self.counts[state] += 1
        if state == "pending":
            self.oldest_pending = min(self.oldest_pending, published)


def _age(published: float, now: float) -> float | None:
    return None if math.isinf(published) else max(0.0, now - published)


async def _all(pages: AsyncIterable[Sequence[ObjectInfo]]) -> list[ObjectInfo]:
    return [info async for page in pages for info in page]

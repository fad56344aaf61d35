"""Count what is in a topic, by its listings: all of it, or what could be claimed."""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pawnqueue.catalog import letters, units
from pawnqueue.catalog.view import TopicView
from pawnqueue.claims.claim_listing import listed_claims
from pawnqueue.domain import layout
from pawnqueue.runtime.concurrency import all_of

if TYPE_CHECKING:
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
        _collect(context.registers.pages(layout.leases(topic))),
        letters.listed(store, topic),
    )
    view = TopicView(leases)
    view.add(messages)
    await view.judge(context, topic, now)
    return Stats(
        pending=view.counts["pending"],
        in_flight=view.counts["in_flight"],
        delayed=view.counts["delayed"],
        dead=len(dead.letters),
        oldest_age_seconds=_age(view.oldest, now),
        strangers=len(view.strangers) + len(dead.strangers),
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
    view: TopicView | None = None
    async for page in units.pages(context.store, topic):
        if view is None:
            view = TopicView(await _collect(context.registers.pages(layout.leases(topic))))
        view.add(page)
        if view.counts["pending"] >= at_least:
            break
    if view is None:
        return Backlog(0, None)
    now = await context.now()
    if view.counts["pending"] < at_least:
        await view.judge(context, topic, now)
    return Backlog(view.counts["pending"], _age(view.oldest_pending, now))


def _age(published: float, now: float) -> float | None:
    return None if math.isinf(published) else max(0.0, now - published)


async def _collect(pages: AsyncIterable[Sequence[ObjectInfo]]) -> list[ObjectInfo]:
    return [info async for page in pages for info in page]

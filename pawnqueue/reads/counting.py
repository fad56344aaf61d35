"""Count the messages of a topic by LISTs: all of them, or the claimable ones."""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pawnqueue.catalog import letters
from pawnqueue.catalog.unit_listing import UnitListing, listed
from pawnqueue.catalog.view import TopicView
from pawnqueue.claims.claim_reads import listed_claims
from pawnqueue.domain import lanes, layout
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
    """Messages that are held by claims. Of a pack that is held, all of its messages count, also the finished ones."""
    delayed: int
    """Messages that were published or requeued with a delay that is not over."""
    dead: int
    """Dead letters."""
    oldest_age_seconds: float | None
    """How long ago the oldest message in the topic was published, or was due if it was delayed; None: there is none
    that is due."""

    strangers: int = 0
    """Objects with keys that are not the queue's; they are left alone."""

    paused: bool = False
    """Whether the topic is paused: then nobody is given the pending messages. Another process's ``pause`` or ``resume``
    shows within a minute."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """How much of a topic can be claimed."""

    pending: int
    """Messages that are neither in flight nor delayed."""

    oldest_age_seconds: float | None
    """How long ago, by the store's time, the oldest of them was published, or was due; None: there is none."""

    claims: Mapping[str, bool] = field(default_factory=dict, hash=False)
    """The names of all claims with a record, ``{claim_id}.{generation}``, and whether each holds messages according to
    a LIST; empty unless it was asked for."""

    paused: bool = False
    """Whether the topic is paused. Then no message can be claimed, and none is counted."""


async def stats(context: Context, topic: str, *, packs: bool) -> Stats:
    """Count by one LIST for each folder and page.

    A bounded number of objects is read where a LIST is not enough: if leases look overdue, the records of claims that
    may have been renewed, or have decisions that are not carried out; leases whose delay may be over; and leases of
    packs that were given back.

    :param packs: whether the topic may have packs.
    """
    now = await context.now()
    store = context.store
    messages, leases, dead = await all_of(
        listed(context, topic, packs=packs),
        _collect(context.registers.pages(layout.leases(topic))),
        letters.listed(store, topic),
    )
    view = TopicView(leases, await context.earliest_now())
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


async def backlog(  # noqa: PLR0913 - what is counted, and how far
    context: Context,
    topic: str,
    at_least: float = math.inf,
    *,
    packs: bool,
    claims: bool = False,
    is_left_out: Callable[[str], bool] = lambda _: False,
) -> Backlog:
    """Count the claimable messages: one LIST of an empty topic, else one for each page of messages and of leases.

    Messages with a lease are judged as in :func:`stats`, unless there are enough without them.

    :param at_least: stop listing pages of messages once this many were seen.
    :param packs: whether the topic may have packs. They take one more LIST.
    :param claims: list the claims too, if a message can be claimed.
    :param is_left_out: whether the unit with this name or id is not counted.
    """
    counted = await _backlog(context, topic, at_least, packs=packs, is_left_out=is_left_out)
    if not (claims and counted.pending):
        return counted
    return replace(counted, claims=await listed_claims(context, topic))


async def _backlog(
    context: Context, topic: str, at_least: float, *, packs: bool, is_left_out: Callable[[str], bool]
) -> Backlog:
    view: TopicView | None = None
    stamp = ""

    def goes_on(end: str) -> str:
        # Behind the first unit of a lane that is not due, none is.
        return lanes.end_of(lanes.lane_of(end)) if lanes.is_early(end, stamp) else end

    async for page in UnitListing(context, topic).by_lanes(goes_on, packs=packs, is_small=packs):
        if view is None:
            now = await context.earliest_now()
            stamp = layout.timestamp(now)
            view = TopicView(await _collect(context.registers.pages(layout.leases(topic))), now, is_left_out)
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

"""List the units of one topic again and again, with few LISTs."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from pawnqueue.catalog import units
from pawnqueue.catalog.units import UnitPage

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.stores.port import ObjectInfo

#: One LIST for both kinds of units may show this many other keys. After it has shown more, or not all units, each kind
#: is listed by itself for a while.
MAX_OTHER_KEYS: Final = 100
APART_SECONDS: Final = 60.0


class UnitListing:
    """Lists the units of one topic for a process that looks often."""

    def __init__(self, context: Context, topic: str) -> None:
        self._context = context
        self._topic = topic
        self._apart_until = -math.inf  # elapsed

    async def pages(self, *, packs: bool, after: str = "") -> AsyncGenerator[UnitPage]:
        """List the units behind a place, as :func:`.units.pages` does. One LIST shows both kinds if they are few."""
        whole = await self._whole(packs=True) if packs and not after else None
        if whole is not None:
            if whole.end:
                yield whole
            return
        async with aclosing(units.pages(self._context.store, self._topic, after=after, packs=packs)) as apart:
            async for page in apart:
                yield page

    async def by_lanes(self, goes_on: Callable[[str], str], *, packs: bool, is_small: bool) -> AsyncGenerator[UnitPage]:
        """List the units a page at a time, and pass over what the caller does not need.

        :param goes_on: is given the place at which a page ends, after the caller has looked at it. It returns the place
            behind which to go on, which is this one or one behind it; "" to end.
        :param is_small: one LIST may show all units of the topic. It is tried first.
        """
        whole = await self._whole(packs=packs) if is_small else None
        if whole is not None:
            if whole.end:
                yield whole
            return
        place = after = ""
        while place == after:
            async with aclosing(units.pages(self._context.store, self._topic, after=after, packs=packs)) as pages:
                async for page in pages:
                    yield page
                    place = goes_on(page.end)
                    if place != page.end:
                        after = place
                        break
                else:
                    return
            if not place:
                return

    async def _whole(self, *, packs: bool) -> UnitPage | None:
        """Return all units by one LIST; None if it does not show them all, or has not a short while ago."""
        now = self._context.clock.elapsed()
        if now < self._apart_until:
            return None
        page, others = await (self._together() if packs else self._of_messages())
        if page is None or others > MAX_OTHER_KEYS:
            self._apart_until = now + APART_SECONDS
        return page

    async def _of_messages(self) -> tuple[UnitPage | None, int]:
        """Return all units of a topic without packs, as :meth:`_together` does."""
        async with aclosing(self._context.store.pages(units.folder(self._topic))) as listing:
            shown: Sequence[ObjectInfo] = await anext(listing, [])
            is_all = not shown or not await _has_another_page(listing)
        return units.sorted_out(shown) if is_all else None, 0

    async def _together(self) -> tuple[UnitPage | None, int]:
        """Return all units by one LIST, or None if it does not show them all; and how many other keys it has shown.

        Of a topic's folders, ``messages/`` and ``packs/`` follow each other, and only ``staged/`` and ``writes/`` come
        behind them.
        """
        messages, packs = units.folder(self._topic), units.packs_folder(self._topic)
        # All names of units come behind a space. A key that ends with a slash is one that obstore cannot name: boto3
        # would have to list, which takes several times the processor's time. SeaweedFS leaves out the whole folder if
        # the listing begins behind a key that is not in it.
        behind = f"{messages} "
        async with aclosing(self._context.store.pages(f"{self._topic}/", start_after=behind)) as listing:
            shown: Sequence[ObjectInfo] = await anext(listing, [])
            # ⚑ §4.1: no unit stays unseen behind the end of a page. A store may end one before it is full, and only the
            # listing tells that it is over, which costs no request.
            is_behind_units = bool(shown) and shown[-1].key > packs and not shown[-1].key.startswith(packs)
            is_all = not shown or is_behind_units or not await _has_another_page(listing)
        ours = [info for info in shown if info.key.startswith((messages, packs))]
        return units.sorted_out(ours) if is_all else None, len(shown) - len(ours)


async def _has_another_page(listing: AsyncGenerator[Sequence[ObjectInfo]]) -> bool:
    return await anext(listing, None) is not None


async def listed(context: Context, topic: str, *, packs: bool) -> UnitPage:
    """List all units of a topic, see :func:`.units.pages`."""
    whole = UnitPage()
    async for page in UnitListing(context, topic).pages(packs=packs):
        whole.units += page.units
        whole.strangers += page.strangers
        whole.end = page.end
    return whole

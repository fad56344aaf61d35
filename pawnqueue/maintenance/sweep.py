"""One sweep of a topic, and of the probes that dead processes left."""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Sequence
from typing import TYPE_CHECKING

from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout
from pawnqueue.domain.records import SweptRecord
from pawnqueue.events import Swept
from pawnqueue.maintenance.fault_isolation import Care
from pawnqueue.maintenance.sweep_claims import Claims
from pawnqueue.maintenance.sweep_leases import Leases
from pawnqueue.maintenance.sweep_report import AskByRecord, SweepReport
from pawnqueue.maintenance.sweep_writes import Writes
from pawnqueue.runtime.concurrency import for_each

if TYPE_CHECKING:
    from pawnqueue.catalog.letters import LetterPage
    from pawnqueue.context import Context
    from pawnqueue.stores.port import ObjectInfo

#: What nobody wrote lately is a leftover: half a burial, a probe of a process that died.
LEFTOVER_AGE = 3600.0


async def sweep(context: Context, topic: str, *, dry_run: bool, ask: AskByRecord | None = None) -> SweepReport:
    """Finish what others left, and remove what nobody needs.

    :param ask: speak for the owners of open claims: what goes on is renewed, what has ended without settling is fenced.
    """
    return await _Sweep(context, topic, SweepReport(topic, dry_run), ask).run()


async def finish(context: Context, report: SweepReport) -> SweepReport:
    """Look after what is in no topic, and tell of the sweep."""
    report.removed_leftovers += await sweep_probes(context, dry_run=report.dry_run)
    counts, failures = report.counts(), len(report.failures)
    context.events.tell(Swept(topic=report.topic, counts=counts, failures=failures, dry_run=report.dry_run))
    return report


async def sweep_probes(context: Context, *, dry_run: bool) -> int:
    """Remove probe objects of processes that died, and return how many there were."""
    now = await context.now()
    old = [
        info.key
        async for page in context.store.pages(layout.PROBES)
        for info in page
        if now - info.last_modified.timestamp() > LEFTOVER_AGE
    ]
    if old and not dry_run:
        await context.store.delete(old)
    return len(old)


class _Sweep:
    def __init__(self, context: Context, topic: str, report: SweepReport, ask: AskByRecord | None) -> None:
        self._context = context
        self._topic = topic
        self._report = report
        self._care = Care(context, topic, report)
        self._ask = ask

    async def run(self) -> SweepReport:
        # ⚑ §7: writes are finished before closed records are removed, as they are looked for in those.
        care, topic = self._care, self._topic
        writes = Writes(care)
        if not await care.part(layout.writes(topic), writes.sweep()):
            writes.unfinished_since = -math.inf  # nobody knows which records are still needed
        # ⚑ §5.4: claims are listed before all that they may have: what a record had as it was listed and is in neither
        # of the lists that follow is gone. The other way round, so would look what was published and claimed meanwhile.
        claims = await self._list(self._context.registers.pages(layout.claims(self._topic)))
        # ⚑ §5: leases are listed before messages. A message that was there when its lease was listed is in the second
        # list, or was settled in between; the other way round, a lease of a new message would look like an orphan.
        leases = await self._list(self._context.registers.pages(layout.leases(self._topic)))
        messages = await units.listed(self._context.store, self._topic)
        dead = await letters.listed(self._context.store, self._topic)
        self._report.strangers += [*messages.strangers, *dead.strangers]
        here = {unit.id for unit in messages.units}
        sweeper = Claims(care, self._ask, here, leases, keep_since=writes.unfinished_since)
        await care.part(layout.claims(topic), sweeper.sweep(claims))
        await care.part(layout.leases(topic), Leases(care).sweep(leases, here))
        await care.part(letters.folder(topic), self._leftovers(dead))
        if not self._report.dry_run:
            key = layout.swept(self._topic)
            await self._care.alone(key, self._note(key), otherwise=None)
        return self._report

    async def _note(self, key: str) -> None:
        """Note that the topic was swept. One that was deleted meanwhile is not to have an object again."""
        context = self._care.context
        if await context.registers.head(layout.topic_marker(self._topic)) is not None:
            await context.store.overwrite(key, SweptRecord(topic=self._topic).encode())

    async def _leftovers(self, dead: LetterPage) -> None:
        """Remove reasons whose dead letter is gone: requests of a burial that landed after a redrive."""
        now = await self._context.now()
        here = {letter.id for letter in dead.letters}
        old = [
            reason.id
            for reason in dead.reasons
            if reason.id not in here and now - reason.written_at.timestamp() > LEFTOVER_AGE
        ]

        async def alone(uuid: str) -> bool:
            return await self._care.alone(
                letters.reason_key_of(self._topic, uuid), self._is_alone(uuid), otherwise=False
            )

        are_alone = await for_each(alone, old, at_once=self._context.at_once)
        lone = [letters.reason_key_of(self._topic, uuid) for uuid, yes in zip(old, are_alone, strict=True) if yes]
        self._report.removed_leftovers += await self._care.delete(lone)

    async def _is_alone(self, uuid: str) -> bool:
        """Say whether a reason will never have a dead letter: a burial that is not finished has its lease still.

        In this order: if the lease is gone, the letter is there, or was and has been redriven.
        """
        context = self._care.context
        if await context.registers.head(layout.lease(self._topic, uuid)) is not None:
            return False
        return await context.store.head(letters.key_of(self._topic, uuid)) is None

    @staticmethod
    async def _list(pages: AsyncIterable[Sequence[ObjectInfo]]) -> list[ObjectInfo]:
        return [info async for page in pages for info in page]

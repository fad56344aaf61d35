"""One sweep of a topic, and of the probes that dead processes left."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pawnqueue.catalog import letters, units
from pawnqueue.catalog.unit_listing import listed
from pawnqueue.domain import layout
from pawnqueue.domain.records import SweptRecord
from pawnqueue.events import Swept
from pawnqueue.maintenance.letter_expiry import LetterExpiry
from pawnqueue.maintenance.sweep_claims import ClaimSweep
from pawnqueue.maintenance.sweep_completed import sweep_completed
from pawnqueue.maintenance.sweep_dedup import DedupSweep
from pawnqueue.maintenance.sweep_expired import bury_expired
from pawnqueue.maintenance.sweep_leases import LeaseSweep
from pawnqueue.maintenance.sweep_report import AskByRecord, SweepReport
from pawnqueue.maintenance.sweep_scope import SweepScope
from pawnqueue.maintenance.sweep_writes import WriteSweep
from pawnqueue.runtime.concurrency import for_each

if TYPE_CHECKING:
    from pawnqueue.catalog.letters import LetterPage
    from pawnqueue.context import Context
    from pawnqueue.domain.records import TopicRecord

#: An unneeded object of this age is a leftover: of half a burial, or of a process that died during a probe.
MIN_LEFTOVER_AGE_SECONDS = 3600.0


async def sweep(context: Context, topic: TopicRecord, *, dry_run: bool, ask: AskByRecord | None = None) -> SweepReport:
    """Finish what dead processes left, and remove what nobody needs.

    :param topic: as it is stored now.
    :param ask: says whether the owners of open claims go on: their claims are renewed, and the others are fenced.
    """
    report = SweepReport(topic.name, dry_run, paused=topic.settings.paused)
    return await _Sweep(context, topic, report, ask).run()


async def finish(context: Context, report: SweepReport) -> SweepReport:
    """Sweep what is outside the topics, and send the event of the sweep."""
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
        if now - info.last_modified.timestamp() > MIN_LEFTOVER_AGE_SECONDS
    ]
    if old and not dry_run:
        await context.store.delete(old)
    return len(old)


class _Sweep:
    def __init__(self, context: Context, topic: TopicRecord, report: SweepReport, ask: AskByRecord | None) -> None:
        self._context = context
        self._record = topic
        self._topic = topic.name
        self._report = report
        self._scope = SweepScope(context, topic.name, report)
        self._ask = ask

    async def run(self) -> SweepReport:
        # ⚑ §7: writes are finished before closed claim records are removed, as finishing a write reads those records.
        scope, topic = self._scope, self._topic
        writes = WriteSweep(scope)
        if not await scope.run_part(layout.writes(topic), writes.sweep()):
            writes.unfinished_since = -math.inf  # every record may still be needed
        keys = DedupSweep(scope, self._record)
        # ⚑ §7: so are keys resolved. A topic into which nobody has published with keys costs no LIST for them.
        if keys.has_keys and not await scope.run_part(layout.dedup(topic), keys.sweep()):
            keys.unresolved_since = -math.inf
        # ⚑ §5.4: claims are listed before messages and leases: a member of a listed record that is in neither of the
        # later lists is gone. In the other order, a message that was published and claimed meanwhile would look gone.
        claims = [info async for page in self._context.registers.pages(layout.claims(topic)) for info in page]
        # ⚑ §5: leases are listed before messages. A message that was stored when its lease was listed is in the second
        # list, or was settled in between. In the other order, a lease of a new message would look like an orphan.
        leases = [info async for page in self._context.registers.pages(layout.leases(topic)) for info in page]
        messages = await listed(self._context, self._topic, packs=self._record.may_have_packs)
        expiry = LetterExpiry(scope, self._record)
        await expiry.begin()
        dead = await letters.listed(self._context.store, self._topic)
        self._report.strangers += [*messages.strangers, *dead.strangers]
        stored_ids = {unit.id for unit in messages.units}
        keep_since = min(writes.unfinished_since, keys.unresolved_since)
        sweeper = ClaimSweep(scope, self._ask, stored_ids, leases, keep_since=keep_since, keep_traces=not keys.has_keys)
        await scope.run_part(layout.claims(topic), sweeper.sweep(claims))
        await scope.run_part(layout.leases(topic), LeaseSweep(scope).sweep(leases, stored_ids))
        await scope.run_part(letters.folder(topic), self._leftovers(dead))
        leased = {layout.parse_lease(info.key) or "" for info in leases}
        await scope.run_part(
            units.folder(topic), bury_expired(scope.context, self._record, messages.units, leased, self._report)
        )
        await scope.run_part(layout.letter_notices(topic), expiry.sweep(dead))
        await scope.run_part(layout.completed(topic), sweep_completed(scope, self._record.settings.completed))
        if not self._report.dry_run:
            key = layout.swept(self._topic)
            await self._scope.isolate(key, self._note(key), otherwise=None)
        return self._report

    async def _note(self, key: str) -> None:
        """Note that the topic was swept. A topic that was deleted meanwhile must not get an object again."""
        context = self._scope.context
        if await context.registers.head(layout.topic_marker(self._topic)) is not None:
            await context.store.overwrite(key, SweptRecord(topic=self._topic).encode())

    async def _leftovers(self, dead: LetterPage) -> None:
        """Remove reasons whose dead letter is gone: they come from a burial that landed after a redrive."""
        now = await self._context.now()
        letter_ids = {letter.id for letter in dead.letters}
        old = [
            reason.id
            for reason in dead.reasons
            if reason.id not in letter_ids and now - reason.written_at.timestamp() > MIN_LEFTOVER_AGE_SECONDS
        ]

        async def check(uuid: str) -> bool:
            """Say whether the reason is a leftover. If that cannot be found out, it is reported and kept."""
            return await self._scope.isolate(
                letters.reason_key_of(self._topic, uuid), self._has_no_letter(uuid), otherwise=False
            )

        have_no_letter = await for_each(check, old, at_once=self._context.at_once)
        lone = [letters.reason_key_of(self._topic, uuid) for uuid, yes in zip(old, have_no_letter, strict=True) if yes]
        self._report.removed_leftovers += await self._scope.delete(lone)

    async def _has_no_letter(self, uuid: str) -> bool:
        """Say whether a reason will never have a dead letter: an unfinished burial still has its lease.

        The lease is checked first: when it is gone, the letter is stored, or was stored and redriven.
        """
        context = self._scope.context
        if await context.registers.head(layout.lease(self._topic, uuid)) is not None:
            return False
        return await context.store.head(letters.key_of(self._topic, uuid)) is None

"""Sweep the claim records: renew or fence for owners, finish ended claims, and remove records after their retention."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from pawnqueue.catalog import units
from pawnqueue.claims import effects, takeover
from pawnqueue.claims.effects import HOLDER_WORKS_SECONDS
from pawnqueue.claims.renewing import lengthened
from pawnqueue.domain import layout, size_hint
from pawnqueue.domain.claim_record import Decision
from pawnqueue.errors import PawnQueueError
from pawnqueue.maintenance.sweep_report import NoAnswerError
from pawnqueue.maintenance.sweep_scope import MAX_READ_TO_DELETE_SECONDS
from pawnqueue.registers.register import Versioned
from pawnqueue.runtime.concurrency import for_each
from pawnqueue.stores.port import NO_VERSION

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pawnqueue.domain.claim_record import ClaimRecord
    from pawnqueue.maintenance.sweep_report import AskByRecord, Verdict
    from pawnqueue.maintenance.sweep_scope import SweepScope
    from pawnqueue.stores.port import ObjectInfo

#: How often a record is read for a deletion soon enough after it.
MAX_READS_BEFORE_DELETE = 3
#: A lease that was written later than this after a claim began is not read for messages that the claim requeued: the
#: claim won its leases at its beginning. Every sweep would read the leases of other claims.
WON_WITHIN_SECONDS = 300.0
#: How long the record of a claim that nobody can ask for again is kept at least, where it is a trace of messages.
TRACE_RETENTION_SECONDS = 60.0
#: How long a sweep waits for the answer about one claim's owner.
MAX_ANSWER_SECONDS = 60.0


class ClaimSweep:
    """The claims of one topic, in one sweep."""

    def __init__(  # noqa: PLR0913 - what the parts of a sweep before this one have found
        self,
        scope: SweepScope,
        ask: AskByRecord | None,
        here: Collection[str],
        leases: Sequence[ObjectInfo],
        *,
        keep_since: float = math.inf,
        keep_traces: bool = False,
    ) -> None:
        """Prepare to sweep.

        :param here: the ids of all messages of the topic, listed after the claims.
        :param leases: all leases of the topic, listed after the claims.
        :param keep_since: records that have changed since then are kept, as a staged write of that time is not done, or
            it is not known of a deduplication key of that time whether it is published.
        :param keep_traces: records that are only traces of messages are kept as long as others.
        """
        self._keep_since = keep_since
        self._keep_traces = keep_traces
        self._scope = scope
        self._here = set(here)
        by_uuid = {uuid: info for info in leases if (uuid := layout.parse_lease(info.key))}
        self._here.update(by_uuid)
        self._held: dict[str, float] = {
            uuid: info.last_modified.timestamp() for uuid, info in by_uuid.items() if _may_be_held(uuid, info)
        }
        self._as_listed: set[str] = set()  # the stems of records that were read as they had been listed
        self._report = scope.report
        self._ask = ask

    async def sweep(self, listed: Sequence[ObjectInfo]) -> None:
        """Check every claim that may need something, however many there are."""
        context = self._scope.context
        now = await context.now()
        wanted = []
        for parsed, info in self._scope.sorted_out(listed, layout.parse_claim):
            hint = size_hint.hint_of_record(info.size, info.last_modified)
            closed = hint is not None and hint.state == "closed"
            if closed and not self._is_past_retention(info, now):
                continue
            is_live = hint is not None and hint.state == "open" and hint.earliest > now
            if self._ask is None and is_live and _does_holder_work(info, now):
                continue  # its holder still works, and settles it itself
            wanted.append((layout.claim_stem(*parsed), info))

        async def sweep_isolated(listed_claim: tuple[str, ObjectInfo]) -> None:
            await self._scope.isolate(listed_claim[1].key, self._sweep_claim(*listed_claim), None)

        await for_each(sweep_isolated, wanted, at_once=context.at_once)

    def _is_past_retention(self, info: ObjectInfo, now: float) -> bool:
        retention = self._scope.context.settings.claims.record_retention_seconds
        changed = info.last_modified.timestamp()
        hint = size_hint.hint_of_record(info.size, info.last_modified)
        if hint is not None and hint.is_trace and not self._keep_traces:  # nobody can ask for its claim again
            retention = min(retention, TRACE_RETENTION_SECONDS)
        # ⚑ §7: only this record tells the process that finishes the write about a message that was acked meanwhile.
        return now - changed > retention and changed < self._keep_since

    async def _sweep_claim(self, stem: str, info: ObjectInfo) -> None:
        context = self._scope.context
        looked = context.clock.elapsed()
        found = await context.claim_record(self._scope.topic, stem).read()
        if found is None:
            return
        if found.version == info.version != NO_VERSION:
            self._as_listed.add(stem)
        record, now = found.value, await context.now()
        if record.state == "closed":
            # Only a record that is unchanged since its listing is old enough.
            if found.version == info.version and self._is_past_retention(info, now):
                await self._remove(stem, info, looked)
            return
        verdict: Verdict | None = None
        # ⚑ §5.5: a decision does not wait until the time of its claim, or of its session, is over.
        is_live = not context.is_over(record.until if record.state == "open" else record.free_at, now)
        if is_live and stem in self._as_listed and record.settled and not _does_holder_work(info, now):
            await self._finish_decided(found)
        if record.state == "open" and is_live:
            verdict = await self._ask_owner(info.key, record)
            now = await context.now()  # the answer may have taken long
        if verdict == "going" and now < record.until:
            await self._renew(found, now)
        elif verdict == "ended" or context.is_over(record.free_at, now):
            await self._end(info.key, found)

    async def _remove(self, stem: str, info: ObjectInfo, looked: float) -> None:
        """Delete a closed record.

        Once it is gone, its id may be used again, and the key is that of a live claim. So it is deleted only if it was
        read a moment ago, and the request is not repeated. Two risks remain: our DELETE may be in flight for long, or
        this process may be paused between reading the clock and sending the request. If another janitor removes this
        record meanwhile, and its id is used again, we delete a live claim's record.
        """
        context = self._scope.context
        for _ in range(MAX_READS_BEFORE_DELETE):
            if context.clock.elapsed() - looked <= MAX_READ_TO_DELETE_SECONDS:
                self._report.removed_records += await self._scope.delete(
                    [info.key], context=self._scope.without_retries
                )
                return
            looked = context.clock.elapsed()
            found = await context.claim_record(self._scope.topic, stem).read()
            if found is None or found.version != info.version:
                return
        self._scope.report_failure(
            info.key, f"it could not be read and deleted within {MAX_READ_TO_DELETE_SECONDS:g} seconds"
        )

    async def _ask_owner(self, key: str, record: ClaimRecord) -> Verdict | None:
        if self._ask is None:
            return None
        try:
            # ⚑ §5.7: a missing answer concerns its claim alone, and the sweep comes to an end.
            return await self._ask(record, self._scope.context.clock, MAX_ANSWER_SECONDS)
        except NoAnswerError as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - errors of the caller's code concern this claim alone
            why = f"the question about its owner failed: {type(error).__name__}: {error}"
        self._scope.report_failure(key, why, is_store_fault=False)
        return None

    async def _renew(self, found: Versioned[ClaimRecord], now: float) -> None:
        """Renew a claim on behalf of its owner.

        By compare-and-set on the record that was read before the question: the owner may have been cleared meanwhile.
        """
        record = found.value
        lasts = record.lasts or record.ttl
        until = lengthened(self._scope.context, record, now + lasts)
        if until <= record.until:
            return
        # ⚑ §4: the claim's time alone. Its session's time is renewed by its process, which may be dead: a retry of the
        # run waits for the session's end, and not for as long as the run goes on.
        renewed = record.model_copy(update={"until": until, "ttl": until - now, "lasts": lasts})
        self._report.renewed_claims += await self._change(found, renewed) is not None

    async def _end(self, key: str, found: Versioned[ClaimRecord]) -> None:
        """Fence a claim, unless it is fenced, and finish it when its process cannot trust it any more."""
        if found.value.state == "open":
            fenced = await self._fence(key, found)
            if fenced is None:
                return
            found = fenced
        # ⚑ §4: a claim that was fenced early waits for its session's time: its process may be alive and not know.
        if self._scope.context.is_over(found.value.free_at, await self._scope.context.now()):
            await self._finish(found)

    async def _fence(self, key: str, found: Versioned[ClaimRecord]) -> Versioned[ClaimRecord] | None:
        if self._report.dry_run:
            expired = found.value.model_copy(update={"state": "expired"})
            fenced: Versioned[ClaimRecord] | None = Versioned(expired, found.version)
        else:
            fenced = await takeover.fence(self._scope.context, self._scope.topic, found)
        self._report.fenced_claims += fenced is not None
        if fenced is None and await self._is_unchanged(found):
            self._scope.report_failure(key, "it could not be fenced: the store refuses the write")
        return fenced

    async def _finish(self, found: Versioned[ClaimRecord]) -> None:
        """Carry out the decisions of a claim that is over, release the rest, and close its record.

        ⚑ §5.5: every crash point is finished by some process. Only the record remembers the decisions, so it may be
        closed, and in time deleted, only when all of them are confirmed.
        """
        settled, left = found.value.settled, found.value.unsettled
        released = [uuid for uuid, decision in settled.items() if decision.how == "released"]
        versions, failed = await effects.held_versions(
            self._scope.context, self._scope.topic, found.value.stem, released + left
        )
        closed = True
        if not self._report.dry_run:
            confirmed = await self._give_back(found) if left else found
            if confirmed is None or (versions and not left and not await self._is_unchanged(found)):
                return  # another process works on it
            record = confirmed.value
            todo = [
                uuid
                for uuid, decision in record.settled.items()
                if (uuid in versions if decision.how == "released" else self._may_be_here(record.stem, uuid))
            ]
            carried_out = self._carry_out_or_report(record, todo, versions, failed)
            _, final = await effects.finish(self._scope.context, self._scope.topic, confirmed, carried_out)
            closed = not failed and final is not None
        self._count_finished(found.value, versions, failed)
        self._report.closed_claims += closed

    def _count_finished(self, record: ClaimRecord, versions: Collection[str], failed: Collection[str]) -> None:
        """Count the messages of a claim that is over: those that it had decided, and those that it held undecided."""
        left = record.messages_left
        for uuid in {*record.members, *record.settled}.difference(failed):
            by_others = 0
            for decision, count in record.decisions_of(uuid):
                if decision.by == "other":
                    by_others += count
                else:
                    self._report.finished_effects += count
            if uuid in versions:
                self._report.given_back += left.get(uuid, 0) + by_others

    async def _finish_decided(self, found: Versioned[ClaimRecord]) -> None:
        """Carry out the remaining decisions of a claim that is still live.

        ⚑ §5.5: its holder may do the same now, which is safe: a decision is final, each effect may be repeated and may
        land late, and a lease is released by compare-and-set on a version that names the claim. The record is checked
        to be unchanged after the leases were read, so they are not those of a later claim with its id.
        """
        record = found.value
        latest = record.created_at + WON_WITHIN_SECONDS
        released, ended = [], []
        for uuid, decision in record.settled.items():
            if decision.how == "released":
                released += [uuid] if self._held.get(uuid, math.inf) <= latest else []
            elif uuid in self._here:
                ended.append(uuid)
        versions, failed = await effects.held_versions(self._scope.context, self._scope.topic, record.stem, released)
        todo = [*versions, *ended]
        if not (todo or failed) or not await self._is_unchanged(found):
            return
        if not self._report.dry_run:
            await self._carry_out_or_report(record, todo, versions, failed)
        self._report.finished_effects += sum(
            count for uuid in set(todo).difference(failed) for _, count in record.decisions_of(uuid)
        )

    def _may_be_here(self, stem: str, uuid: str) -> bool:
        """Say whether something of an acked or buried message may be left to carry out.

        ⚑ §5.4: nothing is left if neither the message nor its lease was listed, and the record was listed before them
        and is unchanged since. It had this member before those listings began, so message and lease were stored then.
        A listing shows every object that exists throughout: both have been deleted, the message last of all. A record
        that was changed, or deleted and created again, after its listing proves nothing: its messages may be younger
        than the listings. (Nor does its ``created_at``: a process that adopts the leases of a dead attempt derives it
        from a ttl of its own.) Then everything is carried out again, which is harmless. A record that is closed too
        early would in time be deleted, and the message be delivered again.
        """
        return stem not in self._as_listed or uuid in self._here

    async def _give_back(self, found: Versioned[ClaimRecord]) -> Versioned[ClaimRecord] | None:
        """Record that unsettled messages are released, so that consumers need not wait for the time of the leases.

        ⚑ §4: this is safe beside a taker, which by the same rule takes the leases of a claim that is fenced and over:

        - The record is fenced and its session's time is over, so its process can neither settle nor renew, and
          does not trust the claim any more. From here on other claims may get its messages.
        - A lease changes by compare-and-set on a version that names the claim. If ours comes first, the taker's is
          refused, and it finds the lease released the next time. If the taker's comes first, ours is refused, and
          nothing is left to do. A version is written once, so a late write of ours never changes a later lease.
        - A taker that reads the record after this decision carries it out too, and then takes the released lease.
        - A claim's id may be used again once its record is gone: then a lease that names it belongs to another claim.
          The leases were read before the record's version was confirmed, by this compare-and-set (or by another read,
          if everything is decided). So the record existed throughout, and they are its own.

        The record still lists the messages: they count as delivered.
        """
        record = found.value
        released = dict.fromkeys(record.unsettled, Decision(how="released", by="other"))
        return await self._change(found, record.with_decisions(released))

    async def _carry_out_or_report(
        self, record: ClaimRecord, uuids: Sequence[str], versions: Mapping[str, str], failed: dict[str, PawnQueueError]
    ) -> Mapping[str, PawnQueueError]:
        """Carry out decisions, add the errors to ``failed``, and report all messages that are stuck."""
        failed.update(await self._carry_out(record, [each for each in uuids if each not in failed], versions))
        for uuid, error in failed.items():
            key = units.key_of(self._scope.topic, record.members[uuid].name)
            self._report.stuck[key] = str(error)
            how = record.settled[uuid].how
            self._scope.report_failure(
                key, f"it is {how} by claim {record.stem}, which could not be carried out: {error}"
            )
        return failed

    async def _carry_out(
        self, record: ClaimRecord, uuids: Sequence[str], versions: Mapping[str, str]
    ) -> Mapping[str, PawnQueueError]:
        """Carry out decisions, and return the errors. If one ends all of them, they are carried out one by one."""
        context = self._scope.context
        try:
            return await effects.carry_out(context, self._scope.topic, record, uuids, versions)
        except PawnQueueError as error:
            if len(uuids) == 1:
                return {uuids[0]: error}
        parts = await for_each(lambda uuid: self._carry_out(record, [uuid], versions), uuids, at_once=context.at_once)
        return {uuid: error for part in parts for uuid, error in part.items()}

    async def _change(self, found: Versioned[ClaimRecord], changed: ClaimRecord) -> Versioned[ClaimRecord] | None:
        """Change a record by compare-and-set; None: another process has changed it."""
        if self._report.dry_run:
            return Versioned(changed, found.version)
        return await self._scope.context.claim_record(self._scope.topic, changed.stem).replace(found, changed)

    async def _is_unchanged(self, found: Versioned[ClaimRecord]) -> bool:
        """Say whether a record is unchanged since it was read."""
        present = await self._scope.context.registers.head(layout.claim(self._scope.topic, found.value.stem))
        return present is not None and present.version == found.version


def _does_holder_work(record: ObjectInfo, now: float) -> bool:
    return now - record.last_modified.timestamp() < HOLDER_WORKS_SECONDS


def _may_be_held(unit_id: str, lease: ObjectInfo) -> bool:
    hint = size_hint.hint_of_lease(lease.size, lease.last_modified, is_of_pack=layout.is_of_pack(unit_id))
    return hint is None or hint.state == "held"

"""Sweep the claim records: speak for their owners, finish what has ended, and remove what nobody asks for any more."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from pawnqueue.catalog import units
from pawnqueue.claims import effects, takeover
from pawnqueue.claims.renewing import lengthened
from pawnqueue.domain import layout, size_hint
from pawnqueue.domain.records import Decision
from pawnqueue.errors import PawnQueueError
from pawnqueue.maintenance.sweep_report import NoAnswerError
from pawnqueue.maintenance.sweep_scope import MAX_READ_TO_DELETE_SECONDS
from pawnqueue.registers.register import Versioned
from pawnqueue.runtime.concurrency import for_each
from pawnqueue.stores.port import NO_VERSION

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pawnqueue.domain.records import ClaimRecord
    from pawnqueue.maintenance.sweep_report import AskByRecord, Verdict
    from pawnqueue.maintenance.sweep_scope import SweepScope
    from pawnqueue.stores.port import ObjectInfo

#: So often it is looked at again for that.
MAX_READS_BEFORE_DELETE = 3
#: A record that changed within this time is left to its holder to carry out, in seconds.
HOLDER_WORKS_SECONDS = 30.0
#: A lease written later than this after a claim began is not read for what that claim gave back, in seconds.
#: (It won its leases at its beginning. What somebody else has by now would be read by every sweep.)
WON_WITHIN_SECONDS = 300.0
#: For so long an answer about one claim's owner is waited for.
MAX_ANSWER_SECONDS = 60.0


class ClaimSweep:
    """The claims of one topic, in one sweep."""

    def __init__(
        self,
        scope: SweepScope,
        ask: AskByRecord | None,
        here: Collection[str],
        leases: Sequence[ObjectInfo],
        *,
        keep_since: float = math.inf,
    ) -> None:
        """Make ready to sweep.

        :param here: the ids of all messages of the topic, as they were listed after the claims.
        :param leases: all leases of the topic, as they were listed after the claims.
        :param keep_since: a staged write that was decided then is not done: records that have changed since are kept.
        """
        self._keep_since = keep_since
        self._scope = scope
        self._here = set(here)
        by_uuid = {uuid: info for info in leases if (uuid := layout.parse_lease(info.key))}
        self._here.update(by_uuid)
        self._held: dict[str, float] = {
            uuid: info.last_modified.timestamp() for uuid, info in by_uuid.items() if _may_be_held(info)
        }
        self._as_listed: set[str] = set()  # the stems of records that were read as they had been listed
        self._report = scope.report
        self._ask = ask

    async def sweep(self, listed: Sequence[ObjectInfo]) -> None:
        """Look at every claim about which something may have to be done, however many there are."""
        context = self._scope.context
        now = await context.now()
        wanted = []
        for info in listed:
            parsed = layout.parse_claim(info.key)
            if parsed is None:
                self._report.strangers.append(info.key)
                continue
            hint = size_hint.hint_of_record(info.size, info.last_modified)
            closed = hint is not None and hint.state == "closed"
            if closed and not self._is_past_retention(info, now):
                continue
            is_live = hint is not None and hint.state == "open" and hint.earliest > now
            if self._ask is None and is_live and self._does_holder_work(info, now):
                continue  # its holder works, and settles it itself
            wanted.append((layout.claim_stem(*parsed), info))

        async def isolated(listed_claim: tuple[str, ObjectInfo]) -> None:
            await self._scope.isolate(listed_claim[1].key, self._sweep_claim(*listed_claim), None)

        await for_each(isolated, wanted, at_once=context.at_once)

    @staticmethod
    def _does_holder_work(info: ObjectInfo, now: float) -> bool:
        return now - info.last_modified.timestamp() < HOLDER_WORKS_SECONDS

    def _is_past_retention(self, info: ObjectInfo, now: float) -> bool:
        retention = self._scope.context.settings.claims.record_retention_seconds
        changed = info.last_modified.timestamp()
        # ⚑ §7: of a message that was acked meanwhile, the finisher of the write finds nothing else.
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
            # What was listed is what was read, or it has been closed, or even claimed anew, since then.
            if found.version == info.version and self._is_past_retention(info, now):
                await self._remove(stem, info, looked)
            return
        verdict: Verdict | None = None
        # ⚑ §5.5: what was decided is not left until the time of a claim, or of its session, is over.
        is_live = not context.is_over(record.until if record.state == "open" else record.free_at, now)
        if is_live and stem in self._as_listed and record.settled and not self._does_holder_work(info, now):
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

        Once it is gone, its id may be claimed by again, and the key is that of a live claim: so it is deleted only if
        it was there a moment ago, and the request is not repeated. What remains is a DELETE that is itself under way
        for long, or a process that is paused between the look at the clock and the request, while another janitor
        removes the record and the same id is claimed by anew: no store that we know deletes by version.
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
            info.key, f"no look at it and its deletion fitted into {MAX_READ_TO_DELETE_SECONDS:g} seconds"
        )

    async def _ask_owner(self, key: str, record: ClaimRecord) -> Verdict | None:
        if self._ask is None:
            return None
        try:
            # ⚑ §5.7: an answer that does not come concerns its claim as well, and the sweep comes to an end.
            return await self._ask(record, self._scope.context.clock, MAX_ANSWER_SECONDS)
        except NoAnswerError as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - whatever the caller's code raises, it concerns this claim alone
            why = f"it could not be asked about: {type(error).__name__}: {error}"
        self._scope.report_failure(key, why, is_store_fault=False)
        return None

    async def _renew(self, found: Versioned[ClaimRecord], now: float) -> None:
        """Renew a claim on behalf of its owner.

        By compare-and-set on what was read before the owner was asked about: it may have been cleared meanwhile.
        """
        record = found.value
        lasts = record.lasts or record.ttl
        until = lengthened(self._scope.context, record, now + lasts)
        if until <= record.until:
            return
        # ⚑ §4: the claim's time alone. Its session's is for the process to renew, which may be dead: whoever takes up
        # the claim again waits for that, and not for as long as the run goes on.
        renewed = record.model_copy(update={"until": until, "ttl": until - now, "lasts": lasts})
        self._report.renewed_claims += await self._change(found, renewed) is not None

    async def _end(self, key: str, found: Versioned[ClaimRecord]) -> None:
        """Fence a claim if nobody has yet, and finish it if its process cannot believe in it any more."""
        if found.value.state == "open":
            fenced = await self._fence(key, found)
            if fenced is None:
                return
            found = fenced
        # ⚑ §4: fenced early, its session's time is still waited for: its process may be alive and know nothing yet.
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
            self._scope.report_failure(key, "it could not be fenced: the store does not take it")
        return fenced

    async def _finish(self, found: Versioned[ClaimRecord]) -> None:
        """Carry out what a claim that is over had decided, give back the rest, and close its record.

        ⚑ §5.5: every crash point is finished by someone. Only when all that was decided is confirmed may the record,
        which alone remembers it, be closed and in time be deleted.
        """
        settled, left = found.value.settled, found.value.unsettled
        released = [uuid for uuid, decision in settled.items() if decision.how == "released"]
        failed: dict[str, PawnQueueError] = {}
        versions = await self._leases_of(found.value, released + left, failed)
        closed = True
        if not self._report.dry_run:
            confirmed = await self._give_back(found) if left else found
            if confirmed is None or (versions and not left and not await self._is_unchanged(found)):
                return  # somebody else is at it
            record = confirmed.value
            todo = [
                uuid
                for uuid, decision in record.settled.items()
                if (uuid in versions if decision.how == "released" else self._may_be_here(record.stem, uuid))
            ]
            carried_out = self._carry_out_or_report(record, todo, versions, failed)
            _, final = await effects.finish(self._scope.context, self._scope.topic, confirmed, carried_out)
            closed = not failed and final is not None
        self._report.finished_effects += sum(
            decision.by != "other" and uuid not in failed for uuid, decision in settled.items()
        )
        given_back = [uuid for uuid in versions if uuid not in settled or settled[uuid].by == "other"]
        self._report.given_back += len(set(given_back).difference(failed))
        self._report.closed_claims += closed

    async def _finish_decided(self, found: Versioned[ClaimRecord]) -> None:
        """Carry out what a claim that lives on has decided, and not carried out.

        ⚑ §5.5, and safe beside its holder, which may do the same now: a decision is final, each effect may be repeated
        and may land late, and a lease is released by compare-and-set on a version that names the claim. It is
        seen after the leases were read that the record is unchanged, so they are not those of a later claim of its id.
        """
        record = found.value
        latest = record.created_at + WON_WITHIN_SECONDS
        released, ended = [], []
        for uuid, decision in record.settled.items():
            if decision.how == "released":
                released += [uuid] if self._held.get(uuid, math.inf) <= latest else []
            elif uuid in self._here:
                ended.append(uuid)
        failed: dict[str, PawnQueueError] = {}
        versions = await self._leases_of(record, released, failed)
        todo = [*versions, *ended]
        if not (todo or failed) or not await self._is_unchanged(found):
            return
        if not self._report.dry_run:
            await self._carry_out_or_report(record, todo, versions, failed)
        self._report.finished_effects += len(set(todo).difference(failed))

    def _may_be_here(self, stem: str, uuid: str) -> bool:
        """Say whether anything may be left to do of what a claim has acked or buried.

        ⚑ §5.4: not where neither its message nor its lease was listed, and the record was listed before them and read
        as it was listed. Then it had this member before those listings began, and so message and lease had been there.
        A listing shows what is there all the while: they have been deleted since, the message when everything else was
        confirmed. Of a record that was changed, or deleted and made anew, between its listing and its reading this
        cannot be said: its messages may be younger than the listings. (Its ``created_at`` does not tell, either: who
        adopts the leases of a dead attempt reckons that from a time to live of its own.) Then everything is done once
        more, which does no harm; a record that is closed too early is in time deleted, and the message delivered again.
        """
        return stem not in self._as_listed or uuid in self._here

    async def _leases_of(
        self, record: ClaimRecord, uuids: Sequence[str], failed: dict[str, PawnQueueError]
    ) -> dict[str, str]:
        """Return the versions of those leases that the claim still has. What cannot be read is added to ``failed``."""
        versions, faults = await effects.held_versions(self._scope.context, self._scope.topic, record.stem, uuids)
        failed.update(faults)
        return versions

    async def _give_back(self, found: Versioned[ClaimRecord]) -> Versioned[ClaimRecord] | None:
        """Decide in the record that what nobody has settled is released: consumers need not wait for the leases' time.

        ⚑ §4, and safe beside a taker, who by the same rule takes the leases of a claim that is fenced and over:

        - The record is fenced and its session's time is over, so its process can neither settle nor renew, and does
          not believe in the messages any more. From here on they may change hands.
        - They do so by compare-and-set on the version of a lease that names the claim: the taker's is refused if ours
          came first (and finds the lease released at its next look), and ours is refused if the taker's did, and then
          there is nothing left to do. A version is written once, so ours never meets a later lease, however late.
        - A taker that reads the record after this decision carries out what we do, and takes the released lease then.
        - A claim's id may be used again once its record is gone, and then a lease that names it is another claim's.
          The leases were read before the record's version was confirmed, by this compare-and-set (or by another look,
          where everything is decided): the record stood all the while, so they are its own.

        The record lists the messages still: they count as handed out.
        """
        record = found.value
        released = {uuid: Decision(how="released", by="other") for uuid in record.unsettled}
        return await self._change(found, record.model_copy(update={"settled": {**record.settled, **released}}))

    async def _carry_out_or_report(
        self, record: ClaimRecord, uuids: Sequence[str], versions: Mapping[str, str], failed: dict[str, PawnQueueError]
    ) -> Mapping[str, PawnQueueError]:
        """Carry out decisions; add what failed to what could not even be looked at, and tell of all that is stuck."""
        failed.update(await self._carry_out(record, uuids, versions))
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
        """Carry out decisions, and return what failed: where one member's fault ended all, each by itself."""
        context = self._scope.context
        try:
            return await effects.carry_out(context, self._scope.topic, record, uuids, versions)
        except PawnQueueError as error:
            if len(uuids) == 1:
                return {uuids[0]: error}
        parts = await for_each(lambda uuid: self._carry_out(record, [uuid], versions), uuids, at_once=context.at_once)
        return {uuid: error for part in parts for uuid, error in part.items()}

    async def _change(self, found: Versioned[ClaimRecord], changed: ClaimRecord) -> Versioned[ClaimRecord] | None:
        """Change a record by compare-and-set; None: somebody else has changed it."""
        if self._report.dry_run:
            return Versioned(changed, found.version)
        return await self._scope.context.claim_record(self._scope.topic, changed.stem).replace(found, changed)

    async def _is_unchanged(self, found: Versioned[ClaimRecord]) -> bool:
        """Say whether a record is still the one that was read."""
        present = await self._scope.context.registers.head(layout.claim(self._scope.topic, found.value.stem))
        return present is not None and present.version == found.version


def _may_be_held(lease: ObjectInfo) -> bool:
    hint = size_hint.hint_of_lease(lease.size, lease.last_modified)
    return hint is None or hint.state == "held"

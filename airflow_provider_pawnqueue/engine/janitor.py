"""The janitor: one idempotent sweep of a topic, with a report (§5, Janitor). No delivery waits for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from airflow_provider_pawnqueue.engine import hint, layout
from airflow_provider_pawnqueue.engine.claims import records
from airflow_provider_pawnqueue.engine.claims.effects import carry_out
from airflow_provider_pawnqueue.engine.claims.keeping import lengthened
from airflow_provider_pawnqueue.engine.claims.moves import finish_move
from airflow_provider_pawnqueue.engine.claims.takeover import fence, free_to_take, is_over
from airflow_provider_pawnqueue.engine.errors import StoreError
from airflow_provider_pawnqueue.engine.gather import each
from airflow_provider_pawnqueue.engine.records import ClaimRecord
from airflow_provider_pawnqueue.engine.store.port import Done

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.claims.records import FoundRecord
    from airflow_provider_pawnqueue.engine.context import Context
    from airflow_provider_pawnqueue.engine.leases.lease import FoundLease
    from airflow_provider_pawnqueue.engine.store.port import ObjectInfo

#: What nobody wrote lately is a leftover: half a burial, a probe of a process that died.
LEFTOVER_AGE = 3600.0
#: How many objects one sweep looks at in detail; the next one goes on.
MOST = 10_000


@dataclass(slots=True)
class Report:
    """What a sweep found and did; after a dry run, what it would do."""

    topic: str
    dry_run: bool = False
    finished_effects: int = 0
    """Members of claims whose decisions were carried out here."""

    finished_moves: int = 0
    renewed_claims: int = 0
    """Open claims whose owners go on."""

    fenced_claims: int = 0
    closed_claims: int = 0
    removed_leases: int = 0
    removed_records: int = 0
    removed_leftovers: int = 0
    strangers: list[str] = field(default_factory=list)
    """Keys that nobody of ours has made. They are left alone."""

    failures: list[str] = field(default_factory=list)
    """What could not be done now; the next sweep tries it again."""


Verdict: TypeAlias = Literal["going", "ended"]

#: Asked about an open claim, by its record: does the run on whose behalf it was claimed still go on? None: not known.
Ask: TypeAlias = Callable[[ClaimRecord], Awaitable[Verdict | None]]


async def sweep(context: Context, topic: str, *, dry_run: bool, ask: Ask | None = None) -> Report:
    """Finish what others left, and remove what nobody needs.

    :param ask: speak for the owners of open claims: what goes on is renewed, what has ended without settling is fenced.
    """
    return await _Sweep(context, topic, Report(topic, dry_run), ask).run()


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
    def __init__(self, context: Context, topic: str, report: Report, ask: Ask | None) -> None:
        self._context = context
        self._topic = topic
        self._report = report
        self._ask = ask

    async def run(self) -> Report:
        # ⚑ §5: leases are listed before messages. A message that was there when its lease was listed is in the second
        # list, or was settled in between; the other way round, a lease of a new message would look like an orphan.
        leases = await self._list(layout.leases(self._topic))
        messages = await self._list(layout.messages(self._topic))
        claims = await self._list(layout.claims(self._topic))
        dead = await self._list(layout.dead_letters(self._topic))
        await self._claims(claims)
        await self._leases(leases, messages)
        await self._leftovers(dead)
        return self._report

    async def _claims(self, listed: list[ObjectInfo]) -> None:
        now = await self._context.now()
        wanted = []
        for info in listed:
            parsed = layout.parse_claim(info.key)
            if parsed is None:
                self._report.strangers.append(info.key)
                continue
            glance = hint.glance_at_record(info.size, info.last_modified)
            closed = glance is not None and glance.state == "closed"
            if closed and not self._is_past_retention(info, now):
                continue
            if self._ask is None and glance is not None and glance.state == "open" and glance.earliest > now:
                continue  # its holder works, and settles it itself
            wanted.append((layout.claim_stem(*parsed), info))
        await each(lambda one: self._claim(*one, now), wanted[:MOST], at_once=self._context.at_once)

    def _is_past_retention(self, info: ObjectInfo, now: float) -> bool:
        return now - info.last_modified.timestamp() > self._context.settings.claims.record_retention_seconds

    async def _claim(self, stem: str, info: ObjectInfo, now: float) -> None:
        standing = await records.read(self._context, self._topic, stem)
        if standing is None:
            return
        if standing.record.state == "closed":
            if self._is_past_retention(info, now):
                self._report.removed_records += await self._delete([info.key])
        elif self._ask is not None and standing.record.state == "open" and await self._speak_for(standing, now):
            return
        elif is_over(self._context, standing.record.until, now):
            fenced = await self._fence(standing)
            if fenced is not None:
                await self._finish(fenced)

    async def _speak_for(self, standing: FoundRecord, now: float) -> bool:
        """Renew or end a claim on behalf of its owner; return whether that was all there was to do.

        By compare-and-set on what was read before the owner was asked about: it may have been cleared meanwhile.
        """
        record = standing.record
        verdict = await self._ask(record) if self._ask is not None else None
        if verdict == "going" and (until := lengthened(self._context, record, now + record.ttl)) > record.until:
            self._report.renewed_claims += 1
            if not self._report.dry_run:
                renewed = record.model_copy(update={"until": until})
                await records.change(self._context, self._topic, renewed, standing.version)
            return True
        if verdict == "ended":
            # ⚑ §4: fenced early, it still waits for its last time: its process may be alive and know nothing yet.
            return await self._fence(standing) is None or not is_over(self._context, record.until, now)
        return False

    async def _fence(self, standing: FoundRecord) -> FoundRecord | None:
        if standing.record.state != "open":
            return standing
        fenced = standing if self._report.dry_run else await fence(self._context, self._topic, standing)
        self._report.fenced_claims += fenced is not None
        return fenced

    async def _finish(self, standing: FoundRecord) -> None:
        """Carry out what a claim that is over had decided, and close its record.

        ⚑ §5.5: every crash point is finished by someone. Only when all that was decided is confirmed may the record,
        which alone remembers it, be closed and in time be deleted.
        """
        record = standing.record
        failed: Mapping[str, StoreError] = {}
        closed = True
        if not self._report.dry_run:
            failed = await carry_out(self._context, self._topic, record, list(record.settled), {})
            self._report.failures += [f"{record.stem}: {error}" for error in failed.values()]
            if failed:
                closed = False
            else:
                final = record.model_copy(update={"state": "closed"})
                outcome = await records.change(self._context, self._topic, final, standing.version)
                closed = isinstance(outcome, Done)
        self._report.finished_effects += len(record.settled) - len(failed)
        self._report.closed_claims += closed

    async def _leases(self, listed: list[ObjectInfo], messages: list[ObjectInfo]) -> None:
        here = {parsed.uuid: parsed.name for info in messages if (parsed := layout.parse_message(info.key))}
        self._report.strangers += [info.key for info in messages if layout.parse_message(info.key) is None]
        suspects = []
        for info in listed:
            uuid = layout.parse_lease(info.key)
            glance = hint.glance_at_lease(info.size, info.last_modified)
            if uuid is None:
                self._report.strangers.append(info.key)
            elif uuid not in here or (glance is not None and glance.state == "moving"):
                suspects.append(uuid)
        await self._suspects(suspects[:MOST], here)

    async def _move(self, uuid: str, found: FoundLease) -> None:
        if not is_over(self._context, found.lease.until, await self._context.now()):
            return
        if not self._report.dry_run:
            try:
                await finish_move(self._context, self._topic, uuid, found)
            except StoreError as error:
                self._report.failures.append(f"{found.lease.key}: {error}")
                return
        self._report.finished_moves += 1

    async def _suspects(self, uuids: list[str], here: Mapping[str, str]) -> None:
        """Finish moves, and remove leases that stand for no message: the last trace of one that was settled."""

        async def candidate(uuid: str) -> FoundLease | None:
            found = await self._context.read_lease(self._topic, uuid)
            if found is not None and found.lease.state == "moving":
                await self._move(uuid, found)
            if found is None or found.lease.state == "moving" or uuid in here:
                return None
            # A lease that does not name its message was written by a stranger: the list of messages is all there is.
            name = found.lease.key
            if name and await self._context.store.head(layout.message(self._topic, name)) is not None:
                return None
            # ⚑ §5: then GET the lease again: what is removed is what was there after the message was looked for.
            again = await self._context.read_lease(self._topic, uuid)
            return again if again is not None and again.version == found.version else None

        found = dict(zip(uuids, await each(candidate, uuids, at_once=self._context.at_once), strict=True))
        standing = {uuid: one for uuid, one in found.items() if one is not None}
        if self._report.dry_run:
            self._report.removed_leases += await self._count_free(standing)
            return
        # ⚑ §5: overdue, and free by the rules of take-over: its claim can never settle it again.
        free = await free_to_take(self._context, self._topic, standing)
        self._report.removed_leases += await self._delete([layout.lease(self._topic, uuid) for uuid in free])

    async def _count_free(self, orphans: Mapping[str, FoundLease]) -> int:
        """Count what :func:`free_to_take` would find free, without ending anything for it."""
        now = await self._context.now()
        over = {
            uuid: found
            for uuid, found in orphans.items()
            if (now >= found.lease.until if found.lease.state == "released" else self._is_over(found, now))
        }
        stems = {found.lease.claim for found in over.values() if found.lease.state == "held"}
        known = [stem for stem in stems if layout.parse_claim(f"{stem}.json") is not None]

        async def read(stem: str) -> FoundRecord | None:
            return await records.read(self._context, self._topic, stem)

        claims = dict(zip(known, await each(read, known, at_once=self._context.at_once), strict=True))
        free = 0
        for uuid, found in over.items():
            standing = claims.get(found.lease.claim) if found.lease.state == "held" else None
            if standing is None or uuid not in standing.record.members:
                free += 1
            elif uuid not in standing.record.settled:  # those are finished with their claims, and counted there
                free += is_over(self._context, standing.record.until, now)
        return free

    def _is_over(self, found: FoundLease, now: float) -> bool:
        return is_over(self._context, found.lease.until, now)

    async def _leftovers(self, dead: list[ObjectInfo]) -> None:
        """Remove reasons whose dead letter is gone: requests of a burial that landed after a redrive."""
        now = await self._context.now()
        parsed = {info.key: layout.parse_dead_letter(info.key) for info in dead}
        letters = {one[0] for one in parsed.values() if one is not None and not one[1]}
        self._report.strangers += [key for key, one in parsed.items() if one is None]
        old = [
            one[0]
            for info in dead
            if (one := parsed[info.key]) is not None
            and one[1]
            and one[0] not in letters
            and now - info.last_modified.timestamp() > LEFTOVER_AGE
        ]
        alone = await each(self._is_alone, old, at_once=self._context.at_once)
        lone = [layout.dead_reason(self._topic, uuid) for uuid, yes in zip(old, alone, strict=True) if yes]
        self._report.removed_leftovers += await self._delete(lone)

    async def _is_alone(self, uuid: str) -> bool:
        """Say whether a reason will never have a dead letter: a burial that is not finished has its lease still.

        In this order: if the lease is gone, the letter is there, or was and has been redriven.
        """
        if await self._context.store.head(layout.lease(self._topic, uuid)) is not None:
            return False
        return await self._context.store.head(layout.dead_letter(self._topic, uuid)) is None

    async def _delete(self, keys: list[str]) -> int:
        if not keys or self._report.dry_run:
            return len(keys)
        failed = await self._context.store.delete(keys)
        self._report.failures += [f"{key}: {error}" for key, error in failed.items()]
        return len(keys) - len(failed)

    async def _list(self, folder: str) -> list[ObjectInfo]:
        return [info async for page in self._context.store.pages(folder) for info in page]

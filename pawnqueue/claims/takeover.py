"""Decide whether another claim's lease may be taken: only if that claim can never again renew or settle it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from pawnqueue.claims import effects, packs
from pawnqueue.domain import layout
from pawnqueue.domain.claim_record import ClaimRecord, Member
from pawnqueue.domain.judgement import UnitState, needs_record
from pawnqueue.domain.judgement import judge as judge_unit
from pawnqueue.domain.lease import Lease
from pawnqueue.errors import PawnQueueError, StoreError
from pawnqueue.events import TakenOver, logger_of
from pawnqueue.registers.register import Versioned
from pawnqueue.runtime.concurrency import for_each

if TYPE_CHECKING:
    from pawnqueue.claims.register_cache import CachedRecord
    from pawnqueue.context import Context

logger = logger_of("claims")

Leases: TypeAlias = Mapping[str, Versioned[Lease]]


@dataclass(slots=True)
class Judged:
    """What may be done with leases of other claims."""

    free: dict[str, Versioned[Lease]] = field(default_factory=dict)
    """They may be taken now. Their ``deliveries`` count hand-outs: one less than in a lease that handed out nothing."""

    decided: list[tuple[ClaimRecord, dict[str, str]]] = field(default_factory=list)
    """Settled by their claims, with the versions of their leases: only carrying that out is left to do."""

    faults: dict[str, PawnQueueError] = field(default_factory=dict)
    """Why it could not be found out for these."""


async def free_to_take(
    context: Context, topic: str, leases: Leases, *, dry_run: bool = False
) -> dict[str, Versioned[Lease]]:
    """Return those of the leases, by uuid, that may be taken now, and carry out what their claims had decided.

    :param dry_run: fence nothing and carry nothing out; return what would be free.
    """
    judged = await judge(context, topic, leases, dry_run=dry_run)
    for fault in judged.faults.values():
        raise fault
    if not dry_run:
        for record, versions in judged.decided:
            await effects.carry_out(context, topic, record, list(versions), versions)
    return judged.free


async def judge(context: Context, topic: str, leases: Leases, *, dry_run: bool = False) -> Judged:
    """Return which of the leases may be taken. The record of each claim is read, and fenced, once."""
    judging = _Judging(context, topic, await context.now(), dry_run=dry_run)
    await judging.judge(leases)
    return judging.judged


async def fence(context: Context, topic: str, found: Versioned[ClaimRecord]) -> Versioned[ClaimRecord] | None:
    """End an open claim by compare-and-set; None: it is not known to be ended by us.

    ⚑ §4: only the process that has ended it is free to take what it held.

    :raises StoreError: the store does not take the record, now or later.
    """
    expired = found.value.model_copy(update={"state": "expired"})
    try:
        fenced = await context.claim_record(topic, expired.stem).replace(found, expired)
    except StoreError as error:
        if not error.transient:
            raise
        return None
    if fenced is None:
        return None
    messages = sum(expired.messages_left.values())
    context.events.tell(TakenOver(topic=topic, claim=expired.stem, consumer=expired.consumer, messages=messages))
    return fenced


class _Judging:
    """One judgement of leases of other claims."""

    def __init__(self, context: Context, topic: str, now: float, *, dry_run: bool) -> None:
        self._context = context
        self._topic = topic
        self._now = now
        self._dry_run = dry_run
        self.judged = Judged()

    async def judge(self, leases: Leases) -> None:
        by_claim: dict[str, dict[str, Versioned[Lease]]] = defaultdict(dict)
        for unit_id, found in leases.items():
            if needs_record(found.value, self._now, self._context.margin):
                by_claim[found.value.claim][unit_id] = found
            elif self._state(found, unit_id, None) is UnitState.FREE:
                self.judged.free[unit_id] = found

        async def of_claim(stem: str) -> None:
            try:
                await self._judge_claim(stem, by_claim[stem])
            except PawnQueueError as error:
                # ⚑ §5.6: a record that cannot be read concerns only the messages of its claim.
                self.judged.faults.update(dict.fromkeys(by_claim[stem], error))

        await for_each(of_claim, by_claim, at_once=self._context.at_once)

    async def _judge_claim(self, stem: str, leases: Leases) -> None:
        judged = self.judged
        found = await self._context.claim_record(self._topic, stem).read()
        record = None if found is None else found.value
        by_state: dict[UnitState, dict[str, Versioned[Lease]]] = defaultdict(dict)
        for unit_id, lease in leases.items():
            by_state[self._state(lease, unit_id, record)][unit_id] = lease
        if found is None or record is None:
            if self._dry_run or await self._create_fenced(stem):
                judged.free.update(_not_handed_out(by_state[UnitState.UNRECORDED]))
            return
        decided = by_state[UnitState.DECIDED]
        # A claim that began once more, and did not get as far as its record, has newer leases than the record.
        anew = {uuid: one for uuid, one in decided.items() if _is_newer_of_pack(one.value, record.members[uuid])}
        judged.free.update(_not_handed_out(anew))
        versions: dict[str, str] = {uuid: lease.version for uuid, lease in decided.items() if uuid not in anew}
        if versions:
            judged.decided.append((record, versions))
        judged.free.update(_not_handed_out(by_state[UnitState.NOT_LISTED]))
        lapsed = by_state[UnitState.LAPSED]
        if lapsed and await self._has_ended(found):
            anew = {uuid: one for uuid, one in lapsed.items() if _is_newer(one.value, record.members[uuid])}
            judged.free.update(_not_handed_out(anew))
            # ⚑ §5.4: what was decided of some messages of a pack is carried out before anybody is given the others.
            in_part: dict[str, str] = {
                uuid: lease.version
                for uuid, lease in lapsed.items()
                if record.members[uuid].decided and uuid not in anew
            }
            if in_part:
                judged.decided.append((record.model_copy(update={"state": "expired"}), in_part))
            judged.free.update(
                {uuid: _handed_out(lease) for uuid, lease in lapsed.items() if uuid not in in_part and uuid not in anew}
            )

    def _state(self, lease: Versioned[Lease], unit_id: str, record: ClaimRecord | None) -> UnitState:
        return judge_unit(lease.value, unit_id, record, now=self._now, margin=self._context.margin).state

    async def _has_ended(self, found: Versioned[ClaimRecord]) -> bool:
        if found.value.state != "open" or self._dry_run:
            return True
        return await fence(self._context, self._topic, found) is not None

    async def _create_fenced(self, stem: str) -> bool:
        """Create the record of a claim that has none, as an expired one; return whether it is known to be created.

        ⚑ §4: its claimer may still be about to create the record, and finds then that it is too late.
        """
        claim_id, generation = layout.parse_stem(stem) or (stem, 0)
        record = ClaimRecord(claim_id=claim_id, generation=generation, state="expired", created_at=self._now)
        try:
            return await self._context.claim_record(self._topic, record.stem).create(record) is not None
        except StoreError:
            return False  # the outcome is unknown, so nothing is taken now


async def named_by_others(
    context: Context, topic: str, others: Iterable[CachedRecord], members: Collection[str]
) -> dict[str, float]:
    """Return which of these messages other claims' records name, and until when. Claims that are over are fenced first.

    ⚑ §6: a message that a live claim's record names belongs to that claim, whatever a lease says. Where a PUT that
    lands late may overwrite what was won, a lease alone does not tell. A claim that has recorded what it won looks
    here: of two rivals, at least one sees the other's record.
    """
    now = await context.now()
    ours: dict[str, list[str]] = defaultdict(list)
    for unit_id in members:
        ours[layout.uuid_of(unit_id)].append(unit_id)

    async def named(known: CachedRecord) -> dict[str, float]:
        # Of a pack, one may have all of it and the other a slice.
        theirs = ((unit_id, ours.get(layout.uuid_of(unit_id), ())) for unit_id in known.unsettled)
        shared = [one for unit_id, some in theirs for one in some if layout.do_overlap(unit_id, one)]
        if shared and context.is_over(known.free_at, now):
            if known.state != "open":
                return {}
            try:
                record = await context.claim_record(topic, known.stem).read()
                is_same = record is not None and record.version == known.version
                if record is not None and is_same and await fence(context, topic, record) is not None:
                    return {}
            except PawnQueueError as error:
                # ⚑ §5.6: a record that cannot be fenced concerns only the messages that it names.
                logger.warning("Claim %s of topic %r is over and could not be fenced: %s", known.stem, topic, error)
        return dict.fromkeys(shared, known.free_at + context.margin)

    found: dict[str, float] = {}
    for part in await for_each(named, others, at_once=context.at_once):
        found.update(part)
    return found


def _is_newer(lease: Lease, member: Member) -> bool:
    """Say whether a lease is newer than the record of the claim that it names."""
    return _is_newer_of_pack(lease, member) if member.is_pack else lease.deliveries > member.deliveries


def _is_newer_of_pack(lease: Lease, member: Member) -> bool:
    return member.is_pack and not packs.is_of(lease, member)


def _handed_out(found: Versioned[Lease]) -> Versioned[Lease]:
    return replace(found, value=packs.after_hand_out(found.value)) if found.value.shares else found


def _not_handed_out(leases: Leases) -> dict[str, Versioned[Lease]]:
    """Return the leases with one delivery less. ⚑ §4: deliveries are hand-outs; what was not recorded is none."""
    return {
        uuid: replace(found, value=found.value.model_copy(update={"deliveries": max(found.value.deliveries - 1, 0)}))
        for uuid, found in leases.items()
    }

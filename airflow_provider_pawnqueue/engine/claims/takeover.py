"""Take-over: may a lease that another claim has be taken? Only when that claim can never again renew or settle it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from airflow_provider_pawnqueue.engine import hint, layout
from airflow_provider_pawnqueue.engine.claims import records
from airflow_provider_pawnqueue.engine.claims.effects import carry_out
from airflow_provider_pawnqueue.engine.errors import PawnQueueError
from airflow_provider_pawnqueue.engine.gather import each
from airflow_provider_pawnqueue.engine.leases.lease import FoundLease
from airflow_provider_pawnqueue.engine.records import ClaimRecord
from airflow_provider_pawnqueue.engine.store.port import Done, Unknown

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.claims.records import FoundRecord
    from airflow_provider_pawnqueue.engine.context import Context
    from airflow_provider_pawnqueue.engine.store.port import ObjectInfo

Leases: TypeAlias = Mapping[str, FoundLease]


@dataclass(slots=True)
class Judged:
    """What may be done with leases that others have, or had."""

    free: dict[str, FoundLease] = field(default_factory=dict)
    """They may be taken now. Their ``deliveries`` are those that were: a lease of which nothing was handed out is one
    less than it says."""

    decided: list[tuple[ClaimRecord, dict[str, str]]] = field(default_factory=list)
    """Settled by their claims and not carried out: with the versions of their leases: that is all there is to do."""

    faults: dict[str, PawnQueueError] = field(default_factory=dict)
    """It could not be found out."""


async def free_to_take(context: Context, topic: str, leases: Leases) -> dict[str, FoundLease]:
    """Return those of the leases, by uuid, that may be taken now. What their claims had decided is carried out."""
    judged = await judge(context, topic, leases)
    for fault in judged.faults.values():
        raise fault
    for record, versions in judged.decided:
        await carry_out(context, topic, record, list(versions), versions)
    return judged.free


async def judge(context: Context, topic: str, leases: Leases) -> Judged:
    """Find out which of the leases may be taken. The claim of many leases is read, and fenced, once."""
    now = await context.now()
    judged = Judged()
    by_claim: dict[str, dict[str, FoundLease]] = defaultdict(dict)
    for uuid, found in leases.items():
        lease = found.lease
        if lease.state == "released":
            if now >= lease.until:
                judged.free[uuid] = found
        elif lease.state == "moving" or not is_over(context, lease.until, now):
            continue  # a move is finished by who redrives or sweeps
        elif layout.parse_claim(f"{lease.claim}.json") is None:
            judged.free[uuid] = found  # garbage, or pawn-queue's: there is no record to fence, only a time that is over
        else:
            by_claim[lease.claim][uuid] = found

    async def of_claim(stem: str) -> None:
        try:
            await _judge_claim(context, topic, stem, by_claim[stem], now, judged)
        except PawnQueueError as error:
            # ⚑ §5.6: a record that cannot be read concerns the messages of its claim.
            judged.faults.update(dict.fromkeys(by_claim[stem], error))

    await each(of_claim, by_claim, at_once=context.at_once)
    return judged


def is_over(context: Context, until: float, now: float) -> bool:
    """⚑ §2: a taker waits until the margin after a claim's time, as its holder stops the margin before it."""
    return now >= until + context.margin


async def fence(context: Context, topic: str, standing: FoundRecord) -> FoundRecord | None:
    """⚑ §4: end an open claim by compare-and-set. Only who wins that is free to take what it held."""
    expired = standing.record.model_copy(update={"state": "expired"})
    outcome = await records.change(context, topic, expired, standing.version)
    if isinstance(outcome, Unknown) and not outcome.fault.transient:
        raise outcome.fault
    return records.FoundRecord(expired, outcome.version) if isinstance(outcome, Done) else None


async def _judge_claim(  # noqa: PLR0913, PLR0917 - one claim of many
    context: Context, topic: str, stem: str, leases: Leases, now: float, judged: Judged
) -> None:
    standing = await records.read(context, topic, stem)
    if standing is None:
        if await _create_fenced(context, topic, stem, now):
            judged.free.update(_not_handed_out(leases))
        return
    record = standing.record
    decided: dict[str, str] = {uuid: found.version for uuid, found in leases.items() if uuid in record.settled}
    if decided:
        # ⚑ §5.3: they were settled, only not carried out. Doing it is all that is left; they are not delivered again.
        judged.decided.append((record, decided))
    # A lease that landed late: its claim was recorded without it.
    judged.free.update(_not_handed_out({uuid: one for uuid, one in leases.items() if uuid not in record.members}))
    undecided = {uuid: found for uuid, found in leases.items() if uuid in record.members and uuid not in record.settled}
    # ⚑ §4: open, or fenced early on behalf of somebody: its process may be alive and know nothing yet.
    if undecided and is_over(context, record.free_at, now):
        over = record.state != "open" or await fence(context, topic, standing) is not None
        if over:
            # Begun once more, and not as far as its record: it is another lease of the same claim that was recorded.
            anew = {u: one for u, one in undecided.items() if one.lease.deliveries > record.members[u].deliveries}
            judged.free.update({**undecided, **_not_handed_out(anew)})


async def named_by_others(context: Context, topic: str, stem: str, members: Collection[str]) -> dict[str, float]:
    """Return which of these messages a claim has that is not this one, and until when.

    ⚑ §6: a message that a live claim's record names is that claim's, whatever a lease says. Where what was won may be
    overwritten (by a PUT that lands late), a lease alone does not tell. A claim that has recorded what it won looks
    here: of two rivals, at least one sees the other's record. What is over, and not fenced yet, is fenced first.
    """
    now = await context.now()
    listed = [info async for page in context.registers.pages(layout.claims(topic)) for info in page]

    async def named(info: ObjectInfo) -> dict[str, float]:
        parsed = layout.parse_claim(info.key)
        glance = hint.glance_at_record(info.size, info.last_modified)
        other = layout.claim_stem(*parsed) if parsed else stem
        if other == stem or (glance is not None and glance.state == "closed"):
            return {}
        standing = await records.read(context, topic, other)
        if standing is None or standing.record.state == "closed":
            return {}
        shared = [uuid for uuid in standing.record.unsettled if uuid in members]
        over = bool(shared) and is_over(context, standing.record.free_at, now)
        if over and (standing.record.state != "open" or await fence(context, topic, standing) is not None):
            return {}
        return dict.fromkeys(shared, standing.record.free_at + context.margin)

    found: dict[str, float] = {}
    for part in await each(named, listed, at_once=context.at_once):
        found.update(part)
    return found


def _not_handed_out(leases: Leases) -> dict[str, FoundLease]:
    """⚑ §4: deliveries are hand-outs. What was won and never recorded was given to nobody."""
    return {
        uuid: replace(found, lease=found.lease.model_copy(update={"deliveries": max(found.lease.deliveries - 1, 0)}))
        for uuid, found in leases.items()
    }


async def _create_fenced(context: Context, topic: str, stem: str, now: float) -> bool:
    """⚑ §4: its claimer may still be about to create the record, and is to find out then that it came too late."""
    claim_id, _, generation = stem.rpartition(".")
    record = ClaimRecord(claim_id=claim_id, generation=int(generation), state="expired", created_at=now)
    return isinstance(await records.create(context, topic, record), Done)

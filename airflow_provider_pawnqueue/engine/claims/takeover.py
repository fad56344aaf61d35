"""Take-over: may a lease that another claim has be taken? Only when that claim can never again renew or settle it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from airflow_provider_pawnqueue.engine import layout
from airflow_provider_pawnqueue.engine.claims import records
from airflow_provider_pawnqueue.engine.claims.effects import carry_out
from airflow_provider_pawnqueue.engine.gather import each
from airflow_provider_pawnqueue.engine.leases.lease import FoundLease
from airflow_provider_pawnqueue.engine.records import ClaimRecord
from airflow_provider_pawnqueue.engine.store.port import Done

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.claims.records import FoundRecord
    from airflow_provider_pawnqueue.engine.context import Context

Leases: TypeAlias = Mapping[str, FoundLease]


async def free_to_take(context: Context, topic: str, leases: Leases) -> dict[str, FoundLease]:
    """Return those of the leases, by uuid, that may be taken now. What their claims had decided is carried out.

    The claim of many leases is read, and fenced, once.
    """
    now = await context.now()
    free: dict[str, FoundLease] = {}
    by_claim: dict[str, dict[str, FoundLease]] = defaultdict(dict)
    for uuid, found in leases.items():
        lease = found.lease
        if lease.state == "released":
            if now >= lease.until:
                free[uuid] = found
        elif lease.state == "moving" or not is_over(context, lease.until, now):
            continue  # a move is finished by who redrives or sweeps
        elif layout.parse_claim(f"{lease.claim}.json") is None:
            free[uuid] = found  # garbage, or pawn-queue's: there is no record to fence, only a time that is over
        else:
            by_claim[lease.claim][uuid] = found

    async def judge(stem: str) -> Leases:
        return await _free_of_claim(context, topic, stem, by_claim[stem], now)

    for part in await each(judge, by_claim, at_once=context.at_once):
        free.update(part)
    return free


def is_over(context: Context, until: float, now: float) -> bool:
    """⚑ §2: a taker waits until the margin after a claim's time, as its holder stops the margin before it."""
    return now >= until + context.margin


async def fence(context: Context, topic: str, standing: FoundRecord) -> FoundRecord | None:
    """⚑ §4: end an open claim by compare-and-set. Only who wins that is free to take what it held."""
    expired = standing.record.model_copy(update={"state": "expired"})
    outcome = await records.change(context, topic, expired, standing.version)
    return records.FoundRecord(expired, outcome.version) if isinstance(outcome, Done) else None


async def _free_of_claim(context: Context, topic: str, stem: str, leases: Leases, now: float) -> Leases:
    standing = await records.read(context, topic, stem)
    if standing is None:
        return leases if await _create_fenced(context, topic, stem, now) else {}
    record = standing.record
    decided = [uuid for uuid in leases if uuid in record.settled]
    if decided:
        # ⚑ §5.3: they were settled, only not carried out. Doing it is all that is left; they are not delivered again.
        await carry_out(context, topic, record, decided, {uuid: leases[uuid].version for uuid in decided})
    # A lease that landed late: its claim was recorded without it.
    free = {uuid: found for uuid, found in leases.items() if uuid not in record.members}
    undecided = {uuid: found for uuid, found in leases.items() if uuid in record.members and uuid not in record.settled}
    # ⚑ §4: open, or fenced early on behalf of somebody: its process may be alive and know nothing yet.
    if undecided and is_over(context, record.until, now):
        over = record.state != "open" or await fence(context, topic, standing) is not None
        if over:
            free.update(undecided)
    return free


async def _create_fenced(context: Context, topic: str, stem: str, now: float) -> bool:
    """⚑ §4: its claimer may still be about to create the record, and is to find out then that it came too late."""
    claim_id, _, generation = stem.rpartition(".")
    record = ClaimRecord(claim_id=claim_id, generation=int(generation), state="expired", created_at=now)
    return isinstance(await records.create(context, topic, record), Done)

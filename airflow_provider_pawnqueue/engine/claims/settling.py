"""Settle: one compare-and-set writes the decisions into the record, and only then come their effects (§4)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine import layout
from airflow_provider_pawnqueue.engine.claims import records
from airflow_provider_pawnqueue.engine.claims.effects import carry_out
from airflow_provider_pawnqueue.engine.errors import PawnQueueError
from airflow_provider_pawnqueue.engine.records import Decision
from airflow_provider_pawnqueue.engine.store.port import Done, Unknown

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.claims.claim import Claim
    from airflow_provider_pawnqueue.engine.context import Context

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Settled:
    """By the uuid in the message's key: what stands in the record, what was lost, what nobody can tell."""

    decided: dict[str, Decision] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)


async def settle(context: Context, claim: Claim, decisions: Mapping[str, Decision]) -> Settled:
    """Decide these members' fate, or find that it was decided before: the first decision stands."""
    async with claim._lock:  # noqa: SLF001 - this package's own
        result = await _decide(context, claim, decisions)
    # Without the lock: it may take long, and meanwhile the rest of the claim has to be renewed.
    try:
        await _carry_out(context, claim)
    except PawnQueueError as error:
        # That is no failure of the settlement: whoever meets what is left finishes it.
        logger.warning("Claim %s is settled, and not all of it could be carried out: %s", claim.claim_id, error)
    return result


async def _decide(context: Context, claim: Claim, decisions: Mapping[str, Decision]) -> Settled:
    wanted = set(decisions)
    backoff = context.store.backoff()
    while True:
        record = claim._record  # noqa: SLF001
        standing = {uuid: record.settled[uuid] for uuid in wanted if uuid in record.settled}
        # What the janitor gave back after the claim had ended is lost to whoever settles it now.
        late = {uuid for uuid, one in standing.items() if one.lost}
        before = {uuid: one for uuid, one in standing.items() if uuid not in late}
        new = {uuid: decisions[uuid] for uuid in decisions if uuid not in record.settled}
        if not new:
            return Settled(decided=before, lost=late)
        if record.state != "open" or not claim._is_ours():  # noqa: SLF001
            return Settled(decided=before, lost=late | set(new))
        changed = record.model_copy(update={"settled": {**record.settled, **new}})
        # ⚑ §4, §5.3: by compare-and-set on what we have read. Who was fenced is refused, and changes nothing.
        outcome = await records.change(context, claim.topic, changed, claim._version)  # noqa: SLF001
        if isinstance(outcome, Done):
            claim._now_at(changed, outcome.version)  # noqa: SLF001
            return Settled(decided={**before, **new})
        if isinstance(outcome, Unknown):
            return Settled(decided=before, unknown=set(new))
        # Refused: it was fenced, or an earlier write of ours has landed after all. Look, and go on from there.
        try:
            await claim._refresh(context)  # noqa: SLF001
        except PawnQueueError:
            return Settled(decided=before, unknown=set(new))
        if not await backoff.pause():
            return Settled(decided=before, unknown=set(new))


async def _carry_out(context: Context, claim: Claim) -> None:
    """Do what was decided, as far as nobody else of this process does it, and close the record after the last of it."""
    record, done, under_way = claim._record, claim._done, claim._under_way  # noqa: SLF001
    todo = [uuid for uuid in record.settled if uuid not in done and uuid not in under_way]
    under_way.update(todo)
    try:
        failed = await carry_out(context, claim.topic, record, todo, claim._leases)  # noqa: SLF001
    finally:
        under_way.difference_update(todo)
    done.update(uuid for uuid in todo if uuid not in failed)
    async with claim._lock:  # noqa: SLF001
        await _close(context, claim)


async def _close(context: Context, claim: Claim) -> None:
    """Close the record when all that it had was decided and carried out.

    Nobody can ask again for a claim whose id was made up and that was not handed over: its record is deleted at once,
    or every look at a busy topic would list a day's records. A lease of it that lands late finds none, and is fenced.
    """
    record = claim._record  # noqa: SLF001
    if record.state == "closed" or record.unsettled or not claim._done.issuperset(record.settled):  # noqa: SLF001
        return
    closed = record.model_copy(update={"state": "closed"})
    if claim._is_fleeting:  # noqa: SLF001
        if not await context.store.delete([layout.claim(claim.topic, record.stem)]):
            claim._now_at(closed, claim._version)  # noqa: SLF001
        return
    outcome = await records.change(context, claim.topic, closed, claim._version)  # noqa: SLF001
    if isinstance(outcome, Done):
        claim._now_at(closed, outcome.version)  # noqa: SLF001

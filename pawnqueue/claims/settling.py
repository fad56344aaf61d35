"""Settle messages: one compare-and-set writes the decisions into the claim record; their effects come after it (§4)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pawnqueue.claims import effects, record_retention
from pawnqueue.claims.claim import AllOfPack, Meant, OneMessage
from pawnqueue.claims.completed_log import log_completed
from pawnqueue.claims.renewing import contended_error
from pawnqueue.domain import layout
from pawnqueue.domain.claim_record import Decision
from pawnqueue.domain.settlement import SettledMembers, Settlement
from pawnqueue.errors import PawnQueueError, StoreError
from pawnqueue.events import logger_of
from pawnqueue.runtime.cancellation import shield_and_wait

if TYPE_CHECKING:
    from pawnqueue.claims.held import HeldClaim
    from pawnqueue.context import Context
    from pawnqueue.domain.claim_record import ClaimRecord

logger = logger_of("claims")

#: For how long after a decision its session knows that no janitor has carried it out.
FRESH_SECONDS = effects.HOLDER_WORKS_SECONDS / 2


def by_uuid(
    decisions: Mapping[Meant, Decision], uuids: Mapping[Meant, Sequence[str]], ids: Mapping[str, str]
) -> dict[str, Decision]:
    """Return decisions by the uuids under which the messages are kept, from decisions by what the caller meant.

    :param ids: the messages' own ids, by those uuids, as far as they are known. The record keeps them.
    """
    decided = {}
    for given, decision in decisions.items():
        for uuid in uuids[given]:
            message_id = ids.get(uuid, id_of(given))
            is_known = uuid == message_id or layout.is_of_pack(uuid)  # a pack's lines tell their ids
            decided[uuid] = decision if is_known else decision.model_copy(update={"id": message_id})
    return decided


def id_of(given: Meant) -> str:
    """Return the id of a message that was given as its id or as itself."""
    if isinstance(given, AllOfPack):
        return given.unit
    return given.id if isinstance(given, OneMessage) else given


def settlement_of(claim: HeldClaim, result: SettledMembers, uuids: Mapping[Meant, Sequence[str]]) -> Settlement:
    """Return what became of messages, by their ids: once for each that was meant.

    Those without uuids may be any of the messages that could not be read.
    """
    settlement = Settlement()
    names = {"acked": settlement.acked, "dead": settlement.buried, "released": settlement.released}
    former = claim.former_outcomes
    unnamed = names.get(next(iter(former)), settlement.lost) if len(former) == 1 else settlement.unknown
    unnamed += [id_of(given) for given, of_one in uuids.items() if not of_one]
    if result.fault is not None:
        settlement.fault = str(result.fault)
    elif settlement.unknown:
        settlement.fault = "Messages of the claim could not be read, so their ids are not known."
    named = _numbers_named(uuids)
    unknown = {layout.parse_entry(uuid)[0] for uuid in result.unknown}
    for given, of_one in uuids.items():
        if isinstance(given, AllOfPack):
            is_known = given.unit not in unknown
            _add_pack(settlement, claim, result, given.unit, named.get(given.unit, 0), is_known=is_known)
            continue
        message_id = id_of(given)
        if any(uuid in result.unknown for uuid in of_one):
            settlement.unknown.append(message_id)
        elif any(uuid in result.lost for uuid in of_one):
            settlement.lost.append(message_id)
        elif of_one:
            names.get(result.decided[of_one[0]].how, settlement.lost).append(message_id)
        for uuid in of_one:
            unit_id = layout.parse_entry(uuid)[0]
            if unit_id in result.unfinished:
                settlement.unfinished[message_id] = str(result.unfinished[unit_id])
    return settlement


def _numbers_named(uuids: Mapping[Meant, Sequence[str]]) -> dict[str, int]:
    """Return the numbers of the messages of packs that are named by themselves, by the packs' units."""
    named: dict[str, int] = {}
    for of_one in uuids.values():
        for unit_id, number in map(layout.parse_entry, of_one):
            if number is not None:
                named[unit_id] = named.get(unit_id, 0) | 1 << number
    return named


def _add_pack(  # noqa: PLR0913 - what is added, and what is known of it
    settlement: Settlement, claim: HeldClaim, result: SettledMembers, unit_id: str, but: int, *, is_known: bool
) -> None:
    """Add what became of the messages of a pack that was meant as a whole, without those that were named themselves."""
    names = {"acked": settlement.acked, "dead": settlement.buried, "released": settlement.released}
    given = claim.given_of(unit_id) & ~but
    if not is_known:
        settlement.unknown += claim.ids_in(unit_id, given)
        return
    for part in claim.record.parts_of(unit_id):
        of = part.of & given
        given &= ~of
        if of:
            outcome = settlement.lost if part.by == "other" else names.get(part.how, settlement.lost)
            outcome += claim.ids_in(unit_id, of)
    settlement.lost += claim.ids_in(unit_id, given)
    if unit_id in result.unfinished:
        of = claim.given_of(unit_id) & ~but
        settlement.unfinished.update(dict.fromkeys(claim.ids_in(unit_id, of), str(result.unfinished[unit_id])))


async def settle(context: Context, claim: HeldClaim, decisions: Mapping[str, Decision]) -> SettledMembers:
    """Write these decisions into the record, or find that others were made before: the first decision counts.

    Decisions that come while the record is being written go into the next write, all together: each write is as large
    as the claim.
    """
    batch = claim.gathering
    for uuid, decision in decisions.items():
        batch.setdefault(uuid, decision)
    result = await claim.settlements.do(id(batch), lambda: _settle_together(context, claim, batch))
    return result.of(decisions)


async def _settle_together(context: Context, claim: HeldClaim, batch: Mapping[str, Decision]) -> SettledMembers:
    try:
        async with claim.lock:
            claim.gathering = {}  # later decisions go into the next write
            # ⚑ §4: nobody has an answer before the decision is in the record.
            result = await shield_and_wait(_decide(context, claim, batch), context.clock)
    finally:
        if claim.gathering is batch:
            claim.gathering = {}
    # If it is cut off, others finish it only when the claim's time is over; closing the queue goes on with it.
    result.unfinished = await shield_and_wait(carry_out_decided(context, claim), context.clock)
    return result


async def carry_out_decided(context: Context, claim: HeldClaim, *, again: bool = False) -> dict[str, StoreError]:
    """Carry out what the claim has decided; return what is not done, and why. The settlement itself has succeeded.

    ⚑ §5.5: the queue tries again while it is open, and so does each process that finds what is left.

    :param again: it was tried before, and failures were logged as warnings then.
    """
    level = logging.DEBUG if again else logging.WARNING
    # Without the lock: it may take long, and the rest of the claim has to be renewed meanwhile.
    failed: dict[str, StoreError] = {}
    try:
        failed = await _carry_out(context, claim)
    except PawnQueueError as error:
        logger.log(
            level,
            "Claim %s of topic %r is settled, and its record could not be closed: %s",
            claim.claim_id,
            claim.topic,
            error,
        )
    if failed:
        why = next(iter(failed.values()))
        logger.log(
            level,
            "Claim %s of topic %r has decided of %d messages what could not be carried out yet. It is tried again "
            "while the queue is open, and by the janitor: %s",
            claim.claim_id,
            claim.topic,
            len(failed),
            why,
        )
    return failed


async def _decide(context: Context, claim: HeldClaim, decisions: Mapping[str, Decision]) -> SettledMembers:
    wanted = set(decisions)
    backoff = context.store.backoff()
    while True:
        record = claim.record
        settled = {uuid: decision for uuid in wanted if (decision := record.decision_of(uuid)) is not None}
        # What the janitor gave back after the claim had ended is lost to this settlement.
        lost = {uuid for uuid, decision in settled.items() if decision.by == "other"}
        # ⚑ §4: so is what the record does not list any more, as its lease alone means nothing. ⚑ §1: it is not decided
        # either: for its readers, a record that decides on other messages than its members is garbage as a whole.
        lost |= {uuid for uuid in wanted - settled.keys() if not record.has(uuid)}
        # ⚑ §4: each message has an answer, whatever becomes of the others: every result below has the lost ones.
        before = {uuid: decision for uuid, decision in settled.items() if uuid not in lost}
        new = {uuid: decisions[uuid] for uuid in decisions if uuid not in settled and uuid not in lost}
        if not new:
            return SettledMembers(decided=before, lost=lost)
        if record.state != "open" or not claim.is_ours():
            return SettledMembers(decided=before, lost=lost | set(new))
        changed = record.with_decisions(new)
        began = context.clock.elapsed()
        # ⚑ §4, §5.3: by compare-and-set on what we have read. A claim that was fenced is refused, and changes nothing.
        try:
            if await claim.replace_record(context, changed):
                claim.untried.update(dict.fromkeys(changed.settled.keys() - record.settled.keys(), began))
                return SettledMembers(decided={**before, **_decided_first(changed, new)}, lost=lost)
            fault = contended_error(claim, "settled", "settle")
        except StoreError as error:
            fault = error
        # It was fenced, or another process has written the record, or the outcome of our write is unknown. Read the
        # record, and go on from there.
        try:
            await claim.refresh(context)
        except PawnQueueError as error:
            return SettledMembers(decided=before, lost=lost, unknown=set(new), fault=error)
        if not await backoff.pause():
            return SettledMembers(decided=before, lost=lost, unknown=set(new), fault=fault)


def _decided_first(record: ClaimRecord, new: Mapping[str, Decision]) -> dict[str, Decision]:
    """Return new decisions, but of a message whose pack was decided as a whole in the same write what that one says."""
    return {
        entry: (record.decision_of(entry) or decision) if unit_id != entry and unit_id in new else decision
        for entry, decision in new.items()
        for unit_id in [layout.parse_entry(entry)[0]]
    }


async def _carry_out(context: Context, claim: HeldClaim) -> dict[str, StoreError]:
    """Carry out the decisions that no other task of this process carries out. After the last one, close the record."""
    await record_retention.keep_if_needed(context, claim)
    await _log_completed(context, claim)
    record, done, under_way = claim.record, claim.done, claim.under_way
    todo = [uuid for uuid in record.settled if uuid not in done and uuid not in under_way]
    under_way.update(todo)
    # ⚑ §5.6: what was decided or tried before may be carried out already. What this session has just decided is not,
    # as a janitor waits for its holder, and a taker for the end of the lease. (A claim that is renewed outlives its
    # leases: §5.6 says what that leaves.)
    fresh = {uuid: claim.untried.pop(uuid) for uuid in todo if uuid in claim.untried}
    fresh_until = min(min(fresh.values(), default=0.0) + FRESH_SECONDS, claim.trusted_until())
    try:
        failed = await effects.carry_out(
            context,
            claim.topic,
            record,
            todo,
            claim.leases,
            is_held=lambda uuid: uuid in fresh and context.clock.elapsed() < fresh_until,
            at_last=lambda: _record_to_delete(claim, todo),
        )
    finally:
        under_way.difference_update(todo)
    done.update(uuid for uuid in todo if uuid not in failed)
    if not failed and _record_to_delete(claim, todo) is not None:
        claim.remember_deletion()
        return {}
    failed.pop(layout.claim(claim.topic, record.stem), None)
    async with claim.lock:
        await _close(context, claim)
    return failed


async def _log_completed(context: Context, claim: HeldClaim) -> None:
    """Log what the claim has acked, once, when all of it is decided.

    ⚑ §4: before its messages are deleted. If this process dies in between, the one that finishes the claim finds it
    logged.
    """
    if claim.is_logged or not claim.record.is_settled:
        return
    await log_completed(
        context,
        claim.topic,
        claim.record,
        ids_in=lambda unit_id, of: claim.ids_in(unit_id, of) if layout.is_of_pack(unit_id) else [claim.id_of(unit_id)],
        payloads=lambda: {message.unit: message.payload for message in claim} if claim.has_payloads else {},
    )
    claim.is_logged = True


def _record_to_delete(claim: HeldClaim, todo: list[str]) -> str | None:
    """Return the key of the record if it can be deleted with the last leases, else None.

    Nobody can ask again for a claim whose id was made up and that was not handed over. If its record were closed
    instead, every poll of a busy topic would list a day's records.

    One request deletes it with the leases. Their messages are gone by then, so a lease that stays behind is garbage,
    whatever its claim was. A lease of the claim that lands late finds no record, and is fenced.
    """
    record = claim.record
    if not claim.is_fleeting or not claim.is_done(todo) or record.state == "closed":
        return None
    return layout.claim(claim.topic, record.stem)


async def _close(context: Context, claim: HeldClaim) -> None:
    """Close the record if all members are settled and all decisions are carried out; delete it if it is fleeting."""
    record = claim.record
    if record.state == "closed" or not claim.is_done():
        return
    if claim.is_fleeting:
        if not await context.registers.delete([layout.claim(claim.topic, record.stem)]):
            claim.remember_deletion()
        return
    closed = await context.claim_record(claim.topic, record.stem).close(claim.found, is_trace=claim.is_trace)
    if closed is not None:
        claim.remember(closed)

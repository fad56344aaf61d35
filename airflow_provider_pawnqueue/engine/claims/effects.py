"""Carry out what a claim record has decided: the consumer that decided it, or whoever finds it unfinished.

Every step may be repeated, and may land late: a decision in the record is final, so doing it again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine import layout
from airflow_provider_pawnqueue.engine.clock import iso
from airflow_provider_pawnqueue.engine.errors import StoreError
from airflow_provider_pawnqueue.engine.gather import each
from airflow_provider_pawnqueue.engine.leases import lease as leases
from airflow_provider_pawnqueue.engine.leases.cas import Step
from airflow_provider_pawnqueue.engine.records import DeadReason
from airflow_provider_pawnqueue.engine.store.port import Done, Refused, Unknown

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.context import Context
    from airflow_provider_pawnqueue.engine.records import ClaimRecord, Decision, Lease


async def carry_out(
    context: Context, topic: str, record: ClaimRecord, uuids: Iterable[str], versions: Mapping[str, str]
) -> dict[str, StoreError]:
    """Do what was decided of these members; return those of which it is not confirmed.

    :param versions: the versions of their leases, where the caller knows them.
    """
    todo = [uuid for uuid in uuids if uuid in record.settled]
    dead = [uuid for uuid in todo if record.settled[uuid].how == "dead"]
    released = [uuid for uuid in todo if record.settled[uuid].how == "released"]
    finished = [uuid for uuid in todo if record.settled[uuid].how in ("acked", "gone")]

    failed: dict[str, StoreError] = {}
    buried = await each(lambda uuid: _bury(context, topic, record, uuid), dead, at_once=context.at_once)
    for uuid, fault in zip(dead, buried, strict=True):
        if fault is None:
            finished.append(uuid)
        else:
            # ⚑ §4: a COPY that is not known to have succeeded never leads to a DELETE.
            failed[uuid] = fault
    failed.update(await _remove(context, topic, record, finished))
    failed.update(await _release(context, topic, record, released, versions))
    return failed


async def _bury(context: Context, topic: str, record: ClaimRecord, uuid: str) -> StoreError | None:
    """Put reason and copy beside each other; return why that is not confirmed, or None."""
    decision = record.settled[uuid]
    member = record.members[uuid]
    reason = DeadReason(
        reason=decision.reason,
        error=decision.error,
        deliveries=member.deliveries,
        consumer=record.consumer,
        claim=record.stem,
        at=iso(decision.until or record.until),
        name=member.name,
    )
    try:
        # The reason goes first: a dead letter without one would have lost the key that it had.
        await context.store.overwrite(layout.dead_reason(topic, uuid), reason.encode())
        outcome = await context.store.copy(layout.message(topic, member.name), layout.dead_letter(topic, uuid))
    except StoreError as error:
        return error
    if isinstance(outcome, Unknown):
        return outcome.fault
    # A source that is not there was buried before, by whoever else carried this out.
    return None


async def _remove(context: Context, topic: str, record: ClaimRecord, uuids: list[str]) -> dict[str, StoreError]:
    """⚑ §4: message before lease, always. A lease without a message is garbage; the reverse is delivered again."""
    failed: dict[str, StoreError] = {}
    keys = {layout.message(topic, record.members[uuid].name): uuid for uuid in uuids if not _is_gone(record, uuid)}
    for key, error in (await context.store.delete(list(keys)) if keys else {}).items():
        failed[keys[key]] = error
    left = {layout.lease(topic, uuid): uuid for uuid in uuids if uuid not in failed}
    for key, error in (await context.store.delete(list(left)) if left else {}).items():
        failed[left[key]] = error
    return failed


def _is_gone(record: ClaimRecord, uuid: str) -> bool:
    return record.settled[uuid].how == "gone"


async def _release(
    context: Context, topic: str, record: ClaimRecord, uuids: list[str], versions: Mapping[str, str]
) -> dict[str, StoreError]:
    """Let others have the messages, from the decided time on: by compare-and-set, as a lease is a register."""
    now = context.time.estimate()

    async def step(uuid: str) -> Step | None:
        decision = record.settled[uuid]
        key = layout.lease(topic, uuid)
        version = versions.get(uuid)
        if version is None:
            found = await context.read_lease(topic, uuid)
            if found is None or found.lease.claim != record.stem or found.lease.state != "held":
                return None  # somebody has carried it out, and perhaps others have had the message since
            version = found.version
        return Step(key, _released(record, uuid, decision, now), version)

    steps = dict(zip(uuids, await each(step, uuids, at_once=context.at_once), strict=True))
    wanted = [uuid for uuid, one in steps.items() if one is not None]
    outcomes = await context.registers.write([one for one in steps.values() if one is not None])
    failed: dict[str, StoreError] = {}
    for uuid, outcome in zip(wanted, outcomes, strict=True):
        match outcome:
            case Done():
                pass
            case Unknown(fault):
                failed[uuid] = fault
            case Refused():
                # The version was not (any more) the one that we knew: look who has it now.
                found = await context.read_lease(topic, uuid)
                if found is not None and found.lease.claim == record.stem and found.lease.state == "held":
                    failed[uuid] = StoreError(f"The lease of {uuid} is being written.", transient=True, topic=topic)
    return failed


def _released(record: ClaimRecord, uuid: str, decision: Decision, now: float) -> Lease:
    member = record.members[uuid]
    return leases.released(
        uuid,
        member.name,
        consumer=record.consumer,
        claim=record.stem,
        deliveries=member.deliveries,
        until=decision.until,
        now=now,
    )

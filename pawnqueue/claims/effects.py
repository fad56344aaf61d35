"""Carry out the decisions of a claim record: by the consumer that made them, or a process that finds them unfinished.

Every step may be repeated, and may land late: a decision in the record is final, so doing it again changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from pawnqueue.catalog import units
from pawnqueue.claims import burying, pack_effects
from pawnqueue.claims.completed_log import log_completed
from pawnqueue.domain import layout
from pawnqueue.domain import lease as leases
from pawnqueue.domain.identifiers import Version
from pawnqueue.errors import CompatibilityError, PawnQueueError, StoreError
from pawnqueue.registers.strategy import Step
from pawnqueue.runtime.concurrency import for_each
from pawnqueue.stores.port import Refused, Unknown

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.claim_record import ClaimRecord, Decision
    from pawnqueue.domain.lease import Lease
    from pawnqueue.registers.register import Versioned

#: From this many leases on, a LIST shows which of them are stored, and only those are read.
MIN_LISTED_LEASES = 50
#: How many leases a LIST has to save the reading of, for each of its pages. Else all of them are read.
MIN_LEASES_A_PAGE = 5
#: A record that was written less than this long ago is left to its holder, whose requests are under way.
HOLDER_WORKS_SECONDS = 30.0


async def carry_out(  # noqa: PLR0913 - what is to be done, and what is known
    context: Context,
    topic: str,
    record: ClaimRecord,
    uuids: Iterable[str],
    versions: Mapping[str, str],
    *,
    is_held: Callable[[str], bool] = lambda _: False,
    at_last: Callable[[], str | None] = lambda: None,
) -> dict[str, StoreError]:
    """Carry out what was decided of these members; return those for which it is not confirmed, and why.

    :param versions: the versions of their leases, where the caller knows them.
    :param is_held: says of a member whether its lease is known to be the claim's: it is deleted without a look at it.
    :param at_last: called before the last leases are deleted, if all went well until then. It may return the key of a
        record to delete with them; that key is in the result if its deletion is not confirmed.
    """
    todo = [uuid for uuid in uuids if uuid in record.settled and uuid in record.members]
    packs = [uuid for uuid in uuids if uuid in record.members and pack_effects.is_needed(record, uuid)]
    apart = set(packs)
    todo = [uuid for uuid in todo if uuid not in apart]
    dead = [uuid for uuid in todo if record.settled[uuid].how == "dead"]
    given_back = [uuid for uuid in todo if record.settled[uuid].how == "released"]
    finished = [uuid for uuid in todo if record.settled[uuid].how in ("acked", "gone", "mixed")]

    failed: dict[str, StoreError] = {}

    ended = await pack_effects.carry_out(context, topic, record, packs, versions)
    for uuid, outcome in ended.items():
        if isinstance(outcome, StoreError):
            failed[uuid] = outcome
        elif outcome:
            finished.append(uuid)
    buried = await for_each(lambda uuid: _bury(context, topic, record, uuid), dead, at_once=context.at_once)
    for uuid, fault in zip(dead, buried, strict=True):
        if fault is None:
            finished.append(uuid)
        else:
            # ⚑ §4: a COPY that is not known to have succeeded never leads to a DELETE.
            failed[uuid] = fault
    failed.update(await _release(context, topic, record, given_back, versions))
    last = (lambda: None) if failed else at_last
    failed.update(await _remove(context, topic, record, finished, versions, is_held=is_held, at_last=last))
    return failed


async def finish(
    context: Context, topic: str, found: Versioned[ClaimRecord], carried_out: Awaitable[Mapping[str, PawnQueueError]]
) -> tuple[Mapping[str, PawnQueueError], Versioned[ClaimRecord] | None]:
    """Close the record of a claim that has ended, once all that it had decided is carried out.

    ⚑ §4: only when all of it is confirmed, as the record alone remembers it. Returns what is not confirmed, and the
    record as it is stored then: None where somebody else has changed it meanwhile.

    :raises StoreError: it is not known whether the record is closed.
    """
    failed = await carried_out
    if not failed:
        await log_completed(context, topic, found.value)
    return failed, found if failed else await context.claim_record(topic, found.value.stem).close(found)


async def _bury(context: Context, topic: str, record: ClaimRecord, uuid: str) -> StoreError | None:
    """Store the reason, and copy the message beside it; return why that is not confirmed, or None."""
    reason = burying.reason_of(record, uuid, record.members[uuid], record.settled[uuid])
    try:
        await burying.bury_object(context, topic, uuid, reason)
    except StoreError as error:
        return error
    return None


async def _remove(  # noqa: PLR0913 - what is to be removed, and what is known
    context: Context,
    topic: str,
    record: ClaimRecord,
    uuids: list[str],
    versions: Mapping[str, str],
    *,
    is_held: Callable[[str], bool],
    at_last: Callable[[], str | None],
) -> dict[str, StoreError]:
    """Delete messages and their leases; return those for which it is not confirmed, and why.

    ⚑ §4: message before lease, always. A lease without a message is garbage; the reverse is delivered again.
    """
    failed: dict[str, StoreError] = {}
    keys = {units.key_of(topic, record.members[uuid].name): uuid for uuid in uuids if not _is_gone(record, uuid)}
    for key, error in (await context.store.delete(list(keys)) if keys else {}).items():
        failed[keys[key]] = error
    left = [uuid for uuid in uuids if uuid not in failed]
    # ⚑ §5.6: any publisher may send another message under the uuid of one that is acked or buried. Once its lease may
    # have been deleted before, another claim may have it. So it is deleted only if it names this claim.
    doubtful = [uuid for uuid in left if not is_held(uuid)]
    held, unread = await _held_leases(context, topic, record.stem, doubtful, versions)
    failed.update(unread)
    known = {**{uuid: versions.get(uuid, "") for uuid in left if uuid not in doubtful}, **held}
    expected = {layout.lease(topic, uuid): Version(version) for uuid, version in known.items()}
    last = None if failed else at_last()  # a register like the leases: one request deletes all of them
    if last is not None:
        expected[last] = Version("")  # it may be renewed at this moment
    return {**failed, **await _delete_leases(context, topic, record, expected)}


async def _delete_leases(
    context: Context, topic: str, record: ClaimRecord, expected: dict[str, Version]
) -> dict[str, StoreError]:
    """Delete leases of the claim, and what else is to go with them, by their keys.

    Returned are the units of those for which it is not confirmed, or the key of what is no lease.

    ⚑ §5.6: a further attempt reads the leases again: if the first has landed, another claim may have them by now. A
    lease with another version than the expected one is another claim's; or it is garbage, which the janitor removes.
    """
    single_attempt, backoff = context.with_budget(0.0).registers, context.store.backoff()
    failed: dict[str, StoreError] = {}
    while expected:
        outcomes = await single_attempt.delete_versions(expected)
        unknown = {
            layout.parse_lease(key) or key: each.fault for key, each in outcomes.items() if isinstance(each, Unknown)
        }
        doubtful = {name: fault for name, fault in unknown.items() if fault.transient}
        failed.update({name: fault for name, fault in unknown.items() if name not in doubtful})
        if not doubtful:
            break
        why = next(iter(doubtful.values()))
        if not await backoff.pause(why):
            return {**failed, **{name: backoff.exceeded(fault) for name, fault in doubtful.items()}}
        before = {uuid: expected[key] for uuid in doubtful if (key := layout.lease(topic, uuid)) in expected}
        held, unread = await _held_leases(context, topic, record.stem, list(before), before)
        failed.update(unread)
        expected = {key: version for key, version in expected.items() if key in doubtful}
        expected.update({layout.lease(topic, uuid): Version(version) for uuid, version in held.items()})
    return failed


async def _held_leases(
    context: Context, topic: str, stem: str, uuids: Sequence[str], versions: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, StoreError]]:
    """Return the versions of those leases by which the claim still holds its messages, and why others are not known.

    :param versions: of the leases as this claim wrote them, where they are known: such a lease need not be read.
    """
    if not uuids:
        return {}, {}
    held: dict[str, str] = {}
    unread = list(uuids)
    try:
        listed = await _listed_leases(context, topic, uuids) if len(uuids) >= MIN_LISTED_LEASES else None
    except StoreError as error:
        return {}, dict.fromkeys(uuids, error)
    if listed is not None:
        held = {uuid: listed[uuid] for uuid in uuids if versions.get(uuid) and listed.get(uuid) == versions[uuid]}
        unread = [uuid for uuid in uuids if uuid in listed and uuid not in held]
    read, faults = await held_versions(context.with_budget(), topic, stem, unread)
    # A lease in a newer format (CompatibilityError) is somebody else's by now.
    return {**held, **read}, {uuid: fault for uuid, fault in faults.items() if isinstance(fault, StoreError)}


async def _listed_leases(context: Context, topic: str, uuids: Sequence[str]) -> dict[str, str] | None:
    """Return the versions of all leases of the topic; None: it has so many that it is cheaper to read these."""
    listed: dict[str, str] = {}
    pages_left = len(uuids) // MIN_LEASES_A_PAGE
    async with aclosing(context.registers.pages(layout.leases(topic))) as pages:
        async for page in pages:
            if not pages_left:
                return None
            pages_left -= 1
            listed.update({uuid: info.version for info in page if (uuid := layout.parse_lease(info.key)) is not None})
    return listed


def _is_gone(record: ClaimRecord, uuid: str) -> bool:
    return uuid in record.settled and record.settled[uuid].how == "gone"


async def _release(
    context: Context, topic: str, record: ClaimRecord, uuids: list[str], versions: Mapping[str, str]
) -> dict[str, StoreError]:
    """Write released leases, so that others may have the messages from the decided time on; return what failed."""
    if not uuids:
        return {}
    try:
        # This process may never have needed the store's time before. The lease's size is made from it, by which others
        # judge how long to leave the lease alone.
        now = await context.now()
    except StoreError as error:
        return dict.fromkeys(uuids, error)
    unread = [uuid for uuid in uuids if uuid not in versions]
    current, failed = await _versions_of_ours(context, topic, record, unread)
    # What holds no lease any more was carried out before, and others may have had the message since.
    wanted = {**{uuid: versions[uuid] for uuid in uuids if uuid in versions}, **current}
    steps = [
        Step(layout.lease(topic, uuid), released(record, uuid, record.settled[uuid], now), version)
        for uuid, version in wanted.items()
    ]
    outcomes = dict(zip(wanted, await context.registers.write(steps), strict=True))
    failed.update({uuid: outcome.fault for uuid, outcome in outcomes.items() if isinstance(outcome, Unknown)})
    # These leases had other versions than we knew: read which of them the claim holds now.
    refused = [uuid for uuid, outcome in outcomes.items() if isinstance(outcome, Refused)]
    current, unknown = await _versions_of_ours(context, topic, record, refused)
    failed.update(unknown)
    for uuid in current:
        failed[uuid] = StoreError(f"The lease of {uuid} is being written.", transient=True, topic=topic)
    return failed


async def _versions_of_ours(
    context: Context, topic: str, record: ClaimRecord, uuids: Iterable[str]
) -> tuple[dict[str, str], dict[str, StoreError]]:
    """Return the versions of those leases that this very claim still holds, and why others could not be read."""
    current, faults = await held_versions(context, topic, record.stem, uuids)
    # A lease in a newer format (CompatibilityError) is somebody else's by now: there is nothing to release.
    failed = {uuid: fault for uuid, fault in faults.items() if isinstance(fault, StoreError)}
    if current:
        # A claim's id may be used again when its record is gone, and then a lease that names it is another claim's.
        # The record is read after the leases: if it is still this claim's, so were they.
        try:
            found = await context.claim_record(topic, record.stem).read()
        except (StoreError, CompatibilityError) as error:
            return {}, {**failed, **dict.fromkeys(current, StoreError(str(error), transient=True, topic=topic))}
        if found is None or found.value.created_at != record.created_at:
            return {}, failed
    return current, failed


async def held_versions(
    context: Context, topic: str, stem: str, uuids: Iterable[str]
) -> tuple[dict[str, str], dict[str, PawnQueueError]]:
    """Read leases again; return the versions of those by which the claim still holds messages, and what failed."""
    wanted = list(uuids)
    faults: dict[str, PawnQueueError] = {}

    async def version(uuid: str) -> str | None:
        try:
            found = await context.lease(topic, uuid).read()
        except PawnQueueError as error:
            faults[uuid] = error
            return None
        return found.version if found is not None and leases.is_held_by(found.value, stem) else None

    versions = zip(wanted, await for_each(version, wanted, at_once=context.at_once), strict=True)
    return {uuid: each for uuid, each in versions if each is not None}, faults


def given_back(record: ClaimRecord, uuid: str, decision: Decision, lease: Lease, now: float) -> Lease:
    """Return the lease that gives a unit back that a claim has won by this one."""
    if not record.members[uuid].is_pack:
        return released(record, uuid, decision, now)
    return leases.released_pack(uuid, lease.key, lease.shares, consumer=record.consumer, claim=record.stem, now=now)


def released(record: ClaimRecord, uuid: str, decision: Decision, now: float) -> Lease:
    """Return the lease by which a claim lets others have a message, from the decided time on."""
    member = record.members[uuid]
    freed = leases.released(
        uuid,
        member.name,
        consumer=record.consumer,
        claim=record.stem,
        deliveries=decision.counted(member.deliveries),
        until=decision.until,
        now=now,
    )
    # The reason for giving it back is kept with it, in case that it is buried later.
    given = decision if decision.reason or decision.error else member
    return freed.model_copy(update={"reason": given.reason, "error": given.error})

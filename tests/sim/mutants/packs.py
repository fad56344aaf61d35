"""§4, §5: packs. A claim may have a part of one, and each of its messages is settled by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pawnqueue.catalog import unit_listing
from pawnqueue.claims import pack_effects, packs, splitting
from pawnqueue.claims.bodies import Bodies
from pawnqueue.claims.candidate import Candidate
from pawnqueue.claims.candidates import Finder
from pawnqueue.claims.claiming import Attempt
from pawnqueue.claims.held import HeldClaim
from pawnqueue.domain import layout, share
from pawnqueue.domain import lease as leases
from pawnqueue.domain.claim_record import ClaimRecord
from pawnqueue.maintenance.sweep_leases import LeaseSweep
from pawnqueue.registers.register import Versioned
from tests.sim.mutants.entering import Patches, mutant


@mutant(
    "§4.1 One LIST of both kinds of units counts only if it shows all",
    test="tests/pawnqueue/catalog/test_unit_listing.py::test_a_topic_with_many_units_is_listed_kind_by_kind",
)
def the_first_page_is_all() -> Patches:
    async def has_another_page(_: Any) -> bool:
        return False

    return [(unit_listing, "_has_another_page", has_another_page)]


@mutant("§5.4 A pack's lease forgets no message that is finished", 0, 3, arena="packs")
def finished_ones_come_back() -> Patches:
    original = pack_effects._shares_left

    def shares_left(record: ClaimRecord, unit_id: str, lease: Any) -> Any:
        left = original(record, unit_id, lease)
        return left and share.merged([*left, *share.only(record.members[unit_id].shares, ~share.union(left))])

    return [(pack_effects, "_shares_left", shares_left)]


@mutant("§5.1 Messages of a pack that its claim was not given stay in it", 0, 3, arena="packs")
def the_rest_is_dropped() -> Patches:
    original = pack_effects._shares_left

    def shares_left(record: ClaimRecord, unit_id: str, lease: Any) -> Any:
        return share.only(original(record, unit_id, lease), record.members[unit_id].given)

    return [(pack_effects, "_shares_left", shares_left)]


@mutant("§5.1 A pack is deleted when all of it is finished, and not what a claim had of it", 0, 2, arena="packs")
def deleted_with_messages_left() -> Patches:
    original = pack_effects.is_needed

    def is_needed(record: ClaimRecord, unit_id: str) -> bool:
        decision = record.settled.get(unit_id)
        return original(record, unit_id) and not (decision is not None and decision.how == "acked")

    return [(pack_effects, "is_needed", is_needed)]


@mutant("§5.4 What a claim has decided in part is carried out before its pack is taken", 3, 11, arena="packs")
def decided_in_part_is_taken() -> Patches:
    original = pack_effects._shares_left

    def shares_left(record: ClaimRecord, unit_id: str, lease: Any) -> Any:
        if unit_id in record.settled:
            return original(record, unit_id, lease)
        return share.merged([*share.only(lease.shares, ~lease.taken), *share.lapsed(record.members[unit_id].shares)])

    return [(pack_effects, "_shares_left", shares_left)]


@mutant("§5.4 Only the claim that holds a pack buries messages of it: their letters may be redriven", 2, arena="packs")
def buried_by_those_who_hold_it_no_more() -> Patches:
    async def held(context: Any, topic: str, record: ClaimRecord, unit_id: str) -> Any:
        found = await context.lease(topic, unit_id).read()
        if found is not None and found.value.shares:
            return found
        member = record.members[unit_id]
        lease = leases.held_pack(
            unit_id, member.name, member.shares, member.given, consumer="", claim=record.stem, until=0.0, ttl=0.0
        )
        return Versioned(lease, layout.lease(topic, unit_id))

    return [(pack_effects, "_held", held)]


@mutant(
    "§5.4 A lease that is newer than the record of its claim was handed out to nobody",
    test="tests/pawnqueue/claims/test_packs_apart.py::test_a_claim_that_begins_once_more_is_not_a_hand_out",
)
def newer_leases_were_handed_out() -> Patches:
    return [(packs, "is_of", lambda *_: True)]


@mutant("§4 Deliveries count hand-outs, of each message of a pack", 0, 3, arena="packs")
def deliveries_by_pack() -> Patches:
    def after_hand_out(lease: Any) -> Any:
        handed_out = share.lapsed(share.handed_out(lease.shares, share.union(lease.shares)))
        return lease.model_copy(update={"shares": share.merged(handed_out), "taken": 0})

    return [(packs, "after_hand_out", after_hand_out)]


@mutant("§4 Nobody is given more than max_messages", 0, 2, arena="packs")
def packs_are_taken_whole() -> Patches:
    return [(Candidate, "cut", lambda self, _: self), (Bodies, "_give_back_packed", lambda *_: False)]


@mutant(
    "§4 A retry that wants fewer messages is given fewer",
    test="tests/pawnqueue/claims/test_packs_apart.py::test_a_retry_that_wants_fewer_is_given_fewer",
)
def adopted_whole() -> Patches:
    return [(Bodies, "_give_back_packed", lambda *_: False)]


@mutant(
    "§4 A settlement tells only of messages that were handed out",
    test="tests/pawnqueue/claims/test_packs_apart.py::test_a_settlement_tells_of_what_was_given",
)
def settlements_tell_of_all() -> Patches:
    return [(HeldClaim, "given_of", lambda self, unit_id: self.record.members[unit_id].given)]


@mutant("§4 A delayed message of a pack waits, whatever else of it is due", 60, 83, arena="packs")
def delays_of_packs_are_ignored() -> Patches:
    original = packs.to_take

    def to_take(unit: Any, lease: Any, _: float, most: int | None, *more: int) -> int:
        return original(unit, lease, float("inf"), most, *more)

    return [(packs, "to_take", to_take)]


@mutant("§5.6 Messages whose claims lapse are taken in ever smaller groups", 72, 142, arena="packs")
def groups_stay_large() -> Patches:
    return [(packs, "_group_size", lambda count, *_: count)]


@mutant("§5.6 At its last delivery a message that may be bad is alone in its claim", 21, arena="packs")
def last_deliveries_are_shared() -> Patches:
    return [(packs, "is_to_be_alone", lambda *_: False)]


@mutant(
    "§5.6 A lease of another pack under the same uuid tells nothing of this one",
    test="tests/pawnqueue/claims/test_packs.py::test_another_pack_under_the_same_uuid_does_not_undo_a_settlement",
)
def shares_by_uuid() -> Patches:
    def shares_of(unit: Any, lease: Any) -> Any:
        return share.fresh(unit.numbers) if lease is None or lease.key != unit.name else list(lease.shares)

    return [(packs, "shares_of", shares_of)]


@mutant("§5.4 A slice begins with what was left of its pack when it was split", 8, 10, arena="packs")
def slices_begin_anew() -> Patches:
    return [(Candidate, "history", property(lambda self: None if self.lease is None else self.lease.value))]


@mutant("§5.1 A pack that is split is deleted when every slice says that it is done", 0, 2, arena="packs")
def slices_are_done_when_they_have_a_lease() -> Patches:
    original = splitting._lease_of

    async def lease_of(context: Any, topic: str, unit: Any) -> Any:
        found = await original(context, topic, unit)
        if found is None or unit.is_whole:
            return found
        return replace(found, value=found.value.model_copy(update={"state": "done"}))

    async def done_slices(context: Any, topic: str, beginning: str) -> set[str | None]:
        pages = context.registers.pages(layout.leases(topic), start_after=beginning)
        keys = [info.key async for page in pages for info in page if info.key.startswith(beginning)]
        return {layout.parse_lease(key) for key in keys}

    return [(splitting, "_lease_of", lease_of), (splitting, "_done_slices", done_slices)]


@mutant("§5.5 A pack of which all slices are done is deleted, even after a process has died", 35, arena="packs")
def nobody_ends_packs() -> Patches:
    async def finish_pack(*_: Any) -> None:
        pass

    return [(Finder, "_finish_pack", finish_pack), (LeaseSweep, "_finish_pack", finish_pack)]


@mutant("§5.7 A delayed message of a pack keeps no other one of it back", 39, 53, 88, arena="patience")
def packs_wait_for_all_delays() -> Patches:
    original = leases.released_pack

    def released_pack(unit_id: str, name: str, shares: Any, **more: Any) -> Any:
        made = original(unit_id, name, shares, **more)
        until = max(each.until for each in shares)
        return made.model_copy(update={"until": until, "ttl": max(0.0, until - more["now"])})

    return [(leases, "released_pack", released_pack)]


@mutant("§5.7 Messages of a pack do not wait for one that this process cannot read", 138, 705, arena="stuck")
def unread_ones_are_tried_again() -> Patches:
    return [(Finder, "unread_of", lambda *_: 0)]


@mutant("§4 A finished slice keeps its lease until its pack is deleted", 8, 44, 58, arena="long")
def leases_of_finished_slices_are_swept() -> Patches:
    original = LeaseSweep.sweep

    async def sweep(self: LeaseSweep, listed: Any, here: Any) -> None:
        await original(self, listed, here)
        found = {
            uuid: lease
            for info in listed
            if (uuid := layout.parse_lease(info.key))
            and (lease := await self._scope.context.lease(self._scope.topic, uuid).read()) is not None
            and lease.value.state == "done"
        }
        await self._remove(found)

    return [(LeaseSweep, "sweep", sweep)]


@mutant(
    "§5.7 No lease of a deleted pack stays for ever, if the process that deleted it has died", 18, 35, arena="packs"
)
def leases_of_deleted_packs_stay() -> Patches:
    original = LeaseSweep._free

    async def free(self: LeaseSweep, stem: str, orphans: Any) -> Any:
        left = {uuid: found for uuid, found in orphans.items() if found.value.state not in {"done", "split"}}
        return await original(self, stem, left) if left else ()

    return [(LeaseSweep, "_free", free)]


@mutant(
    "§5.7 A poison message keeps no other one of its pack back",
    test="tests/pawnqueue/claims/test_packs_apart.py::test_a_poison_message_that_is_never_buried_keeps_no_other_back",
)
def poison_is_tried_first() -> Patches:
    original = packs.to_take

    def to_take(unit: Any, lease: Any, now: float, most: int | None, unread: int = 0) -> int:
        shares = packs.shares_of(unit, lease)
        first = [one for one in shares if one.until <= now][:1]
        if not first or first[0].lapsed == 0:
            return original(unit, lease, now, most, unread)
        return original(unit, lease.model_copy(update={"shares": first}), now, most, unread)

    return [(packs, "to_take", to_take)]


@mutant(
    "§5.7 A delayed slice keeps no other one back",
    test="tests/pawnqueue/claims/test_packs_apart.py::test_a_delayed_slice_keeps_no_other_back",
)
def delayed_slices_are_tried() -> Patches:
    original = Attempt._of_one_kind

    async def of_one_kind(self: Any, pool: Any) -> Any:
        alike, others = await original(self, pool)
        kept = {candidate.id for candidate in (*alike, *others)}
        for candidate in pool:
            if candidate.id not in kept:
                self._finder.set_aside.put(candidate.unit.name, "nothing of it is due", quiet=True)
        return alike, others

    return [(Candidate, "due_at", property(lambda _: 0.0)), (Attempt, "_of_one_kind", of_one_kind)]

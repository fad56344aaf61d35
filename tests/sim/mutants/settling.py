"""§4, settle: the decision, and then its effects."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from pawnqueue.catalog import units
from pawnqueue.claims import effects, settling
from pawnqueue.claims.effect_retries import EffectRetries
from pawnqueue.claims.held import HeldClaim
from pawnqueue.claims.open_claims import Claims
from pawnqueue.context import Context
from pawnqueue.domain import completed, layout
from pawnqueue.domain.claim_record import ClaimRecord, Decision
from pawnqueue.domain.settlement import SettledMembers
from pawnqueue.maintenance.sweep import _Sweep
from pawnqueue.maintenance.sweep_claims import ClaimSweep as Swept
from pawnqueue.registers import claim_records
from pawnqueue.registers.claim_records import ClaimRecordRegister
from pawnqueue.registers.register import Versioned
from tests.sim.mutants.entering import Patches, mutant


@mutant("§4 Settle writes the decisions into the record before their effects", 74, 99)
def no_decision() -> Patches:
    async def settle(context: Context, claim: Any, decisions: Mapping[str, Decision]) -> Any:
        settled = {**claim.record.settled, **decisions}
        claim.remember(Versioned(claim.record.model_copy(update={"settled": settled}), claim.found.version))
        await effects.carry_out(context, claim.topic, claim.record, list(decisions), claim.leases)
        return SettledMembers(decided=dict(decisions))

    return [(settling, "settle", settle)]


@mutant("§4 Settle is a compare-and-set: a fenced holder changes nothing", 236, 74, 99)
def settles_whatever_happened() -> Patches:
    original = ClaimRecordRegister.replace

    async def replace(self: Any, found: Any, record: ClaimRecord) -> Any:
        if record.settled and record.state == "open":
            return Versioned(
                record, await self._registers.overwrite(self._key, record.stamped(self._registers._clock.nonce()))
            )
        return await original(self, found, record)

    return [(ClaimRecordRegister, "replace", replace)]


@mutant("§4 A failed COPY never leads to a DELETE", 33, 123)
def copy_failure_is_ignored() -> Patches:
    original = effects._bury

    async def bury(*arguments: Any) -> None:
        await original(*arguments)

    return [(effects, "_bury", bury)]


@mutant("§4 Message before lease, always", 86, 170)
def lease_before_message() -> Patches:
    async def remove(  # noqa: PLR0913 - those of the function that it replaces
        context: Context,
        topic: str,
        record: ClaimRecord,
        uuids: list[str],
        _versions: Any,
        *,
        is_held: Callable[[str], bool],
        at_last: Callable[[], str | None],
    ) -> Any:
        failed: dict[str, Any] = {}
        leases = {layout.lease(topic, uuid): uuid for uuid in uuids if is_held(uuid)}
        for key, error in (await context.store.delete(list(leases)) if leases else {}).items():
            failed[leases[key]] = error
        names = {units.key_of(topic, record.members[uuid].name): uuid for uuid in uuids}
        last = None if failed else at_last()
        if last is not None:
            names[last] = last
        for key, error in (await context.store.delete(list(names)) if names else {}).items():
            failed[names[key]] = error
        return failed

    return [(effects, "_remove", remove)]


@mutant("§4 The record is closed only when all effects are confirmed", 102, 127)
def closed_too_early() -> Patches:
    original = effects.carry_out

    async def carry_out(*arguments: Any, **more: Any) -> dict[str, Any]:
        await original(*arguments, **more)
        return {}

    return [(effects, "carry_out", carry_out)]


@mutant(
    "§4 An id that is none of the claim's is refused before anything is settled",
    test="tests/pawnqueue/claims/test_strangers.py::test_an_id_of_nothing_is_refused_before_anything_is_settled",
)
def strangers_are_left_out() -> Patches:
    original = HeldClaim.units_of

    def units_of(self: HeldClaim, meant: Any) -> Any:
        return {given: units for given, units in original(self, meant).items() if units}

    by_uuid = settling.by_uuid

    def of_those(decisions: Mapping[Any, Decision], uuids: Mapping[Any, Any], ids: Mapping[str, str]) -> Any:
        return by_uuid({given: each for given, each in decisions.items() if given in uuids}, uuids, ids)

    return [(HeldClaim, "units_of", units_of), (settling, "by_uuid", of_those)]


@mutant(
    "§4 What the record does not list any more is lost",
    test="tests/pawnqueue/claims/test_forged_registers.py::test_what_the_record_lists_no_more_is_lost",
)
def what_it_had_stays_its_own() -> Patches:
    original = HeldClaim.remember

    def remember(self: HeldClaim, found: Versioned[ClaimRecord]) -> None:
        members = {**self.record.members, **found.value.members}
        original(self, Versioned(found.value.model_copy(update={"members": members}), found.version))

    return [(HeldClaim, "remember", remember)]


@mutant(
    "§4 A message that could not be read is not settled with the rest",
    test="tests/pawnqueue/claims/test_strangers.py::test_what_cannot_be_read_is_not_acked_with_the_rest",
)
def unread_is_settled_with_the_rest() -> Patches:
    original = Claims._learn_ids

    class Nothing(set[str]):
        def isdisjoint(self, _: Any) -> bool:
            return True

    async def learn_ids(self: Any, claim: HeldClaim, ids: Any) -> set[str]:
        return Nothing(await original(self, claim, ids))

    return [(Claims, "_learn_ids", learn_ids)]


@mutant("§3 What is given back with a delay tells that delay, by the store's time", 0, 1, 3, arena="patience")
def delayed_as_if_in_1970() -> Patches:
    original = effects.released

    def released(record: ClaimRecord, uuid: str, decision: Decision, _: float) -> Any:
        return original(record, uuid, decision, 0.0)

    return [(effects, "released", released)]


@mutant(
    "§3 Every write of a record tells anew what is left of its time",
    test="tests/pawnqueue/claims/test_liveness.py::test_every_write_of_a_record_tells_what_is_left",
)
def hints_are_not_told_anew() -> Patches:
    async def timed(record: ClaimRecord, _: Any) -> ClaimRecord:
        return record.model_copy(update={"ttl": 0.0 if record.state == "closed" else record.lasts})

    return [(claim_records, "_timed", timed)]


@mutant("§5.5 The queue carries out again what the store did not take", 8, 35, arena="patience")
def carried_out_once() -> Patches:
    return [(EffectRetries, "go_on_with", lambda *_: None)]


@mutant(
    "§5.5 A sweep carries out what a live claim has decided",
    test="tests/pawnqueue/claims/test_finishing.py::test_a_sweep_carries_out_what_a_live_claim_has_decided",
)
def live_claims_are_not_finished() -> Patches:
    async def finish_decided(*_: Any) -> None:
        pass

    return [(Swept, "_finish_decided", finish_decided)]


LOG = "tests/pawnqueue/claims/test_completed_log.py"


@mutant("§4 A claim is logged when all of it is decided", 12, arena="letters")
def logged_before_all_is_decided() -> Patches:
    async def log(context: Any, claim: Any) -> None:
        record = claim.record
        count = completed.completed_count(record)
        if record.completed and count:
            body = completed.log_body(record, await context.now(), ids_in=claim_ids(claim), payloads={})
            name = completed.log_name(record, count)
            await context.store.put(layout.completed_object(claim.topic, name), body)

    def claim_ids(claim: Any) -> Any:
        return lambda unit, of: claim.ids_in(unit, of) if layout.is_of_pack(unit) else [claim.id_of(unit)]

    return [(settling, "_log_completed", log)]


@mutant("§4 A process that finishes the claim of a dead one logs it", test=f"{LOG}")
def nobody_logs_for_the_dead() -> Patches:
    async def nothing(*_: Any, **__: Any) -> None:
        return None

    return [(effects, "log_completed", nothing)]


@mutant("§4 Each process that logs a claim does so under the same name", test=f"{LOG}")
def logged_under_a_name_of_its_own() -> Patches:
    original, calls = completed.log_name, [0]

    def name(record: Any, count: int) -> str:
        calls[0] += 1
        return original(record.model_copy(update={"created_at": record.created_at + calls[0]}), count)

    return [(completed, "log_name", name)]


@mutant(
    "§4 A sweep keeps the completed log within its limits", test=f"{LOG}::test_a_sweep_keeps_the_number_and_the_age"
)
def log_is_never_cut() -> Patches:
    async def nothing(*_: Any) -> None:
        return None

    return [(sys.modules[_Sweep.__module__], "sweep_completed", nothing)]

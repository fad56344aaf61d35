"""§5, janitor: what it removes, and what it gives back."""

from __future__ import annotations

from typing import Any

from pawnqueue.catalog import units
from pawnqueue.claims import effects
from pawnqueue.domain import layout
from pawnqueue.domain.claim_record import ClaimRecord
from pawnqueue.maintenance import sweep_claims as sweeping_claims
from pawnqueue.maintenance import sweep_leases as sweeping_leases
from pawnqueue.maintenance.sweep import _Sweep
from pawnqueue.stores.port import Unknown
from tests.sim.mutants.entering import Patches, mutant


@mutant("§5 The janitor lists leases before messages, and looks again before it removes one", 326, 341)
def janitor_order() -> Patches:
    original = _Sweep.run

    async def run(self: Any) -> Any:
        store, registers = self._context.store, self._context.registers
        messages = [info async for page in store.pages(units.folder(self._topic)) for info in page]
        leases = [info async for page in registers.pages(layout.leases(self._topic)) for info in page]
        here = {parsed.id for info in messages if (parsed := units.parse(info.key))}
        await self._scope.delete([info.key for info in leases if layout.parse_lease(info.key) not in here])
        return await original(self)

    return [(_Sweep, "run", run)]


@mutant(
    "§5 A lease without a message is overdue a day after its date, whatever it says",
    test="tests/pawnqueue/maintenance/test_forged_leases.py::test_a_thousand_of_them_cost_sweeps_nothing_for_long",
)
def forged_ends_are_believed() -> Patches:
    return [(sweeping_leases, "_bounded", lambda found, _: found)]


@mutant("§4 What a claim had that was fenced early is given back only after its last time", 21, 2, 4)
def given_back_early() -> Patches:
    async def end(self: Any, key: str, standing: Any) -> None:
        fenced = standing if standing.value.state != "open" else await self._fence(key, standing)
        if fenced is not None:
            await self._finish(fenced)

    return [(sweeping_claims.ClaimSweep, "_end", end)]


@mutant(
    "§5.6 The lease of another message under the uuid of an acked one is left to its holder",
    test="tests/pawnqueue/maintenance/test_shared_uuids_of_claims.py",
)
def leases_of_others_are_deleted() -> Patches:
    async def held_leases(_context: Any, _topic: str, _stem: str, uuids: Any, _versions: Any) -> Any:
        return dict.fromkeys(uuids, ""), {}

    return [(effects, "_held_leases", held_leases)]


@mutant(
    "§5.6 A DELETE of a lease that had no clear answer is not sent again before the lease was read",
    test="tests/pawnqueue/maintenance/test_shared_uuids_of_claims.py"
    "::test_a_lost_answer_to_the_delete_of_a_lease_costs_no_other_claim_its_lease",
)
def leases_are_deleted_again() -> Patches:
    async def delete(context: Any, _topic: str, _record: ClaimRecord, expected: Any) -> Any:
        outcomes = await context.registers.delete_versions(expected)
        faults = {key: each.fault for key, each in outcomes.items() if isinstance(each, Unknown)}
        return {layout.parse_lease(key) or key: fault for key, fault in faults.items()}

    return [(effects, "_delete_leases", delete)]


@mutant("§4 What has ended is given back by compare-and-set: somebody may have taken it over", 499, 838)
def given_back_whatever_happened() -> Patches:
    original = sweeping_claims.ClaimSweep._carry_out

    async def carry_out(self: Any, record: ClaimRecord, uuids: Any, versions: Any, others: Any) -> Any:
        for uuid in versions:
            lease = effects.released(record, uuid, record.settled[uuid], 0.0)
            body = lease.stamped(self._scope.context.clock.nonce()).encode()
            await self._scope.context.store.overwrite(layout.lease(self._scope.topic, uuid), body)
        return await original(self, record, [uuid for uuid in uuids if uuid not in versions], {}, others)

    return [(sweeping_claims.ClaimSweep, "_carry_out", carry_out)]

"""§5.6: bad messages do not block good ones, and a fault of one object concerns that object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pawnqueue.claims import candidates, effects, register_cache, takeover
from pawnqueue.claims.bodies import Bodies
from pawnqueue.claims.candidates import Finder
from pawnqueue.claims.register_cache import RegisterCache
from pawnqueue.claims.set_aside import BadBatches, SetAside
from pawnqueue.claims.takeover import judge
from pawnqueue.context import PER_OBJECT_RETRY_SECONDS, Context
from pawnqueue.domain.bounds import MOST_COUNT
from pawnqueue.domain.claim_record import Decision
from pawnqueue.domain.unit import Unit
from pawnqueue.errors import CompatibilityError, ObjectTooLargeError, StoreError
from pawnqueue.maintenance.sweep_scope import SweepScope
from pawnqueue.registers import csprng_verify
from pawnqueue.registers.csprng_verify import CsprngVerify
from pawnqueue.stores.retry import Backoff
from tests.sim.mutants.entering import Patches, mutant


def _with_bodies(judged: Any) -> Patches:
    """Have the bodies judged otherwise, by a function that is given them and the context."""
    original = Bodies.fetch

    async def fetch(context: Context, *given: Any, **how: Any) -> Bodies:
        bodies = await original(context, *given, **how)
        judged(bodies, context)
        return bodies

    return [(Bodies, "fetch", fetch)]


def _bury(bodies: Bodies, uuids: Iterable[str]) -> None:
    for uuid in list(uuids):
        bodies.aside.pop(uuid, None)
        bodies.messages.pop(uuid, None)
        bodies.decisions[uuid] = Decision(how="dead", reason="malformed", by="claim")


@mutant("§5.6 Bad messages are buried", 21, 22, 31)
def malformed_is_left() -> Patches:
    def judged(bodies: Bodies, _: Context) -> None:
        bodies.decisions = {uuid: one for uuid, one in bodies.decisions.items() if one.reason != "malformed"}

    return _with_bodies(judged)


@mutant("§5.6 A message that cannot be read fails no claim", 3, 14, 15, arena="stuck")
def unreadable_body_fails_all() -> Patches:
    def judged(bodies: Bodies, _: Context) -> None:
        for error in bodies.aside.values():
            raise error

    return _with_bodies(judged)


@mutant("§5.6 A message that the store will not give is never buried", 3, 14, 15, arena="stuck")
def unreadable_is_buried() -> Patches:
    def judged(bodies: Bodies, _: Context) -> None:
        _bury(bodies, [uuid for uuid, why in bodies.aside.items() if isinstance(why, StoreError)])

    return _with_bodies(judged)


@mutant("§5.6 A message of a newer format is never buried", 12, 38, 53, arena="stuck")
def newer_is_buried() -> Patches:
    def judged(bodies: Bodies, _: Context) -> None:
        _bury(bodies, [uuid for uuid, why in bodies.aside.items() if isinstance(why, CompatibilityError)])

    return _with_bodies(judged)


@mutant("§5.6 A message that is too large for this consumer is left to the others", 1, 43, 56, arena="crowd")
def too_large_is_buried() -> Patches:
    def judged(bodies: Bodies, _: Context) -> None:
        _bury(bodies, [uuid for uuid, why in bodies.aside.items() if isinstance(why, ObjectTooLargeError)])

    return [(Finder, "_is_for_us", lambda self, unit: unit.name not in self.set_aside), *_with_bodies(judged)]


@mutant(
    "§5.6 What is wrong with a message is noted under its name",
    test="tests/pawnqueue/claims/test_shared_uuids.py::test_a_large_one_pages_before_a_good_one",
)
def set_aside_by_uuid() -> Patches:
    original = Finder._is_for_us

    def is_for_us(self: Finder, unit: Unit) -> bool:
        return original(self, replace(unit, name=unit.id))

    return [(Finder, "_is_for_us", is_for_us)]


@mutant(
    "§4.1 Leases that no record covers are read once, and a bounded number a look",
    test="tests/pawnqueue/claims/test_orphans.py::test_a_look_reads_a_bounded_number_of_them",
)
def orphans_are_read_each_time() -> Patches:
    original = Finder.leases_of

    async def leases_of(self: Finder, stem: str, **_: int) -> Any:
        self._known.trim(())
        return await original(self, stem, most_reads=MOST_COUNT)

    return [(Finder, "leases_of", leases_of)]


@mutant("§5.6 A lease that cannot be read fails no claim", 8, 33, 48, arena="stuck")
def unreadable_lease_fails_all() -> Patches:
    original = RegisterCache.read_leases

    async def read_leases(self: RegisterCache, infos: Mapping[str, Any], patience: float) -> set[str]:
        for uuid in infos:
            await self._context.lease(self._topic, uuid).read()
        return await original(self, infos, patience)

    return [(RegisterCache, "read_leases", read_leases)]


@mutant("§5.6 A record that cannot be read concerns the messages of its claim", 5, 27, 37, arena="stuck")
def unreadable_record_fails_all() -> Patches:
    async def judged(*arguments: Any, **more: Any) -> Any:
        found = await judge(*arguments, **more)
        for fault in found.faults.values():
            raise fault
        return found

    return [(takeover, "judge", judged)]


@mutant("§5.6 A record that cannot be read stops no sweep, nor does anything else", 0, 2, 3, arena="stuck")
def one_fault_ends_the_sweep() -> Patches:
    async def isolate(_self: SweepScope, _key: str, work: Any, otherwise: Any) -> Any:  # by name
        return await work

    return [(SweepScope, "isolate", isolate)]


@mutant("§5.6 What is left alone is tried again ever more seldom, and not at every look", 5, 14, arena="stuck")
def nothing_is_put_aside() -> Patches:
    return [(SetAside, "__contains__", lambda *_: False)]


@mutant(
    "§5.7 What was put aside is tried after what never was",
    test="tests/pawnqueue/claims/test_starved.py::test_good_messages_keep_coming_though_bad_ones_come_back",
)
def what_comes_back_is_tried_first() -> Patches:
    return [(SetAside, "was_set_aside", lambda *_: False), (BadBatches, "size", lambda _, wanted: wanted)]


@mutant(
    "§5.7 Each batch that is bad altogether doubles the next one",
    test="tests/pawnqueue/claims/test_starved.py::test_a_good_message_behind_bad_ones_is_had_within_a_minute",
)
def batches_do_not_grow() -> Patches:
    return [(BadBatches, "size", lambda _, wanted: wanted)]


@mutant(
    "§5.6 Leases that do not answer well share one patience",
    test="tests/pawnqueue/claims/test_one_bad_object.py::test_leases_that_cannot_be_read_share_one_patience",
)
def patience_with_each() -> Patches:
    return [(candidates, "MIN_RETRY_SECONDS", PER_OBJECT_RETRY_SECONDS)]


@mutant(
    "§5.6 Claim records that do not answer well share one patience",
    test="tests/pawnqueue/claims/test_one_bad_register.py::test_records_that_do_not_answer_share_one_patience",
)
def patience_with_each_record() -> Patches:
    return [(register_cache, "MIN_RETRY_SECONDS", PER_OBJECT_RETRY_SECONDS)]


@mutant("§5.6 A record that cannot be read stops no claim's look for rivals", 11, 27, arena="stuck-csprng")
def unreadable_rival_fails_all() -> Patches:
    original = RegisterCache.not_closed

    async def not_closed(self: RegisterCache, claims: Mapping[str, Any]) -> Any:
        found = await original(self, claims)
        for stem in claims:
            if stem in self._aside:
                raise StoreError(f"{stem} cannot be read", transient=True)
        return found

    return [(RegisterCache, "not_closed", not_closed)]


@mutant("§5.6 A lease that cannot be looked at fails no other write of its batch", 8, 33, 49, arena="stuck-csprng")
def unseen_lease_fails_all() -> Patches:
    original = CsprngVerify._heads

    async def heads(self: CsprngVerify, keys: Any, seen: Any, **more: Any) -> None:
        await original(self, keys, seen, **more)
        for fault in seen.faults.values():
            raise fault

    return [(CsprngVerify, "_heads", heads)]


@mutant(
    "§6 A PUT without an answer is sent again",
    test="tests/pawnqueue/registers/test_csprng_verify.py::test_a_put_without_an_answer_is_sent_again",
)
def unanswered_is_given_up() -> Patches:
    async def pause(*_: Any) -> bool:
        return False

    return [(Backoff, "pause", pause)]


@mutant(
    "§6 A PUT without an answer is sent again only when it can land no more",
    test="tests/pawnqueue/registers/test_csprng_verify.py::test_a_put_is_sent_again_when_the_first_can_land_no_more",
)
def sent_again_at_once() -> Patches:
    return [(csprng_verify, "SETTLED_AFTER", 0.0)]


@mutant("§5.6 What others have decided is carried out beside deliveries", 46, 47, 336, arena="stuck")
def finished_while_others_wait() -> Patches:
    async def all_of_it(context: Context, topic: str, leases: Any, **more: Any) -> Any:
        found = await judge(context, topic, leases, **more)
        for record, versions in found.decided:
            failed = await effects.carry_out(context.with_budget(15.0), topic, record, list(versions), versions)
            found.faults.update(failed)
        found.decided.clear()
        return found

    return [(takeover, "judge", all_of_it)]

"""The engine with one rule taken out. Each must be caught by the simulation: that is what shows that it can fail.

A mutant is named after what it leaves out, and says which rule of docs/protocol.md that is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock  # patches attributes, stands in for nothing

from airflow_provider_pawnqueue.engine import layout, queue, redrive, server_time
from airflow_provider_pawnqueue.engine.claims import (
    again,
    claiming,
    desk,
    effects,
    keeping,
    looking,
    moves,
    records,
    settling,
    takeover,
)
from airflow_provider_pawnqueue.engine.claims.bodies import Bodies, fetch_bodies
from airflow_provider_pawnqueue.engine.context import Context
from airflow_provider_pawnqueue.engine.janitor import claims as sweeping_claims
from airflow_provider_pawnqueue.engine.janitor import leases as sweeping_leases
from airflow_provider_pawnqueue.engine.janitor import sweeping
from airflow_provider_pawnqueue.engine.leases.conditional_write import ConditionalWrite
from airflow_provider_pawnqueue.engine.leases.lease import FoundLease
from airflow_provider_pawnqueue.engine.records import ClaimRecord, Decision, Member
from airflow_provider_pawnqueue.engine.server_time import ServerTime
from airflow_provider_pawnqueue.engine.store.port import Done, Unknown

Patches = Sequence[tuple[Any, str, Any]]


@dataclass(frozen=True)
class Mutant:
    """A rule that is left out."""

    rule: str
    patches: Callable[[], Patches]
    #: Schedules that have caught it: they are tried first.
    seeds: tuple[int, ...] = ()
    #: Where it shows: in the large schedules; at the edge of time, where requests take seconds; or in another arena.
    arena: str = "schedule"


MUTANTS: dict[str, Mutant] = {}


def mutant(rule: str, *seeds: int, arena: str = "schedule") -> Callable[[Callable[[], Patches]], Callable[[], Patches]]:
    """Enter a mutant under its function's name."""

    def enter(patches: Callable[[], Patches]) -> Callable[[], Patches]:
        MUTANTS[patches.__name__] = Mutant(rule, patches, seeds, arena)
        return patches

    return enter


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Run the block with a mutant of the engine."""
    patchers = [mock.patch.object(*patch) for patch in MUTANTS[name].patches()]
    for patcher in patchers:
        patcher.start()
    try:
        yield
    finally:
        for patcher in patchers:
            patcher.stop()


# --- §2 ---


@mutant("§2 Unknown is never read as done", 10, 11, 19)
def unknown_is_done() -> Patches:
    original = ConditionalWrite._take

    async def take(self: ConditionalWrite, step: Any) -> Any:
        outcome = await self._store.put(step.key, step.record.stamped(self._clock.nonce()).encode(), expect=step.expect)
        return (
            Done("")
            if isinstance(outcome, Unknown)
            else outcome
            if isinstance(outcome, Done)
            else await original(self, step)
        )

    return [(ConditionalWrite, "_take", take)]


@mutant(
    "§2 A holder stops the margin before its time, and a taker waits for the margin after it",
    19,
    185,
    256,
    arena="duel",
)
def no_margin() -> Patches:
    return [(Context, "margin", property(lambda _: 0.0))]


@mutant("§2 The time of a claim is counted from before the request was sent", 237, 679, 1644, arena="duel")
def counted_from_the_answer() -> Patches:
    original = claiming._win_leases

    async def win(context: Context, *rest: Any) -> Any:
        won = await original(context, *rest)
        won.deadline = context.clock.elapsed() + rest[-1].ttl - context.margin
        return won

    return [(claiming, "_win_leases", win)]


@mutant("§2 A sample ends with the answer that tells the date: its PUT may land again later", 1, 3, 7, arena="timing")
def sampled_to_the_put() -> Patches:
    async def probe(self: ServerTime) -> Any:
        while True:
            key, sent = layout.probe(self._clock.uuid()), self._clock.elapsed()
            version = await self._store.overwrite(key, server_time.version_body(self._clock))
            answered = self._clock.elapsed()
            found = await self._store.head(key)
            self._remove(key)
            if found is not None and found.version == version:
                return server_time._sample_of(found.last_modified, sent, answered), answered - sent

    return [(ServerTime, "_probe", probe)]


@mutant("§2 Deadlines reckon with drift, and with the error of the time", 0, 1, 3, arena="timing")
def deadlines_without_drift() -> Patches:
    def trusted_until(self: ServerTime, until: float, margin: float) -> float:
        return until - margin - self._believed().middle

    return [(ServerTime, "trusted_until", trusted_until)]


@mutant("§2 An object that is younger than it can be tells that our clock stood still", 1, 2, 12, arena="timing")
def dates_say_nothing() -> Patches:
    return [(ServerTime, "seen", lambda *_: None)]


@mutant("§2 A sample that is too slow to disprove a suspicion is taken alone", 222, 528, 2584, arena="timing")
def suspects_are_believed() -> Patches:
    original = ServerTime._believe

    def believe(self: ServerTime, sample: Any, _: Any) -> None:
        original(self, sample, None)
        self._suspicion = None

    return [(ServerTime, "_believe", believe)]


# --- §4: claim ---


@mutant("§4.3 Creating the record extends nothing", 59, 224, 492, arena="duel")
def record_extends() -> Patches:
    original = claiming.record_claim

    async def record_claim(context: Context, order: Any, won: Any) -> Any:
        until = await context.now() + order.ttl
        claim = await original(context, order, replace(won, until=until, deadline=math.inf))
        if claim is not None:
            claim._deadline = context.clock.elapsed() + order.ttl - context.margin
        return claim

    return [(claiming, "record_claim", record_claim), (again, "record_claim", record_claim)]


@mutant("§4.3 The record is created only where there is none: a taker may have fenced it", 21, 44, 60, arena="duel")
def record_overwrites() -> Patches:
    async def create(context: Context, topic: str, record: ClaimRecord) -> Any:
        if record.state == "open":
            body = record.stamped(context.clock.nonce()).encode()
            return Done(await context.store.overwrite(layout.claim(topic, record.stem), body))
        return await original(context, topic, record)

    original = records.create
    return [(records, "create", create)]


@mutant("§4.4 The bodies are read only after the leases were won", 31, 87, 138)
def bodies_first() -> Patches:
    read: dict[str, Bodies] = {}
    original = claiming._win_leases

    async def win(context: Context, lookout: Any, spread: Any, order: Any) -> Any:
        look = lookout.candidates

        async def candidates(*arguments: Any, **more: Any) -> Any:
            found = await look(*arguments, **more)
            members = {one.uuid: Member(name=one.name) for one in found}
            read[order.session] = await fetch_bodies(context, order.topic, members, {})
            return found

        with mock.patch.object(lookout, "candidates", candidates):
            return await original(context, lookout, spread, order)

    async def bodies(context: Context, topic: Any, members: Mapping[str, Member], sizes: Any) -> Bodies:
        early = next((one for one in reversed(read.values()) if set(members) <= {*one.messages, *one.decisions}), None)
        if early is None:
            return await fetch_bodies(context, topic, members, sizes)
        messages = {uuid: message for uuid, message in early.messages.items() if uuid in members}
        return Bodies(messages, {uuid: one for uuid, one in early.decisions.items() if uuid in members})

    return [(claiming, "_win_leases", win), (claiming, "fetch_bodies", bodies)]


# --- §4: renew ---


@mutant("§4 Renew is a compare-and-set, and who is past its time has lost the claim", 38, 39, 52)
def renews_whatever_happened() -> Patches:
    async def renew(context: Context, claim: Any, ttl: float) -> None:
        until = await context.now() + ttl
        started = context.clock.elapsed()
        changed = claim._record.model_copy(update={"until": until, "ttl": ttl})
        body = changed.stamped(context.clock.nonce()).encode()
        version = await context.store.overwrite(layout.claim(claim.topic, changed.stem), body)
        claim._now_at(changed, version)
        claim._deadline = started + ttl - context.margin

    return [(keeping, "renew", renew), (queue, "renew", renew)]


@mutant("§4 A renewal never shortens a claim", 12, 330, 1660, arena="duel")
def renewal_shortens() -> Patches:
    def lengthened(context: Context, record: ClaimRecord, until: float) -> float:
        return min(until, record.created_at + context.settings.claims.max_claim_age_seconds)

    return [(keeping, "lengthened", lengthened)]


# --- §4: settle ---


@mutant("§4 Settle writes the decisions into the record before their effects", 33, 46, 47)
def no_decision() -> Patches:
    async def settle(context: Context, claim: Any, decisions: Mapping[str, Decision]) -> Any:
        claim._now_at(
            claim._record.model_copy(update={"settled": {**claim._record.settled, **decisions}}), claim._version
        )
        await effects.carry_out(context, claim.topic, claim._record, list(decisions), claim._leases)
        return settling.Settled(decided=dict(decisions))

    return [(settling, "settle", settle), (desk, "settle", settle), (claiming, "settle", settle)]


@mutant("§4 Settle is a compare-and-set: who was fenced changes nothing", 162, 236, 252)
def settles_whatever_happened() -> Patches:
    original = records.change

    async def change(context: Context, topic: str, record: ClaimRecord, version: str) -> Any:
        if record.settled and record.state == "open":
            body = record.stamped(context.clock.nonce()).encode()
            return Done(await context.store.overwrite(layout.claim(topic, record.stem), body))
        return await original(context, topic, record, version)

    return [(records, "change", change)]


@mutant("§4 A failed COPY never leads to a DELETE", 6, 47, 79)
def copy_failure_is_ignored() -> Patches:
    original = effects._bury

    async def bury(*arguments: Any) -> None:
        await original(*arguments)

    return [(effects, "_bury", bury)]


@mutant("§4 Message before lease, always", 68, 159, 205)
def lease_before_message() -> Patches:
    async def remove(context: Context, topic: str, record: ClaimRecord, uuids: list[str]) -> Any:
        failed = {}
        if not uuids:
            return failed
        leases = {layout.lease(topic, uuid): uuid for uuid in uuids}
        failed = {leases[key]: error for key, error in (await context.store.delete(list(leases))).items()}
        names = {layout.message(topic, record.members[uuid].name): uuid for uuid in uuids}
        failed.update({names[key]: error for key, error in (await context.store.delete(list(names))).items()})
        return failed

    return [(effects, "_remove", remove)]


@mutant("§4 The record is closed only when all effects are confirmed", 277, 417, 664)
def closed_too_early() -> Patches:
    original = effects.carry_out

    async def carry_out(*arguments: Any) -> dict[str, Any]:
        await original(*arguments)
        return {}

    return [
        (effects, "carry_out", carry_out),
        (settling, "carry_out", carry_out),
        (sweeping_claims, "carry_out", carry_out),
    ]


# --- §4: take over ---


@mutant("§4 Where an overdue lease's claim has no record, a fenced one is created first", 12590, 24968, arena="duel")
def no_record_is_free() -> Patches:
    async def create_fenced(*_: Any) -> bool:
        return True

    return [(takeover, "_create_fenced", create_fenced)]


@mutant(
    "§4 An open claim that is over is fenced by compare-and-set before its messages are taken", 4, 22, 59, arena="duel"
)
def no_fence() -> Patches:
    async def fence(_context: Context, _topic: str, standing: Any) -> Any:
        return standing

    return [(takeover, "fence", fence), (again, "fence", fence), (sweeping_claims, "fence", fence)]


@mutant("§4 A claim that was fenced early still waits for its last time", 21, 39, 166)
def early_fence_is_free() -> Patches:
    original, original_covered = takeover._free_of_claim, looking.Lookout.covered

    async def free_of_claim(context: Context, topic: str, stem: str, leases: Any, now: float) -> Any:
        standing = await records.read(context, topic, stem)
        if standing is not None and standing.record.state == "expired":
            members = standing.record.members
            return {u: found for u, found in leases.items() if u in members and u not in standing.record.settled}
        return await original(context, topic, stem, leases, now)

    async def covered(self: Any, claims: Any) -> set[str]:
        live = await original_covered(self, claims)
        return live.difference(*(one.record.members for one in self._records.values() if one.record.state == "expired"))

    return [(takeover, "_free_of_claim", free_of_claim), (looking.Lookout, "covered", covered)]


@mutant("§4 The claim's time counts, not the lease's: a renewed claim is held", 2, 21, 33)
def only_the_lease_counts() -> Patches:
    original = takeover._free_of_claim

    async def free_of_claim(context: Context, topic: str, stem: str, leases: Any, now: float) -> Any:
        standing = await records.read(context, topic, stem)
        if standing is not None and not any(uuid in standing.record.settled for uuid in leases):
            return leases
        return await original(context, topic, stem, leases, now)

    async def covered(*_: Any) -> set[str]:
        return set()

    return [(takeover, "_free_of_claim", free_of_claim), (looking.Lookout, "covered", covered)]


@mutant("§5.3 What was settled is carried out by whoever meets it, and not delivered again", 75, 107, 134)
def decided_is_taken() -> Patches:
    original = takeover._free_of_claim

    async def free_of_claim(context: Context, topic: str, stem: str, leases: Any, now: float) -> Any:
        standing = await records.read(context, topic, stem)
        if standing is not None and any(uuid in standing.record.settled for uuid in leases):
            return leases
        return await original(context, topic, stem, leases, now)

    return [(takeover, "_free_of_claim", free_of_claim)]


@mutant("§5.5 Every crash point is finished by someone", 6, 16, 23)
def nobody_finishes_effects() -> Patches:
    async def carry_out(*_: Any) -> dict[str, Any]:
        return {}

    return [(takeover, "carry_out", carry_out), (sweeping_claims, "carry_out", carry_out)]


# --- §4: sessions ---


@mutant("§4 A new session waits until the time of the old one is over, unless that has handed over", 12, 39, 64)
def session_does_not_wait() -> Patches:
    original = again.resume

    async def resume(context: Context, order: Any, standing: Any, *, vacated: str | None = None) -> Any:
        return await original(context, order, standing, vacated=standing.record.session)

    return [(again, "resume", resume)]


# --- §5: redrive ---


@mutant("§5 A dead letter whose burial is not finished is not redriven", 914, 927, 1757)
def redrive_early() -> Patches:
    original = redrive._move

    async def move(context: Context, *rest: Any) -> Any:
        async def nothing(*_: Any) -> None:
            return None

        return await original(_with(context, read_lease=nothing), *rest)

    return [(redrive, "_move", move)]


@mutant("§5 A dead letter is redriven under a new uuid", 0, 2, 5)
def redrive_same_id() -> Patches:
    return [(layout, "redriven_name", lambda uuid, _version, seconds: layout.message_name(seconds, uuid))]


@mutant("§5 The new place is locked before the message is written there", 23, 282, 312)
def redrive_no_lock() -> Patches:
    async def move(context: Context, topic: str, uuid: str, info: Any) -> Any:
        name = layout.redriven_name(uuid, info.version, info.last_modified.timestamp())
        letter = layout.dead_letter(topic, uuid)
        if not isinstance(await context.store.copy(letter, layout.message(topic, name)), Done):
            return False
        return not await context.store.delete([letter, layout.dead_reason(topic, uuid)])

    return [(redrive, "_move", move)]


@mutant(
    "§5 The source is looked for after the lock was taken, and moved by COPY, never by GET and PUT", 200, 1124, 1235
)
def redrive_by_put() -> Patches:
    bodies: dict[str, bytes] = {}
    original_move, original_finish = redrive._move, moves.finish_move

    async def move(context: Context, topic: str, uuid: str, info: Any) -> Any:
        found = await context.store.get(layout.dead_letter(topic, uuid))
        if found is not None:
            bodies[uuid] = found.body
        return await original_move(context, topic, uuid, info)

    async def finish(context: Context, topic: str, uuid: str, found: FoundLease) -> bool:
        body = bodies.get(found.lease.source)
        if body is None:
            return await original_finish(context, topic, uuid, found)
        await context.store.overwrite(layout.message(topic, found.lease.key), body)
        await context.store.delete([layout.dead_letter(topic, found.lease.source)])
        return await moves._unlock(context, topic, uuid, found)

    return [(redrive, "_move", move), (redrive, "finish_move", finish)]


@mutant("§5 Whoever meets an overdue move finishes it", 0, 6, 19)
def nobody_finishes_moves() -> Patches:
    async def finish(*_: Any) -> bool:
        return False

    return [(sweeping_leases, "finish_move", finish), (looking, "finish_move", finish)]


# --- §5: janitor and promises ---


@mutant("§5 The janitor lists leases before messages, and looks again before it removes one", 1351, 1654)
def janitor_order() -> Patches:
    original = sweeping._Sweep.run

    async def run(self: Any) -> Any:
        messages = await self._list(layout.messages(self._topic))
        leases = await self._list(layout.leases(self._topic))
        here = {parsed.uuid for info in messages if (parsed := layout.parse_message(info.key))}
        await self._care.delete([info.key for info in leases if layout.parse_lease(info.key) not in here])
        return await original(self)

    return [(sweeping._Sweep, "run", run)]


@mutant("§4 What a claim had that was fenced early is given back only after its last time", 21, 39, 49)
def given_back_early() -> Patches:
    async def end(self: Any, key: str, standing: Any) -> None:
        fenced = standing if standing.record.state != "open" else await self._fence(key, standing)
        if fenced is not None:
            await self._finish(fenced)

    return [(sweeping_claims.Claims, "_end", end)]


@mutant("§4 What has ended is given back by compare-and-set: somebody may have taken it over", 230, 417, 535)
def given_back_whatever_happened() -> Patches:
    original = sweeping_claims.Claims._carry_out

    async def carry_out(self: Any, record: ClaimRecord, uuids: Any, versions: Any) -> Any:
        for uuid in versions:
            lease = effects._released(record, uuid, record.settled[uuid], 0.0)
            body = lease.stamped(self._care.context.clock.nonce()).encode()
            await self._care.context.store.overwrite(layout.lease(self._care.topic, uuid), body)
        return await original(self, record, [uuid for uuid in uuids if uuid not in versions], {})

    return [(sweeping_claims.Claims, "_carry_out", carry_out)]


@mutant("§5.6 Bad messages are buried", 21, 22, 31)
def malformed_is_left() -> Patches:
    async def settle(context: Context, claim: Any, decisions: Mapping[str, Decision]) -> Any:
        kept = {uuid: one for uuid, one in decisions.items() if one.reason != "malformed"}
        return await settling.settle(context, claim, kept) if kept else settling.Settled()

    return [(claiming, "settle", settle)]


@mutant("§5.7 No message waits for ever: what is overdue is taken over", 0, 1, 2)
def nothing_is_ever_over() -> Patches:
    def is_over(_context: Context, until: float, now: float) -> bool:
        return False

    return [(takeover, "is_over", is_over), (looking, "is_over", is_over)]


@mutant("§5.7 No garbage stays for ever: records that are past their retention are removed", 0, 1, 2)
def records_stay() -> Patches:
    return [(sweeping_claims.Claims, "_is_past_retention", lambda *_: False)]


def _with(context: Context, **changed: Any) -> Any:
    """Return a context of which some parts are other ones."""

    class Other:
        def __getattr__(self, name: str) -> Any:
            return changed.get(name) or getattr(context, name)

    return Other()

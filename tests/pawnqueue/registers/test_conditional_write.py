"""``conditional_write``: a register changes hands once, whatever becomes of requests and answers."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest

from pawnqueue import CompatibilityError
from pawnqueue.domain.record import Record
from pawnqueue.registers.strategy import Step
from pawnqueue.stores.port import Done, Expect, Refusal, Refused, Unknown
from tests.pawnqueue.registers.scripted import (
    ANSWER_LOST,
    CONFLICT,
    DENIED,
    DROPPED,
    FINE,
    FORBIDDEN,
    KEY,
    LATE,
    LOST,
    UNSUPPORTED,
    Fate,
    Landed,
    Scripted,
    registers,
    scripted,
    step,
    take,
)

if TYPE_CHECKING:
    from collections.abc import Callable


async def made(store: Scripted) -> str:
    """Put a register there, and return its version."""
    outcome = await store.carry_out(KEY, b'{"nonce":"first"}', Expect.NOTHING)
    assert isinstance(outcome, Done)
    return outcome.version


def interloper(store: Scripted) -> Callable[[], None]:
    """Return somebody who overwrites the register in an instant, by a compare-and-set of their own."""

    def act() -> None:
        body = b'{"nonce":"somebody else\'s"}'
        standing = store.below._objects[KEY].info.version
        store.landed.append(Landed(body, standing, store.below._write(KEY, body)))

    return act


async def test_a_create_is_done_once() -> None:
    """Where no object exists a create is done, and a second one is refused; both in one request, without a look."""
    store = scripted()
    first = await take(store)
    assert first == Done(store.landed[0].version)
    assert await take(store) == Refused(Refusal.CONDITION)
    assert (len(store.landed), len(store.sent), store.reads) == (1, 2, 0)


async def test_an_update_is_done_once() -> None:
    """The expected version is replaced once; after that it is no longer the expected one."""
    store = scripted()
    version = await made(store)
    assert isinstance(await take(store, version), Done)
    assert await take(store, version) == Refused(Refusal.CONDITION)
    assert [landed.expect for landed in store.landed] == [Expect.NOTHING, version]


async def test_nothing_is_not_updated() -> None:
    """An update of what is not there is refused, after a lost answer too."""
    assert await take(scripted(), '"1"') == Refused(Refusal.CONDITION)
    assert await take(scripted(DROPPED), '"1"') == Refused(Refusal.CONDITION)


@pytest.mark.parametrize("update", [False, True], ids=["create", "update"])
@pytest.mark.parametrize("fates", [[ANSWER_LOST], [DROPPED, ANSWER_LOST], [CONFLICT, ANSWER_LOST]], ids=str)
async def test_an_unknown_write_that_landed_is_done(fates: list[Fate], *, update: bool) -> None:
    """The look finds our write id: it is done, with the stored version, and is not sent again."""
    store = scripted(*fates)
    expect = await made(store) if update else Expect.NOTHING
    already = len(store.landed)
    assert await take(store, expect) == Done(store.landed[-1].version)
    assert len(store.landed) == already + 1
    assert len(store.sent) == len(fates)


@pytest.mark.parametrize("update", [False, True], ids=["create", "update"])
async def test_an_unknown_write_that_did_not_land_is_sent_again(*, update: bool) -> None:
    """As long as the expected state is stored, the write is repeated until it is done."""
    store = scripted(DROPPED, DROPPED, DROPPED)
    expect = await made(store) if update else Expect.NOTHING
    assert await take(store, expect) == Done(store.landed[-1].version)
    assert store.sent == [expect] * 4


@pytest.mark.parametrize("update", [False, True], ids=["create", "update"])
async def test_our_own_late_write_is_not_a_refusal(*, update: bool) -> None:
    """An attempt that lands after the look has the next one refused; it was ours, so it is done."""
    store = scripted(LATE)
    expect = await made(store) if update else Expect.NOTHING
    already = len(store.landed)
    assert await take(store, expect) == Done(store.landed[-1].version)
    assert (len(store.landed), len(store.sent)) == (already + 1, 2)


@pytest.mark.parametrize("fates", [[ANSWER_LOST], [LATE]], ids=str)
async def test_a_write_that_somebody_has_overwritten_is_refused(fates: list[Fate]) -> None:
    """Whether ours landed or not, the stored body is another's: refused, and it stays theirs."""
    store = scripted(*fates)
    version = await made(store)
    store.before_read = [interloper(store)]
    assert await take(store, version) == Refused(Refusal.CONDITION)
    assert b"somebody else's" in store.landed[-1].body
    assert len(store.sent) == 1


async def test_somebody_elses_create_is_a_refusal() -> None:
    """After a lost request, another writer may have won the register meanwhile, and keeps it."""
    store = scripted(DROPPED)
    store.before_read = [lambda: store.below._write(KEY, b"what nobody can read")]
    assert await take(store) == Refused(Refusal.CONDITION)
    assert store.landed == []


async def test_an_update_of_what_was_deleted_is_refused() -> None:
    """After a lost request, a register that is gone is refused, not made anew."""
    store = scripted(DROPPED)
    version = await made(store)
    store.before_read = [lambda: store.below._remove(list(store.below._objects))]
    assert await take(store, version) == Refused(Refusal.CONDITION)
    assert store.below._objects == {}


@pytest.mark.parametrize("update", [False, True], ids=["create", "update"])
async def test_a_conflict_is_tried_again(*, update: bool) -> None:
    """A 409 does not say which writer will win: the write is sent again, without a look, until it is decided."""
    store = scripted(CONFLICT, CONFLICT, CONFLICT)
    expect = await made(store) if update else Expect.NOTHING
    assert await take(store, expect) == Done(store.landed[-1].version)
    assert (len(store.sent), store.reads) == (4, 0)
    taken = scripted(CONFLICT)
    await made(taken)
    assert await take(taken) == Refused(Refusal.CONDITION)


async def test_an_exhausted_budget_is_unknown() -> None:
    """Where nobody can tell, nobody says: unknown, with the last fault."""
    assert await take(scripted(DROPPED, DROPPED), budget=0) == Unknown(LOST)
    store = Scripted(lambda: DROPPED)
    assert await take(store, budget=0.05) == Unknown(LOST)
    assert len(store.sent) > 1


async def test_endless_conflicts_are_a_conflict() -> None:
    """Conflicts to the end are refused as a conflict; after an unknown attempt, they are unknown."""
    assert await take(Scripted(lambda: CONFLICT), budget=0.05) == Refused(Refusal.CONFLICT)
    fates = [DROPPED]
    outcome = await take(Scripted(lambda: fates.pop() if fates else CONFLICT), budget=0.05)
    assert isinstance(outcome, Unknown)
    assert outcome.fault.transient


async def test_a_look_that_fails_is_unknown() -> None:
    """Where the look itself gets no answer within the budget, the outcome is unknown."""
    store = scripted(ANSWER_LOST)
    store.failing_reads = [LOST] * 3
    assert isinstance(await take(store), Done)
    store = scripted(ANSWER_LOST)
    store.failing_reads = [LOST]
    assert await take(store, budget=0) == Unknown(LOST)


async def test_a_permanent_error_concerns_its_key() -> None:
    """An error that no repetition mends is returned at once, from write and look, and ends no other step."""
    assert await take(scripted(FORBIDDEN)) == Unknown(DENIED)
    store = scripted(DROPPED)
    store.failing_reads = [DENIED]
    assert await take(store) == Unknown(DENIED)


async def test_a_store_that_lost_its_conditions_is_told() -> None:
    """A store that no longer does conditions cannot carry the bucket, and the error says what to do."""
    with pytest.raises(CompatibilityError, match="stop every process"):
        await take(scripted(UNSUPPORTED))


@pytest.mark.parametrize("unquoted", [False, True])
async def test_the_etag_is_sent_as_the_store_wants_it(*, unquoted: bool) -> None:
    """``unquoted`` sends a bare ETag and nothing else changes: a create is a create, and the look still fits."""
    store = scripted(FINE, DROPPED, ANSWER_LOST)
    version = await made(store)
    strategy = registers(store, unquoted=unquoted)
    [first] = await strategy.write([step(version)])
    assert isinstance(first, Done)
    [second] = await strategy.write([step(first.version)])
    assert second == Done(store.landed[-1].version)
    first_sent, *again = store.sent
    assert first_sent == (version.strip('"') if unquoted else version)
    assert set(again) == {first.version.strip('"') if unquoted else first.version}
    await strategy.write([Step("other", Record())])
    assert store.sent[-1] is Expect.NOTHING


async def test_every_write_has_a_write_id_of_its_own() -> None:
    """Equal records are written as different bodies, so that compare-and-set cannot take one for the other."""
    store = scripted()
    record = Record.model_validate({"nonce": "mine", "kept": {"by": "others"}})
    outcomes = await registers(store).write([Step(f"r/{number}", record) for number in range(20)])
    assert all(isinstance(outcome, Done) for outcome in outcomes)
    bodies = [json.loads(landed.body) for landed in store.landed]
    assert len({body["nonce"] for body in bodies}) == 20
    assert all(len(body["nonce"]) == 64 for body in bodies)
    assert all(body["kept"] == {"by": "others"} for body in bodies)


async def test_many_steps_keep_their_order() -> None:
    """The outcomes of a batch are those of its steps, one by one, whichever comes back first."""
    chance = random.Random(3)  # noqa: S311
    store = Scripted(lambda: chance.choice([FINE, DROPPED, ANSWER_LOST, LATE, CONFLICT]))
    for number in range(0, 60, 2):
        store.below._write(f"r/{number}", b"taken")
    outcomes = await registers(store).write([Step(f"r/{number}", Record()) for number in range(60)])
    for number, outcome in enumerate(outcomes):
        standing = store.below._objects[f"r/{number}"]
        assert outcome == (Done(standing.info.version) if number % 2 else Refused(Refusal.CONDITION))
    assert await registers(store).write([]) == []

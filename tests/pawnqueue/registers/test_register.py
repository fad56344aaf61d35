"""A register of a known kind: three outcomes of a write, and what a read makes of a body (§2)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pawnqueue import MemoryStore, StoreError
from pawnqueue.domain import lease as leases
from pawnqueue.domain.claim_record import ClaimRecord
from pawnqueue.domain.lease import Lease
from pawnqueue.domain.write_record import WriteRecord
from pawnqueue.registers.claim_records import ClaimRecordRegister
from pawnqueue.registers.conditional_write import ConditionalWrite
from pawnqueue.registers.leases import LeaseRegister
from pawnqueue.registers.register import Versioned
from pawnqueue.registers.strategy import Step
from pawnqueue.registers.write_records import WriteRecordRegister
from pawnqueue.runtime.clock import SystemClock
from pawnqueue.settings import RetrySettings
from pawnqueue.stores.port import Done, Outcome, Refusal, Refused, Unknown
from pawnqueue.stores.retry import ResilientStore

UUID = "11111111-2222-4333-8444-555555555555"
NAME = f"20260101T000000_000000-{UUID}.json"
LEASE = leases.held(UUID, NAME, consumer="c", claim="run.0", deliveries=1, until=30.0, ttl=30)


class Answering(ConditionalWrite):
    """Registers in memory, which answer as a test has it."""

    def __init__(self) -> None:
        clock = SystemClock()
        super().__init__(ResilientStore(MemoryStore(), RetrySettings(), clock), clock, unquoted=False, at_once=1)
        self.answers: list[Outcome] = []
        self.written: list[Step] = []

    async def write(self, steps: Sequence[Step]) -> list[Outcome]:
        """See :class:`~pawnqueue.registers.strategy.Registers`."""
        self.written += steps
        return [self.answers.pop()] if self.answers else await super().write(steps)


@pytest.fixture
def registers() -> Answering:
    """Registers in memory."""
    return Answering()


def lease(registers: Answering) -> LeaseRegister:
    """The lease of one message."""
    return LeaseRegister(registers, "t", UUID, 30)


async def test_a_register_that_does_not_exist_is_none(registers: Answering) -> None:
    """Reading it finds nothing, of whatever kind it is."""

    async def now() -> float:
        raise AssertionError

    assert await lease(registers).read() is None
    assert await ClaimRecordRegister(registers, "t", "run.0", now).read() is None
    assert await WriteRecordRegister(registers, "t", "w", 2.0).read() is None


async def test_what_was_written_is_found_under_its_version(registers: Answering) -> None:
    """A creation and a replacement return the version that a read finds, with the record that was written."""
    created = await lease(registers).create(LEASE)
    found = await lease(registers).read()
    assert created is not None
    assert found is not None
    assert (created.value, created.version) == (LEASE, found.version)
    assert (found.value.claim, found.value.key) == ("run.0", NAME)
    replaced = await lease(registers).replace(found, LEASE.model_copy(update={"claim": "run.1"}))
    again = await lease(registers).read()
    assert replaced is not None
    assert again is not None
    assert replaced.version == again.version != found.version
    assert again.value.claim == "run.1"


async def test_what_was_refused_is_none(registers: Answering) -> None:
    """A register is created once, and each version of it is replaced once."""
    created = await lease(registers).create(LEASE)
    assert created is not None
    assert await lease(registers).create(LEASE) is None
    assert await lease(registers).replace(created, LEASE) is not None
    assert await lease(registers).replace(created, LEASE) is None


@pytest.mark.parametrize("is_transient", [True, False])
async def test_an_unknown_outcome_is_raised(registers: Answering, *, is_transient: bool) -> None:
    """It is never returned as a refusal, and the error is the one that made it unknown."""
    fault = StoreError("Nobody knows.", transient=is_transient)
    registers.answers = [Unknown(fault), Unknown(fault)]
    with pytest.raises(StoreError) as caught:
        await lease(registers).create(LEASE)
    assert caught.value is fault
    with pytest.raises(StoreError) as caught:
        await lease(registers).replace(Versioned(LEASE, '"1"'), LEASE)
    assert caught.value is fault


@pytest.mark.parametrize("why", Refusal)
async def test_every_refusal_is_none(registers: Answering, why: Refusal) -> None:
    """Whatever the reason, what is stored is not the writer's."""
    registers.answers = [Refused(why)]
    assert await lease(registers).create(LEASE) is None


async def test_a_write_that_was_sent_more_than_once_says_so(registers: Answering) -> None:
    """One of its attempts may land later, where its condition holds again."""
    registers.answers = [Done('"2"', repeated=True), Done('"1"')]
    once, twice = await lease(registers).create(LEASE), await lease(registers).create(LEASE)
    assert once is not None
    assert twice is not None
    assert (once.is_repeated, twice.is_repeated) == (False, True)


async def test_a_claim_record_tells_what_is_left_of_its_time(registers: Answering) -> None:
    """The time is in what is stored; a closed record has none left, and the caller keeps the record as it was given."""

    async def now() -> float:
        return 100.0

    register = ClaimRecordRegister(registers, "t", "run.0", now)
    record = ClaimRecord(claim_id="run", until=130.0)
    created = await register.create(record)
    assert created is not None
    assert created.value is record
    closed = await register.close(created)
    assert closed is not None
    assert closed.value.state == "closed"
    stored = [step.record for step in registers.written]
    assert [each.ttl for each in stored if isinstance(each, ClaimRecord)] == [30.0, 0.0]


async def test_a_claim_record_is_written_although_the_time_is_not_known(registers: Answering) -> None:
    """A settlement does not fail for want of a hint: the record tells the time that it had."""

    async def now() -> float:
        raise StoreError

    register = ClaimRecordRegister(registers, "t", "run.0", now)
    assert await register.create(ClaimRecord(claim_id="run", until=130.0, ttl=7.0)) is not None
    [step] = registers.written
    assert isinstance(step.record, ClaimRecord)
    assert step.record.ttl == 7.0


@pytest.mark.parametrize(("kind", "key"), [(Lease, f"t/leases/{UUID}.lease"), (ClaimRecord, "t/claims/run.0.json")])
async def test_garbage_has_a_version_and_can_be_replaced(registers: Answering, kind: type, key: str) -> None:
    """Garbage is judged by its kind, and its reader may write a record in its place."""

    async def now() -> float:
        return 0.0

    await registers._store.overwrite(key, b"garbage")
    if kind is Lease:
        found = await lease(registers).read()
        assert found is not None
        assert (found.value.v, found.value.state) == (0, "held")
        assert await lease(registers).replace(found, LEASE) is not None
        return
    register = ClaimRecordRegister(registers, "t", "run.0", now)
    record = await register.read()
    assert record is not None
    assert (record.value.v, record.value.state, record.value.stem) == (0, "expired", "run.0")
    assert await register.close(record) is not None


async def test_a_write_record_that_is_garbage_is_an_error(registers: Answering) -> None:
    """Nobody can tell whether such a write was published."""
    await registers._store.overwrite("t/writes/w.json", b"garbage")
    with pytest.raises(StoreError, match="nobody can tell whether this write was published"):
        await WriteRecordRegister(registers, "t", "w", 2.0).read()


async def test_a_write_record_is_no_later_than_the_store_says(registers: Answering) -> None:
    """§7: A forged time blocks nobody for longer than a holder's time and a margin."""
    register = WriteRecordRegister(registers, "t", "w", 2.0)
    assert await register.create(WriteRecord(write_id="w", until=2e11, unread_since=2e11, rows_unread_since=2e11))
    found = await register.read()
    info = await registers.head("t/writes/w.json")
    assert found is not None
    assert info is not None
    latest = info.last_modified.timestamp() + 1 + 2
    times = (found.value.until, found.value.unread_since, found.value.rows_unread_since)
    assert times == (latest + 30, latest, latest)

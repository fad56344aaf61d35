"""``csprng_verify`` step by step, in virtual time, on a store in memory whose requests can be made slow."""

from __future__ import annotations

import asyncio

import pytest

from pawnqueue import ConfigError, MemoryStore, PawnQueue, StoreError
from pawnqueue.domain.record import Record
from pawnqueue.registers import csprng_verify
from pawnqueue.registers.csprng_verify import CsprngVerify, advice, shortest_verification
from pawnqueue.registers.strategy import Step
from pawnqueue.settings import RetrySettings
from pawnqueue.settings.sections import CsprngVerifySettings
from pawnqueue.stores.port import Done, Refused, Unknown
from pawnqueue.stores.retry import ResilientStore
from tests.pawnqueue.virtual import Bucket
from tests.support.clock import VirtualClock
from tools.kit.stores import Answer, CarryOut, HookedStore, Request

QUICK = CsprngVerifySettings(jitter_min_ms=20, jitter_max_ms=40, verify_retries=1, verify_retry_delay_ms=20)
KEYS = [f"orders/leases/{number}.lease" for number in range(30)]


class LastWins(HookedStore):
    """A bucket that ignores conditions, counts requests, and delays PUTs for a given time."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(Bucket(clock))
        self.clock = clock
        self.requests: list[str] = []
        self.slow = 0.0

    async def answer(self, request: Request, carry_out: CarryOut) -> Answer:
        """Count it, and take PUTs as they come."""
        if not request.surplus:
            self.requests.append(request.kind)
        if request.call != "put":
            return await super().answer(request, carry_out)
        if self.slow:
            await self.clock.sleep(self.slow)
        return await super().answer(request, lambda: self.below.put(request.key, request.body))


@pytest.fixture
def store() -> LastWins:
    """A bucket in which the last write wins."""
    return LastWins(VirtualClock())


def registers(store: LastWins, *, at_once: int = 64) -> CsprngVerify:
    """A process's way to carry registers in that bucket."""
    return CsprngVerify(ResilientStore(store, RetrySettings(), store.clock), store.clock, QUICK, at_once=at_once)


async def test_a_register_is_created_once_and_replaced_by_version(store: LastWins) -> None:
    """Create is refused where an object exists, replace where another version is stored; nothing is written then."""
    strategy = registers(store)
    [created] = await strategy.write([Step("a/x", Record())])
    assert isinstance(created, Done)
    assert isinstance((await strategy.write([Step("a/x", Record())]))[0], Refused)
    [replaced] = await strategy.write([Step("a/x", Record(), created.version)])
    assert isinstance(replaced, Done)
    assert isinstance((await strategy.write([Step("a/x", Record(), created.version)]))[0], Refused)
    head = await store.head("a/x")
    assert head.version == replaced.version
    assert store.requests.count("PUT") == 2


async def test_a_batch_is_verified_by_listings(store: LastWins) -> None:
    """A batch costs one PUT a key, a LIST to look, and ``verify_retries`` + 2 LISTs to verify, whatever its size."""
    outcomes = await registers(store).write([Step(key, Record()) for key in KEYS])
    assert all(isinstance(outcome, Done) for outcome in outcomes)
    assert sorted(store.requests) == ["LIST"] * (1 + QUICK.verify_retries + 2) + ["PUT"] * len(KEYS)


async def test_a_single_register_is_asked_for_itself(store: LastWins) -> None:
    """One key costs a HEAD for each look: its folder may hold thousands."""
    await registers(store).write([Step("orders/claims/x.0.json", Record())])
    assert sorted(store.requests) == ["HEAD"] * (1 + QUICK.verify_retries + 2) + ["PUT"]


async def test_of_many_writers_one_wins(store: LastWins) -> None:
    """Ten processes that create the same batch at once: each key has one winner, and its version is stored."""
    results = await asyncio.gather(*(registers(store).write([Step(key, Record()) for key in KEYS]) for _ in range(10)))
    for position, key in enumerate(KEYS):
        won = [one[position] for one in results if isinstance(one[position], Done)]
        assert len(won) == 1
        head = await store.head(key)
        assert won == [Done(head.version)]


async def test_a_slow_put_is_not_trusted(store: LastWins) -> None:
    """A PUT that took longer than the shortest verification proves nothing, and the sentence says what to raise."""
    store.slow = shortest_verification(QUICK) * 1.5
    [outcome] = await registers(store).write([Step("a/x", Record())])
    assert isinstance(outcome, Unknown)
    assert "jitter_min_ms" in str(outcome.fault)


async def test_a_put_without_an_answer_is_sent_again(store: LastWins) -> None:
    """One that the store answers with an error is sent again, and the register is won."""
    answers: list[Answer] = [Unknown(StoreError("503 SlowDown", transient=True), answered=True)] * 2

    async def busy(request: Request, carry_out: CarryOut) -> Answer:
        return answers.pop() if request.call == "put" and answers else await carry_out()

    store.hook = busy
    [outcome] = await registers(store).write([Step("a/x", Record())])
    assert outcome == Done((await store.head("a/x")).version)
    assert not answers


async def test_a_put_is_sent_again_when_the_first_can_land_no_more(store: LastWins) -> None:
    """By the assumption it lands within the shortest verification after its look: the second one waits for that."""
    sent: list[float] = []
    strategy = registers(store)

    async def lose(request: Request, carry_out: CarryOut) -> Answer:
        if request.call != "put":
            return await carry_out()
        sent.append(store.clock.elapsed())
        if len(sent) == 1:
            return Unknown(StoreError("hung up", transient=True))
        return await carry_out()

    store.hook = lose
    began = store.clock.elapsed()
    assert isinstance((await strategy.write([Step("a/x", Record())]))[0], Done)
    assert round(sent[1] - began, 6) >= strategy.shortest


async def test_a_put_is_not_sent_again_over_somebody_elses(store: LastWins) -> None:
    """What somebody has written meanwhile is left alone, and nothing says what became of ours."""

    async def lose(request: Request, carry_out: CarryOut) -> Answer:
        if request.call != "put":
            return await carry_out()
        await store.below.put(request.key, b"somebody else's")
        return Unknown(StoreError("hung up", transient=True))

    store.hook = lose
    assert isinstance((await registers(store).write([Step("a/x", Record())]))[0], Unknown)
    assert (await store.get("a/x")).body == b"somebody else's"


async def test_what_was_written_just_now_is_read_twice(store: LastWins) -> None:
    """A register that was written just now is read when it has stood for the shortest verification, and not before."""
    strategy = registers(store)
    await store.put("a/x", b"first")

    async def overwrite() -> None:
        await store.clock.sleep(strategy.shortest / 2)
        await store.put("a/x", b"second")

    began = store.clock.elapsed()
    found, _ = await asyncio.gather(strategy.read("a/x"), overwrite())
    assert found is not None
    assert found.body == b"second"
    assert store.clock.elapsed() - began == pytest.approx(strategy.shortest * 2)
    assert await strategy.read("a/y") is None


async def test_what_stands_for_long_is_read_once(store: LastWins, monkeypatch: pytest.MonkeyPatch) -> None:
    """How old a register is at least is known from other objects: an old one costs one GET, and no pause."""
    strategy = registers(store)
    await store.put("a/x", b"old")
    await store.clock.sleep(1.0 + strategy.shortest)
    monkeypatch.setattr(csprng_verify, "MAX_SERVER_CLOCK_SKEW_SECONDS", -1.0)  # a second less to wait for
    await strategy.write([Step("a/y", Record())])  # is seen at its verification, with its time
    store.requests.clear()
    assert await strategy.read("a/x") is not None
    assert store.requests == ["GET"]


async def test_what_keeps_changing_is_not_read(store: LastWins) -> None:
    """A register that changes at every look ends in an error that says so: no value that was seen is returned."""

    async def change(request: Request, carry_out: CarryOut) -> Answer:
        await store.below.put(request.key, store.clock.nonce().encode())
        return await carry_out()

    store.hook = change
    with pytest.raises(StoreError, match="keeps changing") as raised:
        await registers(store).read("a/x")
    assert raised.value.transient


async def test_who_is_cancelled_waits_for_puts_under_way(store: LastWins) -> None:
    """A cancelled write ends when its PUTs have been answered, sends no more of them, and looks at nothing."""
    store.slow = 0.1
    writing = asyncio.ensure_future(registers(store, at_once=2).write([Step(key, Record()) for key in KEYS]))
    await store.clock.sleep(0.05)
    for _ in range(2):  # to cancel it again changes nothing
        writing.cancel()
        await store.clock.sleep(0.01)
        assert not writing.done()
    with pytest.raises(asyncio.CancelledError):
        await writing
    written = [key for key in KEYS if await store.below.get(key) is not None]
    assert written == KEYS[:2]
    assert store.requests == ["LIST", "PUT", "PUT"]


def test_the_advice_fits_the_store() -> None:
    """Advice says that the pauses are long enough, or names pauses that would be."""
    assert "long enough" in advice(0.05, CsprngVerifySettings())
    told = advice(0.6, CsprngVerifySettings())
    assert "jitter_min_ms to 450 " in told
    assert "long enough" in advice(0.6, CsprngVerifySettings(jitter_min_ms=450, jitter_max_ms=1800))


async def test_without_pauses_nothing_opens() -> None:
    """Pauses of nothing at all are refused: they would verify nothing."""
    nothing = {"jitter_min_ms": 0, "verify_retry_delay_ms": 0}
    with pytest.raises(ConfigError, match="jitter_min_ms"):
        await PawnQueue.open(store=MemoryStore(), concurrency={"strategy": "csprng_verify", "csprng_verify": nothing})

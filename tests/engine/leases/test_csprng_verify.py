"""``csprng_verify`` step by step, on a store in memory whose requests can be made slow."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pawnqueue.engine import ConfigError, MemoryStore, PawnQueue, StoreError
from airflow_provider_pawnqueue.engine.clock import SystemClock
from airflow_provider_pawnqueue.engine.leases import csprng_verify
from airflow_provider_pawnqueue.engine.leases.cas import Step
from airflow_provider_pawnqueue.engine.leases.csprng_verify import CsprngVerify, advice, shortest_verification
from airflow_provider_pawnqueue.engine.records import Record
from airflow_provider_pawnqueue.engine.settings import RetrySettings
from airflow_provider_pawnqueue.engine.settings.sections import CsprngVerifySettings
from airflow_provider_pawnqueue.engine.store.port import Done, Expect, Refused, Unknown
from airflow_provider_pawnqueue.engine.store.retry import ResilientStore

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.store.port import Expectation, Outcome

QUICK = CsprngVerifySettings(jitter_min_ms=20, jitter_max_ms=40, verify_retries=1, verify_retry_delay_ms=20)
KEYS = [f"orders/leases/{number}.lease" for number in range(30)]


class Counting(MemoryStore):
    """Counts requests, ignores conditions as such stores do, and holds PUTs up as long as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[str] = []
        self.slow = 0.0

    async def head(self, key: str) -> object:
        """See the port."""
        self.requests.append("HEAD")
        return await super().head(key)

    def pages(self, folder: str, *, start_after: str = "") -> object:
        """See the port."""
        self.requests.append("LIST")
        return super().pages(folder, start_after=start_after)

    async def put(self, key: str, body: bytes, *, expect: Expectation = Expect.ANYTHING) -> Outcome:
        """See the port."""
        self.requests.append("PUT")
        await asyncio.sleep(self.slow)
        return await super().put(key, body)


@pytest.fixture
def store() -> Counting:
    """A bucket in which the last write wins."""
    return Counting()


def registers(store: MemoryStore, settings: CsprngVerifySettings = QUICK) -> CsprngVerify:
    """A process's way to carry registers in that bucket."""
    clock = SystemClock()
    return CsprngVerify(ResilientStore(store, RetrySettings(), clock), clock, settings, at_once=64)


async def test_a_register_is_created_once_and_replaced_by_version(store: Counting) -> None:
    """Create is refused where something stands, replace where another version stands; nothing is written then."""
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


async def test_a_batch_is_verified_by_listings(store: Counting) -> None:
    """A batch costs one PUT a key, a LIST to look, and ``verify_retries`` + 2 LISTs to verify, whatever its size."""
    outcomes = await registers(store).write([Step(key, Record()) for key in KEYS])
    assert all(isinstance(outcome, Done) for outcome in outcomes)
    assert sorted(store.requests) == ["LIST"] * (1 + QUICK.verify_retries + 2) + ["PUT"] * len(KEYS)


async def test_a_single_register_is_asked_for_itself(store: Counting) -> None:
    """One key costs a HEAD for each look: its folder may hold thousands."""
    await registers(store).write([Step("orders/claims/x.0.json", Record())])
    assert sorted(store.requests) == ["HEAD"] * (1 + QUICK.verify_retries + 2) + ["PUT"]


async def test_of_many_writers_one_wins(store: Counting) -> None:
    """Ten processes that create the same batch at once: each key has one winner, and its version stands there."""
    results = await asyncio.gather(*(registers(store).write([Step(key, Record()) for key in KEYS]) for _ in range(10)))
    for position, key in enumerate(KEYS):
        won = [one[position] for one in results if isinstance(one[position], Done)]
        assert len(won) == 1
        head = await store.head(key)
        assert won == [Done(head.version)]


async def test_a_slow_put_is_not_trusted(store: Counting) -> None:
    """A PUT that took longer than the shortest verification proves nothing, and the sentence says what to raise."""
    store.slow = shortest_verification(QUICK) * 1.5
    [outcome] = await registers(store).write([Step("a/x", Record())])
    assert isinstance(outcome, Unknown)
    assert "jitter_min_ms" in str(outcome.fault)


async def test_what_was_written_just_now_is_read_twice(store: Counting) -> None:
    """A register that was written just now is read when it has stood for the shortest verification, and not before."""
    strategy = registers(store)
    await store.put("a/x", b"first")

    async def overwrite() -> None:
        await asyncio.sleep(strategy.shortest / 2)
        await store.put("a/x", b"second")

    began = asyncio.get_running_loop().time()
    found, _ = await asyncio.gather(strategy.read("a/x"), overwrite())
    assert found is not None
    assert found.body == b"second"
    assert asyncio.get_running_loop().time() - began >= strategy.shortest * 2
    assert await strategy.read("a/y") is None


async def test_what_stands_for_long_is_read_once(store: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """How old a register is at least is known from other objects: an old one costs one GET, and no pause."""
    strategy = registers(store)
    await store.put("a/x", b"old")
    await asyncio.sleep(1.0 + strategy.shortest)
    monkeypatch.setattr(csprng_verify, "CLOCKS", -1.0)  # a second less to wait for
    await strategy.write([Step("a/y", Record())])  # is seen at its verification, with its time
    reads, get = [], store.get

    async def counted(key: str) -> object:
        reads.append(key)
        return await get(key)

    monkeypatch.setattr(store, "get", counted)
    assert await strategy.read("a/x") is not None
    assert reads == ["a/x"]


async def test_what_keeps_changing_is_not_read(store: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """A register that changes at every look ends in an error that says so: none of what was seen is told."""
    strategy = registers(store)

    async def get(key: str) -> object:
        await store.put(key, SystemClock().nonce().encode())
        return await MemoryStore.get(store, key)

    monkeypatch.setattr(store, "get", get)
    with pytest.raises(StoreError, match="keeps changing") as raised:
        await strategy.read("a/x")
    assert raised.value.transient


async def test_who_is_cancelled_waits_for_puts_under_way(store: Counting) -> None:
    """A cancelled write ends when its PUTs have been answered, sends no more of them, and looks at nothing."""
    store.slow = 0.1
    clock = SystemClock()
    strategy = CsprngVerify(ResilientStore(store, RetrySettings(), clock), clock, QUICK, at_once=2)
    writing = asyncio.ensure_future(strategy.write([Step(key, Record()) for key in KEYS]))
    await asyncio.sleep(0.05)
    for _ in range(2):  # to cancel it again changes nothing
        writing.cancel()
        await asyncio.sleep(0.01)
        assert not writing.done()
    with pytest.raises(asyncio.CancelledError):
        await writing
    written = [key for key in KEYS if await MemoryStore.get(store, key) is not None]
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

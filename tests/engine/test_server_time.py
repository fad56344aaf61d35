"""The store's time: an interval that holds it, whatever the clocks do, at three requests every few minutes."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_pawnqueue.engine import Settings, StoreError
from airflow_provider_pawnqueue.engine.clock import SystemClock
from airflow_provider_pawnqueue.engine.server_time import DRIFT, FRESH, LONGEST_ROUND_TRIP, PATIENCE, ServerTime
from airflow_provider_pawnqueue.engine.settings import RetrySettings
from airflow_provider_pawnqueue.engine.store.connect import connect
from airflow_provider_pawnqueue.engine.store.port import Done, ObjectInfo, Outcome, Unknown
from airflow_provider_pawnqueue.engine.store.retry import ResilientStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_provider_pawnqueue.engine.store.port import Store
    from tests.support.servers import S3Server

EPOCH = 1_800_000_000.0


class ScriptedClock(SystemClock):
    """A clock that stands still but for what happens."""

    def __init__(self) -> None:
        """Start anywhere."""
        super().__init__()
        self.now = 1000.0

    def elapsed(self) -> float:
        """See the clock's port."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Let the time pass at once."""
        self.now += seconds
        await asyncio.sleep(0)


@dataclass
class ScriptedServer:
    """A store with a clock of its own, which only answers what server time asks."""

    clock: ScriptedClock
    offset: float = EPOCH
    drift: float = 0.0
    #: Of the PUTs to come, seconds until the write and from there to the answer.
    trips: list[tuple[float, float]] = field(default_factory=list)
    #: How long a HEAD and a DELETE take.
    other: float = 0.0
    #: PUTs whose answer is lost, before any is answered.
    lost: int = 0
    #: HEADs that show an earlier version, or None for one that shows nothing.
    stale: list[str | None] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    stored: dict[str, ObjectInfo] = field(default_factory=dict)

    def time(self) -> float:
        """The server's time at this moment."""
        return self.offset + self.clock.now * (1 + self.drift)

    async def put(self, key: str, body: bytes, **_: object) -> Outcome:
        """Write after the time to the server; answer after the time back."""
        self.requests.append("PUT")
        there, back = self.trips.pop(0) if self.trips else (0.0, 0.0)
        self.clock.now += there
        stamp = datetime.fromtimestamp(math.floor(self.time()), UTC)
        self.stored[key] = ObjectInfo(key, len(body), f'"{body.decode()}"', stamp)
        self.clock.now += back
        if self.lost:
            self.lost -= 1
            return Unknown(StoreError("lost", transient=True))
        return Done(self.stored[key].version)

    async def head(self, key: str) -> ObjectInfo | None:
        """Tell the whole second of the write."""
        self.requests.append("HEAD")
        self.clock.now += self.other
        if self.stale:
            version = self.stale.pop(0)
            return ObjectInfo(key, 1, version, datetime.fromtimestamp(0, UTC)) if version else None
        return self.stored.get(key)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """Delete."""
        self.requests.append("DELETE")
        self.clock.now += self.other
        for key in keys:
            self.stored.pop(key, None)
        return {}


@pytest.fixture
def clock() -> ScriptedClock:
    """The clock of this machine."""
    return ScriptedClock()


@pytest.fixture
def server(clock: ScriptedClock) -> ScriptedServer:
    """A store beside it."""
    return ScriptedServer(clock)


@pytest.fixture
def time(server: ScriptedServer) -> ServerTime:
    """Its time."""
    return time_of(server)


def time_of(server: ScriptedServer) -> ServerTime:
    """Tell the server's time."""
    return ServerTime(resilient(server), server.clock)


def resilient(server: ScriptedServer) -> ResilientStore:
    """Make a store of the server, of which no more is called."""
    store: Store = server  # type: ignore[assignment]
    return ResilientStore(store, RetrySettings(), server.clock)


def assert_true(time: ServerTime, server: ScriptedServer, told: float | None = None) -> None:
    """The estimate is off by no more than it says, and the true difference lies in the interval."""
    slack = 1e-5  # of floating-point numbers around EPOCH
    now = time.estimate() if told is None else told
    assert abs(now - server.time()) <= time.error + slack
    middle = now - server.clock.now
    assert middle - time.error - slack <= server.time() - server.clock.now <= middle + time.error + slack


async def test_one_sample_is_good_for_a_second(time: ServerTime, server: ScriptedServer) -> None:
    """After one sample the error is half a second and half the round trip."""
    server.trips = [(0.1, 0.1)]
    assert_true(time, server, await time.now())
    assert time.error == pytest.approx(0.6, abs=0.001)


async def test_more_samples_narrow_it_down(time: ServerTime, server: ScriptedServer) -> None:
    """Samples that fall differently within a second leave less and less between them."""
    await time.now()
    errors = [time.error]
    for _ in range(20):
        server.clock.now += 7.07
        sent = server.clock.elapsed()
        stamp = datetime.fromtimestamp(math.floor(server.time()), UTC)
        assert time.observe(stamp, sent, server.clock.elapsed())
        assert_true(time, server)
        errors.append(time.error)
    assert errors[-1] < 0.1


trips = st.tuples(st.floats(0, 0.4), st.floats(0, 0.4))
happenings = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.floats(0, 3 * FRESH)),
        st.tuples(st.just("now"), st.tuples(trips, st.floats(0, 5))),
        st.tuples(st.just("own write"), st.tuples(trips, st.floats(0, 2 * FRESH))),
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(
    offset=st.floats(EPOCH - 1e6, EPOCH + 1e6),
    drift=st.floats(-0.99 * DRIFT, 0.99 * DRIFT),
    happenings=happenings,
)
def test_the_true_time_is_always_inside(
    offset: float, drift: float, happenings: list[tuple[str, float | tuple[tuple[float, float], float]]]
) -> None:
    """Whatever the difference, the drift, the round trips and the age of samples: the error is never understated."""

    async def run() -> None:
        server = ScriptedServer(ScriptedClock(), offset, drift)
        time = time_of(server)
        assert_true(time, server, await time.now())
        for what, how in happenings:
            if isinstance(how, float):
                server.clock.now += how
            elif what == "now":
                trip, server.other = how
                server.trips = [trip]
                assert_true(time, server, await time.now())
            else:
                # An object of ours, whose date is seen in a LIST much later.
                (there, back), later = how
                sent = server.clock.now
                server.clock.now += there
                stamp = datetime.fromtimestamp(server.time(), UTC)
                server.clock.now += back
                received = server.clock.now
                server.clock.now += later
                time.observe(stamp, sent, received)
            assert_true(time, server)

    asyncio.run(run())


@pytest.mark.parametrize(("drift", "fraction"), [(0.99 * DRIFT, 0.999), (-0.99 * DRIFT, 0.001)])
def test_an_old_write_is_worth_less(clock: ScriptedClock, drift: float, fraction: float) -> None:
    """The clocks may have drifted apart since an object was written that is only now seen in a LIST."""
    server = ScriptedServer(clock, EPOCH + fraction - clock.now * drift, drift)
    time = time_of(server)
    stamp = datetime.fromtimestamp(math.floor(server.time()), UTC)
    sent = clock.now
    clock.now += 1000
    assert time.observe(stamp, sent, sent)
    assert_true(time, server)


async def test_a_slow_sample_says_nothing(time: ServerTime, server: ScriptedServer) -> None:
    """A round trip of over half a second is discarded, and the next one is taken."""
    server.trips = [(LONGEST_ROUND_TRIP, 0.1), (5.0, 0.0), (0.01, 0.01)]
    assert_true(time, server, await time.now())
    assert server.requests.count("PUT") == 3
    assert time.error < 0.6
    stamp = datetime.fromtimestamp(math.floor(server.time()), UTC)
    before = time.error
    assert not time.observe(stamp, server.clock.now - LONGEST_ROUND_TRIP - 0.01, server.clock.now)
    assert time.error == before


async def test_a_slow_store_has_a_wide_time(time: ServerTime, server: ScriptedServer) -> None:
    """Where every sample is slow the best one is taken, and the error says how wide it is."""
    server.trips = [(2.0, 2.0), (0.5, 0.5), (3.0, 0.0), (2.0, 0.0)]
    assert_true(time, server, await time.now())
    assert server.requests.count("PUT") == PATIENCE
    # The best one is eight seconds old by now, in which the clocks may have drifted apart a little.
    assert time.error == pytest.approx(1.0, abs=0.01)


async def test_three_requests_a_sample_and_none_between(time: ServerTime, server: ScriptedServer) -> None:
    """The time is asked for by a PUT, a HEAD and a DELETE, and then it is known for a while."""
    await time.now()
    assert server.requests == ["PUT", "HEAD", "DELETE"]
    server.clock.now += FRESH - 0.1
    for _ in range(100):
        assert_true(time, server, await time.now())
        time.estimate()
        await time.now_iso()
    assert len(server.requests) == 3
    assert server.stored == {}
    server.clock.now += 0.2
    assert_true(time, server, await time.now())
    assert server.requests == ["PUT", "HEAD", "DELETE"] * 2


async def test_an_own_write_that_is_seen_saves_a_sample(time: ServerTime, server: ScriptedServer) -> None:
    """After an observed write no sample is due for a while."""
    await time.now()
    server.clock.now += FRESH - 1
    assert time.observe(datetime.fromtimestamp(server.time(), UTC), server.clock.now, server.clock.now)
    server.clock.now += FRESH - 1
    await time.now()
    assert len(server.requests) == 3


@pytest.mark.parametrize("step", [3600.0, -3600.0, 2.5, -2.5])
async def test_a_clock_that_was_set_is_followed(time: ServerTime, server: ScriptedServer, step: float) -> None:
    """When a sample contradicts what was believed, a clock was set: the new sample holds, alone."""
    await time.now()
    server.offset += step
    server.clock.now += FRESH + 1
    assert_true(time, server, await time.now())


async def test_only_the_write_that_was_answered_counts(time: ServerTime, server: ScriptedServer) -> None:
    """A HEAD that shows another write, or none, is no sample: it is measured again."""
    server.stale = ['"other"', None]
    assert_true(time, server, await time.now())
    assert server.requests == ["PUT", "HEAD", "DELETE"] * 3


async def test_a_lost_answer_makes_the_sample_wider(time: ServerTime, server: ScriptedServer) -> None:
    """A PUT that had to be repeated counts from its first attempt."""
    server.lost = 1
    server.trips = [(0.05, 0.05), (0.05, 0.05)]
    assert_true(time, server, await time.now())
    assert server.requests[:2] == ["PUT", "PUT"]
    assert time.error >= 0.6


async def test_a_store_that_never_shows_its_writes_is_told(time: ServerTime, server: ScriptedServer) -> None:
    """Without read-after-write there is no server time: an error, once the budget is spent."""
    server.stale = ['"other"'] * 1000
    with pytest.raises(StoreError, match="no read-after-write consistency"):
        await time.now()
    assert server.stored == {}


async def test_the_time_is_written_as_records_have_it(time: ServerTime, server: ScriptedServer) -> None:
    """``now_iso`` is ISO 8601 in UTC, with ``+00:00`` and microseconds."""
    told = await time.now_iso()
    assert len(told) == len("2026-01-02T03:04:05.000006+00:00")
    assert told.endswith("+00:00")
    assert abs(datetime.fromisoformat(told).timestamp() - server.time()) <= time.error + 1e-5


@pytest.mark.servers
@pytest.mark.parametrize("client", ["obstore", "boto3"])
async def test_on_a_real_server(seaweedfs: S3Server, settings_for: Callable[..., Settings], client: str) -> None:
    """On a server of this machine, whose clock is ours, the time is right within its error; nothing is left behind."""
    clock = SystemClock()
    store = ResilientStore(connect(settings_for(seaweedfs, s3={"client": client}).s3), RetrySettings(), clock)
    time = ServerTime(store, clock)
    for _ in range(3):
        await time._sample()
        assert abs(time.estimate() - clock.wall()) <= time.error + 0.01
    assert [info async for page in store.pages("") for info in page] == []
    await store.aclose()

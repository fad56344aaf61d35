"""The store's time: an interval that holds it, whatever the clocks do, at three requests every few minutes."""

from __future__ import annotations

import asyncio
import gc
import math
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pawnqueue import PawnQueue, Settings, StoreError
from pawnqueue.runtime.clock import SystemClock
from pawnqueue.settings import RetrySettings
from pawnqueue.stores.connect import connect
from pawnqueue.stores.port import Done, ObjectInfo, Outcome, Unknown
from pawnqueue.stores.retry import ResilientStore
from pawnqueue.stores.server_time import (
    MAX_DRIFT,
    MAX_ROUND_TRIP_SECONDS,
    MAX_SAMPLES,
    SAMPLE_CACHE_SECONDS,
    ServerTime,
    local_seconds,
)
from tests.pawnqueue.virtual import TOPIC, Client, World
from tests.support.clock import VirtualClock
from tools.kit.stores import Answer, CarryOut, HookedStore, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tools.kit.servers import S3Server

EPOCH = 1_800_000_000.0
#: Of floating-point numbers around EPOCH.
SLACK = 1e-5
HOUR = 3600.0


@dataclass
class ScriptedServer(HookedStore):
    """A store with a clock of its own, which only answers what server time asks, and below which there is none."""

    clock: VirtualClock
    offset: float = EPOCH
    drift: float = 0.0
    #: Of the PUTs to come, seconds until the write and from there to the answer; and of the HEADs.
    trips: list[tuple[float, float]] = field(default_factory=list)
    heads: list[tuple[float, float]] = field(default_factory=list)
    #: Of the PUTs to come, seconds from the answer to the moment when the very same request lands once more.
    again: list[float] = field(default_factory=list)
    #: PUTs whose answer is lost, before any is answered.
    lost: int = 0
    #: HEADs that show an earlier version, or None for one that shows nothing.
    stale: list[str | None] = field(default_factory=list)
    #: Once it is set, DELETEs wait for it.
    blocked: asyncio.Event | None = None
    #: Called once, when a HEAD is answered.
    meanwhile: Callable[[], object] | None = None
    requests: list[str] = field(default_factory=list)
    stored: dict[str, ObjectInfo] = field(default_factory=dict)
    _echoes: list[tuple[float, ObjectInfo]] = field(default_factory=list)

    def time(self) -> float:
        """The server's time at this moment."""
        return self.offset + self.clock.now * (1 + self.drift)

    def stamp(self, ago: float = 0.0) -> datetime:
        """The Last-Modified of an object of this age in seconds."""
        return datetime.fromtimestamp(math.floor(self.time() - ago * (1 + self.drift)), UTC)

    async def answer(self, request: Request, carry_out: CarryOut) -> Answer:
        """Answer by the script."""
        self.requests.append(request.kind)
        match request.call:
            case "put":
                return await self._put(request.key, request.body)
            case "head":
                return await self._head(request.key)
            case "delete":
                return await self._remove(request.keys)
        pytest.fail(f"server time asks by PUT, HEAD and DELETE alone, and not by {request.call}")

    async def _put(self, key: str, body: bytes) -> Outcome:
        """Write after the time to the server; answer after the time back."""
        there, back = self.trips.pop(0) if self.trips else (0.0, 0.0)
        await asyncio.sleep(0)
        self.clock.now += there
        self.stored[key] = ObjectInfo(key, len(body), f'"{body.decode()}"', self.stamp())
        self.clock.now += back
        if self.again:
            self._echoes.append((self.clock.now + self.again.pop(0), self.stored[key]))
        if self.lost:
            self.lost -= 1
            return Unknown(StoreError("lost", transient=True))
        return Done(self.stored[key].version)

    async def _head(self, key: str) -> ObjectInfo | None:
        """Tell the whole second of the write."""
        there, back = self.heads.pop(0) if self.heads else (0.0, 0.0)
        await asyncio.sleep(0)
        self.clock.now += there
        for due, info in self._echoes:
            if due <= self.clock.now and info.key in self.stored:
                self.stored[info.key] = replace(info, last_modified=self.stamp(self.clock.now - due))
        self._echoes = [echo for echo in self._echoes if echo[0] > self.clock.now]
        found = self.stored.get(key)
        self.clock.now += back
        if self.meanwhile is not None:
            self.meanwhile, do = None, self.meanwhile
            do()
        if self.stale:
            version = self.stale.pop(0)
            return ObjectInfo(key, 1, version, datetime.fromtimestamp(0, UTC)) if version else None
        return found

    async def _remove(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        if self.blocked is not None:
            await self.blocked.wait()
        for key in keys:
            self.stored.pop(key, None)
        return {}


@pytest.fixture
def clock() -> VirtualClock:
    """The clock of this machine."""
    return VirtualClock()


@pytest.fixture
def server(clock: VirtualClock) -> ScriptedServer:
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
    """Make a store of the server."""
    return ResilientStore(server, RetrySettings(), server.clock)


def assert_true(time: ServerTime, server: ScriptedServer, told: float | None = None) -> None:
    """The estimate is off by no more than it says, and the true difference lies in the interval."""
    now = time.estimate() if told is None else told
    assert abs(now - server.time()) <= time.error + SLACK


async def test_one_sample_is_good_for_a_second(time: ServerTime, server: ScriptedServer) -> None:
    """After one sample the error is half a second and half of what its PUT and its HEAD took."""
    server.trips, server.heads = [(0.1, 0.1)], [(0.1, 0.1)]
    assert_true(time, server, await time.now())
    assert time.error == pytest.approx(0.7, abs=0.001)


@pytest.mark.parametrize("heads", [(0.0, 0.0), (0.1, 0.1), (2.4, 0.0), (1.5, 8.0)])
async def test_a_put_that_lands_again_is_in_the_interval(
    time: ServerTime, server: ScriptedServer, heads: tuple[float, float]
) -> None:
    """⚑ A PUT that lands once more after its answer, with the same body, brings a later date: the sample holds it."""
    server.trips, server.again, server.heads = [(0.01, 0.01)], [heads[0]], [heads]
    assert_true(time, server, await time.now())


async def test_more_samples_narrow_it_down(time: ServerTime, server: ScriptedServer) -> None:
    """Samples that fall differently within a second leave less and less between them."""
    await time.now()
    errors = [time.error]
    for _ in range(20):
        server.clock.now += 7.07
        await time._sample()
        assert_true(time, server)
        errors.append(time.error)
    assert errors[-1] < 0.1
    assert time.jumps == 0


trips = st.tuples(st.floats(0, 0.4), st.floats(0, 3))
happenings = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.floats(0, 3 * SAMPLE_CACHE_SECONDS)),
        st.tuples(st.just("now"), st.tuples(trips, trips, st.floats(0, 4))),
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(
    offset=st.floats(EPOCH - 1e6, EPOCH + 1e6),
    drift=st.floats(-0.99 * MAX_DRIFT, 0.99 * MAX_DRIFT),
    happenings=happenings,
)
def test_the_true_time_is_always_inside(
    offset: float,
    drift: float,
    happenings: list[tuple[str, float | tuple[tuple[float, float], tuple[float, float], float]]],
) -> None:
    """Whatever the difference, the drift, the round trips and what lands again: the error is never understated."""

    async def run() -> None:
        server = ScriptedServer(VirtualClock(), offset, drift)
        time = time_of(server)
        assert_true(time, server, await time.now())
        for _, how in happenings:
            if isinstance(how, float):
                server.clock.now += how
            else:
                server.trips, server.heads, server.again = [how[0]], [how[1]], [how[2]]
                assert_true(time, server, await time.now(within=0.3))
            assert_true(time, server)
        assert time.jumps == 0

    asyncio.run(run())


async def test_a_slow_sample_is_followed_by_another(time: ServerTime, server: ScriptedServer) -> None:
    """What took over a second to tell says little: more is asked, up to a quick answer, and all of it counts."""
    server.trips, server.heads = [(0.1, 0.1), (5.0, 0.0), (0.01, 0.01)], [(MAX_ROUND_TRIP_SECONDS, 0.0)]
    assert_true(time, server, await time.now())
    assert server.requests.count("PUT") == 3
    assert time.error < 0.6


async def test_a_slow_store_has_a_wide_time(time: ServerTime, server: ScriptedServer) -> None:
    """Where every sample is slow it is taken after a few, and the error says how wide it is."""
    server.trips = [(2.0, 2.0), (1.5, 0.0), (3.0, 0.0), (2.0, 0.0)]
    assert_true(time, server, await time.now())
    assert server.requests.count("PUT") == MAX_SAMPLES
    assert 0.5 < time.error <= 1.26


async def test_a_wide_time_is_asked_for_again_at_once(time: ServerTime, server: ScriptedServer) -> None:
    """A caller that needs a narrower time has a new sample taken at once; others use the old one for a while."""
    server.trips = [(5.0, 5.0)] * MAX_SAMPLES
    await time.now()
    assert time.error > 2
    await time.now()
    assert server.requests.count("PUT") == MAX_SAMPLES
    await time.now(within=2)
    assert time.error < 1
    await time.now(within=2)
    assert server.requests.count("PUT") == MAX_SAMPLES + 1
    assert_true(time, server)


async def test_callers_share_a_sample(time: ServerTime, server: ScriptedServer) -> None:
    """Fifty who want to know the time at once cost as much as one."""
    told = await asyncio.gather(*(time.now(within=2) for _ in range(50)))
    assert server.requests.count("PUT") == 1
    for one in told:
        assert_true(time, server, one)


async def test_who_goes_away_does_not_end_the_sample_of_others(time: ServerTime, server: ScriptedServer) -> None:
    """The caller that began a sample is cancelled: the callers that share it still get the time."""
    first, second = (asyncio.ensure_future(time.now()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert_true(time, server, await second)
    assert first.cancelled()
    assert server.requests.count("PUT") == 1


async def test_who_joins_a_slow_sample_takes_another(time: ServerTime, server: ScriptedServer) -> None:
    """A caller that needs a narrow time, and joins a sample that turns out to be slow, gets the next one."""
    server.trips = [(5.0, 5.0)] * MAX_SAMPLES
    anyone, claimer = await asyncio.gather(time.now(), time.now(within=2))
    assert server.requests.count("PUT") == MAX_SAMPLES + 1
    assert time.error < 1
    assert_true(time, server, claimer)
    assert anyone


async def test_all_who_share_a_sample_hear_that_it_failed(time: ServerTime, server: ScriptedServer) -> None:
    """A sample that fails is an error for each that waits for it, once; the next one who asks tries again."""
    server.stale = [None] * 10_000
    outcomes = await asyncio.gather(*(time.now() for _ in range(5)), return_exceptions=True)
    assert [type(one) for one in outcomes] == [StoreError] * 5
    server.stale.clear()
    assert_true(time, server, await time.now())


async def test_a_sample_that_nobody_waits_for_may_fail(
    time: ServerTime, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Its only caller went away: that it fails then is nobody's error."""
    server.stale = [None] * 10_000
    asking = asyncio.ensure_future(time.now())
    await asyncio.sleep(0)
    sampling = time._sampling
    assert sampling is not None
    asking.cancel()
    await asyncio.wait([asking, sampling])
    del asking, sampling
    gc.collect()
    assert not caplog.records


async def test_nobody_waits_for_the_probe_to_be_removed(time: ServerTime, server: ScriptedServer) -> None:
    """The time is returned while the DELETE is still under way; closing waits for it."""
    server.blocked = asyncio.Event()
    assert_true(time, server, await time.now())
    assert server.stored
    closing = asyncio.ensure_future(time.aclose())
    await asyncio.sleep(0.01)
    assert not closing.done()
    server.blocked.set()
    await closing
    assert not server.stored


async def test_closing_ends_a_sample_that_is_under_way(time: ServerTime, server: ScriptedServer) -> None:
    """A store that says nothing does not keep a queue from being closed."""
    server.stale = [None] * 10_000
    asking = asyncio.ensure_future(time.now())
    await asyncio.sleep(0)
    await time.aclose()
    with pytest.raises(asyncio.CancelledError):
        await asking


def test_an_unknown_time_is_no_time(time: ServerTime) -> None:
    """⚑ Before the first sample there is no estimate, and no deadline, rather than a wrong one."""
    with pytest.raises(RuntimeError, match="not known yet"):
        time.estimate()
    with pytest.raises(RuntimeError, match="not known yet"):
        time.trusted_until(EPOCH, 2.0)
    assert time.error == math.inf
    time.note_date(datetime.fromtimestamp(EPOCH, UTC))


async def test_three_requests_a_sample_and_none_between(time: ServerTime, server: ScriptedServer) -> None:
    """The time is asked for by a PUT, a HEAD and a DELETE, and then it is known for a while."""
    await time.now()
    assert server.requests == ["PUT", "HEAD", "DELETE"]
    server.clock.now += SAMPLE_CACHE_SECONDS - 0.1
    for _ in range(100):
        assert_true(time, server, await time.now())
        time.estimate()
        await time.now_iso()
    assert len(server.requests) == 3
    assert server.stored == {}
    server.clock.now += 0.2
    assert_true(time, server, await time.now())
    assert server.requests == ["PUT", "HEAD", "DELETE"] * 2


@pytest.mark.parametrize("step", [3600.0, -3600.0, 2.5, -2.5])
async def test_a_clock_that_was_set_is_followed(time: ServerTime, server: ScriptedServer, step: float) -> None:
    """When a sample contradicts what was believed, a clock was set: the new sample holds, alone."""
    await time.now()
    server.offset += step
    server.clock.now += SAMPLE_CACHE_SECONDS + 1
    assert_true(time, server, await time.now())
    assert time.jumps == 1


async def test_only_the_write_that_was_answered_counts(time: ServerTime, server: ScriptedServer) -> None:
    """A HEAD that shows another write, or none, is no sample: it is measured again."""
    server.stale = ['"other"', None]
    assert_true(time, server, await time.now())
    assert server.requests == [*["PUT", "HEAD"] * 3, "DELETE"]


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
    await time.aclose()
    assert server.stored == {}


async def test_one_slow_moment_refuses_one_claim() -> None:
    """⚑ A store that was slow when it was first asked for the time, and is fast again, is claimed from at once."""
    async with World() as world:
        client = Client(world.bucket, latency=3)
        queue = await PawnQueue.open(Settings(s3={"bucket_name": "virtual"}), store=client, clock=world.clock)
        world.fill([{"id": "1", "payload": {}}])
        with pytest.raises(StoreError, match="too slowly"):
            await queue.claim(TOPIC, "ann")
        client.latency = 0
        with client.counting() as requests:
            await queue.renew(await queue.claim(TOPIC, "ann"))
        assert requests["HEAD"] == 1
        await queue.aclose()


# --- drift: until when what lasts by the store's time can be trusted ---


@settings(max_examples=300, deadline=None)
@given(
    drift=st.floats(-MAX_DRIFT, MAX_DRIFT),
    fraction=st.floats(0, 1),
    trip=st.tuples(st.floats(0, 3), st.floats(0, 3)),
    age=st.floats(0, SAMPLE_CACHE_SECONDS),
    ttl=st.floats(5, 12 * HOUR),
)
def test_what_is_trusted_is_not_over(
    drift: float, fraction: float, trip: tuple[float, float], age: float, ttl: float
) -> None:
    """⚑ When a holder stops by its clock, the store's has not reached the time, at 200 ppm and after half a day."""

    async def run() -> None:
        server = ScriptedServer(VirtualClock(), EPOCH + fraction, drift, trips=[trip] * MAX_SAMPLES)
        time = time_of(server)
        until = await time.now() + ttl
        server.clock.now += age
        started, left = server.clock.now, until - server.time()
        for margin in (0.0, 2.0):
            trusted = time.trusted_until(until, margin)
            assert trusted <= until - margin - (time.estimate() - started) + SLACK
            server.clock.now = max(started, trusted)
            assert trusted <= started or server.time() <= until + SLACK
            # It gives away no more than it has to: the margin, or the error and the drift to come.
            assert trusted >= started + left - max(margin + time.error, 2 * time.error) - 2 * MAX_DRIFT * ttl - SLACK
            server.clock.now = started
        assert local_seconds(ttl) * (1 + drift) <= ttl

    asyncio.run(run())


async def test_half_a_day_at_the_wrong_speed(clock: VirtualClock) -> None:
    """⚑ Twelve hours at 200 ppm are 8.6 seconds: a deadline that is only the margin early is 6.6 seconds too late."""
    server = ScriptedServer(clock, drift=MAX_DRIFT)
    time = time_of(server)
    until = await time.now() + 12 * HOUR
    clock.now = clock.now + 12 * HOUR - 2.0
    assert server.time() > until + 6
    clock.now = time.trusted_until(until, 2.0)
    assert until - 1.5 < server.time() <= until
    assert local_seconds(12 * HOUR) == pytest.approx(12 * HOUR - 8.64)
    assert local_seconds(math.inf) == math.inf


# --- a clock that stood still ---


async def test_a_clock_that_stood_still_is_noticed(time: ServerTime, server: ScriptedServer) -> None:
    """⚑ An object that is younger than it can be shows that the machine was stopped: the next step knows the time."""
    until = await time.now() + 100
    trusted = time.trusted_until(until, 2.0)
    server.clock.now += 5
    server.offset += 60  # the machine is stopped for a minute
    time.note_date(server.stamp())
    assert_true(time, server, await time.now())
    assert time.jumps == 1
    assert time.trusted_until(until, 2.0) == pytest.approx(trusted - 60, abs=1.1)
    assert server.requests.count("PUT") == 2
    time.note_date(server.stamp())
    await time.now()
    assert server.requests.count("PUT") == 2


async def test_what_no_object_shows_is_known_by_the_next_sample(time: ServerTime, server: ScriptedServer) -> None:
    """§2: objects older than the time that was lost say nothing of it, and no later than the next sample does."""
    await time.now()
    server.clock.now += SAMPLE_CACHE_SECONDS / 2
    server.offset += 60  # the machine is stopped for a minute
    time.note_date(server.stamp(61))
    assert server.time() - await time.now() == pytest.approx(60, abs=1)
    assert (server.requests.count("PUT"), time.jumps) == (1, 0)
    server.clock.now += SAMPLE_CACHE_SECONDS / 2 + 1
    assert_true(time, server, await time.now())
    assert (server.requests.count("PUT"), time.jumps) == (2, 1)


async def test_a_slow_sample_does_not_deny_that_the_clock_stood_still(time: ServerTime, server: ScriptedServer) -> None:
    """A sample too slow to tell is taken for what it says by itself: nothing is believed that the suspicion denies."""
    await time.now()
    server.offset += 6
    time.note_date(server.stamp())
    server.trips = [(5.0, 5.0)] * MAX_SAMPLES
    assert_true(time, server, await time.now())
    assert_true(time, server, await time.now(within=2))
    assert time.error < 1


async def test_a_lying_object_costs_one_sample(time: ServerTime, server: ScriptedServer) -> None:
    """A stranger's object with a date in the future is disproved once, and what is no later says nothing more."""
    await time.now()
    before = time.estimate()
    for ahead in (7200, 7200, 3600, 7200):
        time.note_date(server.stamp(-ahead))
        await time.now()
    assert time.estimate() == before
    assert server.requests.count("PUT") == 2
    time.note_date(server.stamp(-7201))
    await time.now()
    assert server.requests.count("PUT") == 3
    assert time.jumps == 0
    assert_true(time, server)


async def test_what_is_seen_never_narrows(time: ServerTime, server: ScriptedServer) -> None:
    """Dates that can be, of old and of new objects, change nothing and cost nothing."""
    server.trips = [(0.4, 0.4)]
    await time.now()
    error, estimate = time.error, time.estimate()
    for ago in (-1.5, -0.5, 0.0, 5.0, 1e6):
        time.note_date(server.stamp(ago))
    assert (time.error, time.estimate()) == (error, estimate)
    await time.now()
    assert server.requests.count("PUT") == 1


async def test_a_suspicion_that_comes_during_a_sample_is_for_the_next(time: ServerTime, server: ScriptedServer) -> None:
    """A sample that began before the machine stood still does not disprove that it did."""
    await time.now()

    def stand_still() -> None:
        server.offset += 60
        time.note_date(server.stamp())

    server.meanwhile = stand_still
    await time.now(within=0.1)
    assert time.jumps == 0
    assert_true(time, server, await time.now())
    assert time.jumps == 1


async def test_a_sample_that_fails_leaves_the_suspicion(time: ServerTime, server: ScriptedServer) -> None:
    """Nothing is disproved by a store that does not answer."""
    await time.now()
    server.offset += 60
    time.note_date(server.stamp())
    server.stale = [None] * 10_000
    with pytest.raises(StoreError):
        await time.now()
    server.stale.clear()
    assert_true(time, server, await time.now())
    assert time.jumps == 1


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
    await time.aclose()
    assert [info async for page in store.pages("") for info in page] == []
    await store.aclose()

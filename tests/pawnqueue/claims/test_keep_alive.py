"""keep_alive: renewals in the background, which follow the claim's own time and never end in silence."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import NoReturn

import pytest

from pawnqueue import Claim, InvalidArgumentError, LeaseLostError, QueueClosedError, StoreError
from pawnqueue.claims.held import HeldClaim
from pawnqueue.claims.keep_alive import LEAVE_TIMEOUT_SECONDS, MIN_RENEWAL_PAUSE_SECONDS, KeepAlive
from tests.pawnqueue.virtual import MARGIN, OVERDUE, TOPIC, TTL, Process, World, numbered, numbers
from tests.support.claims import trusted_until


class OddError(BaseException):
    """Something that nobody expects."""


async def claimed(process: Process, ttl: float = TTL) -> Claim:
    """A claim with a message."""
    await process.queue.publish(TOPIC, numbered(1))
    return await process.queue.claim(TOPIC, "c", ttl=ttl)


def failing(error: BaseException) -> Callable[[str, str], None]:
    """Let every write of a claim record end with this error, as a bug of ours or of a library would."""

    def fail(kind: str, key: str) -> None:
        if kind == "PUT" and "/claims/" in key:
            raise error

    return fail


def renewals(process: Process) -> list[str]:
    """What was sent to renew a claim."""
    return [key for kind, key in process.client.requests if kind == "PUT" and "/claims/" in key]


def background(claim: Claim) -> asyncio.Task[None]:
    """The task that keeps the claim."""
    [task] = [one for one in asyncio.all_tasks() if one.get_name().endswith(claim.claim_id)]
    return task


@pytest.mark.parametrize("ttl", [0, MARGIN, -1, math.nan, math.inf, "x"], ids=repr)
async def test_a_time_that_is_none_is_refused(ann: Process, ttl: float) -> None:
    """Keeping alive takes the times that claiming takes."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    with ann.client.counting() as requests, pytest.raises(InvalidArgumentError, match="pass a number of seconds above"):
        ann.queue.keep_alive(claim, ttl=ttl)
    assert not requests


@pytest.mark.parametrize("interval", [0, -1, math.nan, math.inf, -math.inf, 10 - MARGIN, 10, "x", True, [1]], ids=repr)
async def test_a_pause_that_is_none_is_refused(ann: Process, interval: float) -> None:
    """It is more than nothing, and less than the claim is trusted after a renewal; the error says what to pass."""
    claim = await claimed(ann, ttl=10)
    for ttl in (None, 10):
        with pytest.raises(InvalidArgumentError, match="pass a number of seconds between 0 and 8") as caught:
            ann.queue.keep_alive(claim, ttl=ttl, interval=interval)
    assert caught.value.operation == "keep_alive"
    assert ann.queue.keep_alive(claim, ttl=100, interval=10)


async def test_a_closed_queue_keeps_nothing(ann: Process) -> None:
    """Keeping alive through a closed queue is an error."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    await ann.queue.aclose()
    with pytest.raises(QueueClosedError):
        ann.queue.keep_alive(claim)


async def test_keep_alive_holds_a_claim_over_long_work(world: World, ann: Process, bob: Process) -> None:
    """For twenty times its time nobody else has the messages, and then they are settled."""
    await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c")
    async with ann.queue.keep_alive(claim) as keeper:
        for _ in range(20):
            await world.later(TTL)
            assert not await bob.queue.claim(TOPIC, "d")
        assert not keeper.lost.is_set()
        assert (await ann.queue.ack(claim)).complete


async def test_keep_alive_ends_with_its_block(world: World, ann: Process, bob: Process) -> None:
    """No task and no renewal is left behind, and the claim runs out like any other."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    before = asyncio.all_tasks()
    async with ann.queue.keep_alive(claim):
        await world.later(100)
        assert asyncio.all_tasks() != before
    assert asyncio.all_tasks() == before
    with ann.client.counting() as requests:
        await world.later(OVERDUE)
    assert not requests
    assert numbers(await bob.queue.claim(TOPIC, "d")) == [0]


async def test_keep_alive_lets_the_errors_of_its_block_through(ann: Process) -> None:
    """What the work raises is raised, and the background task has ended."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    before = asyncio.all_tasks()
    with pytest.raises(ZeroDivisionError):
        async with ann.queue.keep_alive(claim):
            1 / 0  # noqa: B018 - the work
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("kind", ["sync", "async", "none"])
async def test_a_loss_is_told_once(world: World, ann: Process, bob: Process, kind: str) -> None:
    """When the claim is fenced, ``.lost`` is set and ``on_lost`` called with the error, once; the block goes on."""
    told: list[LeaseLostError] = []

    async def later(error: LeaseLostError) -> None:
        await world.clock.sleep(1)
        told.append(error)

    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    on_lost = {"sync": told.append, "async": later, "none": None}[kind]
    async with ann.queue.keep_alive(claim, on_lost=on_lost) as keeper:
        world.fence(claim)
        await asyncio.wait_for(keeper.lost.wait(), 5)
        await world.later(200)
        assert keeper.lost.is_set()
    assert len(told) == (0 if kind == "none" else 1)
    assert isinstance(keeper.error, LeaseLostError)
    assert all(error is keeper.error for error in told)
    assert claim.lost


async def test_keep_alive_survives_errors_of_the_store(world: World, ann: Process, bob: Process) -> None:
    """Renewals that fail for a while are tried again, and the claim is kept."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", ttl=120)
    async with ann.queue.keep_alive(claim, ttl=120) as keeper:
        for _ in range(5):
            ann.client.inject("lost", key="*/claims/*")
            await world.later(60)
            ann.client.heal()
            await world.later(60)
            assert not await bob.queue.claim(TOPIC, "d")
        assert not keeper.lost.is_set()
    assert (await ann.queue.ack(claim)).complete


@pytest.mark.parametrize("effect", ["lost", "denied", "slow"])
async def test_a_store_that_stays_away_is_told_at_the_deadline(world: World, ann: Process, effect: str) -> None:
    """A claim that cannot be renewed is lost at its deadline, not when the store's patience ends."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    times: list[float] = []
    async with ann.queue.keep_alive(claim, on_lost=lambda _: times.append(world.clock.elapsed())):
        if effect == "slow":
            ann.client.latency = 1000
        else:
            ann.client.inject(effect, key="*/claims/*")
        deadline = trusted_until(claim)
        await world.later(300)
    assert claim.lost
    assert ("was under way" if effect != "denied" else "the last attempt ended with") in claim.lost
    assert len(times) == 1
    assert times[0] <= deadline + 0.5


async def test_a_process_that_was_stopped_is_named_as_the_cause(
    world: World, ann: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes when its claim's time is over, and the store has always answered."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", ttl=60)
    original = KeepAlive._until_next
    monkeypatch.setattr(KeepAlive, "_until_next", lambda self, pause: original(self, pause) + 100)
    async with ann.queue.keep_alive(claim) as keeper:
        await asyncio.wait_for(keeper.lost.wait(), 300)
    assert "did not run in time" in str(keeper.error)


async def test_keep_alive_of_a_claim_that_was_settled_asks_nothing_more(world: World, ann: Process) -> None:
    """Once all is settled there is nothing to keep: no request is made, and nothing is lost."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    async with ann.queue.keep_alive(claim) as keeper:
        await world.later(TTL)
        await ann.queue.ack(claim)
        before = world.bucket.snapshot()
        with ann.client.counting() as requests:
            await world.later(TTL * 10)
        assert not requests
        assert not keeper.lost.is_set()
    assert world.bucket.snapshot() == before


async def test_keep_alive_renews_no_oftener_than_asked(world: World, ann: Process) -> None:
    """``interval`` is the time between two renewals; without it, at most a third of the time that is trusted."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", ttl=60)
    for asked, seconds in (({"ttl": 60, "interval": 20}, 200), ({"ttl": 12 + MARGIN}, 40)):
        before = len(renewals(ann))
        async with ann.queue.keep_alive(claim, **asked):
            await world.later(seconds + 0.5)
        assert len(renewals(ann)) - before == 10


@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError("a bug"), OSError("a bug"), OddError("a bug"), asyncio.CancelledError("a bug")],
    ids=repr,
)
async def test_whatever_a_renewal_ends_by_it_is_made_again(
    world: World, ann: Process, bob: Process, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """An error of any kind is logged, with what it was, and the claim is kept when it is over."""
    claim = await claimed(ann)
    async with ann.queue.keep_alive(claim) as keeper:
        for _ in range(3):
            ann.client.meanwhile = failing(error)
            await world.later(TTL - MARGIN - 10)
            ann.client.heal()
            await world.later(10)
            assert not await bob.queue.claim(TOPIC, "d")
        assert not keeper.lost.is_set()
        assert (await ann.queue.ack(claim)).complete
    logged = [one.getMessage() for one in caplog.records if "could not be renewed" in one.getMessage()]
    assert logged
    assert all(claim.claim_id in one and type(error).__name__ in one for one in logged)


async def test_an_error_that_stays_is_told_at_the_deadline(world: World, ann: Process) -> None:
    """The claim is tried until then, a few times, and the loss names what the last attempt ended by."""
    claim = await claimed(ann)
    times: list[float] = []
    async with ann.queue.keep_alive(claim, on_lost=lambda _: times.append(world.clock.elapsed())) as keeper:
        ann.client.meanwhile = failing(ZeroDivisionError("a bug"))
        deadline = trusted_until(claim)
        await world.later(300)
    assert times == [pytest.approx(deadline, abs=0.1)]
    assert 4 < len(renewals(ann)) < 20
    assert claim.lost
    assert "ZeroDivisionError: a bug" in str(keeper.error)
    assert isinstance(keeper.error.cause, ZeroDivisionError)


@pytest.mark.parametrize("kind", ["raises", "is cancelled", "raises later", "never returns", "cannot be called"])
async def test_whatever_on_lost_does_changes_nothing(
    world: World, ann: Process, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """It is logged; the loss is known before it is called, the block goes on, and ends without an error."""
    known: list[bool] = []

    def note(error: LeaseLostError) -> None:
        known.append(keeper.lost.is_set() and keeper.error is error)

    def fail(error: LeaseLostError) -> NoReturn:
        note(error)
        raise {"raises": ZeroDivisionError, "is cancelled": asyncio.CancelledError}[kind]

    async def later(error: LeaseLostError) -> None:
        note(error)
        if kind == "raises later":
            raise ZeroDivisionError
        await asyncio.Event().wait()

    def nothing() -> None:
        """Take no error."""

    on_lost: Callable[..., Awaitable[None] | None] = {"raises later": later, "never returns": later}.get(kind, fail)
    if kind == "cannot be called":
        on_lost = nothing
    claim = await claimed(ann)
    before = asyncio.all_tasks()
    async with ann.queue.keep_alive(claim, on_lost=on_lost) as keeper:
        world.fence(claim)
        await world.later(100)
        assert keeper.lost.is_set()
        left = world.clock.elapsed()
    assert world.clock.elapsed() - left <= LEAVE_TIMEOUT_SECONDS
    assert known == ([] if kind == "cannot be called" else [True])
    assert f"on_lost of claim {claim.claim_id}" in caplog.text
    assert asyncio.all_tasks() == before


async def test_on_lost_has_time_to_come_to_its_end(world: World, ann: Process) -> None:
    """A block that is left as soon as the loss is known does not interrupt other listeners."""
    told: list[LeaseLostError] = []

    async def post(error: LeaseLostError) -> None:
        await world.later(LEAVE_TIMEOUT_SECONDS - 1)
        told.append(error)

    claim = await claimed(ann)
    async with ann.queue.keep_alive(claim, on_lost=post) as keeper:
        world.fence(claim)
        await keeper.lost.wait()
    assert told == [keeper.error]


@pytest.mark.parametrize("renewing", [False, True])
async def test_renewals_that_somebody_cancels_are_told(world: World, ann: Process, renewing: bool) -> None:  # noqa: FBT001 - a parameter
    """Nobody keeps the claim any more, and the block hears of it at once; no request is made after that."""
    told: list[LeaseLostError] = []
    claim = await claimed(ann)
    async with ann.queue.keep_alive(claim, on_lost=told.append) as keeper:
        if renewing:
            ann.client.latency = 5
            await world.later(12)
        background(claim).cancel()
        await asyncio.wait_for(keeper.lost.wait(), 5)
        with ann.client.counting() as requests:
            await world.later(100)
        assert not requests
    assert told == [keeper.error]
    assert "CancelledError" in str(keeper.error)


async def test_renewals_that_die_are_told(world: World, ann: Process) -> None:
    """Even if it is the clock that fails."""

    async def broken(seconds: float) -> None:
        raise OSError("no clock")

    sleep = world.clock.sleep
    claim = await claimed(ann)
    async with ann.queue.keep_alive(claim) as keeper:
        world.clock.sleep = broken  # type: ignore[method-assign]
        await sleep(100)
        world.clock.sleep = sleep  # type: ignore[method-assign]
        assert keeper.lost.is_set()
    assert "no clock" in str(keeper.error)


@pytest.mark.parametrize("ttl", [MARGIN + 0.5, 4.5, 10, TTL, 300])
async def test_a_claim_is_kept_by_its_own_time(world: World, ann: Process, bob: Process, ttl: float) -> None:
    """Without being told so: each renewal gives what claiming gave, and comes in time."""
    claim = await claimed(ann, ttl)
    async with ann.queue.keep_alive(claim) as keeper:
        for _ in range(30):
            await world.later(ttl)
            assert not await bob.queue.claim(TOPIC, "d")
            assert 0 < claim.seconds_left <= ttl - MARGIN
        assert not keeper.lost.is_set()
        assert (await ann.queue.ack(claim)).complete
    most = 30 * ttl / min(10, (ttl - MARGIN) / 3)
    assert len(renewals(ann)) <= most + 5


async def test_an_attached_claim_is_kept_by_the_time_it_was_attached_with(
    world: World, ann: Process, bob: Process
) -> None:
    """The claim's own time is the last that it was given."""
    reference = (await claimed(ann, 10)).hand_over()
    claim = await bob.queue.attach(reference, ttl=60)
    async with bob.queue.keep_alive(claim):
        await world.later(30)
        assert claim.seconds_left > 60 - MARGIN - 11


async def test_a_claim_that_is_old_already_is_renewed_in_time(world: World, ann: Process) -> None:
    """Where less is left of it than the interval, it is not slept away."""
    claim = await claimed(ann)
    await world.later(TTL - MARGIN - 1)
    async with ann.queue.keep_alive(claim, interval=20) as keeper:
        await world.later(100)
        assert not keeper.lost.is_set()


@pytest.mark.parametrize("fails", [False, True])
async def test_nothing_makes_it_a_busy_loop(world: World, ann: Process, fails: bool) -> None:  # noqa: FBT001 - a parameter
    """However short the interval, and whatever fails, there is a pause between two renewals."""
    claim = await claimed(ann)
    if fails:
        ann.client.meanwhile = failing(ZeroDivisionError())
    async with ann.queue.keep_alive(claim, interval=1e-9):
        await world.later(2)
    assert 2 < len(renewals(ann)) <= 2 / MIN_RENEWAL_PAUSE_SECONDS + 2


async def test_keep_alive_of_nothing_asks_nothing(world: World, ann: Process) -> None:
    """A claim that found no message may be kept like any other."""
    claim = await ann.queue.claim(TOPIC, "c")
    assert not claim
    with ann.client.counting() as requests:
        async with ann.queue.keep_alive(claim) as keeper:
            await world.later(100)
            assert not keeper.lost.is_set()
    assert not requests


@pytest.mark.parametrize("latency", [0, 8])
async def test_keep_alive_of_a_claim_that_is_handed_over_ends_quietly(
    world: World, ann: Process, bob: Process, latency: float
) -> None:
    """The other process has it by our own leave: nothing is lost, not even where a renewal is refused for that."""
    told: list[LeaseLostError] = []
    claim = await claimed(ann)
    async with ann.queue.keep_alive(claim, on_lost=told.append) as keeper:
        ann.client.latency = latency
        await world.later(12)
        attached = await bob.queue.attach(claim.hand_over())
        await world.later(8)
        with ann.client.counting() as requests:
            async with bob.queue.keep_alive(attached):
                await world.later(100)
            assert (await bob.queue.ack(attached)).complete
        assert not requests
        assert not keeper.lost.is_set()
    assert told == []
    assert claim.lost is None


async def test_a_renewal_under_way_is_let_finish_when_the_block_is_left(world: World, ann: Process) -> None:
    """What it gave is known: a request that is cut may land all the same."""
    claim = await claimed(ann)
    async with ann.queue.keep_alive(claim):
        ann.client.latency = 3
        await world.later(11)
        given = trusted_until(claim)
    assert trusted_until(claim) > given
    [(version, _)] = [one for key, one in world.bucket.snapshot().items() if "/claims/" in key]
    assert version == HeldClaim.of(claim, "renew").found.version
    ann.client.latency = 0
    with ann.client.counting() as requests:
        assert (await ann.queue.ack(claim)).complete
    assert not requests["GET"]


async def test_a_loss_that_the_last_renewal_finds_is_told(world: World, ann: Process) -> None:
    """Although the block is left already: a later question gets the true answer."""
    claim = await claimed(ann)
    async with ann.queue.keep_alive(claim, interval=10) as keeper:
        ann.client.latency = 1
        await world.later(10.5)
        world.fence(claim)
        assert not keeper.lost.is_set()
    assert keeper.lost.is_set()


@pytest.mark.parametrize(("seconds", "longest"), [(12, LEAVE_TIMEOUT_SECONDS), (TTL - MARGIN - 1, 1)])
async def test_a_renewal_under_way_delays_the_end_of_a_block_only_so_long(
    world: World, ann: Process, seconds: float, longest: float
) -> None:
    """For a few seconds, and never past the time that the claim is trusted; nothing is left behind."""
    claim = await claimed(ann)
    before = asyncio.all_tasks()
    async with ann.queue.keep_alive(claim) as keeper:
        ann.client.latency = 1000
        await world.later(seconds)
        left = world.clock.elapsed()
    assert world.clock.elapsed() - left == pytest.approx(longest, abs=0.1)
    assert not keeper.lost.is_set()
    assert asyncio.all_tasks() == before


async def test_leaving_between_two_renewals_takes_no_time(world: World, ann: Process) -> None:
    """And makes no request."""
    claim = await claimed(ann)
    async with ann.queue.keep_alive(claim):
        await world.later(11)
        left = world.clock.elapsed()
    assert world.clock.elapsed() == left
    assert len(renewals(ann)) == 2


async def test_a_block_that_is_cancelled_twice_leaves_nothing_behind(world: World, ann: Process) -> None:
    """The first cancellation lets a renewal under way finish; a second one does not wait for it."""
    claim = await claimed(ann)
    before = asyncio.all_tasks()

    async def work() -> None:
        async with ann.queue.keep_alive(claim):
            ann.client.latency = 1000
            await world.later(1000)

    working = asyncio.create_task(work())
    await world.later(11)
    for _ in range(2):
        working.cancel()
        await world.later(1)
    assert working.cancelled()
    assert asyncio.all_tasks() == before


async def test_a_request_that_does_not_end_delays_neither_news_nor_block(
    world: World, ann: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """A renewal that ignores its cancellation is left running, and the log says so."""
    over = asyncio.Event()

    async def deaf() -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    times: list[float] = []
    claim = await claimed(ann)
    deadline = trusted_until(claim)
    async with ann.queue.keep_alive(claim, on_lost=lambda _: times.append(world.clock.elapsed())):
        ann.client.meanwhile = lambda kind, _: deaf() if kind == "PUT" else None
        await world.later(100)
        left = world.clock.elapsed()
    assert times == [pytest.approx(deadline, abs=0.1)]
    assert world.clock.elapsed() - left <= LEAVE_TIMEOUT_SECONDS + 0.1
    assert "is left running" in caplog.text
    over.set()
    await world.later(1)


async def test_closing_the_queue_inside_the_block_is_told(world: World, ann: Process) -> None:
    """Nobody keeps the claim after that; a claim of which nothing is left is nobody's loss."""
    told: list[LeaseLostError] = []
    await ann.queue.publish(TOPIC, numbered(2))
    claim, settled = [await ann.queue.claim(TOPIC, "c", max_messages=1) for _ in range(2)]
    before = asyncio.all_tasks()
    async with (
        ann.queue.keep_alive(claim, on_lost=told.append) as keeper,
        ann.queue.keep_alive(settled, on_lost=told.append) as other,
    ):
        await ann.queue.ack(settled)
        await ann.queue.aclose()
        assert asyncio.all_tasks() == before
        assert keeper.lost.is_set()
        assert not other.lost.is_set()
        with ann.client.counting() as requests:
            await world.later(100)
        assert not requests
    assert told == [keeper.error]
    assert "was closed" in str(keeper.error)


async def test_a_claim_that_is_too_old_is_told_so(world: World) -> None:
    """Its renewals give nothing any more, and the loss says which setting it is."""
    process = await world.process(claims={"max_claim_age_seconds": 60.0})
    claim = await claimed(process)
    async with process.queue.keep_alive(claim) as keeper:
        await world.later(57)
        assert not keeper.lost.is_set()
        await world.later(5)
        assert keeper.lost.is_set()
    assert "max_claim_age_seconds" in str(keeper.error)
    assert len(renewals(process)) < 20


async def test_a_loss_is_logged(world: World, ann: Process, caplog: pytest.LogCaptureFixture) -> None:
    """Where nobody asks to be told, the log says it."""
    claim = await claimed(ann)
    async with ann.queue.keep_alive(claim):
        ann.client.inject("denied", key="*/claims/*")
        await world.later(100)
    assert f"Lost claim {claim.claim_id}.0 of topic {TOPIC!r}, with 1 message: its time was over" in caplog.text
    assert StoreError.__name__ in caplog.text

"""The claims of a stream, without Spark: their requests, restarts, and warnings of lost claims."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import (
    ClaimBusyError,
    CompatibilityError,
    LeaseLostError,
    MemoryStore,
    Message,
    PawnQueueError,
    Settings,
    StoreError,
    SyncPawnQueue,
)
from pawnqueue.claims import bodies
from pawnqueue.domain.envelope import Envelope
from pawnqueue.domain.pack import pack_body
from pawnqueue.stores.port import Expect, Unknown
from pyspark_pawnqueue import PawnQueueSparkError, stream_claims
from pyspark_pawnqueue.messages_to_rows import schema_of
from pyspark_pawnqueue.spark_options import SparkOptions
from pyspark_pawnqueue.stream_claims import (
    BATCH,
    CLAIM,
    DEFAULT_LIMITS,
    BatchLimits,
    StreamClaims,
    checked_offset,
    first_offset,
)
from pyspark_pawnqueue.stream_reader import StreamReader
from tools.kit.stores import HookedStore
from tools.kit.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark_pawnqueue.stream_claims import Offset
    from tools.kit.stores import Answer, CarryOut, Request

BEGINNING = first_offset("s")
MOST = 100
FUTURE = b'{"id":"z","v":9,"payload":{}}'
LOSS = "A batch was not acked, so other consumers may receive its messages"


class World:
    """A bucket in memory with a topic, and processes that stream from it."""

    def __init__(self) -> None:
        self.store = HookedStore(MemoryStore())
        self.queue = self.open()
        self.queue.create_topic("orders")
        self.opened = [self.queue]

    def open(self, interval: float = 0.0, patience: float = 30.0) -> SyncPawnQueue:
        """Open the queue as another process does."""
        settings: dict[str, Any] = {
            "polling": {"interval_seconds": interval},
            "claims": {"margin_seconds": 0.7},
            "retry": {"budget_seconds": patience},
        }
        return SyncPawnQueue.open(Settings(s3={"bucket_name": "queues"}, **settings), store=self.store)

    def process(
        self, *, ttl: float = 300, interval: float = 0.0, patience: float = 30.0, limits: BatchLimits = DEFAULT_LIMITS
    ) -> StreamClaims:
        """Return the claims of another process of the stream."""
        queue = self.open(interval, patience)
        self.opened.append(queue)
        return StreamClaims(queue, "orders", "spark", ttl=ttl, limits=limits)

    def publish(self, count: int) -> None:
        """Publish some messages."""
        self.queue.publish("orders", [{"number": number} for number in range(count)])

    def overwrite(self, number: int, body: bytes | None, folder: str = "messages") -> str:
        """Overwrite or remove a message. Return its id."""

        async def spoil() -> str:
            keys = [info.key async for page in self.store.below.pages(f"orders/{folder}/") for info in page]
            key = keys[number]
            await (self.store.below.delete([key]) if body is None else self.store.below.put(key, body))
            return key[-41:-5]

        return asyncio.run(spoil())

    @property
    def counts(self) -> tuple[int, int]:
        """How many messages are pending, and how many are claimed."""
        stats = self.queue.stats("orders")
        return stats.pending, stats.in_flight

    def counted(self) -> list[str]:
        """Count requests from now on."""
        seen: list[str] = []

        async def hook(request: Any, carry_out: Any) -> object:  # noqa: ANN401 - the port's own types, passed on
            seen.append(request.kind)
            return await carry_out()

        self.store.hook = hook
        return seen


@pytest.fixture
def world() -> Iterator[World]:
    """A bucket in memory with an empty topic."""
    made = World()
    yield made
    for queue in made.opened:
        queue.close()


def _planned(claims: StreamClaims, end: Offset) -> int:
    return sum(len(portion.units) for portion in claims.plan(end, None))


def test_an_idle_stream_costs_what_an_idle_consumer_does(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark asks again and again. The store gets one request per interval, and each question waits a little."""
    monkeypatch.setattr(stream_claims, "IDLE_PAUSE_SECONDS", 0.01)
    claims = world.process(interval=60)
    assert claims.claim_next(BEGINNING, MOST) == BEGINNING

    seen = world.counted()
    begun = time.monotonic()
    for _ in range(100):
        claims.finish(BEGINNING)
        assert claims.claim_next(BEGINNING, MOST) == BEGINNING

    assert seen == []
    assert time.monotonic() - begun >= 1  # of which it has slept all


def test_what_is_finished_is_not_asked_for_again(world: World) -> None:
    """Spark passes its offset with every question. The first one acks the batch, and the others cost nothing."""
    world.publish(1)
    claims = world.process(interval=60)
    end = claims.claim_next(BEGINNING, MOST)
    assert claims.claim_next(end, MOST) == end
    claims.finish(end)
    assert world.counts == (0, 0)

    seen = world.counted()
    for _ in range(10):
        claims.finish(end)
        claims.finish(BEGINNING)
    assert seen == []


@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "not-noted"])
def test_a_restart_finds_the_claim_of_its_former_self(world: World, *, is_noted: bool) -> None:
    """It finds the same messages and no others, whether or not Spark had noted the offset. It need not wait."""
    world.publish(3)
    former = world.process()
    end = former.claim_next(BEGINNING, 2)
    former.close()

    claims = world.process()
    again = end if is_noted else claims.claim_next(BEGINNING, 2)
    assert again[CLAIM]["claim_id"] == end[CLAIM]["claim_id"]
    assert again[BATCH] == 1
    assert _planned(claims, again) == 2
    claims.finish(again)
    assert world.counts == (1, 0)


def test_a_restart_waits_for_a_former_self_that_may_be_alive(world: World) -> None:
    """A killed process gives nothing back. The restart waits for the end of its short session."""
    world.publish(1)
    former = world.process(ttl=3)
    end = former.claim_next(BEGINNING, MOST)
    _killed(former)

    claims = world.process(ttl=3)
    assert _planned(claims, end) == 1
    assert claims.claim_next(BEGINNING, MOST) == end
    assert world.counts == (0, 1)


@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "not-noted"])
def test_a_process_that_is_alive_keeps_its_claim(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_noted: bool
) -> None:
    """A second driver on the same checkpoint waits, and then fails. The first one goes on undisturbed."""
    monkeypatch.setattr(stream_claims, "RESTART_WAIT_SECONDS", 0.3)
    world.publish(1)
    first = world.process()
    end = first.claim_next(BEGINNING, MOST)

    second = world.process()
    with pytest.raises(ClaimBusyError, match="is worked for by consumer 'spark'"):
        second.plan(end, None) if is_noted else second.claim_next(BEGINNING, MOST)
    assert _planned(first, end) == 1
    first.finish(end)
    assert world.counts == (0, 0)


def test_a_claim_that_others_took_while_the_query_was_down_is_passed_over(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Its batch has no rows, so no message comes twice. The next claim has another number, and a warning is logged."""
    caplog.set_level(logging.WARNING, "pawnqueue.spark")
    world.publish(2)
    former = world.process(ttl=3)
    lost = former.claim_next(BEGINNING, MOST)
    _killed(former)
    others = world.queue.claim("orders", "others", wait=30)
    assert len(others) == 2

    claims = world.process(ttl=3)
    assert claims.plan(lost, None) == []
    world.publish(1)
    following = claims.claim_next(BEGINNING, MOST)
    assert following[BATCH] == 2
    assert _planned(claims, following) == 1
    claims.finish(following)
    world.queue.ack(others)
    assert world.counts == (0, 0)
    assert LOSS in caplog.text
    assert "A longer ttl keeps them" in caplog.text


def test_a_loss_in_the_middle_is_told_and_acks_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The new holder keeps the messages. The stream logs a warning, and goes on to the next batch."""
    world.publish(2)
    claims = world.process()
    lost = claims.claim_next(BEGINNING, MOST)
    session = claims._held[lost[CLAIM]["claim_id"]].session
    others = world.queue.attach(lost[CLAIM] | {"session": session})
    assert len(others) == 2

    claims.finish(lost)
    assert LOSS in caplog.text
    assert "Let the sink recognize messages by the column id" in caplog.text
    assert world.counts == (0, 2)
    world.publish(1)
    following = claims.claim_next(lost, MOST)
    assert following[BATCH] == 2
    claims.finish(following)
    assert world.counts == (0, 2)


def test_an_ack_without_an_answer_is_no_ack(world: World) -> None:
    """The query fails, and leaves the claim to its restart, which acks it. So its messages do not come twice."""
    world.publish(2)
    claims = world.process(patience=0.0)
    end = claims.claim_next(BEGINNING, MOST)

    async def silent(request: Request, carry_out: CarryOut) -> Answer:
        if request.call == "put" and "/claims/" in request.key:
            return Unknown(StoreError("It took too long.", transient=True))
        return await carry_out()

    world.store.hook = silent
    for _ in range(2):
        with pytest.raises(StoreError, match=r"did not say whether claim .* is acked. The sink has its 2 messages"):
            claims.finish(end)
    world.store.hook = None
    assert world.counts == (0, 2)
    claims.close()

    restarted = world.process()
    restarted.finish(end)
    assert restarted.claim_next(end, MOST) == end
    assert world.counts == (0, 0)


def test_a_batch_without_rows_is_not_acked(world: World) -> None:
    """A claim that expired, and that nobody has taken, is taken up again rather than acked without its rows."""
    world.publish(2)
    claims = world.process(ttl=2)

    async def silent(request: Request, carry_out: CarryOut) -> Answer:
        if request.call == "put" and "/claims/" in request.key and request.expect is not Expect.NOTHING:
            return Unknown(StoreError("It took too long.", transient=True))
        return await carry_out()

    world.store.hook = silent
    end = claims.claim_next(BEGINNING, MOST)
    wait_until(lambda: _is_over(claims, end), "the claim's time is over")
    world.store.hook = None

    assert _planned(claims, end) == 2
    assert world.counts == (0, 2)
    claims.finish(end)
    assert world.counts == (0, 0)


OVERWRITTEN = {"malformed": b"x", "newer": b'{"v":2}', "large": b" " * 6_000_000, "gone": None}


@pytest.mark.parametrize("kind", OVERWRITTEN)
def test_a_message_that_was_overwritten_does_not_stop_the_stream(
    world: World, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """The batch that was planned with it fails once. The restart settles it, and reads the other messages."""
    world.publish(20)
    former = world.process()
    end = former.claim_next(BEGINNING, MOST)
    [portion] = former.plan(end, 1)
    spoilt = world.overwrite(7, OVERWRITTEN[kind])
    with pytest.raises(PawnQueueError, match=rf"{spoilt}(?s:.*)start the query again"):
        world.queue.read(portion)
    former.close()

    claims = world.process()
    rows = [row for portion in claims.plan(end, None) for row in world.queue.read(portion)]
    assert [row.payload["number"] for row in rows if isinstance(row, Message)] == [
        number for number in range(20) if number != 7
    ]
    assert "1 of the messages of claim" in caplog.text
    assert spoilt in caplog.text
    claims.finish(end)
    assert world.counts == (1 if kind in {"newer", "large"} else 0, 0)
    assert [letter.reason for letter in world.queue.dead_letters("orders")] == ["malformed"] * (kind == "malformed")


def test_a_batch_that_was_overwritten_altogether_has_no_rows(world: World) -> None:
    """It is settled, and the stream goes on to the next."""
    world.publish(2)
    former = world.process()
    lost = former.claim_next(BEGINNING, MOST)
    former.close()
    for number in range(2):
        world.overwrite(number, b"x")

    claims = world.process()
    assert claims.plan(lost, None) == []
    world.publish(1)
    following = claims.claim_next(lost, MOST)
    assert _planned(claims, following) == 1
    claims.finish(following)
    assert world.counts == (0, 0)


def test_a_batch_that_the_sink_has_is_acked_unread(world: World) -> None:
    """A message that was overwritten after the sink had it is acked, and not buried."""
    world.publish(2)
    former = world.process()
    end = former.claim_next(BEGINNING, MOST)
    former.close()
    world.overwrite(0, b"x")

    world.process().finish(end)
    assert world.counts == (0, 0)
    assert not list(world.queue.dead_letters("orders"))


def test_a_message_that_cannot_be_read_now_stays_in_its_batch(world: World) -> None:
    """The sink may have it, so it is not given back. The query fails, and its restart reads all rows again."""
    world.publish(3)
    former = world.process()
    end = former.claim_next(BEGINNING, MOST)
    former.close()

    async def refused(request: Request, carry_out: CarryOut) -> Answer:
        if request.call == "get" and "/messages/" in request.key:
            raise StoreError("Not now.", transient=True)
        return await carry_out()

    claims = world.process(patience=0.0)
    world.store.hook = refused
    for _ in range(2):
        with pytest.raises(StoreError, match="Not now"):
            claims.plan(end, None)
    world.store.hook = None
    claims.close()
    assert _planned(world.process(), end) == 3


@pytest.mark.parametrize("kind", ["newer", "large"])
def test_a_message_that_is_as_it_was_claimed_stays_in_its_batch(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A restart with an older version or smaller limits gives back no message that the sink may have."""
    world.publish(3)
    former = world.process()
    end = former.claim_next(BEGINNING, MOST)
    former.close()

    claims = world.process()
    with monkeypatch.context() as restarted:
        if kind == "newer":
            restarted.setattr(Envelope, "decode", _too_new)
        else:
            restarted.setattr(bodies, "max_message_bytes", lambda _: 10)
        with pytest.raises(PawnQueueError, match="newer" if kind == "newer" else "reads at most 10 of"):
            claims.plan(end, None)
    claims.close()
    assert _planned(world.process(), end) == 3


def _too_new(_body: bytes, key: str) -> Envelope:
    raise CompatibilityError(f"{key} is newer.")


def test_what_is_there_is_counted_once(world: World) -> None:
    """The backlog includes neither a batch from before the restart nor messages that are published later."""
    world.publish(2)
    former = world.process()
    former.claim_next(BEGINNING, 2)
    former.close()
    world.publish(3)

    claims = world.process()
    claims.limit_to_backlog()
    world.publish(4)
    offset, sizes = BEGINNING, []
    while (end := claims.claim_next(offset, 2)) != offset:
        sizes.append(_planned(claims, end))
        claims.finish(end)
        offset = end

    assert sizes == [2, 2, 1]
    assert world.counts == (4, 0)


@pytest.mark.parametrize("packs", [False, True], ids=["single", "packs"])
def test_a_batch_has_no_more_bytes_than_was_said(world: World, *, packs: bool) -> None:
    """The sizes are those of objects, or of lines in a pack. A larger message comes alone, and each message once."""
    world.queue.update_topic("orders", packs=packs)
    payloads = [{"number": number, "text": "x" * (5_000 if number == 4 else 500)} for number in range(10)]
    world.queue.publish("orders", payloads, pack=packs)
    claims = world.process(limits=BatchLimits(max_bytes=2_500))
    claims.limit_to_backlog()

    batches: list[list[int]] = []
    offset = BEGINNING
    while (end := claims.claim_next(offset, MOST)) != offset:
        rows = [row for portion in claims.plan(end, None) for row in world.queue.read(portion)]
        batches.append([row.payload["number"] for row in rows if isinstance(row, Message)])
        claims.finish(end)
        offset = end

    assert sorted(number for batch in batches for number in batch) == [*range(10)]
    assert [4] in batches
    assert {len(batch) for batch in batches} <= {1, 2, 3, 4}
    assert max(map(len, batches)) > 1
    assert world.counts == (0, 0)


@pytest.mark.parametrize("packs", [False, True], ids=["single", "packs"])
def test_a_batch_waits_for_enough_messages(world: World, *, packs: bool) -> None:
    """Fewer messages stay claimable until there are enough. Then the batch takes all of them, up to its limit."""
    world.queue.update_topic("orders", packs=packs)
    claims = world.process(limits=BatchLimits(min_messages=10))
    world.queue.publish("orders", [{"number": number} for number in range(6)], pack=packs)
    for _ in range(3):
        assert claims.claim_next(BEGINNING, MOST) == BEGINNING
    assert world.counts == (6, 0)

    world.queue.publish("orders", [{"number": number} for number in range(6)], pack=packs)
    end = claims.claim_next(BEGINNING, MOST)
    assert sum(len(world.queue.read(portion)) for portion in claims.plan(end, None)) == 12
    claims.finish(end)
    assert claims.claim_next(end, MOST) == end


def test_a_batch_waits_no_longer_than_was_said(world: World) -> None:
    """When the oldest message has waited for maxDelay, it comes with all others."""
    claims = world.process(limits=BatchLimits(min_messages=10, max_delay_seconds=2.0))
    world.publish(1)
    begun = time.monotonic()
    assert claims.claim_next(BEGINNING, MOST) == BEGINNING
    world.publish(1)
    wait_until(lambda: claims.claim_next(BEGINNING, MOST) != BEGINNING, "it was claimed")

    assert time.monotonic() - begun > 1.5
    assert world.counts == (0, 2)


@pytest.mark.parametrize("packs", [False, True], ids=["single", "packs"])
def test_a_message_that_is_set_aside_makes_no_batch_small(world: World, *, packs: bool) -> None:
    """It is too old at each look, and no claim gets it. The others wait as if it were not there."""
    world.queue.update_topic("orders", packs=packs)
    if packs:
        world.queue.publish("orders", [{"number": number} for number in range(2)], pack=True)
        world.overwrite(0, pack_body([FUTURE, FUTURE]), "packs")
    else:
        world.publish(1)
        world.overwrite(0, FUTURE)
    claims = world.process(limits=BatchLimits(min_messages=5, max_delay_seconds=2.0))

    def is_set_aside() -> bool:
        assert claims.claim_next(BEGINNING, MOST) == BEGINNING
        return claims._queue.backlog("orders", set_aside=False).pending == 0

    wait_until(is_set_aside, "a look has found out, when it was old enough")

    begun = time.monotonic()
    for _ in range(4):
        world.publish(1)
        assert claims.claim_next(BEGINNING, MOST) == BEGINNING
    assert time.monotonic() - begun < 2
    assert world.queue.backlog("orders").pending == (6 if packs else 5), "what is set aside is counted elsewhere"
    world.publish(1)
    end = claims.claim_next(BEGINNING, MOST)
    assert _planned(claims, end) == 5
    claims.finish(end)

    world.publish(1)
    assert claims.claim_next(end, MOST) == end
    wait_until(lambda: claims.claim_next(end, MOST) != end, "it waits no longer than maxDelay")
    assert world.queue.stats("orders").in_flight == 1


def test_what_is_not_new_does_not_wait(world: World) -> None:
    """A claim of a former process is found at once, and so is the backlog of availableNow, and a batch of once."""
    world.publish(2)
    few = BatchLimits(min_messages=10)
    former = world.process()
    end = former.claim_next(BEGINNING, 1)
    former.close()

    claims = world.process(limits=few)
    assert claims.claim_next(BEGINNING, MOST) == end
    assert claims.claim_next(end, MOST) == end
    once = claims.claim_next(end, MOST, may_wait=False)
    assert once[BATCH] == 2

    world.publish(3)
    available = world.process(limits=few)
    available.limit_to_backlog()
    assert available.claim_next(first_offset("t"), MOST)[BATCH] == 1
    assert world.counts == (0, 5)


def test_waiting_for_enough_costs_what_an_idle_consumer_does(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often Spark asks, the topic is counted once per interval."""
    monkeypatch.setattr(stream_claims, "IDLE_PAUSE_SECONDS", 0.001)
    world.publish(3)
    claims = world.process(interval=60, limits=BatchLimits(min_messages=10))
    assert claims.claim_next(BEGINNING, MOST) == BEGINNING

    seen = world.counted()
    for _ in range(100):
        assert claims.claim_next(BEGINNING, MOST) == BEGINNING
    assert seen == []


def test_what_waits_is_counted_now_and_then(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch in work does not count. Spark asks often, and the topic is counted at most once in ten seconds."""
    world.publish(5)
    claims = world.process()
    claims.claim_next(BEGINNING, 2)
    found = claims.waiting()
    assert found is not None
    assert found["backlog"] == 3
    assert 0 <= found["oldestAgeSeconds"] < 60

    seen = world.counted()
    world.publish(1)
    published = len(seen)
    for _ in range(100):
        assert claims.waiting() == found
    assert len(seen) == published
    monkeypatch.setattr(claims, "_next_count", 0.0)
    assert claims.waiting() == {"backlog": 4, "oldestAgeSeconds": pytest.approx(found["oldestAgeSeconds"], abs=60)}


def test_an_empty_topic_has_no_oldest_message(world: World) -> None:
    """The figures are 0 and null."""
    assert world.process().waiting() == {"backlog": 0, "oldestAgeSeconds": None}


def test_a_backlog_that_cannot_be_counted_ends_no_query(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The query's progress has no figures then, and the log says why."""
    claims = world.process(patience=0.0)

    async def refused(request: Request, carry_out: CarryOut) -> Answer:
        if request.kind == "LIST":
            raise StoreError("Not now.", transient=True)
        return await carry_out()

    world.store.hook = refused
    assert claims.waiting() is None
    world.store.hook = None
    assert "The backlog of topic 'orders' is not known at the moment" in caplog.text


def test_closing_ends_a_wait(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing the stream ends a wait for messages. Closing it twice is no error."""
    monkeypatch.setattr(stream_claims, "IDLE_PAUSE_SECONDS", 60)
    claims = world.process(interval=60)
    claims.claim_next(BEGINNING, MOST)
    waiting = threading.Thread(target=lambda: claims.claim_next(BEGINNING, MOST))
    waiting.start()
    claims.close()
    claims.close()

    waiting.join(30)
    assert not waiting.is_alive()


def test_closing_leaves_no_thread(world: World) -> None:
    """A stream that is closed while it holds a claim has ended its loop and its renewals."""
    world.publish(1)
    before = set(threading.enumerate())
    claims = world.process()
    claims.claim_next(BEGINNING, MOST)
    claims.close()

    assert set(threading.enumerate()) <= before


def _killed(claims: StreamClaims) -> None:
    """Stop a process as a kill does: its renewals end, and its queue is never closed."""
    claims._queue._loop.stop()


def _is_over(claims: StreamClaims, end: Offset) -> bool:
    try:
        claims._queue.messages(end[CLAIM])
    except LeaseLostError:
        return True
    return False


@pytest.mark.parametrize(
    "offset",
    [
        7,
        None,
        "7",
        [],
        {},
        {"orders": {"0": 5}},
        {**BEGINNING, BATCH: "1"},
        {**BEGINNING, BATCH: -1},
        {**BEGINNING, BATCH: True},
        {**BEGINNING, CLAIM: "run.0"},
        {"x" * 9000: 1},
    ],
)
def test_an_offset_of_another_source_is_told(offset: Any) -> None:  # noqa: ANN401 - as JSON has it
    """Each of Spark's calls refuses an offset from the checkpoint of another source."""
    options = SparkOptions.of({"bucket_name": "queues", "topic": "orders"})
    reader = StreamReader(options, schema_of("", dead=False))
    for ask in (
        lambda: reader.latestOffset(offset, reader.getDefaultReadLimit()),
        lambda: reader.partitions(BEGINNING, offset),
        lambda: reader.commit(offset),
    ):
        with pytest.raises(
            PawnQueueSparkError, match=r"belongs to another source.*checkpointLocation of its own"
        ) as raised:
            ask()
        assert len(str(raised.value)) < 300
    assert checked_offset(BEGINNING) == BEGINNING

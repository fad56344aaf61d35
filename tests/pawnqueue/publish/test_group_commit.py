"""Group commit: calls of publish that wait at the same time share a PUT, and each has an outcome of its own."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import (
    InvalidPayloadError,
    PublishError,
    QueueClosedError,
    StoreError,
    SyncPawnQueue,
    TopicNotFoundError,
)
from pawnqueue.catalog.unit_listing import listed
from pawnqueue.publish.group_commit import MAX_WAIT_SECONDS, GroupCommit
from pawnqueue.publish.publish_once import PublishedIds
from pawnqueue.stores.memory import MemoryStore
from tests.pawnqueue.publish.test_packs import messages_in, packs_in
from tests.pawnqueue.virtual import TOPIC, Kind, Process, World, numbered

if TYPE_CHECKING:
    from collections.abc import Sequence

LATENCY = 0.02


@pytest.fixture
async def ann(world: World) -> Process:
    """A process whose topic allows packs, and whose requests take their time."""
    world.topic(packs=True)
    process = await world.process()
    process.client.latency = LATENCY
    return process


def begun(process: Process, *calls: Sequence[dict[str, Any]], **more: Any) -> list[asyncio.Task[list[str]]]:
    """Publish in several calls at once."""
    return [asyncio.ensure_future(process.queue.publish(TOPIC, call, **more)) for call in calls]


def singles_in(world: World) -> int:
    """How many single messages the topic has."""
    return len(world.bucket.below("messages/"))


@pytest.mark.parametrize("latency", [0.0, LATENCY])
async def test_a_hundred_calls_of_one_message_are_three_puts_at_most(
    world: World, ann: Process, latency: float
) -> None:
    """Each call returns the id of its own message, and every message is stored once."""
    ann.client.latency = latency
    with ann.client.counting() as requests:
        ids = await asyncio.gather(*begun(ann, *([payload] for payload in numbered(100))))
    assert requests["PUT"] <= 3
    stored = {body["id"]: body["payload"]["n"] for body in messages_in(world)}
    assert singles_in(world) + len(stored) == 100
    assert [stored.get(one, number) for number, [one] in enumerate(ids)] == list(range(100))


async def test_what_comes_while_a_put_is_under_way_is_in_the_next(world: World, ann: Process) -> None:
    """The first call is sent at once, alone; all that come before its answer share one pack, in their order."""
    first = begun(ann, numbered(2))
    await world.later(LATENCY / 2)
    others = []
    for call in (numbered(1, 2), numbered(3, 3), numbered(1, 6)):
        others += begun(ann, call)
        await world.later(LATENCY / 8)
    ids = [one for call in await asyncio.gather(*others) for one in call]
    assert (singles_in(world), [unit.count for unit in packs_in(world)]) == (2, [5])
    assert [(body["id"], body["payload"]["n"]) for body in messages_in(world)] == list(
        zip(ids, range(2, 7), strict=True)
    )
    assert len(await first[0]) == 2


async def test_a_call_that_nobody_joins_makes_no_pack(world: World, ann: Process) -> None:
    """A few messages of one caller after another are single messages, and wait for nothing."""
    began = world.clock.elapsed()
    for start in range(0, 30, 3):
        await ann.queue.publish(TOPIC, numbered(3, start))
    assert (singles_in(world), packs_in(world)) == (30, [])
    assert world.clock.elapsed() - began == pytest.approx(10 * LATENCY)


@pytest.mark.parametrize("pack", [True, False])
async def test_who_chooses_waits_for_nobody(world: World, ann: Process, *, pack: bool) -> None:
    """``pack=True`` makes packs of its own and ``pack=False`` none; a large call makes packs of its own as well."""
    await asyncio.gather(*begun(ann, numbered(2), numbered(3, 2), pack=pack), *begun(ann, numbered(100, 5)))
    counts = sorted(unit.count for unit in packs_in(world))
    assert (singles_in(world), counts) == ((0, [2, 3, 100]) if pack else (5, [100]))


async def test_topics_that_allow_no_packs_share_nothing(world: World, ann: Process) -> None:
    """Each message is an object of its own there."""
    world.topic("plain")
    await asyncio.gather(*(ann.queue.publish("plain", [payload]) for payload in numbered(20)))
    assert len(world.bucket.below("messages/", topic="plain")) == 20


async def test_one_bad_payload_fails_alone(world: World, ann: Process) -> None:
    """It is refused before it joins the others."""
    bad: dict[str, Any] = {"a": {1}}
    outcomes = await asyncio.gather(*begun(ann, numbered(1), [bad], numbered(1, 1)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [PublishedIds, InvalidPayloadError, PublishedIds]
    assert [body["payload"] for body in messages_in(world)] == numbered(2)


async def test_messages_keep_their_producers_and_headers(world: World, ann: Process) -> None:
    """What a call says of its messages holds for these alone."""
    await asyncio.gather(
        *begun(ann, numbered(1), producer="shop", headers={"a": "1"}), *begun(ann, numbered(1, 1), headers={"b": "2"})
    )
    shop = await ann.queue.register_producer("shop")
    stored = {body["payload"]["n"]: body for body in messages_in(world)}
    single = [body for body in stored.values() if body["producer_id"] not in ("", shop.id)]
    assert not single
    for body in stored.values():
        assert (body["producer_id"], body["headers"]) in [(shop.id, {"a": "1"}), ("", {"b": "2"})]


async def test_nothing_is_acknowledged_before_it_is_stored(world: World, ann: Process) -> None:
    """No call returns while the PUT of its pack has no answer."""
    calls: list[asyncio.Task[list[str]]] = []
    early: list[int] = []

    def look(kind: Kind, key: str) -> None:
        if kind == "PUT" and "/packs/" in key:
            early.append(sum(call.done() for call in calls))

    ann.client.meanwhile = look
    calls += begun(ann, *([payload] for payload in numbered(50)))
    await asyncio.gather(*calls)
    assert early == [0]
    assert len(messages_in(world)) == 50


async def test_each_call_has_an_outcome_of_its_own(world: World, ann: Process) -> None:
    """If the shared PUT fails, each call's error names its own messages, and no others."""
    ann.client.inject("denied", "PUT", "*/packs/*")
    outcomes = await asyncio.gather(*begun(ann, numbered(1), numbered(2, 1), numbered(3, 3)), return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, PublishError)]
    assert [len(error.ids) for error in errors] == [1, 2, 3]
    assert [list(error.failed) for error in errors] == [error.ids for error in errors]
    assert len({one for error in errors for one in error.ids}) == 6
    assert not messages_in(world)


async def test_a_deleted_topic_fails_all_calls(world: World, ann: Process, bob: Process) -> None:
    """Each says that nothing was published, and nothing is left."""
    await bob.queue.delete_topic(TOPIC, force=True)
    outcomes = await asyncio.gather(*begun(ann, numbered(1), numbered(2, 1)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [TopicNotFoundError] * 2
    assert all("Nothing was published" in str(outcome) for outcome in outcomes)
    assert not world.bucket.below(f"{TOPIC}/")


async def test_what_a_deletion_may_leave_is_told_of_each_calls_own_messages(
    world: World, ann: Process, bob: Process
) -> None:
    """If a shared pack may not have been removed again, each error counts the messages of its own call."""
    await bob.queue.delete_topic(TOPIC, force=True)
    ann.client.inject("denied", "DELETE", "*/packs/*")
    outcomes = await asyncio.gather(*begun(ann, numbered(1), numbered(2, 1)), return_exceptions=True)
    assert ["Of 1 of the 1 messages" in str(outcomes[0]), "Of 2 of the 2 messages" in str(outcomes[1])] == [True, True]


async def test_a_defect_is_raised_by_all_calls(ann: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody expected leaves no caller waiting, and the next call works."""

    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(ann.queue._publisher, "_make_units", fail)
        outcomes = await asyncio.gather(*begun(ann, numbered(1), numbered(1, 1)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ZeroDivisionError] * 2
    assert len(await ann.queue.publish(TOPIC, numbered(1))) == 1


async def test_a_call_that_is_cancelled_while_it_waits_publishes_nothing(world: World, ann: Process) -> None:
    """Those that wait with it are published."""
    first = begun(ann, numbered(1))
    await world.later(LATENCY / 2)
    others = begun(ann, numbered(1, 1), numbered(1, 2), numbered(1, 3))
    await asyncio.sleep(0)
    others[1].cancel()
    outcomes = await asyncio.gather(*first, *others, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [PublishedIds, PublishedIds, asyncio.CancelledError, PublishedIds]
    assert [body["payload"]["n"] for body in messages_in(world)] == [1, 3]


async def test_a_call_that_is_cancelled_under_way_stops_no_other(world: World, ann: Process) -> None:
    """Its messages are published with the others'."""
    calls = begun(ann, numbered(1), numbered(1, 1), numbered(1, 2))
    await world.later(LATENCY / 2)
    calls[0].cancel()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, PublishedIds, PublishedIds]
    assert [body["payload"]["n"] for body in messages_in(world)] == [0, 1, 2]


async def test_a_request_that_hangs_holds_up_the_others_for_a_second(world: World, ann: Process) -> None:
    """The next group is put beside it."""

    async def hang(kind: Kind, key: str) -> None:
        if kind == "PUT" and "/messages/" in key:
            ann.client.meanwhile = None
            await world.later(60)

    ann.client.meanwhile = hang
    began = world.clock.elapsed()
    first = begun(ann, numbered(1))
    await world.later(LATENCY / 2)
    await asyncio.gather(*begun(ann, numbered(1, 1), numbered(1, 2)))
    assert world.clock.elapsed() - began < MAX_WAIT_SECONDS + 5 * LATENCY
    assert not first[0].done()
    await first[0]


async def test_calls_can_be_made_to_linger(world: World) -> None:
    """With ``packs.linger_seconds`` a call waits for others that come soon, even if nothing is under way."""
    world.topic(packs=True)
    process = await world.process(packs={"linger_seconds": 0.5})
    calls = begun(process, numbered(1))
    await world.later(0.3)
    calls += begun(process, numbered(1, 1))
    began = world.clock.elapsed()
    await asyncio.gather(*calls)
    assert world.clock.elapsed() - began == pytest.approx(0.2)
    assert [unit.count for unit in packs_in(world)] == [2]


async def test_a_queue_that_is_closed_leaves_no_caller_waiting(ann: Process) -> None:
    """Calls that have no outcome yet raise an error."""
    ann.client.latency = 60
    calls = begun(ann, numbered(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    calls += begun(ann, numbered(1, 1), numbered(1, 2))
    await asyncio.sleep(0)
    await ann.queue.aclose()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {QueueClosedError, PublishError, StoreError}
    assert QueueClosedError in {type(outcome) for outcome in outcomes}


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_a_call_whose_group_has_not_begun_ends_too(world: World, turns: int) -> None:
    """A task that is cancelled before its first step runs none of its code, and its callers do not wait for it."""

    async def never(_topic: str, _calls: Sequence[Any]) -> None:
        await asyncio.Event().wait()

    group = GroupCommit(world.clock, 0.0, never)
    call = asyncio.ensure_future(group.publish(TOPIC, [], ""))
    for _ in range(turns):
        await asyncio.sleep(0)
    await group.aclose()
    await asyncio.wait((call,), timeout=0.5)
    assert call.done()
    assert type(call.exception()) is QueueClosedError


async def test_threads_share_packs() -> None:
    """Callers of ``SyncPawnQueue`` in many threads are callers like any other."""
    store = MemoryStore()
    with SyncPawnQueue.open(store=store) as queue, ThreadPoolExecutor(20) as threads:
        queue.create_topic(TOPIC, packs=True)
        calls = [threads.submit(queue.publish, TOPIC, [payload]) for payload in numbered(200)]
        ids = {one for call in calls for one in call.result()}
        page = queue.run(lambda opened: listed(opened._context, TOPIC, packs=True))
    assert len(ids) == 200
    assert sum(unit.count for unit in page.units) == 200

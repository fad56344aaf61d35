"""Packs: many messages in one object, when they are made, how large they are, and what becomes of each message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from pawnqueue import (
    InvalidArgumentError,
    InvalidPayloadError,
    NewMessage,
    PublishError,
    RetryBudgetExceededError,
    SyncPawnQueue,
    TopicNotFoundError,
)
from pawnqueue.catalog import units
from pawnqueue.catalog.unit_listing import listed
from pawnqueue.domain import layout
from pawnqueue.domain.envelope import Envelope
from pawnqueue.domain.pack import lines_of
from pawnqueue.domain.record import canonical
from pawnqueue.domain.times import iso
from pawnqueue.domain.unit import Unit
from pawnqueue.domain.write_record import TICKS_PER_SECOND
from pawnqueue.publish import packing
from pawnqueue.publish.packing import PackChoice, iso_of_tick
from pawnqueue.stores.memory import MemoryStore
from tests.pawnqueue.virtual import TOPIC, Kind, Process, World, numbered


@pytest.fixture
async def ann(world: World) -> Process:
    """A process that has opened the queue of a topic that allows packs."""
    world.topic(packs=True)
    return await world.process()


def packs_in(world: World) -> list[Unit]:
    """The packs of the topic, in LIST order."""
    found = [units.parse(units.key_of(TOPIC, name)) for name in world.bucket.below("packs/")]
    assert None not in found
    return [unit for unit in found if unit is not None]


def envelopes_of(world: World, unit: Unit) -> list[dict[str, Any]]:
    """What is in a pack, in order."""
    key = units.key_of(TOPIC, unit.name)
    return [json.loads(line) for line in lines_of(world.bucket.body(key), unit.count, key)]


def messages_in(world: World) -> list[dict[str, Any]]:
    """All messages of the topic's packs, in publish order."""
    return [envelope for unit in packs_in(world) for envelope in envelopes_of(world, unit)]


# --- when packs are made ---


@pytest.mark.parametrize(
    ("allowed", "count", "pack", "packs", "singles"),
    [
        (True, 100, "auto", 1, 0),
        (True, 99, "auto", 0, 99),
        (True, 1, True, 1, 0),
        (True, 200, False, 0, 200),
        (False, 200, "auto", 0, 200),
        (None, 200, "auto", 0, 200),
        (None, 200, False, 0, 200),
    ],
)
async def test_packs_are_made_of_many_where_the_topic_allows_them(  # noqa: PLR0913 - a table
    world: World, *, allowed: bool | None, count: int, pack: PackChoice, packs: int, singles: int
) -> None:
    """By itself of a hundred messages, and by ``pack`` always or never; never in a topic that does not allow them."""
    world.topic(packs=allowed)
    process = await world.process()
    ids = await process.queue.publish(TOPIC, numbered(count), pack=pack)
    assert len(set(ids)) == count
    assert (len(packs_in(world)), len(world.bucket.below("messages/"))) == (packs, singles)


@pytest.mark.parametrize("allowed", [None, False])
async def test_packs_that_the_topic_does_not_allow_are_refused(world: World, *, allowed: bool | None) -> None:
    """The error says how to allow them, and for whom not; nothing was published."""
    world.topic(packs=allowed)
    process = await world.process()
    with process.client.counting() as requests, pytest.raises(InvalidArgumentError, match=r"update_topic\('orders'"):
        await process.queue.publish(TOPIC, numbered(3), pack=True)
    assert requests["PUT"] == 0


@pytest.mark.parametrize("pack", ["always", None, 1, 0, "", "AUTO", ["auto"]], ids=repr)
async def test_any_other_choice_is_refused_without_a_request(ann: Process, pack: object) -> None:
    """``pack`` is one of three values, and the error names them."""
    with ann.client.counting() as requests, pytest.raises(InvalidArgumentError, match='pack is "auto", True or False'):
        await ann.queue.publish(TOPIC, numbered(3), pack=pack)  # type: ignore[arg-type]
    assert not requests


async def test_from_how_many_messages_on_can_be_set(world: World) -> None:
    """``packs.min_messages`` decides for ``pack="auto"``."""
    world.topic(packs=True)
    process = await world.process(packs={"min_messages": 3})
    await process.queue.publish(TOPIC, numbered(2))
    await process.queue.publish(TOPIC, numbered(3))
    assert [unit.count for unit in packs_in(world)] == [3]


async def test_the_synchronous_queue_makes_packs_too() -> None:
    """``SyncPawnQueue.publish`` takes ``pack``, and its topics take ``packs``."""
    store = MemoryStore()
    with SyncPawnQueue.open(store=store) as queue:
        queue.create_topic("orders", packs=True)
        assert len(queue.publish("orders", numbered(3), pack=True)) == 3
        with pytest.raises(InvalidArgumentError, match="pack is"):
            queue.publish("orders", [{}], pack="never")  # type: ignore[arg-type]
    keys = [info.key async for page in store.pages("orders/packs/") for info in page]
    assert [unit.count for key in keys if (unit := units.parse(key))] == [3]


# --- what a pack is ---


async def test_a_pack_is_one_put_with_all_messages_in_order(world: World, ann: Process) -> None:
    """Ids come in the order of the payloads, which is that of the lines; each line is the message as it would be."""
    with ann.client.counting() as requests:
        ids = await ann.queue.publish(TOPIC, numbered(250), producer=None, headers={"trace": "ä"})
    assert requests == {"PUT": 1}
    [pack] = packs_in(world)
    key = units.key_of(TOPIC, pack.name)
    lines = lines_of(world.bucket.body(key), 250, key)
    bodies = [Envelope.decode(line, key) for line in lines]
    assert [body.id for body in bodies] == ids
    assert [body.payload for body in bodies] == numbered(250)
    assert {(body.topic, body.producer_id, tuple(body.headers.items())) for body in bodies} == {
        (TOPIC, "", (("trace", "ä"),))
    }
    assert [body.encode() for body in bodies] == lines  # as a single message is stored


async def test_messages_of_a_pack_are_a_tick_apart_and_the_pack_is_at_the_first(world: World, ann: Process) -> None:
    """The name's time is the first message's, and the next call's messages come behind all of these."""
    await ann.queue.publish(TOPIC, numbered(3), pack=True)
    await ann.queue.publish(TOPIC, numbered(2, 3), pack=True)
    assert [body["payload"]["n"] for body in messages_in(world)] == [0, 1, 2, 3, 4]
    times = [body["created_at"] for body in messages_in(world)]
    assert times == sorted(set(times))
    for pack in packs_in(world):
        stamp = units.published_at(pack.name)
        assert stamp is not None
        assert iso(stamp) == envelopes_of(world, pack)[0]["created_at"]


async def test_a_pack_is_full_at_its_number_of_messages(world: World) -> None:
    """``packs.messages`` is the most that a pack has; the last pack has the rest."""
    world.topic(packs=True)
    process = await world.process(packs={"messages": 40})
    ids = await process.queue.publish(TOPIC, numbered(100))
    assert [unit.count for unit in packs_in(world)] == [40, 40, 20]
    assert [body["id"] for body in messages_in(world)] == ids


async def test_a_pack_is_full_past_its_size(world: World) -> None:
    """A pack ends with the message that takes its lines past ``packs.bytes``."""
    world.topic(packs=True)
    process = await world.process(packs={"bytes": 2000})
    payloads = [{"n": number, "x": "x" * 300} for number in range(20)]
    await process.queue.publish(TOPIC, payloads, pack=True)
    sizes = [[len(canonical(each)) for each in envelopes_of(world, unit)] for unit in packs_in(world)]
    assert len(sizes) > 3
    for each in sizes[:-1]:
        assert sum(each) + len(each) >= 2000 > sum(each[:-1]) + len(each) - 1


async def test_a_message_larger_than_a_pack_is_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a pack of one, in its place; one that may not be in a pack is an object of its own, in its place too."""
    monkeypatch.setattr(packing, "MAX_PACKED_LINE_BYTES", 10_000)
    world.topic(packs=True)
    process = await world.process(packs={"bytes": 2000})
    sizes = [10, 10, 3000, 10, 20_000, 10, 10]
    ids = await process.queue.publish(TOPIC, [{"x": "x" * size} for size in sizes], pack=True)
    page = await listed(process.queue._context, TOPIC, packs=True)
    assert [unit.count for unit in page.units] == [2, 1, 1, 1, 2]
    assert [unit.id in ids for unit in page.units] == [False, False, False, True, False]


async def test_ids_are_fresh_uuids(ann: Process) -> None:
    """No two messages of a call, or of two calls, share an id, and each is a UUID of version 4."""
    ids = [one for _ in range(3) for one in await ann.queue.publish(TOPIC, numbered(500))]
    assert len(set(ids)) == 1500
    assert all(layout.is_message_id(one) and one[14] == "4" and one[19] in "89ab" for one in ids)
    assert len({one[:2] for one in ids}) > 200


async def test_messages_with_headers_of_their_own_share_a_pack(world: World, ann: Process) -> None:
    """Each line has the headers of its message."""
    payloads: list[NewMessage | Mapping[str, Any]] = [NewMessage({"n": 0}, {"a": "1"}), {"n": 1}]
    await ann.queue.publish(TOPIC, payloads, headers={"b": "2"}, pack=True)
    assert [body["headers"] for body in messages_in(world)] == [{"a": "1", "b": "2"}, {"b": "2"}]


async def test_one_bad_payload_publishes_none(world: World, ann: Process) -> None:
    """The whole call is checked before the first pack is made."""
    with ann.client.counting() as requests, pytest.raises(InvalidPayloadError, match=r"payloads\[150\]"):
        await ann.queue.publish(TOPIC, [*numbered(150), {"a": {1}}, *numbered(10)])
    assert not requests
    assert not packs_in(world)


def test_a_place_is_written_as_any_time() -> None:
    """The quick way to write a time gives what the other gives, to the microsecond, over the centuries."""
    places = [0, 1, 999_999, 10**6, 1_767_225_599_999_999, 1_767_225_600_250_001, 4_102_444_800_000_000, 2**33 * 10**6]
    for first, second in pairwise(places):
        for place in (first, (first + second) // 2):
            assert iso_of_tick(place) == iso(place / TICKS_PER_SECOND)


# --- what becomes of each message when requests go wrong ---


async def test_a_pack_that_fails_fails_all_its_messages(world: World) -> None:
    """Of a call with several packs, the messages of each are failed or published together."""
    world.topic(packs=True)
    process = await world.process(packs={"messages": 40})
    process.client.inject("denied", "PUT", times=1, passed=1)
    with pytest.raises(PublishError, match="40 were not published") as caught:
        await process.queue.publish(TOPIC, numbered(100))
    error = caught.value
    assert (list(error.failed), len(error.unknown)) == (error.ids[40:80], 0)
    assert error.published == [body["id"] for body in messages_in(world)]


async def test_a_pack_of_which_nobody_can_tell_is_unknown(ann: Process) -> None:
    """A pack of which no request was ever answered leaves all its messages unknown."""
    ann.client.inject("lost", "PUT")
    with pytest.raises(PublishError, match="of 100 it is not known") as caught:
        await ann.queue.publish(TOPIC, numbered(100))
    assert list(caught.value.unknown) == caught.value.ids
    assert {type(fault) for fault in caught.value.unknown.values()} == {RetryBudgetExceededError}


async def test_a_pack_whose_answer_was_lost_is_not_sent_twice(world: World, ann: Process) -> None:
    """A PUT that landed without an answer is found by a look at the pack and its lease, and no dead letter."""
    ann.client.inject("answer lost", "PUT", times=1)
    with ann.client.counting() as requests:
        ids = await ann.queue.publish(TOPIC, numbered(100))
    assert requests == {"PUT": 1, "HEAD": 1, "GET": 1}
    assert [body["id"] for body in messages_in(world)] == ids


async def test_a_pack_that_did_not_arrive_is_sent_again_under_its_key(world: World, ann: Process) -> None:
    """Its key is fixed before the first attempt."""
    ann.client.inject("lost", "PUT", times=3)
    ids = await ann.queue.publish(TOPIC, numbered(100))
    sent = [key for kind, key in ann.client.requests if kind == "PUT" and "/packs/" in key]
    assert (len(sent), len(set(sent))) == (4, 1)
    assert [body["id"] for body in messages_in(world)] == ids


@pytest.mark.parametrize("named", ["it", "another", "none"])
async def test_the_lease_of_a_pack_says_that_it_landed(world: World, ann: Process, named: str) -> None:
    """A pack that was claimed meanwhile is not sent again; a lease that does not name it is no trace of it."""

    def gone(kind: Kind, _key: str) -> None:
        if kind == "HEAD" and packs_in(world):
            [pack] = packs_in(world)
            world.bucket.remove(units.key_of(TOPIC, pack.name))
            another = units.pack_name_at(world.clock.server() - 60, layout.uuid_of(pack.id), pack.count)
            name = {"it": pack.name, "another": another, "none": ""}[named]
            share = {"of": f"0-{pack.count - 1}"}
            world.bucket.plant(layout.lease(TOPIC, pack.id), {"v": 1, "key": name, "shares": [share]})
            ann.client.meanwhile = None

    ann.client.inject("answer lost", "PUT", times=1)
    ann.client.meanwhile = gone
    await ann.queue.publish(TOPIC, numbered(100))
    assert len(packs_in(world)) == (0 if named == "it" else 1)


# --- topics that do not allow packs any more ---


async def test_a_pack_for_a_deleted_topic_is_withdrawn(world: World, ann: Process, bob: Process) -> None:
    """A publisher that used the topic a moment ago gets an error, and its packs are gone."""
    await ann.queue.publish(TOPIC, numbered(100))
    await bob.queue.delete_topic(TOPIC, force=True)
    with pytest.raises(TopicNotFoundError, match=r"was deleted\. Nothing was published"):
        await ann.queue.publish(TOPIC, numbered(100))
    assert not world.bucket.below(f"{TOPIC}/")
    assert not packs_in(world)


async def test_no_pack_stays_in_a_topic_whose_consumers_do_not_look_for_packs(world: World, ann: Process) -> None:
    """A topic that was deleted and created again without packs gets none from a publisher that knew the old one."""
    await world.later(5)
    world.topic()
    with pytest.raises(TopicNotFoundError, match="was deleted"):
        await ann.queue.publish(TOPIC, numbered(100))
    assert not packs_in(world)
    assert len(await ann.queue.publish(TOPIC, numbered(100))) == 100  # by the new settings
    assert len(world.bucket.below("messages/")) == 100


async def test_a_topic_is_looked_at_once_a_second_at_most(world: World, ann: Process) -> None:
    """However often packs are published, a GET a second asks for the topic's settings."""
    ann.client.latency = 0.02
    await world.later(30)
    began = world.clock.elapsed()
    with ann.client.counting() as requests:
        while world.clock.elapsed() - began < 10:
            await ann.queue.publish(TOPIC, numbered(1), pack=True)
    assert requests["PUT"] == pytest.approx(500, abs=20)
    assert requests["HEAD"] + requests["GET"] <= 11


async def test_an_ended_permission_is_followed(world: World, ann: Process, bob: Process) -> None:
    """After ``update_topic(packs=False)`` the process makes none, and every other one none after a minute."""
    await bob.queue.update_topic(TOPIC, packs=False)
    await bob.queue.publish(TOPIC, numbered(100))
    assert not packs_in(world)
    await world.later(61)
    await ann.queue.publish(TOPIC, numbered(100))
    assert not packs_in(world)

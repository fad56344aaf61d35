"""Claims of a topic with priorities and delays: which messages come first, and that none comes early."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import ConfigError, InvalidArgumentError, NewMessage
from pawnqueue.catalog import units
from pawnqueue.claims import candidates
from pawnqueue.domain import lanes
from tests.pawnqueue.virtual import TOPIC, World
from tests.pawnqueue.virtual import numbers as shown

if TYPE_CHECKING:
    from pawnqueue import Claim
    from tests.pawnqueue.virtual import Process


class NoOffset(tzinfo):
    """A datetime with it has no time zone, by Python's definition."""

    def utcoffset(self, _: datetime | None) -> None:
        """See :class:`datetime.tzinfo`."""


#: How far two processes' ideas of the store's time may be apart, in these tests.
ERROR = 2.0


@pytest.fixture(params=[None, True], ids=["single", "packs"])
def laned(request: pytest.FixtureRequest, world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A topic with priorities and delays, with and without packs; each look begins with the highest priority."""
    world.topic(priorities=True, delays=True, packs=request.param)
    monkeypatch.setattr(candidates, "OLDEST_FIRST_SHARE", 0.0)
    return world


async def publish(process: Process, *numbers: int, **how: Any) -> list[str]:
    """Publish numbered messages; in a pack, if the topic allows packs."""
    packs = (await process.queue.topic(TOPIC)).settings.packs
    return await process.queue.publish(TOPIC, [{"n": number} for number in numbers], pack=bool(packs), **how)


async def claimed(process: Process, most: int = 1) -> list[int]:
    """Claim and ack, and return the numbers of the messages."""
    claim: Claim = await process.queue.claim(TOPIC, "c", max_messages=most)
    await process.queue.ack(claim)
    return shown(claim)


# --- priorities ---


async def test_higher_priorities_come_first(laned: World) -> None:
    """Whatever was published first, and in publish order where the priority is the same."""
    ann = await laned.process()
    for number, priority in enumerate([0, -9, 5, 0, 9, 5, -1]):
        await publish(ann, number, priority=priority)
        await laned.later(1)
    had = [number for _ in range(7) for number in await claimed(ann)]
    assert had == [4, 2, 5, 0, 3, 6, 1]


async def test_consumers_see_the_priority(laned: World) -> None:
    """A message has its priority, in a claim and where it is peeked at."""
    ann = await laned.process()
    await publish(ann, 1, 2, priority=7)
    assert {message.priority for message in await ann.queue.peek(TOPIC)} == {7}
    assert {message.priority for message in await ann.queue.claim(TOPIC, "c", max_messages=2)} == {7}


async def test_a_requeued_message_keeps_its_priority(laned: World) -> None:
    """A message that is given back comes before those of lower priorities again."""
    ann = await laned.process()
    await publish(ann, 1, priority=3)
    await publish(ann, 2)
    await ann.queue.requeue(await ann.queue.claim(TOPIC, "c", max_messages=1))
    assert await claimed(ann) == [1]


async def test_a_high_message_is_seen_at_once_in_a_large_topic(world: World) -> None:
    """A message of a high priority comes next, however many others wait and were listed before it was published."""
    world.topic(priorities=True, delays=True)
    world.fill([{"id": world.clock.uuid(), "payload": {"n": 0}} for _ in range(2500)])
    ann = await world.process()
    await claimed(ann)
    await world.later(candidates.LISTING_CACHE_SECONDS + 0.5)
    await publish(ann, 7, priority=1)
    await publish(ann, 8, priority=2)
    assert [await claimed(ann) for _ in range(2)] == [[8], [7]]
    await world.later(candidates.LISTING_CACHE_SECONDS + 0.5)
    await publish(ann, 9, delay=1.0, priority=1)
    await world.later(1 + ERROR)
    assert await claimed(ann) == [9]


async def test_nobody_is_starved_by_a_higher_priority(laned: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """⚑ Now and then a claim begins with what waits for longest, although higher priorities never end."""
    monkeypatch.undo()
    ann = await laned.process()
    await publish(ann, -1, priority=-9)
    for number in range(200):
        await laned.later(4)
        await publish(ann, number, number, priority=9)
        if -1 in await claimed(ann):
            break
    else:
        raise AssertionError("it was never claimed")
    assert number > 0


async def test_a_batch_is_not_filled_with_lower_ones_of_another_kind(world: World) -> None:
    """A claim has single messages or packs. It takes no low single messages before packs of a higher priority."""
    world.topic(priorities=True, packs=True)
    ann = await world.process()
    await ann.queue.publish(TOPIC, [{"n": 1}], pack=False, priority=9)
    await ann.queue.publish(TOPIC, [{"n": 3}], pack=False)
    await ann.queue.publish(TOPIC, [{"n": 2}], pack=True, priority=5)
    assert [await claimed(ann, 10) for _ in range(3)] == [[1], [2], [3]]


# --- more than one LIST shows ---


def plant(world: World, number: int, count: int = 1, *, priority: int = 0, due: float | None = None) -> None:
    """Put messages with this number into the topic, behind all others of their lane."""
    for place in range(count):
        uuid, tick = world.clock.uuid(), place * 1e-6
        name = units.name_at(
            world.clock.server() + tick, uuid, lanes.prefix(priority, None if due is None else due + tick)
        )
        world.bucket.plant(units.key_of(TOPIC, name), {"id": uuid, "payload": {"n": number}})


async def until_given(world: World, process: Process, number: int, claims: int, **others: Any) -> list[int]:
    """Claim ten messages a second, and publish as many others, until this one comes."""
    had: list[int] = []
    for _ in range(claims):
        some = await claimed(process, 10)
        had += some
        if number in some:
            break
        await world.later(1)
        plant(world, 0, len(some), **others)
    return had


@pytest.mark.parametrize(("low", "high"), [(1, 9), (-9, -1), (-9, 9)])
async def test_nobody_is_starved_behind_a_thousand_higher_ones(world: World, low: int, high: int) -> None:
    """⚑ The oldest message comes first now and then, also where one LIST does not show it."""
    world.topic(priorities=True)
    plant(world, 1, priority=low)
    await world.later(60)
    plant(world, 0, 1100, priority=high)
    assert 1 in await until_given(world, await world.process(), 1, 150, priority=high)


@pytest.mark.parametrize(("priority", "other"), [(0, 5), (5, 0), (5, -5)])
async def test_a_message_comes_behind_a_thousand_that_wait_for_a_retry(world: World, priority: int, other: int) -> None:
    """However many of its own priority cannot be claimed yet, and whatever else can be."""
    world.topic(priorities=True)
    plant(world, -1, 1100, priority=priority)
    ben = await world.process()
    await ben.queue.requeue(await ben.queue.claim(TOPIC, "c", max_messages=1100), delay=36_000)
    plant(world, 1, priority=priority)
    await world.later(60)
    plant(world, 0, 50, priority=other)
    assert 1 in await until_given(world, await world.process(), 1, 150, priority=other)


async def test_a_large_claim_has_all_urgent_ones(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes lower ones only when no more urgent ones are left, however many LISTs show them."""
    monkeypatch.setattr(candidates, "OLDEST_FIRST_SHARE", 0.0)
    world.topic(priorities=True)
    plant(world, 0, 1500)
    plant(world, 9, 1500, priority=9)
    ann = await world.process()
    assert shown(await ann.queue.claim(TOPIC, "c", max_messages=2000)) == [9] * 1500 + [0] * 500


async def test_an_urgent_one_that_is_due_comes_before_a_thousand_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delayed messages have priorities too, also those that were due before it."""
    monkeypatch.setattr(candidates, "OLDEST_FIRST_SHARE", 0.0)
    world.topic(priorities=True, delays=True)
    now = world.clock.server()
    plant(world, 0, 1100, due=now + 10)
    plant(world, 1, priority=9, due=now + 11)
    await world.later(60)
    assert (await claimed(await world.process(), 10))[0] == 1


async def test_a_message_that_has_lost_its_marks_is_delivered(world: World) -> None:
    """A name that only looks like a delay is claimed at once, whatever waits for its time in the same topic."""
    world.topic(delays=True)
    now = world.clock.server()
    for number, mark in enumerate(("~x-", "~~-")):
        uuid = world.clock.uuid()
        world.bucket.plant(f"{TOPIC}/messages/{mark}{units.name_at(now, uuid)}", {"id": uuid, "payload": {"n": number}})
    plant(world, 9, 1100, due=now + 86_400)
    assert sorted(await claimed(await world.process(), 10)) == [0, 1]


async def test_the_backlog_passes_over_what_is_not_due(world: World) -> None:
    """However many messages are delayed, their lane is listed up to the first one that is not due."""
    world.topic(delays=True)
    plant(world, 0, 4000, due=world.clock.server() + 86_400)
    ann = await world.process()
    with ann.client.counting() as counted:
        assert (await ann.queue.backlog(TOPIC, at_least=1)).pending == 0
    assert counted["LIST"] <= 3


async def test_the_batch_is_in_order_whichever_comes_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that has all there is has it by priority, also where the look has begun with the oldest."""
    monkeypatch.setattr(candidates, "OLDEST_FIRST_SHARE", 1.0)
    world.topic(priorities=True)
    ann = await world.process()
    await publish(ann, 1)
    await world.later(5)
    await publish(ann, 2, priority=5)
    assert await claimed(ann, 10) == [2, 1]


# --- delays ---


async def test_a_delayed_message_is_given_to_nobody_before_its_time(laned: World) -> None:
    """⚑ Not even by the clocks' error, and soon afterwards."""
    ann, ben = await laned.process(), await laned.process()
    published = laned.clock.server()
    await publish(ann, 1, delay=60.0)
    had: list[int] = []
    while not had:
        assert laned.clock.server() < published + 60 + 2 * ERROR
        had = await claimed(ben)
        if had:
            assert laned.clock.server() >= published + 60
        await laned.later(0.1)
    assert had == [1]


async def test_delayed_messages_come_in_the_order_in_which_they_are_due(laned: World) -> None:
    """Between those that were published meanwhile, as if they had been published when they were due."""
    ann = await laned.process()
    for number, delay in ((3, 30.0), (1, 10.0), (2, 20.0)):
        await publish(ann, number, delay=delay)
    await laned.later(15)
    await publish(ann, 11)
    await laned.later(30)
    assert [await claimed(ann) for _ in range(4)] == [[1], [11], [2], [3]]


async def test_a_time_in_place_of_a_delay(laned: World) -> None:
    """``not_before`` is a time; one that is past is no delay."""
    ann = await laned.process()
    now = laned.clock.server()
    await publish(ann, 1, not_before=datetime.fromtimestamp(now + 20, UTC))
    await publish(ann, 2, not_before=datetime.fromtimestamp(now - 20, UTC))
    assert await claimed(ann, 10) == [2]
    await laned.later(18)
    assert await claimed(ann, 10) == []
    await laned.later(2 + ERROR)
    assert await claimed(ann, 10) == [1]


async def test_a_claim_that_waits_is_given_what_becomes_due(laned: World) -> None:
    """It polls on, and gets the message within a poll of its time."""
    ann = await laned.process()
    await publish(ann, 1, delay=12.0)
    began = laned.clock.elapsed()
    claim = await ann.queue.claim(TOPIC, "c", wait=60)
    assert shown(claim) == [1]
    assert 12 <= laned.clock.elapsed() - began <= 12 + ERROR + ann.queue.settings.polling.interval_seconds + 1


async def test_each_message_has_its_own_schedule(laned: World) -> None:
    """What a message says replaces what its call says; the ids are in the order of the messages."""
    ann = await laned.process()
    messages = [
        NewMessage({"n": 0}),
        NewMessage({"n": 1}, priority=9),
        NewMessage({"n": 2}, delay=0),
        NewMessage({"n": 3}, delay=40.0, priority=-1),
    ]
    packs = (await ann.queue.topic(TOPIC)).settings.packs
    ids = await ann.queue.publish(TOPIC, messages, delay=20.0, priority=1, pack=bool(packs))
    had: list[str] = []
    for seconds in (0, 20 + ERROR, 20 + ERROR):
        await laned.later(seconds)
        while claim := await ann.queue.claim(TOPIC, "c", max_messages=1):
            had += claim.ids
            await ann.queue.ack(claim)
    assert had == [ids[2], ids[1], ids[0], ids[3]]


async def test_messages_with_one_delay_share_a_pack(world: World) -> None:
    """A call makes a pack for each schedule that several of its messages have; the others are single messages."""
    world.topic(priorities=True, delays=True, packs=True)
    ann = await world.process()
    messages = [NewMessage({"n": n}, priority=n % 2, delay=5.0 if n < 8 else float(n)) for n in range(10)]
    await ann.queue.publish(TOPIC, messages, pack=True)
    packs = [units.parse(name) for name in world.bucket.below("packs/")]
    assert sorted(pack.count for pack in packs if pack) == [4, 4]
    assert len(world.bucket.below("messages/")) == 2
    await world.later(20)
    had: list[int] = []
    while some := await claimed(ann, 100):
        had += some
    assert sorted(had) == list(range(10))


async def test_a_message_that_is_not_due_is_not_pending_anywhere(world: World) -> None:
    """What ``backlog`` and ``stats`` count as pending, a claim is given."""
    world.topic(delays=True)
    ann = await world.process()
    [one] = await ann.queue.publish(TOPIC, [{"n": 1}], delay=10)
    for _ in range(200):
        backlog, stats, found = (
            await ann.queue.backlog(TOPIC),
            await ann.queue.stats(TOPIC),
            await ann.queue.find(TOPIC, one),
        )
        assert found is not None
        assert backlog.pending == stats.pending == int(found.state == "pending")
        if backlog.pending:
            break
        await world.later(0.1)
    assert await claimed(ann) == [1]


async def test_the_rest_of_a_pack_is_a_pack(world: World) -> None:
    """Only a message that has its schedule alone is a single one. So packs of later calls do not overtake it."""
    world.topic(priorities=True, packs=True)
    ann = await world.process(packs={"messages": 10})
    await ann.queue.publish(TOPIC, [NewMessage({"n": -1}, priority=-1), *({"n": n} for n in range(11))], pack=True)
    await ann.queue.publish(TOPIC, [{"n": n} for n in range(11, 30)], pack=True)
    assert len(world.bucket.below("messages/")) == 1
    had: list[int] = []
    while some := await claimed(ann, 100):
        had += [number for number in some if number >= 0]
    assert had == list(range(30))


async def test_delayed_messages_count_as_delayed(laned: World) -> None:
    """In stats, backlog and find, until they are due. They have no age before that."""
    ann = await laned.process()
    [late] = await publish(ann, 1, delay=30.0)
    stats, backlog = await ann.queue.stats(TOPIC), await ann.queue.backlog(TOPIC)
    assert (stats.pending, stats.delayed, stats.oldest_age_seconds) == (0, 1, None)
    assert (backlog.pending, backlog.oldest_age_seconds) == (0, None)
    found = await ann.queue.find(TOPIC, late)
    assert found is not None
    assert found.state == "delayed"
    assert found.until is not None
    assert 30 <= found.until.timestamp() - laned.clock.server() <= 30 + ERROR
    await laned.later(30 + ERROR)
    stats, backlog = await ann.queue.stats(TOPIC), await ann.queue.backlog(TOPIC)
    assert (stats.pending, stats.delayed, backlog.pending) == (1, 0, 1)
    assert stats.oldest_age_seconds is not None
    assert stats.oldest_age_seconds <= ERROR
    found = await ann.queue.find(TOPIC, late)
    assert found is not None
    assert found.state == "pending"


# --- settings ---


@pytest.mark.parametrize("how", [{"delay": 1.0}, {"not_before": datetime(2100, 1, 1, tzinfo=UTC)}, {"priority": 1}])
@pytest.mark.parametrize("allowed", [None, False])
async def test_a_topic_that_does_not_allow_it_refuses_it(
    world: World, how: dict[str, Any], *, allowed: bool | None
) -> None:
    """Nothing is published, and the error says what to do."""
    world.topic(priorities=allowed, delays=allowed)
    ann = await world.process()
    for message in ({"n": 1}, NewMessage({"n": 1}, **how)):
        with pytest.raises(InvalidArgumentError, match=r"payloads\[0\] has a .*update_topic\('orders', .*=True\)"):
            await ann.queue.publish(TOPIC, [message], **({} if isinstance(message, NewMessage) else how))
    assert not world.bucket.below("messages/")


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"delay": -1}, "delay is wrong"),
        ({"delay": float("nan")}, "delay is wrong"),
        ({"delay": True}, "delay is wrong"),
        ({"delay": 4e8}, "delay is wrong"),
        ({"not_before": datetime(2100, 1, 1)}, "not_before is wrong"),  # noqa: DTZ001 - it has no time zone
        ({"not_before": datetime(2100, 1, 1, tzinfo=NoOffset())}, "not_before is wrong"),
        ({"not_before": 5}, "not_before is wrong"),
        ({"priority": 10}, "priority is wrong"),
        ({"priority": 1.0}, "priority is wrong"),
        ({"priority": None}, "priority is wrong"),
        ({"delay": 1, "not_before": datetime(2100, 1, 1, tzinfo=UTC)}, "both given"),
    ],
)
async def test_a_wrong_schedule_is_refused(laned: World, how: dict[str, Any], what: str) -> None:
    """With a sentence that says what to pass. Nothing is published."""
    ann = await laned.process()
    with pytest.raises(InvalidArgumentError, match=what):
        await ann.queue.publish(TOPIC, [{}], **how)
    if how != {"priority": None}:
        with pytest.raises(InvalidArgumentError, match=r"payloads\[1\]"):
            await ann.queue.publish(TOPIC, [{}, NewMessage({}, **how)])
    assert not laned.bucket.below("messages/")


async def test_staged_messages_have_no_schedule(laned: World) -> None:
    """They are refused, instead of being published at once."""
    ann = await laned.process()
    with pytest.raises(InvalidArgumentError, match="no priority and no delay"):
        await ann.queue.stage(TOPIC, "w", 0, [NewMessage({}, delay=5)])


@pytest.mark.parametrize("name", ["priorities", "delays"])
async def test_a_lane_is_switched_on_and_off(world: World, name: str) -> None:
    """A topic never had it (None), has it, or has it no more. It is never None again."""
    ann = await world.process()
    assert getattr((await ann.queue.create_topic("new")).settings, name) is None
    assert getattr((await ann.queue.update_topic("new", **{name: False})).settings, name) is None  # type: ignore[misc]
    for value in (True, False, True):
        assert getattr((await ann.queue.update_topic("new", **{name: value})).settings, name) is value  # type: ignore[misc]
    with pytest.raises(ConfigError, match=f"it has or had {name}"):
        await ann.queue.update_topic("new", **{name: None})  # type: ignore[misc]


@pytest.mark.parametrize("after", [None, False])
async def test_what_is_in_a_lane_is_delivered_whatever_the_settings_say(laned: World, *, after: bool | None) -> None:
    """⚑ After a lane was switched off, and to a process that does not know yet that it was switched on: never early."""
    ann = await laned.process()
    await publish(ann, 1, priority=-5)
    await publish(ann, 2, priority=5)
    await publish(ann, 3, delay=30.0)
    laned.topic(priorities=after, delays=after, packs=(await ann.queue.topic(TOPIC)).settings.packs)
    ben = await laned.process()
    assert [*await claimed(ben, 1), *await claimed(ben, 1), *await claimed(ben, 1)] == [2, 1]
    await laned.later(30 + ERROR)
    assert await claimed(ben) == [3]


# --- what it costs ---


@pytest.mark.parametrize("settings", [{}, {"priorities": True}, {"delays": True}, {"priorities": True, "delays": True}])
@pytest.mark.parametrize("packs", [None, True])
async def test_an_idle_look_is_one_list(world: World, settings: dict[str, bool], *, packs: bool | None) -> None:
    """With all lanes, and while messages wait that are not due, an idle poll is one LIST as ever."""
    world.topic(packs=packs, **settings)
    ann = await world.process()
    if "delays" in settings:
        await publish(ann, *range(20), delay=3600.0)
    await claimed(ann)
    for _ in range(5):
        await world.later(1)
        with ann.client.counting() as counted:
            assert await claimed(ann) == []
        assert counted == {"LIST": 1}


async def test_a_look_at_a_large_topic_begins_at_its_head(world: World) -> None:
    """Where one LIST does not show all of a topic, a short poll is one LIST more for each priority of a thousand."""
    world.topic(priorities=True, delays=True)
    world.fill([{"id": world.clock.uuid(), "payload": {"n": 0}} for _ in range(1500)])
    ann = await world.process(polling={"max_messages_per_poll": 1000})
    held = await ann.queue.claim(TOPIC, "c", max_messages=1500)
    assert len(held) == 1500
    await claimed(ann)
    await world.later(2)
    with ann.client.counting() as counted:
        assert await claimed(ann) == []
    assert counted == {"LIST": 2}  # the head with what is urgent, and what is new behind the thousand


@pytest.mark.parametrize("strategy", ["conditional_write", "csprng_verify"])
async def test_both_strategies(strategy: str) -> None:
    """Lanes are in names alone, so both strategies deliver them."""
    async with World(strategy) as world:
        world.topic(priorities=True, delays=True, packs=True)
        ann = await world.process()
        await publish(ann, 1, 2, delay=20.0)
        await publish(ann, 3, 4, priority=1)
        assert sorted(await claimed(ann, 10)) == [3, 4]
        await world.later(20 + ERROR)
        assert await claimed(ann, 10) == [1, 2]

"""Staged writes into a topic that allows packs: what was staged becomes a pack by one COPY (§7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pawnqueue import CompatibilityError, InvalidArgumentError, NewMessage, PublishError, StagedGoneError
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain.pack import MAX_PACK_BYTES
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.domain.write_record import MOST_IN_DOUBT, StagedObject, WriteRecord
from pawnqueue.publish import packing
from tests.pawnqueue.publish.written import (
    COUNT,
    EVERY,
    OVER,
    WRITE,
    committed,
    expected_ids,
    ids,
    left,
    of_strategy,
    record,
    staged,
    visible,
    writer,
)
from tests.pawnqueue.virtual import TOPIC, Died, Process, World, numbered, numbers

if TYPE_CHECKING:
    from pawnqueue import Staged
    from tests.pawnqueue.virtual import Effect

pytestmark = pytest.mark.usefixtures("small_chunks")

#: How many messages each pack of a write of seven has.
PACKS = [2, 1, 2, 2]


def packs_in(world: World) -> list[int]:
    """How many messages are in each pack of the topic, in order; no message is alone."""
    assert world.bucket.below("messages/") == []
    return [layout.count_in(name) for name in world.bucket.below("packs/")]


async def test_what_was_staged_is_copied(packed_world: World) -> None:
    """Byte for byte, in the order of the rows, and nobody downloads it."""
    ann = await writer(packed_world)
    parts = await staged(ann)
    bodies = [packed_world.bucket.body(layout.staged_object(TOPIC, WRITE, each.name)) for each in objects_of(parts)]
    sent: list[tuple[str, str]] = []

    async def note(kind: str, key: str) -> None:
        sent.append((kind, key))

    ann.client.meanwhile = note
    assert (await ann.queue.commit_write(TOPIC, WRITE, parts)).count == COUNT
    assert [kind for kind, _ in sent].count("COPY") == len(bodies) == len(PACKS)
    assert not any(kind == "GET" and "/staged/" in key for kind, key in sent)
    keys = [units.key_of(TOPIC, name) for name in packed_world.bucket.below("packs/")]
    assert [packed_world.bucket.body(key) for key in keys] == bodies
    assert packs_in(packed_world) == PACKS
    assert (visible(packed_world), ids(packed_world), left(packed_world)) == (EVERY, expected_ids(), [])


async def test_a_consumer_sees_no_difference(packed_world: World) -> None:
    """Payload, headers, producer and write are those of a single message; the time is that of the commit."""
    ann = await packed_world.process()
    part = await ann.queue.stage(TOPIC, WRITE, 0, [NewMessage({"a": "ä\n\u2028"}, {"h": "1"})] * 2, producer="shop")
    await packed_world.later(3600)
    before = packed_world.clock.server()
    await ann.queue.commit_write(TOPIC, WRITE, [part])
    producer = await ann.queue.register_producer("shop")
    for message in await ann.queue.claim(TOPIC, "c", max_messages=2):
        assert (dict(message.payload), dict(message.headers)) == ({"a": "ä\n\u2028"}, {"h": "1"})
        assert (message.producer_id, message.write_id) == (producer.id, WRITE)
        assert abs(message.created_at.timestamp() - before) < 5


async def test_a_dead_letter_keeps_its_time(packed_world: World) -> None:
    """A line that was staged has no time of its own. Buried and moved back, it has that of its pack."""
    ann = await packed_world.process()
    await committed(ann)
    claim = await ann.queue.claim(TOPIC, "c", max_messages=COUNT)
    published = {message.id: message.created_at for message in claim}
    await ann.queue.bury(claim, claim[2], reason="bad")
    await ann.queue.ack(claim)
    [letter] = await ann.queue.dead_letters(TOPIC)
    assert letter.message is not None
    assert letter.message.created_at == published[letter.message.id]
    await packed_world.later(600)
    await ann.queue.redrive(TOPIC)
    [again] = await ann.queue.claim(TOPIC, "c")
    assert (again.id, again.created_at) == (letter.message.id, published[again.id])


async def test_packs_have_the_bounds_of_the_settings(packed_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is too large for any pack becomes a single message between the packs."""
    monkeypatch.setattr(packing, "MAX_PACKED_LINE_BYTES", 2000)
    monkeypatch.setattr("pawnqueue.publish.staging.MAX_PACKED_LINE_BYTES", 2000)
    ann = await packed_world.process(packs={"messages": 4, "bytes": 1024})
    payloads = [*numbered(5), {"n": 5, "long": "x" * 4000}, *numbered(2, 6)]
    part = await ann.queue.stage(TOPIC, WRITE, 0, payloads)
    assert [(each.count, each.is_pack) for each in part.objects] == [(4, True), (1, True), (1, False), (2, True)]
    await ann.queue.commit_write(TOPIC, WRITE, [part])
    assert visible(packed_world) == list(range(8))
    found = [message for _ in range(3) for message in await ann.queue.claim(TOPIC, "c", max_messages=100)]
    assert sorted(message.payload["n"] for message in found) == list(range(8))


async def test_rows_that_were_staged_before_the_topic_allowed_packs(world: World, ann: Process) -> None:
    """They become single messages, beside packs of what was staged after that."""
    first = await ann.queue.stage(TOPIC, WRITE, 0, numbered(3))
    await ann.queue.update_topic(TOPIC, packs=True)
    second = await ann.queue.stage(TOPIC, WRITE, 1, numbered(4, 3))
    await ann.queue.commit_write(TOPIC, WRITE, [first, second])
    assert visible(world) == EVERY
    assert (len(world.bucket.below("messages/")), len(world.bucket.below("packs/"))) == (3, 1)


@pytest.mark.parametrize("effect", ["dies", "dies after"])
async def test_a_mixed_write_is_finished(effect: Effect) -> None:
    """Wherever its committer dies, the next process tells the rows of a note from its packs."""
    number = 0
    while True:
        async with of_strategy("conditional_write") as world:
            ann, bob = await writer(world), await writer(world)
            parts = [await ann.queue.stage(TOPIC, WRITE, 0, numbered(4))]
            await ann.queue.update_topic(TOPIC, packs=True)
            parts.append(await ann.queue.stage(TOPIC, WRITE, 1, numbered(3, 4)))
            ann.client.inject(effect, passed=number, times=1)
            try:
                await ann.queue.commit_write(TOPIC, WRITE, parts)
            except Died:
                number += 1
            else:
                break
            await world.later(OVER)
            assert (await bob.queue.commit_write(TOPIC, WRITE, parts, wait=60)).count == COUNT
            assert visible(world) == EVERY
    assert number > 10


@pytest.mark.parametrize("is_visible", [True, False])
async def test_a_pack_that_is_gone(packed_world: World, *, is_visible: bool) -> None:
    """If nothing is visible the write is dropped. Else its rows are named, and all others are published."""
    ann, bob = await writer(packed_world), await writer(packed_world)
    parts = await staged(ann)
    key = layout.staged_object(TOPIC, WRITE, objects_of(parts)[3 if is_visible else 0].name)
    if is_visible:  # the first note of its progress is the second write of its record
        ann.client.inject("dies after", "PUT", "*/writes/*", passed=1)
    else:
        ann.client.inject("dies", "COPY")
    with pytest.raises(Died):
        await ann.queue.commit_write(TOPIC, WRITE, parts)
    packed_world.bucket.remove(key)
    await packed_world.later(OVER)
    with pytest.raises(StagedGoneError):
        await bob.queue.commit_write(TOPIC, WRITE, parts)
    found = record(packed_world)
    assert found is not None
    if is_visible:
        assert (found.state, [(each.first, each.count) for each in found.lost]) == ("done", [(5, 2)])
        assert visible(packed_world) == EVERY[:5]
    else:
        assert (found.state, visible(packed_world)) == ("dropped", [])
        assert (await committed(bob)).count == COUNT
        assert visible(packed_world) == EVERY


async def test_a_pack_that_vanishes_under_its_commit(packed_world: World) -> None:
    """The error says so, and the next commit brings the write to its end."""
    ann = await writer(packed_world)
    parts = await staged(ann)
    key = layout.staged_object(TOPIC, WRITE, objects_of(parts)[3].name)

    async def vanish(kind: str, _: str) -> None:
        if kind == "COPY":
            packed_world.bucket.remove(key)

    ann.client.meanwhile = vanish
    with pytest.raises(PublishError, match="is gone"):
        await ann.queue.commit_write(TOPIC, WRITE, parts)
    ann.client.meanwhile = None
    with pytest.raises(StagedGoneError):
        await ann.queue.commit_write(TOPIC, WRITE, parts)
    assert visible(packed_world) == EVERY[:5]


async def test_an_error_counts_messages(packed_world: World) -> None:
    """And not packs: two of the four could not be copied, and they have three of the seven messages."""
    ann = await writer(packed_world)
    parts = await staged(ann)
    ann.client.inject("denied", "COPY", times=2)
    with pytest.raises(PublishError, match=rf"{WRITE} of topic '{TOPIC}' is decided, but 3 of its 7 messages"):
        await ann.queue.commit_write(TOPIC, WRITE, parts)


async def test_a_copy_that_comes_too_late_is_no_failure(packed_world: World) -> None:
    """Its commit was taken over and finished by another one, so the source is gone: the write is done."""
    ann, bob = await writer(packed_world), await writer(packed_world)
    parts = await staged(ann)
    slow = iter("x")

    async def wait(kind: str, _: str) -> None:
        if kind == "COPY" and next(slow, None):
            await packed_world.later(OVER)
            await bob.queue.commit_write(TOPIC, WRITE, parts)

    ann.client.meanwhile = wait
    assert (await ann.queue.commit_write(TOPIC, WRITE, parts)).count == COUNT
    assert visible(packed_world) == EVERY


async def test_a_topic_that_was_created_anew_without_packs_gets_none(world: World) -> None:
    """Its consumers would not look for them: the commit says so, and publishes nothing."""
    world.topic(packs=True)
    ann, bob = await writer(world), await writer(world)
    parts = await staged(ann)
    world.topic()
    await world.later(10)
    with pytest.raises(InvalidArgumentError, match="allows none any more"):
        await ann.queue.commit_write(TOPIC, WRITE, parts)
    assert (visible(world), record(world)) == ([], None)
    await bob.queue.abort_write(TOPIC, WRITE)
    assert left(world) == []


async def test_packs_that_were_staged_stay_packs(packed_world: World) -> None:
    """Where packs were switched off meanwhile: the topic's consumers still look for them."""
    ann = await writer(packed_world)
    first = await ann.queue.stage(TOPIC, WRITE, 0, numbered(3))
    await ann.queue.update_topic(TOPIC, packs=False)
    second = await ann.queue.stage(TOPIC, WRITE, 1, numbered(4, 3))
    await ann.queue.commit_write(TOPIC, WRITE, [first, second])
    assert visible(packed_world) == EVERY
    assert len(packed_world.bucket.below("messages/")) == 4


async def test_the_same_rows_are_the_same_packs(packed_world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Staged and committed again, as a stream does after a restart: nothing is published, and nobody is warned."""
    ann, bob = await writer(packed_world), await writer(packed_world)
    await committed(ann)
    assert (await committed(bob)).already
    assert (visible(packed_world), left(packed_world)) == (EVERY, [])
    assert not [each for each in caplog.records if each.name == "pawnqueue.publish"]


async def test_a_part_of_it_is_consumed_before_the_rest_is_published(packed_world: World) -> None:
    """Half of a pack was acked, and its committer is dead: the next one publishes no message of it again."""
    ann, bob, eve = [await writer(packed_world) for _ in range(3)]
    parts = await staged(ann)
    ann.client.inject("dies", "COPY", passed=2, times=1)
    with pytest.raises(Died):
        await ann.queue.commit_write(TOPIC, WRITE, parts)
    assert 0 < len(visible(packed_world)) < COUNT
    claim = await eve.queue.claim(TOPIC, "c", max_messages=1)
    await eve.queue.ack(claim)
    first = numbers(claim)
    await packed_world.later(OVER)
    await committed(bob)
    rest = []
    while claim := await eve.queue.claim(TOPIC, "c", max_messages=100):
        rest += numbers(claim)
        await eve.queue.ack(claim)
    assert sorted([*first, *rest]) == EVERY


async def test_versions_without_packs_leave_such_a_write_alone(packed_world: World) -> None:
    """Its record has their next format while it names packs, and theirs when it is done."""
    ann = await writer(packed_world)
    seen: list[int] = []

    async def look(kind: str, key: str) -> None:
        if kind == "COPY" and "/packs/" in key:
            found = record(packed_world)
            seen.append(0 if found is None else found.v)

    ann.client.meanwhile = look
    await committed(ann)
    found = record(packed_world)
    assert set(seen) == {2}
    assert found is not None
    assert (found.state, found.v) == ("done", 1)


@pytest.mark.parametrize(
    ("published", "begun", "is_one"), [(0, 9, True), (4, 9, True), (9, 9, True), (3, 9, False), (0, 5, False)]
)
def test_a_record_ends_between_two_packs(published: int, begun: int, *, is_one: bool) -> None:
    """What is published and what is begun has whole packs."""
    made = of_packs([4, 5], published=published, begun=begun)
    key = layout.write(TOPIC, WRITE)
    if is_one:
        assert WriteRecord.decode(made, key).begun == begun
    else:
        with pytest.raises(UnreadableRecordError):
            WriteRecord.decode(made, key)


def test_many_packs_may_be_in_doubt_and_no_more_than_a_taker_can_hold() -> None:
    """A pack is one thing to hold, however many messages are in it."""
    key = layout.write(TOPIC, WRITE)
    most = of_packs([1000] * MOST_IN_DOUBT, begun=1000 * MOST_IN_DOUBT)
    assert WriteRecord.decode(most, key).count == 1000 * MOST_IN_DOUBT
    with pytest.raises(UnreadableRecordError):
        WriteRecord.decode(of_packs([1000] * (MOST_IN_DOUBT + 1), begun=1000 * (MOST_IN_DOUBT + 1)), key)


@pytest.mark.parametrize("count", [0, 10_001])
def test_a_pack_has_no_impossible_number_of_messages(count: int) -> None:
    """No unit could have such a name."""
    with pytest.raises(UnreadableRecordError):
        WriteRecord.decode(of_packs([count, 1], begun=0), layout.write(TOPIC, WRITE))


def of_packs(counts: list[int], *, published: int = 0, begun: int) -> bytes:
    """The body of a record of staged packs."""
    objects = [
        StagedObject(name=layout.staged_name(0, "0" * 32, number, is_pack=True), size=MAX_PACK_BYTES, count=count)
        for number, count in enumerate(counts)
    ]
    made = WriteRecord(write_id=WRITE, objects=objects, count=sum(counts), published=published, begun=begun)
    return made.stamped("n").encode()


def test_a_write_of_a_newer_format_is_told() -> None:
    """It is left to a process that can read it."""
    body = of_packs([1], begun=1).replace(b'"v":2', b'"v":3')
    with pytest.raises(CompatibilityError):
        WriteRecord.decode(body, layout.write(TOPIC, WRITE))


def objects_of(parts: list[Staged]) -> list[StagedObject]:
    """What was staged, in order."""
    return [each for part in parts for each in part.objects]

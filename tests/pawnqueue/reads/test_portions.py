"""Portions: what a claim or a topic has, cut by one process, and read by others, as often as they want."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pawnqueue import (
    ClaimReference,
    DeadLetter,
    InvalidArgumentError,
    LeaseLostError,
    Message,
    PawnQueue,
    Portion,
    StoreError,
    TopicNotFoundError,
)
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain.records import BucketRecord
from pawnqueue.reads.portions import (
    FIRST_UNITS_OF_TOPIC,
    MAX_PORTION_COST_BYTES,
    MIN_UNITS_FOR_A_HEAD,
    REQUEST_COST_BYTES,
    PlannedUnit,
    _cut,
)
from tests.pawnqueue.virtual import MARGIN, TOPIC, TTL, Died, Process, World, numbered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pawnqueue import Claim

BODIES = f"{TOPIC}/messages/*"


def reference_of(claim: Claim) -> ClaimReference:
    """Return how others name a claim, while its holder works on it."""
    return ClaimReference(claim.topic, claim.claim_id, claim.generation, claim.session)


async def read(process: Process, portions: Sequence[Portion]) -> list[Any]:
    """Read them all, one after the other."""
    return [each for portion in portions for each in await process.queue.read(portion)]


def ids(found: Sequence[Message | DeadLetter]) -> list[str]:
    """Return the ids."""
    return [each.id for each in found]


@pytest.fixture(params=["conditional_write", "csprng_verify"])
async def either(request: pytest.FixtureRequest) -> Any:  # noqa: ANN401 - a world, and its end
    """A world for each strategy."""
    async with World() as world:
        world.bucket.plant(layout.BUCKET_RECORD, BucketRecord(strategy=request.param).encode())
        yield world


# --- of a claim ---


async def test_a_claim_is_read_by_others(either: World) -> None:
    """A claim's portions, read by another process, are its messages, in publish order, whatever the strategy."""
    ann, bob = await either.process(), await either.process()
    published = await ann.queue.publish(TOPIC, numbered(40), headers={"h": "1"})
    claim = await ann.queue.claim(TOPIC, "c", max_messages=30)
    before = either.bucket.snapshot()

    portions = pickle.loads(pickle.dumps(await bob.queue.portions(reference_of(claim), parts=4)))  # noqa: S301
    found = await read(bob, portions)

    assert found == list(claim)
    assert ids(found) == published[:30]
    assert sorted(len(portion) for portion in portions) == [7, 7, 8, 8]
    assert await read(bob, portions) == found
    assert either.bucket.snapshot() == before
    assert (await ann.queue.ack(claim)).complete


@pytest.mark.parametrize("count", [1, 200])
async def test_planning_is_one_request_and_reading_one_a_message(ann: Process, bob: Process, count: int) -> None:
    """And one a portion, which tells that the claim is held; that its topic is there is asked once in a process."""
    await ann.queue.publish(TOPIC, numbered(count))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=count)
    await bob.queue.portions(reference_of(claim))

    with bob.client.counting() as planned:
        portions = await bob.queue.portions(reference_of(claim).to_dict(), parts=3)
    with bob.client.counting() as done:
        found = await read(bob, portions)

    assert planned == {"GET": 1}
    assert done == {"GET": count, "HEAD": len(portions)}
    assert len(found) == count


async def test_who_is_told_that_a_claim_stands_has_time_left(world: World, ann: Process, bob: Process) -> None:
    """A claim counts as over a margin before its time: so a caller has acted on the answer before others take over."""
    await ann.queue.publish(TOPIC, numbered(1))
    reference = reference_of(await ann.queue.claim(TOPIC, "c", claim_id="run"))
    await world.later(TTL - 1.5 * MARGIN)
    assert len(await bob.queue.portions(reference)) == 1
    await world.later(MARGIN)
    with pytest.raises(LeaseLostError, match="its time is almost over"):
        await bob.queue.portions(reference)


async def test_what_is_settled_is_left_out(ann: Process, bob: Process) -> None:
    """Of a claim that is settled in part, what is left; with all of it settled, an error and not an empty answer."""
    await ann.queue.publish(TOPIC, numbered(6))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    await ann.queue.ack(claim, [claim[0], claim[3]])
    await ann.queue.nack(claim, claim[1], requeue=True)

    portions = await bob.queue.portions(reference_of(claim), parts=2)
    assert await read(bob, portions) == [claim[2], claim[4], claim[5]]

    await ann.queue.ack(claim)
    with pytest.raises(LeaseLostError, match=r"Claim run\.0 of topic 'orders' is settled: .* claim again\.") as told:
        await bob.queue.portions(reference_of(claim))
    assert told.value.operation == "portions"


async def test_a_settlement_that_was_not_carried_out_counts(ann: Process, bob: Process) -> None:
    """A claim whose messages are all decided is settled, although its record is open and its messages still exist."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    ann.client.inject("denied", "DELETE")
    await ann.queue.ack(claim)

    with pytest.raises(LeaseLostError, match="is settled"):
        await bob.queue.portions(reference_of(claim))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("settled", "it has no record any more"),
        ("taken over", "was taken over"),
        ("over", "its time is over"),
        ("none", "it has no record any more"),
    ],
)
async def test_a_claim_that_has_ended_is_not_cut(world: World, ann: Process, bob: Process, how: str, told: str) -> None:
    """Others have it, or may have it: the error says which, and what to do."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id=None if how == "settled" else "run")
    reference = reference_of(claim)
    if how == "settled":
        await ann.queue.ack(claim)
    elif how == "none":
        reference = ClaimReference(TOPIC, "another", 0, "")
    else:
        await world.later()
    if how == "taken over":
        assert await bob.queue.claim(TOPIC, "d")

    with pytest.raises(LeaseLostError, match=told) as raised:
        await bob.queue.portions(reference)
    assert str(raised.value).endswith("claim anew.")


async def test_a_topic_that_was_deleted_is_told(world: World, ann: Process) -> None:
    """By its name, and before the claim is looked for."""
    await ann.queue.publish(TOPIC, numbered(2))
    reference = reference_of(await ann.queue.claim(TOPIC, "c"))
    await ann.queue.delete_topic(TOPIC, force=True)

    # A process that has never seen it.
    async with await PawnQueue.open(store=world.bucket, clock=world.clock) as queue:
        for of in (reference, TOPIC):
            with pytest.raises(TopicNotFoundError, match="'orders'"):
                await queue.portions(of)


async def test_a_claim_is_read_whole_or_not_at_all(ann: Process, bob: Process) -> None:
    """A message that was settled after the plan fails the read of its portion, with its name; the others are read."""
    await ann.queue.publish(TOPIC, numbered(6))
    claim = await ann.queue.claim(TOPIC, "c")
    first, second = await bob.queue.portions(reference_of(claim), parts=2)
    await ann.queue.ack(claim, claim[4])

    assert await bob.queue.read(first) == list(claim[:3])
    with pytest.raises(
        LeaseLostError, match=f"Message {claim[4].id} of claim {claim.stem} of topic 'orders' does not exist any more"
    ) as told:
        await bob.queue.read(second)
    assert (told.value.message, told.value.operation) == (claim[4].id, "read")


async def test_a_plan_that_is_older_than_the_end_of_its_claim(either: World) -> None:
    """Messages that others hold by now are not read, though they exist; nor are messages that others have settled."""
    ann, bob = await either.process(), await either.process()
    await ann.queue.publish(TOPIC, numbered(3))
    portions = await bob.queue.portions(reference_of(await ann.queue.claim(TOPIC, "c")))
    await either.later()
    taken = await bob.queue.claim(TOPIC, "d")
    assert len(taken) == 3

    with pytest.raises(LeaseLostError, match="has ended since these portions were made: other consumers may have"):
        await read(ann, portions)
    await bob.queue.ack(taken)
    with pytest.raises(LeaseLostError, match="does not exist any more"):
        await read(ann, portions)


async def test_what_was_given_back_since_it_was_planned(either: World) -> None:
    """All of the portion: the messages exist, and anybody may claim them."""
    ann, bob = await either.process(), await either.process()
    await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    portions = await bob.queue.portions(reference_of(claim))
    await ann.queue.requeue(claim)

    with pytest.raises(LeaseLostError, match="has ended since these portions were made"):
        await read(bob, portions)


async def test_a_message_that_was_overwritten_is_told(world: World, ann: Process, bob: Process) -> None:
    """A message that a stranger has spoilt is not reported as settled."""
    await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c")
    name = world.bucket.below("messages/")[1]
    world.bucket.plant(units.key_of(TOPIC, name), "garbage")

    with pytest.raises(LeaseLostError, match=f"Message {claim[1].id} of .* was overwritten, .* is not JSON"):
        await read(bob, await bob.queue.portions(reference_of(claim)))


@pytest.mark.parametrize("effect", ["lost", "denied"])
async def test_what_the_store_does_not_give_is_an_error(ann: Process, bob: Process, effect: Any) -> None:  # noqa: ANN401
    """Nobody is to take the rest for all that there is."""
    await ann.queue.publish(TOPIC, numbered(3))
    portions = await bob.queue.portions(reference_of(await ann.queue.claim(TOPIC, "c")))
    bob.client.inject(effect, "GET", BODIES, passed=1)
    with pytest.raises(StoreError):
        await read(bob, portions)
    bob.client.heal()
    assert len(await read(bob, portions)) == 3


async def test_a_redriven_message_is_found_by_the_name_of_its_key(ann: Process, bob: Process) -> None:
    """Its id is the one that it had, and its key has another uuid."""
    [published] = await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"))
    await ann.queue.redrive(TOPIC)
    claim = await ann.queue.claim(TOPIC, "c")
    portions = await bob.queue.portions(reference_of(claim))

    assert published not in portions[0].units[0].name
    assert ids(await read(bob, portions)) == [published]
    await ann.queue.ack(claim)
    with pytest.raises(LeaseLostError, match="does not exist any more"):
        await read(bob, portions)


async def test_deliveries_are_those_of_the_claim(ann: Process, bob: Process) -> None:
    """Reading is no delivery."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"), requeue=True)
    portions = await bob.queue.portions(reference_of(await ann.queue.claim(TOPIC, "c")))
    for _ in range(2):
        assert [message.deliveries for message in await read(bob, portions)] == [2]


# --- sizes ---


async def test_a_record_tells_the_sizes_however_it_was_claimed(world: World, ann: Process, bob: Process) -> None:
    """By no id, by an id, after a nack, after a take-over, adopted from a dead attempt, and attached to."""
    await ann.queue.publish(TOPIC, [{"text": "x" * 100 * number} for number in range(4)])
    sizes = [len(world.bucket.body(units.key_of(TOPIC, name))) for name in world.bucket.below("messages/")]

    async def told(claim: Claim) -> list[int]:
        members = world.bucket.record(claim.stem).members.values()
        assert sorted(member.size for member in members) == sorted(sizes)
        [portion] = await bob.queue.portions(reference_of(claim))
        return [unit.size for unit in portion.units]

    claim = await ann.queue.claim(TOPIC, "c")
    assert await told(claim) == sizes
    await ann.queue.nack(claim, requeue=True)
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    assert await told(claim) == sizes
    claim = await bob.queue.attach(claim.hand_over())
    assert await told(claim) == sizes
    claim = await ann.queue.attach(claim.hand_over(), payloads=False)
    assert await told(claim) == sizes
    await world.later()
    claim = await bob.queue.claim(TOPIC, "d", claim_id="other")
    assert await told(claim) == sizes
    await bob.queue.nack(claim, requeue=True)

    ann.client.inject("dies", "PUT", "*/claims/*")
    with pytest.raises(Died):
        await ann.queue.claim(TOPIC, "c", claim_id="cut", ttl=100)
    claim = await bob.queue.claim(TOPIC, "c", claim_id="cut", ttl=100)
    assert await told(claim) == sizes


async def test_a_record_without_sizes_is_read_all_the_same(world: World, ann: Process, bob: Process) -> None:
    """A claim of an older version has none: its messages count as small ones."""
    await ann.queue.publish(TOPIC, numbered(4))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    record = world.bucket.record("run.0").model_dump(mode="json")
    for member in record["members"].values():
        del member["size"]
    world.bucket.plant(layout.claim(TOPIC, "run.0"), record)

    portions = await bob.queue.portions(reference_of(claim), parts=2)
    assert [[unit.cost for unit in portion.units] for portion in portions] == [[REQUEST_COST_BYTES] * 2] * 2
    assert await read(bob, portions) == list(claim)


# --- of a topic ---


async def test_a_topic_is_looked_at_whoever_has_its_messages(world: World, ann: Process, bob: Process) -> None:
    """In publish order, claimed or not; nothing is written. Planning is a LIST."""
    published = await ann.queue.publish(TOPIC, numbered(12))
    await ann.queue.claim(TOPIC, "c", max_messages=5)
    world.bucket.plant(f"{TOPIC}/messages/stranger.txt", "hello")
    await bob.queue.portions(TOPIC)
    before = world.bucket.snapshot()

    with bob.client.counting() as planned:
        portions = await bob.queue.portions(TOPIC, parts=5)
    with bob.client.counting() as done:
        found = await read(bob, portions)

    assert ids(found) == published
    assert (planned, done) == ({"LIST": 1}, {"GET": 12})
    assert world.bucket.snapshot() == before
    assert sorted(len(portion) for portion in portions) == [2, 2, 2, 3, 3]


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("dead", [False, True])
async def test_a_topic_is_looked_at_again(ann: Process, bob: Process, parts: int, dead: bool) -> None:  # noqa: FBT001
    """Together with the earlier portions they have every message stored by then, each once, and nothing else."""

    async def add(first: int) -> None:
        await ann.queue.publish(TOPIC, numbered(8))
        if dead:
            await ann.queue.bury(await ann.queue.claim(TOPIC, f"c{first}", max_messages=8), reason="unfit")

    await add(0)
    portions = await bob.queue.portions(TOPIC, parts=parts, dead=dead)
    assert [await bob.queue.look_again(portion) for portion in portions] == portions
    await add(8)
    if dead:
        await ann.queue.redrive(TOPIC, [portions[0].units[0].name])
    else:
        await ann.queue.ack(await ann.queue.claim(TOPIC, "c", max_messages=1))

    again = [await bob.queue.look_again(portion) for portion in portions]
    [now] = await bob.queue.portions(TOPIC, parts=1, dead=dead)
    assert [unit for portion in again for unit in portion.units] == list(now.units)
    assert len(now) == 15
    assert len(await read(bob, again)) == 15


async def test_the_first_of_a_topic_are_looked_at_again(ann: Process, bob: Process) -> None:
    """One portion ends after its number of messages; several end where they ended. A claim's are fixed."""
    published = await ann.queue.publish(TOPIC, numbered(3))
    [one] = await bob.queue.portions(TOPIC, max_messages=5)
    several = await bob.queue.portions(TOPIC, max_messages=3, parts=3)
    published += await ann.queue.publish(TOPIC, numbered(4))
    assert ids(await read(bob, [await bob.queue.look_again(one)])) == published[:5]
    assert ids(await read(bob, [await bob.queue.look_again(each) for each in several])) == published[:3]
    assert len(await bob.queue.look_again(Portion(TOPIC, (), most=2))) == 2

    claimed = await bob.queue.portions(reference_of(await ann.queue.claim(TOPIC, "c", max_messages=2)), parts=2)
    with bob.client.counting() as done:
        assert [await bob.queue.look_again(each) for each in claimed] == claimed
    assert done == {}
    for wrong in (None, "x", one.units):
        with pytest.raises(InvalidArgumentError, match="is not a portion"):
            await bob.queue.look_again(wrong)  # type: ignore[arg-type]


async def test_of_a_topic_so_many_from_its_head(ann: Process, bob: Process) -> None:
    """Listing ends when there are enough."""
    published = await ann.queue.publish(TOPIC, numbered(1100))
    await bob.queue.portions(TOPIC)
    with bob.client.counting() as planned:
        portions = await bob.queue.portions(TOPIC, max_messages=7)
    assert planned == {"LIST": 1}
    assert ids(await read(bob, portions)) == published[:7]
    assert sum(map(len, await bob.queue.portions(TOPIC, max_messages=1050))) == 1050


async def test_what_has_gone_from_a_topic_is_left_out(world: World, ann: Process, bob: Process) -> None:
    """A look is not disturbed by working consumers, nor by invalid messages."""
    published = await ann.queue.publish(TOPIC, numbered(4))
    portions = await bob.queue.portions(TOPIC)
    await ann.queue.ack(await ann.queue.claim(TOPIC, "c", max_messages=1))
    world.bucket.plant(units.key_of(TOPIC, world.bucket.below("messages/")[0]), "garbage")

    assert ids(await read(bob, portions)) == published[2:]


@pytest.mark.parametrize("dead", [False, True])
async def test_an_empty_topic_has_no_portions(ann: Process, dead: bool) -> None:  # noqa: FBT001 - a parameter
    """And none is made up, however many are wanted."""
    assert await ann.queue.portions(TOPIC, parts=3, dead=dead) == []


async def test_dead_letters_are_cut_and_read(ann: Process, bob: Process) -> None:
    """Each with its reason; two requests each; at most the given number."""
    published = await ann.queue.publish(TOPIC, numbered(5))
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"), reason="unfit")

    portions = pickle.loads(pickle.dumps(await bob.queue.portions(TOPIC, dead=True, parts=2)))  # noqa: S301
    with bob.client.counting() as done:
        letters = await read(bob, portions)

    assert done == {"GET": 10}
    assert {letter.id: (letter.reason, letter.message.id) for letter in letters} == {
        each: ("unfit", each) for each in published
    }
    assert [len(portion) for portion in portions] == [3, 2]
    assert sum(map(len, await bob.queue.portions(TOPIC, dead=True, max_messages=2))) == 2
    await ann.queue.redrive(TOPIC, published[:1])
    assert {letter.id for letter in await read(bob, portions) if letter.message is None} == {published[0]}


@pytest.mark.parametrize(
    ("of", "options"),
    [
        (TOPIC, {"parts": 0}),
        (TOPIC, {"parts": "2"}),
        (TOPIC, {"max_messages": 0}),
        (TOPIC, {"dead": "no"}),
        ("no topic", {}),
        ({"claim": "x"}, {}),
        (5, {}),
        ({"topic": TOPIC, "claim_id": "x", "generation": 0, "session": ""}, {"parts": 1.5}),
    ],
)
async def test_wrong_arguments_are_told(ann: Process, of: Any, options: Any) -> None:  # noqa: ANN401
    """In a sentence, before the first request."""
    with ann.client.counting() as requests, pytest.raises(InvalidArgumentError):
        await ann.queue.portions(of, **options)
    assert not requests


@pytest.mark.parametrize("options", [{"dead": True}, {"max_messages": 3}])
async def test_a_claim_is_cut_as_a_whole(ann: Process, options: Any) -> None:  # noqa: ANN401
    """What is for topics is refused for a claim, rather than passed over."""
    await ann.queue.publish(TOPIC, numbered(2))
    reference = reference_of(await ann.queue.claim(TOPIC, "c"))
    with pytest.raises(InvalidArgumentError, match="of a topic"):
        await ann.queue.portions(reference, **options)


async def test_what_is_no_portion_is_told(ann: Process) -> None:
    """Not by an AttributeError of our own."""
    wrong: Any = "portion"
    with pytest.raises(InvalidArgumentError, match="portions"):
        await ann.queue.read(wrong)


# --- cutting ---


def whole(costs: Sequence[int]) -> Portion:
    """Return a portion of units of these sizes."""
    return Portion(TOPIC, tuple(PlannedUnit(str(number), size) for number, size in enumerate(costs)), claim="run.0")


@given(st.lists(st.integers(0, 10**8), max_size=60), st.integers(1, 70))
def test_cut_evenly_and_nothing_is_lost(sizes: list[int], parts: int) -> None:
    """All units in order, none empty, no more portions than wanted; none costs more than a share and one object."""
    uncut = whole(sizes)
    portions = _cut(uncut, parts)
    total = sum(unit.cost for unit in uncut.units)

    assert [unit for portion in portions for unit in portion.units] == list(uncut.units)
    assert all(portions)
    assert len(portions) <= min(parts, len(sizes))
    assert {(portion.topic, portion.claim) for portion in portions} <= {(TOPIC, "run.0")}
    for portion in portions:
        costs = [unit.cost for unit in portion.units]
        assert sum(costs) - max(costs) <= total / parts


@given(st.integers(1, 200), st.integers(1, 50))
def test_equal_objects_are_cut_into_as_many_as_are_wanted(count: int, parts: int) -> None:
    """Their numbers differ by one at most; with more parts than objects, each is a portion of its own."""
    lengths = [len(portion) for portion in _cut(whole([300] * count), parts)]
    assert len(lengths) == min(count, parts)
    assert max(lengths) - min(lengths) <= 1


def test_a_large_object_does_not_leave_crumbs() -> None:
    """What follows it is shared among the other portions."""
    assert [len(portion) for portion in _cut(whole([10**9, *[1000] * 90]), 10)] == [1, *[10] * 9]


async def test_a_large_topic_has_a_small_first_portion(ann: Process) -> None:
    """A query for five messages reads the first portion, and not a thousand messages."""
    await ann.queue.publish(TOPIC, numbered(MIN_UNITS_FOR_A_HEAD - 1))
    assert len(await ann.queue.portions(TOPIC)) == 1
    await ann.queue.publish(TOPIC, numbered(1))
    head, rest = await ann.queue.portions(TOPIC)
    assert (len(head), len(rest)) == (FIRST_UNITS_OF_TOPIC, MIN_UNITS_FOR_A_HEAD - FIRST_UNITS_OF_TOPIC)
    assert len(await ann.queue.portions(TOPIC, parts=1)) == 1


def test_without_a_number_as_many_as_they_are_worth() -> None:
    """Two thousand small messages are one portion, and so are twenty megabytes; more than two: a multiple of four."""
    assert len(_cut(whole([300] * 2000), None)) == 1
    assert len(_cut(whole([300] * 4000), None)) == 2
    assert len(_cut(whole([300] * 6000), None)) == 4
    assert len(_cut(whole([300] * 20_000), None)) == 12
    assert len(_cut(whole([MAX_PORTION_COST_BYTES] * 40), None)) == 40


def split(portion: Portion, most: int) -> list[Portion]:
    """Return it in parts of at most this many messages."""
    parts = []
    while portion.units:
        part, portion = portion.split_off(most)
        parts.append(part)
    return parts


def test_a_portion_is_read_in_parts() -> None:
    """In order; each is a portion like the whole, and none of large objects is more than memory has room for."""
    large = [MAX_PORTION_COST_BYTES // 2, MAX_PORTION_COST_BYTES // 4, 3 * MAX_PORTION_COST_BYTES, 1, 1]
    assert [len(part) for part in split(whole(large), 1000)] == [2, 1, 2]
    assert split(whole([]), 3) == []
    parts = split(whole([1] * 7), 3)
    assert [len(part) for part in parts] == [3, 3, 1]
    assert [unit.name for part in parts for unit in part.units] == [str(number) for number in range(7)]
    assert {part.claim for part in parts} == {"run.0"}


async def test_a_claim_that_lives_on_without_its_session_is_read(world: World, ann: Process, bob: Process) -> None:
    """Its run's janitor renews it: a reader is not a session."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=10 * TTL, session_ttl=TTL)
    await world.later(5 * TTL)
    assert len(await read(bob, await bob.queue.portions(reference_of(claim)))) == 2

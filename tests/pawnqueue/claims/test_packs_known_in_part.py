"""Claims of packs of which a process knows a part only: other messages, other leases, other outcomes."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from pawnqueue import LeaseLostError
from pawnqueue.domain import layout, share
from pawnqueue.domain import lease as leases
from tests.pawnqueue.claims.test_packs import drained
from tests.pawnqueue.claims.test_packs_apart import plant_bad_pack
from tests.pawnqueue.virtual import TOPIC, Died, Fault, numbers

if TYPE_CHECKING:
    from tests.pawnqueue.virtual import World

#: Of the payload of a message that a process with a small limit does not take.
LARGE = "x" * 700_000


@pytest.fixture
def world(packed_world: World) -> World:
    """A bucket with a topic that allows packs."""
    return packed_world


def plant_pack_with_large(world: World, prefix: str = "") -> None:
    """Plant a pack of three messages. The second one is large."""
    payloads = [{"n": number, "x": LARGE if number == 1 else ""} for number in range(3)]
    lines = [json.dumps({"id": f"{prefix}{each['n']}", "payload": each}).encode() for each in payloads]
    plant_bad_pack(world, lines)


async def test_only_what_was_given_is_acked(world: World) -> None:
    """⚑ §5.1: a message that was to be given back before the hand-out is not acked with its pack."""
    plant_pack_with_large(world)
    ann = await world.process()
    bob = await world.process(limits={"max_payload_bytes": 1000})
    claim = await ann.queue.claim(TOPIC, "c", max_messages=10, claim_id="run", ttl=600)
    fault = bob.client.inject("lost", "PUT", layout.claims(TOPIC) + "*", passed=1)
    again = await bob.queue.attach(claim.hand_over())  # and the store does not take what it decides of the large one
    assert fault.hits
    assert numbers(again) == [0, 2]
    bob.client.heal()
    settled = await bob.queue.ack(again)
    assert (settled.acked, settled.complete) == (["0", "2"], True)
    await bob.queue.aclose()
    await world.later(700)
    assert set(await drained(await world.process())) == {1}


async def test_what_could_not_be_read_is_not_acked_with_the_rest(world: World) -> None:
    """⚑ §4: without payloads, a line that this process cannot read may be the one that was named."""
    for prefix in ("a", "b"):
        plant_pack_with_large(world, prefix)
    ann = await world.process()
    bob = await world.process(limits={"max_payload_bytes": 1000})
    claim = await ann.queue.claim(TOPIC, "c", max_messages=10, claim_id="run", ttl=600)
    named, other = claim[1], claim[5]
    again = await bob.queue.attach(claim.hand_over(), payloads=False)
    bob.client.inject("denied", "GET", f"{TOPIC}/packs/*{layout.uuid_of(other.unit)}*")
    settled = await bob.queue.settle(again, bury={named.id: "bad"})
    assert len(settled.acked) == 2  # of the pack that could be read, what could be read
    assert len(settled.unknown) == 5
    assert named.id in settled.unknown
    await bob.queue.aclose()
    await world.later(700)
    assert 1 in await drained(await world.process())


async def test_leases_of_two_dead_attempts_are_not_adopted_together(world: World) -> None:
    """⚑ §4: one attempt died with a pack and another with a single message: a record of both could not be read."""
    unit_id = world.plant_pack(4)
    [uuid] = world.fill([json.dumps({"id": "s", "payload": {"n": 4}})])
    [name], [pack_name] = world.bucket.below("messages/"), world.bucket.below("packs/")
    who = {"consumer": "c", "claim": "run.0", "until": world.clock.server() + 60, "ttl": 60}
    shares = share.fresh(0b1111)
    world.bucket.plant(
        layout.lease(TOPIC, unit_id), leases.held_pack(unit_id, pack_name, shares, 0b1111, **who).encode()
    )
    world.bucket.plant(layout.lease(TOPIC, uuid), leases.held(uuid, name, deliveries=1, **who).encode())
    await world.later(3)
    bob = await world.process()
    claim = await bob.queue.claim(TOPIC, "c", max_messages=4, claim_id="run", ttl=600)
    assert set(world.bucket.record("run.0").members) == {layout.parse_entry(each.unit)[0] for each in claim}
    had = {message.payload["n"]: message.deliveries for message in claim}
    await bob.queue.ack(claim)
    await world.later(70)
    assert had | await drained(bob) == dict.fromkeys(range(5), 1)


@pytest.mark.parametrize("is_split", [False, True])
async def test_garbage_that_looks_done_holds_no_pack(world: World, is_split: bool) -> None:  # noqa: FBT001
    """⚑ §5.7: a lease of the size of one that is done is believed only when its body has been read."""
    unit_id = world.plant_pack(4)
    ann = await world.process()
    had: set[int] = set()
    if is_split:
        claim = await ann.queue.claim(TOPIC, "c", max_messages=2)
        had.update(numbers(claim))
        await ann.queue.ack(claim)
        unit_id = layout.slice_id(layout.uuid_of(unit_id), 2, 4)
    world.bucket.plant(layout.lease(TOPIC, unit_id), b" " * (512 + 48))
    for _ in range(6):
        await world.later(60)
        claim = await ann.queue.claim(TOPIC, "c", max_messages=2)
        had.update(numbers(claim))
        await ann.queue.ack(claim)
    assert had == {0, 1, 2, 3}


async def test_a_settlement_of_the_last_message_tells_what_is_unfinished(world: World) -> None:
    """What is decided of a pack, and not carried out, is in the settlement of each of its messages."""
    world.plant_pack(2)
    ann = await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=2)
    ann.client.inject("denied", "DELETE", f"{TOPIC}/packs/*")
    assert (await ann.queue.ack(claim, claim[0])).complete
    assert set((await ann.queue.ack(claim, claim[1])).unfinished) == {claim[1].id}
    ann.client.heal()


async def test_of_two_decisions_in_one_write_the_first_wins(world: World) -> None:
    """⚑ §4: also where the first concerns all of a pack, and the second one of its messages."""
    world.plant_pack(3)
    ann = await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=3)
    _, acked, buried = await asyncio.gather(
        ann.queue.ack(claim, claim[0]), ann.queue.ack(claim), ann.queue.bury(claim, claim[1], reason="late")
    )
    assert (acked.acked, acked.buried) == (claim.ids, [])
    assert (buried.acked, buried.buried) == ([claim[1].id], [])
    assert not world.bucket.below("dead-letter/")


async def test_a_claim_whose_pack_is_not_listed_is_lost(world: World) -> None:
    """⚑ §4: no process of ours writes such a record. Its holder stops."""
    world.plant_pack(3)
    ann = await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=3, claim_id="run")
    world.alter(claim.stem, members={})
    with pytest.raises(LeaseLostError):
        await ann.queue.renew(claim)


async def test_a_retry_finds_its_leases_among_finished_slices(world: World) -> None:
    """⚑ §4.1: leases of finished slices are newer, and are not read to look for those of a former attempt."""
    world.plant_pack(1000)
    ann, bob, cat = [await world.process() for _ in range(3)]
    ann.client.faults.append(Fault("dies", "PUT", layout.claims(TOPIC) + "*"))
    with pytest.raises(Died):
        await ann.queue.claim(TOPIC, "c", max_messages=10, claim_id="run", ttl=600)
    for _ in range(80):
        await bob.queue.ack(await bob.queue.claim(TOPIC, "other", max_messages=10))
        await world.later(1)
    claim = await cat.queue.claim(TOPIC, "c", max_messages=10, claim_id="run", ttl=600)
    assert numbers(claim) == list(range(10))


async def test_packs_of_newer_formats_make_batches_grow(world: World) -> None:
    """⚑ §5.7: packs that only newer consumers can read are bad like malformed ones."""
    for _ in range(20):
        plant_bad_pack(world, [b'{"v":9,"id":"x","payload":{}}'] * 2)
    world.plant_pack(1)
    ann = await world.process()
    while not (claim := await ann.queue.claim(TOPIC, "c", max_messages=2)):
        await world.later(1)
    assert numbers(claim) == [0]
    claims = {key for kind, key in ann.client.requests if kind == "PUT" and "/claims/" in key}
    assert len(claims) < 10


async def test_a_burial_ends_when_another_process_has_carried_it_out(world: World) -> None:
    """⚑ §5.4: letters that were redriven meanwhile are not created once more, but for a few that are under way."""
    world.plant_pack(300)
    ann, bob, cat = [await world.process() for _ in range(3)]
    claim = await ann.queue.claim(TOPIC, "c", max_messages=300, claim_id="run")
    ann.client.faults.append(Fault("dies", "PUT", f"{TOPIC}/dead-letter/*"))
    with pytest.raises(Died):
        await ann.queue.bury(claim, reason="bad")
    await world.later()
    letters_of_bob = 0

    async def overtaken(kind: str, key: str) -> None:
        nonlocal letters_of_bob
        if kind == "PUT" and "/dead-letter/" in key and not key.endswith(".reason.json"):
            letters_of_bob += 1
            if letters_of_bob == 100:
                await cat.queue.sweep(TOPIC)
                assert len((await cat.queue.redrive(TOPIC)).moved) == 300

    bob.client.meanwhile = overtaken
    await bob.queue.sweep(TOPIC)
    assert letters_of_bob >= 100
    again = [name for name in world.bucket.below("dead-letter/") if not name.endswith(".reason.json")]
    assert len(again) < 100


async def test_a_former_session_s_messages_are_known_by_their_ids(world: World) -> None:
    """§4: a process that settles them once more learns what was decided the first time, and settles the others."""
    world.plant_pack(3)
    ann, bob = await world.process(), await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=3, claim_id="run")
    await ann.queue.bury(claim, claim[0], reason="bad")
    again = await bob.queue.attach(claim.hand_over())
    settled = await bob.queue.ack(again, claim.ids)
    assert (settled.buried, settled.acked) == (claim.ids[:1], claim.ids[1:])


async def test_a_line_that_cannot_be_read_keeps_no_other_back(world: World) -> None:
    """⚑ §5.7: a message whose consumer died is delivered, although one of its pack is always given back unseen."""
    plant_bad_pack(world, [b'{"v":9,"id":"x","payload":{}}', b'{"id":"y","payload":{"n":1}}'])
    ann, bob = await world.process(), await world.process()
    assert numbers(await ann.queue.claim(TOPIC, "c", max_messages=10)) == [1]
    await world.later()
    had: list[int] = []
    for _ in range(10):
        had += numbers(await bob.queue.claim(TOPIC, "c", max_messages=10, ttl=900))
        await world.later(30)
    assert had == [1]


async def test_a_message_that_is_always_requeued_keeps_no_other_back(world: World) -> None:
    """⚑ §5.7: a message whose consumer died is delivered beside one that nobody ever finishes."""
    world.topic(packs=True, max_deliveries=None)
    world.plant_pack(2)
    ann, bob = await world.process(), await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=10)
    await ann.queue.requeue(claim, claim[0])
    await world.later()
    had: set[int] = set()
    for _ in range(4):
        claim = await bob.queue.claim(TOPIC, "c", max_messages=10)
        had.update(numbers(claim))
        await bob.queue.requeue(claim)
        await world.later(15)
    assert had == {0, 1}


async def test_a_pack_does_not_wait_for_a_line_that_cannot_be_read(world: World) -> None:
    """⚑ §5.6: a line of a newer format concerns itself alone. The others are delivered at once."""
    good = [json.dumps({"id": f"i{number}", "payload": {"n": number}}).encode() for number in range(1, 6)]
    plant_bad_pack(world, [b'{"v":9,"id":"x","payload":{}}', *good])
    ann = await world.process()
    had: list[int] = []
    for _ in range(3):
        claim = await ann.queue.claim(TOPIC, "c", max_messages=2)
        had += numbers(claim)
        await ann.queue.ack(claim)
    assert had == [1, 2, 3, 4, 5]
    await world.later(60)
    assert not await ann.queue.claim(TOPIC, "c", max_messages=2)
    assert len(world.bucket.below("packs/")) == 1

"""Which claims have a record: one listing, however many ids are asked for."""

from __future__ import annotations

import pytest

from pawnqueue.domain import layout
from pawnqueue.domain.claim_record import ClaimRecord
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered


def plant(world: World, *stems: str) -> None:
    """Put records there."""
    for stem in stems:
        claim_id, _, generation = stem.rpartition(".")
        record = ClaimRecord(claim_id=claim_id, generation=int(generation), state="closed")
        world.bucket.plant(layout.claim(TOPIC, stem), record.encode())


async def test_those_that_have_a_record_are_told(world: World, ann: Process, bob: Process) -> None:
    """Open or closed, of whichever generation; ids that begin alike are distinguished; strangers are no records."""
    await ann.queue.publish(TOPIC, numbered(3))
    await ann.queue.claim(TOPIC, "c", claim_id="open", max_messages=1)
    await ann.queue.ack(await ann.queue.claim(TOPIC, "c", claim_id="done", max_messages=1))
    plant(world, "run-1.0", "run.12", "run.x.0", "runs.3", "ab.7")
    world.bucket.plant(f"{TOPIC}/claims/notes.txt", "")
    world.bucket.plant(f"{TOPIC}/claims/old/gone.0.json", "")
    asked = ["open", "done", "run", "run-1", "ru", "runs", "a", "ab", "notes", "gone", "zz", "run.x", "-"]
    with bob.client.counting() as requests:
        known = await bob.queue.known_claims(TOPIC, iter(asked))
    assert known == {"open", "done", "run", "run-1", "run.x", "runs", "ab"}
    assert requests == {"LIST": 1}


@pytest.mark.parametrize("asked", [[], (), set()], ids=repr)
async def test_nothing_asked_is_nothing_listed(ann: Process, asked: list[str]) -> None:
    """No request is made."""
    with ann.client.counting() as requests:
        assert await ann.queue.known_claims(TOPIC, asked) == set()
    assert not requests


async def test_one_id_may_be_asked_for_as_it_is(world: World, ann: Process) -> None:
    """It is not taken for its letters."""
    plant(world, "run.0", "r.0")
    assert await ann.queue.known_claims(TOPIC, "run") == {"run"}


async def test_it_lists_from_the_first_to_the_last(world: World, ann: Process) -> None:
    """Pages before and behind are not looked at, and hundreds of ids cost what one costs."""
    plant(world, *(f"a-{number}.0" for number in range(2500)))
    plant(world, *(f"m-{number:04}.0" for number in range(1500)))
    plant(world, *(f"z-{number}.0" for number in range(2500)))
    asked = [f"m-{number:04}" for number in range(0, 3000, 5)]
    with ann.client.counting() as requests:
        known = await ann.queue.known_claims(TOPIC, asked)
    assert known == {f"m-{number:04}" for number in range(0, 1500, 5)}
    assert requests == {"LIST": 2}
    with ann.client.counting() as requests:
        assert await ann.queue.known_claims(TOPIC, ["m-0003", "nobody"]) == {"m-0003"}
    assert requests["LIST"] == 2
    with ann.client.counting() as requests:
        assert await ann.queue.known_claims(TOPIC, ["m-0003"]) == {"m-0003"}
    assert requests == {"LIST": 1}


async def test_a_claim_of_a_lost_record_is_not_known(world: World, ann: Process, bob: Process) -> None:
    """A process that died before its record was written has none: the next claim by the id adopts what it had won."""
    await ann.queue.publish(TOPIC, numbered(1))
    ann.client.inject("lost", "PUT", f"{TOPIC}/claims/*")
    with pytest.raises(Exception, match="lost its answer"):
        await ann.queue.claim(TOPIC, "c", claim_id="run")
    assert await bob.queue.known_claims(TOPIC, ["run"]) == set()

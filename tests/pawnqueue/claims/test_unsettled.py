"""A claim tells what of it is unsettled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pawnqueue import InvalidArgumentError
from tests.pawnqueue.virtual import TOPIC, numbered, numbers

if TYPE_CHECKING:
    from tests.pawnqueue.virtual import Process, World


async def test_what_has_no_decision_is_unsettled(ann: Process) -> None:
    """Acked, given back and buried messages are not."""
    await ann.queue.publish(TOPIC, numbered(4))
    claim = await ann.queue.claim(TOPIC, "c")
    assert numbers(claim.unsettled) == [0, 1, 2, 3]
    await ann.queue.ack(claim, claim[1])
    await ann.queue.requeue(claim, claim[3])
    await ann.queue.bury(claim, claim[0], reason="r")
    assert numbers(claim.unsettled) == [2]
    assert claim.unsettled_ids == [claim[2].id]
    await ann.queue.ack(claim)
    assert claim.unsettled == claim.unsettled_ids == []


async def test_messages_of_packs_are_told_one_by_one(packed_world: World) -> None:
    """Each by itself, also where the claim has a part of a pack."""
    ann = await packed_world.process()
    packed_world.plant_pack(6)
    claim = await ann.queue.claim(TOPIC, "c", max_messages=4)
    await ann.queue.ack(claim, claim[1])
    assert numbers(claim.unsettled) == [0, 2, 3]
    assert claim.unsettled_ids == [claim.ids[0], *claim.ids[2:]]
    await ann.queue.ack(claim)
    assert claim.unsettled == []


@pytest.mark.parametrize("packed", [False, True])
async def test_without_payloads_there_are_ids(packed_world: World, *, packed: bool) -> None:
    """They are those of .ids; the messages were not read."""
    ann, bob = await packed_world.process(), await packed_world.process()
    await ann.queue.publish(TOPIC, numbered(3), pack=packed)
    reference = await ann.queue.leave(await ann.queue.claim(TOPIC, "c"))
    claim = await bob.queue.attach(reference, payloads=False)
    await bob.queue.ack(claim, claim.ids[1])
    assert claim.unsettled_ids == [claim.ids[0], claim.ids[2]]
    with pytest.raises(InvalidArgumentError, match="without payloads"):
        assert claim.unsettled


async def test_a_claim_that_found_nothing_has_nothing_unsettled(ann: Process) -> None:
    """It has no messages."""
    claim = await ann.queue.claim(TOPIC, "c")
    assert claim.unsettled == claim.unsettled_ids == []

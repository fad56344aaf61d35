"""A claim's id may be used again when its record is gone: a sweep that was paused harms nothing of the new claim's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pawnqueue.domain import layout
from tests.pawnqueue.maintenance.swept import report
from tests.pawnqueue.virtual import TOPIC, Died, Process, World, numbered, numbers
from tools.kit.stores import Answer, CarryOut, Request

if TYPE_CHECKING:
    from pawnqueue.claims.claim import Claim


async def forgotten_and_claimed_again(world: World, process: Process) -> Claim:
    """Let somebody else sweep a claim away, which keeps no closed records, and claim anew by its id."""
    for _ in range(2):
        await process.queue.sweep(TOPIC)
        await world.later(2)
    assert not [name for name in world.bucket.below("claims/") if name.startswith("run.")]
    return await process.queue.claim(TOPIC, "d", claim_id="run", ttl=600)


async def test_a_sweep_that_was_paused_does_not_remove_a_new_claims_record(world: World) -> None:
    """It had read a closed record; when it wakes, another claim has the same key."""
    slow, quick = [await world.process(claims={"record_retention_seconds": 0}) for _ in range(2)]
    await slow.queue.publish(TOPIC, numbered(2))
    await slow.queue.ack(await slow.queue.claim(TOPIC, "c", claim_id="run", max_messages=1))
    await world.later(2)
    claims: list[Claim] = []

    async def pause(request: Request, carry_out: CarryOut) -> Answer:
        found = await carry_out()
        if (request.call, request.key) == ("get", layout.claim(TOPIC, "run.0")) and not claims:
            claims.append(await forgotten_and_claimed_again(world, quick))
            await world.later(10)
        return found

    slow.client.hook = pause
    assert await slow.queue.sweep(TOPIC) == report()
    assert world.bucket.record("run.0").state == "open"
    assert (await quick.queue.ack(claims[0])).complete


@pytest.mark.parametrize("decided", [False, True])
async def test_a_sweep_that_was_paused_does_not_release_a_new_claims_leases(world: World, *, decided: bool) -> None:
    """It had read a claim that has ended; when it wakes, the leases are those of another claim with the same id."""
    dead, slow, quick = [await world.process(claims={"record_retention_seconds": 0}) for _ in range(3)]
    await dead.queue.publish(TOPIC, numbered(1))
    claim = await dead.queue.claim(TOPIC, "c", claim_id="run")
    if decided:
        dead.client.inject("lost", "PUT", "*/leases/*")
        await dead.queue.nack(claim, requeue=True)
    dead.client.dead = True
    await world.later()
    claims: list[Claim] = []

    async def pause(kind: str, key: str) -> None:
        if kind == "GET" and key.startswith(layout.leases(TOPIC)) and not claims:
            claims.append(await forgotten_and_claimed_again(world, quick))

    slow.client.meanwhile = pause
    await slow.queue.sweep(TOPIC)
    slow.client.heal()
    assert numbers(claims[0]) == [0]
    assert not await slow.queue.claim(TOPIC, "e"), "it is held by the new claim"
    assert (await quick.queue.ack(claims[0])).complete


async def test_what_a_new_claim_has_settled_is_not_judged_by_what_was_listed_before_it(world: World) -> None:
    """A record is deleted and made anew between its listing and its reading, by one who died before the effects."""
    slow, quick = [await world.process(claims={"record_retention_seconds": 0}) for _ in range(2)]
    await slow.queue.publish(TOPIC, numbered(1))
    await slow.queue.ack(await slow.queue.claim(TOPIC, "c", claim_id="run"))
    await world.later(2)
    claims: list[Claim] = []

    async def pause(kind: str, key: str) -> None:
        if kind == "GET" and key == layout.claim(TOPIC, "run.0") and not claims:
            await quick.queue.publish(TOPIC, numbered(1, 1))
            claims.append(await forgotten_and_claimed_again(world, quick))
            quick.client.inject("dies", "DELETE", "*/messages/*")
            with pytest.raises(Died):
                await quick.queue.ack(claims[0])
            await world.later(700)

    slow.client.meanwhile = pause
    for _ in range(3):
        await slow.queue.sweep(TOPIC)
        await world.later(2)
    assert numbers(claims[0]) == [1]
    assert not await slow.queue.claim(TOPIC, "e"), "it was acked"
    assert world.bucket.below("messages/") == world.bucket.below("claims/") == []

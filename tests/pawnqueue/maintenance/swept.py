"""What there is to sweep: claims whose processes are gone, and what they have left halfway."""

from __future__ import annotations

from typing import Any

import pytest

from pawnqueue.catalog import letters
from pawnqueue.domain import layout
from pawnqueue.domain import lease as leases
from pawnqueue.domain.claim_record import ClaimRecord
from pawnqueue.maintenance import SweepReport, Verdict
from tests.pawnqueue.virtual import TOPIC, Died, World, numbered
from tests.support.clock import EPOCH

OTHER = "99999999-2222-4333-8444-555555555555"
UUID = "11111111-2222-4333-8444-555555555555"
RETENTION = 86_400.0
AN_HOUR = 3600.0


def report(**counts: Any) -> SweepReport:
    """A report that says only this."""
    return SweepReport(TOPIC, **counts)


def unnoted(world: World) -> dict[str, tuple[str, bytes]]:
    """Everything that is stored but the note that the topic was swept."""
    return {key: stored for key, stored in world.bucket.snapshot().items() if key != layout.swept(TOPIC)}


async def abandoned(world: World, **settled: int) -> None:
    """Leave a claim whose process died after it had decided some of its messages."""
    process = await world.process()
    await process.queue.publish(TOPIC, numbered(6))
    claim = await process.queue.claim(TOPIC, "c", max_messages=6, claim_id="left")
    process.client.inject("lost", "DELETE")
    process.client.inject("lost", "COPY")
    process.client.inject("lost", "PUT", "*/leases/*")
    ids = list(claim.ids)
    for how, count in settled.items():
        some, ids = ids[:count], ids[count:]
        if how == "acked":
            await process.queue.ack(claim, some)
        else:
            await process.queue.nack(claim, some, requeue=how == "released")
    process.client.dead = True


async def redrive_stopped(world: World) -> None:
    """Leave a redrive whose process died between its COPY and its DELETE."""
    process = await world.process()
    await process.queue.publish(TOPIC, numbered(1, 50))
    await process.queue.nack(await process.queue.claim(TOPIC, "c"))
    process.client.inject("dies", "DELETE", "*/dead-letter/*")
    with pytest.raises(Died):
        await process.queue.redrive(TOPIC)


async def acked_halfway(world: World) -> None:
    """Leave a claim whose messages are deleted and whose leases are not."""
    process = await world.process()
    await process.queue.publish(TOPIC, numbered(3))
    claim = await process.queue.claim(TOPIC, "c", claim_id="halfway")
    process.client.inject("dies", "DELETE", "*/leases/*")
    with pytest.raises(Died):
        await process.queue.ack(claim)


async def a_bit_of_everything(world: World) -> None:
    """Leave one of each thing that a janitor does."""
    await acked_halfway(world)
    await redrive_stopped(world)
    await abandoned(world, acked=2, buried=1, released=1)
    world.bucket.plant(layout.lease(TOPIC, UUID), "{}")
    world.bucket.plant(letters.reason_key_of(TOPIC, OTHER), '{"reason":"bad"}')
    world.bucket.plant("_probe/old.probe", "x")
    world.bucket.plant(f"{TOPIC}/messages/stranger", "x")
    await world.later(AN_HOUR + 100)


async def going(_: ClaimRecord) -> Verdict:
    """Say of every run that it goes on."""
    return "going"


async def ended(_: ClaimRecord) -> Verdict:
    """Say of every run that it has ended."""
    return "ended"


async def abandoned_under(world: World, *claim_ids: str) -> None:
    """Leave claims of two messages each, one of them acked and not deleted, whose process has died."""
    process = await world.process()
    await process.queue.publish(TOPIC, numbered(2 * len(claim_ids)))
    process.client.inject("denied", "DELETE", "*/messages/*")
    for claim_id in claim_ids:
        claim = await process.queue.claim(TOPIC, "c", max_messages=2, claim_id=claim_id)
        await process.queue.ack(claim, claim.ids[:1])
    process.client.dead = True


def orphan(world: World, uuid: str) -> str:
    """Plant a released lease without a message, and return its key."""
    made = leases.released(
        uuid, f"20260101T000000_000000-{uuid}.json", consumer="c", claim="", deliveries=1, until=0, now=EPOCH
    )
    key = layout.lease(TOPIC, uuid)
    world.bucket.plant(key, made.encode())
    return key

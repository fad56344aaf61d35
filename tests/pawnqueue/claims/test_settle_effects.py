"""Effects of a decision: requests that fail, processes that end at any step, and renewal meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from pawnqueue.catalog import letters
from tests.pawnqueue.claims.settled import claimed, settled_as
from tests.pawnqueue.virtual import OVERDUE, TOPIC, TTL, Died, Process, World

STEPS = {
    "ack": ["DELETE */messages/*", "DELETE */leases/*"],
    "bury": ["PUT */dead-letter/*", "COPY */dead-letter/*", "DELETE */messages/*", "DELETE */leases/*"],
    "release": ["PUT */leases/*"],
}
#: The last step, of a claim that has this id, or one that was made up.
LAST_STEP = {"run": "PUT */claims/*", None: "DELETE */claims/*"}


@pytest.mark.parametrize("finisher", ["consumer", "janitor"])
@pytest.mark.parametrize("when", ["dies", "dies after"])
@pytest.mark.parametrize(
    ("how", "step", "claim_id"),
    [(how, step, one) for how, steps in STEPS.items() for one, last in LAST_STEP.items() for step in [*steps, last]],
)
async def test_what_was_decided_is_finished_by_others(  # noqa: PLR0913, PLR0917 - a matrix
    world: World, ann: Process, bob: Process, how: str, step: str, claim_id: str | None, when: str, finisher: str
) -> None:
    """A process that ends at any step after its decision leaves work that the next consumer or janitor finishes."""
    claim = await claimed(ann, 3, claim_id=claim_id)
    kind, key = step.split()
    ann.client.inject(when, kind, key, passed=1 if kind == "PUT" and "claims" in key else 0)
    with pytest.raises(Died):
        await settled_as(how, ann, claim)
    await world.later()
    if finisher == "janitor":
        report = await bob.queue.sweep(TOPIC)
        assert not report.failures
    found = await bob.queue.claim(TOPIC, "d")
    if how == "release" and not found:  # the look that met the leases released them; the next one takes them
        found = await bob.queue.claim(TOPIC, "d")
    assert found.ids == (claim.ids if how == "release" else [])
    await bob.queue.ack(found)
    if finisher == "consumer":  # it does what a delivery needs; what is left is the janitor's
        await bob.queue.sweep(TOPIC)
    assert world.bucket.below("messages/") == world.bucket.below("leases/") == []
    assert len(world.bucket.below("dead-letter/")) == (6 if how == "bury" else 0)
    if claim_id is None and when == "dies after" and step.startswith("DELETE") and "messages" not in step:
        assert world.bucket.below("claims/") == []  # the record goes with the last leases
    else:
        assert world.bucket.record(f"{claim.claim_id}.0").state == "closed"


@pytest.mark.parametrize("effect", ["lost", "denied"])
async def test_a_failed_copy_never_leads_to_a_delete(world: World, ann: Process, bob: Process, effect: str) -> None:
    """A message whose dead letter could not be written stays where it is, until somebody buries it to the end."""
    claim = await claimed(ann, 3, ttl=300)
    ann.client.inject(effect, "COPY", letters.key_of(TOPIC, claim.ids[1]))
    assert (await ann.queue.nack(claim, reason="bad")).buried == claim.ids
    assert [name[-41:-5] for name in world.bucket.below("messages/")] == [claim.ids[1]]
    assert world.bucket.below("leases/") == [f"{claim.ids[1]}.lease"]
    assert claim.state == "open"
    await world.later(300 + OVERDUE)
    assert not await bob.queue.claim(TOPIC, "d")
    assert world.bucket.below("messages/") == []
    assert f"{claim.ids[1]}.json" in world.bucket.below("dead-letter/")


async def test_settling_again_finishes_what_failed(world: World, ann: Process) -> None:
    """Effects that failed are carried out when the claim is settled once more, and the record is closed."""
    claim = await claimed(ann, 3, ttl=300)
    ann.client.inject("lost", "DELETE", "*/messages/*")
    assert (await ann.queue.ack(claim)).acked == claim.ids
    assert len(world.bucket.below("messages/")) == len(world.bucket.below("leases/")) == 3
    assert claim.state == "open"
    ann.client.heal()
    assert (await ann.queue.ack(claim)).acked == claim.ids
    assert not world.bucket.below("messages/")
    assert claim.state == "closed"


async def test_errors_of_single_keys_are_repeated(world: World, ann: Process) -> None:
    """A key that a bulk delete did not delete is deleted by another one; its lease waits for it."""
    claim = await claimed(ann, 5)
    names = world.bucket.below("messages/")
    fault = ann.client.inject("lost", "DELETE", f"*{names[2]}", times=2)
    assert (await ann.queue.ack(claim)).complete
    assert fault.hits == 2
    deletes = [key for kind, key in ann.client.requests if kind == "DELETE" and TOPIC in key]
    assert [key.split("/")[1] for key in deletes] == ["messages", "messages", "messages", "leases"]
    assert world.bucket.below("messages/") == world.bucket.below("leases/") == []
    assert claim.state == "closed"


@pytest.mark.parametrize(
    ("effect", "kind", "key"),
    [
        ("denied", "DELETE", "*/messages/*"),
        ("lost", "DELETE", "*/leases/*"),
        ("denied", "DELETE", "*/leases/*"),
        ("denied", "PUT", "*/dead-letter/*"),
        ("denied", "PUT", "*/leases/*"),
        ("lost", "PUT", "*/leases/*"),
    ],
)
@pytest.mark.parametrize("how", ["ack", "bury", "release"])
async def test_an_effect_that_fails_is_no_failure_of_the_settlement(  # noqa: PLR0913, PLR0917 - a matrix
    ann: Process, caplog: pytest.LogCaptureFixture, how: str, effect: str, kind: str, key: str
) -> None:
    """What was decided is returned as decided; what could not be carried out is named, with the reason, and logged."""
    claim = await claimed(ann, 3, ttl=300)
    ann.client.inject(effect, kind, key)
    settlement = await settled_as(how, ann, claim)
    concerned = {"ack": "DELETE", "bury": "DELETE PUT dead", "release": "PUT leases"}[how]
    hit = kind in concerned and not (how == "bury" and kind == "PUT" and "leases" in key)
    hit = hit and not (how == "release" and "leases" not in key)
    assert set(settlement.unfinished) == (set(claim.ids) if hit else set())
    assert settlement.complete is not hit
    told = [record for record in caplog.records if record.levelname == "WARNING" and claim.claim_id in record.message]
    assert bool(told) is hit
    assert all("DELETE" in why or "PUT" in why for why in settlement.unfinished.values())
    assert dict(settlement) == dict.fromkeys(claim.ids, {"ack": "acked", "bury": "buried", "release": "released"}[how])


async def test_an_attached_claim_whose_leases_cannot_be_read_is_settled(world: World, ann: Process) -> None:
    """A release that must look at its leases and cannot has decided all the same."""
    first = await claimed(ann, 3, ttl=300)
    claim = await ann.queue.attach(first.hand_over(), ttl=300)
    ann.client.inject("lost", "GET", "*/leases/*")
    assert (await ann.queue.nack(claim, requeue=True)).released == first.ids
    ann.client.heal()
    assert (await ann.queue.ack(claim)).released == first.ids
    assert len(await ann.queue.claim(TOPIC, "d")) == 3


async def test_a_claim_is_renewed_while_effects_are_slow(world: World, ann: Process) -> None:
    """Deleting what was settled does not keep the rest of the claim from being renewed in time."""
    claim = await claimed(ann, 2)

    async def slow(kind: str, key: str) -> None:
        if kind == "DELETE":
            await world.clock.sleep(TTL * 2)

    ann.client.meanwhile = slow
    settling = asyncio.create_task(ann.queue.ack(claim, claim.ids[:1]))
    for _ in range(8):
        await world.later(TTL / 3)
        await ann.queue.renew(claim)
    assert (await settling).acked == claim.ids[:1]
    assert (await ann.queue.ack(claim)).complete
    assert claim.state == "closed"

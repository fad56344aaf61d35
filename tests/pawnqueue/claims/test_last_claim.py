"""The newest claim under an id is shown without anybody working for it."""

from __future__ import annotations

from tests.pawnqueue.virtual import TOPIC, Process, World, numbered


async def test_nothing_was_claimed(ann: Process) -> None:
    """An id without a record shows nothing, by one LIST."""
    with ann.client.counting() as requests:
        assert await ann.queue.last_claim(TOPIC, "run") is None
    assert requests == {"LIST": 1}


async def test_an_open_claim_is_shown_and_not_touched(world: World, ann: Process, bob: Process) -> None:
    """Whose it is, and that it is open, by a LIST and a GET; nothing is written."""
    await ann.queue.publish(TOPIC, numbered(2))
    await ann.queue.claim(TOPIC, "c", claim_id="run", owner="me")
    before = world.bucket.snapshot()
    with bob.client.counting() as requests:
        last = await bob.queue.last_claim(TOPIC, "run")
    assert last is not None
    assert (last.owner, last.is_open, last.reasons, last.reference.generation) == ("me", True, frozenset(), 0)
    assert requests == {"LIST": 1, "GET": 1}
    assert world.bucket.snapshot() == before


async def test_the_newest_generation_is_shown(ann: Process) -> None:
    """With why what it had was given back, and that nothing of it is open."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.ack(await ann.queue.claim(TOPIC, "c", claim_id="run", owner="me"))
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", owner="you")
    await ann.queue.nack(claim, requeue=True, reason="too early")
    last = await ann.queue.last_claim(TOPIC, "run")
    assert last is not None
    assert (last.owner, last.is_open, last.reference.generation) == ("you", False, 1)
    assert last.reasons == {"too early"}


async def test_its_reference_waits_for_the_session(ann: Process, bob: Process) -> None:
    """Attaching by it succeeds once the process that works for the claim has left it, and not before."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", owner="me")
    last = await bob.queue.last_claim(TOPIC, "run")
    assert last is not None
    await ann.queue.leave(claim)
    assert len(await bob.queue.attach(last.reference)) == 1


async def test_how_a_claim_has_ended_can_be_told(world: World, ann: Process, bob: Process) -> None:
    """A claim that others ended, and gave back, is distinguished from one that was settled: both are empty."""
    await ann.queue.publish(TOPIC, numbered(4))
    lost = await ann.queue.claim(TOPIC, "c", claim_id="lost", max_messages=2, session_ttl=5)
    done = await ann.queue.claim(TOPIC, "c", claim_id="done", max_messages=2)
    await ann.queue.ack(lost, lost.ids[:1])
    await ann.queue.ack(done)
    world.fence(await ann.queue.attach(lost.hand_over()))
    for _ in range(2):
        assert (await bob.queue.attach(lost.hand_over())).ended_unsettled
        assert not (await bob.queue.attach(done.hand_over())).ended_unsettled
        await world.later()
        await bob.queue.sweep(TOPIC)

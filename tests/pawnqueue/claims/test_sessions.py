"""Sessions: a claim is worked on by one process at a time, and found again by its id (§4)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pawnqueue import (
    ClaimBusyError,
    ClaimReference,
    InvalidArgumentError,
    LeaseLostError,
    Settlement,
    StoreError,
    TopicNotFoundError,
)
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from tests.pawnqueue.virtual import MARGIN, OVERDUE, TOPIC, TTL, Died, Process, World, numbered, numbers
from tests.support.claims import late, trusted_until


async def test_what_was_handed_over_is_attached_to_at_once(world: World, ann: Process, bob: Process) -> None:
    """The other process has the same messages in the same order without waiting, for a time of its own."""
    await ann.queue.publish(TOPIC, numbered(30))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=30)
    before = world.clock.elapsed()
    attached = await bob.queue.attach(claim.hand_over(), ttl=100)
    assert world.clock.elapsed() == before
    assert numbers(attached) == list(range(30))
    assert attached.ids == claim.ids
    assert (attached.claim_id, attached.generation, attached.owner) == (claim.claim_id, 0, "c")
    assert attached.session != claim.session
    assert abs(attached.seconds_left - (100 - MARGIN)) < 1
    assert (await bob.queue.ack(attached)).complete


async def test_who_handed_over_is_refused(world: World, ann: Process, bob: Process) -> None:
    """After the hand-over, and before anybody attached, the first process neither renews nor settles."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c")
    reference = claim.hand_over()
    for _ in range(2):
        with pytest.raises(LeaseLostError, match="handed over"):
            await ann.queue.renew(claim)
        assert await late(ann.queue.ack(claim)) == Settlement(lost=claim.ids)
        attached = await bob.queue.attach(reference)
        reference = attached.hand_over()
    assert len(world.bucket.below("messages/")) == 2


async def test_an_attached_claim_takes_the_session_from_who_still_works(
    world: World, ann: Process, bob: Process
) -> None:
    """A process that goes on working on what it handed over by a copy of the reference is refused by the record."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c")
    await bob.queue.attach({**claim.hand_over().to_dict()})
    claim._given_away = False
    with pytest.raises(LeaseLostError, match="another session"):
        await ann.queue.renew(claim)
    assert (await late(ann.queue.ack(claim))).lost == claim.ids


async def test_a_reference_goes_through_json() -> None:
    """It is a small dict of plain values, and comes back as what it was."""
    reference = ClaimReference(TOPIC, "manual__2026-01-01T00:00:00+00:00", 3, "s")
    text = json.dumps(reference.to_dict())
    assert ClaimReference.from_dict(json.loads(text)) == reference
    assert len(text) < 300


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"topic": TOPIC},
        {"topic": TOPIC, "claim_id": "a", "generation": "x", "session": "s"},
        {"topic": TOPIC, "claim_id": "a", "generation": None, "session": "s"},
        {"topic": TOPIC, "claim_id": "a/b", "generation": 0, "session": "s"},
        [1],
        None,
        "x",
    ],
    ids=str,
)
async def test_what_is_no_reference_is_refused(ann: Process, data: Any) -> None:  # noqa: ANN401 - anything
    """An InvalidArgumentError says what to pass, before any request."""
    with ann.client.counting() as requests, pytest.raises(InvalidArgumentError):
        await ann.queue.attach(data)
    assert not requests


async def test_a_reference_to_nowhere(ann: Process) -> None:
    """An unknown topic, and a claim that has no record, give different errors."""
    with pytest.raises(TopicNotFoundError):
        await ann.queue.attach(ClaimReference("nowhere", "a", 0, "s"))
    with pytest.raises(LeaseLostError, match="no record"):
        await ann.queue.attach(ClaimReference(TOPIC, "a", 0, "s"))


@pytest.mark.parametrize("claimed_for", [20.0, 600.0])
async def test_who_attaches_without_a_wish_keeps_the_time_that_was_claimed_for(
    world: World, ann: Process, bob: Process, claimed_for: float
) -> None:
    """The next renewal, by the new session or by a janitor, is neither shorter nor longer for it."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=claimed_for)
    await world.later(5)
    attached = await bob.queue.attach(claim.hand_over())
    record = world.bucket.record("run.0")
    assert attached.ttl == record.lasts == claimed_for
    assert record.until == record.session_until == pytest.approx(world.clock.server() + claimed_for, abs=1)
    given = await bob.queue.attach(attached.hand_over(), session_ttl=10)
    record = world.bucket.record("run.0")
    assert (given.session_ttl, record.lasts) == (10, claimed_for)


async def test_attaching_to_a_claim_that_has_ended(world: World, ann: Process, bob: Process) -> None:
    """Settled to the end, it is empty and tells what was decided; fenced, it is empty and expired."""
    ids = await ann.queue.publish(TOPIC, numbered(3))
    settled = await ann.queue.claim(TOPIC, "c", max_messages=2, claim_id="run")
    await ann.queue.ack(settled, ids[0])
    await ann.queue.nack(settled, ids[1])
    ended = await bob.queue.attach(settled.hand_over())
    assert (list(ended), ended.state, dict(ended.decided)) == ([], "closed", {ids[0]: "acked", ids[1]: "dead"})
    assert await bob.queue.ack(ended, ids[:2]) == Settlement(acked=[ids[0]], buried=[ids[1]])
    fenced = await ann.queue.claim(TOPIC, "c")
    await world.later()
    assert await bob.queue.claim(TOPIC, "d")
    ended = await bob.queue.attach(fenced.hand_over())
    assert (list(ended), ended.state, dict(ended.decided)) == ([], "expired", {})
    assert (await late(bob.queue.ack(ended, ids[2:]))).lost == ids[2:]
    with pytest.raises(LeaseLostError):
        await bob.queue.renew(ended)


async def test_a_claim_that_was_settled_and_then_handed_over(world: World, ann: Process, bob: Process) -> None:
    """If its id was made up, nobody could ask for it: it has no record any more, and attaching raises an error."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c")
    await ann.queue.ack(claim)
    with pytest.raises(LeaseLostError, match="no record"):
        await bob.queue.attach(claim.hand_over())
    assert world.bucket.below("claims/") == []


async def test_an_attached_claim_has_what_is_not_settled(ann: Process, bob: Process) -> None:
    """What was settled before the hand-over is not handed out again, and still told when it is settled again."""
    await ann.queue.publish(TOPIC, numbered(4))
    claim = await ann.queue.claim(TOPIC, "c")
    await ann.queue.ack(claim, claim.ids[:2])
    reference = claim.hand_over()
    attached = await bob.queue.attach(reference)
    assert attached.ids == claim.ids[2:]
    assert await bob.queue.ack(attached, claim.ids) == Settlement(acked=claim.ids)
    assert attached.state == "closed"
    # Its id was made up, but others know it by now.
    assert (await bob.queue.attach(reference)).decided == dict.fromkeys(claim.ids, "acked")


async def test_a_retry_waits_for_the_old_session_and_has_the_same_messages(
    world: World, ann: Process, bob: Process
) -> None:
    """The same claim id and owner: while the old session may live, it is busy; then the same messages, no others."""
    await ann.queue.publish(TOPIC, numbered(20))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", owner="dag")
    started = world.clock.elapsed()
    with pytest.raises(ClaimBusyError, match="'dag'") as busy:
        await bob.queue.claim(TOPIC, "c", claim_id="run", owner="dag", max_messages=5)
    assert world.clock.elapsed() == started  # at once: it was not told to wait
    assert TTL + MARGIN - 1 <= busy.value.retry_after <= OVERDUE
    assert (busy.value.owner, busy.value.claim_id) == ("dag", "run")
    again = await bob.queue.claim(TOPIC, "c", claim_id="run", owner="dag", max_messages=5, wait=100)
    assert TTL + MARGIN - 1 <= world.clock.elapsed() - started <= OVERDUE
    assert again.ids == claim.ids
    assert numbers(again) == list(range(10))
    assert again.generation == 0
    assert world.bucket.below("claims/") == ["run.0.json"]
    with pytest.raises(LeaseLostError):
        await ann.queue.renew(claim)
    assert (await late(ann.queue.ack(claim))).lost == claim.ids
    assert (await bob.queue.ack(again)).complete


async def test_a_retry_waits_as_long_as_the_old_session_renews(world: World, ann: Process, bob: Process) -> None:
    """It has nothing while the old session works, and in the end, an error or the messages; never both of them."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    started = world.clock.elapsed()
    async with ann.queue.keep_alive(claim):
        with pytest.raises(ClaimBusyError, match="worked for"):
            await bob.queue.claim(TOPIC, "c", claim_id="run", wait=3 * TTL)
        assert world.clock.elapsed() - started <= 3 * TTL + 1
        assert world.clock.elapsed() - started > TTL
        assert (await ann.queue.ack(claim)).complete


async def test_a_retry_after_the_settlement_is_told_what_was_decided(ann: Process, bob: Process) -> None:
    """The same id and owner never give a second batch: the claim is empty, and says what became of the first."""
    await ann.queue.publish(TOPIC, numbered(6))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", max_messages=3)
    await ann.queue.ack(claim, claim.ids[:1])
    await ann.queue.nack(claim, claim.ids[1:2])
    await ann.queue.nack(claim, claim.ids[2:], requeue=True)
    for wait in (0, 600):
        again = await bob.queue.claim(TOPIC, "c", claim_id="run", wait=wait)
        assert list(again) == []
        assert again.decided == dict(zip(claim.ids, ["acked", "dead", "released"], strict=True))


@pytest.mark.parametrize("wait", [0, 600])
@pytest.mark.parametrize("bad", ["malformed", "delivered too often", "gone"])
async def test_a_claim_of_which_nothing_was_handed_out_is_no_batch(
    world: World, ann: Process, bob: Process, bad: str, wait: float
) -> None:
    """Its owner comes in the next generation to the good ones behind the bad ones, and has no second batch of them."""
    if bad == "malformed":
        world.fill(["bad"] * 20)
    else:
        await ann.queue.publish(TOPIC, numbered(20, 100))
    heads = {units.key_of(TOPIC, name) for name in world.bucket.below("messages/")}
    if bad == "delivered too often":
        await ann.queue.update_topic(TOPIC, max_deliveries=1)
        ann, bob = await world.process(), await world.process()
        await ann.queue.nack(await ann.queue.claim(TOPIC, "d", max_messages=20), requeue=True)
    await world.later(1)
    await ann.queue.publish(TOPIC, numbered(20))

    def settle(kind: str, key: str) -> None:
        if kind == "GET" and key in heads:
            world.bucket.remove(key)

    ann.client.meanwhile = settle if bad == "gone" else None
    claims = [await ann.queue.claim(TOPIC, "c", claim_id="run", max_messages=10, wait=wait)]
    while not claims[-1]:
        assert (claims[-1].was_handed_out, claims[-1].state) == (False, "closed")
        claims.append(await ann.queue.claim(TOPIC, "c", claim_id="run", max_messages=10, wait=wait))
    assert len(claims) == 1
    batch = claims[-1]
    assert (batch.generation, numbers(batch), batch.was_handed_out) == (2, list(range(10)), True)
    assert len(world.bucket.below("dead-letter/")) == (0 if bad == "gone" else 40)
    await ann.queue.ack(batch)
    for process in (ann, bob):
        again = await process.queue.claim(TOPIC, "c", claim_id="run", wait=600)
        acked = [one for one, how in again.decided.items() if how == "acked"]
        assert (list(again), again.generation, sorted(acked)) == ([], 2, sorted(batch.ids))
    assert len(world.bucket.below("messages/")) == 10


async def test_a_claim_of_which_one_message_was_handed_out_is_a_batch(world: World, ann: Process, bob: Process) -> None:
    """Bad messages around it do not give its owner a second one, while it is worked on or after it was settled."""
    world.fill(["bad"] * 9)
    await world.later(1)
    await ann.queue.publish(TOPIC, numbered(1))
    await world.later(1)
    await ann.queue.publish(TOPIC, numbered(11, 1))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", max_messages=10)
    assert numbers(claim) == [0]
    again = await bob.queue.claim(TOPIC, "c", claim_id="run", max_messages=10, wait=OVERDUE)
    assert (numbers(again), again.generation) == ([0], 0)
    await bob.queue.nack(again)
    again = await ann.queue.claim(TOPIC, "c", claim_id="run", max_messages=10, wait=600)
    assert (list(again), again.generation, again.decided[claim.ids[0]]) == ([], 0, "dead")
    assert len(world.bucket.below("messages/")) == 11


async def test_a_claim_that_was_fenced_is_never_opened_again(world: World, ann: Process, bob: Process) -> None:
    """Its id gives its owner an empty claim at once, whether it waits or not."""
    await ann.queue.publish(TOPIC, numbered(2))
    await ann.queue.claim(TOPIC, "c", claim_id="run")
    await world.later()
    assert await bob.queue.claim(TOPIC, "d")
    before = world.clock.elapsed()
    again = await ann.queue.claim(TOPIC, "c", claim_id="run", wait=600)
    assert (list(again), again.state, again.decided) == ([], "expired", {})
    assert world.clock.elapsed() == before
    assert world.bucket.record("run.0").state == "expired"


async def test_another_owner_is_refused_while_the_claim_is_open(world: World, ann: Process, bob: Process) -> None:
    """One claim id belongs to one owner at a time, and the error says to whom and for how long."""
    await ann.queue.publish(TOPIC, numbered(20))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", owner="dag1")
    with pytest.raises(ClaimBusyError, match="behalf of 'dag1'"):
        await bob.queue.claim(TOPIC, "c", claim_id="run", owner="dag2")
    assert (await ann.queue.ack(claim)).complete


@pytest.mark.parametrize("ends", ["expires", "is settled"])
async def test_another_owner_begins_the_next_generation_after_the_end(
    world: World, ann: Process, bob: Process, ends: str
) -> None:
    """A cleared task has a batch of its own under the same id; the record before it stays as it was."""
    await ann.queue.publish(TOPIC, numbered(4))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", owner="try1", max_messages=2)
    if ends == "expires":
        await world.later()
    else:
        await ann.queue.ack(claim)
    following = await bob.queue.claim(TOPIC, "c", claim_id="run", owner="try2", max_messages=2)
    assert following.generation == 1
    assert numbers(following) == ([0, 1] if ends == "expires" else [2, 3])
    first, second = world.bucket.record("run.0"), world.bucket.record("run.1")
    assert (first.state, first.owner) == ("expired" if ends == "expires" else "closed", "try1")
    assert (second.state, second.owner) == ("open", "try2")
    if ends == "expires":
        assert (await late(ann.queue.ack(claim))).lost == claim.ids


async def test_generations_are_counted_as_numbers(world: World, ann: Process) -> None:
    """The eleventh generation follows the tenth, however keys are sorted, among ids that begin alike."""
    await ann.queue.publish(TOPIC, numbered(30))
    for other in ("run-1", "run.1", "run.x.2", "ru", "runs"):
        await ann.queue.claim(TOPIC, "c", claim_id=other, max_messages=1)
    for number in range(12):
        claim = await ann.queue.claim(TOPIC, "c", claim_id="run", owner=f"try{number}", max_messages=1)
        assert (claim.generation, len(claim)) == (number, 1)
        await ann.queue.ack(claim)


async def test_a_claim_that_died_before_its_record_is_adopted(world: World, ann: Process, bob: Process) -> None:
    """The same id finds the leases that name it, and has their messages, with the time that they have."""
    await ann.queue.publish(TOPIC, numbered(8))
    ann.client.inject("dies", "PUT", "*/claims/*")
    with pytest.raises(Died):
        await ann.queue.claim(TOPIC, "c", claim_id="run", max_messages=6, ttl=100)
    until = world.bucket.lease(world.bucket.below("leases/")[0].removesuffix(".lease")).until
    await world.later(20)
    again = await bob.queue.claim(TOPIC, "c", claim_id="run", max_messages=6, ttl=100)
    assert numbers(again) == [0, 1, 2, 3, 4, 5]
    assert [message.deliveries for message in again] == [1] * 6
    record = world.bucket.record("run.0")
    assert record.until == until
    assert abs(again.seconds_left - (80 - MARGIN)) < 2
    assert (await bob.queue.ack(again)).complete
    assert len(world.bucket.below("messages/")) == 2


async def test_a_claim_that_died_after_its_record_is_found(world: World, ann: Process, bob: Process) -> None:
    """The same id finds the record, and has its messages when the dead session's time is over."""
    await ann.queue.publish(TOPIC, numbered(3))
    ann.client.inject("dies after", "PUT", "*/claims/*")
    with pytest.raises(Died):
        await ann.queue.claim(TOPIC, "c", claim_id="run")
    assert numbers(await bob.queue.claim(TOPIC, "c", claim_id="run", wait=OVERDUE)) == [0, 1, 2]


async def test_leases_that_are_over_are_left_to_others(world: World, ann: Process, bob: Process) -> None:
    """What a dead attempt had won may be taken by anyone by now; it was handed to nobody, so it does not count."""
    await ann.queue.publish(TOPIC, numbered(3))
    ann.client.inject("dies", "PUT", "*/claims/*")
    with pytest.raises(Died):
        await ann.queue.claim(TOPIC, "c", claim_id="run")
    await world.later()
    seen: list[int] = []
    for _ in range(3):
        claim = await bob.queue.claim(TOPIC, "c", claim_id=f"run{len(seen)}")
        seen += [message.deliveries for message in claim]
    assert seen == [1, 1, 1]


async def test_a_session_whose_answer_was_lost_has_the_claim_all_the_same(ann: Process, bob: Process) -> None:
    """Attaching survives a lost answer of the store."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c")
    bob.client.inject("answer lost", "PUT", "*/claims/*", times=1)
    attached = await bob.queue.attach(claim.hand_over())
    assert attached.ids == claim.ids
    assert (await bob.queue.ack(attached)).complete


async def test_attaching_without_an_answer_is_an_error(ann: Process, bob: Process) -> None:
    """Nobody works on a claim of which it could not be found out whether it is theirs."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c")
    bob.client.inject("lost", "PUT", "*/claims/*")
    with pytest.raises(StoreError):
        await bob.queue.attach(claim.hand_over())


@pytest.mark.parametrize("way", ["renew", "attach", "claim again"])
async def test_no_claim_lives_past_its_greatest_age(world: World, way: str) -> None:
    """Whatever keeps it, a claim ends ``claims.max_claim_age_seconds`` after it was made, and others have it."""
    process, other = [await world.process(claims={"max_claim_age_seconds": 100}) for _ in range(2)]
    await process.queue.publish(TOPIC, numbered(1))
    started = world.clock.elapsed()
    claim = await process.queue.claim(TOPIC, "c", claim_id="run")
    with pytest.raises(LeaseLostError):  # noqa: PT012 - it has to come in time
        while world.clock.elapsed() < started + 300:
            if way == "renew":
                await world.later(TTL / 3)
                await process.queue.renew(claim)
            elif way == "attach":
                await world.later(TTL / 3)
                claim = await process.queue.attach(claim.hand_over())
            else:
                claim = await process.queue.claim(TOPIC, "c", claim_id="run", wait=OVERDUE)
            assert trusted_until(claim) <= started + 100
    assert world.clock.elapsed() < started + 150
    await world.later(100 + OVERDUE)
    assert await other.queue.claim(TOPIC, "d")
    assert layout.parse_claim(world.bucket.below("claims/")[0])


async def test_what_was_handed_out_and_vanished_is_a_batch(world: World, ann: Process, bob: Process) -> None:
    """Messages that a former session was given, and that are gone now, do not let their owner have others."""
    await ann.queue.publish(TOPIC, numbered(4))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", max_messages=2)
    assert numbers(claim) == [0, 1]
    world.bucket.remove(*(units.key_of(TOPIC, name) for name in world.bucket.below("messages/")[:2]))
    for _ in range(3):
        again = await bob.queue.claim(TOPIC, "c", claim_id="run", max_messages=2, wait=OVERDUE)
        assert (list(again), again.generation, again.was_handed_out) == ([], 0, True)


async def test_an_end_that_failed_is_made_up_for(world: World, ann: Process, bob: Process) -> None:
    """A named claim all of whose messages were bad, and whose burial fails, keeps its owner from nothing."""
    world.fill(["bad"] * 3)
    await ann.queue.publish(TOPIC, numbered(2))
    ann.client.inject("lost", "COPY")
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", max_messages=3, ttl=300)
    assert (numbers(claim), claim.generation) == ([0, 1], 1)
    ann.client.heal()
    await ann.queue.ack(claim)
    await world.later(300 + OVERDUE)
    await bob.queue.sweep(TOPIC)
    assert len(world.bucket.below("dead-letter/")) == 6
    assert world.bucket.record("run.0").state == "closed"


async def test_what_is_settled_is_not_lost(ann: Process) -> None:
    """A renewal of a claim that has nothing unsettled is quiet, also where the end of its record is not known."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    ann.client.inject("answer lost", "PUT", "*/claims/*", passed=1)
    ann.client.inject("lost", "GET", "*/claims/*")
    await ann.queue.ack(claim)
    ann.client.heal()
    await ann.queue.renew(claim)
    assert claim.lost is None

"""Speaking for owners: what is asked about an open claim, and what becomes of it by each answer."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

import pytest

from pawnqueue import OpenClaim
from pawnqueue.domain import layout
from pawnqueue.domain.claim_record import ClaimRecord
from pawnqueue.maintenance import Verdict
from pawnqueue.maintenance.sweep_claims import MAX_ANSWER_SECONDS
from pawnqueue.maintenance.sweep_report import ask_by_record
from tests.pawnqueue.maintenance.swept import UUID, abandoned, ended, going, orphan, report, unnoted
from tests.pawnqueue.virtual import OVERDUE, TOPIC, TTL, Process, World, numbered, numbers
from tests.support.claims import late
from tests.support.clock import VirtualClock

if TYPE_CHECKING:
    from pawnqueue.claims.claim import Claim


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("verdict", ["going", "ended", None])
async def test_the_janitor_speaks_for_owners(
    world: World, ann: Process, bob: Process, verdict: Verdict | None, *, dry_run: bool
) -> None:
    """A run that goes on is renewed, one that has ended is fenced, and of what is not known nothing is changed."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.claim(TOPIC, "c", claim_id="run", owner="dag")
    await world.later(20)
    asked: list[str] = []

    async def ask(record: ClaimRecord) -> Verdict | None:
        asked.append(record.owner)
        return verdict

    before = unnoted(world)
    result = await bob.queue.sweep(TOPIC, ask=ask, dry_run=dry_run)
    assert asked == ["dag"]
    counts = {"going": {"renewed_claims": 1}, "ended": {"fenced_claims": 1}, None: {}}[verdict]
    assert result == report(dry_run=dry_run, **counts)
    record = world.bucket.record("run.0")
    if dry_run or verdict is None:
        assert unnoted(world) == before
    elif verdict == "going":
        assert record.state == "open"
        assert record.until == pytest.approx(world.clock.server() + TTL, abs=1)
    else:
        assert record.state == "expired"


async def claims_of(process: Process, count: int) -> list[Claim]:
    """Claim messages, each by a claim of its own: run-0, run-1 and so on."""
    await process.queue.publish(TOPIC, numbered(count))
    return [
        await process.queue.claim(TOPIC, "c", max_messages=1, claim_id=f"run-{number}", owner=f"dag-{number}")
        for number in range(count)
    ]


async def test_a_question_that_fails_concerns_its_claim(
    world: World, ann: Process, bob: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are asked about, renewed and ended; it is left alone, reported and logged."""
    await claims_of(ann, 3)

    async def ask(record: ClaimRecord) -> Verdict:
        if record.owner == "dag-1":
            raise ZeroDivisionError("no such dag")
        return "ended" if record.owner == "dag-2" else "going"

    await world.later(10)
    before = world.bucket.body(layout.claim(TOPIC, "run-1.0"))
    with caplog.at_level(logging.WARNING):
        report_ = await bob.queue.sweep(TOPIC, ask=ask)
    assert (report_.renewed_claims, report_.fenced_claims) == (1, 1)
    assert world.bucket.body(layout.claim(TOPIC, "run-1.0")) == before
    [failure] = report_.failures
    assert failure.startswith(f"{TOPIC}/claims/run-1.0.json: ")
    assert "ZeroDivisionError: no such dag" in failure
    assert "no such dag" in caplog.text


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_question_that_is_never_answered_concerns_its_claim(
    world: World, ann: Process, bob: Process, *, stubborn: bool
) -> None:
    """It is waited for a minute; the others are asked about, the rest is swept, and the report says what was not."""
    await claims_of(ann, 3)
    orphan(world, UUID)

    async def ask(record: ClaimRecord) -> Verdict:
        try:
            if record.owner == "dag-1":
                await world.clock.sleep(10_000)
        except asyncio.CancelledError:
            if not stubborn:
                raise
        return "ended" if record.owner == "dag-2" else "going"

    before = world.bucket.body(layout.claim(TOPIC, "run-1.0"))
    started = world.clock.elapsed()
    await world.later(10)
    report_ = await bob.queue.sweep(TOPIC, ask=ask)
    assert world.clock.elapsed() - started == pytest.approx(70, abs=5)
    assert (report_.renewed_claims, report_.fenced_claims, report_.removed_leases) == (1, 2, 1)
    [failure] = report_.failures
    assert failure == f"{TOPIC}/claims/run-1.0.json: the question about its owner was not answered within 60 seconds"
    assert world.bucket.body(layout.claim(TOPIC, "run-1.0")) != before, "meanwhile it was over, and nobody renewed it"


async def test_the_wait_for_a_turn_is_no_part_of_an_answers_time() -> None:
    """A function that blocks is asked about one claim at a time; a slow answer takes no time from the next one's."""
    clock = VirtualClock(by_hand=True)
    answered = threading.Semaphore(0)

    def ask(_: OpenClaim) -> Verdict:
        answered.acquire(timeout=10)
        return "going"

    by_record = ask_by_record(TOPIC, ask)
    assert by_record is not None
    answers = [asyncio.ensure_future(by_record(ClaimRecord(claim_id=f"{n}"), clock, 60.0)) for n in range(3)]
    for number, answer in enumerate(answers, 1):
        await clock.fallen_asleep.wait()
        clock.fallen_asleep.clear()
        assert clock.slept == [60.0] * number
        answered.release()
        assert await answer == "going"


async def test_nobody_is_asked_about_behind_an_answer_that_does_not_come(
    world: World, ann: Process, bob: Process
) -> None:
    """One claim waits for its minute, and the sweep ends; the next sweep asks anew."""
    await claims_of(ann, 3)
    answers = threading.Event()

    def ask(_: OpenClaim) -> Verdict:
        answers.wait(10)
        return "going"

    await world.later(10)
    started = world.clock.elapsed()
    report_ = await bob.queue.sweep(TOPIC, ask=ask)
    answers.set()
    assert world.clock.elapsed() - started == pytest.approx(MAX_ANSWER_SECONDS, abs=5)
    assert sorted(failure.partition(": ")[2] for failure in report_.failures) == [
        *["its owner was not asked about, as an earlier question has no answer yet"] * 2,
        "the question about its owner was not answered within 60 seconds",
    ]


@pytest.mark.parametrize(("seconds", "renewed"), [(10, 1), (TTL - 1, 1), (TTL, 0), (OVERDUE, 0)])
async def test_a_slow_answer_renews_from_when_it_came(
    world: World, ann: Process, bob: Process, seconds: float, renewed: int
) -> None:
    """Not from when it was asked for; and what was over meanwhile is not renewed, but ended if anybody may take it."""
    await claims_of(ann, 1)
    created = world.bucket.record("run-0.0").created_at

    async def ask(_: ClaimRecord) -> Verdict:
        await world.clock.sleep(seconds)
        return "going"

    report_ = await bob.queue.sweep(TOPIC, ask=ask)
    assert report_.renewed_claims == renewed
    record = world.bucket.record("run-0.0")
    if renewed:
        assert record.until == pytest.approx(created + seconds + TTL, abs=1)
    else:
        assert record.until == pytest.approx(created + TTL)
        assert record.state == ("closed" if seconds == OVERDUE else "open")


async def test_every_open_claim_is_asked_about(world: World, bob: Process) -> None:
    """The ten thousand and first as well, and not too many at a time."""
    until = world.clock.server() + 1000
    for number in range(10_050):
        record = ClaimRecord(claim_id=f"{number:05d}", owner="dag", until=until, ttl=1000, created_at=until - 1000)
        world.bucket.plant(layout.claim(TOPIC, record.stem), record.encode())
    asked: set[str] = set()
    busy, most = 0, 0

    async def ask(record: ClaimRecord) -> None:
        nonlocal busy, most
        busy, most = busy + 1, max(most, busy + 1)
        await asyncio.sleep(0)
        busy -= 1
        asked.add(record.claim_id)

    assert await bob.queue.sweep(TOPIC, ask=ask) == report()
    assert len(asked) == 10_050
    assert most <= bob.queue._context.at_once


async def test_going_renews_the_claims_time_and_not_its_sessions(world: World, ann: Process, bob: Process) -> None:
    """A claim lives as long as its run; a retry that takes it up waits only until its dead process is not trusted."""
    await claims_of(ann, 1)
    session_until = world.clock.server() + 12
    world.alter("run-0.0", session_until=session_until)
    for _ in range(5):
        await world.later(TTL / 2)
        assert await bob.queue.sweep(TOPIC, ask=going) == report(renewed_claims=1)
    record = world.bucket.record("run-0.0")
    assert record.session_until == record.session_end == session_until
    assert record.until == record.free_at == pytest.approx(world.clock.server() + TTL, abs=1)


@pytest.mark.parametrize(("lasts", "expected"), [(0.0, TTL), (100.0, 100.0)])
async def test_going_gives_what_a_renewal_gives(
    world: World, ann: Process, bob: Process, lasts: float, expected: float
) -> None:
    """``lasts``, where the record says so; and LIST tells of it what the record does."""
    await claims_of(ann, 1)
    world.alter("run-0.0", lasts=lasts)
    await world.later(5)
    for _ in range(2):
        assert await bob.queue.sweep(TOPIC, ask=going) == report(renewed_claims=1)
        record = world.bucket.record("run-0.0")
        assert record.until == pytest.approx(world.clock.server() + expected, abs=1)
        assert (record.ttl, record.lasts) == (pytest.approx(expected), expected)
        await world.later(3)


async def test_going_never_shortens_a_claim_and_keeps_to_its_greatest_age(
    world: World, ann: Process, bob: Process
) -> None:
    """It has more time than a renewal would give it, or as much as it may ever have: nothing is written."""
    await claims_of(ann, 2)
    now = world.clock.server()
    world.alter("run-0.0", until=now + 500)
    world.alter("run-1.0", created_at=now - 86_400 + 20)
    before = unnoted(world)
    assert await bob.queue.sweep(TOPIC, ask=going) == report()
    assert unnoted(world) == before


async def test_a_claim_whose_run_has_ended_is_given_back_after_its_sessions_time(
    world: World, ann: Process, bob: Process
) -> None:
    """Not after its leases' time, nor after the claim's: the next sweep opens them to whoever comes, and counts."""
    await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=1200)
    world.alter("run.0", session_until=world.clock.server() + 150)
    await world.later(100)
    assert await bob.queue.sweep(TOPIC, ask=ended) == report(fenced_claims=1)
    assert await bob.queue.sweep(TOPIC) == report(), "its process may be alive, and know nothing yet"
    await world.later(45)
    assert await bob.queue.sweep(TOPIC) == report()
    assert not await bob.queue.claim(TOPIC, "d")
    await world.later(10)
    assert await bob.queue.sweep(TOPIC) == report(given_back=3, closed_claims=1)
    taken = await bob.queue.claim(TOPIC, "d")
    assert [message.deliveries for message in taken] == [2, 2, 2]
    result = await late(ann.queue.ack(claim))
    assert (result.lost, result.complete) == (claim.ids, False), "it was too late, and the result says so"
    assert (await bob.queue.ack(taken)).complete


async def test_what_was_given_back_was_not_decided_by_its_owner(world: World, ann: Process, bob: Process) -> None:
    """A retry by the same id gets what its predecessor had decided, and nothing of what was taken from it."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    await ann.queue.ack(claim, claim.ids[:1])
    await world.later()
    assert (await bob.queue.sweep(TOPIC)).given_back == 1
    again = await bob.queue.claim(TOPIC, "c", claim_id="run")
    assert (list(again), again.was_handed_out, dict(again.decided)) == ([], True, {claim.ids[0]: "acked"})
    assert (await late(bob.queue.ack(again, claim.ids))).lost == claim.ids[1:]


@pytest.mark.parametrize("step", range(24))
@pytest.mark.parametrize("who", ["a consumer", "a janitor"])
async def test_giving_back_beside_others_gives_each_message_to_one(
    world: World, ann: Process, bob: Process, step: int, who: str
) -> None:
    """Whichever request of a sweep a consumer or another janitor comes before: nobody gets what another one has."""
    await abandoned(world, acked=1, released=1)
    await world.later()
    taken: list[int] = []
    requests = 0

    async def meddle(_kind: str, _key: str) -> None:
        nonlocal requests
        requests += 1
        if requests == step + 1 and who == "a consumer":
            taken.extend(numbers(await bob.queue.claim(TOPIC, "d", max_messages=3)))
        elif requests == step + 1:
            await bob.queue.sweep(TOPIC)

    ann.client.meanwhile = meddle
    assert not (await ann.queue.sweep(TOPIC)).failures
    ann.client.heal()
    assert not (await ann.queue.sweep(TOPIC)).failures
    taken += numbers(await bob.queue.claim(TOPIC, "d"))
    assert sorted(taken) == [1, 2, 3, 4, 5]
    assert not await ann.queue.claim(TOPIC, "e")
    assert world.bucket.record("left.0").state == "closed"

"""The completed log: each acked message once, by whom and when, whichever process finishes its claim."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import pytest
import zstandard

from pawnqueue import CompletedMessage, ConfigError, InvalidArgumentError, events
from pawnqueue.domain import completed, layout
from pawnqueue.stores.port import Outcome
from tests.pawnqueue.virtual import OVERDUE, TOPIC, Died, Effect, Process, World, numbered

DAY = 86_400.0
MARKER = layout.topic_marker(TOPIC)


async def switch(process: Process, *, log: Any = True) -> None:  # noqa: ANN401 - as users give it
    """Set the topic's log."""
    await process.queue.update_topic(TOPIC, completed=log)


async def ack(process: Process, count: int = 1, *, pack: bool = False, **options: Any) -> list[str]:
    """Publish, claim and ack messages."""
    ids = await process.queue.publish(TOPIC, numbered(count), pack=pack)
    claim = await process.queue.claim(TOPIC, "billing", max_messages=count, **options)
    await process.queue.ack(claim)
    return list(ids)


async def logged(process: Process) -> list[str]:
    """The ids in the log."""
    return [each.id for each in await process.queue.completed(TOPIC, max_messages=1000)]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("strategy", ["conditional_write", "csprng_verify"])
async def test_what_was_acked_by_whom_and_when(strategy: str, *, pack: bool, named: bool) -> None:
    """Of messages that were acked, requeued and buried, the log has the first, with what its claim knew of them."""
    async with World(strategy) as world:
        ann = await world.process()
        await ann.queue.update_topic(TOPIC, packs=True, completed=True)
        ids = list(await ann.queue.publish(TOPIC, numbered(4), pack=pack))
        await world.later(20)
        options = {"claim_id": "run-1", "owner": "dag/run"} if named else {}
        claim = await ann.queue.claim(TOPIC, "billing", max_messages=4, **options)
        await ann.queue.ack(claim, ids[0])
        assert await logged(ann) == []  # the claim goes on
        await ann.queue.settle(claim, requeue={ids[1]: "again"}, bury={ids[2]: "bad"})
        page = await ann.queue.completed(TOPIC)
        assert [each.id for each in page] == [ids[0], ids[3]]
        first: CompletedMessage = page[0]
        assert (first.topic, first.consumer, first.claim, first.deliveries) == (TOPIC, "billing", claim.stem, 1)
        assert first.owner == ("dag/run" if named else "billing")
        assert first.published_at is not None
        assert first.published_at < first.claimed_at <= first.completed_at
        assert (first.payload, page.next, page.faults) == (None, None, {})
        assert len(world.bucket.below("completed/")) == 1


@pytest.mark.parametrize("pack", [False, True])
async def test_payloads_only_if_asked_for(world: World, ann: Process, *, pack: bool) -> None:
    """With ``payloads`` the log has them, of single messages and of packs."""
    await ann.queue.update_topic(TOPIC, packs=True, completed={"payloads": True})
    await ack(ann, 3, pack=pack)
    assert [each.payload for each in await ann.queue.completed(TOPIC)] == numbered(3)


async def test_what_it_costs(world: World, ann: Process) -> None:
    """Nothing where the log is off; and one PUT a claim where it is on."""
    await ack(ann)
    with ann.client.counting() as off:
        await ack(ann, 3)
    assert world.bucket.below("completed/") == []
    await switch(ann)
    await ack(ann)
    with ann.client.counting() as on:
        await ack(ann, 3)
    assert {kind: on[kind] - off[kind] for kind in on if on[kind] != off[kind]} == {"PUT": 1}
    with ann.client.counting() as sweeping:
        await ann.queue.sweep(TOPIC)
    await ann.queue.create_topic("other")
    with ann.client.counting() as without:
        await ann.queue.sweep("other")
    assert sweeping["LIST"] - without["LIST"] == 1


@pytest.mark.parametrize("effect", ["dies", "dies after"])
@pytest.mark.parametrize("key", ["*/completed/*", "*/messages/*", "*/leases/*"])
async def test_a_crash_loses_no_message_and_logs_it_once(
    world: World, ann: Process, bob: Process, effect: Effect, key: str
) -> None:
    """Wherever the process that acks dies, nothing is delivered again, and the log has each message once in the end."""
    await switch(ann)
    ids = await ack(ann, 2, claim_id="first")
    more = list(await ann.queue.publish(TOPIC, numbered(3)))
    claim = await ann.queue.claim(TOPIC, "billing", max_messages=3, claim_id="second")
    ann.client.inject(effect, "PUT" if "completed" in key else "DELETE", key)
    with pytest.raises(Died):
        await ann.queue.ack(claim)
    await world.later(OVERDUE + 60)
    assert not await bob.queue.claim(TOPIC, "other", max_messages=10)
    await bob.queue.sweep(TOPIC)
    await world.later(60)
    await bob.queue.sweep(TOPIC)
    assert sorted(await logged(bob)) == sorted([*ids, *more])
    assert world.bucket.below("messages/") == []


async def test_what_a_dead_process_has_acked_of_its_claim(world: World, ann: Process, bob: Process) -> None:
    """A claim that ended with some of it acked is logged by the janitor that gives back the rest."""
    await switch(ann)
    ids = list(await ann.queue.publish(TOPIC, numbered(3)))
    claim = await ann.queue.claim(TOPIC, "billing", max_messages=3)
    await ann.queue.ack(claim, ids[1])
    ann.client.dead = True
    await world.later(OVERDUE + 60)
    await bob.queue.sweep(TOPIC)
    assert await logged(bob) == [ids[1]]


async def test_a_log_that_cannot_be_written_stops_nothing(world: World, ann: Process) -> None:
    """The messages are acked, the entry is missing, and an event says so."""
    await switch(ann)
    told: list[events.Event] = []
    ann.queue._context.events._listener = told.append
    ann.client.inject("denied", "PUT", "*/completed/*")
    await ack(ann, 2)
    assert (world.bucket.below("messages/"), world.bucket.below("claims/")) == ([], [])
    [missing] = [each for each in told if isinstance(each, events.CompletedUnlogged)]
    assert missing.messages == 2


@pytest.mark.parametrize("strategy", ["conditional_write", "csprng_verify"])
@pytest.mark.parametrize("hangs", [2.0, 3.5, 40.0, 1000.0])
async def test_an_ack_waits_three_seconds_for_its_log(
    monkeypatch: pytest.MonkeyPatch, strategy: str, hangs: float
) -> None:
    """Then it goes on without, and an event says so. A PUT that lands later is the entry, once."""
    async with World(strategy) as world:
        ann = await world.process()
        await switch(ann)
        ids = list(await ann.queue.publish(TOPIC, numbered(3)))
        claim = await ann.queue.claim(TOPIC, "billing", max_messages=3)
        told: list[events.Event] = []
        ann.queue._context.events._listener = told.append
        put, sent = ann.client.put, []

        async def late(key: str, body: bytes, **options: Any) -> Outcome:
            await world.clock.sleep(hangs)
            return await put(key, body, **options)

        def put_late(key: str, body: bytes, **options: Any) -> Awaitable[Outcome]:
            if "/completed/" not in key:
                return put(key, body, **options)
            sent.append(asyncio.ensure_future(late(key, body, **options)))
            return asyncio.shield(sent[-1])  # the store has it, whatever becomes of the caller

        monkeypatch.setattr(ann.client, "put", put_late)
        began = world.clock.elapsed()
        await ann.queue.ack(claim)
        assert world.clock.elapsed() - began < 4
        missing = [each.messages for each in told if isinstance(each, events.CompletedUnlogged)]
        assert (missing, await logged(ann)) == (([], ids) if hangs < 3 else ([3], []))
        assert world.bucket.below("messages/") == []
        await asyncio.gather(*sent)
        await ann.queue.sweep(TOPIC)
        assert await logged(ann) == ids


async def test_pages_go_from_the_latest_claims_to_the_first(world: World, ann: Process) -> None:
    """A page may end within a claim, and the next one goes on there."""
    await switch(ann)
    claims = []
    for count in (1, 3, 2):
        claims.append(await ack(ann, count))
        await world.later(10)
    expected = [one for ids in reversed(claims) for one in ids]
    for most in (1, 2, 3, 5, 6, 50):
        found, after = [], None
        for _ in range(20):
            page = await ann.queue.completed(TOPIC, max_messages=most, after=after)
            assert len(page) <= most
            found += [each.id for each in page]
            after = page.next
            if after is None:
                break
        assert found == expected
    for wrong in ("x", "x#1", 5, f"{world.bucket.below('completed/')[0]}#x"):
        with pytest.raises(InvalidArgumentError):
            await ann.queue.completed(TOPIC, after=wrong)


async def test_a_sweep_keeps_the_number_and_the_age(world: World, ann: Process) -> None:
    """What newer claims have made too many goes, and what is too old."""
    await switch(ann, log={"max_count": 3, "max_age_seconds": DAY})
    claims = []
    for count in (2, 2, 2):
        claims.append(await ack(ann, count))
        await world.later(10)
    assert (await ann.queue.sweep(TOPIC, dry_run=True)).removed_completed == 2
    assert len(await logged(ann)) == 6
    assert (await ann.queue.sweep(TOPIC)).removed_completed == 2
    assert await logged(ann) == [*claims[2], *claims[1]]
    await world.later(DAY + 10)
    last = await ack(ann)
    assert (await ann.queue.sweep(TOPIC)).removed_completed == 4
    assert await logged(ann) == last


async def test_it_is_switched_on_and_off_on_a_live_topic(world: World, ann: Process, bob: Process) -> None:
    """Claims from then on are logged, or are not; what is logged stays until its limits remove it."""
    first = await ack(ann)
    await switch(ann)
    await world.later(61)
    early = await ann.queue.claim(TOPIC, "billing", claim_id="early")
    assert not early
    second = await ack(ann)
    ids = list(await ann.queue.publish(TOPIC, numbered(1)))
    open_claim = await ann.queue.claim(TOPIC, "billing")
    for off in (False, None):
        await switch(ann, log=off)
    await world.later(5)
    await ann.queue.renew(open_claim)
    await ann.queue.ack(open_claim)  # it was claimed while the log was on
    await ack(ann)
    assert sorted(await logged(bob)) == sorted([*second, *ids])
    assert first[0] not in await logged(bob)
    settings = (await ann.queue.topic(TOPIC)).settings.completed
    assert settings is not None
    assert not settings.is_on
    await world.later(8 * DAY)
    assert (await ann.queue.sweep(TOPIC)).removed_completed == 2
    await switch(ann, log={"max_count": 7})
    await switch(ann)
    settings = (await ann.queue.topic(TOPIC)).settings.completed
    assert settings is not None
    assert (settings.is_on, settings.max_count) == (True, 7)


async def test_a_topic_that_never_had_one_is_stored_as_before(world: World, ann: Process) -> None:
    """Neither its marker nor the records of its claims say anything of a log."""
    await switch(ann, log=False)
    assert "completed" not in json.loads(world.bucket.body(MARKER))["settings"]
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.claim(TOPIC, "c", claim_id="one")
    assert "completed" not in json.loads(world.bucket.body(layout.claim(TOPIC, "one.0")))


async def test_a_deleted_topic_leaves_no_log(world: World, ann: Process) -> None:
    """A log does not keep a topic from being deleted, and goes with it."""
    await switch(ann)
    await ack(ann)
    await ann.queue.delete_topic(TOPIC)
    assert world.bucket.below("") == [layout.BUCKET_RECORD]


def garbage() -> dict[str, bytes]:
    """Bodies that are no part of a log."""
    head = b'{"claim":"c.0","claimed_at":1,"completed_at":1,"consumer":"c","owner":"c","v":1}\n'
    compress = zstandard.ZstdCompressor().compress
    return {
        "empty": b"",
        "no zstd": b"x" * 100,
        "no lines": compress(b"\n"),
        "no head": compress(b"[]\n"),
        "a bad time": compress(head.replace(b'"claimed_at":1', b'"claimed_at":1e300')),
        "no time": compress(head.replace(b'"claimed_at":1', b'"claimed_at":NaN')),
        "a bad entry": compress(head + b'{"id":5}\n'),
        "a list": compress(head + b"[1]\n"),
        "a bomb": compress(b" " * (completed.MAX_LOG_BYTES + 1)),
        "newer": compress(head.replace(b'"v":1', b'"v":9')),
    }


async def test_garbage_concerns_itself(world: World, ann: Process) -> None:
    """A page names what it could not read, and has the rest. Strangers are left alone, and reported."""
    await switch(ann)
    ids = await ack(ann)
    for number, body in enumerate(garbage().values()):
        world.bucket.plant(f"{TOPIC}/completed/{number:016}-3-c.0.jsonl.zst", body)
    world.bucket.plant(f"{TOPIC}/completed/notes.txt", "theirs")
    page = await ann.queue.completed(TOPIC)
    assert ([each.id for each in page], len(page.faults)) == (ids, len(garbage()))
    report = await ann.queue.sweep(TOPIC)
    assert f"{TOPIC}/completed/notes.txt" in report.strangers
    assert f"{TOPIC}/completed/notes.txt" in world.bucket.below("")


async def test_a_large_claim_is_logged_in_part(world: World, ann: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first messages have a line each; all are counted in the name."""
    monkeypatch.setattr(completed, "MAX_LOGGED_MESSAGES", 2)
    await switch(ann)
    await ack(ann, 5)
    assert len(await logged(ann)) == 2
    [name] = world.bucket.below("completed/")
    part = completed.parse_log_name(name)
    assert part is not None
    assert part.count == 5


@pytest.mark.parametrize(
    "wrong", [5, "on", {"max_count": 0}, {"max_count": "5"}, {"payload": True}, {"max_age_seconds": 0}, {"payloads": 1}]
)
async def test_wrong_settings_are_refused(ann: Process, wrong: Any) -> None:  # noqa: ANN401 - anything
    """Each is one sentence that names the setting."""
    with pytest.raises(ConfigError, match="completed"):
        await ann.queue.update_topic(TOPIC, completed=wrong)

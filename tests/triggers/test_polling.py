"""All who wait for a topic in one process cost what one costs, and are served in the order in which they came."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pawnqueue.hooks import task_claims
from airflow_provider_pawnqueue.hooks.task_claims import UnforeseenError
from airflow_provider_pawnqueue.triggers import polling
from airflow_provider_pawnqueue.triggers.polling import Poll, poll_of
from airflow_provider_pawnqueue.triggers.trigger_runs import error_event
from pawnqueue import ClaimReference, InvalidArgumentError, StoreError, TopicNotFoundError
from pawnqueue.domain import layout
from pawnqueue.domain.claim_record import ClaimRecord
from pawnqueue.domain.lease import Lease
from pawnqueue.domain.object_sizes import MAX_SMALL_RECORD_BYTES
from tests.pawnqueue.virtual import TOPIC, numbered
from tests.triggers.virtual import LoopWorld, terms, virtual, waited

if TYPE_CHECKING:
    from tests.pawnqueue.virtual import Process


def waiting(process: Process, count: int, **more: Any) -> list[asyncio.Task[dict[str, Any]]]:
    """Several sensors that wait in one process."""
    poll = poll_of(process.queue, TOPIC)
    return [asyncio.create_task(waited(poll, terms(f"task-{number}", **more))) for number in range(count)]


async def gone(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel the tasks, and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def in_the_bucket(world: LoopWorld, *, in_flight: int, closed: int) -> None:
    """Plant messages under live claims of others, and closed records of a day."""
    for number in range(closed):
        record = ClaimRecord(claim_id=f"claim-{number:06}", state="closed")
        world.bucket.plant(layout.claim(TOPIC, f"{record.claim_id}.0"), record.encode())
    world.in_flight = in_flight  # type: ignore[attr-defined]


async def requests_of_a_minute(count: int, world: LoopWorld, *, in_flight: int = 0, closed: int = 0) -> Counter[str]:
    """Count the requests that several sensors make in a minute in which nothing happens."""
    in_the_bucket(world, in_flight=in_flight, closed=closed)
    ann, other = await world.process(), await world.process()
    if in_flight:
        await other.queue.publish(TOPIC, numbered(in_flight))
        for _ in range(10):
            assert len(await other.queue.claim(TOPIC, "other", max_messages=in_flight // 10, ttl=3600)) > 0
    with ann.client.counting() as counted:
        tasks = waiting(ann, count)
        await world.later(60)
    await gone(tasks)
    return counted


@pytest.mark.parametrize(("in_flight", "closed"), [(0, 0), (1000, 1500)], ids=["empty", "busy"])
def test_many_cost_what_one_costs(in_flight: int, closed: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A minute of waiting takes as many requests for fifty sensors as for one, whatever is in flight."""
    found: dict[int, Counter[str]] = {}

    for count in (1, 2, 50):

        @virtual
        async def played(world: LoopWorld, count: int = count) -> None:
            found[count] = await requests_of_a_minute(count, world, in_flight=in_flight, closed=closed)

        played()
    with capsys.disabled():
        print(f"\nrequests a minute, {in_flight} in flight, {closed} closed: {found}")  # noqa: T201
    totals = {count: sum(counted.values()) for count, counted in found.items()}
    assert max(totals.values()) - min(totals.values()) <= 4
    assert totals[50] <= 70


def test_packs_cost_no_more() -> None:
    """Where packs may be stored, a poll that finds nothing is one LIST, too."""
    found: dict[bool | None, Counter[str]] = {}

    for packs in (None, True):

        @virtual
        async def played(world: LoopWorld, packs: bool | None = packs) -> None:  # noqa: FBT001 - a setting
            world.topic(packs=packs)
            found[packs] = await requests_of_a_minute(20, world)

        played()
    assert found[True] == found[None]


@virtual
async def test_first_come_first_served(world: LoopWorld) -> None:
    """Messages go to the sensor that waits for longest, and each gets its own."""
    ann, bob = await world.process(), await world.process()
    tasks = waiting(ann, 4, max_messages=2)
    await world.later(3)
    await bob.queue.publish(TOPIC, numbered(6))
    await asyncio.wait(tasks, timeout=20)
    assert [task.done() for task in tasks] == [True, True, True, False]
    claims = [task.result() for task in tasks[:3]]
    assert [claim["count"] for claim in claims] == [2, 2, 2]
    firsts = [
        (await bob.queue.attach({name: claim[name] for name in ("topic", "claim_id", "generation", "session")}))[0]
        for claim in claims
    ]
    assert [first.payload["n"] for first in firsts] == [0, 2, 4]
    await gone(tasks)


@virtual
async def test_an_idle_topic_is_looked_at_ever_less(world: LoopWorld) -> None:
    """The pauses grow from half a second to ``polling.interval_seconds``."""
    ann = await world.process()
    looks: list[float] = []
    ann.client.meanwhile = lambda _, key: looks.append(world.clock.elapsed()) if "messages" in key else None
    tasks = waiting(ann, 1)
    await world.later(60)
    pauses = [after - before for before, after in pairwise(looks) if after > before]
    assert pauses[0] < 1.5
    assert all(5.0 <= pause <= 5.2 for pause in pauses[4:])
    await gone(tasks)


@pytest.mark.parametrize("after", [0.1, 7.0, 61.3])
def test_what_is_published_is_claimed_within_the_interval(after: float) -> None:
    """However long the topic was empty."""

    @virtual
    async def played(world: LoopWorld) -> None:
        ann, bob = await world.process(), await world.process()
        [task] = waiting(ann, 1)
        await world.later(after)
        await bob.queue.publish(TOPIC, numbered(1))
        await asyncio.wait_for(task, 5.3)

    played()


@virtual
async def test_min_messages_are_waited_for(world: LoopWorld) -> None:
    """Nothing is claimed while there are fewer, and a sensor that wants fewer is served before."""
    ann, bob = await world.process(), await world.process()
    [many] = waiting(ann, 1, min_messages=5, max_messages=5)
    await bob.queue.publish(TOPIC, numbered(4))
    await world.later(60)
    assert not many.done()
    assert world.bucket.below("claims/") == []
    few = asyncio.create_task(waited(poll_of(ann.queue, TOPIC), terms("few", max_messages=1)))
    await asyncio.wait_for(few, 6)
    await bob.queue.publish(TOPIC, numbered(2))
    assert (await asyncio.wait_for(many, 6))["count"] == 5


@virtual
async def test_two_sensors_do_not_count_the_same_messages(world: LoopWorld) -> None:
    """What the first one was given is not counted for the second one."""
    ann, bob = await world.process(), await world.process()
    tasks = waiting(ann, 2, min_messages=5, max_messages=5)
    await bob.queue.publish(TOPIC, numbered(7))
    await world.later(30)
    assert [task.done() for task in tasks] == [True, False]
    await bob.queue.publish(TOPIC, numbered(3))
    assert (await asyncio.wait_for(tasks[1], 11))["count"] == 5


@virtual
async def test_the_oldest_has_waited_for_long_enough(world: LoopWorld) -> None:
    """Fewer than ``min_messages`` are claimed once the oldest has waited for ``max_wait``."""
    ann, bob = await world.process(), await world.process()
    [task] = waiting(ann, 1, min_messages=5, max_wait=20.0)
    await bob.queue.publish(TOPIC, numbered(2))
    await world.later(18)
    assert not task.done()
    assert (await asyncio.wait_for(task, 9))["count"] == 2


@pytest.mark.parametrize("moment", range(1, 24))
def test_a_cancelled_sensor_leaves_nothing_behind(moment: int) -> None:
    """At whatever request a sensor is cancelled, its messages are claimable soon after."""

    @virtual
    async def played(world: LoopWorld) -> None:
        ann, bob = await world.process(), await world.process()
        await bob.queue.publish(TOPIC, numbered(3))
        [task] = waiting(ann, 1)
        sent = 0

        def cancel(_kind: str, _key: str) -> None:
            nonlocal sent
            sent += 1
            if sent == moment:
                task.cancel()

        ann.client.meanwhile = cancel
        await asyncio.wait((task,))
        await world.later(12)
        if task.cancelled():
            assert len(await bob.queue.claim(TOPIC, "other")) == 3
        else:
            assert task.result()["count"] == 3
        assert not poll_of(ann.queue, TOPIC)._waiters

    played()


@virtual
async def test_a_sensor_that_is_cancelled_when_it_was_given_a_claim(world: LoopWorld) -> None:
    """A claim that was given and not taken is released."""
    ann, bob = await world.process(), await world.process()
    await bob.queue.publish(TOPIC, numbered(3))
    poll = Poll(ann.queue, TOPIC)
    waiter = poll.join(terms())
    await asyncio.wait((waiter.given,))
    assert waiter.given.result()
    poll.leave(waiter)
    await world.later(1)
    assert len(await bob.queue.claim(TOPIC, "other")) == 3


@virtual
async def test_a_claim_from_before_a_restart_is_not_given_back(world: LoopWorld) -> None:
    """Another sensor of the same task may have it, so a sensor that finds it and ends does not release it."""
    ann, bob = await world.process(), await world.process()
    await bob.queue.publish(TOPIC, numbered(3))
    [first] = waiting(bob, 1)
    reference = await first
    poll = Poll(ann.queue, TOPIC)
    waiter = poll.join(terms("task-0"))
    await asyncio.wait((waiter.given,))
    poll.leave(waiter)
    await world.later(1)
    assert world.bucket.record(f"{reference['claim_id']}.0").state == "open"
    assert not world.bucket.record(f"{reference['claim_id']}.0").settled


@virtual
async def test_known_claims_are_found_by_one_list(world: LoopWorld) -> None:
    """After a restart, one LIST tells which sensors have a claim, also behind one that finds nothing."""
    ann, bob = await world.process(), await world.process()
    await bob.queue.publish(TOPIC, numbered(8))
    before = await asyncio.gather(*waiting(ann, 8, max_messages=1))
    again = await world.process()
    poll = poll_of(again.queue, TOPIC)
    first = asyncio.create_task(waited(poll, terms("nobody-knows-it")))
    await asyncio.sleep(0)
    with again.client.counting() as requests:
        after = await asyncio.gather(*waiting(again, 8, max_messages=1))
    assert [claim["claim_id"] for claim in after] == [claim["claim_id"] for claim in before]
    assert {claim["generation"] for claim in after} == {0}
    assert not first.done()
    # Each is looked at by itself then: which generation, and which record?
    assert requests["LIST"] <= 1 + 2 * 8 + 6
    await gone([first])


@virtual
async def test_a_busy_claim_does_not_block_others(world: LoopWorld) -> None:
    """A sensor whose claim is worked on waits, and those behind it are served."""
    ann, bob = await world.process(), await world.process()
    await bob.queue.publish(TOPIC, numbered(4))
    held = await task_claims.claim_for_task(bob.queue, terms("task-0", max_messages=2))
    tasks = waiting(ann, 2, max_messages=2)
    assert (await asyncio.wait_for(tasks[1], 2))["count"] == 2
    await world.later(5)
    assert not tasks[0].done()
    await bob.queue.leave(held)
    assert (await asyncio.wait_for(tasks[0], 40))["claim_id"] == held.claim_id


@virtual
async def test_a_cleared_task_goes_before_its_former_self(world: LoopWorld) -> None:
    """While both wait in one process, only the successor gets a claim, though it came later."""
    ann, bob = await world.process(), await world.process()
    poll = poll_of(ann.queue, TOPIC)
    old = asyncio.create_task(waited(poll, terms("task")))
    await world.later(2)
    new = asyncio.create_task(waited(poll, terms("task", clear=1)))
    await bob.queue.publish(TOPIC, numbered(30))
    assert (await asyncio.wait_for(new, 6))["generation"] == 0
    await world.later(60)
    assert not old.done()
    await gone([old])
    await world.later(1)
    assert len(world.bucket.below("claims/")) == 1


@virtual
async def test_an_unreachable_store_fails_nobody(world: LoopWorld) -> None:
    """After a minute without an answer, all sensors go on."""
    ann, bob = await world.process(retry={"budget_seconds": 2}), await world.process()
    tasks = waiting(ann, 3)
    await world.later(10)
    ann.client.inject("lost")
    await bob.queue.publish(TOPIC, numbered(30))
    await world.later(60)
    assert not any(task.done() for task in tasks)
    ann.client.heal()
    assert len(await asyncio.wait_for(asyncio.gather(*tasks), 35)) == 3


@virtual
async def test_a_refusal_fails_all(world: LoopWorld) -> None:
    """Keys that were never accepted fail each waiting task at once, with the store's sentence."""
    ann = await world.process()
    ann.client.inject("denied", "LIST")
    ended = await asyncio.gather(*waiting(ann, 3), return_exceptions=True)
    assert all(isinstance(error, StoreError) and "denied" in str(error) for error in ended)


@virtual
async def test_a_refused_claim_fails_its_own_task_alone(world: LoopWorld) -> None:
    """If the record of one task's claim is denied, the other tasks wait on and get messages."""
    ann, bob = await world.process(), await world.process()
    await bob.queue.publish(TOPIC, numbered(1))
    first = terms("task-0")
    await task_claims.claim_for_task(bob.queue, first)
    ann.client.inject("denied", "GET", layout.claim(TOPIC, f"{task_claims.claim_id_of(first)}.0"))
    tasks = waiting(ann, 3)
    await world.later(5)
    assert isinstance(tasks[0].exception(), StoreError)
    assert not any(task.done() for task in tasks[1:])
    await bob.queue.publish(TOPIC, numbered(30))
    assert len(await asyncio.wait_for(asyncio.gather(*tasks[1:]), 20)) == 2


@virtual
async def test_a_forged_lease_fails_nobody(world: LoopWorld) -> None:
    """A lease of the largest size is read: the first sensor gets the message."""
    ann = await world.process()
    [uuid] = await ann.queue.publish(TOPIC, numbered(1))
    [name] = world.bucket.below("messages/")
    body = Lease(state="released", key=name, until=1.0, deliveries=1).encode().rstrip()
    text = "x" * (MAX_SMALL_RECORD_BYTES - len(body))
    world.bucket.plant(layout.lease(TOPIC, uuid), body.replace(b'"reason":""', f'"reason":"{text}"'.encode()))
    tasks = waiting(ann, 3)
    await world.later(5)
    assert [task.done() for task in tasks] == [True, False, False]
    assert tasks[0].result()
    await gone(tasks)


@virtual
async def test_keys_may_be_replaced_while_sensors_wait(world: LoopWorld) -> None:
    """After five minutes in which the store denies what it allowed before, all sensors go on."""
    ann, bob = await world.process(), await world.process()
    tasks = waiting(ann, 3)
    await world.later(10)
    ann.client.inject("denied")
    await bob.queue.publish(TOPIC, numbered(30))
    await world.later(300)
    assert not any(task.done() for task in tasks)
    with ann.client.counting() as counted:
        await world.later(60)
    assert 0 < counted.total() <= 24, "it is asked again, and not all the time"
    ann.client.heal()
    assert len(await asyncio.wait_for(asyncio.gather(*tasks), 7)) == 3


@virtual
async def test_keys_that_nobody_replaces_fail_all(world: LoopWorld) -> None:
    """After ten minutes of denials, the tasks fail, and have other tries."""
    ann = await world.process()
    tasks = waiting(ann, 3)
    await world.later(10)
    ann.client.inject("denied")
    await world.later(590)
    assert not any(task.done() for task in tasks)
    ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
    assert all(isinstance(error, StoreError) and error_event(error)["transient"] for error in ended)


@virtual
async def test_an_unknown_topic_fails_all(world: LoopWorld) -> None:
    """All that wait for it get its name; event triggers too."""
    ann = await world.process()
    poll = poll_of(ann.queue, "nothing-here")
    asked = replace(terms(), topic="nothing-here")
    ended = await asyncio.gather(*(waited(poll, asked) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(error, TopicNotFoundError) and "nothing-here" in str(error) for error in ended)
    async with poll.listen() as heard:
        assert isinstance(await heard.get(), TopicNotFoundError)


@virtual
async def test_a_wrong_argument_fails_its_own_task_alone(world: LoopWorld) -> None:
    """A sensor with an impossible request gets an error, and those behind it are served."""
    ann, bob = await world.process(), await world.process()
    await bob.queue.publish(TOPIC, numbered(3))
    poll = poll_of(ann.queue, TOPIC)
    wrong = asyncio.create_task(waited(poll, terms("wrong", ttl=-1.0)))
    right = asyncio.create_task(waited(poll, terms("right")))
    with pytest.raises(InvalidArgumentError, match="ttl"):
        await wrong
    assert (await asyncio.wait_for(right, 2))["count"] == 3


SECRET = "payload with a password"


def test_an_unforeseen_error_fails_its_own_task_alone(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Those behind it are served; neither the log nor the event has what the error quotes."""

    async def claimed(queue: Any, asked: Any, **more: Any) -> Any:
        if "wrong" in asked.owner:
            raise ValueError(SECRET)
        return await claim(queue, asked, **more)

    claim = task_claims.claim_for_task
    monkeypatch.setattr(task_claims, "claim_for_task", claimed)

    @virtual
    async def played(world: LoopWorld) -> None:
        ann, bob = await world.process(), await world.process()
        await bob.queue.publish(TOPIC, numbered(3))
        poll = poll_of(ann.queue, TOPIC)
        wrong = asyncio.create_task(waited(poll, terms("wrong")))
        right = asyncio.create_task(waited(poll, terms("right")))
        with pytest.raises(UnforeseenError, match=r"ValueError at test_polling\.py:\d+") as told:
            await wrong
        assert error_event(told.value) == {"error": str(told.value), "transient": True}
        assert (await asyncio.wait_for(right, 2))["count"] == 3
        assert SECRET not in caplog.text + str(told.value)
        assert "ValueError at" in caplog.text

    played()


def test_an_unforeseen_error_of_a_look(caplog: Any) -> None:
    """All waiting tasks get another try. The error quotes nothing."""

    @virtual
    async def played(world: LoopWorld) -> None:
        ann = await world.process()
        tasks = waiting(ann, 2)
        ann.queue.known_claims = lambda *_: 1 / 0  # type: ignore[method-assign]
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, UnforeseenError)
            assert "ZeroDivisionError at test_polling.py" in str(error)
        assert "Traceback" not in caplog.text

    played()


@virtual
async def test_a_message_that_no_encoder_takes_strands_nobody(world: LoopWorld) -> None:
    """A lone surrogate or deep nesting in one message does not keep others from being claimed."""
    ann, bob = await world.process(), await world.process()
    [one, two, _] = await bob.queue.publish(TOPIC, numbered(3))
    for key, (_, body) in world.bucket.snapshot().items():
        for message, payload in ((one, '{"text":"\\ud800"}'), (two, '{"in":' * 600 + "1" + "}" * 600)):
            if message in key and "/messages/" in key:
                envelope = json.loads(body) | {"payload": "HERE"}
                world.bucket.plant(key, json.dumps(envelope).replace('"HERE"', payload).encode())
    [claim] = await asyncio.wait_for(asyncio.gather(*waiting(ann, 1)), 5)
    assert claim["count"] >= 1


@virtual
async def test_a_listener_hears_of_a_backlog_and_claims_nothing(world: LoopWorld) -> None:
    """Each poll that finds a large enough backlog is heard, and no earlier one."""
    ann, bob = await world.process(), await world.process()
    async with poll_of(ann.queue, TOPIC).listen(3) as heard:
        await bob.queue.publish(TOPIC, numbered(2))
        await world.later(20)
        assert heard.empty()
        await bob.queue.publish(TOPIC, numbered(2))
        rung = await asyncio.wait_for(heard.get(), 6)
        assert not isinstance(rung, Exception)
        assert rung.pending >= 3
    assert world.bucket.below("claims/") == world.bucket.below("leases/") == []


@virtual
async def test_nobody_waits_and_nothing_is_asked(world: LoopWorld) -> None:
    """The poll ends with its last waiter, and does not keep its queue."""
    ann = await world.process()
    tasks = waiting(ann, 2)
    await world.later(3)
    assert TOPIC in polling._POLLS[ann.queue]
    await gone(tasks)
    await world.later(6)
    assert TOPIC not in polling._POLLS[ann.queue]
    assert not [task for task in asyncio.get_running_loop()._tasks if "poll" in task.get_name() and not task.done()]  # type: ignore[attr-defined]
    with ann.client.counting() as requests:
        await world.later(60)
    assert not requests


@virtual
async def test_it_begins_again(world: LoopWorld) -> None:
    """A sensor that comes after the last one has gone is served."""
    ann, bob = await world.process(), await world.process()
    await gone(waiting(ann, 1))
    await world.later(20)
    tasks = waiting(ann, 1)
    await bob.queue.publish(TOPIC, numbered(1))
    reference = await asyncio.wait_for(tasks[0], 6)
    assert ClaimReference.from_dict(reference).topic == TOPIC


@virtual
async def test_a_claim_that_is_lost_at_once_is_nobody_elses_trouble(
    world: LoopWorld,
) -> None:
    """A sensor that loses its claim before it was handed over waits on, and gets another one."""
    ann, bob = await world.process(), await world.process()
    await bob.queue.publish(TOPIC, numbered(2))
    seen: list[str] = []

    def fence(kind: str, key: str) -> None:
        if kind == "PUT" and "/claims/" in key and world.bucket.below("claims/") and not seen:
            seen.append(key)
            [name] = world.bucket.below("claims/")
            world.alter(name.removesuffix(".json"), state="expired", session_until=0.0, until=0.0)

    ann.client.meanwhile = fence
    tasks = waiting(ann, 2, max_messages=1)
    references = await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert seen
    assert sorted(reference["count"] for reference in references) == [1, 1]


@virtual
async def test_a_paused_topic_wakes_nobody(world: LoopWorld) -> None:
    """Sensors and watchers wait while it is paused, without a LIST of messages, and go on when it is resumed."""
    ann, bob = await world.process(), await world.process()
    await bob.queue.publish(TOPIC, numbered(4))
    await bob.queue.pause(TOPIC)
    await world.later(60)
    tasks = waiting(ann, 2, min_messages=2, max_messages=2)
    await world.later(1)
    async with poll_of(ann.queue, TOPIC).listen(1) as heard:
        await world.later(60)
        assert heard.empty()
        before = len(ann.client.requests)
        await world.later(60)
        assert not [key for kind, key in ann.client.requests[before:] if kind == "LIST" and "messages" in key]
        assert not any(task.done() for task in tasks)
        await bob.queue.resume(TOPIC)
        references = await asyncio.wait_for(asyncio.gather(*tasks), 20)
        assert [reference["count"] for reference in references] == [2, 2]
        assert not heard.empty()

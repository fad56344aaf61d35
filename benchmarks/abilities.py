"""What each ability of a topic costs: requests and messages a second from publish to ack, beside a topic without it."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from benchmarks.pack_runs import TOPIC, Run, payloads_from, settings_for
from pawnqueue import Message, NewMessage, PawnQueue, Settings
from pawnqueue.runtime.concurrency import for_each
from pawnqueue.stores.connect import connect
from tools.kit import servers
from tools.kit.stores import CountingStore

if TYPE_CHECKING:
    from multiprocessing.pool import Pool

    from tools.kit.servers import S3Server

ROUNDS = 3
#: Messages of a run, single ones and in packs, and how many a call publishes and a claim takes.
SINGLE, PACKED = (600, 100), (40_000, 10_000)
#: More units than one LIST shows.
LARGE = 1_500
LOOKS = 5
#: Handlers of a worker that run at the same time.
CONCURRENCY = 100
AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Ability:
    """A topic's settings, and how its messages are published."""

    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    prepared: Callable[[Sequence[dict[str, Any]]], Sequence[Any]] = list
    """Returns what to publish in place of the payloads."""


def _of_three_priorities(payloads: Sequence[dict[str, Any]]) -> list[NewMessage]:
    return [NewMessage(payload, priority=(-1, 0, 1)[3 * n // len(payloads)]) for n, payload in enumerate(payloads)]


def _due_at_once(payloads: Sequence[dict[str, Any]]) -> list[NewMessage]:
    return [NewMessage(payload, delay=0.001) for payload in payloads]


def _with_keys(payloads: Sequence[dict[str, Any]]) -> list[NewMessage]:
    return [NewMessage(payload, dedup_key=f"order {payload['n']}") for payload in payloads]


def _with_all(payloads: Sequence[dict[str, Any]]) -> list[NewMessage]:
    some = zip(_of_three_priorities(payloads), _due_at_once(payloads), _with_keys(payloads), strict=True)
    return [replace(one, delay=two.delay, dedup_key=three.dedup_key) for one, two, three in some]


_ALL = {"priorities": True, "delays": True, "max_pending": 1_000_000, "max_age_seconds": 3600.0, "completed": True}
PLAIN = Ability("none")
LISTEN = Ability("listen in place of claim")
ABILITIES = (
    PLAIN,
    Ability("priorities, three of them", {"priorities": True}, _of_three_priorities),
    Ability("a delay, over at once", {"delays": True}, _due_at_once),
    Ability("deduplication keys", {}, _with_keys),
    Ability("max_pending", {"max_pending": 1_000_000}),
    Ability("max_age_seconds", {"max_age_seconds": 3600.0}),
    Ability("a completed log", {"completed": True}),
    Ability("all of these", _ALL, _with_all),
    LISTEN,
)


def run() -> None:
    """Measure, and print a table."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool, servers.seaweedfs() as server:
        for packed, (count, most) in ((False, SINGLE), (True, PACKED)):
            what = "packs of 1,000" if packed else "single messages"
            print(f"\n   {count:,} {what}, published and claimed by {most:,}; the best of {ROUNDS} rounds")
            best = _measure(pool, server, count, most, packed=packed)
            plain = best[PLAIN.title]
            for title, each in best.items():
                print(
                    f"   {title:28} {each.rate:9,.0f} messages a second ({each.rate / plain.rate:4.0%})   "
                    f"{each.requests.total() / count:8.4f} requests a message",
                    flush=True,
                )
        print("\n   A look that finds nothing, in a topic with packs:", flush=True)
        for line in pool.apply(_idle_looks, (settings_for(server, server.make_bucket()),)):
            print(f"   {line}", flush=True)


def _measure(pool: Pool, server: S3Server, count: int, most: int, *, packed: bool) -> dict[str, Run]:
    """Measure the abilities in turn, so that what slows the machine down meets all of them."""
    runs: dict[str, list[Run]] = {}
    for _ in range(ROUNDS):
        for number, ability in enumerate(ABILITIES):
            settings = settings_for(server, server.make_bucket())
            runs.setdefault(ability.title, []).append(pool.apply(_work, (settings, number, count, most, packed)))
    return {title: max(some, key=lambda each: each.rate) for title, some in runs.items()}


def _work(settings: Settings, number: int, count: int, most: int, packed: bool) -> Run:  # noqa: FBT001 - for a process
    return asyncio.run(_from_publish_to_ack(settings, ABILITIES[number], count, most, packed=packed))


async def _from_publish_to_ack(settings: Settings, ability: Ability, count: int, most: int, *, packed: bool) -> Run:
    calls = [ability.prepared(payloads_from(first, most)) for first in range(0, count, most)]
    store = CountingStore(connect(settings.s3))
    async with PawnQueue.open(settings, store=store) as queue:
        await queue.create_topic(TOPIC, packs=packed, **ability.settings)  # type: ignore[typeddict-item]
        await queue.stats(TOPIC)  # the first requests open connections and ask for the time
        store.forget()
        began = time.perf_counter()
        for messages in calls:
            await queue.publish(TOPIC, messages, pack=packed)
        published = time.perf_counter()
        if ability is LISTEN:
            await _listened(queue, count)
        acked = 0 if ability is not LISTEN else count
        while acked < count:
            claim = await queue.claim(TOPIC, "bench", max_messages=most, ttl=120, wait=30)
            acked += len((await queue.ack(claim)).acked)
        consumed = time.perf_counter()
        return Run(count, published - began, consumed - published, store.requests.copy())


async def _listened(queue: PawnQueue, count: int) -> None:
    """Consume by handlers that do nothing, and drain when all is handled."""
    left = count

    async def handle(_: Message) -> None:
        nonlocal left
        left -= 1
        if not left:
            draining.append(asyncio.ensure_future(queue.drain(30)))

    draining: list[asyncio.Future[object]] = []
    await queue.listen(TOPIC, handle, consumer="bench", concurrency=CONCURRENCY, handle_signals=False)
    await asyncio.gather(*draining)


def _idle_looks(settings: Settings) -> list[str]:
    return asyncio.run(_look_for_nothing(settings))


async def _look_for_nothing(settings: Settings) -> list[str]:
    lanes: Mapping[str, Mapping[str, Any]] = {
        "no lanes": {},
        "three lanes (priorities)": {"priorities": True},
        "four lanes (and delays)": {"priorities": True, "delays": True},
    }
    lines = []
    store = CountingStore(connect(settings.s3))
    async with PawnQueue.open(settings, store=store) as queue:
        for in_flight in (0, LARGE):
            for number, (title, options) in enumerate(lanes.items()):
                topic = f"topic-{in_flight}-{number}"
                await queue.create_topic(topic, **options)  # type: ignore[typeddict-item]
                await for_each(
                    lambda n, topic=topic: queue.publish(topic, [{"n": n}], pack=False),
                    range(in_flight),
                    at_once=AT_ONCE,
                )
                if in_flight:
                    assert len(await queue.claim(topic, "holder", max_messages=in_flight, ttl=600)) == in_flight  # noqa: S101 - what is measured
                await queue.claim(topic, "bench")
                best, counts = float("inf"), ""
                for _ in range(LOOKS):
                    await asyncio.sleep(1.1)  # what was listed within a second is not listed again
                    store.forget()
                    began = time.perf_counter()
                    await queue.claim(topic, "bench")
                    best = min(best, time.perf_counter() - began)
                    counts = ", ".join(f"{kind} {count}" for kind, count in store.requests.items())
                lines.append(f"{in_flight:6,} in flight, {title:26} {best * 1000:7.1f} ms   {counts}")
    return lines

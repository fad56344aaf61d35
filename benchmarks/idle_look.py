"""What looking costs a consumer that finds nothing, by what is in flight and by what claims have left behind."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pawnqueue import PawnQueue, Settings
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain import lease as leases
from pawnqueue.domain.claim_record import ClaimRecord, Decision, Member
from pawnqueue.domain.envelope import Envelope
from pawnqueue.runtime.concurrency import for_each
from pawnqueue.stores.connect import connect
from tools.kit import servers
from tools.kit.stores import CountingStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pawnqueue.stores.port import Store

TOPIC = "orders"
AT_ONCE = 64
FEW, MANY = 1_000, 10_000
#: How many of the messages in flight belong to one claim.
BATCH = 500
TTL = 3600.0
#: How often each poll is measured; the quickest is reported.
FOLLOWING = 5


@dataclass
class Row:
    """One state of the topic: what each look requested, and how long it took."""

    state: str
    looks: dict[str, tuple[str, float]] = field(default_factory=dict)


def run() -> None:
    """Measure, and print a table."""
    with servers.seaweedfs() as server:
        settings = Settings(s3=server.address(server.make_bucket()))
        rows = asyncio.run(_measure(settings))
    for row in rows:
        print(f"\n   {row.state}")
        for look, (requests, seconds) in row.looks.items():
            print(f"      {look:<34}{seconds * 1000:>8,.1f} ms   {requests}")
    print(
        f"\n   Each is a claim that finds nothing. The first one of a process; the quickest of {FOLLOWING} that "
        "follow, within ten seconds;\n   a full look again, as there is one then; and the same by a claim id that is "
        "asked for again and again.\n"
    )


async def _measure(settings: Settings) -> list[Row]:
    store = connect(settings.s3)
    async with PawnQueue.open(settings, store=store) as queue:
        await queue.create_topic(TOPIC, packs=False)
    rows = [await _look(settings, "nothing in flight, no closed records")]
    flying = await _fly(store, FEW)
    rows.append(await _look(settings, f"{FEW:,} in flight"))
    flying += await _fly(store, MANY - FEW)
    rows.append(await _look(settings, f"{MANY:,} in flight"))
    closed = await _close(store, MANY)
    rows.append(await _look(settings, f"{MANY:,} in flight, {MANY:,} closed records"))
    await _outlive(store, flying)
    rows.append(await _look(settings, f"{MANY:,} in flight, renewed since, {MANY:,} closed records"))
    await store.delete([key for one in flying for key in one.all_keys()])
    rows.append(await _look(settings, f"nothing in flight, {MANY:,} closed records"))
    await store.delete(closed)
    await store.aclose()
    return rows


async def _look(settings: Settings, state: str) -> Row:
    """Look in every way, as a process that has just been started."""
    row = Row(state)
    store = CountingStore(connect(settings.s3))

    async with PawnQueue.open(settings, store=store) as queue:
        await queue.peek(TOPIC, 1)  # what is read once a process: the topic
        await queue._context.now()  # noqa: SLF001 - and the time

        async def look(name: str, claim_id: str | None = None) -> None:
            store.forget()
            started = time.perf_counter()
            assert not await queue.claim(TOPIC, "bench", claim_id=claim_id, ttl=60)  # noqa: S101 - there is nothing
            seconds = time.perf_counter() - started
            before = row.looks.get(name)
            # Of several runs it reports the one with the most requests, so that none is hidden, and the quickest of
            # those.
            requests = store.told()
            if before is None or before[0] == requests:
                row.looks[name] = requests, min(seconds, before[1] if before else seconds)
            else:
                row.looks[f"{name}, too"] = requests, seconds

        async def again(name: str, claim_id: str | None = None) -> None:
            for _ in range(FOLLOWING):
                await look(name, claim_id)

        await look("the first look")
        await again("a following one")
        queue._claims.look_anew(TOPIC)  # noqa: SLF001 - as ten seconds later
        await look("a full look again")
        await look("by a new claim id", "run-1")
        await again("by the same claim id", "run-1")
    await store.aclose()
    print(f"   measured: {state}", flush=True)
    return row


# --- what is in the topic, written directly ---


@dataclass(frozen=True)
class _Flying:
    record: ClaimRecord
    members: dict[str, str]  # uuid: name

    def all_keys(self) -> list[str]:
        return [
            *(units.key_of(TOPIC, name) for name in self.members.values()),
            *(layout.lease(TOPIC, one) for one in self.members),
            layout.claim(TOPIC, self.record.stem),
        ]

    def leases(self, ttl: float) -> list[tuple[str, bytes]]:
        now = time.time()
        return [
            (
                layout.lease(TOPIC, one),
                leases.held(
                    one, name, consumer="x", claim=self.record.stem, deliveries=1, until=now + ttl, ttl=ttl
                ).encode(),
            )
            for one, name in self.members.items()
        ]

    def others(self) -> list[tuple[str, bytes]]:
        record = layout.claim(TOPIC, self.record.stem), self.record.encode()
        messages = [
            (units.key_of(TOPIC, name), Envelope(id=one, topic=TOPIC, payload={"n": 1}).encode())
            for one, name in self.members.items()
        ]
        return [record, *messages]


async def _fly(store: Store, count: int) -> list[_Flying]:
    """Put messages into the topic that claims hold, for an hour."""
    made = []
    for number in range(-(-count // BATCH)):
        ids = [str(uuid.uuid4()) for _ in range(min(BATCH, count - number * BATCH))]
        names = {one: units.name_at(time.time() + place / 1000, one) for place, one in enumerate(ids)}
        record = ClaimRecord(
            claim_id=str(uuid.uuid4()),
            owner="x",
            consumer="x",
            until=time.time() + TTL,
            ttl=TTL,
            members={one: Member(name=name) for one, name in names.items()},
        )
        made.append(_Flying(record, names))
    await _write(store, [one for flying in made for one in [*flying.others(), *flying.leases(TTL)]])
    return made


async def _close(store: Store, count: int) -> list[str]:
    """Leave closed records of claims with ids of their own behind, of a message each; return their keys."""
    written = {}
    for number in range(count):
        one = str(uuid.uuid4())
        record = ClaimRecord(
            claim_id=f"earlier-{number}",
            owner="x",
            consumer="x",
            state="closed",
            until=time.time() + TTL,
            ttl=TTL,
            members={one: Member(name=units.name_at(time.time(), one))},
            settled={one: Decision(how="acked")},
        )
        written[layout.claim(TOPIC, record.stem)] = record.encode()
    await _write(store, list(written.items()))
    return list(written)


async def _outlive(store: Store, flying: Sequence[_Flying]) -> None:
    """Let the leases' own time end, while the records of their claims go on: they were renewed."""
    await _write(store, [one for some in flying for one in some.leases(1.0)])
    await asyncio.sleep(1.0)


async def _write(store: Store, bodies: Sequence[tuple[str, bytes]]) -> None:
    await for_each(lambda one: store.put(*one), bodies, at_once=AT_ONCE)

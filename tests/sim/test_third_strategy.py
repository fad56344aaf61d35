"""A strategy that keeps no register in one object, in every weather: see ``tests/support/chained_blocks.py``."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from pawnqueue import LeaseLostError, PawnQueue, StoreError
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain.record import Record
from pawnqueue.domain.records import BucketRecord, TopicRecord
from pawnqueue.registers import strategies
from pawnqueue.registers.strategy import Step
from pawnqueue.stores.port import Done, Expect
from pawnqueue.stores.retry import ResilientStore
from tests.sim.prepared import SETTINGS, TOPIC
from tests.sim.test_requests import plant
from tests.sim.weather import CALM, NORMAL, STORMY, Weather
from tests.sim.world import World
from tests.support import chained_blocks
from tests.support.chained_blocks import ChainedBlocks

if TYPE_CHECKING:
    from tests.sim.processes import Process

KEY = "t/leases/1.lease"
WEATHERS = pytest.mark.parametrize("weather", [CALM, NORMAL, STORMY], ids=["calm", "normal", "stormy"])


class Contest:
    """The answers to the writers of one register, and what each of them has seen, in order."""

    def __init__(self, *, deletes: bool) -> None:
        self.deletes = deletes
        self.successors: dict[str | Expect, list[str]] = {}  # by what was expected: whose write was done
        self.seen: dict[str, list[tuple[str, str]]] = {}  # chain and place
        self.won = 0

    async def contend(self, process: Process) -> None:
        """Read, and change what was read; or delete it now and then."""
        registers = ChainedBlocks(
            ResilientStore(process.store, SETTINGS.retry, process.clock), process.clock, at_once=4
        )
        for number in range(12):
            with suppress(StoreError):
                found = await registers.read(KEY)
                if found is not None:
                    place, _, chain = found.info.version.strip('"').partition(".")
                    self.seen.setdefault(process.name, []).append((chain, place))
                if self.deletes and number % 6 == 5:
                    await registers.delete([KEY])
                    continue
                expect = found.info.version if found else Expect.NOTHING
                [outcome] = await registers.write([Step(KEY, Record(), expect)])
                if isinstance(outcome, Done):
                    self.won += 1
                    self.successors.setdefault(expect, []).append(outcome.version)

    def check(self) -> None:
        """Of writers that expect one version, one wins; a chain grows, and no value shows again after another."""
        for expect, told in self.successors.items():
            most = len(set(told)) if self.deletes and expect is Expect.NOTHING else 1
            assert len(told) == most, f"{expect} has the successors {told}"
        for seen in self.seen.values():
            chains = list(dict.fromkeys(chain for chain, _ in seen))
            assert seen == sorted(seen, key=lambda one: (chains.index(one[0]), one[1]))


@WEATHERS
def test_compare_and_set_has_one_winner(weather: Weather) -> None:
    """Five contenders in every weather: each version has one successor, and what was deleted does not come back."""
    won = 0
    for seed in range(40):
        # Where requests land late, a create that nobody answered may follow a deletion, by whatever strategy.
        contest = Contest(deletes=weather is CALM)

        async def scenario(world: World, contest: Contest = contest) -> None:
            for name in "ABCDE":
                process = world.process(name)
                process.spawn(contest.contend(process))
                process.trouble(20, 40)
            await world.until_idle()
            await world.calm()
            contest.check()

        World(seed, weather=weather).run(scenario)
        won += contest.won
    assert won > 400


async def consume(process: Process, acked: list[str], *, until: float) -> None:
    """Claim and ack until a time, whatever goes wrong; then go on until there is nothing."""
    while True:
        with suppress(StoreError, LeaseLostError):
            async with PawnQueue.open(SETTINGS, store=process.store, clock=process.clock) as queue:
                claim = await queue.claim(TOPIC, process.name, max_messages=7, ttl=8)
                while claim or process.world.loop.now < until:
                    acked += (await queue.ack(claim)).acked
                    claim = await queue.claim(TOPIC, process.name, max_messages=7, ttl=8, wait=1)
                return
        await process.clock.sleep(1)


@WEATHERS
def test_consumers_share_no_message(weather: Weather, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five of them are paused and killed: no message is settled by two, and none is left or blocks others."""
    monkeypatch.setattr(strategies, "STRATEGIES", (*strategies.STRATEGIES, chained_blocks.STRATEGY))

    async def scenario(world: World) -> None:
        world.bucket.plant(layout.BUCKET_RECORD, BucketRecord(strategy="chained_blocks").encode())
        marker = TopicRecord(topic=TOPIC, nonce="first").encode()
        world.bucket.plant(f"{layout.topic_marker(TOPIC)}/0000000000", marker)
        ids = {one for one, _ in plant(world, 60, world.stream("ids"))}
        acked: list[str] = []
        for name in "ABCDE":
            process = world.process(name)
            process.spawn(consume(process, acked, until=60))
            process.trouble(20, 40)
        await world.until_idle()
        await world.calm()
        await world.sleep(60)
        last = world.process("Z")
        last.spawn(consume(last, acked, until=0))
        await world.until_idle()
        assert len(acked) == len(set(acked))
        assert set(acked) <= ids  # a process that was killed may have settled some, without a record in the history
        assert world.bucket.below(units.folder(TOPIC)) == []

    for seed in range(15):
        World(seed, weather=weather).run(scenario)

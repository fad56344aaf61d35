"""Run schedules: ``python -m tests.sim.run [COUNT] [--first SEED] [--seed SEED] [--arena NAME] [--workers N]``."""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from tests.sim.crowd import crowd
from tests.sim.csprng import csprng, csprng_late
from tests.sim.duel import duel
from tests.sim.flow import flow
from tests.sim.keys import keys
from tests.sim.letters import schedule_of_letters
from tests.sim.listening import listening
from tests.sim.long import long
from tests.sim.packs import packs
from tests.sim.patience import patience
from tests.sim.prepared import WITHIN
from tests.sim.scenario import schedule
from tests.sim.stuck import stuck
from tests.sim.timing import timing
from tests.sim.world import KEPT, World
from tests.sim.writing import writing

CHUNK = 100

#: A schedule's seed, the promises that it broke, and how many requests it made.
Result: TypeAlias = tuple[int, list[str], int]


@dataclass(frozen=True, slots=True)
class Arena:
    """A kind of schedule, and the store on which it is played."""

    play: Callable[[World], list[str]]
    """Run a schedule to its end, and return the promises that it broke."""

    share: int
    """How many of a hundred schedules are played here."""

    conditional: bool = True
    """Whether the store minds conditions. On one that does not, ``csprng_verify`` is played."""

    assumption: bool = True
    """Whether no PUT lands later there than ``csprng_verify`` assumes."""

    def world(self, seed: int, *, kept: int = KEPT) -> World:
        """Make the world of one schedule."""
        within = None if self.conditional or not self.assumption else WITHIN
        return World(seed, conditional=self.conditional, within=within, kept=kept)


#: Where schedules are played. A seed means another schedule in each arena, so what has once failed is kept with its
#: arena's name: the shares may be changed.
ARENAS = {
    "schedule": Arena(schedule, 13),
    "duel": Arena(duel, 13),
    "crowd": Arena(crowd, 11),
    "packs": Arena(packs, 7),
    "packs-csprng": Arena(packs, 3, conditional=False),
    "flow": Arena(flow, 2),
    "flow-csprng": Arena(flow, 1, conditional=False),
    "listening": Arena(listening, 2),
    "listening-csprng": Arena(listening, 1, conditional=False),
    "writing": Arena(writing, 4),
    "keys": Arena(keys, 3),
    "keys-csprng": Arena(keys, 1, conditional=False),
    "patience": Arena(patience, 7),
    "patience-csprng": Arena(patience, 3, conditional=False),
    "stuck": Arena(stuck, 6),
    "stuck-csprng": Arena(stuck, 4, conditional=False),
    "letters": Arena(schedule_of_letters, 4),
    "letters-csprng": Arena(schedule_of_letters, 1, conditional=False),
    "long": Arena(long, 4),
    "timing": Arena(timing, 2),
    "csprng": Arena(csprng, 6, conditional=False),
    "csprng-late": Arena(csprng_late, 2, conditional=False, assumption=False),
}
_MIXED = [name for name, arena in ARENAS.items() for _ in range(arena.share)]


def name_of(seed: int) -> str:
    """Return the name of the arena in which a seed is played."""
    # Neighbours are played in different arenas, so that each chunk takes about the same time.
    return _MIXED[seed * 37 % len(_MIXED)]


def run_chunk(seeds: Iterable[int], arena: str | None = None) -> list[Result]:
    """Run these schedules, and return of each its violations and how many requests it made.

    :param arena: run all of them there; without it, they are mixed.
    """
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()
    results = []
    for seed in seeds:
        chosen = ARENAS[arena or name_of(seed)]
        world = chosen.world(seed, kept=0)
        try:
            broken = chosen.play(world)
        except Exception as error:  # noqa: BLE001 - whatever a schedule dies of is a finding, with its seed
            broken = [f"{type(error).__name__}: {error}"]
        results.append((seed, broken, world.requests))
    return results


def run_many(first: int, count: int, workers: int, arena: str | None = None) -> Iterator[Result]:
    """Run ``count`` schedules from seed ``first`` on, in several processes."""
    chunks = [range(start, min(start + CHUNK, first + count)) for start in range(first, first + count, CHUNK)]
    run = partial(run_chunk, arena=arena)
    if workers == 1:
        for chunk in chunks:
            yield from run(chunk)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for results in pool.imap_unordered(run, chunks):
            yield from results


def main() -> int:
    """Run what the command line asks for; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.run", description="Attack the queue's promises.")
    parser.add_argument("count", type=int, nargs="?", default=1000, help="how many schedules")
    parser.add_argument("--first", type=int, help="the first seed; without it, a new one each time")
    parser.add_argument("--seed", type=int, help="replay this one schedule, and print what happened in it")
    parser.add_argument("--arena", choices=sorted(ARENAS), help="play there; without it, the seed decides")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seed is not None:
        return _replay(options.seed, options.arena)
    first = options.first if options.first is not None else int(time.time()) * 1_000_000
    print(f"{options.count:,} schedules from seed {first}, in {options.workers} processes")
    started, done, requests = time.monotonic(), 0, 0
    failed: Counter[str] = Counter()
    told = started
    for seed, broken, made in run_many(first, options.count, options.workers, options.arena):
        done, requests = done + 1, requests + made
        if broken:
            arena = options.arena or name_of(seed)
            failed[arena] += 1
            print(f"seed {seed} ({arena}): " + "; ".join(broken[:3]), flush=True)
        if time.monotonic() - told > 10:
            told = time.monotonic()
            rate = done / (told - started)
            print(f"{done:,} schedules, {rate:.0f} a second, {failed.total()} broke a promise", flush=True)
    elapsed = time.monotonic() - started
    print(
        f"{done:,} schedules, {requests:,} requests in {elapsed:.0f} s: {done / elapsed:.0f} schedules a second; "
        f"{failed.total()} broke a promise"
    )
    if failed:
        print(", ".join(f"{count} in {arena}" for arena, count in sorted(failed.items())))
        print("Replay one with: python -m tests.sim.run --seed SEED")
    return 1 if failed else 0


def _replay(seed: int, arena: str | None) -> int:
    chosen = ARENAS[arena or name_of(seed)]
    world = chosen.world(seed)
    broken = chosen.play(world)
    print(world.report())
    print("\n".join(broken) or "every promise was kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

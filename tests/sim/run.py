"""Run schedules: ``python -m tests.sim.run [COUNT] [--first SEED] [--seed SEED] [--workers N]``."""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from tests.sim.duel import duel
from tests.sim.scenario import schedule
from tests.sim.world import World

CHUNK = 100

#: A schedule's seed, the promises that it broke, and how many requests it made.
Result: TypeAlias = tuple[int, list[str], int]


#: Every so-manieth schedule is a duel at the edge of time.
DUELS = 5


def run_chunk(seeds: Iterable[int], arena: Callable[[World], list[str]] | None = None) -> list[Result]:
    """Run these schedules, and return of each its violations and how many requests it made.

    :param arena: run all of them there; without it, they are mixed.
    """
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()
    results = []
    for seed in seeds:
        world = World(seed, kept=0)
        try:
            broken = (arena or arena_of(seed))(world)
        except Exception as error:  # noqa: BLE001 - whatever a schedule dies of is a finding, with its seed
            broken = [f"{type(error).__name__}: {error}"]
        results.append((seed, broken, world.requests))
    return results


def arena_of(seed: int) -> Callable[[World], list[str]]:
    """Return what is played under a seed."""
    return duel if seed % DUELS == 0 else schedule


def run_many(first: int, count: int, workers: int) -> Iterator[Result]:
    """Run ``count`` schedules from seed ``first`` on, in several processes."""
    chunks = [range(start, min(start + CHUNK, first + count)) for start in range(first, first + count, CHUNK)]
    if workers == 1:
        for chunk in chunks:
            yield from run_chunk(chunk)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for results in pool.imap_unordered(run_chunk, chunks):
            yield from results


def main() -> int:
    """Run what the command line asks for; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.run", description="Attack the queue's promises.")
    parser.add_argument("count", type=int, nargs="?", default=1000, help="how many schedules")
    parser.add_argument("--first", type=int, help="the first seed; without it, a new one each time")
    parser.add_argument("--seed", type=int, help="replay this one schedule, and print what happened in it")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seed is not None:
        return _replay(options.seed)
    first = options.first if options.first is not None else int(time.time()) * 1_000_000
    print(f"{options.count:,} schedules from seed {first}, in {options.workers} processes")
    started, done, requests, failed = time.monotonic(), 0, 0, 0
    told = started
    for seed, broken, made in run_many(first, options.count, options.workers):
        done, requests = done + 1, requests + made
        if broken:
            failed += 1
            print(f"seed {seed}: " + "; ".join(broken[:3]), flush=True)
        if time.monotonic() - told > 10:
            told = time.monotonic()
            print(f"{done:,} schedules, {done / (told - started):.0f} a second, {failed} broke a promise", flush=True)
    elapsed = time.monotonic() - started
    print(
        f"{done:,} schedules, {requests:,} requests in {elapsed:.0f} s: {done / elapsed:.0f} schedules a second; "
        f"{failed} broke a promise"
    )
    if failed:
        print("Replay one with: python -m tests.sim.run --seed SEED")
    return 1 if failed else 0


def _replay(seed: int) -> int:
    world = World(seed)
    broken = arena_of(seed)(world)
    print(world.report())
    print("\n".join(broken) or "every promise was kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

"""Play worlds: ``python -m tests.pawnqueue.hostile [COUNT] [--first SEED] [--seed SEED] [--rights R]``."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from functools import partial

from tests.pawnqueue.hostile.playing import play, play_quietly


def main() -> int:
    """Play what the command line asks for; 1 if a world was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.pawnqueue.hostile", description="Forge objects of every kind."
    )
    parser.add_argument("count", type=int, nargs="?", default=10_000, help="how many worlds")
    parser.add_argument("--first", type=int, help="the first seed; without it, a new one each time")
    parser.add_argument("--seed", type=int, help="play this one again, and print what happened in it")
    parser.add_argument("--rights", choices=("publisher", "consumer"), help="of the forger; without it, either")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seed is not None:
        story = play(options.seed, options.rights)
        print("\n".join(story.events))
        return bool(story.broken)
    first = options.first if options.first is not None else int(time.time()) * 1_000_000
    print(f"{options.count:,} worlds from seed {first}", flush=True)
    started, requests, broken = time.monotonic(), 0, 0
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        played = partial(play_quietly, rights=options.rights)
        for story in pool.imap_unordered(played, range(first, first + options.count), chunksize=20):
            requests += story.requests
            if story.broken:
                broken += 1
                print(f"seed {story.seed}: " + "; ".join(story.broken[:2]), flush=True)
    seconds = time.monotonic() - started
    print(f"{options.count:,} worlds, {requests:,} requests in {seconds:.0f} s: {broken} are broken")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())

"""``make demo-queue``, or ``python -m tools.demo.queue --help``. Exits with 1 where it does not add up."""

from __future__ import annotations

import argparse
import sys
from typing import get_args

from tools.crew.plan import Plan, Sabotage
from tools.demo.queue.story import tell
from tools.demo.running import run

#: A batch is this part of the orders, so that each consumer has several; up to a hundred.
BATCHES = 20
LARGEST_BATCH = 100
POISON = 16


def main() -> int:
    """Return the exit status."""
    arguments = _arguments()
    orders = arguments.orders
    plan = Plan(
        orders=orders,
        poison_every=max(1, orders // POISON),
        consumers=arguments.consumers,
        batch=arguments.batch or max(1, min(LARGEST_BATCH, orders // BATCHES)),
        ttl=arguments.ttl,
        seconds_per_batch=arguments.work,
        sabotage=arguments.sabotage,
    )
    return run(lambda screen: tell(plan, screen, calm=arguments.calm), pause=1.0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tools.demo.queue", description="A queue in a bucket, and what it withstands."
    )
    parser.add_argument("--orders", type=int, default=2_000, help="how many are published (default: %(default)s)")
    parser.add_argument("--consumers", type=int, default=4, help="how many processes consume (default: %(default)s)")
    parser.add_argument(
        "--batch", type=int, help="how many orders a claim takes (default: a 20th of them, at most 100)"
    )
    parser.add_argument("--ttl", type=float, default=8.0, help="seconds that a claim lasts (default: %(default)s)")
    parser.add_argument("--work", type=float, default=1.0, help="seconds of work on a batch (default: %(default)s)")
    parser.add_argument("--calm", action="store_true", help="neither kill nor freeze anybody")
    parser.add_argument("--sabotage", choices=get_args(Sabotage), default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    needed = 1 if arguments.calm else 4
    if arguments.consumers < needed:
        parser.error(f"--consumers must be {needed} or more{'' if arguments.calm else ' (or say --calm)'}")
    if not arguments.calm and not arguments.work:
        parser.error("--work must be more than 0: only a consumer that works can be struck in the middle of it")
    if arguments.orders < BATCHES:
        parser.error(f"--orders must be {BATCHES} or more")
    return arguments


if __name__ == "__main__":
    sys.exit(main())

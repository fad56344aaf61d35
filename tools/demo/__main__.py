"""``make demo``, or ``python -m tools.demo --help``. Exits with 1 where it does not add up."""

from __future__ import annotations

import argparse
import sys

from tools.demo.pipeline.story import tell
from tools.demo.running import run

#: Fewer have no malformed order among them, and no two batches.
LEAST = 200


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser("python -m tools.demo", description="Orders through S3, Airflow and Spark.")
    parser.add_argument("--orders", type=int, default=2_000, help="how many are published (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="leave everything up until Ctrl-C, and say where it is")
    arguments = parser.parse_args()
    if arguments.orders < LEAST:
        parser.error(f"--orders must be {LEAST} or more")
    return run(lambda screen: tell(arguments.orders, screen, keep=arguments.keep), pause=10.0)


if __name__ == "__main__":
    sys.exit(main())

"""Run benchmarks: all of them, or those that are named. Each starts the servers that it needs, and stops them."""

from __future__ import annotations

import argparse
import time

from benchmarks.subjects import SUBJECTS


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    subjects = "; ".join(f"{name}: {subject.title}" for name, subject in SUBJECTS.items())
    parser.add_argument("subject", nargs="*", metavar="subject", help=subjects)
    chosen = parser.parse_args().subject
    unknown = [name for name in chosen if name not in SUBJECTS]
    if unknown:
        parser.error(f"there is no subject {unknown[0]!r}; there is: {', '.join(SUBJECTS)}")
    for name in chosen or SUBJECTS:
        started = time.monotonic()
        print(f"== {name}: {SUBJECTS[name].title}", flush=True)
        SUBJECTS[name].run()
        print(f"== {name}: done in {time.monotonic() - started:.0f} s\n", flush=True)


if __name__ == "__main__":
    main()

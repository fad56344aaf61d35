"""Run benchmarks: all of them, or those that are named. Each starts the servers that it needs, and stops them.

Arguments after ``--`` go to the named benchmark: ``python -m benchmarks spark-read -- --rounds 3``.
"""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks.subjects import SUBJECTS


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    subjects = "; ".join(f"{name}: {subject.title}" for name, subject in SUBJECTS.items())
    parser.add_argument("subject", nargs="*", metavar="subject", help=subjects)
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    chosen, arguments = parser.parse_args(given[:end]).subject, given[end + 1 :]
    unknown = [name for name in chosen if name not in SUBJECTS]
    if unknown:
        parser.error(f"there is no subject {unknown[0]!r}; there is: {', '.join(SUBJECTS)}")
    if arguments and (len(chosen) != 1 or not SUBJECTS[chosen[0]].takes_arguments):
        able = ", ".join(name for name, subject in SUBJECTS.items() if subject.takes_arguments)
        parser.error(f"{' '.join(arguments)}: name one subject that takes arguments before the --: {able}")
    for name in chosen or SUBJECTS:
        started = time.monotonic()
        print(f"== {name}: {SUBJECTS[name].title}", flush=True)
        SUBJECTS[name].run(*([arguments] if SUBJECTS[name].takes_arguments else []))
        print(f"== {name}: done in {time.monotonic() - started:.0f} s\n", flush=True)


if __name__ == "__main__":
    main()

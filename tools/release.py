"""What a machine does of a release: builds its four files, and says whether version, tag, notes and files agree.

``python -m tools.release build [FOLDER]`` and ``python -m tools.release check [FOLDER]``; without one, ``dist``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).parent.parent
#: The packages that say the version of their distribution, which is one for both.
PACKAGES = ("airflow_provider_pawnqueue", "pawnqueue")
#: The two distributions: what the files of each begin with, and the folder that it is built from.
DISTRIBUTIONS = {"airflow_provider_pawnqueue": ".", "pawnqueue_engine": "tools/engine"}
#: Makes the provider depend on a version of the engine, not on this clone's folder: hatch_build.py reads it.
BY_VERSION = {"PAWNQUEUE_ENGINE": "by-version"}

_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
_FORM = re.compile(r"\d+\.\d+\.\d+(rc\d+)?")


def build(folder: Path, top: Path = TOP) -> list[Path]:
    """Build sdist and wheel of both distributions into a folder, which is emptied before, and have them checked.

    Each wheel is built from its sdist, so what is missing in the one fails the other.
    """
    version(top)  # nothing is built where the packages have two versions
    shutil.rmtree(folder, ignore_errors=True)
    for place in DISTRIBUTIONS.values():
        _python("build", "--outdir", str(folder), str(top / place))
    files = sorted(folder.iterdir())
    _python("twine", "check", "--strict", *map(str, files))
    return files


def version(top: Path = TOP) -> str:
    """Return the version that both packages have, as text of their files: nothing is imported."""
    numbers = {package: _version(top / package / "__init__.py") for package in PACKAGES}
    if len(set(numbers.values())) > 1:
        told = " and ".join(f"{package}/__init__.py says {number}" for package, number in numbers.items())
        raise SystemExit(f"Both packages have to have one version: {told}.")
    return numbers[PACKAGES[0]]


def file_names(number: str) -> set[str]:
    """Return the names of the four files of a version."""
    return {f"{name}-{number}{end}" for name in DISTRIBUTIONS for end in (".tar.gz", "-py3-none-any.whl")}


def problems(folder: Path, top: Path = TOP) -> list[str]:
    """Return what keeps the tree from being released as it is, a sentence each; nothing where all of it agrees."""
    number = version(top)
    tag = f"v{number}"
    found = []
    if not _FORM.fullmatch(number):
        found.append(f"The version {number} is neither like 1.2.3 nor like 1.2.3rc1.")
    if not _has_notes(number, (top / "CHANGELOG.md").read_text(encoding="utf-8")):
        found.append(f"CHANGELOG.md has no notes below a heading like: ## [{number}] - 2026-11-30")
    if _git(top, "status", "--porcelain"):
        found.append("There are files that are not committed: git status lists them.")
    tags = [each for each in _git(top, "tag", "--points-at", "HEAD").split() if each.startswith("v")]
    if tags != [tag]:
        told = " and ".join(tags) or "none"
        found.append(f"The version is {number}, so the commit's tag has to be {tag}, and it is {told}.")
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    found += [f"{folder.name}/{name} is missing: make dist" for name in sorted(file_names(number) - names)]
    found += [
        f"{folder.name}/{name} is none of this version's files: make dist"
        for name in sorted(names - file_names(number))
    ]
    return found


def main(arguments: list[str]) -> int:
    """Do what the first argument says, and return the exit status."""
    what, folder = arguments[0] if arguments else "", Path(arguments[1] if arguments[1:] else "dist")
    if what == "build":
        lines = [f"{path.stat().st_size:>9,} bytes  {path}" for path in build(folder)]
        status = 0
    elif what == "check":
        lines = problems(folder)
        status = int(bool(lines))
        lines = lines or [f"Version, tag, notes and files agree: {version()}"]
    else:
        lines, status = [str(__doc__)], 2
    sys.stdout.write("\n".join(lines) + "\n")
    return status


def _version(path: Path) -> str:
    found = _VERSION.search(path.read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit(f"{path} has no line __version__ = ...")
    return found[1]


def _has_notes(number: str, changelog: str) -> bool:
    heading = rf"^## \[{re.escape(number)}\] - \d{{4}}-\d\d-\d\d\n"
    return re.search(rf"{heading}\s*(?!## )\S", changelog, re.MULTILINE) is not None


def _git(top: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=top, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _python(module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    environ = os.environ | BY_VERSION
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"python -m {module} {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""The wheels that `make dist` builds, and environments that have one of them, with what it requires and no more."""

from __future__ import annotations

import csv
import subprocess
import sys
import venv
from collections import defaultdict
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution, distributions
from itertools import accumulate
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


#: What has to be installed, not linked: the tests' environment has it as the clone.
_OURS = {"airflow-provider-pawnqueue", "pawnqueue-engine"}


@dataclass(frozen=True)
class Wheels:
    """One wheel of each distribution, in one folder."""

    provider: Path
    engine: Path


def wheels_in(folder: Path) -> Wheels:
    """Return the wheels that are in a folder of built files."""
    [provider] = folder.glob("airflow_provider_pawnqueue-*.whl")
    [engine] = folder.glob("pawnqueue_engine-*.whl")
    return Wheels(provider, engine)


def pip(*arguments: str | Path) -> None:
    """Run this environment's pip, which has to succeed."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def environment_with(folder: Path, distribution_name: str, *installed: str | Path) -> Path:
    """Make an environment with one of our distributions and what it requires, and return its Python.

    What others publish is linked from the environment of the tests.

    :param installed: pip's arguments: what to install, and where it finds the other one of our distributions.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    [packages] = folder.glob("lib/python3*/site-packages")
    _link((each for each in _closure([distribution_name]) if each.name not in _OURS), packages)
    pip("--python", python, "install", *installed)
    pip("--python", python, "check")
    return python


def _closure(requirements: Iterable[str]) -> list[Distribution]:
    """Return every distribution that these need, directly or not, without the extras that nothing asks for."""
    seen: set[tuple[str, str]] = set()
    found: dict[str, Distribution] = {}
    left = [(each, "") for each in requirements]
    while left:
        text, extra = left.pop()
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        for wanted in ("", *requirement.extras):
            if (requirement.name, wanted) not in seen:
                seen.add((requirement.name, wanted))
                found[requirement.name] = distribution(requirement.name)
                left += [(each, wanted) for each in found[requirement.name].requires or ()]
    return list(found.values())


def _link(needed: Iterable[Distribution], packages: Path) -> None:
    """Link the files of these: a folder as a whole where no other distribution has files in it."""
    owners: dict[str, set[str]] = defaultdict(set)
    for each in distributions():
        name = each.name
        for file in _files(each):
            for folder in _folders(file):
                owners[folder].add(name)
    linked = set()
    for each in needed:
        for file in _files(each):
            place = next((folder for folder in _folders(file) if len(owners[folder]) == 1), file)
            if place not in linked:
                linked.add(place)
                target = packages / place
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(str(each.locate_file(place)))


def _files(installed: Distribution) -> list[str]:
    """Return what a distribution has in site-packages. Its scripts name the Python that they were installed for."""
    listed = csv.reader((installed.read_text("RECORD") or "").splitlines())
    return [file for file, _, _ in listed if not file.startswith("..")]


def _folders(file: str) -> Iterator[str]:
    """Return the folders that a file is in, the outermost first."""
    return accumulate(file.split("/")[:-1], "{}/{}".format)

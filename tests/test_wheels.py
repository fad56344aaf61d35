"""The two distributions that `make dist` builds, each as wheel and sdist. They share no file."""

from __future__ import annotations

import email
import re
import tarfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pytest

import airflow_provider_pawnqueue
import pawnqueue
from tools import release

if TYPE_CHECKING:
    from email.message import Message

    from tests.support.wheels import Wheels

TOP = Path(__file__).parent.parent
VERSION = airflow_provider_pawnqueue.__version__

pytestmark = pytest.mark.timeout(400)  # the distributions are built first, and pip installs them


def _files(wheel: Path) -> dict[str, bytes]:
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _part(wheel: Path, name: str) -> str:
    """Return a file of the wheel's ``.dist-info``, or nothing where it has none."""
    return next((body.decode() for file, body in _files(wheel).items() if file.endswith(f".dist-info/{name}")), "")


def _metadata(wheel: Path) -> Message:
    return email.message_from_string(_part(wheel, "METADATA"))


def _tree(*packages: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(TOP)): path.read_bytes()
        for package in packages
        for path in (TOP / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def _packed(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def _pyproject(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


@pytest.mark.slow
def test_no_file_is_in_both_wheels(wheels: Wheels) -> None:
    """So either may be installed, upgraded or removed without harm to the other."""
    assert _files(wheels.provider).keys().isdisjoint(_files(wheels.engine))


@pytest.mark.slow
def test_each_wheel_has_its_packages_and_no_more(wheels: Wheels) -> None:
    """They are as in the tree, ``py.typed`` among them, though each wheel was built from its sdist."""
    provider, engine = (
        {name: body for name, body in _files(wheel).items() if ".dist-info/" not in name}
        for wheel in (wheels.provider, wheels.engine)
    )

    assert provider == _tree("airflow_provider_pawnqueue")
    assert engine == _tree("pawnqueue", "pyspark_pawnqueue")
    assert "airflow_provider_pawnqueue/py.typed" in provider
    assert {"pawnqueue/py.typed", "pyspark_pawnqueue/py.typed"} <= engine.keys()


@pytest.mark.slow
def test_the_provider_depends_on_the_engine_of_its_version(wheels: Wheels) -> None:
    """It names the version, and no folder of the machine that built it; both wheels have that version and licence."""
    provider, engine = _metadata(wheels.provider), _metadata(wheels.engine)

    assert provider["Version"] == engine["Version"] == VERSION == pawnqueue.__version__
    assert f"pawnqueue-engine=={VERSION}" in provider.get_all("Requires-Dist", [])
    assert [each for each in provider.get_all("Requires-Dist", []) if "@" in each] == []
    for wheel in (wheels.provider, wheels.engine):
        assert _part(wheel, "licenses/LICENSE") == (TOP / "LICENSE").read_text()


@pytest.mark.slow
def test_the_engines_wheel_is_no_provider(wheels: Wheels) -> None:
    """Airflow finds the provider only where the provider is installed."""
    assert "apache_airflow_provider" in _part(wheels.provider, "entry_points.txt")
    assert not _part(wheels.engine, "entry_points.txt")


@pytest.mark.slow
def test_make_dist_builds_four_files(dist: Path) -> None:
    """They are of one version. That `twine check --strict` accepts them is a part of building them."""
    assert {path.name for path in dist.iterdir()} == release.file_names(VERSION)


@pytest.mark.slow
def test_the_sdists_have_what_it_takes_to_build_the_wheels(dist: Path) -> None:
    """The provider's has nothing of the engine, so that what is built from it names the engine by its version."""
    build = {".gitignore", "LICENSE", "PKG-INFO", "README.md", "hatch_build.py", "pyproject.toml"}
    [provider], [engine] = dist.glob("airflow_provider_pawnqueue-*.tar.gz"), dist.glob("pawnqueue_engine-*.tar.gz")

    assert _packed(provider) == {*_tree("airflow_provider_pawnqueue"), *build, "CHANGELOG.md"}
    assert _packed(engine) == {*_tree("pawnqueue", "pyspark_pawnqueue"), *build}


def test_both_distributions_ask_for_the_same() -> None:
    """What both need has the same bounds in both. The engine needs neither Airflow nor Spark."""
    provider, engine = _pyproject(TOP), _pyproject(TOP / "tools" / "engine")
    wanted = [
        {re.split(r"[^a-z0-9-]", each)[0]: each for each in dependencies}
        for dependencies in (
            provider["tool"]["hatch"]["metadata"]["hooks"]["custom"]["dependencies"],
            engine["project"]["dependencies"],
        )
    ]

    assert wanted[1].keys() == {"boto3", "msgspec", "obstore", "pydantic", "pyyaml", "zstandard"}
    assert {name: each for name, each in wanted[0].items() if wanted[1].get(name, each) != each} == {}
    assert engine["project"]["requires-python"] == provider["project"]["requires-python"]

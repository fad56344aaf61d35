"""The two distributions that one tree gives: the provider, and the engine by itself; each as wheel and sdist."""

from __future__ import annotations

import ast
import email
import logging
import re
import tarfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pytest

import airflow_provider_pawnqueue
from airflow_provider_pawnqueue.provider_info import get_provider_info
from tools import release

if TYPE_CHECKING:
    from tests.support.wheels import Wheels

TOP = Path(__file__).parent.parent
PACKAGE = "airflow_provider_pawnqueue"


def _files(wheel: Path) -> dict[str, bytes]:
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


def _part(wheel: Path, name: str) -> str:
    """Return a file of the wheel's ``.dist-info``, or nothing where it has none."""
    with ZipFile(wheel) as archive:
        found = [each for each in archive.namelist() if each.endswith(f".dist-info/{name}")]
        return archive.read(found[0]).decode() if found else ""


def _project(folder: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project


def _for_jobs() -> set[str]:
    """Return the files that Spark's driver and executors need: what the data source and the jobs' own module import.

    Imports inside of functions count too. ``hooks`` are for jobs that run in a task of Airflow's, and are there then.
    """
    found = {f"{PACKAGE}/spark/__init__.py", "pyspark_pawnqueue/__init__.py"}
    left = ["pyspark_pawnqueue", f"{PACKAGE}.spark.jobs"]
    while left:
        path = Path(left.pop().replace(".", "/"))
        path = path / "__init__.py" if (TOP / path).is_dir() else path.with_suffix(".py")
        found.add(str(path))
        for node in ast.walk(ast.parse((TOP / path).read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}.spark."):
                name = str(node.module)
                if f"{name.replace('.', '/')}.py" not in found:
                    left.append(name)
    return found


@pytest.mark.slow
def test_the_wheels_share_the_engine_byte_for_byte(wheels: Wheels) -> None:
    """What is in the engine's wheel is in the provider's too, unchanged: the engine, and what Spark's jobs need."""
    provider, engine = _files(wheels.provider), _files(wheels.engine)
    own = {str(path.relative_to(TOP)) for path in (TOP / PACKAGE / "engine").rglob("*.py")}

    assert {name: body for name, body in provider.items() if name in engine} == engine
    assert set(engine) == own | {f"{PACKAGE}/__init__.py", f"{PACKAGE}/py.typed"} | _for_jobs()


def test_what_spark_needs_is_without_airflow() -> None:
    """A job's module imports no room of Airflow's where it is imported itself; the operator is no part of it."""
    files = _for_jobs()
    assert f"{PACKAGE}/spark/datasource.py" in files
    assert f"{PACKAGE}/spark/operators.py" not in files
    for name in files:
        imported = {
            str(node.module)
            for node in ast.parse((TOP / name).read_text()).body
            if isinstance(node, ast.ImportFrom) and node.level == 0
        }
        strange = {
            module
            for module in imported
            if module.partition(".")[0] == "airflow"
            or (module.startswith(PACKAGE) and not re.match(rf"{PACKAGE}(\.engine|\.spark|$)", module))
        }
        assert strange == set(), name


@pytest.mark.slow
def test_the_engines_wheel_is_no_provider(wheels: Wheels) -> None:
    """Airflow finds the provider only where the provider is installed, and both say one version and one licence."""
    metadata = [email.message_from_string(_part(wheel, "METADATA")) for wheel in (wheels.provider, wheels.engine)]
    licences = [_part(wheel, "licenses/LICENSE") for wheel in (wheels.provider, wheels.engine)]

    assert "apache_airflow_provider" in _part(wheels.provider, "entry_points.txt")
    assert not _part(wheels.engine, "entry_points.txt")
    assert metadata[0]["Version"] == metadata[1]["Version"]
    assert licences == [(TOP / "LICENSE").read_text()] * 2


@pytest.mark.slow
def test_the_providers_wheel_has_the_package_and_no_more(wheels: Wheels) -> None:
    """It has every file of the two folders, ``py.typed`` among them, and nothing of tests, tools or examples."""
    files = set(_files(wheels.provider))

    assert files == {
        str(path.relative_to(TOP))
        for folder in (PACKAGE, "pyspark_pawnqueue")
        for path in (TOP / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert f"{PACKAGE}/py.typed" in files


@pytest.mark.slow
def test_make_dist_builds_what_the_tree_has(dist: Path, wheels: Wheels) -> None:
    """There are four files, of one version; the wheels, which were built from the sdists, are as from the tree itself.

    That `twine check --strict` has nothing to say of them is a part of building them.
    """
    assert {path.name for path in dist.iterdir()} == release.file_names(airflow_provider_pawnqueue.__version__)
    for wheel in (wheels.provider, wheels.engine):
        with ZipFile(wheel) as ours, ZipFile(dist / wheel.name) as theirs:
            assert {each: theirs.read(each) for each in theirs.namelist()} == {
                each: ours.read(each) for each in ours.namelist()
            }


@pytest.mark.slow
def test_the_providers_sdist_has_what_it_takes_to_test_and_build_it(dist: Path) -> None:
    """It has all of the tree that is the project's, but what only a clone has; and of nothing else."""
    with tarfile.open(next(dist.glob(f"{PACKAGE}-*.tar.gz"))) as archive:
        files = {member.name.partition("/")[2]: member for member in archive.getmembers()}
    tops = {name.partition("/")[0] for name in files}
    listed = set(
        tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"][
            "only-include"
        ]
    )

    assert tops == listed | {"PKG-INFO", ".gitignore"}
    assert {path.name for path in TOP.glob("*.*") if path.suffix in {".md", ".yaml", ".toml", ".txt"}} <= tops
    assert "tools/engine/hatch_build.py" in files
    assert not [name for name, member in files.items() if not member.isfile() or name.endswith(".pyc")]


def test_the_engine_asks_for_what_the_provider_asks_for() -> None:
    """The engine's dependencies are four of the provider's, with the same bounds; neither Airflow nor Spark is one."""
    provider, engine = _project(TOP), _project(TOP / "tools" / "engine")
    names = {re.split(r"[^a-z0-9-]", each)[0] for each in engine["dependencies"]}

    assert names == {"boto3", "obstore", "pydantic", "pyyaml"}
    assert set(engine["dependencies"]) < set(provider["dependencies"])
    assert engine["requires-python"] == provider["requires-python"]


def test_airflow_is_told_of_two_versions_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An engine of another version beside the provider is warned of when Airflow starts; of none, nothing is said."""
    with caplog.at_level(logging.WARNING):
        get_provider_info()
        assert not caplog.records
        folder = tmp_path / "pawnqueue_engine-0.0.1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: pawnqueue-engine\nVersion: 0.0.1\n")
        monkeypatch.syspath_prepend(tmp_path)
        get_provider_info()

    [told] = [record.getMessage() for record in caplog.records]
    assert "pawnqueue-engine 0.0.1 are installed side by side" in told
    assert "Uninstall both, then install airflow-provider-pawnqueue alone" in told

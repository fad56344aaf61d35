"""What is true of the distribution as a whole: what it declares, what it imports, and what it must not contain."""

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest
from packaging.specifiers import SpecifierSet

import airflow_provider_pawnqueue
import pawnqueue
from airflow_provider_pawnqueue.provider_info import get_provider_info

TOP = Path(__file__).parent.parent
DISTRIBUTION = "airflow-provider-pawnqueue"
ENGINE = "pawnqueue-engine"

# What an executor does not have (Airflow, Spark), and what would cost every start of the queue too much.
TOO_HEAVY = {
    "airflow",
    "boto3",
    "botocore",
    "opentelemetry",
    "pandas",
    "pyarrow",
    "pyspark",
    "pyspark_pawnqueue",
    "sqlalchemy",
}


def _run(program: str, **environment: str) -> str:
    """Run a program in a fresh interpreter and return what it printed last."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().rpartition("\n")[2]


@pytest.mark.parametrize("module", ["pawnqueue", "airflow_provider_pawnqueue.provider_info"])
def test_import_stays_light(module: str) -> None:
    """The queue and the provider's declaration import nothing heavy, and boto3 only when it is used."""
    program = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    imported = {name.partition(".")[0] for name in json.loads(_run(program))}

    assert module.partition(".")[0] in imported
    assert not imported & TOO_HEAVY


# Spark imports it at the start of each session, in a process that has PySpark already.
TOO_HEAVY_FOR_SPARK = TOO_HEAVY - {"pyspark", "pyspark_pawnqueue", "pandas", "pyarrow"} | {
    "obstore",
    "aiohttp",
    "fastapi",
}


def test_what_spark_imports_stays_light() -> None:
    """Where Spark looks for data sources, ours brings four modules and the queue, but no client and no Airflow."""
    program = (
        "import json, sys, pyspark.sql.datasource; before = set(sys.modules)\n"
        "from pyspark_pawnqueue import DefaultSource; print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    imported = json.loads(_run(program))
    spark = {name for name in imported if name.startswith("pyspark_pawnqueue")}

    assert not {name.partition(".")[0] for name in imported} & (TOO_HEAVY_FOR_SPARK | {"pandas", "pyarrow"})
    modules = ("datasource", "job_environment", "spark_errors", "spark_options")
    assert spark == {"pyspark_pawnqueue", *(f"pyspark_pawnqueue.{name}" for name in modules)}


def test_sparks_two_distributions_are_of_one_version() -> None:
    """Both own the folder ``pyspark``: of unequal versions, the files belong to neither."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    named = [each for extra in project["optional-dependencies"].values() for each in extra]
    pins = (TOP / "constraints.txt").read_text().splitlines()
    versions = {
        (place, name): [line.partition("==")[2] for line in lines if re.match(rf"{name}(?![\w-])", line)]
        for name in ("pyspark", "pyspark-client")
        for place, lines in (("pyproject.toml", named), ("constraints.txt", pins))
    }
    installed = {importlib.metadata.version(name) for name in ("pyspark", "pyspark-client")}
    code = re.search(r"__version__: str = ['\"](.+)['\"]", (_spark() / "version.py").read_text())

    assert all(len(found) == 1 for found in versions.values()), versions
    assert {version for found in versions.values() for version in found} == installed
    assert len(installed) == 1
    assert code is not None
    assert {code.group(1)} == installed


def _spark() -> Path:
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0])


def test_version_is_the_one_installed() -> None:
    """Both packages and both installed distributions have one version; if not, the editable install is stale."""
    installed = {importlib.metadata.version(name) for name in (DISTRIBUTION, ENGINE)}
    assert installed == {airflow_provider_pawnqueue.__version__, pawnqueue.__version__}
    assert len(installed) == 1


def test_entry_point_is_the_provider_info() -> None:
    """Airflow finds the declaration where it looks for it."""
    points = importlib.metadata.entry_points(group="apache_airflow_provider", name="provider_info")
    ours = [point for point in points if point.dist is not None and point.dist.name == DISTRIBUTION]

    assert [point.load() for point in ours] == [get_provider_info]


def test_provider_info_fits_airflows_schema() -> None:
    """The declaration is what Airflow's own schema asks for, and says nothing that the schema does not know."""
    airflow = importlib.util.find_spec("airflow")  # found, not imported: an import would write into the home folder
    assert airflow is not None
    assert airflow.submodule_search_locations is not None
    schema = json.loads(Path(airflow.submodule_search_locations[0], "provider_info.schema.json").read_text())
    info = get_provider_info()

    jsonschema.Draft7Validator(schema).validate(info)
    assert set(info) - {"versions"} <= set(schema["properties"])
    assert info["versions"] == [airflow_provider_pawnqueue.__version__]
    assert info["package-name"] == DISTRIBUTION


def test_airflow_lists_the_provider(tmp_path: Path) -> None:
    """A real Airflow, started on an empty home, lists the provider with its version."""
    program = (
        "from airflow.providers_manager import ProvidersManager\n"
        f"print(ProvidersManager().providers[{DISTRIBUTION!r}].version)"
    )

    assert _run(program, AIRFLOW_HOME=str(tmp_path)) == airflow_provider_pawnqueue.__version__


def test_constraints_are_exact_pins() -> None:
    """constraints.txt holds ``name==version`` and comments, each name once, and no address of any kind."""
    text = (TOP / "constraints.txt").read_text()
    pins = [line for line in text.splitlines() if line and not line.startswith("#")]
    names = [re.sub(r"[-_.]+", "-", pin.partition("==")[0]).lower() for pin in pins]

    assert pins
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!]+", pin)] == []
    assert len(set(names)) == len(names)
    assert not {DISTRIBUTION, ENGINE} & set(names)
    assert "://" not in text


def test_constraints_cover_what_the_project_asks_for() -> None:
    """What the two distributions require, extras included, is pinned."""
    requirements = [each for name in (DISTRIBUTION, ENGINE) for each in importlib.metadata.requires(name) or []]
    asked = {re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", each)[0]).lower() for each in requirements}
    pins = (TOP / "constraints.txt").read_text().splitlines()

    assert asked - {ENGINE} - {re.sub(r"[-_.]+", "-", pin.partition("==")[0]).lower() for pin in pins} == set()


# Folders of one machine, and the hosts that packages come from: neither is anybody else's. The pattern and the examples
# below are written so that they pass the test themselves.
STRANGE = re.compile(
    r"(?<![\w.-])/(?:work|root|home/\w+|Users/\w+)/"
    r"|\b(?:pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|deb\.debian\.org|conda\.anaconda\.org)\b"
)


@pytest.mark.skipif(not (TOP / ".git").exists(), reason="only a git checkout knows which files are the project's")
def test_no_file_names_a_machine_or_a_package_index() -> None:
    """Nothing that is, or could be, committed holds a path of somebody's machine or the host of a package index."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=TOP,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    files = [path for name in listed.split("\0") if name and (path := TOP / name).is_file()]
    found = [
        f"{path.relative_to(TOP)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if STRANGE.search(line)
    ]

    assert files
    assert found == []


@pytest.mark.parametrize(
    "line", ["see |work|main", 'open("|root|.config")', "in |home|me|src", "https:||pypi+org|simple"]
)
def test_strange_addresses_are_recognised(line: str) -> None:
    """The pattern of the test above finds what it is meant to find."""
    assert STRANGE.search(line.replace("|", "/").replace("+", "."))


@pytest.mark.parametrize("line", ["queues/work/messages/", "a/root/b", "https://example.org/work/x"])
def test_ordinary_paths_are_not_strange(line: str) -> None:
    """A folder inside a bucket or an address may be called anything."""
    assert not STRANGE.search(line)


def test_each_pin_runs_on_the_oldest_python() -> None:
    """What is installed here is what constraints.txt says, and none of it refuses the oldest Python that we claim."""
    oldest = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=") + ".0"
    refusing = {
        f"{each.name} {each.version}": wanted
        for each in importlib.metadata.distributions()
        if (wanted := each.metadata.get("Requires-Python")) and not SpecifierSet(wanted).contains(oldest)
    }
    assert refusing == {}

"""The file docker-compose.yaml, read without Docker: what is pinned, open, secret, waited for, known to the tests."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest
import yaml

import airflow_provider_pawnqueue
from tests.compose import reading
from tests.e2e.airflow import conftest as e2e
from tools.kit import servers
from tools.kit.airflow import components, installation, settings
from tools.kit.airflow import spark as airflow_spark
from tools.kit.spark import cluster, environment

if TYPE_CHECKING:
    from types import ModuleType

TOP = reading.TOP
SERVICES = reading.services()
COMPOSE = TOP / "tools" / "compose"
PACKAGES = ("airflow_provider_pawnqueue", "pawnqueue", "pyspark_pawnqueue")
PAGE = TOP / "docs" / "how-to" / "compose.md"
ONCE = {"airflow-init"}

#: What of the Compose specification the file uses; a key that is none of these is a slip, or a new thing to check.
SCHEMA = {
    "type": "object",
    "required": ["services", "networks", "volumes"],
    "additionalProperties": False,
    "patternProperties": {
        "^x-": {"type": "object"},
        "^volumes$": {"type": "object", "additionalProperties": {"type": "null"}},
        "^networks$": {
            "type": "object",
            "additionalProperties": {
                "type": ["object", "null"],
                "additionalProperties": False,
                "properties": {"internal": {"const": True}},
            },
        },
        "^services$": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["image", "restart"],
                "additionalProperties": False,
                "properties": {
                    "image": {"type": "string", "pattern": r"^[a-z-]+:\d[\w.-]+$"},
                    "build": {
                        "type": "object",
                        "required": ["context", "dockerfile"],
                        "additionalProperties": False,
                        "properties": {"context": {"type": "string"}, "dockerfile": {"type": "string"}},
                    },
                    "user": {"type": "string", "pattern": r"^[1-9]\d*:\d+$"},
                    "init": {"const": True},
                    "restart": {"enum": ["unless-stopped", "no"]},
                    "command": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                    "environment": {"type": "object", "additionalProperties": {"type": "string"}},
                    "networks": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                    "volumes": {"type": "array", "items": {"type": "string", "pattern": r"^[\w./-]+:/[\w./-]+(:ro)?$"}},
                    "ports": {"type": "array", "items": {"type": "string", "pattern": r"^127\.0\.0\.1:\d+:\d+$"}},
                    "depends_on": {
                        "type": "object",
                        "additionalProperties": {
                            "type": "object",
                            "required": ["condition"],
                            "additionalProperties": False,
                            "properties": {
                                "condition": {"enum": ["service_healthy", "service_completed_successfully"]}
                            },
                        },
                    },
                    "healthcheck": {
                        "type": "object",
                        "required": ["test", "interval", "timeout", "retries", "start_period"],
                        "additionalProperties": False,
                        "properties": {
                            "test": {"type": "array", "items": {"type": "string"}, "minItems": 2},
                            "interval": {"type": "string", "pattern": r"^\d+s$"},
                            "timeout": {"type": "string", "pattern": r"^\d+s$"},
                            "retries": {"type": "integer", "minimum": 1},
                            "start_period": {"type": "string", "pattern": r"^\d+s$"},
                        },
                    },
                },
            },
        },
    },
}

#: Variables that nothing of the native suite has, and why.
OTHER_VARIABLES = {
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "the suite is on SQLite, one machine's database",
    "AIRFLOW__EDGE__API_ENABLED": "the suite's tasks run below its scheduler; a worker of its own asks the API server",
    "AIRFLOW__EDGE__API_URL": "likewise",
    "POSTGRES_USER": "the image of Postgres makes its user and database by them",
    "POSTGRES_PASSWORD": "likewise",
    "POSTGRES_DB": "likewise",
}
#: Words of commands that nothing of the native suite has, and why.
OTHER_WORDS = {
    "edge": "the worker, which the suite has not",
    "worker": "likewise",
    "--concurrency": "likewise",
    "socat": "containers are on networks, where the suite has loopback",
    "-bucket": "the suite makes a bucket for each of its tests, by a request",
}


def literals(*modules: ModuleType) -> set[str]:
    """Return all string literals in the source of modules."""
    trees = [ast.parse(inspect.getsource(module)) for module in modules]
    found = {str(node.value) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    # Of `-{component}.port={port}` each component makes one.
    return found | {f"-{each}.port=" for each in found if each.isidentifier()}


def test_it_is_what_compose_understands() -> None:
    """Keys, types and forms are the specification's: images have versions, ports are loopback's, users no root."""
    jsonschema.Draft202012Validator(SCHEMA).validate(reading.read())


def test_the_schema_refuses_what_it_is_for() -> None:
    """A floating tag, a port that is open to all, root, and a misspelled key are errors."""
    for name, key, wrong in (
        ("postgres", "image", "postgres:latest"),
        ("api-server", "ports", ["8080:8080"]),
        ("worker", "user", "0:0"),
        ("worker", "helthcheck", {}),
    ):
        changed = reading.read()
        changed["services"][name][key] = wrong
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(SCHEMA).validate(changed)


def test_all_that_the_issue_is_about_is_there() -> None:
    """Airflow's five parts, their database, a store, and a Spark cluster of two."""
    airflow = {"api-server", "scheduler", "dag-processor", "triggerer", "worker"}
    assert set(SERVICES) == airflow | ONCE | {"postgres", "seaweedfs", "s3", "spark-master", "spark-worker"}


def test_jobs_reach_no_more_than_they_need() -> None:
    """What runs users' code is on no network with the database or the store's own ports, nor has their secrets."""
    networks = {name: set(service.get("networks", ["default"])) for name, service in SERVICES.items()}
    assert set().union(*networks.values()) == set(reading.read()["networks"])
    for name in ("worker", "spark-master", "spark-worker"):
        assert networks[name] == {"default"}
        known = str(SERVICES[name]["environment"])
        assert "postgres" not in known
        assert "FERNET" not in known
        assert "API__SECRET_KEY" not in known
    assert networks["postgres"] == {"database"}
    assert networks["seaweedfs"] == {"store"}
    assert {name for name, on in networks.items() if "store" in on} == {"seaweedfs", "s3"}
    assert SERVICES["s3"]["command"][0] == "socat"


def test_services_wait_for_what_they_need() -> None:
    """What runs on has a health check; who waits, waits for that, or for the end of what runs once."""
    for name, service in SERVICES.items():
        assert ("healthcheck" in service) == (name not in ONCE)
        assert service["restart"] == ("no" if name in ONCE else "unless-stopped")
        for needed, how in service.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if needed in ONCE else "service_healthy"
            assert how["condition"] == wanted, (name, needed)
    assert "airflow-init" in SERVICES["scheduler"]["depends_on"]
    assert "postgres" in SERVICES["airflow-init"]["depends_on"]


def test_volumes_and_folders_exist() -> None:
    """Volumes are declared, and used; every mounted path exists, and nobody writes into it."""
    used = set()
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source, _, *mode = volume.split(":")
            if source.startswith("./"):
                assert (TOP / source).is_dir()
                assert mode == ["ro"]
            else:
                used.add(source)
    assert used == set(reading.read()["volumes"])


def test_no_secret_is_in_clear() -> None:
    """Each is a variable, whose sample says that it is one; with others set, no sample is left in the file."""
    secret = re.compile(r"PASSWORD|SECRET|FERNET|ACCESS_KEY")
    samples = {name: sample for name, sample in reading.variables().items() if secret.search(name)}
    assert samples
    assert all("sample" in sample or "c2FtcGxl" in sample for sample in samples.values())
    changed = str(reading.read({name: f"mine-{number}" for number, name in enumerate(samples)})["services"])
    assert [sample for sample in samples.values() if sample in changed] == []
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if secret.search(name):
                assert value in samples.values(), name


def test_the_example_of_variables_is_the_file_s() -> None:
    """`.env.example` has each variable that the file asks for, with its sample, and no other."""
    lines = (TOP / ".env.example").read_text().splitlines()
    assert dict(line.split("=", 1) for line in lines if line and line[0] != "#") == reading.variables()


def test_variables_are_those_of_the_native_suite() -> None:
    """Each is one that the suite's Airflow, Spark or store has, or is listed with its reason; none in vain."""
    used = {name for service in SERVICES.values() for name in service.get("environment", {})}
    known = set(
        settings.environment(
            Path("home"),
            port=1,
            log_ports=(2, 3),
            mark="m",
            parallelism=1,
            connections={"pawnqueue_default": {}, "spark_default": {}},
        )
    )
    known |= literals(cluster, environment, servers, airflow_spark)
    assert used - known == set(OTHER_VARIABLES)
    assert {"pawnqueue_default", "spark_default"} <= literals(e2e)


def test_values_of_airflow_s_settings_are_the_suite_s() -> None:
    """Where both say one of Airflow's settings that is no address, folder or secret, they say the same."""
    home = Path("home")
    native = settings.environment(home, port=1, log_ports=(2, 3), mark="m", parallelism=1, connections={})
    ours = {**SERVICES["scheduler"]["environment"], **SERVICES["worker"]["environment"]}
    same = {
        name for name in ours if name.startswith("AIRFLOW__") and native.get(name, "").lower() == ours[name].lower()
    }
    assert {name for name in ours if name.startswith("AIRFLOW__") and name in native} - same == {
        "AIRFLOW__API_AUTH__JWT_SECRET",
        "AIRFLOW__API__BASE_URL",
        "AIRFLOW__API__SECRET_KEY",
        "AIRFLOW__CORE__DAGS_FOLDER",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL",
        "AIRFLOW__CORE__EXECUTOR",  # it has a worker
        "AIRFLOW__CORE__FERNET_KEY",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER",
    }


def test_commands_are_those_of_the_native_suite() -> None:
    """Each word of a command is in the code that starts the suite's processes, or is listed with its reason."""
    known = literals(components, installation, servers, cluster)
    other = set()
    for service in SERVICES.values():
        for word in service.get("command", []):
            name, is_set, value = word.partition("=")
            if name[0] != "-":
                if name not in known and not re.search(r"\d|://|/|^spark-(master|worker)$", name):
                    other.add(name)
            elif word not in known and not any(each.startswith(f"{name}=") for each in known if is_set and value):
                other |= set() if name in known else {name}
    assert other == set(OTHER_WORDS)


def test_the_image_has_what_the_tests_run_on() -> None:
    """Its pins are exact, and contradict none of the tests'; what is copied into it exists, is sent, and is enough."""
    constraints = dict(
        line.split("==") for line in (TOP / "constraints.txt").read_text().splitlines() if line[0] != "#"
    )
    pins = [line for line in (COMPOSE / "requirements.txt").read_text().splitlines() if line[0] != "#"]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    assert [pin for pin in pins if constraints.get(pin.split("==")[0], pin.split("==")[1]) != pin.split("==")[1]] == []
    assert constraints["apache-airflow"].startswith("3.3.")
    dockerfile = (COMPOSE / "Dockerfile").read_text()
    assert re.search(r"^FROM python:3\.11\.\d+-slim-bookworm$", dockerfile, re.MULTILINE)
    ignored = (COMPOSE / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [part for line in re.findall(r"^COPY (.+)$", dockerfile, re.MULTILINE) for part in shlex.split(line)[:-1]]
    for name in copied:
        assert (TOP / name).exists()
        assert f"!{name}" in ignored
    assert {"hatch_build.py", "tools/engine", *PACKAGES} <= set(copied)
    mounted = {volume.split(":")[0] for volume in SERVICES["worker"]["volumes"]}
    assert {f"./{package}" for package in PACKAGES} <= mounted
    image = SERVICES["worker"]["image"]
    assert image == f"pawnqueue-compose:{airflow_provider_pawnqueue.__version__}"


def test_the_file_is_one_that_any_yaml_reader_reads() -> None:
    """No key is there twice, which a reader would pass over in silence."""

    class Strict(yaml.SafeLoader):
        """Refuses a key that occurs twice."""

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[object, object]:
        keys = [key.value for key, _ in node.value if key.value != "<<"]
        assert len(keys) == len(set(keys)), keys
        loader.flatten_mapping(node)
        return {loader.construct_object(key): loader.construct_object(value, deep=True) for key, value in node.value}

    Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    assert yaml.load(reading.FILE.read_text(), Strict)  # noqa: S506 - it is a SafeLoader

"""What Airflow reads of the provider when it starts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from airflow_provider_pawnqueue.hooks.connection import CONN_TYPE, read
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.provider_info import get_provider_info
from pawnqueue import Settings
from tests.hooks.test_connection import made

ROOT = Path(__file__).parents[2]
PACKAGE = "airflow_provider_pawnqueue"
INFO = get_provider_info()
TYPE = INFO["connection-types"][0]


def test_it_is_what_airflow_wants() -> None:
    """By its own schema."""
    schema = json.loads(resources.files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(INFO, schema)


def dotted(said: Any) -> Iterator[str]:  # noqa: ANN401 - whatever JSON has
    """Every dotted name of ours in it."""
    if isinstance(said, dict):
        said = list(said.values())
    if isinstance(said, list):
        for each in said:
            yield from dotted(each)
    elif isinstance(said, str) and said.startswith(f"{PACKAGE}."):
        yield said


@pytest.mark.parametrize("name", sorted(set(dotted(INFO))))
def test_every_name_in_it_leads_to_something(name: str) -> None:
    """A module, or what is in one."""
    try:
        import_module(name)
    except ModuleNotFoundError:
        module, _, thing = name.rpartition(".")
        assert hasattr(import_module(module), thing)


def test_it_costs_nothing_to_ask() -> None:
    """Nothing is imported but the standard library and the package itself."""
    program = (
        "import sys; before = set(sys.modules)\n"
        f"from {PACKAGE}.provider_info import get_provider_info; get_provider_info()\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [PACKAGE]


def test_the_hook_is_the_one_of_the_connection_type() -> None:
    """By all names that Airflow compares."""
    assert TYPE["connection-type"] == PawnQueueHook.conn_type == CONN_TYPE
    assert TYPE["hook-name"] == PawnQueueHook.hook_name
    assert TYPE["hook-class-name"] == f"{PawnQueueHook.__module__}.{PawnQueueHook.__name__}"
    assert PawnQueueHook.conn_name_attr == "pawnqueue_conn_id"


def test_every_field_of_the_form_is_a_setting() -> None:
    """And what the form shows as its default is the default, and what it lets one choose is taken."""
    fields = TYPE["conn-fields"]
    assert {"bucket_name", "aws_conn_id", "strategy", "addressing_style"} <= set(fields)
    plain = read(made({"bucket_name": "queues"})).settings
    for name, field in fields.items():
        schema = field["schema"]
        for value in [schema["default"]] if "default" in schema else []:
            assert read(made({"bucket_name": "queues", name: value})).settings == plain, name
        for value in schema.get("enum", []):
            if value is not None:
                assert read(made({"bucket_name": "queues", name: value}))
        if "integer" in schema["type"]:
            for value in (200, "200"):
                assert isinstance(read(made({"bucket_name": "queues", name: value})).settings, Settings)
        if "enum" not in schema and name != "bucket_name":
            jsonschema.Draft7Validator(schema).validate(None)  # left empty


def test_the_form_asks_for_what_a_bucket_needs_first() -> None:
    """The bucket comes first, and the field that a bucket has elsewhere is not shown."""
    assert next(iter(TYPE["conn-fields"])) == "bucket_name"
    assert TYPE["ui-field-behaviour"]["hidden-fields"] == ["schema"]
    assert set(TYPE["ui-field-behaviour"]["relabeling"]) == {"host", "port", "login", "password"}

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

from airflow_provider_pawnqueue.hooks.connection import CONN_TYPE, path_of, read
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.provider_info import get_provider_info
from pawnqueue import Settings
from pawnqueue.registers import strategies
from pawnqueue.registers.strategies import AUTO
from tests.hooks.test_connection import made

ROOT = Path(__file__).parents[2]
PACKAGE = "airflow_provider_pawnqueue"
INFO = get_provider_info()
TYPE = INFO["connection-types"][0]


def test_it_is_what_airflow_wants() -> None:
    """Airflow's schema accepts it."""
    schema = json.loads(resources.files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(INFO, schema)


def dotted(said: Any) -> Iterator[str]:  # noqa: ANN401 - whatever JSON has
    """Yield each dotted name of this package."""
    if isinstance(said, dict):
        said = list(said.values())
    if isinstance(said, list):
        for each in said:
            yield from dotted(each)
    elif isinstance(said, str) and said.startswith(f"{PACKAGE}."):
        yield said


@pytest.mark.parametrize("name", sorted(set(dotted(INFO))))
def test_every_name_in_it_leads_to_something(name: str) -> None:
    """Each name is a module, or an attribute of one."""
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
    """The hook and the connection type have the same names."""
    assert TYPE["connection-type"] == PawnQueueHook.conn_type == CONN_TYPE
    assert TYPE["hook-name"] == PawnQueueHook.hook_name
    assert TYPE["hook-class-name"] == f"{PawnQueueHook.__module__}.{PawnQueueHook.__name__}"
    assert PawnQueueHook.conn_name_attr == "pawnqueue_conn_id"


def test_every_field_of_the_form_is_a_setting() -> None:
    """What the form shows as a default is the default, and each choice that it offers is accepted."""
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


def test_the_form_has_what_the_strategies_declare() -> None:
    """Each strategy can be chosen, and has a field for each setting that it declares, with its default."""
    fields = TYPE["conn-fields"]
    assert fields["strategy"]["schema"]["enum"] == [AUTO, *strategies.names()]
    settings = read(made({"bucket_name": "queues"})).settings.concurrency
    declared, shown = {}, {}
    for strategy in strategies.STRATEGIES:
        for field in strategy.form:
            default = getattr(getattr(settings, strategy.name), field.setting)
            description = f"{field.description.removesuffix('.')}; {default} if empty."
            declared[f"concurrency.{strategy.name}.{field.setting}"] = (field.label, description)
    for name, field in fields.items():
        if path_of(name).count(".") > 1:
            shown[path_of(name)] = (field["label"], field["description"])
    assert shown == declared != {}


def test_the_form_names_the_defaults_of_polling() -> None:
    """An empty field means the default that its description names."""
    polling = read(made({"bucket_name": "queues"})).settings.polling
    for name in ("visibility_timeout_seconds", "max_messages_per_poll"):
        assert TYPE["conn-fields"][name]["description"].endswith(f"; {getattr(polling, name):g} if empty.")


def test_the_form_asks_for_what_a_bucket_needs_first() -> None:
    """The bucket comes first, and the field that a bucket has elsewhere is not shown."""
    assert next(iter(TYPE["conn-fields"])) == "bucket_name"
    assert TYPE["ui-field-behaviour"]["hidden-fields"] == ["schema"]
    assert set(TYPE["ui-field-behaviour"]["relabeling"]) == {"host", "port", "login", "password"}

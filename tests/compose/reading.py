"""The file `docker-compose.yaml` as Compose reads it: with its variables filled in, and `$$` for a dollar."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

TOP = Path(__file__).parents[2]
FILE = TOP / "docker-compose.yaml"
_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>[A-Z][A-Z0-9_]*):-(?P<sample>[^}]*)\})")


def read(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the whole file; a variable that ``environ`` does not have, or has empty, is its sample."""
    filled: dict[str, Any] = _filled(yaml.safe_load(FILE.read_text(encoding="utf-8")), environ or {})
    return filled


def services(environ: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """Return the services by name, in an order in which each comes after those that it waits for."""
    found: dict[str, dict[str, Any]] = read(environ)["services"]
    ordered: dict[str, dict[str, Any]] = {}

    def add(name: str) -> None:
        for needed in found[name].get("depends_on", {}):
            add(needed)
        ordered.setdefault(name, found[name])

    for name in found:
        add(name)
    return ordered


def variables() -> dict[str, str]:
    """Return the variables that the file asks for, with their samples; each has one sample only."""
    found: dict[str, str] = {}
    for match in _VARIABLE.finditer(FILE.read_text(encoding="utf-8")):
        if match["name"] and found.setdefault(match["name"], match["sample"]) != match["sample"]:
            raise ValueError(f"{match['name']} has two samples")
    return found


def _filled(value: Any, environ: Mapping[str, str]) -> Any:  # noqa: ANN401 - whatever YAML can hold
    match value:
        case dict():
            return {key: _filled(each, environ) for key, each in value.items()}
        case list():
            return [_filled(each, environ) for each in value]
        case str():
            return _VARIABLE.sub(
                lambda found: "$" if found["dollar"] else environ.get(found["name"]) or found["sample"], value
            )
        case _:
            return value

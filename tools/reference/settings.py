"""``settings.md``: everything that can be set about a queue."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import WrapValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pawnqueue import Settings
from pawnqueue.settings.base import Section
from pawnqueue.settings.contradictions import list_contradictions
from pawnqueue.settings.environment import variable_of
from tools.reference.words import code, first, table, told

HEAD = """# Settings

Every setting of a queue. `python -m tools.reference` writes this page from the code.
[config.example.yaml](../../config.example.yaml) has all settings as YAML, to copy. An Airflow connection has the
same names in its extra ([In Airflow](../airflow.md#the-connection)), and in Spark they are options
([Spark](spark.md)).

A text must not be empty or have white space around it. A time is at most ten years.

`PawnQueue.open(...)` makes `Settings` from its arguments. You can also make them yourself:
"""
CONTRADICTIONS = """
## Settings that contradict each other

They raise a `ConfigError` with one of these sentences:

"""
#: Rules that all texts, and all times, share are stated once.
_ASIDE = re.compile(r" \([^)]*\)|: a text that is not empty.*|(?<=^a text) that is not empty.*| and up to 315360000")


def page() -> str:
    """Return the page as the code has it now."""
    text = told(Settings).text.partition("\n\n")[2]
    contradictions = [f"- {sentence}\n" for sentence in list_contradictions(code)]
    return "".join([HEAD, "\n", text, "\n", *_sections(Settings), CONTRADICTIONS, *contradictions])


def _sections(kind: type[Section]) -> Iterator[str]:
    for section in kind.sections().values():
        yield f"\n## {section.model_config['title']}\n\n{first(section)}\n\n"
        fields = {name: field for name, field in section.model_fields.items() if name not in section.sections()}
        yield table("YAML | variable | type | default | meaning", [_row(section, *each) for each in fields.items()])
        yield from _sections(section)


def _row(section: type[Section], name: str, field: FieldInfo) -> list[str]:
    path = section.dotted_path((name,))
    kinds = [*_expected(field.annotation), *(each for one in field.metadata for each in _said_by(one))]
    meaning = field.description or ""
    return [code(path), code(variable_of(path)), " or ".join(kinds), _default(field), meaning]


def _expected(annotation: Any) -> Iterator[str]:  # noqa: ANN401 - whatever a field is annotated with
    """Say what a field takes, in the words in which it refuses everything else."""
    origin = get_origin(annotation)
    if origin in {Union, types.UnionType}:
        for each in get_args(annotation):
            yield from _expected(each)
    elif origin is Annotated:
        for each in get_args(annotation)[1:]:
            yield from _said_by(each)
    elif origin is Literal:
        yield ", ".join(code(each) for each in get_args(annotation))


def _said_by(validator: object) -> Iterator[str]:
    if isinstance(validator, WrapValidator) and validator.func.__doc__:
        yield _ASIDE.sub("", validator.func.__doc__)


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "has to be set"
    if isinstance(field.default, bool):
        return code(str(field.default).lower())
    return "" if field.default in {None, ""} else code(field.default)

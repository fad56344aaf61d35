"""Schemas as Spark writes them: ``order_id long, lines array<struct<item: string, count: int>>``; or Spark's own JSON.

Read here rather than by Spark's JVM, which would answer a typing error with a page of its own words, and which reads
``timestamp`` in two ways, by a setting of the session.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Final, NoReturn

from pyspark.sql import types
from pyspark.sql.types import DataType, StructField, StructType

from pawnqueue import InvalidArgumentError

#: In the metadata of a column that was to be ``not null``: without a value for it, a row is corrupt.
REQUIRED: Final = "pawnqueue.required"

_PLAIN: Final[Mapping[str, Callable[[], DataType]]] = {
    "string": types.StringType,
    "boolean": types.BooleanType,
    "byte": types.ByteType,
    "tinyint": types.ByteType,
    "short": types.ShortType,
    "smallint": types.ShortType,
    "int": types.IntegerType,
    "integer": types.IntegerType,
    "long": types.LongType,
    "bigint": types.LongType,
    "float": types.FloatType,
    "real": types.FloatType,
    "double": types.DoubleType,
    "date": types.DateType,
    "timestamp": types.TimestampType,
    "timestamp_ltz": types.TimestampType,
    "timestamp_ntz": types.TimestampNTZType,
    "binary": types.BinaryType,
}
_DECIMALS: Final = ("decimal", "dec", "numeric")
_NESTED: Final = ("array", "map", "struct")
#: Types of Spark's for which JSON has nothing.
_FOREIGN: Final = ("char", "character", "varchar", "variant", "void", "interval", "geography", "geometry", "time")
_DIGITS: Final = types.DecimalType(38, 0).precision
#: The longest schema that is read, and the deepest one: each array, map or struct is a level.
MAX_SCHEMA_CHARACTERS: Final = 200_000
MAX_SCHEMA_DEPTH: Final = 50
#: How many characters of what was written an error shows.
_SHOWN_CHARACTERS: Final = 200
# Nothing is tried twice: what is not closed is taken to the end of the text, so that each character is read once.
_QUOTED: Final = r"""`(?:[^`]|``)*+`|'(?:[^'\\]|\\.|'')*+'|"(?:[^"\\]|\\.|"")*+\""""
_UNCLOSED: Final = """[`'"].*"""
_BLANK: Final = re.compile(rf"({_QUOTED}|{_UNCLOSED})|--[^\n]*|/\*.*?\*/|(/\*.*)", re.DOTALL)
_TOKEN: Final = re.compile(rf"{_QUOTED}|{_UNCLOSED}|\w+|\S", re.DOTALL)
_IS_QUOTED: Final = re.compile(_QUOTED, re.DOTALL)


def payload_columns(text: str) -> StructType:
    """Read a schema. All its columns can be null; those that were not to be are marked by :data:`REQUIRED`.

    :raises InvalidArgumentError: it is none; its sentence says where.
    """
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise InvalidArgumentError(
            f"payloadSchema has {len(text):,} characters, and {MAX_SCHEMA_CHARACTERS:,} are read: name the columns "
            "that the query needs, and take others from the payload: get_json_object(payload, '$.name').",
            operation="spark",
        )
    columns = _of_json(text) if text.lstrip().startswith("{") else _Reader(text).columns()
    check_depth(columns)
    check_names(columns)
    return StructType([_nullable(field) for field in columns])


def check_names(columns: StructType) -> None:
    """Refuse two columns of one name. ``a`` and ``A`` are two names, which Spark tells apart with ``caseSensitive``.

    :raises InvalidArgumentError: there are two.
    """
    named: set[str] = set()
    for field in columns:
        if field.name in named:
            raise InvalidArgumentError(
                f"The schema has two columns {_shown(field.name)}: leave one of them out.", operation="spark"
            )
        named.add(field.name)


def check_depth(kind: DataType) -> None:
    """Refuse a schema that is nested more deeply than what reads it.

    :raises InvalidArgumentError: it is.
    """
    level = [kind]
    for _ in range(MAX_SCHEMA_DEPTH + 2):
        level = [part for each in level for part in _parts(each)]
        if not level:
            return
    raise _too_deep()


def _parts(kind: DataType) -> list[DataType]:
    if isinstance(kind, types.ArrayType):
        return [kind.elementType]
    if isinstance(kind, types.MapType):
        return [kind.keyType, kind.valueType]
    return [field.dataType for field in kind.fields] if isinstance(kind, StructType) else []


def _too_deep() -> InvalidArgumentError:
    return InvalidArgumentError(
        f"The schema is nested more than {MAX_SCHEMA_DEPTH} levels deep: name a column of type string for what lies "
        "deeper, and take it from the payload yourself: get_json_object(payload, '$.name').",
        operation="spark",
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")


def _nullable(field: StructField) -> StructField:
    metadata = {} if field.nullable else {REQUIRED: True}
    return StructField(field.name, field.dataType, nullable=True, metadata={**field.metadata, **metadata})


def _of_json(text: str) -> StructType:
    try:
        return StructType.fromJson(json.loads(text))
    except Exception:  # noqa: BLE001 - whatever PySpark raises for what it does not know
        raise InvalidArgumentError(
            "payloadSchema looks like JSON, and is no schema as df.schema.json() writes it: pass that, or write "
            '"order_id long, item string".',
            operation="spark",
        ) from None


class _Reader:
    """Reads a schema from its beginning to its end, a word at a time."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = list(_TOKEN.findall(_BLANK.sub(_kept, text)))
        self._at = 0
        self._depth = 0

    def columns(self) -> StructType:
        fields = self._fields(ends=("",))
        if not fields:
            self._wrong("it has no column")
        return StructType(fields)

    # --- words ---

    @property
    def _word(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def _next(self) -> str:
        word = self._word
        self._at += 1
        return word

    def _took(self, word: str) -> bool:
        if self._word.lower() != word:
            return False
        self._at += 1
        return True

    def _expect(self, word: str, after: str) -> None:
        if not self._took(word):
            self._wrong(f"{word!r} is missing after {after}")

    def _wrong(self, why: str) -> NoReturn:
        if self._word[:1] in ("`", "'", '"') and not _IS_QUOTED.fullmatch(self._word):
            why = "a quote is not closed"
        where = f"before {_shown(self._word)}" if self._word else "at its end"
        raise InvalidArgumentError(
            f"payloadSchema={_shown(self._text)} cannot be read: {why}, {where}. Write a name and a type for each "
            'column, as in "order_id long, lines array<struct<item: string, count: int>>", and names with other '
            "characters than letters, digits and _ in `backticks`.",
            operation="spark",
        )

    # --- what they mean ---

    def _fields(self, ends: tuple[str, ...]) -> list[StructField]:
        fields: list[StructField] = []
        while self._word not in ends:
            fields.append(self._field())
            if not self._took(",") and self._word not in ends:
                self._wrong(f"column {_shown(fields[-1].name)} has ended")
        return fields

    def _field(self) -> StructField:
        name = self._word
        if name.startswith("`") and len(name) > len("``") and _IS_QUOTED.fullmatch(name):
            name = name[1:-1].replace("``", "`")
        elif not re.fullmatch(r"\w+", name):
            self._wrong("a column's name is missing")
        self._at += 1
        self._took(":")
        kind = self._type(name)
        nullable, metadata = True, {}
        if self._took("not"):
            self._expect("null", "NOT")
            nullable = False
        if self._took("comment"):
            if self._word[:1] not in ("'", '"') or not _IS_QUOTED.fullmatch(self._word):
                self._wrong("a text in quotes is missing after COMMENT")
            metadata = {"comment": self._next()[1:-1]}
        return StructField(name, kind, nullable, metadata)

    def _type(self, name: str) -> DataType:
        word = self._word.lower()
        if not re.fullmatch(r"\w+", word):
            self._wrong(f"column {_shown(name)} has no type")
        if word in _FOREIGN:
            raise InvalidArgumentError(
                f"Column {_shown(name)} of payloadSchema is of type {word}, which is not read from JSON: read it as a "
                "string, and convert it yourself.",
                operation="spark",
            )
        if word not in (*_PLAIN, *_DECIMALS, *_NESTED):
            near = get_close_matches(word, (*_PLAIN, *_DECIMALS, *_NESTED), n=1)
            self._wrong(f"{_shown(self._word)} is no type" + (f" (did you mean {near[0]}?)" if near else ""))
        self._at += 1
        if word in _DECIMALS:
            return self._decimal()
        return self._nested(word, name) if word in _NESTED else _PLAIN[word]()

    def _nested(self, word: str, name: str) -> DataType:
        self._depth += 1
        if self._depth > MAX_SCHEMA_DEPTH:
            raise _too_deep()
        kind = self._struct() if word == "struct" else self._array(name) if word == "array" else self._map(name)
        self._depth -= 1
        return kind

    def _array(self, name: str) -> DataType:
        self._expect("<", "array")
        element = self._type(f"{name}[]")
        self._expect(">", "the type of an array's elements")
        return types.ArrayType(element)

    def _map(self, name: str) -> DataType:
        self._expect("<", "map")
        key = self._type(f"{name}{{}}")
        self._expect(",", "the type of a map's keys")
        value = self._type(f"{name}{{}}")
        self._expect(">", "the type of a map's values")
        return types.MapType(key, value)

    def _struct(self) -> DataType:
        self._expect("<", "struct")
        fields = self._fields(ends=(">", ""))
        self._expect(">", "the fields of a struct")
        return StructType(fields)

    def _decimal(self) -> DataType:
        precision, scale = 10, 0
        if self._took("("):
            precision = self._digits()
            if self._took(","):
                scale = self._digits()
            self._expect(")", "the digits of a decimal")
        if not 0 < precision <= _DIGITS or scale > precision:
            self._wrong(f"a decimal has up to {_DIGITS} digits, and no more of them behind its point")
        return types.DecimalType(precision, scale)

    def _digits(self) -> int:
        if not re.fullmatch("[0-9]{1,4}", self._word):
            self._wrong("a decimal's number of digits is missing")
        return int(self._next())


def _kept(found: re.Match[str]) -> str:
    """Keep what is quoted, and a comment that is not closed; put a blank for other comments."""
    return found.group(1) or found.group(2) or " "

"""The option ``payloadSchema``: ``order_id long, lines array<struct<item: string, count: int>>``, or Spark's own JSON.

It is parsed here rather than by Spark's JVM. Spark would answer a typing error with a page of its own words, and reads
``timestamp`` in two ways, depending on a setting of the session.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final, NoReturn

from pyspark.sql import types
from pyspark.sql.types import DataType, StructField, StructType

from pawnqueue import InvalidArgumentError
from pyspark_pawnqueue.spark_errors import invalid_argument, shorten

#: In the metadata of a column that was declared ``not null``: a row without a value for it is corrupt.
REQUIRED: Final = "pawnqueue.required"
#: In the metadata of a string column, or one of arrays of strings: values that are no strings are its text as JSON.
JSON_TEXT: Final = "pawnqueue.json_text"

_NAMES_OF_SIMPLE_TYPES: Final[Mapping[Callable[[], DataType], Sequence[str]]] = {
    types.StringType: ("string",),
    types.BooleanType: ("boolean",),
    types.ByteType: ("byte", "tinyint"),
    types.ShortType: ("short", "smallint"),
    types.IntegerType: ("int", "integer"),
    types.LongType: ("long", "bigint"),
    types.FloatType: ("float", "real"),
    types.DoubleType: ("double",),
    types.DateType: ("date",),
    types.TimestampType: ("timestamp", "timestamp_ltz"),
    types.TimestampNTZType: ("timestamp_ntz",),
    types.BinaryType: ("binary",),
}
_SIMPLE_TYPES: Final = {name: kind for kind, names in _NAMES_OF_SIMPLE_TYPES.items() for name in names}
#: The types that JSON can hold.
JSON_TYPES: Final = (*_NAMES_OF_SIMPLE_TYPES, types.DecimalType, types.ArrayType, types.MapType, StructType)
_DECIMAL_TYPES: Final = ("decimal", "dec", "numeric")
#: What comes last before the closing bracket of each nested type.
_LAST_PARTS: Final = {
    "array": "the type of an array's elements",
    "map": "the type of a map's values",
    "struct": "the fields of a struct",
}
_TYPES: Final = (*_SIMPLE_TYPES, *_DECIMAL_TYPES, *_LAST_PARTS)
#: Types of Spark that JSON cannot hold.
_UNSUPPORTED_TYPES: Final = (
    "char",
    "character",
    "varchar",
    "variant",
    "void",
    "interval",
    "geography",
    "geometry",
    "time",
)
_MAX_DECIMAL_DIGITS: Final = types.DecimalType(38, 0).precision
MAX_SCHEMA_CHARACTERS: Final = 200_000
#: Each array, map or struct is a level.
MAX_SCHEMA_DEPTH: Final = 50
#: How many characters of the schema an error shows.
_SHOWN_CHARACTERS: Final = 200
# An unclosed quote or comment is taken to the end of the text, so that the expressions read each character once.
_QUOTED: Final = r"""`(?:[^`]|``)*+`|'(?:[^'\\]|\\.|'')*+'|"(?:[^"\\]|\\.|"")*+\""""
_UNCLOSED: Final = """[`'"].*"""
_BLANK: Final = re.compile(rf"({_QUOTED}|{_UNCLOSED})|--[^\n]*|/\*.*?\*/|(/\*.*)", re.DOTALL)
_TOKEN: Final = re.compile(rf"{_QUOTED}|{_UNCLOSED}|\w+|\S", re.DOTALL)
_IS_QUOTED: Final = re.compile(_QUOTED, re.DOTALL)


def payload_columns(text: str) -> StructType:
    """Return the columns of a schema. All of them can be null: ``not null`` becomes the metadata :data:`REQUIRED`.

    :raises InvalidArgumentError: the text is not a schema. The error says where it stops being one.
    """
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise invalid_argument(
            f"payloadSchema has {len(text):,} characters, and {MAX_SCHEMA_CHARACTERS:,} are allowed: name the columns "
            "that the query needs, and take others from the payload: get_json_object(payload, '$.name')."
        )
    columns = _from_json(text) if text.lstrip().startswith("{") else _Parser(text).columns()
    check_depth(columns)
    check_names(columns)
    return StructType([_nullable(field) for field in columns])


def check_names(columns: StructType) -> None:
    """Refuse two columns of one name. ``a`` and ``A`` are two names: Spark tells them apart with ``caseSensitive``.

    :raises InvalidArgumentError: a name occurs twice.
    """
    seen: set[str] = set()
    for name in columns.names:
        if name in seen:
            raise invalid_argument(f"The schema has two columns {_shown(name)}: leave one of them out.")
        seen.add(name)


def check_depth(kind: DataType) -> None:
    """Refuse a schema that is nested too deeply for the functions that read it.

    :raises InvalidArgumentError: it is.
    """
    level = [kind]
    for _ in range(MAX_SCHEMA_DEPTH + 2):
        level = [inner for each in level for _, inner in _inner_types("", each)]
        if not level:
            return
    raise _too_deep()


def check_json_type(name: str, kind: DataType, is_supported: Callable[[DataType], bool]) -> None:
    """Refuse a column whose type JSON cannot hold.

    :param name: the column, or the path to the part of it.
    :param is_supported: returns whether a type, without the types inside of it, can be converted.
    :raises InvalidArgumentError: the column, or a part of it, is of such a type.
    """
    if isinstance(kind, types.MapType) and not isinstance(kind.keyType, types.StringType):
        raise invalid_argument(
            f"Column {name!r} is a map whose keys are not strings, and JSON has no others: cast them."
        )
    if not is_supported(kind):
        raise invalid_argument(
            f"Column {name!r} is of type {kind.simpleString()}, which JSON cannot hold: use a string, and convert it "
            "yourself."
        )
    if isinstance(kind, StructType):
        check_names(kind)
    for path, inner in _inner_types(name, kind):
        check_json_type(path, inner, is_supported)


def _inner_types(name: str, kind: DataType) -> list[tuple[str, DataType]]:
    """Return the types inside of an array, map or struct, with their paths."""
    if isinstance(kind, types.ArrayType):
        return [(f"{name}[]", kind.elementType)]
    if isinstance(kind, types.MapType):
        return [(f"{name}{{key}}", kind.keyType), (f"{name}{{}}", kind.valueType)]
    return [(f"{name}.{field.name}", field.dataType) for field in kind.fields] if isinstance(kind, StructType) else []


def _too_deep() -> InvalidArgumentError:
    return invalid_argument(
        f"The schema is nested more than {MAX_SCHEMA_DEPTH} levels deep: name a column of type string for the deeper "
        "levels, and take them from the payload yourself: get_json_object(payload, '$.name')."
    )


def _shown(text: str) -> str:
    return shorten(text, _SHOWN_CHARACTERS)


def _nullable(field: StructField) -> StructField:
    metadata = {} if field.nullable else {REQUIRED: True}
    return StructField(field.name, field.dataType, nullable=True, metadata={**field.metadata, **metadata})


def _from_json(text: str) -> StructType:
    try:
        return StructType.fromJson(json.loads(text))
    except Exception:  # noqa: BLE001 - PySpark raises errors of many kinds for what it does not know
        raise invalid_argument(
            "payloadSchema looks like JSON, but not like a schema that df.schema.json() wrote: pass one of those, or "
            'write "order_id long, item string".'
        ) from None


class _Parser:
    """Parses a schema from its beginning to its end, a word at a time."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = list(_TOKEN.findall(_BLANK.sub(_blank_comment, text)))
        self._position = 0
        self._depth = 0

    def columns(self) -> StructType:
        fields = self._fields(ends=("",))
        if not fields:
            self._fail("it has no column")
        return StructType(fields)

    # --- words ---

    @property
    def _word(self) -> str:
        return self._words[self._position] if self._position < len(self._words) else ""

    def _take(self) -> str:
        word = self._word
        self._position += 1
        return word

    def _take_if(self, word: str) -> bool:
        is_next = self._word.lower() == word
        self._position += is_next
        return is_next

    def _expect(self, word: str, after: str) -> None:
        if not self._take_if(word):
            self._fail(f"{word!r} is missing after {after}")

    def _fail(self, why: str) -> NoReturn:
        if self._word[:1] in ("`", "'", '"') and not _IS_QUOTED.fullmatch(self._word):
            why = "a quote is not closed"
        where = f"before {_shown(self._word)}" if self._word else "at its end"
        raise invalid_argument(
            f"payloadSchema={_shown(self._text)} cannot be read: {why}, {where}. Write a name and a type for each "
            'column, as in "order_id long, lines array<struct<item: string, count: int>>". Names with other characters '
            "than letters, digits and _ need `backticks`."
        )

    # --- columns and types ---

    def _fields(self, ends: tuple[str, ...]) -> list[StructField]:
        fields: list[StructField] = []
        while self._word not in ends:
            fields.append(self._field())
            if not self._take_if(",") and self._word not in ends:
                self._fail(f"a comma or the end is missing after column {_shown(fields[-1].name)}")
        return fields

    def _field(self) -> StructField:
        name = self._word
        if name.startswith("`") and len(name) > len("``") and _IS_QUOTED.fullmatch(name):
            name = name[1:-1].replace("``", "`")
        elif not re.fullmatch(r"\w+", name):
            self._fail("a column's name is missing")
        self._position += 1
        self._take_if(":")
        kind = self._type(name)
        nullable, metadata = True, {}
        if self._take_if("not"):
            self._expect("null", "NOT")
            nullable = False
        if self._take_if("comment"):
            if self._word[:1] not in ("'", '"') or not _IS_QUOTED.fullmatch(self._word):
                self._fail("a text in quotes is missing after COMMENT")
            metadata = {"comment": self._take()[1:-1]}
        return StructField(name, kind, nullable, metadata)

    def _type(self, name: str) -> DataType:
        word = self._word.lower()
        if not re.fullmatch(r"\w+", word):
            self._fail(f"column {_shown(name)} has no type")
        if word in _UNSUPPORTED_TYPES:
            raise invalid_argument(
                f"Column {_shown(name)} of payloadSchema is of type {word}, which JSON cannot hold: use a string, and "
                "convert it yourself."
            )
        if word not in _TYPES:
            near = get_close_matches(word, _TYPES, n=1)
            self._fail(f"{_shown(self._word)} is not a type" + (f" (did you mean {near[0]}?)" if near else ""))
        self._position += 1
        if word in _DECIMAL_TYPES:
            return self._decimal()
        return self._nested(word, name) if word in _LAST_PARTS else _SIMPLE_TYPES[word]()

    def _nested(self, word: str, name: str) -> DataType:
        self._depth += 1
        if self._depth > MAX_SCHEMA_DEPTH:
            raise _too_deep()
        self._expect("<", word)
        kind: DataType
        if word == "array":
            kind = types.ArrayType(self._type(f"{name}[]"))
        elif word == "map":
            key = self._type(f"{name}{{key}}")
            self._expect(",", "the type of a map's keys")
            kind = types.MapType(key, self._type(f"{name}{{}}"))
        else:
            kind = StructType(self._fields(ends=(">", "")))
        self._expect(">", _LAST_PARTS[word])
        self._depth -= 1
        return kind

    def _decimal(self) -> DataType:
        precision, scale = 10, 0
        if self._take_if("("):
            precision = self._digits()
            if self._take_if(","):
                scale = self._digits()
            self._expect(")", "the digits of a decimal")
        if not 0 < precision <= _MAX_DECIMAL_DIGITS or scale > precision:
            self._fail(
                f"a decimal has from 1 to {_MAX_DECIMAL_DIGITS} digits, and no more of them after the decimal point"
            )
        return types.DecimalType(precision, scale)

    def _digits(self) -> int:
        if not re.fullmatch("[0-9]{1,4}", self._word):
            self._fail("a decimal's number of digits is missing")
        return int(self._take())


def _blank_comment(found: re.Match[str]) -> str:
    """Return a blank for a comment, and the text itself for a quote or an unclosed comment."""
    return found.group(1) or found.group(2) or " "

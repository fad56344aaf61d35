"""Columns for what a schema cannot take: the text of a payload that does not fit, and the fields that are left over."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from pyspark.sql import types
from pyspark.sql.types import DataType, StructField, StructType

from pyspark_pawnqueue.spark_errors import invalid_argument, shorten
from pyspark_pawnqueue.spark_options import SparkOptions

#: The metadata of each of the two columns, by the option that names it.
CORRUPT_RECORD: Final = "pawnqueue.corrupt_record"
RESCUED_DATA: Final = "pawnqueue.rescued_data"
_MARKS: Final[Mapping[str, str]] = {"columnNameOfCorruptRecord": CORRUPT_RECORD, "rescuedDataColumn": RESCUED_DATA}


def with_extra_columns(schema: StructType, options: SparkOptions, reserved: Collection[str]) -> StructType:
    """Return the schema of a query with the columns that its options name, if they are not among its columns.

    :param reserved: names in lower case that they cannot have.
    :raises InvalidArgumentError: a name is reserved, is used twice, or is that of a column of another type.
    """
    names = _names(options, reserved)
    if names and not (options.payload_schema or options.infers_schema):
        raise invalid_argument(
            f"The option {next(iter(names))} is for what does not fit a schema, and the query has none: add the option "
            "payloadSchema or inferSchema, or leave it out."
        )
    more = [StructField(name, types.StringType()) for name in names.values() if name not in schema.names]
    return mark_extra_columns(StructType([*schema.fields, *more]), options, reserved)


def mark_extra_columns(schema: StructType, options: SparkOptions, reserved: Collection[str]) -> StructType:
    """Return the schema with a mark on each of those columns, for the process that makes rows.

    :raises InvalidArgumentError: as above, or the schema lacks such a column.
    """
    fields = {field.name: field for field in schema.fields}
    for option, name in _names(options, reserved).items():
        if name not in fields:
            raise invalid_argument(
                f"The option {option} names the column {shorten(name)}, which .schema(…) lacks: add it there as a "
                "string, or leave the option out."
            )
        field = fields[name]
        if not isinstance(field.dataType, types.StringType):
            raise invalid_argument(
                f"The option {option} names the column {shorten(name)} of type {field.dataType.simpleString()}: "
                "declare it as a string, or name another one."
            )
        fields[name] = StructField(name, field.dataType, field.nullable, {**field.metadata, _MARKS[option]: True})
    return StructType([fields[name] for name in schema.names])


def is_extra(field: StructField) -> bool:
    """Say whether a column of the schema is one of these, and so no field of the payload."""
    return CORRUPT_RECORD in field.metadata or RESCUED_DATA in field.metadata


def _names(options: SparkOptions, reserved: Collection[str]) -> dict[str, str]:
    """Return the names of these columns, by the option that gives them."""
    names = {option: name for option in _MARKS if (name := options.text(option)) is not None}
    if len(set(names.values())) < len(names):
        raise invalid_argument("The options columnNameOfCorruptRecord and rescuedDataColumn name the same column.")
    for option, name in names.items():
        if name.lower() in reserved:
            raise invalid_argument(
                f"The option {option} names the column {shorten(name)}, which every message has: choose another name."
            )
    return names


# --- what is left over ---

_NOTHING: Final = object()


def rescued_data(payload: Mapping[str, Any], columns: StructType, unfit: Collection[str]) -> dict[str, Any] | None:
    """Return the fields of a payload that have no column, or whose values do not fit theirs; None if there are none.

    :param columns: those of the payload.
    :param unfit: the names of columns that the values do not fit.
    """
    found = _left_over_of_struct(payload, columns, unfit)
    return found or None


def _left_over_of_struct(value: Mapping[str, Any], kind: StructType, unfit: Collection[str] = ()) -> dict[str, Any]:
    kinds = {field.name: field.dataType for field in kind.fields}
    found = {}
    for name, inner in value.items():
        left = inner if name in unfit or name not in kinds else _left_over(inner, kinds[name])
        if left is not _NOTHING:
            found[name] = left
    return found


def _left_over(value: Any, kind: DataType) -> Any:  # noqa: ANN401 - JSON, or nothing
    """Return what the type does not take of a value that fits it: of structs fields, and arrays of such as a whole."""
    if isinstance(kind, StructType) and isinstance(value, dict):
        return _left_over_of_struct(value, kind) or _NOTHING
    if isinstance(kind, types.MapType) and isinstance(value, dict):
        left = {name: _left_over(each, kind.valueType) for name, each in value.items()}
        return {name: each for name, each in left.items() if each is not _NOTHING} or _NOTHING
    if isinstance(kind, types.ArrayType) and isinstance(value, list):
        return value if any(_left_over(each, kind.elementType) is not _NOTHING for each in value) else _NOTHING
    return _NOTHING

"""The columns of a query: those that its options make, or those of its own schema."""

from __future__ import annotations

from pyspark.sql.types import StructType

from pyspark_pawnqueue.extra_columns import mark_extra_columns, with_extra_columns
from pyspark_pawnqueue.messages_to_rows import reserved_names, schema_of
from pyspark_pawnqueue.spark_errors import invalid_argument
from pyspark_pawnqueue.spark_options import SparkOptions


def query_schema(options: SparkOptions) -> StructType:
    """Return the schema of a query that has none of its own.

    :raises InvalidArgumentError: an option that says what the columns are has a wrong value.
    """
    schema = schema_of(options.payload_schema, dead=options.is_dead_mode)
    return with_extra_columns(schema, options, reserved_names(dead=options.is_dead_mode))


def checked_columns(options: SparkOptions, schema: StructType) -> StructType:
    """Return the schema of a reader, in which the columns that options name are marked.

    :raises InvalidArgumentError: both the options and ``.schema(…)`` say what the columns are, or an option names a
        column that cannot be it.
    """
    is_dead = options.is_dead_mode
    given = [(field.name, field.dataType) for field in schema]
    if options.infers_schema:
        own = [(field.name, field.dataType) for field in schema_of("", dead=is_dead)]
        name, is_twice = "inferSchema", given[: len(own)] != own
    else:
        asked = [(field.name, field.dataType) for field in query_schema(options)] if options.payload_schema else given
        name, is_twice = "payloadSchema", given != asked
    if is_twice:
        raise invalid_argument(
            f"The query has both .schema(…) and the option {name}: leave out one of them. {name} adds columns to those "
            "that every message has, and .schema(…) names all columns."
        )
    return mark_extra_columns(schema, options, reserved_names(dead=is_dead))

"""The format ``pawnqueue``: claimed messages as DataFrames, and DataFrames as messages.

Spark finds it by itself where the package is installed; elsewhere ``register(spark)`` tells it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pyspark_pawnqueue.options import Options, told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

# What reads and writes is imported where it is used: Spark imports this module in each process that plans a query.


class PawnQueueDataSource(DataSource):
    """``spark.read.format("pawnqueue").option("claim", json.dumps(reference)).load()``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "pawnqueue"

    def schema(self) -> StructType:
        """Return the columns of what is read."""
        from pyspark_pawnqueue.columns import schema_of  # noqa: PLC0415 - as above

        with told():
            options = Options.of(self.options)
            return schema_of(options.payload_schema, dead=options.shows_dead)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a claim, or looks at a topic."""
        from pyspark_pawnqueue.reading import PortionReader  # noqa: PLC0415 - as above

        with told():
            return PortionReader(Options.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return what claims micro-batches from a topic."""
        from pyspark_pawnqueue.streaming import ClaimStreamReader  # noqa: PLC0415 - as above

        with told():
            return ClaimStreamReader(Options.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """Return what writes the rows of a DataFrame as messages."""
        from pyspark_pawnqueue.writing import BatchWriter  # noqa: PLC0415 - as above

        with told():
            return BatchWriter(Options.of(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's signature
    ) -> DataSourceStreamWriter:
        """Return what writes the batches of a stream as messages."""
        from pyspark_pawnqueue.writing import StreamWriter  # noqa: PLC0415 - as above

        with told():
            return StreamWriter(Options.of(self.options), schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Tell a session of the format, where the package is not installed but came along: by ``--py-files``, say.

    :param spark: the session.
    """
    spark.dataSource.register(PawnQueueDataSource)

"""The format ``pawnqueue``: claimed messages as DataFrames, and DataFrames as messages.

Spark finds it by itself where the package is installed. Elsewhere ``register(spark)`` announces it.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyspark_pawnqueue.spark_errors import raise_spark_errors
from pyspark_pawnqueue.spark_options import SparkOptions

# Readers and writers are imported where they are used: Spark imports this module in each process that plans a query.


class PawnQueueDataSource(DataSource):
    """``spark.read.format("pawnqueue").option("claim", json.dumps(reference)).load()``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "pawnqueue"

    @raise_spark_errors()
    def schema(self) -> StructType:
        """Return the columns that a query reads."""
        from pyspark_pawnqueue.query_columns import query_schema  # noqa: PLC0415 - as above

        options = SparkOptions.of(self.options)
        if options.infers_schema:
            from pyspark_pawnqueue.schema_inference import infer_schema  # noqa: PLC0415 - as above

            return infer_schema(options)
        return query_schema(options)

    @raise_spark_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a claim or a topic."""
        from pyspark_pawnqueue.batch_reader import BatchReader  # noqa: PLC0415 - as above

        return BatchReader(SparkOptions.of(self.options), schema)

    @raise_spark_errors()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader that claims micro-batches from a topic."""
        from pyspark_pawnqueue.stream_reader import StreamReader  # noqa: PLC0415 - as above

        return StreamReader(SparkOptions.of(self.options), schema)

    @raise_spark_errors()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """Return the writer that publishes the rows of a DataFrame."""
        from pyspark_pawnqueue.writers import BatchWriter  # noqa: PLC0415 - as above

        return BatchWriter(SparkOptions.of(self.options), schema, overwrite=overwrite)

    @raise_spark_errors()
    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's signature
    ) -> DataSourceStreamWriter:
        """Return the writer that publishes the batches of a stream."""
        from pyspark_pawnqueue.writers import StreamWriter  # noqa: PLC0415 - as above

        return StreamWriter(SparkOptions.of(self.options), schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Announce the format to a session that cannot find it: where the package is not installed but shipped as a file.

    :param spark: the session, for example of a job that was submitted with ``--py-files``.
    """
    spark.dataSource.register(PawnQueueDataSource)

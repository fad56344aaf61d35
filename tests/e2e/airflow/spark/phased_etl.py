"""The example job, which comes to a gate in each of its phases: ``phased_etl.py JOBS GATES OUT``.

``starting``: there is a session. ``reading``: the tasks have read some. ``writing``: the tasks have written some.
``committing``: all is written, and readers do not see it yet. ``written``: they do, and the job is about to end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from pyspark_pawnqueue import parquet_once
from tests.e2e.airflow.spark.gates import Gates

if TYPE_CHECKING:
    import pyarrow as pa

    from pawnqueue import ClaimReference


def main(jobs: str, folder: str, out: str) -> None:
    """Run it."""
    sys.path.insert(0, jobs)
    import orders_etl  # type: ignore[import-not-found]  # noqa: PLC0415 - it is on the path from here on

    gates = Gates(folder)
    spark = SparkSession.builder.appName("phased_etl").getOrCreate()
    gates.reach("starting")
    read, write_once, confirm = orders_etl.read, orders_etl.write_once, parquet_once.confirm

    def stopping_at(rows: DataFrame, phase: str) -> DataFrame:
        def passed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(batches):
                yield batch.slice(0, 1)  # some are through ...
                if number == 0:
                    Gates(folder).reach(phase)
                yield batch.slice(1)  # ... and some are not

        return rows.mapInArrow(passed, rows.schema)

    def phased_read(session: SparkSession, claim: ClaimReference) -> DataFrame:
        return stopping_at(read(session, claim), "reading")

    def phased_write(where: Path, claim: ClaimReference, tables: Mapping[str, DataFrame]) -> None:
        phased = {table: stopping_at(rows, "writing") if table == "orders" else rows for table, rows in tables.items()}
        write_once(where, claim, phased)
        gates.reach("written")

    def phased_confirm(claim: ClaimReference) -> None:
        gates.reach("committing")
        confirm(claim)

    orders_etl.read, orders_etl.write_once = phased_read, phased_write
    parquet_once.confirm = phased_confirm  # type: ignore[assignment] - it is given references only
    orders_etl.main(Path(out))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

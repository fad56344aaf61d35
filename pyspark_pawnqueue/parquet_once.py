"""Write a claim's rows as Parquet exactly once, even if several drivers try it several times.

::

    FOLDER/claim=NAME/TABLE/*.parquet    what readers read: complete from the moment it exists, and never changed again
    FOLDER/_attempt-NAME-…               what a driver is writing; readers skip names that begin with an underscore

⚑ One rename makes all tables of a claim visible, and the file system refuses it if the folder exists. So readers never
see half a claim, and a driver that is killed has written nothing. Of two drivers with one claim, the first wins, and
the files of the other are deleted.

⚑ A message may come again in another claim, if its run was cleared after the rename. Then ``not_yet_in`` finds its id
in the table, and leaves out its row. For this, no driver may rename after its claim has ended: ``write_once`` asks
right before.
"""

from __future__ import annotations

import re
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pawnqueue import ClaimReference
from pyspark_pawnqueue.jobs import confirm
from pyspark_pawnqueue.spark_errors import invalid_argument, shorten

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["is_written", "not_yet_in", "write_once"]

_NAME: Final = re.compile(r"[A-Za-z0-9_:+-][A-Za-z0-9_:+.-]{0,199}")
_TABLE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_DAY_SECONDS: Final = 24 * 3600.0


def write_once(
    folder: Path | str, claim: ClaimReference | Mapping[str, Any] | str, tables: Mapping[str, DataFrame]
) -> bool:
    """Write the tables of a claim as Parquet: all of them at one moment, and once. Return whether this call did it.

    They come into ``folder/claim=<the claim's stem>/<table>``; ``spark.read.parquet("folder/claim=*/orders")`` reads a
    table. If an earlier try of the job, or another driver, has written the claim, nothing is written.

    The folder has to be on a file system that the driver shares with its executors, and that renames a folder in one
    step, such as a disk or NFS. An object store does not: use a table format there (Delta, Iceberg), and ``MERGE`` by
    ``id``.

    :param folder: the folder of all claims. It is created.
    :param claim: the claim by its reference. Right before the rename it is asked whether it still holds. Or a text, the
        name of a stream's batch, made of the query's id and the batch's number.
    :param tables: DataFrames by the names of their tables. Names have letters, digits, and ``_``, ``-`` or ``.``.
    :raises PawnQueueSparkError: the claim has ended, has expired, or is settled. Nothing was written.
    :raises InvalidArgumentError: the folder is in an object store, there is no table, or a name is not a valid one.
    """
    name, local = _name_of(claim), _local(folder)
    if not tables:
        raise invalid_argument(f"write_once for {name} got no tables: pass DataFrames by their names.")
    for table in tables:
        _check_table(table)
    if is_written(local, claim):
        return False
    local.mkdir(parents=True, exist_ok=True)
    attempt = local / f"_attempt-{name}-{uuid.uuid4().hex}"
    try:
        for table, rows in tables.items():
            rows.write.parquet(_uri(attempt / table))
        if not isinstance(claim, str):
            confirm(claim)
        attempt.rename(_target(local, name))
    except OSError:  # another driver was faster, and may have deleted this attempt
        if not is_written(local, claim):
            raise
        return False
    finally:
        shutil.rmtree(attempt, ignore_errors=True)
    for left in local.glob(f"_attempt-{name}-{'[0-9a-f]' * 32}"):  # those of drivers that were killed
        shutil.rmtree(left, ignore_errors=True)
    return True


def not_yet_in(folder: Path | str, table: str, rows: DataFrame, *, days: float | None = None) -> DataFrame:
    """Leave out rows whose message is in the table already: it came in an earlier claim, whose run was cleared later.

    :param folder: the folder of ``write_once``.
    :param table: the table's name. It has the messages' ids in a column ``id``.
    :param rows: rows with a column ``id``.
    :param days: the number of days to look back: claims that were written before are not read. By default all are.
    :raises InvalidArgumentError: the folder is in an object store, the rows have no ``id``, or ``days`` is not above 0.
    """
    _check_table(table)
    if "id" not in rows.columns:
        raise invalid_argument(f"Rows for table {table!r} have no column id: keep the id of what was read.")
    if days is not None and not days > 0:
        raise invalid_argument(f"days has to be above 0, not {shorten(days)}: leave it out to look at everything.")
    written = [_uri(each) for each in _written(_local(folder), table, days)]
    return rows.join(rows.sparkSession.read.parquet(*written).select("id"), "id", "left_anti") if written else rows


def is_written(folder: Path | str, claim: ClaimReference | Mapping[str, Any] | str) -> bool:
    """Say whether a claim has been written, to save work that ``write_once`` would throw away.

    :param folder: the folder of ``write_once``.
    :param claim: the claim by its reference, or the name of a stream's batch.
    :raises InvalidArgumentError: the folder is in an object store, or the name is not a valid one.
    """
    return _target(_local(folder), _name_of(claim)).exists()


def _target(folder: Path, name: str) -> Path:
    return folder / f"claim={name}"


def _written(folder: Path, table: str, days: float | None) -> Iterator[Path]:
    """Yield the table's folder of each claim that was written in the last days."""
    oldest = 0.0 if days is None else time.time() - days * _DAY_SECONDS
    for each in folder.glob(f"claim=*/{table}"):
        if each.stat().st_mtime >= oldest:  # when its last file was made: the rename does not change it
            yield each


def _uri(path: Path) -> str:
    """Return the path as Spark needs it: its default file system may be another one."""
    return f"file://{path}"


def _local(folder: Path | str) -> Path:
    if "://" in str(folder):
        raise invalid_argument(
            f"write_once cannot write to {shorten(str(folder))}: it needs a folder on a file system that renames in "
            "one step. In an object store, use a table format (Delta, Iceberg), and MERGE by id."
        )
    return Path(folder).absolute()


def _name_of(claim: ClaimReference | Mapping[str, Any] | str) -> str:
    """Return the name for files. A colon is written as Spark writes it in names of partitions: its globs refuse it."""
    name = claim if isinstance(claim, str) else ClaimReference.of(claim).stem
    if _NAME.fullmatch(name):
        return name.replace(":", "%3A")
    raise invalid_argument(
        f"{shorten(claim)} is not a valid name of a batch: use 1 to 200 of A-Z a-z 0-9 _ : + - and dots. For a claim, "
        "pass its reference, as job_claims() returns it."
    )


def _check_table(table: str) -> None:
    if not _TABLE.fullmatch(table):
        raise invalid_argument(
            f"{shorten(table)} is not a valid name of a table: use 1 to 100 of A-Z a-z 0-9 _ - and dots, with a letter "
            "or a digit at the beginning."
        )

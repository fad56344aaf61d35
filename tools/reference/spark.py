"""``spark.md``: the options of the format ``pawnqueue``, and what jobs import."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from airflow_provider_pawnqueue.spark import in_process
from pawnqueue.settings.short_names import names_of_settings
from pyspark_pawnqueue import datasource, jobs, parquet_once
from pyspark_pawnqueue.spark_options import OPTIONS
from tools.reference.words import code, imported, table

HEAD = """# On Spark

The options of the format `pawnqueue`, and what jobs import. `python -m tools.reference` writes this page from the
code. How the parts work together: [Spark](../spark.md). The submit operator is with [the other
operators](dags.md#pawnqueuesparksubmitoperator).

## Options

`spark.read`, `spark.readStream`, `df.write` and `df.writeStream`, each `.format("pawnqueue").option(name, value)`.
An unknown option is an error that suggests the nearest one.

"""
SETTINGS = """
Any [setting](settings.md) is an option too, by its path (`s3.bucket_name`), or by its last name if only one setting
has it (`bucket_name`). Options override the file that `connection` names, and the environment. Put keys into that
file, because a query's plan shows its options.
"""
FUNCTIONS: list[Callable[..., Any]] = [
    jobs.job_claims,
    jobs.report_failures,
    jobs.confirm,
    jobs.ack_finished,
    jobs.ack_promptly,
    parquet_once.write_once,
    parquet_once.not_yet_in,
    parquet_once.is_written,
    in_process.reading,
    datasource.register,
]


def page() -> str:
    """Return the page as the code has it now."""
    assert names_of_settings()["bucket_name"] == "s3.bucket_name"  # noqa: S101 - what the page says
    options = table(
        "option | for | meaning", [[code(name), used_for, said] for name, (used_for, said) in OPTIONS.items()]
    )
    return "".join([HEAD, options, SETTINGS, "\n## Functions\n", *map(_entry, FUNCTIONS)])


def _entry(function: Callable[..., Any]) -> str:
    module = "pyspark_pawnqueue.jobs" if function.__name__ in jobs.__all__ else function.__module__
    signature = str(inspect.signature(inspect.unwrap(function))).replace("'", "")
    return imported(module, function.__name__, signature)

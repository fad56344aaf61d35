"""The environment in which Spark runs here, and a session in this process."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.kit.ports import HOST
from tools.kit.processes import environment_variables
from tools.kit.spark.java import java_home

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]

_JVM_END_SECONDS = 30

#: For JVMs that live for seconds. With the quick compiler alone, and without the verification of classes, they take a
#: third less CPU.
SHORT_LIVED = (
    "-XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
#: For JVMs that are measured: the options that users have.
_LONG_LIVED = "-XX:-UsePerfData"

# For a job of some rows on two cores: two partitions after a shuffle instead of 200, and no web page.
_SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.defaultJavaOptions": SHORT_LIVED,
}


class SessionRunsError(RuntimeError):
    """This process has a Spark session already, and cannot have two."""


def spark_home() -> Path:
    """Return the folder of the installed pyspark, which is a whole Spark, without importing it."""
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        message = (
            "pyspark is not installed: it comes with the extra `spark` of this project, which `make venv` installs."
        )
        raise ModuleNotFoundError(message)
    return Path(found.submodule_search_locations[0])


def spark_environment() -> dict[str, str]:
    """Return the variables with which Spark runs on loopback, with this Python and the package of this tree."""
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_LAUNCHER_OPTS": SHORT_LIVED,  # of the JVM that builds the command line of the other one
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
    }


def spark_settings(conf: Mapping[str, object] | None = None) -> dict[str, str]:
    """Return the settings of sessions and jobs as text, with ``true`` for True. ``conf`` overrides them."""
    given = {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in (conf or {}).items()
    }
    return {**_SETTINGS, **given}


@contextlib.contextmanager
def session(
    master: str = "local[2]", conf: Mapping[str, object] | None = None, *, measured: bool = False
) -> Iterator[SparkSession]:
    """Run a Spark session in this process, and end it with its JVM.

    PySpark would keep its JVM for the next session of the process, with the settings and environment of the first one.
    Here each session has a JVM of its own. Sessions can follow each other, but not be nested.

    :param measured: start slowly, but run as fast as users' sessions do.
    """
    from pyspark import SparkContext  # noqa: PLC0415 - takes a second, and not all tests start Spark
    from pyspark.sql import SparkSession  # noqa: PLC0415

    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - the public ways would start one
        message = (
            "This process has a Spark session already, and can have one: leave it first, or start the job by submit()."
        )
        raise SessionRunsError(message)
    with tempfile.TemporaryDirectory(prefix="pawnqueue-spark-") as folder, _restore_interrupt_handler():
        builder = SparkSession.builder.master(master).appName("pawnqueue")
        places = {
            "spark.driver.defaultJavaOptions": f"-Djava.io.tmpdir={folder} {_LONG_LIVED if measured else SHORT_LIVED}",
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
        }
        for name, value in spark_settings({**places, **(conf or {})}).items():
            builder = builder.config(name, value)
        try:
            # PySpark reads them when it starts. Other programs that this process starts have their own.
            with environment_variables({**spark_environment(), "SPARK_LOCAL_DIRS": folder}):
                spark = builder.getOrCreate()
            try:
                yield spark
            finally:
                spark.stop()
        finally:
            _end_jvm(SparkContext)


@contextlib.contextmanager
def _restore_interrupt_handler() -> Iterator[None]:
    # A session installs a handler of SIGINT, and never removes it.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_jvm(context: Any) -> None:  # noqa: ANN401 - PySpark's class, whose private attributes are not typed
    gateway = context._gateway  # noqa: SLF001 - PySpark has no public way to end and forget its JVM
    context._gateway = context._jvm = None  # noqa: SLF001
    if gateway is None:
        return
    gateway.shutdown()
    # The JVM ends once the pipe to it is closed, as it does when this process is killed.
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_JVM_END_SECONDS)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()

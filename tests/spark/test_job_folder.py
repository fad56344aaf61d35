"""The private folder of a job is removed by its owner, or else at the start of the next job."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from airflow_provider_pawnqueue.spark.job_folder import JobFolder
from pawnqueue import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
SETTINGS: Final = Settings.from_dict({"s3": {"bucket_name": "queues"}})
OWNER: Final = """
import sys
from pawnqueue import Settings
from airflow_provider_pawnqueue.spark.job_folder import JobFolder

folder = JobFolder()
folder.create(Settings.from_dict({"s3": {"bucket_name": "queues"}}))
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def owner_elsewhere(temporary: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """Another process that has a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        yield Path(process.stdout.readline().strip()), process
        process.kill()


def test_a_folder_whose_owner_was_killed(temporary: Path) -> None:
    """It holds the keys of the connection, and is removed at the next start of any job."""
    with owner_elsewhere(temporary) as (left, process):
        process.kill()
        process.wait()
        assert (left / "connection.yaml").exists()

        folder = JobFolder()
        folder.create(SETTINGS)

    assert not left.exists()
    folder.remove()
    assert list(temporary.iterdir()) == []


def test_folders_of_jobs_that_run(temporary: Path) -> None:
    """Folders of other processes stay, and so do other folders of this process."""
    with owner_elsewhere(temporary) as (theirs, _):
        first, second = JobFolder(), JobFolder()
        first.create(SETTINGS)
        second.create(SETTINGS)

        assert (theirs / "connection.yaml").exists()
        assert first.connection.exists()
        assert second.connection.exists()
    first.remove()
    second.remove()


def test_what_nobody_can_tell_the_owner_of(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of an older version, one that is being made, a link, and one without locks: all stay."""
    older, being_made, target = (temporary / name for name in ("pawnqueue-job-older", "pawnqueue-job-new", "target"))
    for path in (older, being_made, target):
        path.mkdir()
    (older / "connection.yaml").touch()
    (being_made / "owner.lock").touch()
    for name in ("connection.yaml", "owner.lock"):
        (target / name).touch()
    (temporary / "pawnqueue-job-link").symlink_to(target)

    with monkeypatch.context() as patched:

        def refuse(*_: object) -> None:
            raise OSError(37, "No locks available")

        patched.setattr(fcntl, "flock", refuse)
        without_locks = JobFolder()
        without_locks.create(SETTINGS)
    JobFolder().create(SETTINGS)

    assert (older / "connection.yaml").exists()
    assert (being_made / "owner.lock").exists()
    assert (target / "connection.yaml").exists()
    assert without_locks.connection.exists()


def test_another_users_folder(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not touched, even if permissions would allow it."""
    with owner_elsewhere(temporary) as (left, process):
        process.kill()
        process.wait()
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        JobFolder().create(SETTINGS)
    assert left.exists()

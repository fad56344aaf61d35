"""The private folder of a job: it holds the settings of the queue, and the job's report of failed messages."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from pawnqueue import ClaimReference, InvalidArgumentError, Settings
from pawnqueue.settings.base import nest
from pyspark_pawnqueue.job_environment import CLAIM_VARIABLE, CONNECTION_VARIABLE, REPORT_VARIABLE

_OWNER_ONLY_MODE: Final = 0o600
_PREFIX: Final = "pawnqueue-job-"
_CONNECTION_FILE: Final = "connection.yaml"
#: The owner of the folder holds a lock on this file for as long as the owner lives.
_LOCK_FILE: Final = "owner.lock"


class JobFolder:
    """The private folder of a job. Its path is fixed before it is created, so that the guard can remove it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir(), f"{_PREFIX}{uuid.uuid4().hex}")
        self.connection = self.path / _CONNECTION_FILE
        self._lock: int | None = None
        self._report = self.path / "report.jsonl"

    def variables(self, references: Sequence[ClaimReference]) -> dict[str, str]:
        """Return the job's variables: its claims, and the paths of the settings and of the report."""
        claims = [reference.to_dict() for reference in references]
        return {
            CLAIM_VARIABLE: json.dumps(claims[0] if len(claims) == 1 else claims),
            CONNECTION_VARIABLE: str(self.connection),
            REPORT_VARIABLE: str(self._report),
        }

    def create(self, settings: Settings) -> None:
        """Create the folder with the settings in it. From the first moment only its owner can read it."""
        import yaml  # noqa: PLC0415 - not at import: DAG files are parsed often

        remove_abandoned_folders()
        self.path.mkdir(mode=0o700)
        self._acquire_lock()
        content = nest({path: _to_yaml(value) for path, value in settings.flatten(settings).items()})
        descriptor = os.open(self.connection, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY_MODE)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            yaml.safe_dump(content, file, allow_unicode=True)

    def read_report(self) -> dict[str, str]:
        """Return the messages that the job reported as failed: reasons by ids.

        :raises InvalidArgumentError: the report cannot be read, so it is not known which messages have failed.
        """
        if not self._report.exists():
            return {}
        found: dict[str, str] = {}
        for line in self._report.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                read = json.loads(line)
                found[str(read["id"])] = str(read["why"])
            except (ValueError, TypeError, KeyError, RecursionError):
                raise InvalidArgumentError(
                    f"The job's report of failed messages has a line that cannot be read ({line[:60]!r}), so it is "
                    "not known which messages are done: write the report by report_failures(claim, failed) only.",
                    operation="report_failures",
                ) from None
        return found

    def remove(self) -> None:
        """Remove the folder, if it exists."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _acquire_lock(self) -> None:
        """Lock the folder. ⚑ The settings are written later, so a folder that has some without a lock is abandoned."""
        path = self.path / _LOCK_FILE
        self._lock = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY_MODE)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError:  # This file system has no locks, so nobody could see whether the owner lives.
            path.unlink()


def remove_abandoned_folders() -> None:
    """Remove folders of this user whose owner was killed together with the guard and its keeper.

    A lock shows whether an owner lives. Its pid would not: containers can share a folder for temporary files, and each
    counts its pids by itself.
    """
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # its owner lives, or is removing it
            _remove_if_abandoned(path)


def _remove_if_abandoned(path: Path) -> None:
    found = path.lstat()
    if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode) or not (path / _CONNECTION_FILE).exists():
        return
    lock = os.open(path / _LOCK_FILE, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _to_yaml(value: Any) -> Any:  # noqa: ANN401 - a setting may be of any type
    """Return a setting's value as YAML can write it, secrets in clear."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Mapping):
        return {name: _to_yaml(each) for name, each in value.items()}
    return str(value) if isinstance(value, os.PathLike) else value

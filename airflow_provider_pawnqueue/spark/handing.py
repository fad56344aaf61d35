"""The private folder of a job: in it, it is told where the queue is, and says which messages it could not do."""

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
from typing import TYPE_CHECKING, Any, Final

from pydantic import SecretStr

from pawnqueue import InvalidArgumentError
from pawnqueue.settings.base import nest
from pyspark_pawnqueue.job import CLAIM_VARIABLE, CONNECTION_VARIABLE, REPORT_VARIABLE

if TYPE_CHECKING:
    from pawnqueue import ClaimReference, Settings

_OWNER_ALONE: Final = 0o600
_PREFIX: Final = "pawnqueue-job-"
_CONNECTION: Final = "connection.yaml"
#: The file on which the owner of a folder holds a lock for as long as it lives.
_LOCK: Final = "owner.lock"


class Folder:
    """The job's private folder. Its path is fixed before it is created, so that the guard can remove it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir(), f"{_PREFIX}{uuid.uuid4().hex}")
        self.connection = self.path / _CONNECTION
        self._lock: int | None = None
        self._report = self.path / "report.jsonl"

    def variables(self, references: Sequence[ClaimReference]) -> dict[str, str]:
        """Return what the job finds in its environment: its claims, and where it finds and leaves the rest."""
        claims = [reference.to_dict() for reference in references]
        return {
            CLAIM_VARIABLE: json.dumps(claims[0] if len(claims) == 1 else claims),
            CONNECTION_VARIABLE: str(self.connection),
            REPORT_VARIABLE: str(self._report),
        }

    def make(self, settings: Settings) -> None:
        """Make it, with the settings in it: for its owner's eyes only, from the first moment."""
        import yaml  # noqa: PLC0415 - not at import: DAG files are parsed often

        remove_abandoned()
        self.path.mkdir(mode=0o700)
        self._take()
        said = nest({path: _plain(value) for path, value in settings.flatten(settings).items()})
        descriptor = os.open(self.connection, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ALONE)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            yaml.safe_dump(said, file, allow_unicode=True)

    def report(self) -> dict[str, str]:
        """Return what the job has said: why messages were not done, by their ids.

        :raises InvalidArgumentError: nobody can tell what it has said.
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
                    f"The job has reported what is no report ({line[:60]!r}), so nobody can tell which messages it has "
                    "done: let it report by report_failures(claim, failed), and by nothing else.",
                    operation="report_failures",
                ) from None
        return found

    def remove(self) -> None:
        """Remove it, if it exists."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take(self) -> None:
        """Lock it. ⚑ The settings are written after that: a folder that has some and is not locked has no owner."""
        path = self.path / _LOCK
        self._lock = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ALONE)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError:  # a file system without locks, where nobody can tell whether an owner lives
            path.unlink()


def remove_abandoned() -> None:
    """Remove folders of this user whose owner was killed, and the guard and its keeper with it.

    The owner's lock tells, rather than its pid: containers that share a folder for temporary files have pids of their
    own, and one lock.
    """
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # its owner lives, or removes it now
            _remove_if_abandoned(path)


def _remove_if_abandoned(path: Path) -> None:
    found = path.lstat()
    if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode) or not (path / _CONNECTION).exists():
        return
    lock = os.open(path / _LOCK, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _plain(value: Any) -> Any:  # noqa: ANN401 - a setting may be of any type
    """Write a setting as YAML has it."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return str(value) if isinstance(value, os.PathLike) else value

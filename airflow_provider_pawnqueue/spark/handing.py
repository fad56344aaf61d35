"""The private folder of a job: in it, it is told where the queue is, and says which messages it could not do."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import SecretStr

from airflow_provider_pawnqueue.engine import InvalidArgumentError
from airflow_provider_pawnqueue.engine.settings.base import nested
from airflow_provider_pawnqueue.spark.job import CLAIM_VARIABLE, CONNECTION_VARIABLE, REPORT_VARIABLE

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine import ClaimReference, Settings

_OWNER_ALONE: Final = 0o600


class Folder:
    """It. Its name is known before it is there, for who removes it if need be."""

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir(), f"pawnqueue-job-{uuid.uuid4().hex}")
        self.connection = self.path / "connection.yaml"
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

        self.path.mkdir(mode=0o700)
        said = nested({path: _plain(value) for path, value in settings.flat(settings).items()})
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
            except (ValueError, TypeError, KeyError):
                raise InvalidArgumentError(
                    f"The job has reported what is no report ({line[:60]!r}), so nobody can tell which messages it has "
                    "done: let it report by report_failures(claim, failed), and by nothing else.",
                    operation="report_failures",
                ) from None
        return found

    def remove(self) -> None:
        """Remove it, if it is there."""
        shutil.rmtree(self.path, ignore_errors=True)


def _plain(value: Any) -> Any:  # noqa: ANN401 - a setting may be of any type
    """Write a setting as YAML has it."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return str(value) if isinstance(value, os.PathLike) else value

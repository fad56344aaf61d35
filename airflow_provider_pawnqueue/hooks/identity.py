"""Who claims, in Airflow's words: the installation, the DAG, its run, the task, and how often the run was cleared."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import uuid
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

logger = logging.getLogger(__name__)

_SCHEME = "airflow"
_PARTS = 8
_READABLE = 64
#: Under this name an installation keeps what it calls itself, unless ``[pawnqueue] installation`` says it.
INSTALLATION_VARIABLE = "pawnqueue_installation"
_MEANING = "What this Airflow calls itself in buckets that are queues. Two Airflows on one bucket need two names."
#: What is claimed outside of Airflow, by its operators, is claimed by this name.
NOBODY = "none"


@dataclass(frozen=True, slots=True)
class Owner:
    """On whose behalf a claim is made. Its text is in the claim's record, where janitors of all Airflows read it."""

    installation: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    clear_number: int = 0
    #: Claims of the same task that were lost before this one.
    round: int = 0

    @classmethod
    def of(cls, context: Context) -> Self:
        """Return who the task is that runs here."""
        ti: Any = context["ti"]
        run: Any = context.get("dag_run")
        index = getattr(ti, "map_index", None)
        return cls(
            installation(),
            ti.dag_id,
            ti.run_id,
            ti.task_id,
            -1 if index is None else index,
            getattr(run, "clear_number", None) or 0,
        )

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read what :meth:`__str__` wrote, or return None: it was no Airflow that claimed."""
        scheme, *parts = text.split("/")
        if scheme != _SCHEME or len(parts) != _PARTS - 1:
            return None
        try:
            names = [unquote(part) for part in parts[:4]]
            return cls(names[0], names[1], names[2], names[3], *(int(part) for part in parts[4:]))
        except (TypeError, ValueError):
            return None

    def __str__(self) -> str:
        """Write it such that the names stay readable, whatever is in them."""
        names = (self.installation, self.dag_id, self.run_id, self.task_id)
        numbers = (self.map_index, self.clear_number, self.round)
        return "/".join([_SCHEME, *(_BAD.sub(_quoted, name) for name in names), *map(str, numbers)])

    @property
    def claim_id(self) -> str:
        """The id of its claims: the same in every try, after every restart, and in every round."""
        exact = json.dumps([self.installation, self.dag_id, self.run_id, self.task_id, self.map_index])
        readable = re.sub(r"[^A-Za-z0-9_]+", "-", f"{self.dag_id}-{self.task_id}").strip("-")[:_READABLE]
        return f"{readable or 'task'}-{hashlib.sha256(exact.encode()).hexdigest()[:24]}"

    @property
    def next_round(self) -> Self:
        """The same task, after it has lost a claim."""
        return replace(self, round=self.round + 1)

    def succeeds(self, other: Owner) -> bool:
        """Say whether the other one is this very task before it was cleared, or before it lost its claim."""
        mine, its = ((one.clear_number, one.round) for one in (self, other))
        return self.claim_id == other.claim_id and its < mine

    def is_later_round_of(self, other: Owner) -> bool:
        """Say whether this is the other one, after it has lost a claim."""
        return replace(self, round=other.round) == other and self.round > other.round

    @property
    def sentence(self) -> str:
        """Name it in a log."""
        mapped = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"task {self.task_id}{mapped} of run {self.run_id} of DAG {self.dag_id}"


#: What would not read back: the mark between names, the mark of what is quoted, and what no line of a log can show.
_BAD = re.compile(r"[/%\x00-\x1f\x7f]")


def _quoted(bad: re.Match[str]) -> str:
    return f"%{ord(bad[0]):02X}"


@cache
def installation() -> str:
    """Return what this Airflow calls itself in a bucket that others may use too.

    ``[pawnqueue] installation`` says it. Without that it is drawn once, and kept in an Airflow Variable, which all
    components of an installation see and no other does.
    """
    from airflow.providers.common.compat.sdk import Variable, conf  # noqa: PLC0415 - not at import: DAG files are parsed often

    configured: str | None = conf.get("pawnqueue", "installation", fallback=None)
    if configured:
        return configured
    try:
        found: str | None = Variable.get(INSTALLATION_VARIABLE, default=None)
        if not found:
            # Where two draw at once, the last one stays: what the other one claimed meanwhile is kept by its ttl alone.
            Variable.set(INSTALLATION_VARIABLE, uuid.uuid4().hex[:12], description=_MEANING)
            found = Variable.get(INSTALLATION_VARIABLE)
    except Exception as error:  # noqa: BLE001 - outside of a task there is nobody to ask, and each release says so by another error
        logger.debug("There is no Airflow to ask what it calls itself: %s", error)
        return NOBODY
    return str(found)

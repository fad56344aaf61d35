"""Who claims, in Airflow's words: the installation, the DAG, its run, the task, and how often the run was cleared."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import uuid
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, unquote

from pawnqueue import ConfigError

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

logger = logging.getLogger(__name__)

_SCHEME = "airflow"
#: Where quoting would make it longer than the engine takes: the lengths of the names first, then the names as they are.
_EXACT = "airflow-exact"
_LONGEST = 1024
_LONGEST_INSTALLATION = 100
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
        try:
            if scheme == _EXACT:
                return cls._exactly(*text.split("/", _PARTS)[1:])
            if scheme != _SCHEME or len(parts) != _PARTS - 1:
                return None
            names = [unquote(part) for part in parts[:4]]
            return cls(names[0], names[1], names[2], names[3], *(int(part) for part in parts[4:]))
        except (TypeError, ValueError):
            return None

    @classmethod
    def _exactly(cls, *parts: str) -> Self | None:
        *numbers, names = parts
        lengths = [int(number) for number in numbers[:4]]
        if len(parts) != _PARTS or sum(lengths) != len(names) or min(lengths) < 0:
            return None
        ends = list(accumulate(lengths, initial=0))
        cut = [names[begin:end] for begin, end in pairwise(ends)]
        return cls(cut[0], cut[1], cut[2], cut[3], *(int(number) for number in numbers[4:]))

    def __str__(self) -> str:
        """Write it such that the names stay readable, whatever is in them."""
        names = (self.installation, self.dag_id, self.run_id, self.task_id)
        numbers = (self.map_index, self.clear_number, self.round)
        text = "/".join([_SCHEME, *(_BAD.sub(_quoted, name) for name in names), *map(str, numbers)])
        if len(text) <= _LONGEST:
            return text
        return "/".join([_EXACT, *(str(len(name)) for name in names), *map(str, numbers), "".join(names)])

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
_BAD = re.compile(r"[/%\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _quoted(bad: re.Match[str]) -> str:
    return quote(bad[0], safe="")


def installation() -> str:
    """Return what this Airflow calls itself in a bucket that others may use too.

    ``[pawnqueue] installation`` says it. Without that it is drawn once, and kept in an Airflow Variable, which all
    components of an installation see and no other does. Outside of Airflow it is nobody.
    """
    if not _known:
        found = _configured() or _kept()
        if found is None:
            return NOBODY  # which is not remembered: there may be somebody to ask later
        _known.append(found)
    return _known[0]


#: What this process has found out.
_known: list[str] = []


def _configured() -> str | None:
    from airflow.providers.common.compat.sdk import conf  # noqa: PLC0415 - not at import: DAG files are parsed often

    configured: str = (conf.get("pawnqueue", "installation", fallback=None) or "").strip()
    if len(configured) > _LONGEST_INSTALLATION:
        raise ConfigError(
            f"[pawnqueue] installation has {len(configured)} characters: name this Airflow in {_LONGEST_INSTALLATION} "
            "at most.",
            operation="claim",
        )
    return configured or None


def _kept() -> str | None:
    """Return what is kept in the Variable, drawn if nobody has; None where there is no Airflow to ask."""
    from airflow.providers.common.compat.sdk import Variable  # noqa: PLC0415 - as above

    try:
        found: str | None = Variable.get(INSTALLATION_VARIABLE, default=None)
        if not found:
            # Where two draw at once, the last one stays: what the other one claimed meanwhile is kept by its ttl alone.
            Variable.set(INSTALLATION_VARIABLE, uuid.uuid4().hex[:12], description=_MEANING)
            found = Variable.get(INSTALLATION_VARIABLE)
    except Exception as error:
        if in_a_task():
            raise  # by another name, its next try would not find the claim of this one
        logger.debug("There is no Airflow to ask what it calls itself: %s", error)
        return None
    return str(found)


def in_a_task() -> bool:
    """Say whether a task of Airflow's runs here, which has an end that lets its claims go."""
    from airflow.providers.common.compat.sdk import get_current_context  # noqa: PLC0415 - as above

    try:
        return bool(get_current_context())
    except Exception:  # noqa: BLE001 - each release says by another error that there is none
        return False

"""The owner of a claim in Airflow: the installation, the DAG, its run, the task, and how often the run was cleared."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import uuid
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Self
from urllib.parse import quote, unquote

from airflow.providers.common.compat import sdk

from pawnqueue import ConfigError

logger = logging.getLogger(__name__)

_SCHEME = "airflow"
#: The scheme of owners that would be too long with quoted names: it has the names' lengths, then the names as they are.
_UNQUOTED_SCHEME = "airflow-exact"
_MAX_OWNER_CHARACTERS = 1024
_MAX_INSTALLATION_CHARACTERS = 100
_PARTS = 8
_READABLE_CHARACTERS = 64
#: The Airflow Variable with the name of an installation for which ``[pawnqueue] installation`` is not set.
INSTALLATION_VARIABLE = "pawnqueue_installation"
_VARIABLE_DESCRIPTION = (
    "The name of this Airflow in buckets that are queues. Two Airflows on one bucket need two names."
)
#: The installation's name where an operator runs outside of Airflow.
NO_INSTALLATION = "none"


@dataclass(frozen=True, slots=True)
class Owner:
    """The task on whose behalf a claim is made. Its text is in the claim's record, which every janitor reads."""

    installation: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    clear_number: int = 0
    #: How many claims of the same task were lost before this one.
    round: int = 0

    @classmethod
    def of(cls, context: sdk.Context) -> Self:
        """Return the task that runs here."""
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
        """Read what :meth:`__str__` wrote. Return None if the owner is not a task of Airflow's."""
        scheme, *parts = text.split("/")
        try:
            if scheme == _UNQUOTED_SCHEME:
                return cls._parse_unquoted(*text.split("/", _PARTS)[1:])
            if scheme != _SCHEME or len(parts) != _PARTS - 1:
                return None
            names = [unquote(part) for part in parts[:4]]
            return cls(names[0], names[1], names[2], names[3], *(int(part) for part in parts[4:]))
        except (TypeError, ValueError):
            return None

    @classmethod
    def _parse_unquoted(cls, *parts: str) -> Self | None:
        *numbers, names = parts
        lengths = [int(number) for number in numbers[:4]]
        if len(parts) != _PARTS or sum(lengths) != len(names) or min(lengths) < 0:
            return None
        ends = list(accumulate(lengths, initial=0))
        cut = [names[begin:end] for begin, end in pairwise(ends)]
        return cls(cut[0], cut[1], cut[2], cut[3], *(int(number) for number in numbers[4:]))

    def __str__(self) -> str:
        """Return a text in which the names stay readable."""
        names = (self.installation, self.dag_id, self.run_id, self.task_id)
        numbers = (self.map_index, self.clear_number, self.round)
        text = "/".join([_SCHEME, *(_QUOTED.sub(_quoted, name) for name in names), *map(str, numbers)])
        if len(text) <= _MAX_OWNER_CHARACTERS:
            return text
        return "/".join([_UNQUOTED_SCHEME, *(str(len(name)) for name in names), *map(str, numbers), "".join(names)])

    @property
    def claim_id(self) -> str:
        """The id of the task's claims: the same in each try, after each restart, and in each round."""
        exact = json.dumps([self.installation, self.dag_id, self.run_id, self.task_id, self.map_index])
        readable = re.sub(r"[^A-Za-z0-9_]+", "-", f"{self.dag_id}-{self.task_id}").strip("-")[:_READABLE_CHARACTERS]
        return f"{readable or 'task'}-{hashlib.sha256(exact.encode()).hexdigest()[:24]}"

    @property
    def next_round(self) -> Self:
        """The same task, after it has lost a claim."""
        return replace(self, round=self.round + 1)

    def succeeds(self, other: Owner) -> bool:
        """Return whether the other owner is this task before it was cleared, or before it lost its claim."""
        mine, its = ((one.clear_number, one.round) for one in (self, other))
        return self.claim_id == other.claim_id and its < mine

    def is_later_round_of(self, other: Owner) -> bool:
        """Return whether this is the other owner after it has lost a claim."""
        return replace(self, round=other.round) == other and self.round > other.round

    @property
    def sentence(self) -> str:
        """The task as a log line names it."""
        mapped = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"task {self.task_id}{mapped} of run {self.run_id} of DAG {self.dag_id}"


#: Characters that are quoted: the separator, the quoting character, and control characters.
_QUOTED = re.compile(r"[/%\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _quoted(found: re.Match[str]) -> str:
    return quote(found[0], safe="")


def installation() -> str:
    """Return the name of this Airflow in a bucket that other Airflows may use too.

    It is ``[pawnqueue] installation``. Without that, it is drawn once and kept in an Airflow Variable, which all
    components of this installation see, and no others. Outside of Airflow it is ``NO_INSTALLATION``.
    """
    if not _known:
        found = _configured() or _kept()
        if found is None:
            return NO_INSTALLATION  # not remembered: there may be an Airflow to ask later
        _known.append(found)
    return _known[0]


#: The installation's name, once this process knows it.
_known: list[str] = []


def _configured() -> str | None:
    configured: str = (sdk.conf.get("pawnqueue", "installation", fallback=None) or "").strip()
    if len(configured) > _MAX_INSTALLATION_CHARACTERS:
        raise ConfigError(
            f"[pawnqueue] installation has {len(configured)} characters: use at most {_MAX_INSTALLATION_CHARACTERS}.",
            operation="claim",
        )
    return configured or None


def _kept() -> str | None:
    """Return the name in the Variable, drawn if it is not set, or None where there is no Airflow to ask."""
    try:
        found: str | None = sdk.Variable.get(INSTALLATION_VARIABLE, default=None)
        if not found:
            # If two processes draw at once, the last name stays. A claim under the other name is kept by its ttl alone.
            sdk.Variable.set(INSTALLATION_VARIABLE, uuid.uuid4().hex[:12], description=_VARIABLE_DESCRIPTION)
            found = sdk.Variable.get(INSTALLATION_VARIABLE)
    except Exception as error:
        if in_a_task():
            raise  # under another name, its next try would not find this try's claim
        logger.debug("There is no Airflow to ask for its name: %s", error)
        return None
    return str(found)


def in_a_task() -> bool:
    """Return whether a task of Airflow's runs in this process. Its end leaves its claims."""
    try:
        return bool(sdk.get_current_context())
    except Exception:  # noqa: BLE001 - each release of Airflow raises another error
        return False

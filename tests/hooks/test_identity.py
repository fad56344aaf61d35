"""Who claims: written into records and read back, whatever DAGs, runs and tasks are called."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat import sdk
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_pawnqueue.hooks import identity
from airflow_provider_pawnqueue.hooks.identity import INSTALLATION_VARIABLE, NO_INSTALLATION, Owner, installation
from pawnqueue import ConfigError
from pawnqueue.domain import layout

NAME = st.text(min_size=1, max_size=250) | st.text(alphabet="/%a\x00", min_size=200, max_size=250)
OWNER = st.builds(
    Owner,
    st.text(min_size=1, max_size=100),
    NAME,
    NAME,
    NAME,
    st.integers(-1, 10**6),
    st.integers(0),
    st.integers(0, 999),
)


@given(OWNER)
@example(Owner("i" * 100, "/" * 250, "%" * 250, "ü/\n" * 83, 10**6, 99, 999))
def test_owners_read_back(owner: Owner) -> None:
    """Names of any length read back, and the engine accepts the owner's text and the claim's id."""
    text = str(owner)
    assert Owner.parse(text) == owner
    assert layout.checked_holder(text, "owner") == text
    assert layout.checked_claim_id(owner.claim_id) == owner.claim_id
    assert len(text) <= 1024


def test_usual_owners_are_read_by_people() -> None:
    """Names stay as they are, unless they would not read back."""
    owner = Owner("prod", "orders", "manual__2025-01-01T00:00:00+00:00", "group.é/1", 3, 2, 1)
    assert str(owner) == "airflow/prod/orders/manual__2025-01-01T00:00:00+00:00/group.é%2F1/3/2/1"
    assert owner.sentence == "task group.é/1[3] of run manual__2025-01-01T00:00:00+00:00 of DAG orders"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "billing",
        "airflow/a/b/c/d",
        "airflow/a/b/c/d/x/0/0",
        "airflow/a/b/c/d/0/0/0/0",
        "other/a/b/c/d/0/0/0",
        "airflow-exact/1/1/1/1/0/0/0/abcde",
        "airflow-exact/-1/2/2/1/0/0/0/abcd",
        "airflow-exact/1/1",
    ],
)
def test_other_owners_are_none_of_airflows(text: str) -> None:
    """The owner of a script or a service is not parsed as a task."""
    assert Owner.parse(text) is None


@given(OWNER, OWNER)
def test_claim_ids_are_the_tasks(one: Owner, other: Owner) -> None:
    """Two tasks have two ids; one task has one id in every round."""
    assert one.claim_id == one.next_round.claim_id
    same = (one.installation, one.dag_id, one.run_id, one.task_id, one.map_index) == (
        other.installation,
        other.dag_id,
        other.run_id,
        other.task_id,
        other.map_index,
    )
    assert (one.claim_id == other.claim_id) == same


@pytest.mark.parametrize("change", ["installation", "dag_id", "run_id", "task_id", "map_index"])
def test_each_part_makes_a_claim_of_its_own(change: str) -> None:
    """Ids differ where any part differs, also if their readable parts are equal."""
    parts: dict[str, Any] = {"installation": "i", "dag_id": "d-", "run_id": "r", "task_id": "t", "map_index": 1}
    other = parts | {change: 2 if change == "map_index" else f"{parts[change]}-"}
    assert Owner(**parts).claim_id != Owner(**other).claim_id


def test_a_cleared_task_succeeds_itself() -> None:
    """So does a task that has lost its claim. Other tasks do not succeed it."""
    task = Owner("i", "d", "r", "t")
    cleared = Owner("i", "d", "r", "t", clear_number=1)
    assert cleared.succeeds(task.next_round)
    assert task.next_round.succeeds(task)
    assert not task.succeeds(task)
    assert not task.succeeds(cleared)
    assert not cleared.succeeds(Owner("i", "d", "r", "u"))
    assert task.next_round.is_later_round_of(task)
    assert not task.is_later_round_of(task)
    assert not cleared.next_round.is_later_round_of(task)


class TestInstallation:
    """What this Airflow calls itself."""

    @pytest.fixture(autouse=True)
    def variables(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
        """Airflow's Variables, and a process that knows nothing yet."""
        kept: dict[str, str] = {}
        self.asked = 0
        self.failure: Exception | None = None

        class Variable:
            """As Airflow's."""

            @staticmethod
            def get(key: str, default: str | None = None) -> str | None:
                self.asked += 1
                if self.failure is not None:
                    raise self.failure
                return kept.get(key, default)

            @staticmethod
            def set(key: str, value: str, description: str) -> None:
                assert description
                kept[key] = value

        monkeypatch.setattr(sdk, "Variable", Variable)
        monkeypatch.setattr(identity, "_known", [])
        return kept

    def test_the_configuration_says_it(self, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
        """A configured name comes first, and no Variable is drawn."""
        monkeypatch.setenv("AIRFLOW__PAWNQUEUE__INSTALLATION", " production ")
        assert installation() == "production"
        assert variables == {}

    def test_a_name_that_is_too_long_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A name that would not fit into an owner is an error."""
        monkeypatch.setenv("AIRFLOW__PAWNQUEUE__INSTALLATION", "i" * 101)
        with pytest.raises(ConfigError, match="use at most 100"):
            installation()

    def test_else_it_is_drawn_once(self, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        """A drawn name is kept for all processes, each of which reads it once."""
        drawn = installation()
        assert variables == {INSTALLATION_VARIABLE: drawn}
        asked = self.asked
        assert installation() == drawn
        assert self.asked == asked
        monkeypatch.setattr(identity, "_known", [])  # another process
        assert installation() == drawn

    def test_processes_that_draw_at_once_use_one_name(self, variables: dict[str, str]) -> None:
        """Of two processes that draw at once, both use the name that was written last."""
        wrote = sdk.Variable.set

        def beaten(key: str, value: str, description: str) -> None:
            wrote(key, value, description)
            wrote(key, "the other's", description)

        sdk.Variable.set = beaten  # type: ignore[method-assign]
        assert installation() == "the other's"

    def test_outside_of_airflow_it_is_nobody_for_now(self, variables: dict[str, str]) -> None:
        """The answer is not remembered: the name is read as soon as there is an Airflow to ask."""
        self.failure = ImportError("cannot import name 'SUPERVISOR_COMMS'")
        assert installation() == NO_INSTALLATION
        self.failure = None
        assert installation() == variables[INSTALLATION_VARIABLE]

    def test_a_task_does_not_guess(self, in_a_task: None) -> None:
        """A task fails if the name cannot be read: under another name, its next try would not find its claim."""
        self.failure = AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR))
        with pytest.raises(AirflowRuntimeError):
            installation()

    def test_a_task_is_who_it_is_in_its_context(self, variables: dict[str, str]) -> None:
        """The owner has the task's map index and clear number."""
        variables[INSTALLATION_VARIABLE] = "here"
        ti = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1)
        assert Owner.of({"ti": ti}) == Owner("here", "d", "r", "t")  # type: ignore[typeddict-item]
        ti.map_index = 0
        run = SimpleNamespace(clear_number=2)
        assert Owner.of({"ti": ti, "dag_run": run}) == Owner("here", "d", "r", "t", 0, 2)  # type: ignore[typeddict-item]


def test_no_task_runs_here() -> None:
    """Outside of a task, Airflow knows no context."""
    assert not identity.in_a_task()

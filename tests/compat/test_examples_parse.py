"""The installed Airflow parses every example DAG; an example that needs a newer Airflow says so."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:
    from airflow.models.dagbag import DagBag

EXAMPLES = sorted((Path(__file__).parents[2] / "dags_example").glob("*.py"))
#: What an import error has to say where an example is for newer releases.
NEWER = "needs Airflow 3.2 or newer"
FOR_NEWER = {"orders_one_run_each"}
IS_OLD = Version(metadata.version("apache-airflow")) < Version("3.2")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_parsed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example is parsed, or its error names the Airflow that it needs."""
    monkeypatch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    bag = DagBag(path)
    if IS_OLD and path.stem in FOR_NEWER:
        [error] = bag.import_errors.values()
        assert NEWER in error
        return
    assert bag.import_errors == {}
    assert bag.dags

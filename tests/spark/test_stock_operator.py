"""A job of Airflow's own SparkSubmitOperator finds the claim that a template passes on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from pawnqueue import ClaimReference, InvalidArgumentError
from pyspark_pawnqueue.job_environment import CLAIM_VARIABLE
from pyspark_pawnqueue.jobs import job_claims
from tests.spark.submitted import Place
from tests.support.airflow import FakeTask, context_of

if TYPE_CHECKING:
    from pathlib import Path

TEMPLATE = "{{ ti.xcom_pull(task_ids='claim') | tojson }}"
CLAIM = {
    "topic": "orders",
    "claim_id": "mine",
    "generation": 0,
    "session": "s",
    "queue": "queues/",
    "count": 1,
    "messages": [{"id": "a", "payload": {"text": "<'quoted'> & \"more\" \u00e9 {{ braces }}"}}],
}


def rendered(given: Any, template: str, place: Place) -> SparkSubmitOperator:  # noqa: ANN401 - as a sensor returns it
    """Return the operator of a task whose template renders what the sensor returned."""
    process = SparkSubmitOperator(
        task_id="process",
        application=str(place.application),
        env_vars={CLAIM_VARIABLE: template},
        application_args=["--claim", template],
    )
    ti = FakeTask("process")
    ti.xcom_push("return_value", given, task_id="claim")
    process.render_template_fields(context_of(ti))
    return process


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A worker."""
    return Place(tmp_path, monkeypatch)


@pytest.mark.parametrize("given", [CLAIM, [CLAIM, CLAIM | {"topic": "other"}]], ids=["one", "several"])
def test_a_job_finds_its_claim(given: Any, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401 - as above
    """It finds the claim in its environment and its arguments, whatever the claim's messages contain."""
    place.spark_submit(f"(folder / 'told.json').write_text(json.dumps([os.environ[{CLAIM_VARIABLE!r}], sys.argv[-1]]))")

    process = rendered(given, TEMPLATE, place)
    process.execute(context_of(FakeTask("process")))
    assert process._hook is not None
    process._hook._submit_sp.stdout.close()  # the provider leaves it to the end of the process

    for text in json.loads((place.folder / "told.json").read_text()):
        monkeypatch.setenv(CLAIM_VARIABLE, text)
        meant = [ClaimReference.from_dict(each) for each in (given if isinstance(given, list) else [given])]
        assert job_claims() == meant


@pytest.mark.parametrize(
    ("given", "template", "told"),
    [
        (None, TEMPLATE, "This is not a claim reference"),
        (CLAIM, TEMPLATE.replace(" | tojson", ""), "The claim is not JSON"),
    ],
    ids=["nothing", "no-json"],
)
def test_what_is_no_claim_is_told(
    given: Any,  # noqa: ANN401 - as above
    template: str,
    told: str,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job's error says what is wrong with the claim."""
    env_vars = rendered(given, template, place).env_vars
    assert env_vars is not None
    monkeypatch.setenv(CLAIM_VARIABLE, env_vars[CLAIM_VARIABLE])
    with pytest.raises(InvalidArgumentError, match=told):
        job_claims()

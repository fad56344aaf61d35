"""The janitor asks Airflow about runs that have claims, and sweeps all topics despite an error in one."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.timetables.base import TimeRestriction

from airflow_provider_pawnqueue.dags import janitor_dag
from airflow_provider_pawnqueue.hooks.identity import Owner
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.operators.sweeping import PawnQueueJanitorOperator, Runs
from pawnqueue import OpenClaim
from tests.support.airflow import TOPIC, FakeTask, context_of
from tests.support.airflow_names import DagSerialization

if TYPE_CHECKING:
    from pawnqueue import SweepReport, SyncPawnQueue

#: Names of a DAG and a run that would ask Airflow for something else, if they were part of a URL's path.
NO_SEGMENTS = [
    ("../variables/db_pw?", "x"),
    ("..", "variables"),
    ("dag", "../../connections/aws"),
    ("dag", "run#"),
    ("dag", "%2e%2e"),
    ("dag\x00", "run"),
    ("", "run"),
    ("dag", "r" * 251),
]
NOT_FOUND = RuntimeError("API_SERVER_ERROR: 404 NOT_FOUND")


class Api(FakeTask):
    """The task instance of the janitor, with what Airflow's API answers."""

    def __init__(self, state: Any = "running", *, paused: Any = False, states: dict[str, str] | None = None) -> None:
        super().__init__("sweep", states=states)
        self.state, self.paused = state, paused
        self.asked = 0

    def get_dagrun_state(self, dag_id: str, run_id: str) -> Any:
        """See Airflow's."""
        self.asked += 1
        assert (dag_id, run_id) == ("dag", "run")
        if isinstance(self.state, Exception):
            raise self.state
        return self.state

    def get_dag(self, dag_id: str) -> Any:
        """See Airflow's."""
        assert dag_id == "dag"
        if isinstance(self.paused, Exception):
            raise self.paused
        return SimpleNamespace(is_paused=self.paused)


def open_claim(owner: str = str(Owner("here", "dag", "run", "claim")), *, age: timedelta = timedelta()) -> OpenClaim:
    """Return a claim that has not ended."""
    now = datetime.now(UTC)
    return OpenClaim(TOPIC, "id", 0, owner, "c", now - age, now, 1)


@pytest.fixture(autouse=True)
def _connected(queue: SyncPawnQueue) -> None:
    """Make this Airflow the installation named here."""


@pytest.mark.parametrize(
    ("api", "answer"),
    [
        (Api("running"), "going"),
        (Api("queued"), "going"),
        (Api(SimpleNamespace(value="running")), "going"),
        (Api("success"), "ended"),
        (Api("failed"), "ended"),
        (Api(NOT_FOUND), None),
        (Api("running", paused=True, states={"work": "running"}), "going"),
        (Api("running", paused=True, states={"claim": "success", "work": "scheduled"}), None),
        (Api("running", paused=True), None),
        (Api("running", paused=NOT_FOUND), None),
        (Api("running", paused=NOT_FOUND, states={"work": "running"}), "going"),
        (Api("running", paused=AttributeError("get_dag")), "going"),
    ],
)
def test_what_is_said_of_a_run(api: Api, answer: str | None) -> None:
    """A run goes on or has ended; it is unknown if nothing happens in it, or if Airflow does not know it."""
    assert Runs(api, timedelta(days=1)).ask(open_claim()) == answer


@pytest.mark.parametrize(
    "claim",
    [
        open_claim("script-7"),
        open_claim(str(Owner("elsewhere", "dag", "run", "claim"))),
        open_claim(age=timedelta(days=2)),
        *(open_claim(str(Owner("here", dag, run, "claim"))) for dag, run in NO_SEGMENTS),
    ],
)
def test_who_is_not_asked_about(claim: OpenClaim) -> None:
    """Claims of other owners, and claims older than ``max_age``, are left to expire without asking Airflow."""
    api = Api()
    assert Runs(api, timedelta(days=1)).ask(claim) is None
    assert api.asked == 0


def test_a_run_is_asked_about_once() -> None:
    """Airflow is asked once for all claims of a run, even if it answers with an error, whose text is not repeated."""
    api = Api()
    runs = Runs(api, timedelta(days=1))
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(runs.ask, [open_claim()] * 20)) == {"going"}
    assert api.asked == 1
    broken = Api(RuntimeError("{'key': 'db_pw', 'value': 'hunter2'}"))
    runs = Runs(broken, timedelta(days=1))
    for _ in range(2):
        with pytest.raises(Exception, match=r"^Airflow answered with RuntimeError$") as caught:
            runs.ask(open_claim())
        assert caught.value.__context__ is None
    assert broken.asked == 1


def sweep(api: Any = None, **more: Any) -> dict[str, Any]:
    """Execute the operator."""
    return PawnQueueJanitorOperator(task_id="sweep", **more).execute(context_of(Api() if api is None else api))


def claimed(queue: SyncPawnQueue, run: str = "run") -> Any:
    """Claim for a run, and leave the claim."""
    owner = Owner("here", "dag", run, "claim")
    queue.publish(TOPIC, [{"n": 1}])
    claim = queue.claim(TOPIC, "c", claim_id=owner.claim_id, owner=str(owner), ttl=60)
    queue.leave(claim)
    return claim


def test_a_run_that_goes_on_keeps_its_claim(queue: SyncPawnQueue) -> None:
    """Its claim is renewed as soon as that makes it last longer."""
    claimed(queue)
    give_up = time.monotonic() + 10
    while not sweep()[TOPIC]["renewed_claims"]:
        assert time.monotonic() < give_up
    assert queue.stats(TOPIC).in_flight == 1


def test_a_run_that_ended_gives_back(queue: SyncPawnQueue) -> None:
    """Its messages are given back in the same sweep if no task works on them; a dry run only reports it."""
    claimed(queue)
    assert sweep(Api("failed"), dry_run=True)[TOPIC]["fenced_claims"] == 1
    assert queue.stats(TOPIC).in_flight == 1
    report = sweep(Api("failed"))[TOPIC]
    assert (report["fenced_claims"], report["given_back"]) == (1, 1)
    assert queue.stats(TOPIC).pending == 1


def test_an_error_concerns_its_own_claim(queue: SyncPawnQueue) -> None:
    """If Airflow does not answer about a run, the report lists a failure, and the claim is left alone."""
    claimed(queue)
    report = sweep(Api(RuntimeError("500 from the API")))[TOPIC]
    assert report["failures"] == 1
    assert queue.stats(TOPIC).in_flight == 1


def test_twice_at_once(queue: SyncPawnQueue) -> None:
    """Two sweeps at once do nothing twice."""
    claimed(queue)
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda _: sweep(Api("success"))[TOPIC], range(2)))
    assert sum(report["given_back"] for report in reports) == 1
    assert queue.stats(TOPIC).pending == 1


def test_what_is_strange_is_counted_once(queue: SyncPawnQueue) -> None:
    """A stranger is counted once, even if the topic is swept twice."""
    claimed(queue)
    store = queue._queue._context.store
    queue.run(lambda _: store.put(f"{TOPIC}/messages/notes.txt", b""))
    assert sweep(Api("success"))[TOPIC]["strangers"] == 1


def test_one_bad_topic_stops_no_other(queue: SyncPawnQueue) -> None:
    """The other topics are swept, and the task fails with the sentence of the error."""
    claimed(queue)
    with pytest.raises(AirflowException, match=r"1 of 2 topics were not swept.*nowhere"):
        sweep(Api("failed"), topics=["nowhere", TOPIC])
    assert queue.stats(TOPIC).pending == 1
    with pytest.raises(AirflowException, match="1 of 1 topics were not swept"):
        sweep(topics="nowhere")


def test_a_defect_at_one_topic_stops_no_other(queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other topics are swept whatever the sweep of one raises, and the task fails at the end."""
    claimed(queue)
    swept = PawnQueueHook.sweep

    def sweep_but_bad(hook: PawnQueueHook, topic: str, **how: Any) -> SweepReport:
        if topic == "bad":
            raise OverflowError
        return swept(hook, topic, **how)

    monkeypatch.setattr(PawnQueueHook, "sweep", sweep_but_bad)
    with pytest.raises(AirflowException, match=r"1 of 2 topics were not swept. bad: a defect .*OverflowError"):
        sweep(Api("failed"), topics=["bad", TOPIC])
    assert queue.stats(TOPIC).pending == 1


def test_a_defect_at_one_object_fails_the_task_at_the_end(
    queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything else is swept, and the error names the object."""
    claimed(queue)
    swept = PawnQueueHook.sweep

    def sweep_badly(hook: PawnQueueHook, topic: str, **how: Any) -> SweepReport:
        report = swept(hook, topic, **how)
        report.defects.append("orders/writes/x.json")
        return report

    monkeypatch.setattr(PawnQueueHook, "sweep", sweep_badly)
    with pytest.raises(AirflowException, match=r"except for 1 objects.*orders/writes/x\.json"):
        sweep(Api("failed"))
    assert queue.stats(TOPIC).pending == 1


def test_which_topics(queue: SyncPawnQueue) -> None:
    """All topics are swept, or the named ones, which a template may name."""
    queue.create_topic("other")
    assert set(sweep()) == {TOPIC, "other"}
    assert set(sweep(topics="other")) == {"other"}
    assert set(sweep(topics="['other']")) == {"other"}
    with pytest.raises(AirflowFailException, match="topics"):
        sweep(topics=[7])


def test_the_ready_made_dag() -> None:
    """It has one task, runs on a schedule without a start date, and never twice at once."""
    dag = janitor_dag("swept", topics=["a"], tags=["mine"])
    assert dag.task_ids == ["sweep"]
    assert (dag.catchup, dag.max_active_runs, dag.tags) == (False, 1, {"mine"})
    assert dag.get_task("sweep").topics == ["a"]


def test_the_ready_made_dag_runs() -> None:
    """Its first run is due at once, though it has no start date."""
    dag = DagSerialization.from_dict(DagSerialization.to_dict(janitor_dag("swept")))
    found = dag.timetable.next_dagrun_info(
        last_automated_data_interval=None, restriction=TimeRestriction(earliest=None, latest=None, catchup=False)
    )
    assert found is not None
    assert found.run_after <= datetime.now(UTC) + timedelta(minutes=1)


def test_each_topic_is_logged_once(
    queue: SyncPawnQueue, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sweep logs each topic, and the operator does not repeat it."""
    queue.create_topic("bills")
    with caplog.at_level("INFO"):
        PawnQueueJanitorOperator(task_id="sweep").execute(context_of(Api()))
    by_the_engine = [each for each in caplog.records if each.name.startswith("pawnqueue")]
    assert sum("swept topic" in each.getMessage().lower() for each in by_the_engine) == 2
    by_the_task = [line for line in capsys.readouterr().out.splitlines() if "operators.airflow_provider" in line]
    assert not [line for line in by_the_task if "swept topic" in line.lower()]

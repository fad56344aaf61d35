"""The operator of the janitor, and what Airflow tells it about the runs that have claims."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from airflow.providers.common.compat.sdk import AirflowException, Context

from airflow_provider_pawnqueue.hooks import telemetry
from airflow_provider_pawnqueue.hooks.arguments import check_early, checked_flag, checked_seconds, checked_topics
from airflow_provider_pawnqueue.hooks.diagnosis import in_airflow
from airflow_provider_pawnqueue.hooks.identity import Owner, installation
from airflow_provider_pawnqueue.operators.base import PawnQueueOperator, failures
from pawnqueue import OpenClaim, PawnQueueError, SweepReport, TopicNotFoundError

#: The states of a task that Airflow will still run or end, even while its DAG is paused.
_UNFINISHED_TASK_STATES: Final = frozenset(
    {"running", "queued", "deferred", "restarting", "up_for_reschedule", "awaiting_input"}
)
#: The fields of a sweep's report that list what is wrong; the others are counts of what was done.
_LISTS: Final = ("stuck", "strangers", "failures", "defects")
_UNFINISHED_RUN_STATES: Final = frozenset({"running", "queued", "restarting"})
#: Airflow accepts no longer name of a DAG or a run.
_MAX_NAME_CHARACTERS: Final = 250
#: Characters that would end a segment of a URL's path, or mean something else in it.
_NOT_IN_A_SEGMENT: Final = re.compile(r"[/\\?#%\x00-\x1f\x7f]")


class PawnQueueJanitorOperator(PawnQueueOperator):
    """Sweeps topics; returns a report of each. It may run at any time, and several may run at once.

    It renews the claims of this Airflow's DAG runs that go on, and ends the claims of runs that ended without settling.
    It leaves the claims of other Airflows and of other programs alone. It also leaves the claims of a run alone in
    which nothing happens any more, because its DAG is paused or deleted: they expire.

    :param topics: the topics to sweep; without it, all.
    :param max_age: leave claims alone that are older than this, so that they expire.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    :param dry_run: change nothing, and report what would be done.
    """

    template_fields: Sequence[str] = ("topics", "pawnqueue_conn_id")

    def __init__(
        self,
        *,
        topics: Sequence[str] | str | None = None,
        max_age: timedelta = timedelta(days=1),
        dry_run: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topics = check_early(topics or None, checked_topics, "topics")
        self.max_age = check_early(max_age, checked_seconds, "max_age")
        self.is_dry_run = checked_flag(dry_run, "dry_run")

    def execute(self, context: Context) -> dict[str, Any]:
        """Sweep the topics one after the other. An error in one topic does not keep the others from being swept."""
        hook = self.hook
        ask = Runs(context["ti"], self.max_age).ask
        reports: dict[str, Any] = {}
        failed: list[str] = []
        defects: list[str] = []
        with failures():
            topics = checked_topics(self.topics, "topics") if self.topics else hook.list_topics()
        for topic in topics:
            try:
                reports[topic], found = self._sweep(topic, ask)
                defects += found
            except TopicNotFoundError as error:
                if self.topics:
                    failed.append(in_airflow(error))
                # otherwise the topic was deleted after it was listed
            except PawnQueueError as error:
                failed.append(f"{topic}: {error}")
            except Exception as defect:  # a defect in one topic does not keep the others from being swept
                self.log.exception("Topic %s was not swept because of a defect of this version.", topic)
                failed.append(f"{topic}: a defect of this version ({type(defect).__name__}): see the log")
        for each in failed:
            self.log.error("Not swept: %s", each)
        if failed:
            raise AirflowException(f"{len(failed)} of {len(topics)} topics were not swept. {failed[0]}")
        if defects:
            raise AirflowException(
                f"All topics were swept except for {len(defects)} objects, such as {defects[0]}, at which this version "
                "has a defect: the log has the traceback. Please report it."
            )
        return reports

    def _sweep(
        self, topic: str, ask: Callable[[OpenClaim], Literal["going", "ended"] | None]
    ) -> tuple[dict[str, int], list[str]]:
        hook = self.hook
        report = hook.sweep(topic, dry_run=self.is_dry_run, ask=ask)
        if report.paused:
            self.log.warning("Topic %s is paused: nobody is given its messages until it is resumed.", topic)
        counts, defects = _counts_of(report), list(report.defects)
        if report.fenced_claims and not self.is_dry_run:
            # The second sweep gives back the messages of claims that the first one ended, if nobody works on them.
            second = hook.sweep(topic, ask=ask)
            again = _counts_of(second)
            defects += [key for key in second.defects if key not in defects]
            # What is wrong is as the second sweep found it; what was done is the sum of both.
            counts = {name: again[name] + (0 if name in _LISTS else value) for name, value in counts.items()}
        telemetry.report(topic, hook.stats(topic))
        return counts, defects


class Runs:
    """What this Airflow says about the runs that have claims; it is asked once for each run."""

    def __init__(self, ti: Any, max_age: timedelta) -> None:  # noqa: ANN401 - Airflow's task instance
        self._ti = ti
        self._max_age = max_age
        self._installation = installation()
        self._answers: dict[tuple[str, str], Literal["going", "ended"] | _UnansweredError | None] = {}
        self._lock = threading.Lock()  # a sweep asks from several threads, and Airflow takes one request at a time

    def ask(self, claim: OpenClaim) -> Literal["going", "ended"] | None:
        """Say whether the run for which a claim was made goes on, or return None where that is not known."""
        owner = Owner.parse(claim.owner)
        if owner is None or owner.installation != self._installation:
            return None
        # ⚑ Others can write records with any owner, and its names become parts of a path in Airflow's API.
        if not (_is_one_segment(owner.dag_id) and _is_one_segment(owner.run_id)):
            return None
        if datetime.now(UTC) - claim.created_at > self._max_age:
            return None
        key = owner.dag_id, owner.run_id
        with self._lock:
            if key not in self._answers:
                self._answers[key] = self._request(*key)
            answer = self._answers[key]
        if isinstance(answer, _UnansweredError):
            raise answer
        return answer

    def _request(self, dag_id: str, run_id: str) -> Literal["going", "ended"] | _UnansweredError | None:
        try:
            return self._read_state(dag_id, run_id)
        except Exception as error:  # noqa: BLE001 - whatever Airflow answers, it concerns only the claims of this run
            if _is_not_found(error):
                return None  # the run was deleted, or is one of another Airflow with the same name
            # Without the error's text, which may repeat what Airflow answered.
            return _UnansweredError(f"Airflow answered with {type(error).__name__}")

    def _read_state(self, dag_id: str, run_id: str) -> Literal["going", "ended"] | None:
        state = str(getattr(found := self._ti.get_dagrun_state(dag_id, run_id), "value", found))
        if state not in _UNFINISHED_RUN_STATES:
            return "ended"
        return "going" if self._will_end(dag_id, run_id) else None

    def _will_end(self, dag_id: str, run_id: str) -> bool:
        """Say whether an unfinished run will end by itself: it may not while its DAG is paused or deleted."""
        try:
            if not self._ti.get_dag(dag_id).is_paused:
                return True
        except AttributeError:
            return True  # this version of Airflow cannot tell
        except Exception as error:
            if not _is_not_found(error):
                raise
        states = self._ti.get_task_states(dag_id=dag_id, run_ids=[run_id]).get(run_id, {})
        return any(state in _UNFINISHED_TASK_STATES for state in states.values())


class _UnansweredError(Exception):
    """Airflow does not say what state a run is in."""


def _is_one_segment(name: str) -> bool:
    """Say whether a name is one segment of a URL's path, as the names of DAGs and nearly all runs are."""
    return 0 < len(name) <= _MAX_NAME_CHARACTERS and name not in (".", "..") and _NOT_IN_A_SEGMENT.search(name) is None


def _is_not_found(error: Exception) -> bool:
    text = f"{getattr(error, 'error', '')} {error}"
    return "404" in text or "NOT_FOUND" in text.upper()


def _counts_of(report: SweepReport) -> dict[str, int]:
    return dict(report.counts()) | {name: len(getattr(report, name)) for name in _LISTS}

"""The janitor's round: it finishes what crashed processes left, and keeps the claims of runs that go on."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_pawnqueue.hooks import telemetry
from airflow_provider_pawnqueue.hooks.arguments import check_constants, checked_flag, checked_seconds, checked_topics
from airflow_provider_pawnqueue.hooks.diagnosis import in_airflow
from airflow_provider_pawnqueue.hooks.identity import Owner, installation
from airflow_provider_pawnqueue.operators.base import PawnQueueOperator, failures
from pawnqueue import PawnQueueError, TopicNotFoundError

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from pawnqueue import OpenClaim, SweepReport

#: States of a task in which something is still going to happen to it, also while its DAG is paused.
_ALIVE = frozenset({"running", "queued", "deferred", "restarting", "up_for_reschedule", "awaiting_input"})
#: What a sweep reports by name.
_WRONG = ("stuck", "strangers", "failures", "defects")
_GOING = frozenset({"running", "queued", "restarting"})
#: The longest name of a DAG or a run that Airflow takes, in characters.
_LONGEST_NAME = 250
#: What would end a segment of a URL's path, or be read as something else in it.
_NOT_IN_A_SEGMENT = re.compile(r"[/\\?#%\x00-\x1f\x7f]")


class PawnQueueJanitorOperator(PawnQueueOperator):
    """Sweeps topics; returns a report of each. Safe at any time, and twice at once.

    It renews the claims of DAG runs of this Airflow that go on, and ends those of runs that ended without settling.
    Claims of another Airflow are left alone, and so are those of a program. A run that nothing happens to any more, as
    its DAG is paused or gone, is not spoken for: its claims end with their own time.

    :param topics: which; without it, all.
    :param max_age: claims older than this are not spoken for.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    :param dry_run: change nothing; the report says what would be done.
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
        check_constants(checked_topics, topics=topics or None)
        check_constants(checked_seconds, max_age=max_age)
        self.topics = topics
        self.max_age = max_age
        self.is_dry_run = checked_flag(dry_run, "dry_run")

    def execute(self, context: Context) -> dict[str, Any]:
        """Sweep them, one after the other: what fails in one topic does not concern the next."""
        hook = self.hook
        ask = Runs(context["ti"], self.max_age).ask
        reports: dict[str, Any] = {}
        failed: list[str] = []
        defects: list[str] = []
        with failures():
            topics = checked_topics(self.topics, "topics") if self.topics else hook.list_topics()
        for topic in topics:
            try:
                reports[topic], found = self._swept(topic, ask)
                defects += found
            except TopicNotFoundError as error:
                if self.topics:
                    failed.append(in_airflow(error))
                # else it was deleted since it was listed
            except PawnQueueError as error:
                failed.append(f"{topic}: {error}")
            except Exception as defect:  # a defect at one topic keeps no other from being swept
                self.log.exception("Topic %s was not swept because of a defect of this version.", topic)
                failed.append(f"{topic}: a defect of this version ({type(defect).__name__}): see the log")
        for each in failed:
            self.log.error("Not swept: %s", each)
        if failed:
            raise AirflowException(f"{len(failed)} of {len(topics)} topics were not swept. {failed[0]}")
        if defects:
            raise AirflowException(
                f"All topics were swept, but for {len(defects)} objects, at which this version has a defect, such as "
                f"{defects[0]}: the log has the traceback. Please report it."
            )
        return reports

    def _swept(
        self, topic: str, ask: Callable[[OpenClaim], Literal["going", "ended"] | None]
    ) -> tuple[dict[str, int], list[str]]:
        hook = self.hook
        report = hook.sweep(topic, dry_run=self.is_dry_run, ask=ask)
        told, defects = _told(report), list(report.defects)
        if report.fenced_claims and not self.is_dry_run:
            # What was ended is given back at once where nobody worked on it: that takes a second look.
            second = hook.sweep(topic, ask=ask)
            again = _told(second)
            defects += [key for key in second.defects if key not in defects]
            # Of what is wrong, the second look tells as it is now; of what was done, both count.
            told = {name: again[name] + (0 if name in _WRONG else value) for name, value in told.items()}
        telemetry.gauge(topic, hook.stats(topic))  # the sweep itself has logged what it did, and what it could not do
        return told, defects


class Runs:
    """What this Airflow says of the owners of claims: asked once for each run."""

    def __init__(self, ti: Any, max_age: timedelta) -> None:  # noqa: ANN401 - Airflow's task instance
        self._ti = ti
        self._max_age = max_age
        self._installation = installation()
        self._answers: dict[tuple[str, str], Literal["going", "ended"] | _UnansweredError | None] = {}
        self._lock = threading.Lock()  # a sweep asks from several threads, and Airflow hears one at a time

    def ask(self, claim: OpenClaim) -> Literal["going", "ended"] | None:
        """Say whether the run on whose behalf a claim was made goes on; None: nobody here can tell."""
        owner = Owner.parse(claim.owner)
        if owner is None or owner.installation != self._installation:
            return None
        # ⚑ A record's owner is input, and its names become parts of a path in Airflow's API.
        if not (_is_one_segment(owner.dag_id) and _is_one_segment(owner.run_id)):
            return None
        if datetime.now(UTC) - claim.created_at > self._max_age:
            return None
        key = owner.dag_id, owner.run_id
        with self._lock:
            if key not in self._answers:
                self._answers[key] = self._asked(*key)
            answer = self._answers[key]
        if isinstance(answer, _UnansweredError):
            raise answer
        return answer

    def _asked(self, dag_id: str, run_id: str) -> Literal["going", "ended"] | _UnansweredError | None:
        try:
            return self._answer(dag_id, run_id)
        except Exception as error:  # noqa: BLE001 - whatever Airflow answers, it concerns the claims of this run
            if _is_not_found(error):
                return None  # a run that was deleted, or one of another Airflow that has this one's name
            # Without its text, which may repeat what Airflow answered.
            return _UnansweredError(f"Airflow answered with {type(error).__name__}")

    def _answer(self, dag_id: str, run_id: str) -> Literal["going", "ended"] | None:
        state = str(getattr(found := self._ti.get_dagrun_state(dag_id, run_id), "value", found))
        if state not in _GOING:
            return "ended"
        return "going" if self._something_happens(dag_id, run_id) else None

    def _something_happens(self, dag_id: str, run_id: str) -> bool:
        """Say whether a run that goes on will come to its end by itself: not while its DAG is paused, or is gone."""
        try:
            if not self._ti.get_dag(dag_id).is_paused:
                return True
        except AttributeError:
            return True  # this Airflow cannot say
        except Exception as error:
            if not _is_not_found(error):
                raise
        states = self._ti.get_task_states(dag_id=dag_id, run_ids=[run_id]).get(run_id, {})
        return any(state in _ALIVE for state in states.values())


class _UnansweredError(Exception):
    """Airflow does not say how a run goes."""


def _is_one_segment(name: str) -> bool:
    """Say whether a name stays one segment of a URL's path, as the names of DAGs and nearly all runs do."""
    return 0 < len(name) <= _LONGEST_NAME and name not in (".", "..") and _NOT_IN_A_SEGMENT.search(name) is None


def _is_not_found(error: Exception) -> bool:
    told = f"{getattr(error, 'error', '')} {error}"
    return "404" in told or "NOT_FOUND" in told.upper()


def _told(report: SweepReport) -> dict[str, int]:
    return dict(report.counts()) | {name: len(getattr(report, name)) for name in _WRONG}

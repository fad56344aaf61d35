"""Submitting Spark jobs that work on a claim."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
    BaseHook,
    redact,
)

from airflow_provider_pawnqueue.hooks import reports
from airflow_provider_pawnqueue.hooks.clients import settings_for_others
from airflow_provider_pawnqueue.hooks.stopping import WorkStoppedError
from airflow_provider_pawnqueue.operators.base import failures
from airflow_provider_pawnqueue.operators.claim_operator import ClaimOperator
from airflow_provider_pawnqueue.spark import sentences
from airflow_provider_pawnqueue.spark.handing import Folder
from airflow_provider_pawnqueue.spark.submitting import GRACE, SHORT_GRACE, Guarded, environment
from pawnqueue import ClaimReference, LeaseLostError

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.common.compat.sdk import Context

    from pawnqueue import Claim, Settings

_DEPLOY_MODE: Final = "spark.submit.deployMode"


class PawnQueueSparkSubmitOperator(ClaimOperator, SparkSubmitOperator):
    """Submits a Spark job that works on a claim, and keeps the claim while it runs; returns how many it reported.

    It is a :class:`SparkSubmitOperator`, and takes all its arguments. The job finds the claim by itself:
    ``spark.read.format("pawnqueue").load()``, ``job_claims()``; what it says by ``report_failures`` is requeued or
    buried by the settlement that follows, and the rest acked. Keys of the connection are handed over in a file that
    nobody else may read, which goes with the job; temporary ones are those of the job's start.

    If the claim is lost, or the task killed, all of the job ends, the JVM and the Python driver too. The driver runs on
    the worker (``deploy_mode`` client).

    :param claim: what the sensor returned.
    :param application: the job: a Python file, or a jar.
    :param conn_id: the Spark connection, `spark_default` unless it is said; one that does not exist is refused.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    :param kwargs: all others of :class:`SparkSubmitOperator`.
    """

    template_fields: Sequence[str] = ("claim", "pawnqueue_conn_id", *SparkSubmitOperator.template_fields)

    def __init__(self, *, claim: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as the sensor returned it
        super().__init__(claim=claim, **kwargs)
        self._running: Guarded | None = None
        self._is_killed = self._is_told = False
        self._done: dict[str, int] = {}

    def execute(self, context: Context) -> dict[str, int]:  # type: ignore[override]  # the provider's returns nothing
        """Submit the job, and wait for its end."""
        self.claims()  # which skips where there is none
        self._is_killed = self._is_told = False
        SparkSubmitOperator.execute(self, context)  # which makes the hook below, and has it submit
        return self._done

    def on_kill(self) -> None:
        """End the job, all of it; the task hears of its end, and fails.

        ⚑ Nothing is logged here: Airflow calls this in a handler of signals, in the midst of whatever the task is at,
        which is mostly writing a line of the job's to its log; whose lock it holds, and would be waited for for ever.
        """
        self._is_killed = True
        if self._running is not None:
            self._running.ask_to_end(GRACE)

    def _tell_of_kill(self) -> None:
        if self._is_killed and not self._is_told:
            self._is_told = True
            self.log.warning("This task is killed: its job ends, the JVM and the Python driver too.")

    def _get_hook(self) -> SparkSubmitHook:
        """Return the provider's hook, which submits in our way; refuse what it would do in another than was meant."""
        connection = self._spark_connection()
        hook = super()._get_hook()
        master = hook._connection["master"]  # noqa: SLF001 - nothing public tells it
        if master == "yarn" and connection.host != "yarn":  # it could not read the connection, and has guessed
            raise AirflowException(f"The Spark connection {self._conn_id!r} could not be read: another try may.")
        modes = {hook._connection["deploy_mode"], (self.conf or {}).get(_DEPLOY_MODE)}  # noqa: SLF001 - likewise
        if "cluster" in modes:
            raise AirflowFailException(
                "deploy_mode='cluster' runs the driver on another machine, where it finds neither the claim's "
                "connection nor whom to report to: submit in client mode (deploy_mode='client'), or take the stock "
                "SparkSubmitOperator, and pass the claim as an argument."
            )
        hook.submit = lambda application="", **_: self._submit(hook, application)  # type: ignore[method-assign]
        return hook

    def _spark_connection(self) -> Any:  # noqa: ANN401 - Airflow's connection
        try:
            return BaseHook.get_connection(self._conn_id)
        except AirflowNotFoundException:
            raise AirflowFailException(
                f"There is no Spark connection {self._conn_id!r} (conn_id), and Spark would be asked for on YARN: make "
                "one of type spark (Admin, Connections), with the master as its host, say local[*] or spark://host:7077."
            ) from None

    def _submit(self, hook: SparkSubmitHook, application: str) -> None:
        """Work on the claims by a job."""
        if sentences.is_missing(application):
            raise AirflowFailException(sentences.no_application(application))
        command = hook._build_spark_submit_command(application)  # noqa: SLF001 - as the provider does
        if shutil.which(command[0], path=environment(self.env_vars).get("PATH")) is None:
            raise AirflowFailException(sentences.no_program(command[0]))
        with failures(), ExitStack() as stack:
            queue = self.hook
            held = [stack.enter_context(queue.working_on(claim, payloads=False)) for claim in self.claims()]
            meant = [claim for claim in held if claim]
            if not meant:
                raise AirflowSkipException(f"All messages of {_named(held)} are settled: there is nothing to submit.")
            found = self._worked_on(meant, hook, command, settings_for_others(queue.address))
            if found:
                reports.add(found, ())
        count = sum(len(claim) for claim in meant)
        self.log.info("The job has worked on %s: %d messages, %d of which failed.", _named(meant), count, len(found))
        self._done = {"messages": count, "reported": len(found)}

    def _worked_on(
        self, claims: Sequence[Claim], hook: SparkSubmitHook, command: Sequence[str], settings: Settings
    ) -> dict[str, str]:
        """Hand the claims over, and run the job; return what it reports."""
        folder = Folder()
        given = environment(self.env_vars, folder.variables([_reference(claim) for claim in claims]))
        grace = min(SHORT_GRACE, settings.claims.margin_seconds / 2)
        try:
            with Guarded(command, given, folder=str(folder.path), grace=grace) as running:
                folder.make(settings)
                self._run(hook, running, claims, grace)
            return folder.report()
        finally:
            folder.remove()
            hook._run_post_submit_commands()  # noqa: SLF001 - as the provider does

    def _run(self, hook: SparkSubmitHook, running: Guarded, claims: Sequence[Claim], grace: float) -> None:
        """Run the job to its end, with what it prints in the log."""
        said = sentences.Said()

        def look() -> None:
            """Stop where a claim is lost: whoever works in another thread than the main one is not stopped else."""
            self._tell_of_kill()
            lost = next((claim for claim in claims if claim.lost is not None), None)
            if lost is not None:
                raise LeaseLostError(
                    f"The claim that this task worked on is lost ({lost.lost}): others may have its messages, and work "
                    "on them. A longer ttl, or a janitor DAG, keeps claims for longer.",
                    topic=lost.topic,
                    operation="keep_alive",
                )

        def lines() -> Iterator[str]:
            for line in running.lines(look):
                shown = str(redact(line))
                said.hear(shown)
                yield shown

        self._running = running
        if self._is_killed:  # before there was something to end
            running.ask_to_end(0.0)
        try:
            running.run()
            hook._process_spark_submit_log(lines())  # noqa: SLF001 - as the provider does
            status = running.status(look)
        except BaseException as error:
            is_lost = isinstance(error, (LeaseLostError, WorkStoppedError))
            self.log.warning(
                "The job ends, the JVM and the Python driver too, as %s",
                "its claim is lost: others may have the messages." if is_lost else f"its task does: {error!r}",
            )
            running.end(grace if is_lost else GRACE)
            self.log.info("Nothing of the job is left.")
            raise
        finally:
            self._running = None
        if self._is_killed:
            self._tell_of_kill()
            raise AirflowException("The task was killed, and its job with it.")
        if status:
            raise said.failure(status)


def _reference(claim: Claim) -> ClaimReference:
    return ClaimReference(claim.topic, claim.claim_id, claim.generation, claim.session)


def _named(claims: Sequence[Claim]) -> str:
    return ", ".join(f"claim {claim.stem} of topic {claim.topic}" for claim in claims)

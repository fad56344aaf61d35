"""Submitting Spark jobs that work on a claim."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
    BaseHook,
    Context,
    redact,
)

from airflow_provider_pawnqueue.hooks import reports
from airflow_provider_pawnqueue.hooks.clients import settings_for_others
from airflow_provider_pawnqueue.hooks.stopping import WorkStoppedError
from airflow_provider_pawnqueue.operators.base import failures
from airflow_provider_pawnqueue.operators.claim_operator import ClaimOperator, names_of
from airflow_provider_pawnqueue.spark import failure_reasons
from airflow_provider_pawnqueue.spark.failure_reasons import JobOutput
from airflow_provider_pawnqueue.spark.guarded_process import (
    GRACE_SECONDS,
    LOST_CLAIM_GRACE_SECONDS,
    GuardedProcess,
    job_environment,
)
from airflow_provider_pawnqueue.spark.job_folder import JobFolder
from pawnqueue import Claim, ClaimReference, LeaseLostError, Settings

_DEPLOY_MODE: Final = "spark.submit.deployMode"


class PawnQueueSparkSubmitOperator(ClaimOperator, SparkSubmitOperator):
    """Submits a Spark job that works on a claim, and keeps the claim meanwhile. Returns how many messages it reported.

    It is a :class:`SparkSubmitOperator`, and takes all its arguments. The job finds its claim by itself:
    ``spark.read.format("pawnqueue").load()``, ``job_claims()``. The settlement that follows requeues or buries the
    messages that the job has reported by ``report_failures``, and acks the others. The job gets the keys of the
    connection in a file that nobody else may read, and that is removed with the job. Temporary keys are those of the
    job's start.

    If the claim is lost or the task is killed, all of the job ends, including the JVM and the Python driver. The driver
    runs on the worker (``deploy_mode`` client).

    :param claim: what the sensor returned.
    :param application: the job: a Python file, or a jar.
    :param conn_id: the Spark connection, by default `spark_default`. It must exist.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    :param kwargs: all others of :class:`SparkSubmitOperator`.
    """

    template_fields: Sequence[str] = ("claim", "pawnqueue_conn_id", *SparkSubmitOperator.template_fields)

    def __init__(self, *, claim: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as the sensor returned it
        super().__init__(claim=claim, **kwargs)
        self._process: GuardedProcess | None = None
        self._is_killed = self._is_kill_logged = False
        self._result: dict[str, int] = {}

    def execute(self, context: Context) -> dict[str, int]:  # type: ignore[override]  # the provider's returns nothing
        """Submit the job, and wait for its end."""
        self.claims()  # skips the task if there is no claim
        self._is_killed = self._is_kill_logged = False
        SparkSubmitOperator.execute(self, context)  # makes the hook below, and has it submit the job
        return self._result

    def on_kill(self) -> None:
        """End all of the job. The task notices the end, and fails.

        ⚑ Nothing is logged here: Airflow calls this in a handler of signals, at any point of the task's work. The task
        is mostly writing a line of the job to its log then. It holds the log's lock, for which a log call would wait
        forever.
        """
        self._is_killed = True
        if self._process is not None:
            self._process.request_end(GRACE_SECONDS)

    def _log_kill(self) -> None:
        if self._is_killed and not self._is_kill_logged:
            self._is_kill_logged = True
            self.log.warning("This task was killed, so its job ends, including the JVM and the Python driver.")

    def _get_hook(self) -> SparkSubmitHook:
        """Return the provider's hook, changed to submit by our guard. Refuse what it would misunderstand."""
        connection = self._spark_connection()
        hook = super()._get_hook()
        master = hook._connection["master"]  # noqa: SLF001 - the hook has no public way to read it
        if master == "yarn" and connection.host != "yarn":  # the hook could not read the connection, and has guessed
            raise AirflowException(
                f"The Spark connection {self._conn_id!r} (conn_id) could not be read just now: try the task again."
            )
        modes = {hook._connection["deploy_mode"], (self.conf or {}).get(_DEPLOY_MODE)}  # noqa: SLF001 - likewise
        if "cluster" in modes:
            raise AirflowFailException(
                "deploy_mode='cluster' runs the driver on another machine, where it can neither read the connection of "
                "the claim nor report failed messages: submit in client mode (deploy_mode='client'), or use the stock "
                "SparkSubmitOperator, and pass the claim as an argument."
            )
        hook.submit = lambda application="", **_: self._submit(hook, application)  # type: ignore[method-assign]
        return hook

    def _spark_connection(self) -> Any:  # noqa: ANN401 - Airflow's connection
        try:
            return BaseHook.get_connection(self._conn_id)
        except AirflowNotFoundException:
            raise AirflowFailException(
                f"The Spark connection {self._conn_id!r} (conn_id) does not exist, and Spark would look for YARN: make "
                "one of type spark (Admin, Connections), with the master as its host, for example local[*] or "
                "spark://host:7077."
            ) from None

    def _submit(self, hook: SparkSubmitHook, application: str) -> None:
        """Work on the claims by a job."""
        if failure_reasons.is_missing_file(application):
            raise AirflowFailException(failure_reasons.missing_application(application))
        command = hook._build_spark_submit_command(application)  # noqa: SLF001 - as the provider does
        if shutil.which(command[0], path=job_environment(self.env_vars).get("PATH")) is None:
            raise AirflowFailException(failure_reasons.missing_program(command[0]))
        with failures(), ExitStack() as stack:
            queue = self.hook
            held = [stack.enter_context(queue.working_on(claim, payloads=False)) for claim in self.claims()]
            unsettled = [claim for claim in held if claim]
            if not unsettled:
                raise AirflowSkipException(
                    f"All messages of {names_of(held)} are settled, so this task submits no job."
                )
            failed = self._work_on(unsettled, hook, command, settings_for_others(queue.address))
            if failed:
                reports.add(failed, ())
        count = sum(len(claim) for claim in unsettled)
        self.log.info(
            "The job has worked on %s: %d messages, of which it reported %d as failed.",
            names_of(unsettled),
            count,
            len(failed),
        )
        self._result = {"messages": count, "reported": len(failed)}

    def _work_on(
        self, claims: Sequence[Claim], hook: SparkSubmitHook, command: Sequence[str], settings: Settings
    ) -> dict[str, str]:
        """Hand the claims to the job, and run it. Return the failed messages that it reports, with the reasons."""
        folder = JobFolder()
        references = [ClaimReference(claim.topic, claim.claim_id, claim.generation, claim.session) for claim in claims]
        env = job_environment(self.env_vars, folder.variables(references))
        grace_seconds = min(LOST_CLAIM_GRACE_SECONDS, settings.claims.margin_seconds / 2)
        try:
            with GuardedProcess(command, env, folder=str(folder.path), grace=grace_seconds) as process:
                folder.create(settings)
                self._run(hook, process, claims, grace_seconds)
            return folder.read_report()
        finally:
            folder.remove()
            hook._run_post_submit_commands()  # noqa: SLF001 - as the provider does

    def _run(
        self, hook: SparkSubmitHook, process: GuardedProcess, claims: Sequence[Claim], grace_seconds: float
    ) -> None:
        """Run the job to its end, and write its output to the log.

        After an error, nothing of the job is left running.

        :param grace_seconds: how long the job may go on after a claim is lost.
        :raises LeaseLostError: the job was ended because a claim is lost.
        :raises AirflowException: the job failed, or the task was killed.
        """
        output = JobOutput()

        def check_claims() -> None:
            """Log a kill, and raise if a claim is lost: outside the main thread, nothing else stops the task then."""
            self._log_kill()
            lost = next((claim for claim in claims if claim.lost is not None), None)
            if lost is not None:
                raise LeaseLostError(
                    f"The claim that this task worked on is lost ({lost.lost}): others may have its messages, and work "
                    "on them. A longer ttl, or a janitor DAG, keeps claims for longer.",
                    topic=lost.topic,
                    operation="keep_alive",
                )

        def redacted_lines() -> Iterator[str]:
            for line in process.lines(check_claims):
                shown = str(redact(line))
                output.add(shown)
                yield shown

        self._process = process
        if self._is_killed:  # the task was killed before this process existed
            process.request_end(0.0)
        try:
            process.run()
            hook._process_spark_submit_log(redacted_lines())  # noqa: SLF001 - as the provider does
            status = process.wait(check_claims)
        except BaseException as error:
            is_lost = isinstance(error, (LeaseLostError, WorkStoppedError))
            self.log.warning(
                "The job is ended now, including the JVM and the Python driver, because %s",
                "its claim is lost, and others may have the messages." if is_lost else f"its task ends: {error!r}",
            )
            process.end(grace_seconds if is_lost else GRACE_SECONDS)
            self.log.info("Nothing of the job is left.")
            raise
        finally:
            self._process = None
        if self._is_killed:
            self._log_kill()
            raise AirflowException("The task was killed, and its job with it.")
        if status:
            raise output.failure(status)

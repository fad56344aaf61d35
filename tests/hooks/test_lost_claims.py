"""A task whose claim is lost ends: by the error that it hears, or else by force."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.hooks.opening import ROOT, marked

TASK = """
import logging, sys, time
from airflow.sdk.execution_time.context import set_current_context
from pawnqueue import LeaseLostError
from airflow_provider_pawnqueue.hooks import sessions, stopping, supervision
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.testing import memory_queue

logging.basicConfig(level="ERROR")
sessions.RENEWAL_SECONDS, supervision.LOST_SECONDS = 0.1, 0.5
FOR_LONGER = 1.5

def say(what):
    print("=>", what, flush=True)

def swallow(hook, claim):
    hook.messages(claim)
    hook.delete_topic("orders", force=True)
    for _ in range(600):
        try:
            time.sleep(0.1)
        except BaseException as error:
            say(type(error).__name__)

def let_pass(hook, claim):
    hook.messages(claim)
    hook.delete_topic("orders", force=True)
    time.sleep(60)

def leave_the_block(hook, claim):
    try:
        with hook.working_on(claim):
            hook.delete_topic("orders", force=True)
            time.sleep(60)
    except LeaseLostError as error:
        say(type(error).__name__)
    time.sleep(FOR_LONGER)

with memory_queue("orders", conn_id="q") as queue:
    queue.publish("orders", [{"n": 1}])
    claim = queue.leave(queue.claim("orders", "c", claim_id="mine"))
    try:
        with set_current_context({"ti": None}):
            globals()[sys.argv[1]](PawnQueueHook("q"), claim)
    except stopping.WorkStoppedError as error:
        say(type(error).__name__)
        time.sleep(FOR_LONGER)  # as its callbacks do
"""


def ended(how: str) -> tuple[int, str, str]:
    """Run the task, and return its exit code, what it said, and its log."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    task = subprocess.run(
        [sys.executable, "-c", TASK, how],
        env=environ,
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return task.returncode, marked(task.stdout).strip(), task.stdout + task.stderr


@pytest.mark.slow
def test_a_task_that_swallows_the_loss_is_killed() -> None:
    """A task that works on after its claim was lost is killed within seconds."""
    code, said, log = ended("swallow")
    assert (code, said) == (-signal.SIGKILL, "WorkStoppedError")
    assert "This task has lost its claim and still works: it is killed." in log


@pytest.mark.slow
@pytest.mark.parametrize(("how", "heard"), [("let_pass", "WorkStoppedError"), ("leave_the_block", "LeaseLostError")])
def test_a_task_that_hears_of_the_loss_is_not_killed(how: str, heard: str) -> None:
    """Its callbacks, and work without the claim, may take longer."""
    code, said, log = ended(how)
    assert (code, said) == (0, heard), log
    assert "killed" not in log

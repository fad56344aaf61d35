"""Constants in a DAG file are checked when it is parsed; templates and outputs of other tasks when the task runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, task

from airflow_provider_pawnqueue.dags import janitor_dag
from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.operators.pawnqueue import (
    PawnQueueAckOperator,
    PawnQueueBuryOperator,
    PawnQueueCreateTopicOperator,
    PawnQueueDeleteTopicOperator,
    PawnQueueJanitorOperator,
    PawnQueueMessagesOperator,
    PawnQueueNackOperator,
    PawnQueuePublishOperator,
    PawnQueueRedriveOperator,
    PawnQueueRequeueOperator,
    PawnQueueSettleOperator,
    PawnQueueUpdateTopicOperator,
)
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor
from airflow_provider_pawnqueue.triggers.pawnqueue import PawnQueueEventTrigger
from tests.support.airflow import TOPIC

ONE_ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
COUNTS = [0, -1, True, 1.5, "many", [5]]
TIMES = [0, -5.0, "soon", True]


def wait(**more: Any) -> object:
    """Make a sensor."""
    return PawnQueueSensor(task_id="claim", **{"topic": TOPIC, **more})


def block(**more: Any) -> None:
    """Make a block of tasks between a claim and its settlement."""
    with claimed(**{"topic": TOPIC, **more}):
        pass


def batches(size: Any) -> None:
    """Make a block whose messages come in batches."""
    with claimed(TOPIC) as claim:
        claim.batches(size)


def made(operator: Any, **given: Any) -> Callable[..., object]:
    """Return a function that makes an operator."""
    return lambda **more: operator(task_id="one", **given, **more)


ack, requeue = made(PawnQueueAckOperator, claim={}), made(PawnQueueRequeueOperator, claim={})
bury, nack = made(PawnQueueBuryOperator, claim={}), made(PawnQueueNackOperator, claim={})
settle, read = made(PawnQueueSettleOperator, claim={}), made(PawnQueueMessagesOperator, claim={})
publish, redrive = made(PawnQueuePublishOperator, payloads=[]), made(PawnQueueRedriveOperator)
create, update = made(PawnQueueCreateTopicOperator), made(PawnQueueUpdateTopicOperator)
delete, sweep = made(PawnQueueDeleteTopicOperator), made(PawnQueueJanitorOperator)

#: What makes it, the argument, values that are wrong, and one that is right.
ARGUMENTS: list[tuple[Callable[..., object], str, list[Any], Any]] = [
    (wait, "max_messages", COUNTS, "5"),
    (wait, "min_messages", COUNTS, 2),
    (wait, "ttl", TIMES, 60),
    (wait, "poke_interval", [0, timedelta(0), timedelta(seconds=-1)], timedelta(seconds=1)),
    (wait, "max_wait", [timedelta(seconds=-1)], 0),
    (wait, "topic", ["", [], 5, "a/b", [TOPIC, ".."]], ["a", "b"]),
    (wait, "inline", ["no", 0], False),
    (wait, "deferrable", ["no", 1], "False"),
    (block, "max_messages", COUNTS, 5),
    (block, "topic", ["a b", ["a", ""]], TOPIC),
    (block, "on_failure", ["retry", "", None, 5], "bury"),
    (block, "on_reported", ["nack", 5], "bury"),
    (block, "delay", [-1, "soon"], "90"),
    (read, "batch", COUNTS, 10),
    (ack, "ids", [5, [None], [""]], [ONE_ID]),
    (requeue, "delay", [-1, "soon"], 0),
    (requeue, "ids", [5], ONE_ID),
    (bury, "reason", ["", " ", 5], "no item"),
    (nack, "requeue", ["yes", 1], "True"),
    (settle, "on_failure", ["retry"], "requeue"),
    (settle, "on_reported", ["nack"], None),
    (settle, "delay", [-1], 5.5),
    (publish, "topic", ["", "a/b"], TOPIC),
    (publish, "create", ["no", 1], True),
    (redrive, "topic", [["a", "b"]], TOPIC),
    (redrive, "max_messages", COUNTS, 5),
    (redrive, "dry_run", ["no"], True),
    (redrive, "reason", ["", 5], "ValueError"),
    (redrive, "older_than", [-1, "soon"], timedelta(days=1)),
    (redrive, "younger_than", TIMES, 60),
    (redrive, "per_second", [0, -1, "fast", timedelta(seconds=1)], 0.5),
    (create, "topic", ["a/b"], TOPIC),
    (create, "max_deliveries", COUNTS, "never"),
    (create, "if_exists", ["replace"], "update"),
    (create, "dead_letters", [5, "none", {}], {"max_count": 5}),
    (create, "completed", [5, "yes", {}], True),
    (update, "max_deliveries", COUNTS, 3),
    (delete, "force", ["yes", 1], "true"),
    (sweep, "topics", ["a/b", [""]], None),
    (sweep, "max_age", [timedelta(0), 0], timedelta(hours=1)),
    (sweep, "dry_run", ["no"], False),
]
NEEDED = {publish: {"topic": TOPIC}, redrive: {"topic": TOPIC}, create: {"topic": TOPIC}, delete: {"topic": TOPIC}}
NEEDED[update] = {"topic": TOPIC, "max_deliveries": 3}


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [(make, name, value) for make, name, wrong, _ in ARGUMENTS for value in wrong],
    ids=lambda given: getattr(given, "__name__", repr(given)),
)
def test_a_wrong_constant_is_refused_when_the_file_is_parsed(make: Any, name: str, value: Any) -> None:
    """The error, which the DAG processor shows, names the argument."""
    given = NEEDED.get(make, {}) | {name: value}
    with DAG("dag", schedule=None), pytest.raises(ValueError, match=name):
        make(**given)


@pytest.mark.parametrize(("make", "name", "right"), [(make, name, right) for make, name, _, right in ARGUMENTS])
def test_a_right_constant_is_taken(make: Any, name: str, right: Any) -> None:
    """Numbers may be texts, as templates render them."""
    with DAG("dag", schedule=None):
        make(**NEEDED.get(make, {}) | {name: right})


TEMPLATED = [
    (make, name)
    for make, name, *_ in ARGUMENTS
    if name not in {"poke_interval", "max_wait", "inline", "deferrable", "create", "dry_run", "max_age"}
]


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize(("make", "name"), TEMPLATED)
def test_a_template_is_checked_when_it_is_rendered(make: Any, name: str, kind: int) -> None:
    """A template, a parameter and the output of a task are unknown when the file is parsed, and are accepted."""
    with DAG("dag", schedule=None, params={"given": 1}) as dag:

        @task
        def given() -> int:
            return 1

        value = ("{{ params.given }}", "{% if 1 %}5{% endif %}", given(), dag.param("given"))[kind]
        make(**NEEDED.get(make, {}) | {name: value})


def test_more_than_can_be_claimed_is_never_waited_for() -> None:
    """Waiting for more messages than a claim may have is refused, if both numbers are constants."""
    with pytest.raises(ValueError, match="min_messages=6 is more than max_messages=5"):
        wait(min_messages=6, max_messages="5")
    wait(min_messages="{{ 6 }}", max_messages=5)


@pytest.mark.parametrize("size", COUNTS)
def test_a_batch_of_nothing_is_refused(size: Any) -> None:
    """``claimed`` refuses a wrong size of batches."""
    with DAG("dag", schedule=None), pytest.raises(ValueError, match="batch"):
        batches(size)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("min_messages", value) for value in [*COUNTS, "{{ 5 }}"]),
        *(("ring_every", value) for value in TIMES),
        *(("topic", value) for value in ("", None, 5, ["a"])),
    ],
)
def test_a_trigger_of_an_asset_is_checked_when_it_is_made(name: str, value: Any) -> None:
    """It has no templates, so its arguments are checked at once, also when common messaging makes it."""
    given = {"topic": TOPIC, name: value}
    with pytest.raises(ValueError, match=name):
        PawnQueueEventTrigger(**given)
    with pytest.raises(ValueError, match=name):
        _ = MessageQueueTrigger(scheme="pawnqueue", **given).trigger


def test_what_a_wrong_argument_is_to_airflow() -> None:
    """A task with a wrong argument fails without retries."""
    with pytest.raises(AirflowFailException):
        wait(max_messages=0)


def test_the_janitors_dag_is_checked_too() -> None:
    """It refuses wrong topics, as the operator does."""
    with pytest.raises(ValueError, match="topics"):
        janitor_dag(topics=["a/b"])

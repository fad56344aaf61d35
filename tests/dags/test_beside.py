"""What comes with the operators: the plugin's listener, links, lineage and assets."""

from __future__ import annotations

import builtins
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from airflow.models.taskinstance import TaskInstance
from airflow.sdk import DAG, Asset, task

from airflow_provider_pawnqueue import lineage, plugin
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.hooks.task_notes import ERROR_KEY
from airflow_provider_pawnqueue.links import TopicLink, address
from airflow_provider_pawnqueue.operators.pawnqueue import (
    PawnQueueAckOperator,
    PawnQueueJanitorOperator,
    PawnQueuePublishOperator,
    PawnQueueSettleOperator,
)
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor
from tests.support.airflow import TOPIC, FakeTask

if TYPE_CHECKING:
    from pawnqueue import SyncPawnQueue

CLAIM = {"topic": TOPIC, "claim_id": "x", "generation": 0, "session": "s"}


class Failed(FakeTask):
    """A task that has failed, in its DAG."""

    def __init__(self, one: Any) -> None:
        super().__init__(one.task_id)
        self.task = one


def told(one: Any, error: Any) -> Any:
    """Return what the listener keeps when a task fails."""
    ti = Failed(one)
    plugin.on_task_instance_failed(None, ti, error)
    return ti.xcoms.get((one.task_id, ERROR_KEY, -1))


def test_errors_are_kept_for_who_settles() -> None:
    """The listener keeps the errors of tasks before a settlement, mapped ones too, and of no others."""
    with DAG("dag", schedule=None) as dag:
        sensor = PawnQueueSensor(task_id="claim", topic=TOPIC)

        @task
        def work(claim: Any, n: int = 0) -> None: ...

        @task
        def aside() -> None: ...

        settle = PawnQueueSettleOperator(task_id="settle", claim=sensor.output)
        work(sensor.output) >> settle
        work.override(task_id="many").partial(claim=sensor.output).expand(n=[1]) >> settle
        aside()
    assert told(dag.get_task("work"), ValueError("no address")) == "ValueError: no address"
    assert told(dag.get_task("many"), "killed") == "killed"
    assert len(told(dag.get_task("work"), ValueError("x" * 9000))) == 2000
    assert told(dag.get_task("aside"), ValueError("no address")) is None
    assert told(dag.get_task("work"), None) is None
    plugin.on_task_instance_failed(None, object(), ValueError("of another process"))


def test_a_row_of_the_scheduler_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener pushes no XCom for it: this would commit the scheduler's own session, and may end the scheduler."""

    class Row(Failed):
        """As Airflow's own table of task instances has it."""

        __module__ = TaskInstance.__module__

    watched: list[bool] = []
    monkeypatch.setattr(plugin.SUPERVISION, "watch_this_task", lambda: watched.append(True))
    with DAG("dag", schedule=None):
        sensor = PawnQueueSensor(task_id="claim", topic=TOPIC)
        settle = PawnQueueSettleOperator(task_id="settle", claim=sensor.output)
        sensor >> settle
    for row, count in ((Row(sensor), 0), (Failed(sensor), 1)):
        plugin.on_task_instance_running(None, row)
        plugin.on_task_instance_failed(None, row, "killed")
        plugin.on_task_instance_skipped(None, row)
        assert (len(watched), len(row.xcoms)) == (count, 2 * count)


def test_links(queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link leads to the configured address of the topic, in which other braces are kept."""
    hook = PawnQueueHook()
    assert address(hook.settings, "orders").startswith("https://us-east-1.console.aws.amazon.com/s3/buckets/bucket-")
    monkeypatch.setenv("AIRFLOW__PAWNQUEUE__TOPIC_LINK", "https://c/{bucket}/{prefix}{topic}?r={region}&x={y}")
    shown = "https://c/bucket-pawnqueue-default/orders?r=us-east-1&x={y}"
    ti: Any = None
    for one in (
        PawnQueuePublishOperator(task_id="a", topic=TOPIC, payloads=[]),
        PawnQueueSensor(task_id="b", topic=[TOPIC, "other"]),
        PawnQueueAckOperator(task_id="c", claim=CLAIM),
        PawnQueueAckOperator(task_id="d", claim=str([CLAIM])),
        PawnQueueJanitorOperator(task_id="e", topics=[TOPIC]),
    ):
        assert TopicLink().get_link(one, ti_key=ti) == shown
    for other in (PawnQueueJanitorOperator(task_id="f"), PawnQueueAckOperator(task_id="g", claim=None)):
        assert TopicLink().get_link(other, ti_key=ti) == ""


def test_the_link_of_another_store_is_its_listing(queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing works at every store that speaks S3; special characters in the prefix are escaped."""
    monkeypatch.setenv(
        "AIRFLOW_CONN_MINIO",
        json.dumps(
            {
                "conn_type": "pawnqueue",
                "host": "http://localhost:9000",
                "extra": {"bucket_name": "bkt", "key_prefix": "a&b"},
            }
        ),
    )
    listing = "http://localhost:9000/bkt?list-type=2&prefix=a%26b/orders/"
    assert address(PawnQueueHook("minio").settings, "orders") == listing


def test_assets() -> None:
    """The provider's own check accepts URIs of topics, and refuses others."""
    assert Asset("pawnqueue://bucket/orders/").uri == "pawnqueue://bucket/orders"
    assert Asset("pawnqueue://bucket/team/orders").uri == "pawnqueue://bucket/team/orders"
    assert lineage.sanitized(urlsplit("pawnqueue://bucket/orders/")).geturl() == "pawnqueue://bucket/orders"
    for wrong in ("pawnqueue://bucket", "pawnqueue:///orders", "pawnqueue://bucket//"):
        with pytest.raises(ValueError, match="pawnqueue://bucket/topic"):
            lineage.sanitized(urlsplit(wrong))


def test_the_uri_of_a_topic(queue: SyncPawnQueue) -> None:
    """Assets and lineage name a topic by its bucket and name."""
    assert lineage.uri(PawnQueueHook().settings, "orders") == "pawnqueue://bucket-pawnqueue-default/orders"


def test_without_openlineage(queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no lineage if OpenLineage is not installed."""
    imported = builtins.__import__

    def absent(name: str, *args: Any, **more: Any) -> Any:
        if "openlineage" in name:
            raise ImportError(name)
        return imported(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    one = PawnQueuePublishOperator(task_id="a", topic=TOPIC, payloads=[])
    assert one.get_openlineage_facets_on_complete(None) is None
    for claim in (CLAIM, None, [CLAIM, CLAIM | {"topic": "other"}]):
        assert PawnQueueAckOperator(task_id="b", claim=claim).get_openlineage_facets_on_complete(None) is None

"""What happens in a queue is counted by Airflow's metrics, which never get in its way."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from airflow_provider_pawnqueue.hooks import telemetry
from pawnqueue import MemoryStore, SyncPawnQueue, events


class Metrics:
    """A place to count."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str | None], int] = {}
        self.gauges: dict[tuple[str, str | None], float] = {}
        self.failure: Exception | None = None

    def incr(self, name: str, count: int = 1, *, tags: dict[str, str]) -> None:
        """Count."""
        if self.failure is not None:
            raise self.failure
        key = name, tags.get("topic")
        self.counts[key] = self.counts.get(key, 0) + count

    def gauge(self, name: str, value: float, *, tags: dict[str, str]) -> None:
        """Measure."""
        self.gauges[name, tags.get("topic")] = value


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Metrics:
    """What is counted."""
    made = Metrics()
    monkeypatch.setattr(telemetry, "_stats", lambda: made)
    return made


@pytest.fixture
def queue(metrics: Metrics) -> Any:  # noqa: ANN401 - a generator
    """A queue whose events are counted."""
    with SyncPawnQueue.open(store=MemoryStore(), on_event=telemetry.count) as queue:
        queue.create_topic("orders")
        yield queue


def test_what_happens_is_counted(queue: SyncPawnQueue, metrics: Metrics) -> None:
    """Each event raises its topic's counters."""
    queue.publish("orders", [{"n": n} for n in range(5)])
    claim = queue.claim("orders", "c")
    queue.ack(claim, claim.ids[:2])
    queue.nack(claim, claim.ids[2])
    queue.nack(claim, claim.ids[3:], requeue=True)
    queue.redrive("orders")
    queue.sweep("orders")
    queue.commit_write("orders", "w", [queue.stage("orders", "w", 0, [{"n": 5}, {"n": 6}])])
    expected = {
        "published": 7,
        "claims": 1,
        "claimed": 5,
        "acked": 2,
        "buried": 1,
        "released": 2,
        "redriven": 1,
        "sweeps": 1,
    }
    assert metrics.counts == {(f"pawnqueue.{name}", "orders"): count for name, count in expected.items()}


def test_the_janitor_tells_how_a_topic_stands(queue: SyncPawnQueue, metrics: Metrics) -> None:
    """The janitor's counts are gauges."""
    queue.publish("orders", [{"n": n} for n in range(3)])
    queue.claim("orders", "c", max_messages=1)
    telemetry.report("orders", queue.stats("orders"))
    values = {name.removeprefix("pawnqueue."): value for (name, _), value in metrics.gauges.items()}
    assert values.pop("oldest_age_seconds") >= 0
    assert values == {"pending": 2, "in_flight": 1, "delayed": 0, "dead": 0}


def test_metrics_that_fail_are_nobodys_trouble(queue: SyncPawnQueue, metrics: Metrics) -> None:
    """The queue goes on if metrics fail."""
    metrics.failure = OSError("statsd is away")
    queue.publish("orders", [{"n": 1}])
    assert len(queue.ack(queue.claim("orders", "c")).acked) == 1


def test_no_event_has_more_than_a_topic_in_its_tags() -> None:
    """No payload, and no id: each value of a tag costs a metric of its own."""
    lost = events.ClaimLost(topic="orders", claim="c.0", messages=3, why="a secret")
    assert telemetry.counters_of(lost) == [("pawnqueue.claims_lost", 1, {"topic": "orders"})]
    assert telemetry.counters_of(events.QueueOpened(bucket="b", strategy="s")) == []
    for kind in (events.Published, events.Claimed, events.Settled, events.TakenOver, events.Swept):
        assert "payload" not in {field.name for field in fields(kind)}


def test_airflow_takes_what_is_counted() -> None:
    """Airflow's own function accepts the metrics."""
    telemetry._stats.cache_clear()
    telemetry.count(events.Published(topic="orders", ids=("a", "b")))
    telemetry._stats().gauge("pawnqueue.pending", 1, tags={"topic": "orders"})

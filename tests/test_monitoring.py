"""The metrics on the monitoring page are those that Airflow sends."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
from airflow.sdk._shared.observability.metrics.statsd_logger import get_statsd_logger
from airflow.sdk.observability import stats

from airflow_provider_pawnqueue.hooks import telemetry
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.testing import memory_queue
from pawnqueue import events

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "monitoring.md"
METRIC = re.compile(r"airflow_pawnqueue_[a-z_]+")
FIRST = 'airflow_pawnqueue_published{topic="orders"}'


class Wire:
    """Replaces StatsD's client, which is an extra of Airflow: keeps the names of metrics."""

    sent: set[str]

    def __init__(self, host: str | None, port: int | None, prefix: str | None, ipv6: bool) -> None:  # noqa: FBT001 - as StatsD has it
        del host, port, ipv6
        self.prefix = prefix

    def incr(self, stat: str, count: int, rate: float) -> None:
        """Count."""
        del count, rate
        self.sent.add(f"{self.prefix}.{stat}")

    def gauge(self, stat: str, value: float, rate: float, delta: bool) -> None:  # noqa: FBT001 - likewise
        """Measure."""
        del value, rate, delta
        self.sent.add(f"{self.prefix}.{stat}")


def exported(line: str) -> str:
    """Name a metric as ``statsd_exporter`` does: dots are underscores, tags are labels."""
    name, *tags = line.split(",")
    labels = ",".join('{}="{}"'.format(*tag.split("=")) for tag in tags)
    return f"{name.replace('.', '_')}{{{labels}}}"


@pytest.fixture
def sent() -> Iterator[set[str]]:
    """The metrics that are sent with the page's settings, by the names that the exporter gives them."""
    names: set[str] = set()

    class Kept(Wire):
        sent = names

    settings = yaml.safe_load(
        "\n".join(
            line.replace(" = ", ": ") for line in _block("text settings").splitlines() if not line.startswith("[")
        )
    )
    assert settings["statsd_on"] is True
    stats.initialize(
        factory=lambda: get_statsd_logger(
            stats_class=Kept,
            host=settings["statsd_host"],
            port=settings["statsd_port"],
            prefix=settings["statsd_prefix"],
            influxdb_tags_enabled=settings["statsd_influxdb_enabled"],
            statsd_influxdb_enabled=settings["statsd_influxdb_enabled"],
        ),
        export_legacy_names=False,
    )
    yield names
    stats.initialize(factory=NoStatsLogger, export_legacy_names=False)


def _block(kind: str) -> str:
    found = re.search(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def _everything_happens() -> None:
    with memory_queue("orders") as queue:
        queue.publish("orders", [{"n": n} for n in range(3)])
        claim = PawnQueueHook().claim("orders", "billing", max_messages=3)
        queue.ack(claim, claim.ids[0])
        queue.nack(claim, claim.ids[1])
        queue.nack(claim, claim.ids[2], requeue=True)
        queue.redrive("orders")
        queue.sweep("orders")
        telemetry.report("orders", queue.stats("orders"))
    for event in (  # what takes minutes to happen
        events.ClaimLost(topic="orders", claim="c", messages=1, why="its time is over"),
        events.TakenOver(topic="orders", claim="c", consumer="billing", messages=1),
        events.Settled(topic="orders", claim="c", lost=("id",)),
        events.Swept(topic="orders", counts=(), failures=1, dry_run=False),
        events.LettersExpiring(
            topic="orders", count=1, removal="2026-01-01T00:00:00+00:00", limits="keeps the latest 3"
        ),
        events.LettersRemoved(topic="orders", count=1, limits="keeps the latest 3"),
    ):
        telemetry.count(event)


def test_what_the_page_names_is_sent(sent: set[str]) -> None:
    """Each metric in a rule or query of the page is sent with its label, and the page names all metrics."""
    _everything_happens()
    names = {exported(line) for line in sent}
    assert FIRST in names
    page = PAGE.read_text()
    # A row of the table names a family: `airflow_pawnqueue_claims`, `_claimed`.
    families = re.findall(r"^\| (`airflow_pawnqueue_.+?) \| ", page, re.MULTILINE)
    told = {
        f"airflow_pawnqueue_{name.removeprefix('airflow_pawnqueue_').lstrip('_')}"
        for family in families
        for name in re.findall(r"`([a-z_]+)`", family)
    }
    assert {f'{name}{{topic="orders"}}' for name in told} == names
    assert set(METRIC.findall(page)) <= told


def test_the_rules_are_rules() -> None:
    """Each alert has the fields that Prometheus requires, and a row that says what to do."""
    [group] = yaml.safe_load(_block("yaml alerts"))["groups"]
    assert len(group["rules"]) == 8
    for rule in group["rules"]:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert METRIC.search(rule["expr"])
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert f"| {rule['alert'].removeprefix('PawnQueue')} |" in PAGE.read_text()

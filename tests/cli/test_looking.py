"""Commands that only read, on a store in memory."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import TYPE_CHECKING

import pytest
import yaml

from pawnqueue.catalog import units
from pawnqueue.domain import layout

if TYPE_CHECKING:
    from pawnqueue import MemoryStore, SyncPawnQueue
    from tests.cli.conftest import Run


def test_topics_are_listed_with_their_settings(run: Run, queue: SyncPawnQueue) -> None:
    """Each topic is a row, with its settings and its age."""
    queue.create_topic("orders", max_deliveries=3)
    queue.create_topic("bills")

    done = run("topics", "--output", "json")

    assert done.code == 0
    assert [(row["topic"], row["max_deliveries"]) for row in done.rows] == [("bills", 10), ("orders", 3)]
    assert all(row["created_at"] for row in done.rows)


@pytest.mark.parametrize("output", ["table", "plain", "yaml", "json"])
def test_every_format_shows_what_is_there(run: Run, queue: SyncPawnQueue, output: str) -> None:
    """Each format has the topic's name and its numbers, and nothing is printed on stderr."""
    queue.publish("orders", [{"n": 1}, {"n": 2}], create=True)
    queue.sweep("orders")

    done = run("stats", "--output", output)

    assert (done.code, done.err) == (0, "")
    assert "orders" in done.out
    assert "2" in done.out
    if output == "yaml":
        assert yaml.safe_load(done.out)[0]["pending"] == 2


@pytest.mark.parametrize("command", ["topics", "stats"])
def test_a_topic_of_a_newer_format_hides_no_other(
    run: Run, queue: SyncPawnQueue, store: MemoryStore, command: str
) -> None:
    """The other topics are shown, the error names it, and the exit code is 1."""
    for name in ("a", "b", "c"):
        queue.create_topic(name)
    store._write(layout.topic_marker("b"), b'{"v":2}')

    done = run(command, "--output", "json")

    assert [row["topic"] for row in done.rows] == ["a", "c"]
    assert done.code == 1
    assert "Topic b: " in done.err


def test_stats_says_at_once_that_no_janitor_sweeps(run: Run, queue: SyncPawnQueue) -> None:
    """A sentence on stderr names the topics that were not swept, and only those."""
    for name in ("a", "b", "c", "d", "swept"):
        queue.create_topic(name)
    queue.sweep("swept")

    done = run("stats", "--output", "json")

    assert "No janitor has swept a, b, c and 1 more within the last hour" in done.err
    assert len(done.rows) == 5
    assert "No janitor has swept b within" in run("stats", "b", "--output", "json").err


def test_stats_counts_one_topic_or_all(run: Run, queue: SyncPawnQueue) -> None:
    """Pending, in flight, delayed and dead are separate numbers."""
    queue.publish("orders", [{"n": n} for n in range(5)], create=True)
    queue.create_topic("bills")
    claim = queue.claim("orders", "test", max_messages=3)
    queue.nack(claim, claim.ids[0], reason="no")
    queue.nack(claim, claim.ids[1], requeue=True, delay=60)

    [row] = run("stats", "orders", "--output", "json").rows
    every = run("stats", "--output", "json").rows

    assert (row["pending"], row["in_flight"], row["delayed"], row["dead"]) == (2, 1, 1, 1)
    assert row["oldest_age_seconds"] >= 0
    assert [(each["topic"], each["oldest_age_seconds"] is None) for each in every] == [
        ("bills", True),
        ("orders", False),
    ]


def test_peek_shows_the_head_and_takes_nothing(run: Run, queue: SyncPawnQueue) -> None:
    """The first messages come in order with their payloads, and can still be claimed."""
    queue.publish("orders", [{"n": 1, "tags": ["a"]}, {"n": 2}, {"n": 3}], headers={"trace": "x"}, create=True)

    rows = run("peek", "orders", "--limit", "2", "--output", "json").rows

    assert [row["payload"] for row in rows] == [{"n": 1, "tags": ["a"]}, {"n": 2}]
    assert rows[0]["headers"] == {"trace": "x"}
    assert queue.stats("orders").pending == 3


def test_peek_shows_dead_letters_and_why(run: Run, queue: SyncPawnQueue) -> None:
    """A dead letter has its reason, error, message id and payload, and a sentence counts those that are not shown."""
    ids = queue.publish("orders", [{"n": 1}, {"n": 2}], create=True)
    payloads = dict(zip(ids, [{"n": 1}, {"n": 2}], strict=True))
    queue.nack(queue.claim("orders", "test"), reason="refused", error="no such order")

    done = run("peek", "orders", "--dead", "--limit", "1", "--output", "json")

    [row] = done.rows
    assert (row["reason"], row["error"], row["deliveries"]) == ("refused", "no such order", 1)
    assert row["payload"] == payloads[row["message_id"]]
    assert done.err == "These are the latest 1 of 2 dead letters: --limit shows more.\n"


@pytest.mark.parametrize("output", ["json", "yaml", "table", "plain"])
@pytest.mark.parametrize("depth", [60, 330, 499])
def test_any_payload_that_may_be_published_is_shown(
    run: Run, queue: SyncPawnQueue, store: MemoryStore, depth: int, output: str
) -> None:
    """JSON shows it at any depth; YAML shows a payload that is nested too deeply as a JSON text."""
    payload = '{"x":' + "[" * depth + "]" * depth + "}"
    body = '{"id": "x", "payload": ' + payload + "}"
    queue.create_topic("orders")
    key = units.key_of("orders", f"20260102T030405_000006-{uuid.uuid4()}.json")
    asyncio.run(store.put(key, body.encode()))

    done = run("peek", "orders", "--output", output)
    assert (done.code, done.err) == (0, "")
    queue.nack(queue.claim("orders", "test"), reason="refused")
    dead = run("peek", "orders", "--dead", "--output", output)
    assert (dead.code, dead.err) == (0, "")
    for shown in (done, dead):
        if output == "json":
            assert json.dumps(shown.rows[0]["payload"], separators=(",", ":")) == payload
        elif output == "yaml":
            found = yaml.safe_load(shown.out)[0]["payload"]
            assert json.loads(found) == json.loads(payload) if depth > 100 else found == json.loads(payload)
        else:
            assert "[[[[" in shown.out


def test_what_others_wrote_cannot_steer_the_terminal(run: Run, queue: SyncPawnQueue) -> None:
    """Markup and control characters of a message are printed as text."""
    queue.publish("orders", [{"n": 1}], create=True)
    queue.nack(queue.claim("orders", "test"), reason="[bold]", error="[/red] \x1b[2J")

    done = run("peek", "orders", "--dead")

    assert done.code == 0
    assert "[bold]" in done.out
    assert "[/red] \\x1b[2J" in done.out
    assert "\x1b" not in done.out


@pytest.mark.parametrize("words", [["stats", "ordrs"], ["peek", "ordrs"], ["purge", "ordrs", "--yes"]])
def test_an_unknown_topic_is_told_in_a_sentence(run: Run, queue: SyncPawnQueue, words: list[str]) -> None:
    """The sentence on stderr suggests the topic that was probably meant, and the exit code is 1."""
    queue.create_topic("orders")

    done = run(*words)

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("Topic 'ordrs' does not exist")
    assert "'orders'" in done.err
    assert done.err.count("\n") == 1


def test_an_unknown_connection_is_told_in_a_sentence(run: Run) -> None:
    """The sentence says how to add a connection."""
    done = run("topics", "--conn-id", "nobody")

    assert (done.code, done.out) == (1, "")
    assert "AIRFLOW_CONN_NOBODY" in done.err
    assert done.err.count("\n") == 1


def test_a_wrong_connection_is_told_in_a_sentence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names the wrong field."""
    monkeypatch.setenv("AIRFLOW_CONN_WRONG", '{"conn_type": "pawnqueue", "extra": {"buckt_name": "queues"}}')

    done = run("topics", "--conn-id", "wrong")

    assert done.code == 1
    assert "did you mean 'bucket_name'?" in done.err

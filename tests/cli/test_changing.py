"""Commands that change something, on a store in memory."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from pawnqueue.catalog.unit_listing import listed

if TYPE_CHECKING:
    from pawnqueue import SweepReport, SyncPawnQueue
    from tests.cli.conftest import Run


@pytest.fixture
def buried(queue: SyncPawnQueue) -> list[str]:
    """The ids of three dead letters of the topic ``orders``."""
    queue.publish("orders", [{"n": 1}, {"n": 2}, {"n": 3}], create=True)
    queue.bury(queue.claim("orders", "test"), reason="refused")
    return sorted(letter.id for letter in queue.dead_letters("orders"))


def test_publish_sends_one_message(run: Run, queue: SyncPawnQueue) -> None:
    """The payload, the headers and the producer arrive, and the id is printed."""
    words = ["--header", "trace=a=b", "--header", "kind=x", "--producer", "shop", "--create", "--output", "json"]
    done = run("publish", "orders", '{"n": 1}', *words)

    [message] = queue.peek("orders")
    assert done.rows == [{"id": message.id, "state": "published"}]
    assert (message.payload, message.headers) == ({"n": 1}, {"trace": "a=b", "kind": "x"})
    assert message.producer_id == queue.list_producers()[0].id


def test_publish_reads_lines(run: Run, queue: SyncPawnQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line of the standard input or of a file is a message; empty lines are skipped."""
    queue.create_topic("orders")
    monkeypatch.setattr("sys.stdin", io.StringIO('{"n": 1}\n\n{"n": 2}\n'))
    (tmp_path / "lines").write_text('{"n": 3}\n{"n": "\u2028"}')

    assert run("publish", "orders", "-").code == 0
    assert run("publish", "orders", "--file", str(tmp_path / "lines")).code == 0

    # Two processes are two publishers: in which order their messages are is nobody's promise.
    assert {message.payload["n"] for message in queue.peek("orders")} == {1, 2, 3, "\u2028"}


def test_publish_makes_packs(run: Run, queue: SyncPawnQueue) -> None:
    """``--pack yes`` puts what is published into a pack, if the topic allows it."""
    queue.create_topic("orders", packs=True)
    assert run("publish", "orders", '{"n": 1}', "--pack", "yes").code == 0
    assert run("publish", "orders", '{"n": 1}').code == 0
    page = queue.run(lambda opened: listed(opened._context, "orders", packs=True))
    assert sorted(unit.is_pack for unit in page.units) == [False, True]


def test_publish_with_a_schedule(run: Run, queue: SyncPawnQueue) -> None:
    """``--delay`` and ``--priority`` are for topics that allow them."""
    assert run("create-topic", "orders", "--delays", "yes", "--priorities", "yes").code == 0
    assert run("publish", "orders", '{"n": 1}', "--delay", "60", "--priority", "-2").code == 0
    assert (queue.stats("orders").delayed, queue.peek("orders")[0].priority) == (1, -2)
    queue.create_topic("bills")
    done = run("publish", "bills", '{"n": 1}', "--priority", "2")
    assert (done.code, "does not allow" in done.err) == (1, True)


def test_publish_once(run: Run, queue: SyncPawnQueue) -> None:
    """With the same ``--dedup-key`` the message is published once, and its id is shown as a duplicate's."""
    queue.create_topic("orders")
    words = ["publish", "orders", '{"n": 1}', "--dedup-key", "a", "--output", "json"]
    [first] = run(*words).rows
    assert run(*words).rows == [{"id": first["id"], "state": "duplicate"}]
    assert len(queue.peek("orders")) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"n": 1}\n\n{"n": \n', "Line 3 of the standard input is not JSON"),
        ('{"n": 1}\n[1]\n', "Line 2 of the standard input is not a JSON object"),
    ],
)
def test_bad_lines_are_named_and_nothing_is_published(
    run: Run, queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    """The error has the number of the line as an editor counts it, and the good lines before it are not published."""
    queue.create_topic("orders")
    monkeypatch.setattr("sys.stdin", io.StringIO(text))

    done = run("publish", "orders", "-")

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(told)
    assert done.err.endswith("Nothing was published.\n") or "Nothing was published" in done.err
    assert queue.stats("orders").pending == 0


@pytest.mark.parametrize(
    "words",
    [
        ["publish", "orders"],
        ["publish", "orders", "{}", "--file", "x"],
        ["publish", "orders", "--file", "not-there"],
        ["publish", "orders", "{"],
        ["publish", "orders", "{}", "--header", "x"],
        ["publish", "nowhere", "{}"],
    ],
)
def test_what_cannot_be_published_is_told_in_a_sentence(run: Run, queue: SyncPawnQueue, words: list[str]) -> None:
    """The command prints one line on stderr, exits with 1, and publishes nothing."""
    queue.create_topic("orders")

    done = run(*words)

    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert queue.stats("orders").pending == 0


def test_redrive_gives_letters_back(run: Run, queue: SyncPawnQueue, buried: list[str]) -> None:
    """It redrives the named letters, or as many as the limit allows, and prints a row for each."""
    named = run("redrive", "orders", "--id", buried[1], "--output", "json")
    some = run("redrive", "orders", "--limit", "1", "--output", "json")

    assert named.rows == [{"id": buried[1], "result": "given back", "error": ""}]
    assert some.rows == [{"id": buried[0], "result": "given back", "error": ""}]
    assert (queue.stats("orders").pending, queue.stats("orders").dead) == (2, 1)


def test_a_dry_redrive_tells_what_a_real_one_does(run: Run, queue: SyncPawnQueue, buried: list[str]) -> None:
    """It prints the letters that a real one would choose, and moves none."""
    would = run("redrive", "orders", "--limit", "2", "--dry-run", "--output", "json").rows
    named = run("redrive", "orders", "--id", buried[2], "--dry-run", "--output", "json").rows
    assert queue.stats("orders").dead == 3
    does = run("redrive", "orders", "--limit", "2", "--output", "json").rows

    assert [row["id"] for row in would] == [row["id"] for row in does] == buried[:2]
    assert [row["id"] for row in named] == [buried[2]]


def test_limits_of_dead_letters(run: Run, queue: SyncPawnQueue) -> None:
    """They are given as numbers by their names, shown, and taken away by ``off``."""
    made = run("create-topic", "orders", "--dead-letters", "max_count=5,notice_seconds=3600", "--output", "json")
    assert made.rows[0]["dead_letters"] == {"max_age_seconds": None, "max_count": 5, "notice_seconds": 3600}
    run("update-topic", "orders", "--dead-letters", "max_age_seconds=86400.5")
    limits = queue.topic("orders").settings.dead_letters
    assert limits is not None
    assert (limits.max_age_seconds, limits.max_count) == (86_400.5, None)
    for wrong in ("5", "max_count=five", "max_cout=5", ""):
        assert run("update-topic", "orders", "--dead-letters", wrong).code == 1
    assert queue.topic("orders").settings.dead_letters == limits
    assert "dead_letters" not in run("update-topic", "orders", "--dead-letters", "off", "--output", "json").rows[0]


def test_the_completed_log(run: Run, queue: SyncPawnQueue) -> None:
    """It is switched on with a topic, shown, and switched off."""
    made = run("create-topic", "orders", "--completed", "max_count=5,payloads", "--output", "json").rows[0]
    assert (made["completed"]["max_count"], made["completed"]["payloads"]) == (5, True)
    [one] = queue.publish("orders", [{"n": 1}])
    queue.ack(queue.claim("orders", "billing"))
    [row] = run("completed", "orders", "--output", "json").rows
    assert (row["id"], row["consumer"], row["payload"]) == (one, "billing", {"n": 1})
    for given, is_on in (("off", False), ("on", True)):
        row = run("update-topic", "orders", "--completed", given, "--output", "json").rows[0]
        assert row["completed"]["is_on"] is is_on
    assert run("update-topic", "orders", "--completed", "max_cout=5").code == 1


def test_redrive_takes_filters(run: Run, queue: SyncPawnQueue) -> None:
    """Only letters with the reason and the age are given back, and no more of them a second than asked for."""
    queue.create_topic("orders")
    queue.publish("orders", [{"n": 0}, {"n": 1}])
    claim = queue.claim("orders", "c", max_messages=2)
    queue.bury(claim, claim.ids[0], reason="ValueError: no amount")
    queue.bury(claim, claim.ids[1], reason="expired")

    old = run("redrive", "orders", "--older-than", "1000", "--output", "json")
    some = run("redrive", "orders", "--reason", "ValueError", "--per-second", "50", "--output", "json")
    again = ("--id", claim.ids[0], "--missing-ok", "--younger-than", "1000")
    rest = run("redrive", "orders", *again, "--output", "json")

    assert old.rows == []
    assert some.rows == [{"id": claim.ids[0], "result": "given back", "error": ""}]
    assert rest.rows == [{"id": claim.ids[0], "result": "missing", "error": ""}]
    assert (queue.stats("orders").pending, queue.stats("orders").dead) == (1, 1)


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_letter_that_is_not_there_is_told(run: Run, queue: SyncPawnQueue, buried: list[str], more: list[str]) -> None:
    """If one of the named letters does not exist, none is given back."""
    done = run("redrive", "orders", "--id", buried[0], "--id", "none", *more)

    assert (done.code, done.err.count("\n")) == (1, 1)
    assert queue.stats("orders").dead == 3


@pytest.mark.parametrize(
    ("words", "left"),
    [([], (0, 3)), (["--messages"], (0, 3)), (["--dead"], (1, 0)), (["--dead", "--messages"], (0, 0))],
)
def test_purge_removes_what_is_named(
    run: Run, queue: SyncPawnQueue, buried: list[str], words: list[str], left: tuple[int, int]
) -> None:
    """It removes messages, or dead letters with ``--dead``; a dry run counts the same, and removes nothing."""
    queue.publish("orders", [{"n": 4}])
    [would] = run("purge", "orders", *words, "--dry-run", "--output", "json").rows
    assert (queue.stats("orders").pending, queue.stats("orders").dead) == (1, 3)

    [done] = run("purge", "orders", *words, "--yes", "--output", "json").rows

    assert (queue.stats("orders").pending, queue.stats("orders").dead) == left
    assert (would["messages"], would["dead_letters"]) == (done["messages"], done["dead_letters"])
    assert (done["messages"], done["dead_letters"]) == (1 - left[0], 3 - left[1])


@pytest.mark.parametrize(("answer", "left"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_purge_asks_first(
    run: Run, queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch, answer: str, left: int
) -> None:
    """It removes nothing unless the answer is yes, and the question has the counts."""
    queue.publish("orders", [{"n": 1}], create=True)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))

    done = run("purge", "orders")

    assert done.code == left  # nothing was removed: not done
    assert done.err.startswith("This removes 1 messages of topic 'orders' in bucket 'queues-")
    assert queue.stats("orders").pending == left


def test_update_topic(run: Run, queue: SyncPawnQueue) -> None:
    """The row has the new settings; a wrong value is refused with a sentence."""
    queue.create_topic("orders")
    for given, most in (("3", 3), ("never", None)):
        [row] = run("update-topic", "orders", "--max-deliveries", given, "--output", "json").rows
        assert row.items() >= {"topic": "orders", "max_deliveries": most, "packs": True, "paused": False}.items()
        assert queue.topic("orders").settings.max_deliveries == most
    for name in ("packs", "priorities", "delays"):
        for given, allowed in (("yes", True), ("no", False), ("yes", True)):
            [row] = run("update-topic", "orders", f"--{name}", given, "--output", "json").rows
            assert row.items() >= {"topic": "orders", "max_deliveries": None, name: allowed}.items()
            assert getattr(queue.topic("orders").settings, name) is allowed
    for given, age in (("60", 60.0), ("never", None)):
        [row] = run("update-topic", "orders", "--max-age", given, "--output", "json").rows
        assert (row["max_age_seconds"], queue.topic("orders").settings.max_age_seconds) == (age, age)
    for given, sentence in (("soon", "--max-age 'soon'"), ("0", "max_age_seconds of topic 'orders' is wrong")):
        done = run("update-topic", "orders", "--max-age", given)
        assert (done.code, sentence in done.err) == (1, True)
    words = ("--max-pending", "1", "--overload", "block", "--overload-timeout", "2")
    [row] = run("update-topic", "orders", *words, "--output", "json").rows
    assert (row["max_pending"], row["overload"], row["overload_timeout_seconds"]) == (1, "block", 2.0)
    assert run("update-topic", "orders", "--overload", "raise", "--output", "json").rows[0]["overload"] == "raise"
    assert run("publish", "orders", "{}").code == 0
    full = run("publish", "orders", "{}")
    assert full.code == 1
    assert "Topic 'orders' has 1 messages" in full.err
    assert run("update-topic", "orders", "--max-pending", "never", "--output", "json").rows[0]["max_pending"] is None
    assert "--max-pending 'few'" in run("update-topic", "orders", "--max-pending", "few").err
    done = run("update-topic", "orders")
    assert (done.code, "Pass a setting: --max-deliveries" in done.err) == (1, True)
    for topic, given, sentence in (
        ("orders", "few", "--max-deliveries 'few'"),
        ("orders", "0", "max_deliveries"),
        ("nowhere", "3", "`airflow pawnqueue create-topic nowhere` creates it"),
    ):
        done = run("update-topic", topic, "--max-deliveries", given)
        assert done.code == 1
        assert sentence in done.err


def test_pause_and_resume(run: Run, queue: SyncPawnQueue) -> None:
    """The row says whether the topic is paused, and so do stats and the janitor; each may be repeated."""
    queue.publish("orders", [{"n": 1}], create=True)
    for command, is_paused in (("pause", True), ("pause", True), ("resume", False), ("resume", False)):
        [row] = run(command, "orders", "--output", "json").rows
        assert (row["topic"], row["paused"]) == ("orders", is_paused)
        assert queue.topic("orders").settings.paused is is_paused
        stats = run("stats", "orders", "--output", "json")
        assert (stats.rows[0]["pending"], stats.rows[0]["paused"]) == (1, is_paused)
        assert ("Topic orders is paused" in stats.err) is is_paused
        assert run("topics", "--output", "json").rows[0]["paused"] is is_paused
        assert run("janitor", "orders", "--output", "json").rows[0]["paused"] is is_paused
    assert run("pause", "nowhere").code == 1


def test_create_topic(run: Run, queue: SyncPawnQueue) -> None:
    """The row has the settings; a topic that exists keeps them, with a sentence on stderr, or is updated."""
    for words, most, note in (
        ((), 10, ""),
        (("--max-deliveries", "3"), 10, "The topic keeps its settings"),
        (("--max-deliveries", "3", "--if-exists", "update"), 3, ""),
        (("--max-deliveries", "never", "--if-exists", "update"), None, ""),
        ((), None, ""),
    ):
        done = run("create-topic", "orders", *words, "--output", "json")
        assert done.code == 0
        assert done.rows[0].items() >= {"topic": "orders", "max_deliveries": most, "packs": True}.items()
        assert note in done.err
        assert bool(note) == bool(done.err)
        assert queue.topic("orders").settings.max_deliveries == most
    [row] = run("create-topic", "bills", "--max-deliveries", "never", "--output", "json").rows
    assert row.items() >= {"topic": "bills", "max_deliveries": None, "packs": True, "delays": None}.items()
    for given, packs in (("yes", True), ("no", None)):
        [row] = run("create-topic", f"packs-{given}", "--packs", given, "--output", "json").rows
        assert (row["packs"], queue.topic(f"packs-{given}").settings.packs) == (packs, packs)
    assert run("create-topic", "packs-no", "--output", "json").rows[0]["packs"] is None
    for words, sentence in (
        (("a/b",), "'a/b' (3 characters) is not a valid topic name"),
        (("new", "--max-deliveries", "few"), "--max-deliveries 'few'"),
        (("new", "--max-deliveries", "0"), "max_deliveries"),
    ):
        done = run("create-topic", *words)
        assert (done.code, sentence in done.err) == (1, True)
    assert queue.list_topics() == ["bills", "orders", "packs-no", "packs-yes"]


@pytest.mark.parametrize(("answer", "is_left"), [("y\n", False), ("n\n", True), ("", True)])
def test_delete_topic_asks_first(
    run: Run, queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch, answer: str, *, is_left: bool
) -> None:
    """The question names the topic and what is deleted with it."""
    queue.publish("orders", [{"n": 1}], create=True)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))

    done = run("delete-topic", "orders", "--force")

    assert done.code == int(is_left)
    assert done.err.startswith("This deletes topic 'orders' in bucket 'queues-")
    assert "with 1 messages and 0 dead letters" in done.err
    assert queue.list_topics() == ["orders"] * is_left


def test_delete_topic(run: Run, queue: SyncPawnQueue) -> None:
    """A dry run deletes nothing, and a topic with messages is deleted only with ``--force``."""
    queue.publish("orders", [{"n": 1}], create=True)
    refused = run("delete-topic", "orders", "--yes")
    assert (refused.code, queue.list_topics()) == (1, ["orders"])
    assert "`airflow pawnqueue delete-topic orders --force`" in refused.err
    [would] = run("delete-topic", "orders", "--force", "--dry-run", "--output", "json").rows
    assert queue.list_topics() == ["orders"]
    [done] = run("delete-topic", "orders", "--force", "--yes", "--output", "json").rows
    assert would | {"dry_run": False} == done == {"topic": "orders", "dry_run": False, "messages": 1, "dead_letters": 0}
    assert queue.list_topics() == []


def test_janitor_sweeps_all_topics_or_some(run: Run, queue: SyncPawnQueue) -> None:
    """Each topic has a row, and the claim of a DAG run that goes on is left alone."""
    queue.publish("orders", [{"n": 1}], create=True)
    queue.create_topic("bills")
    claim = queue.claim("orders", "test", claim_id="run", owner="airflow/here/dag/run/task/-1/0/0", ttl=60)

    every = run("janitor", "--output", "json").rows
    one = run("janitor", "orders", "--dry-run")

    assert [row["topic"] for row in every] == ["bills", "orders"]
    assert all(row["fenced_claims"] == row["renewed_claims"] == 0 for row in every)
    assert "nothing to do" in one.out
    queue.ack(claim)


def test_janitor_goes_on_after_a_topic_that_fails(run: Run, queue: SyncPawnQueue) -> None:
    """The others are swept, and the exit code is 1."""
    queue.create_topic("orders")

    done = run("janitor", "nowhere", "orders", "--output", "json")

    assert done.code == 1
    assert [row["topic"] for row in done.rows] == ["orders"]
    assert done.err.startswith("Topic nowhere was not swept")


def test_janitor_goes_on_after_a_defect_at_a_topic(
    run: Run, queue: SyncPawnQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are swept, the traceback is shown, and the exit code is 1."""
    queue.create_topic("bad")
    queue.create_topic("orders")
    swept = PawnQueueHook.sweep

    def sweep_but_bad(hook: PawnQueueHook, topic: str, **how: Any) -> SweepReport:
        if topic == "bad":
            raise OverflowError
        return swept(hook, topic, **how)

    monkeypatch.setattr(PawnQueueHook, "sweep", sweep_but_bad)
    done = run("janitor", "bad", "orders", "--output", "json")

    assert done.code == 1
    assert [row["topic"] for row in done.rows] == ["orders"]
    assert "OverflowError" in done.err
    assert "Topic bad was not swept because of a defect" in done.err


def test_the_help_says_what_the_janitor_leaves_alone(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """It says that the command asks about no DAG run, and leaves the claims of DAG runs alone."""
    from airflow.cli.cli_parser import get_parser  # noqa: PLC0415 - a second of imports

    with pytest.raises(SystemExit):
        get_parser().parse_args(["pawnqueue", "janitor", "--help"])

    assert "leaves claims of DAG runs alone" in " ".join(capsys.readouterr().out.split())


def test_what_a_claim_has_is_given_back_or_buried(run: Run, queue: SyncPawnQueue) -> None:
    """The named messages are settled, or all that are left; an unknown claim is named in the error."""
    ids = queue.publish("orders", [{"n": 1}, {"n": 2}, {"n": 3}], create=True)
    queue.leave(queue.claim("orders", "test", claim_id="run"))

    done = run("bury", "orders", "run", "--id", ids[1], "--reason", "no item", "--output", "json")
    assert done.rows == [{"id": ids[1], "result": "buried", "error": ""}]
    assert [letter.reason for letter in queue.dead_letters("orders")] == ["no item"]

    done = run("requeue", "orders", "run", "--id", ids[0], "--id", "mistyped")
    assert (done.code, "has no message 'mistyped', so nothing was settled" in done.err) == (1, True)

    assert run("requeue", "orders", "run", "--id", ids[0], "--delay", "60").code == 0
    done = run("requeue", "orders", "run", "--output", "json")
    assert done.rows == [{"id": ids[2], "result": "given back", "error": ""}]
    stats = queue.stats("orders")
    assert (stats.pending, stats.delayed, stats.dead) == (1, 1, 1)

    done = run("requeue", "orders", "other")
    assert (done.code, "has no claim 'other'" in done.err) == (1, True)


def test_what_a_task_works_on_is_left_alone(run: Run, queue: SyncPawnQueue) -> None:
    """The command says who holds the claim, and changes nothing."""
    queue.publish("orders", [{"n": 1}], create=True)
    claim = queue.claim("orders", "test", claim_id="run", ttl=60)
    done = run("bury", "orders", "run", "--reason", "no item")
    assert (done.code, "test" in done.err) == (1, True)
    assert queue.ack(claim).complete

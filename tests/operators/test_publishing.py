"""Operators that publish, redrive, and create, update and delete topics."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_pawnqueue.operators.base import failure_of
from airflow_provider_pawnqueue.operators.pawnqueue import (
    PawnQueueCreateTopicOperator,
    PawnQueueDeleteTopicOperator,
    PawnQueuePauseTopicOperator,
    PawnQueuePublishOperator,
    PawnQueueRedriveOperator,
    PawnQueueResumeTopicOperator,
    PawnQueueUpdateTopicOperator,
)
from pawnqueue import CompletedLog, PublishError, StoreError
from pawnqueue.catalog.unit_listing import listed
from tests.support.airflow import TOPIC, FakeTask, context_of

if TYPE_CHECKING:
    from pawnqueue import SyncPawnQueue

NOBODY = context_of(FakeTask("shop"))
ONE, TWO = {"n": 1}, {"n": 2}


def publish(payloads: Any, **more: Any) -> list[str]:
    """Execute the operator."""
    return PawnQueuePublishOperator(**{"task_id": "shop", "topic": TOPIC, "payloads": payloads, **more}).execute(NOBODY)


@pytest.mark.parametrize(
    ("payloads", "published"),
    [
        (ONE, [ONE]),
        ([ONE, TWO], [ONE, TWO]),
        ((each for each in (ONE, TWO)), [ONE, TWO]),
        (json.dumps([ONE, TWO]), [ONE, TWO]),
        (str(ONE), [ONE]),
        ([json.dumps(ONE), TWO, '{"__id__": 7}'], [ONE, TWO, {"__id__": 7}]),
        ([], []),
    ],
    ids=["dict", "list", "generator", "json", "text of a dict", "texts", "nothing"],
)
def test_what_may_be_published(queue: SyncPawnQueue, payloads: Any, published: list[Any]) -> None:
    """Payloads may be a dict, several dicts, or texts of them; the ids come back in order."""
    ids = publish(payloads)
    found = queue.peek(TOPIC)
    assert [message.payload for message in found] == published
    assert [message.id for message in found] == ids


@pytest.mark.parametrize(
    ("payloads", "sentence"),
    [
        (None, "payloads is None"),
        (5, "payloads is a int"),
        ("just text", "payloads is a str"),
        ([1], "JSON object"),
        ([ONE, None], "JSON object"),
        ([{"a": {1, 2}}], "JSON"),
    ],
    ids=repr,
)
def test_what_may_not(queue: SyncPawnQueue, payloads: Any, sentence: str) -> None:
    """The task fails without retries, and nothing is published."""
    with pytest.raises(AirflowFailException, match=sentence):
        publish(payloads)
    assert queue.peek(TOPIC) == []


def test_who_publishes(queue: SyncPawnQueue) -> None:
    """The producer is named after the task, unless a name is given; the headers are published too."""
    publish(ONE, headers={"trace": "7"})
    publish(TWO, producer="till")
    assert {one.name for one in queue.list_producers()} == {"dag.shop", "till"}
    assert queue.peek(TOPIC)[0].headers == {"trace": "7"}


@pytest.mark.parametrize(
    ("pack", "count", "objects"), [("auto", 100, 1), ("auto", 99, 99), (True, 2, 1), (False, 100, 100)]
)
def test_what_becomes_a_pack(queue: SyncPawnQueue, pack: Any, count: int, objects: int) -> None:
    """As the queue decides, or always, or never."""
    assert len(publish([ONE] * count, topic="many", pack=pack, create=True)) == count
    assert len(queue.run(lambda opened: listed(opened._context, "many", packs=True)).units) == objects


def test_a_topic_without_packs(queue: SyncPawnQueue) -> None:
    """A topic has packs as it was created: neither creating it again nor publishing into it changes that."""
    for given, packs in ((None, True), ("False", None)):
        PawnQueueCreateTopicOperator(task_id="t", topic=f"packs-{given}", packs=given).execute(NOBODY)
        assert queue.topic(f"packs-{given}").settings.packs is packs
    PawnQueueCreateTopicOperator(task_id="t", topic="packs-False", if_exists="update").execute(NOBODY)
    publish([ONE] * 100, topic="packs-False", create=True)
    assert queue.topic("packs-False").settings.packs is None
    assert len(queue.run(lambda opened: listed(opened._context, "packs-False", packs=True)).units) == 100


def test_packs_are_checked_when_the_file_is_parsed(queue: SyncPawnQueue) -> None:
    """A wrong value is an error of the DAG file; a topic that does not allow packs fails the task without retries."""
    with pytest.raises(ValueError, match="pack='always': pass 'auto', True or False"):
        PawnQueuePublishOperator(task_id="shop", topic=TOPIC, payloads=ONE, pack="always")
    queue.create_topic("single", packs=False)
    with pytest.raises(AirflowFailException, match="does not allow packs"):
        publish(ONE, topic="single", pack=True)


def test_a_schedule(queue: SyncPawnQueue) -> None:
    """A delay and a priority, as numbers or as a template's text, if the topic allows them; a wrong one is an error."""
    PawnQueueCreateTopicOperator(task_id="t", topic="lanes", delays=True, priorities="True").execute(NOBODY)
    for delay in (60, "60", timedelta(minutes=1)):
        publish(ONE, topic="lanes", delay=delay, priority="3")
    stats = queue.stats("lanes")
    assert (stats.pending, stats.delayed) == (0, 3)
    assert {message.priority for message in queue.peek("lanes")} == {3}
    with pytest.raises(AirflowFailException, match=r"update_topic\('orders', delays=True\)"):
        publish(ONE, delay=60)
    for wrong in ({"delay": -1}, {"delay": "soon"}, {"priority": 10}, {"priority": "high"}, {"priority": True}):
        with pytest.raises(ValueError, match=r"(delay|priority)=.*: pass a"):
            PawnQueuePublishOperator(task_id="shop", topic=TOPIC, payloads=ONE, **wrong)


def test_deduplication(queue: SyncPawnQueue) -> None:
    """A key for one message, or a function for many; the ids are those of the messages that were published."""
    first = publish(ONE, dedup_key="1")
    assert publish(ONE, dedup_key="1") == first
    ids = publish([ONE, TWO, json.dumps(TWO)], dedup_key=lambda payload: str(payload["n"]))
    assert ids[0] == first[0]
    assert ids[1] == ids[2]
    assert type(ids) is list
    assert len(queue.peek(TOPIC)) == 2
    with pytest.raises(AirflowException, match="a key for 2 messages"):
        publish([ONE, TWO], dedup_key="1")


def test_a_topics_window(queue: SyncPawnQueue) -> None:
    """It can be set and changed."""
    more: dict[str, Any] = {"task_id": "make", "topic": "windows"}
    PawnQueueCreateTopicOperator(**more, dedup_window_seconds=60).execute(NOBODY)
    assert queue.topic("windows").settings.dedup_window_seconds == 60
    PawnQueueUpdateTopicOperator(**more, dedup_window_seconds="90").execute(NOBODY)
    assert queue.topic("windows").settings.dedup_window_seconds == 90


def test_an_unknown_topic(queue: SyncPawnQueue) -> None:
    """The task fails without retries, unless the topic is to be created."""
    with pytest.raises(AirflowFailException, match="nowhere"):
        publish(ONE, topic="nowhere")
    publish(ONE, topic="nowhere", create=True)
    assert len(queue.peek("nowhere")) == 1


def test_a_publication_is_tried_again_only_as_a_whole() -> None:
    """There is no retry if some messages were published, because they would be published again."""
    away = StoreError("away", transient=True)
    again = failure_of(PublishError("so", ids=["a"], failed={"a": away}))
    assert type(again) is AirflowException
    for error in (
        PublishError("so", ids=["a", "b"], failed={"a": away}),
        PublishError("so", ids=["a"], unknown={"a": away}),
        PublishError("so", ids=["a"], failed={"a": StoreError("denied")}),
    ):
        assert isinstance(failure_of(error), AirflowFailException)


def test_create_topic(queue: SyncPawnQueue) -> None:
    """Creating a topic twice does no harm, and a number may be a text."""
    for _ in range(2):
        assert PawnQueueCreateTopicOperator(task_id="t", topic="new", max_deliveries="3").execute(NOBODY) == "new"
    assert queue.topic("new").settings.max_deliveries == 3
    for wrong, sentence in (
        ({"topic": "a b"}, "a b"),
        ({"topic": "x", "max_deliveries": "few"}, "max_deliveries='few'"),
    ):
        with pytest.raises(AirflowFailException, match=sentence):
            PawnQueueCreateTopicOperator(task_id="t", **wrong).execute(NOBODY)


def test_a_topic_that_exists_is_kept_or_updated(queue: SyncPawnQueue) -> None:
    """A topic with other settings keeps them, and the task succeeds; or it is updated."""
    queue.create_topic("new", max_deliveries=3)
    for more, most in (
        ({}, 3),
        ({"if_exists": "update"}, 5),
        ({"if_exists": "update", "max_deliveries": "never"}, None),
    ):
        made = PawnQueueCreateTopicOperator(**{"task_id": "t", "topic": "new", "max_deliveries": 5, **more})
        assert made.execute(NOBODY) == "new"
        assert queue.topic("new").settings.max_deliveries == most
    with pytest.raises(ValueError, match="if_exists='replace'"):
        PawnQueueCreateTopicOperator(task_id="t", topic="new", if_exists="replace")
    made.if_exists = "rendered"
    with pytest.raises(AirflowFailException, match="if_exists='rendered'"):
        made.execute(NOBODY)


def test_a_full_topic_fails_a_try(queue: SyncPawnQueue) -> None:
    """Nothing was published, so Airflow tries again, and the log says why."""
    queue.update_topic(TOPIC, max_pending=1)
    assert len(publish(ONE)) == 1
    with pytest.raises(
        AirflowException, match=r"'orders' has 1 messages.*max_pending.*Nothing was published"
    ) as failure:
        publish(TWO)
    assert not isinstance(failure.value, AirflowFailException)
    assert queue.stats(TOPIC).pending == 1


def test_update_topic(queue: SyncPawnQueue) -> None:
    """The settings change for all users of the topic; a topic that does not exist fails the task without retries."""
    for given, most in (("4", 4), ("never", None)):
        update = PawnQueueUpdateTopicOperator(task_id="t", topic=TOPIC, max_deliveries=given)
        assert update.execute(NOBODY).items() >= {"max_deliveries": most, "packs": True}.items()
        assert queue.topic(TOPIC).settings.max_deliveries == most
    for name in ("packs", "priorities", "delays"):
        for given, allowed in ((True, True), ("False", False), ("True", True)):
            update = PawnQueueUpdateTopicOperator(task_id="t", topic=TOPIC, **{name: given})
            assert update.execute(NOBODY).items() >= {"max_deliveries": None, name: allowed}.items()
            assert getattr(queue.topic(TOPIC).settings, name) is allowed
    more = {"max_pending": "2", "overload": "block", "overload_timeout_seconds": timedelta(seconds=5)}
    done = PawnQueueUpdateTopicOperator(task_id="t", topic=TOPIC, **more).execute(NOBODY)
    assert (done["max_pending"], done["overload"], done["overload_timeout_seconds"]) == (2, "block", 5.0)
    with pytest.raises(AirflowFailException, match=r"overload of topic 'orders' is wrong: .* nothing is lost here"):
        PawnQueueUpdateTopicOperator(task_id="t", topic=TOPIC, overload="drop_oldest").execute(NOBODY)
    PawnQueueUpdateTopicOperator(task_id="t", topic=TOPIC, max_pending="never", overload="raise").execute(NOBODY)
    for given, age in ((90, 90.0), (timedelta(hours=1), 3600.0), ("60", 60.0), ("never", None)):
        update = PawnQueueUpdateTopicOperator(task_id="t", topic=TOPIC, max_age_seconds=given)
        assert update.execute(NOBODY)["max_age_seconds"] == age
        assert queue.topic(TOPIC).settings.max_age_seconds == age
    for wrong, sentence in (
        ({"topic": "nowhere", "max_deliveries": 1}, "nowhere"),
        ({"max_age_seconds": "soon"}, "max_age_seconds='soon'"),
        ({"max_deliveries": 0}, "=0"),
        ({"packs": "yes"}, "packs='yes': pass True or False"),
        ({"delays": "later"}, "delays='later': pass True or False"),
        ({}, "changes nothing: pass one of max_deliveries, packs, "),
    ):
        with pytest.raises(AirflowFailException, match=sentence):
            PawnQueueUpdateTopicOperator(**{"task_id": "t", "topic": TOPIC, **wrong}).execute(NOBODY)


def test_pause_and_resume_a_topic(queue: SyncPawnQueue) -> None:
    """Each may be repeated; a topic that does not exist fails the task without retries."""
    for operator, is_paused in ((PawnQueuePauseTopicOperator, True), (PawnQueueResumeTopicOperator, False)):
        assert [operator(task_id="t", topic=TOPIC).execute(NOBODY) for _ in range(2)] == [TOPIC, TOPIC]
        assert queue.topic(TOPIC).settings.paused is is_paused
        with pytest.raises(AirflowFailException, match="nowhere"):
            operator(task_id="t", topic="nowhere").execute(NOBODY)


def test_delete_topic(queue: SyncPawnQueue) -> None:
    """A topic with messages is deleted only with ``force``; deleting it again does no harm."""
    queue.publish(TOPIC, [{"n": 1}])
    with pytest.raises(AirflowFailException, match=r"force=True.*`airflow pawnqueue delete-topic orders --force`"):
        PawnQueueDeleteTopicOperator(task_id="t", topic=TOPIC).execute(NOBODY)
    delete = PawnQueueDeleteTopicOperator(task_id="t", topic=TOPIC, force="True")
    assert [delete.execute(NOBODY) for _ in range(2)] == [
        {"messages": 1, "dead_letters": 0},
        {"messages": 0, "dead_letters": 0},
    ]
    assert TOPIC not in queue.list_topics()


def test_limits_of_dead_letters(queue: SyncPawnQueue) -> None:
    """Operators set them, also from a template, and take them away."""
    options: dict[str, Any] = {"task_id": "one", "topic": "kept"}
    PawnQueueCreateTopicOperator(**options, dead_letters={"max_count": 5}).execute(NOBODY)
    PawnQueueUpdateTopicOperator(**options, dead_letters="{'max_age_seconds': 60.0, 'max_count': 7}").execute(NOBODY)
    limits = queue.topic("kept").settings.dead_letters
    assert limits is not None
    assert (limits.max_age_seconds, limits.max_count) == (60.0, 7)
    PawnQueueUpdateTopicOperator(**options, dead_letters="off", completed=True).execute(NOBODY)
    assert queue.topic("kept").settings.dead_letters is None
    assert queue.topic("kept").settings.completed == CompletedLog()
    PawnQueueUpdateTopicOperator(**options, completed="{'max_count': 7}").execute(NOBODY)
    assert queue.topic("kept").settings.completed == CompletedLog(max_count=7)
    PawnQueueUpdateTopicOperator(**options, completed="off").execute(NOBODY)
    assert queue.topic("kept").settings.completed == CompletedLog(max_count=7, is_on=False)


def redrive(**more: Any) -> dict[str, int]:
    """Execute the operator."""
    return PawnQueueRedriveOperator(task_id="redrive", topic=TOPIC, **more).execute(NOBODY)


def test_redrive(queue: SyncPawnQueue) -> None:
    """Letters are redriven by ids or up to a number, all of them, or none for an empty list; a dry run counts."""
    ids = queue.publish(TOPIC, [{"n": number} for number in range(6)])
    queue.nack(queue.claim(TOPIC, "c", max_messages=6))
    assert redrive(dry_run=True)["moved"] == 6
    assert redrive(dry_run=True, max_messages="2")["moved"] == 2
    assert redrive(ids=[]) == {"moved": 0, "skipped": 0, "failed": 0}
    assert queue.stats(TOPIC).dead == 6
    assert redrive(ids=ids[:1])["moved"] == 1
    assert redrive(ids=str(ids[1:3]))["moved"] == 2
    assert redrive(max_messages=1)["moved"] == 1
    assert redrive()["moved"] == 2
    assert queue.stats(TOPIC).dead == 0
    with pytest.raises(AirflowFailException, match="nobody"):
        redrive(ids=["nobody"])


def test_redrive_by_filter(queue: SyncPawnQueue) -> None:
    """Letters are redriven by reason and age, also from templates; all that is given has to be true."""
    ids = queue.publish(TOPIC, [{"n": number} for number in range(3)])
    claim = queue.claim(TOPIC, "c", max_messages=3)
    queue.bury(claim, ids[0], reason="ValueError: no amount")
    queue.bury(claim, ids[1:], reason="expired")
    assert redrive(reason="ValueErr")["moved"] == 0
    assert redrive(reason="ValueError", older_than=timedelta(days=1))["moved"] == 0
    assert redrive(reason="ValueError", younger_than="3600", per_second="50")["moved"] == 1
    assert redrive(reason="expired", ids=ids[1:2], dry_run=True)["moved"] == 1
    assert queue.stats(TOPIC).dead == 2

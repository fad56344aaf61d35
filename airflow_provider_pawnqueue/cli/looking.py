"""Commands that read and change nothing."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, TypeVar

from airflow_provider_pawnqueue.cli.running import command, fail, say, show
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.triggers.janitor_watch import is_swept, no_janitor
from pawnqueue import DeadLetter, Message, PawnQueueError

Found = TypeVar("Found")


@command
def topics(hook: PawnQueueHook, args: Namespace) -> None:
    """List the topics. An error in one topic does not hide the others."""
    found, failures = _read_each(hook.list_topics(), hook.topic)
    show(
        [{"topic": each.name, **each.settings.model_dump(), "created_at": each.created_at} for each in found],
        args.output,
    )
    if failures:
        fail(*failures)


@command
def stats(hook: PawnQueueHook, args: Namespace) -> None:
    """Count messages. An error in one topic does not hide the others."""
    failures: list[str] = []
    if args.topic is not None:
        rows = [_count_row(hook, args.topic)]
    else:
        rows, failures = _read_each(hook.list_topics(), lambda topic: _count_row(hook, topic))
    show(rows, args.output)
    for row in rows:
        if row["paused"]:
            say(f"Topic {row['topic']} is paused: nobody is given its messages until `airflow pawnqueue resume`.")
    unswept = [topic for topic in (row["topic"] for row in rows) if not is_swept(hook.topic(topic).swept_at)]
    if unswept:
        say(no_janitor(unswept))
    if failures:
        fail(*failures)


def _read_each(topics: Iterable[str], read: Callable[[str], Found]) -> tuple[list[Found], list[str]]:
    """Read each topic; return what was found, and a sentence for each topic that failed."""
    found: list[Found] = []
    failures: list[str] = []
    for topic in topics:
        try:
            found.append(read(topic))
        except PawnQueueError as error:
            failures.append(f"Topic {topic}: {error}")
    return found, failures


def _count_row(hook: PawnQueueHook, topic: str) -> dict[str, Any]:
    counts = asdict(hook.stats(topic))
    age = counts["oldest_age_seconds"]
    return {"topic": topic, **counts, "oldest_age_seconds": None if age is None else round(age, 1)}


@command
def peek(hook: PawnQueueHook, args: Namespace) -> None:
    """Show messages, or dead letters."""
    if not args.dead:
        show([_message_row(each) for each in hook.peek(args.topic, args.limit)], args.output)
        return
    page = hook.dead_letters(args.topic, max_messages=args.limit)
    show([_letter_row(each) for each in page], args.output)
    if page.next is not None:
        say(f"These are the latest {len(page)} of {page.total} dead letters: --limit shows more.")


def _message_row(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in ("id", "created_at", "producer_id", "headers", "payload")}


def _letter_row(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "message_id": None if letter.message is None else letter.message.id,
        "buried_at": letter.buried_at,
        "reason": letter.reason,
        "error": letter.error or letter.fault,
        "deliveries": letter.deliveries,
        "max_deliveries": letter.max_deliveries,
        "consumer": letter.consumer,
        "payload": None if letter.message is None else letter.message.payload,
    }


@command
def completed(hook: PawnQueueHook, args: Namespace) -> None:
    """Show the completed log."""
    page = hook.completed(args.topic, max_messages=args.limit)
    show([asdict(each) for each in page], args.output)
    if page.faults:
        fail(*(f"{key} could not be read: {why}" for key, why in page.faults.items()))

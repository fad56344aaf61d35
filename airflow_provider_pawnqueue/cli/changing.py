"""Commands that change something."""

from __future__ import annotations

import json
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, Final

from airflow_provider_pawnqueue.cli.running import UsageError, command, fail, say, show
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.operators.administration import NEVER, OFF, ON, ensure_topic
from pawnqueue import Claim, PawnQueueError, PublishError, RedriveProgress, Removed, Settlement, SweepReport, Topic

_STDIN: Final = "-"
_NOTHING_PUBLISHED: Final = "Nothing was published."
_IS_YES: Final[dict[str, bool]] = {"yes": True, "no": False}


@command
def publish(hook: PawnQueueHook, args: Namespace) -> None:
    """Publish messages. All of them are read and checked before the first is sent."""
    headers = _headers(args.header or [])
    payloads = _payloads(args.payload, args.file)
    try:
        ids = hook.publish(
            args.topic,
            payloads,
            producer=args.producer,
            headers=headers,
            create=args.create,
            delay=args.delay,
            priority=args.priority,
            dedup_key=args.dedup_key,
            pack=_IS_YES.get(args.pack, "auto"),
        )
    except PublishError as error:
        states = dict.fromkeys(error.published, "published")
        states |= dict.fromkeys(error.failed, "failed") | dict.fromkeys(error.unknown, "unknown")
        show([{"id": each, "state": states[each]} for each in error.ids], args.output)
        raise
    found = enumerate(ids)
    show(
        [{"id": each, "state": "duplicate" if at in ids.duplicates else "published"} for at, each in found], args.output
    )


def _headers(given: Iterable[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for each in given:
        name, mark, value = each.partition("=")
        if not mark or not name:
            raise UsageError(f"--header {each!r} is not a header: write it as name=value. {_NOTHING_PUBLISHED}")
        headers[name] = value
    return headers


def _payloads(payload: str | None, file: str | None) -> list[dict[str, Any]]:
    """Return the payload from the command line, or one from each line of the file or of the standard input."""
    if (payload is None) == (file is None):
        raise UsageError(f"Pass one of these: a payload, - (the standard input), or --file. {_NOTHING_PUBLISHED}")
    if payload is not None and payload != _STDIN:
        return [_object(payload, "The payload")]
    name, lines = _lines(file or _STDIN)
    return [_object(line, f"Line {number} of {name}") for number, line in enumerate(lines, start=1) if line.strip()]


def _lines(file: str) -> tuple[str, Iterable[str]]:
    if file == _STDIN:
        return "the standard input", sys.stdin
    try:
        lines = Path(file).read_text(encoding="utf-8-sig").split("\n")
    except OSError as problem:
        raise UsageError(f"{file} cannot be read: {problem.strerror}. {_NOTHING_PUBLISHED}") from None
    except UnicodeDecodeError as problem:
        raise UsageError(f"{file} is not UTF-8 text: {problem.reason}. {_NOTHING_PUBLISHED}") from None
    return file, lines


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except json.JSONDecodeError as problem:
        raise UsageError(
            f"{what} is not JSON: {problem.msg}, at character {problem.pos + 1}. {_NOTHING_PUBLISHED}"
        ) from None
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"{what} cannot be read as JSON: {problem}. {_NOTHING_PUBLISHED}") from None
    if not isinstance(read, dict):
        raise UsageError(f'{what} is not a JSON object: write it as {{"name": value}}. {_NOTHING_PUBLISHED}')
    return read


@command
def requeue(hook: PawnQueueHook, args: Namespace) -> None:
    """Requeue messages of a claim that no task works on."""
    _settle(hook, args, lambda held: hook.requeue(held, args.ids, delay=args.delay, reason=args.reason))


@command
def bury(hook: PawnQueueHook, args: Namespace) -> None:
    """Bury messages of a claim that no task works on."""
    _settle(hook, args, lambda held: hook.bury(held, args.ids, reason=args.reason))


def _settle(hook: PawnQueueHook, args: Namespace, work: Callable[[Claim], Settlement]) -> None:
    """Attach to a claim, settle messages of it, and leave it. The queue refuses this while a task works on it."""
    last = hook.last_claim(args.topic, args.claim_id)
    if last is None:
        raise UsageError(f"Topic {args.topic!r} has no claim {args.claim_id!r}. Nothing was changed.")
    held = hook.attach(last.reference, payloads=bool(args.ids))
    try:
        done = work(held)
    finally:
        hook.leave(held)
    names = {"buried": "buried", "released": "given back"}
    rows = [{"id": each, "result": names.get(how, how), "error": done.unfinished.get(each, "")} for each, how in done]
    show(rows, args.output)
    if not done.complete:
        fail("Not all messages are settled: the table says what became of each.")


@command
def redrive(hook: PawnQueueHook, args: Namespace) -> None:
    """Move dead letters back into their topic."""
    done = hook.redrive(
        args.topic,
        args.ids,
        reason=args.reason,
        older_than=args.older_than,
        younger_than=args.younger_than,
        max_messages=args.limit,
        per_second=args.per_second,
        missing_ok=args.missing_ok,
        dry_run=args.dry_run,
        on_progress=_show_progress if sys.stderr.isatty() else None,
    )
    result = "would be given back" if args.dry_run else "given back"
    rows = [{"id": each, "result": result, "error": ""} for each in done.moved]
    rows += [{"id": each, "result": "skipped", "error": ""} for each in done.skipped]
    rows += [{"id": each, "result": "missing", "error": ""} for each in done.missing]
    rows += [{"id": each, "result": "failed", "error": str(error)} for each, error in done.failed.items()]
    show(rows, args.output)
    unnamed = done.moved_count + done.skipped_count - len(done.moved) - len(done.skipped)
    if unnamed:
        say(f"{unnamed} more were {result} or skipped, which are not named.")
    if done.failed:
        fail(f"{done.failed_count} dead letters were not given back, or it is not certain: redrive them again.")


def _show_progress(progress: RedriveProgress) -> None:
    """Say on a terminal how far a redrive has come. A short one ends before there is anything to say."""
    if progress.seconds >= 1:
        say(
            f"{progress.looked_at} dead letters looked at, {progress.moved} given back, {progress.skipped} skipped, "
            f"{progress.failed} failed after {progress.seconds:.0f} s"
        )


@command
def purge(hook: PawnQueueHook, args: Namespace) -> None:
    """Remove messages or dead letters, after asking for confirmation."""
    kinds = {"messages": args.messages or not args.dead, "dead_letters": args.dead}
    if args.dry_run or not args.yes:
        found = hook.purge(args.topic, dry_run=True, **kinds)
        if args.dry_run:
            _show_removed(args, found)
            return
        what = " and ".join(
            f"{getattr(found, kind)} {kind.replace('_', ' ')}" for kind, is_meant in kinds.items() if is_meant
        )
        _confirm(f"This removes {what} of topic {args.topic!r} in bucket {hook.settings.s3.bucket_name!r} for ever.")
    _show_removed(args, hook.purge(args.topic, **kinds))


def _show_removed(args: Namespace, removed: Removed) -> None:
    counts = {"messages": removed.messages, "dead_letters": removed.dead_letters}
    show([{"topic": args.topic, "dry_run": args.dry_run, **counts}], args.output)


def _confirm(sentence: str) -> None:
    """Ask on stderr; raise UsageError unless the answer is yes."""
    say(f"{sentence} Continue? (y/n)")
    try:
        answer = input()
    except EOFError:
        raise UsageError("There was no answer, so nothing was removed: pass --yes where nobody can answer.") from None
    if answer.strip().lower() not in {"y", "yes"}:
        raise UsageError("Nothing was removed.")


@command
def create_topic(hook: PawnQueueHook, args: Namespace) -> None:
    """Create a topic. A topic that exists keeps its settings, or has them updated."""
    _show_topic(ensure_topic(hook, args.topic, args.if_exists, say, **_topic_options(args)), args.output)


@command
def update_topic(hook: PawnQueueHook, args: Namespace) -> None:
    """Change the settings of a topic."""
    given = _topic_options(args)
    if not given:
        raise UsageError("Pass a setting: --max-deliveries or --max-age, for example. Nothing was changed.")
    _show_topic(hook.update_topic(args.topic, **given), args.output)


@command
def pause(hook: PawnQueueHook, args: Namespace) -> None:
    """Pause a topic."""
    _show_topic(hook.pause(args.topic), args.output)


@command
def resume(hook: PawnQueueHook, args: Namespace) -> None:
    """Resume a paused topic."""
    _show_topic(hook.resume(args.topic), args.output)


def _topic_options(args: Namespace) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if args.max_deliveries is not None:
        given["max_deliveries"] = _deliveries(args.max_deliveries)
    if args.max_pending is not None:
        given["max_pending"] = _pending(args.max_pending)
    if args.overload is not None:
        given["overload"] = args.overload
    if args.overload_timeout is not None:
        given["overload_timeout_seconds"] = args.overload_timeout
    if args.max_age is not None:
        given["max_age_seconds"] = _age(args.max_age)
    for name in ("packs", "priorities", "delays"):
        if getattr(args, name) is not None:
            given[name] = _IS_YES[getattr(args, name)]
    if args.dead_letters is not None:
        given["dead_letters"] = _numbers(args.dead_letters, "--dead-letters")
    if args.completed is not None:
        given["completed"] = args.completed == ON or _numbers(args.completed, "--completed", flags=("payloads",))
    return given


def _numbers(given: str, option: str, *, flags: Collection[str] = ()) -> dict[str, float] | None:
    """Return numbers by their names, from ``name=number,name=number``; None for ``off``.

    :param flags: names that are given without a number, and are True then.
    """
    if given == OFF:
        return None
    numbers: dict[str, float] = {}
    for each in given.split(","):
        if each.strip() in flags:
            numbers[each.strip()] = True
            continue
        name, mark, number = each.partition("=")
        try:
            numbers[name.strip()] = int(number) if number.strip().isdigit() else float(number)
        except ValueError:
            mark = ""
        if not mark:
            raise UsageError(f"{option} {given!r}: write it as name=number,name=number, or off. Nothing was changed.")
    return numbers


def _deliveries(given: str) -> int | None:
    try:
        return None if given == NEVER else int(given)
    except ValueError:
        raise UsageError(f"--max-deliveries {given!r}: write a whole number of at least 1, or never.") from None


def _pending(given: str) -> int | None:
    try:
        return None if given == NEVER else int(given)
    except ValueError:
        raise UsageError(f"--max-pending {given!r}: write a whole number of at least 1, or never.") from None


def _age(given: str) -> float | None:
    try:
        return None if given == NEVER else float(given)
    except ValueError:
        raise UsageError(f"--max-age {given!r}: write a number of seconds of at least 1, or never.") from None


def _show_topic(topic: Topic, output: str) -> None:
    show([{"topic": topic.name, **topic.settings.model_dump()}], output)


@command
def delete_topic(hook: PawnQueueHook, args: Namespace) -> None:
    """Delete a topic, after asking for confirmation."""
    if not args.dry_run and not args.yes:
        found = hook.delete_topic(args.topic, force=args.force, dry_run=True)
        _confirm(
            f"This deletes topic {args.topic!r} in bucket {hook.settings.s3.bucket_name!r} for ever, with "
            f"{found.messages} messages and {found.dead_letters} dead letters."
        )
    _show_removed(args, hook.delete_topic(args.topic, force=args.force, dry_run=args.dry_run))


@command
def janitor(hook: PawnQueueHook, args: Namespace) -> None:
    """Sweep topics. An error in one topic does not keep the others from being swept."""
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    for topic in args.topics or hook.list_topics():
        try:
            report = hook.sweep(topic, dry_run=args.dry_run)
        except PawnQueueError as error:
            failures.append(f"Topic {topic} was not swept: {error}")
            continue
        except Exception as defect:  # noqa: BLE001 - a defect in one topic does not keep the others from being swept
            traceback.print_exception(defect)
            failures.append(f"Topic {topic} was not swept because of a defect of this version: please report it.")
            continue
        rows.append(_full_row(report) if args.output in {"json", "yaml"} else _table_row(report))
        failures += [f"Topic {topic}: {failure}" for failure in report.failures]
    show(rows, args.output)
    if failures:
        fail(*failures)


def _full_row(report: SweepReport) -> dict[str, Any]:
    lists = {name: getattr(report, name) for name in ("stuck", "strangers", "failures", "defects")}
    return {
        "topic": report.topic,
        "dry_run": report.dry_run,
        "paused": report.paused,
        **dict(report.counts()),
        **lists,
    }


def _table_row(report: SweepReport) -> dict[str, Any]:
    done = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in report.counts() if count)
    return {
        "topic": report.topic,
        "would do" if report.dry_run else "done": done or "nothing to do",
        "paused": report.paused,
        "stuck": len(report.stuck),
        "strangers": len(report.strangers),
        "failures": len(report.failures),
    }

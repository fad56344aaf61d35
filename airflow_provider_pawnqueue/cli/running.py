"""What all commands share: they read a connection, print rows in a format, and print an error as one sentence."""

from __future__ import annotations

import functools
import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final, NoReturn

from airflow.cli.simple_table import AirflowConsole
from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException
from airflow.utils.cli import suppress_logs_and_warning
from rich.markup import escape

from airflow_provider_pawnqueue.hooks.clients import CLIENTS
from airflow_provider_pawnqueue.hooks.diagnosis import in_airflow
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from pawnqueue import PawnQueueError, TopicNotFoundError
from pawnqueue.domain.bounds import is_deeper
from pawnqueue.events import one_line

#: A table shows only the beginning of a longer text; JSON and YAML show all of it.
_MAX_CELL_CHARACTERS: Final = 300
#: Python's YAML calls itself several times for each level, and fails at about 330. By default, a publisher refuses
#: payloads of more than 64 levels.
_MAX_YAML_LEVELS: Final = 100


class UsageError(Exception):
    """A command cannot be carried out as it was written: the sentence says why, and what to write instead."""


def command(work: Callable[[PawnQueueHook, Namespace], None]) -> Callable[[Namespace], None]:
    """Make a command of a function: print its errors as one sentence, and its log only with --verbose."""

    @functools.wraps(work)
    def run(args: Namespace) -> None:
        # A command is not a task, so it may read connections from the metadata database, as Airflow's own commands do.
        os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
        hook = PawnQueueHook(args.conn_id)
        try:
            work(hook, args)
        except TopicNotFoundError as error:
            fail(_missing_topic(hook, error))
        except AirflowNotFoundException as error:
            fail(_missing_connection(args.conn_id, error))
        except PawnQueueError as error:
            fail(in_airflow(error))
        except (UsageError, AirflowException) as error:
            fail(str(error))
        finally:
            CLIENTS.close()  # here and not when the process ends, so that its log too is printed only with --verbose

    quiet: Callable[[Namespace], None] = suppress_logs_and_warning(run)
    return quiet


def say(sentence: str) -> None:
    """Print a sentence on stderr, apart from the output."""
    sys.stderr.write(f"{one_line(sentence)}\n")


def fail(*sentences: str) -> NoReturn:
    """Print what went wrong on stderr, and exit with code 1."""
    for sentence in sentences:
        say(sentence)
    sys.exit(1)


def show(rows: Sequence[Mapping[str, Any]], output: str) -> None:
    """Print rows. In JSON and YAML, numbers stay numbers; in a table, each value is one line of text."""
    console = AirflowConsole()
    if output in {"json", "yaml"}:
        # Python's JSON encoder takes every payload that may be published; a recursive function would not.
        plain: Any = json.loads(json.dumps(rows, default=_as_json))
        if output == "yaml":
            plain = [{name: _shallow(value) for name, value in row.items()} for row in plain]
        (console.print_as_json if output == "json" else console.print_as_yaml)(plain)
        return
    marked = escape if output == "table" else str
    console.print_as([{name: marked(_text(value)) for name, value in row.items()} for row in rows], output)


def _as_json(value: object) -> object:
    match value:
        case datetime():
            return value.isoformat()
        case Mapping():
            return dict(value)
        case _:
            raise TypeError(f"A {type(value).__name__} cannot be written as JSON")


def _shallow(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Return a value that YAML can print: a JSON text if it is nested too deeply."""
    return json.dumps(value, ensure_ascii=False) if is_deeper(value, _MAX_YAML_LEVELS) else value


def _text(value: Any) -> str:  # noqa: ANN401 - whatever JSON can hold
    match value:
        case None:
            text = ""
        case datetime():
            text = value.isoformat(sep=" ", timespec="seconds")
        case bool():
            text = "yes" if value else "no"
        case Mapping() | list() | tuple():
            text = json.dumps(value, default=_as_json, ensure_ascii=False) if value else ""
        case _:
            text = str(value)
    return one_line(text, _MAX_CELL_CHARACTERS)


def _missing_topic(hook: PawnQueueHook, error: TopicNotFoundError) -> str:
    try:
        known = hook.list_topics()
    except PawnQueueError:
        known = []
    near = get_close_matches(error.topic or "", known, n=1)
    suggestion = f" Did you mean {near[0]!r}?" if near else ""
    return (
        f"Topic {error.topic!r} does not exist: `airflow pawnqueue topics` lists the topics, and "
        f"`airflow pawnqueue create-topic {error.topic}` creates it.{suggestion}"
    )


def _missing_connection(conn_id: str, error: AirflowNotFoundException) -> str:
    if conn_id not in str(error) or "not valid JSON" in str(error):
        return str(error)  # about the AWS connection that this one names, or about a variable that cannot be read
    return (
        f"Connection {conn_id!r} does not exist: add one of type pawnqueue (`airflow connections add`, or the variable "
        f"AIRFLOW_CONN_{conn_id.upper()}), or pass another with --conn-id."
    )

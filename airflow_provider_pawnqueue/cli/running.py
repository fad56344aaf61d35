"""What every command does: read its connection, print in the format asked for, and tell errors in a sentence."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, NoReturn

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

if TYPE_CHECKING:
    from argparse import Namespace

#: Of a longer text, a table shows the beginning; JSON and YAML show it all.
_WIDEST: Final = 300
#: In levels. Python's YAML calls itself several times for each, and fails at about 330. By default, a publisher refuses
#: payloads of more than 64.
_DEEPEST_IN_YAML: Final = 100


class UsageError(Exception):
    """What was asked for cannot be done as it was asked: the sentence says why, and what to write instead."""


def command(work: Callable[[PawnQueueHook, Namespace], None]) -> Callable[[Namespace], None]:
    """Make a command of Airflow's of a function: what it raises is told in a sentence, and the log is for --verbose."""

    @functools.wraps(work)
    def run(args: Namespace) -> None:
        # Commands are no tasks: a connection may be in the metadata database, as it may for Airflow's own commands.
        os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
        hook = PawnQueueHook(args.conn_id)
        try:
            work(hook, args)
        except TopicNotFoundError as error:
            fail(_no_topic(hook, error))
        except AirflowNotFoundException as error:
            fail(_no_connection(args.conn_id, error))
        except PawnQueueError as error:
            fail(in_airflow(error))
        except (UsageError, AirflowException) as error:
            fail(str(error))
        finally:
            CLIENTS.close()  # not at the end of the process: what that says is for --verbose too

    quiet: Callable[[Namespace], None] = suppress_logs_and_warning(run)
    return quiet


def say(sentence: str) -> None:
    """Tell the user something that is no part of the output."""
    sys.stderr.write(f"{one_line(sentence)}\n")


def fail(*sentences: str) -> NoReturn:
    """Tell what went wrong, and end with exit code 1."""
    for sentence in sentences:
        say(sentence)
    sys.exit(1)


def show(rows: Sequence[Mapping[str, Any]], output: str) -> None:
    """Print rows: numbers stay numbers in JSON and YAML, and in a table each value is a line of text."""
    console = AirflowConsole()
    if output in {"json", "yaml"}:
        # Python's JSON encoder takes every payload that may be published. A function that calls itself does not.
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
            raise TypeError(f"A {type(value).__name__} has no form in JSON")


def _shallow(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Return a value as YAML can show it: what is nested too deeply, as a JSON text."""
    return json.dumps(value, ensure_ascii=False) if is_deeper(value, _DEEPEST_IN_YAML) else value


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
    return one_line(text, _WIDEST)


def _no_topic(hook: PawnQueueHook, error: TopicNotFoundError) -> str:
    try:
        known = hook.list_topics()
    except PawnQueueError:
        known = []
    near = get_close_matches(error.topic or "", known, n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    return (
        f"Topic {error.topic!r} does not exist: `airflow pawnqueue topics` lists those that do, and "
        f"`airflow pawnqueue create-topic {error.topic}` makes it.{meant}"
    )


def _no_connection(conn_id: str, error: AirflowNotFoundException) -> str:
    if conn_id not in str(error) or "not valid JSON" in str(error):
        return str(error)  # of the AWS connection that it borrows, or of a variable that cannot be read
    return (
        f"There is no connection {conn_id!r}: add one of type pawnqueue (`airflow connections add`, or the variable "
        f"AIRFLOW_CONN_{conn_id.upper()}), or name another by --conn-id."
    )

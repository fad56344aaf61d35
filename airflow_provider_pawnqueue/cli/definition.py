"""The commands of ``airflow pawnqueue``. Airflow imports this for every command of its own, so it imports little."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    ARG_YES,
    ActionCommand,
    Arg,
    GroupCommand,
    lazy_load_command,
    positive_int,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_PACKAGE: Final = __name__.rpartition(".")[0]

_CONN_ID = Arg(
    ("--conn-id",),
    help="The connection that says where the queue is (default: pawnqueue_default)",
    default="pawnqueue_default",
)
_TOPIC = Arg(("topic",), help="The name of the topic")
_ONE_TOPIC_OR_ALL = Arg(("topic",), nargs="?", help="The name of the topic; without it, all topics")
_TOPICS = Arg(("topics",), nargs="*", metavar="topic", help="The names of topics; without any, all topics")
_DRY_RUN = Arg(("--dry-run",), help="Change nothing, and print what would be done", action="store_true")
_COMMON = (_CONN_ID, ARG_OUTPUT, ARG_VERBOSE)

_MAX_SHOWN = Arg(
    ("--limit",), help="How many to show at most (default: 10)", type=positive_int(allow_zero=False), default=10
)
_PEEK_DEAD = Arg(("--dead",), help="Show the dead letters, the latest first, with their reasons", action="store_true")

_PAYLOAD = Arg(
    ("payload",),
    nargs="?",
    help="The message, as a JSON object; - reads a JSON object from each line of the standard input",
)
_FILE = Arg(
    ("--file",),
    metavar="PATH",
    help="Read a JSON object from each line of this file; - is the standard input",
    type=str,
)
_PRODUCER = Arg(("--producer",), help="The name of the producer")
_HEADER = Arg(
    ("--header",), help="A header of all messages, as name=value; may be given several times", action="append"
)
_CREATE = Arg(("--create",), help="Create the topic if it does not exist", action="store_true")

_LETTER_IDS = Arg(
    ("--id",),
    dest="ids",
    metavar="ID",
    help="The id of a dead letter or of its message; may be given several times. Without it, all dead letters",
    action="append",
)
_MAX_REDRIVEN = Arg(("--limit",), help="How many to give back at most", type=positive_int(allow_zero=False))

_CLAIM_ID = Arg(("claim_id",), help="The id of the claim, as a task's log and the janitor's report name it")
_CLAIM_MESSAGE_IDS = Arg(
    ("--id",),
    dest="ids",
    metavar="ID",
    help="The id of a message of the claim; may be given several times. Without it, all that are not settled",
    action="append",
)
_DELAY = Arg(("--delay",), help="Do not deliver them again for this many seconds", type=float, default=0.0)
_REQUEUE_REASON = Arg(
    ("--reason",), help="Why; if a message becomes a dead letter later, its reason begins with this", default=""
)
_BURY_REASON = Arg(("--reason",), help="Why; the dead letters keep it as their reason", required=True)

_PURGE_DEAD = Arg(("--dead",), help="Remove the dead letters; with --messages, both", action="store_true")
_PURGE_MESSAGES = Arg(("--messages",), help="Remove the messages; the default without --dead", action="store_true")

_BURIED_AFTER = "Bury a message after this many deliveries without a settlement; `never` for no limit"
_MAX_DELIVERIES = Arg(("--max-deliveries",), metavar="N", help=_BURIED_AFTER, required=True)
_NEW_MAX_DELIVERIES = Arg(("--max-deliveries",), metavar="N", help=f"{_BURIED_AFTER} (default: 10)")
_IF_EXISTS = Arg(
    ("--if-exists",),
    help="Whether a topic that exists with other settings keeps them (the default), or is updated",
    choices=("keep", "update"),
    default="keep",
)
_FORCE = Arg(
    ("--force",), help="Delete a topic that is not empty, with its messages and dead letters", action="store_true"
)

_JANITOR = """Sweep topics once: finish what crashed processes left behind, and remove what is no longer needed.

Only a task can ask Airflow whether a DAG run goes on. So this command leaves claims of DAG runs alone until
they expire: it neither renews them nor ends them early. The janitor DAG does both."""


def _command(module: str, name: str) -> Callable[..., object]:
    command: Callable[..., object] = lazy_load_command(f"{_PACKAGE}.{module}.{name}")
    return command


def get_pawnqueue_cli_commands() -> list[GroupCommand]:
    """Return the commands that Airflow adds to its own."""
    return [
        GroupCommand(
            name="pawnqueue",
            help="Inspect message queues in S3 buckets, and change them",
            subcommands=(
                ActionCommand(
                    name="topics",
                    help="List the topics and their settings",
                    func=_command("looking", "topics"),
                    args=_COMMON,
                ),
                ActionCommand(
                    name="stats",
                    help="Count the messages of one topic, or of all topics",
                    func=_command("looking", "stats"),
                    args=(_ONE_TOPIC_OR_ALL, *_COMMON),
                ),
                ActionCommand(
                    name="peek",
                    help="Show the first messages of a topic, or its dead letters, without claiming them",
                    func=_command("looking", "peek"),
                    args=(_TOPIC, _MAX_SHOWN, _PEEK_DEAD, *_COMMON),
                ),
                ActionCommand(
                    name="publish",
                    help="Publish one message, or one for each line of a file",
                    func=_command("changing", "publish"),
                    args=(_TOPIC, _PAYLOAD, _FILE, _PRODUCER, _HEADER, _CREATE, *_COMMON),
                ),
                ActionCommand(
                    name="requeue",
                    help="Requeue messages of a claim that no task works on any more",
                    func=_command("changing", "requeue"),
                    args=(_TOPIC, _CLAIM_ID, _CLAIM_MESSAGE_IDS, _DELAY, _REQUEUE_REASON, *_COMMON),
                ),
                ActionCommand(
                    name="bury",
                    help="Bury messages of a claim that no task works on any more, as dead letters",
                    func=_command("changing", "bury"),
                    args=(_TOPIC, _CLAIM_ID, _CLAIM_MESSAGE_IDS, _BURY_REASON, *_COMMON),
                ),
                ActionCommand(
                    name="redrive",
                    help="Move dead letters back into their topic",
                    func=_command("changing", "redrive"),
                    args=(_TOPIC, _LETTER_IDS, _MAX_REDRIVEN, _DRY_RUN, *_COMMON),
                ),
                ActionCommand(
                    name="purge",
                    help="Remove the messages of a topic, or its dead letters, but not the topic",
                    func=_command("changing", "purge"),
                    args=(_TOPIC, _PURGE_DEAD, _PURGE_MESSAGES, _DRY_RUN, ARG_YES, *_COMMON),
                ),
                ActionCommand(
                    name="create-topic",
                    help="Create a topic",
                    func=_command("changing", "create_topic"),
                    args=(_TOPIC, _NEW_MAX_DELIVERIES, _IF_EXISTS, *_COMMON),
                ),
                ActionCommand(
                    name="update-topic",
                    help="Change the settings of a topic for all its users",
                    func=_command("changing", "update_topic"),
                    args=(_TOPIC, _MAX_DELIVERIES, *_COMMON),
                ),
                ActionCommand(
                    name="delete-topic",
                    help="Delete an empty topic; with --force, a topic and everything in it",
                    func=_command("changing", "delete_topic"),
                    args=(_TOPIC, _FORCE, _DRY_RUN, ARG_YES, *_COMMON),
                ),
                ActionCommand(
                    name="janitor",
                    help="Sweep topics once; leaves claims of DAG runs alone until they expire",
                    description=_JANITOR,
                    func=_command("changing", "janitor"),
                    args=(_TOPICS, _DRY_RUN, *_COMMON),
                ),
                ActionCommand(
                    name="doctor",
                    help="Check the connection and what the store can do; exit code 1 if something is wrong",
                    func=_command("doctor", "doctor"),
                    args=_COMMON,
                ),
            ),
        )
    ]

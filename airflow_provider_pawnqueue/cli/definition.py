"""The commands of ``airflow pawnqueue``. Airflow imports this for every command of its own: nothing heavy in here."""

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
_ONE_OR_ALL = Arg(("topic",), nargs="?", help="The name of the topic; without it, all topics")
_TOPICS = Arg(("topics",), nargs="*", metavar="topic", help="The names of topics; without any, all topics")
_DRY_RUN = Arg(("--dry-run",), help="Change nothing, and say what would be done", action="store_true")
_COMMON = (_CONN_ID, ARG_OUTPUT, ARG_VERBOSE)

_SHOWN = Arg(
    ("--limit",), help="How many to show at most (default: 10)", type=positive_int(allow_zero=False), default=10
)
_PEEK_DEAD = Arg(("--dead",), help="Show the dead letters, the latest first, and why they are", action="store_true")

_PAYLOAD = Arg(
    ("payload",),
    nargs="?",
    help="A message, as a JSON object; - reads JSON lines from the standard input, a message each",
)
_FILE = Arg(("--file",), metavar="PATH", help="Read JSON lines from this file, a message each; - as above", type=str)
_PRODUCER = Arg(("--producer",), help="Who publishes, by name")
_HEADER = Arg(
    ("--header",), help="A header for all messages, as name=value; may be given several times", action="append"
)
_CREATE = Arg(("--create",), help="Create the topic if it does not exist", action="store_true")

_IDS = Arg(
    ("--id",),
    dest="ids",
    metavar="ID",
    help="A dead letter, by its id or its message's; may be given several times. Without it, all",
    action="append",
)
_MOST = Arg(("--limit",), help="How many to give back at most", type=positive_int(allow_zero=False))

_CLAIM_ID = Arg(("claim_id",), help="The claim, by its id, as a task's log and the janitor's report name it")
_OF_CLAIM = Arg(
    ("--id",),
    dest="ids",
    metavar="ID",
    help="A message of the claim; may be given several times. Without it, all that are not settled",
    action="append",
)
_DELAY = Arg(("--delay",), help="Do not deliver them for this many seconds", type=float, default=0.0)
_REASON = Arg(("--reason",), help="Why; a dead letter begins with it, if it comes to that", default="")
_WHY = Arg(("--reason",), help="Why, for those that look at the dead letter", required=True)

_PURGE_DEAD = Arg(("--dead",), help="Remove the dead letters (and, with --messages, both)", action="store_true")
_PURGE_MESSAGES = Arg(("--messages",), help="Remove the messages: the default without --dead", action="store_true")

_BURIED_AFTER = "Bury a message after this many deliveries without a settlement; `never` for no limit"
_MAX_DELIVERIES = Arg(("--max-deliveries",), metavar="N", help=_BURIED_AFTER, required=True)
_NEW_MAX_DELIVERIES = Arg(("--max-deliveries",), metavar="N", help=f"{_BURIED_AFTER} (default: 10)")
_IF_EXISTS = Arg(
    ("--if-exists",),
    help="What to do with a topic that exists with other settings: keep them (the default), or update them",
    choices=("keep", "update"),
    default="keep",
)
_FORCE = Arg(("--force",), help="Delete its messages and dead letters too", action="store_true")

_JANITOR = """Sweep topics once: finish what crashed processes left, and remove what nobody needs.

Only a task can ask Airflow whether a DAG run goes on, and this is none: claims of DAG runs are left alone
until their time is over, neither renewed nor ended early. The janitor DAG does both."""


def _command(module: str, name: str) -> Callable[..., object]:
    command: Callable[..., object] = lazy_load_command(f"{_PACKAGE}.{module}.{name}")
    return command


def get_pawnqueue_cli_commands() -> list[GroupCommand]:
    """Return what Airflow adds to its own commands."""
    return [
        GroupCommand(
            name="pawnqueue",
            help="Look into message queues in S3 buckets, and work on them",
            subcommands=(
                ActionCommand(
                    name="topics",
                    help="List the topics, and what is set for them",
                    func=_command("looking", "topics"),
                    args=_COMMON,
                ),
                ActionCommand(
                    name="stats",
                    help="Count the messages of a topic, or of all",
                    func=_command("looking", "stats"),
                    args=(_ONE_OR_ALL, *_COMMON),
                ),
                ActionCommand(
                    name="peek",
                    help="Show messages from the head of a topic, or its dead letters, without taking them",
                    func=_command("looking", "peek"),
                    args=(_TOPIC, _SHOWN, _PEEK_DEAD, *_COMMON),
                ),
                ActionCommand(
                    name="publish",
                    help="Publish a message, or one for each line of a file",
                    func=_command("changing", "publish"),
                    args=(_TOPIC, _PAYLOAD, _FILE, _PRODUCER, _HEADER, _CREATE, *_COMMON),
                ),
                ActionCommand(
                    name="requeue",
                    help="Give back messages of a claim that no task works on any more",
                    func=_command("changing", "requeue"),
                    args=(_TOPIC, _CLAIM_ID, _OF_CLAIM, _DELAY, _REASON, *_COMMON),
                ),
                ActionCommand(
                    name="bury",
                    help="Make dead letters of messages of a claim that no task works on any more",
                    func=_command("changing", "bury"),
                    args=(_TOPIC, _CLAIM_ID, _OF_CLAIM, _WHY, *_COMMON),
                ),
                ActionCommand(
                    name="redrive",
                    help="Give dead letters back to their queue",
                    func=_command("changing", "redrive"),
                    args=(_TOPIC, _IDS, _MOST, _DRY_RUN, *_COMMON),
                ),
                ActionCommand(
                    name="purge",
                    help="Remove the messages of a topic, or its dead letters; the topic goes on",
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
                    help="Change the settings of a topic, for all that use it",
                    func=_command("changing", "update_topic"),
                    args=(_TOPIC, _MAX_DELIVERIES, *_COMMON),
                ),
                ActionCommand(
                    name="delete-topic",
                    help="Delete a topic, if it is empty; with --force, with all that is in it",
                    func=_command("changing", "delete_topic"),
                    args=(_TOPIC, _FORCE, _DRY_RUN, ARG_YES, *_COMMON),
                ),
                ActionCommand(
                    name="janitor",
                    help="Sweep topics once; claims of DAG runs are left alone until their time is over",
                    description=_JANITOR,
                    func=_command("changing", "janitor"),
                    args=(_TOPICS, _DRY_RUN, *_COMMON),
                ),
                ActionCommand(
                    name="doctor",
                    help="Say what the store can do, and what is wrong: exit code 1 if something is",
                    func=_command("doctor", "doctor"),
                    args=_COMMON,
                ),
            ),
        )
    ]

"""The commands of ``airflow pawnqueue``. Airflow imports this for every command of its own, so it imports little."""

from __future__ import annotations

from typing import Final

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

_PACKAGE: Final = __name__.rpartition(".")[0]


def _ids(help_text: str) -> Arg:
    return Arg(("--id",), dest="ids", metavar="ID", help=help_text, action="append")


_CONN_ID = Arg(
    ("--conn-id",),
    help="The connection that says where the queue is (default: pawnqueue_default)",
    default="pawnqueue_default",
)
_TOPIC = Arg(("topic",), help="The name of the topic")
_ONE_TOPIC_OR_ALL = Arg(("topic",), nargs="?", help="The name of the topic; without it, all topics")
_TOPICS = Arg(("topics",), nargs="*", metavar="topic", help="The names of topics; without any, all topics")
_DRY_RUN = Arg(("--dry-run",), help="Change nothing, and print what would be done", action="store_true")

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

_LETTER_IDS = _ids(
    "The id of a dead letter or of its message; may be given several times. Without it, all dead letters"
)
_MAX_REDRIVEN = Arg(("--limit",), help="How many to give back at most", type=positive_int(allow_zero=False))
_REDRIVE_REASON = Arg(
    ("--reason",),
    help="Only those buried for this reason, or one that begins with it; a * in it means any text",
)
_OLDER_THAN = Arg(
    ("--older-than",), metavar="SECONDS", help="Only those buried at least this many seconds ago", type=float
)
_YOUNGER_THAN = Arg(
    ("--younger-than",), metavar="SECONDS", help="Only those buried less than this many seconds ago", type=float
)
_PER_SECOND = Arg(("--per-second",), metavar="N", help="How many to give back a second at most", type=float)
_MISSING_OK = Arg(
    ("--missing-ok",),
    help="Leave out ids that have no dead letter: to go on where a redrive of these ids was cut off",
    action="store_true",
)

_CLAIM_ID = Arg(("claim_id",), help="The id of the claim, as a task's log and the janitor's report name it")
_CLAIM_MESSAGE_IDS = _ids(
    "The id of a message of the claim; may be given several times. Without it, all that are not settled"
)
_DELAY = Arg(("--delay",), help="Do not deliver them again for this many seconds", type=float, default=0.0)
_REQUEUE_REASON = Arg(
    ("--reason",), help="Why; if a message becomes a dead letter later, its reason begins with this", default=""
)
_BURY_REASON = Arg(("--reason",), help="Why; the dead letters keep it as their reason", required=True)

_PURGE_DEAD = Arg(("--dead",), help="Remove the dead letters; with --messages, both", action="store_true")
_PURGE_MESSAGES = Arg(("--messages",), help="Remove the messages; the default without --dead", action="store_true")

_BURIED_AFTER = "Bury a message after this many deliveries without a settlement; `never` for no limit"
_MAX_DELIVERIES = Arg(("--max-deliveries",), metavar="N", help=_BURIED_AFTER)
_NEW_MAX_DELIVERIES = Arg(("--max-deliveries",), metavar="N", help=f"{_BURIED_AFTER} (default: 10)")
_ALLOW_PACKS = "Whether many messages that are published at once become packs, which pawn-queue's consumers do not see"
_PACKS = Arg(("--packs",), help=_ALLOW_PACKS, choices=("yes", "no"))
_NEW_PACKS = Arg(("--packs",), help=f"{_ALLOW_PACKS} (default: yes)", choices=("yes", "no"))
_MAX_PENDING = Arg(
    ("--max-pending",),
    metavar="N",
    help="How many messages that are not finished the topic may have; publishing more is held up; `never` for no limit",
)
_OVERLOAD = Arg(
    ("--overload",), help="Whether publishing more raises an error, or waits for room", choices=("raise", "block")
)
_OVERLOAD_TIMEOUT = Arg(
    ("--overload-timeout",), metavar="SECONDS", help="For how long publishing waits for room at most", type=float
)
_MAX_AGE = Arg(
    ("--max-age",),
    metavar="SECONDS",
    help="Bury a message that was published longer ago than this, and hand it out to nobody; `never` for no limit",
)
_LIMITS = (_MAX_PENDING, _OVERLOAD, _OVERLOAD_TIMEOUT, _MAX_AGE)
_PRIORITIES = Arg(("--priorities",), help="Whether messages may be published with a priority", choices=("yes", "no"))
_DELAYS = Arg(("--delays",), help="Whether messages may be published with a delay", choices=("yes", "no"))
_PUBLISHED_DELAY = Arg(("--delay",), help="Give the messages to nobody for this many seconds", type=float)
_PRIORITY = Arg(("--priority",), help="From -9 to 9; higher ones come first", type=int, default=0)
_COMPLETED = Arg(
    ("--completed",),
    metavar="LOG",
    help="Whether what is acked is logged: on, off, or max_count=N, max_age_seconds=N and payloads, with commas "
    "between them",
)
_DEAD_LETTERS = Arg(
    ("--dead-letters",),
    metavar="LIMITS",
    help="Which dead letters the janitor removes, after a warning: max_age_seconds=N, max_count=N, or both, with a "
    "comma between them, and notice_seconds=N; `off` keeps all of them (the default)",
)
_DEDUP_KEY = Arg(
    ("--dedup-key",), help="Do not publish the message if one with this key was published within the topic's window"
)
_PACK = Arg(
    ("--pack",),
    help="Whether to publish packs; auto (the default): many messages, if the topic allows packs",
    choices=("auto", "yes", "no"),
    default="auto",
)
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


def _command(module: str, function: str, help_text: str, *args: Arg, description: str | None = None) -> ActionCommand:
    """Return the command of a function, whose module is imported only when the command runs."""
    return ActionCommand(
        name=function.replace("_", "-"),
        help=help_text,
        description=description,
        func=lazy_load_command(f"{_PACKAGE}.{module}.{function}"),
        args=(*args, _CONN_ID, ARG_OUTPUT, ARG_VERBOSE),
    )


COMMANDS: Final = (
    _command("looking", "topics", "List the topics and their settings"),
    _command("looking", "stats", "Count the messages of one topic, or of all topics", _ONE_TOPIC_OR_ALL),
    _command(
        "looking",
        "peek",
        "Show the first messages of a topic, or its dead letters, without claiming them",
        *(_TOPIC, _MAX_SHOWN, _PEEK_DEAD),
    ),
    _command(
        "looking",
        "completed",
        "Show what was acked, by which consumer and when, the latest claims first, if the topic has a log",
        *(_TOPIC, _MAX_SHOWN),
    ),
    _command(
        "changing",
        "publish",
        "Publish one message, or one for each line of a file",
        *(_TOPIC, _PAYLOAD, _FILE, _PRODUCER, _HEADER, _CREATE, _PUBLISHED_DELAY, _PRIORITY, _DEDUP_KEY, _PACK),
    ),
    _command(
        "changing",
        "requeue",
        "Requeue messages of a claim that no task works on any more",
        *(_TOPIC, _CLAIM_ID, _CLAIM_MESSAGE_IDS, _DELAY, _REQUEUE_REASON),
    ),
    _command(
        "changing",
        "bury",
        "Bury messages of a claim that no task works on any more, as dead letters",
        *(_TOPIC, _CLAIM_ID, _CLAIM_MESSAGE_IDS, _BURY_REASON),
    ),
    _command(
        "changing",
        "redrive",
        "Move dead letters back into their topic",
        *(_TOPIC, _LETTER_IDS, _REDRIVE_REASON, _OLDER_THAN, _YOUNGER_THAN),
        *(_MAX_REDRIVEN, _PER_SECOND, _MISSING_OK, _DRY_RUN),
    ),
    _command(
        "changing",
        "purge",
        "Remove the messages of a topic, or its dead letters, but not the topic",
        *(_TOPIC, _PURGE_DEAD, _PURGE_MESSAGES, _DRY_RUN, ARG_YES),
    ),
    _command(
        "changing",
        "create_topic",
        "Create a topic",
        *(_TOPIC, _NEW_MAX_DELIVERIES, _NEW_PACKS, *_LIMITS, _PRIORITIES, _DELAYS, _COMPLETED, _DEAD_LETTERS),
        _IF_EXISTS,
    ),
    _command(
        "changing",
        "update_topic",
        "Change the settings of a topic for all its users",
        *(_TOPIC, _MAX_DELIVERIES, _PACKS, *_LIMITS, _PRIORITIES, _DELAYS, _COMPLETED, _DEAD_LETTERS),
    ),
    _command("changing", "pause", "Pause a topic: nobody is given its messages until it is resumed", _TOPIC),
    _command("changing", "resume", "Resume a paused topic", _TOPIC),
    _command(
        "changing",
        "delete_topic",
        "Delete an empty topic; with --force, a topic and everything in it",
        *(_TOPIC, _FORCE, _DRY_RUN, ARG_YES),
    ),
    _command(
        "changing",
        "janitor",
        "Sweep topics once; leaves claims of DAG runs alone until they expire",
        *(_TOPICS, _DRY_RUN),
        description=_JANITOR,
    ),
    _command("doctor", "doctor", "Check the connection and what the store can do; exit code 1 if something is wrong"),
)


def get_pawnqueue_cli_commands() -> list[GroupCommand]:
    """Return the commands that Airflow adds to its own."""
    group_help = "Inspect message queues in S3 buckets, and change them"
    return [GroupCommand(name="pawnqueue", help=group_help, subcommands=COMMANDS)]

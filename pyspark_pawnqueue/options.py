"""Spark's options, checked: what is to be read or written, and where the queue is."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Literal

from pawnqueue import ClaimReference, ConfigError, InvalidArgumentError, PawnQueueError, Settings
from pawnqueue.settings.short_names import names_of_settings, nest_by_path
from pyspark_pawnqueue.job import CLAIM_VARIABLE, CONNECTION_VARIABLE, MARKER

#: Ours: for what each is, and what it means, as the reference tells it. Spark hands all over in small letters.
NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "claim": ("read", "A reference as JSON, or a list of them; without it, what the job was submitted for."),
    "topic": ("peek, stream, write", "The topic's name."),
    "mode": ("peek", "`peek`: the messages that are in the topic, whoever has them; `dead`: its dead letters."),
    "payloadSchema": ("read, peek, stream", "Columns to take out of the payload, as Spark writes schemas."),
    "partitions": ("read, peek, stream", "How many, at most; without it, as many as the sizes are worth."),
    "maxMessages": ("peek", "How many messages, from the head; without it, all."),
    "maxMessagesPerBatch": ("stream", "How many messages a micro-batch has, at most; without it, 10,000."),
    "consumer": ("stream", "The name of who claims; without it, `spark`."),
    "ttl": ("stream", "For how many seconds a claim is kept by a renewal; without it, 300."),
    "writeId": (
        "batch write",
        "The name of the write, which is done once; without it, a new one each time.",
    ),
    "allowEmpty": (
        "batch write",
        "`true`: rows whose `writeId` was committed before, without rows, are left out; without it, that is an error.",
    ),
    "producer": ("write", "The name of who publishes; without it, nobody is named."),
    "connection": (
        "all",
        "The path of a YAML file with settings; without it, the operator's, or `PAWNQUEUE_*`.",
    ),
}
#: What a query does with the queue, in the words that say above what an option is for, and in those of a sentence.
Use = Literal["read", "peek", "stream", "batch write", "stream write"]
_USES: Final[Mapping[str, str]] = {
    "read": "reading a claim",
    "peek": "looking at a topic",
    "stream": "a stream that claims",
    "batch write": "writing a DataFrame",
    "stream write": "writing a stream",
    "write": "writing",
}
#: What to do instead, where that is not to leave the option out.
_INSTEAD: Final[Mapping[tuple[str, str], str]] = {
    ("mode", "read"): 'leave it out, or name a topic by .option("topic", "orders")',
    ("maxMessages", "read"): "leave it out, as a claim is read as a whole",
    ("maxMessages", "stream"): "say by maxMessagesPerBatch how many messages a micro-batch has",
    ("maxMessagesPerBatch", "peek"): "say by maxMessages how many messages are looked at",
    ("claim", "stream"): "leave it out, and name a topic, from which the stream claims by itself",
    ("writeId", "stream write"): "leave it out, as a stream makes the ids of its writes of its checkpoint, so that a "
    "restart publishes nothing twice",
}
#: What Spark, or a user who means another part of the query, puts beside them.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})
#: By this name Spark's catalog says that the options are those of a table; each of them comes twice, once with this in
#: front, and beside them whatever the catalog notes of the table.
_CATALOG: Final = "provider"
_OF_TABLE: Final = "option."
_PEEK, _DEAD = "peek", "dead"


class PawnQueueSparkError(RuntimeError):
    """An error as Spark tells it: its sentence, behind a mark by which it is found among the stacks of Java.

    :when: a query of the format ``pawnqueue`` is planned, read, written or committed; ``confirm``.
    :done: what is said of the error whose sentence it has.
    :remedy: as with that error.
    """


@contextmanager
def told() -> Iterator[None]:
    """Have errors of the queue come out of Spark as one sentence, without the stack of those that were caught."""
    try:
        yield
    except PawnQueueError as error:
        raise PawnQueueSparkError(f"{MARKER}{error}") from None


@dataclass(frozen=True, slots=True)
class Options:
    """What a reader or a writer was told."""

    given: Mapping[str, str]
    """All of them, by names in small letters."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """Check the names.

        :raises InvalidArgumentError: one of them is no option, nor the name of a setting.
        """
        known = {name.lower(): name for name in NAMES} | {name: name for name in names_of_settings()}
        options = {name.lower(): value for name, value in given.items() if name.lower() not in _OF_SPARK}
        if _CATALOG in options:
            of_table = {name: value for name, value in options.items() if name.startswith(_OF_TABLE)}
            of_query = {name: value for name, value in options.items() if name in known}
            options = {name.removeprefix(_OF_TABLE): value for name, value in of_table.items()} | of_query
        if "path" in options:
            raise _wrong(
                f"The format pawnqueue takes no path ({options['path']!r}): name a claim or a topic by an option, "
                '.option("topic", "orders"), and call load() or save() without one.'
            )
        for name in options:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f": did you mean {known[near[0]]!r}?" if near else f"; there are {', '.join(NAMES)}."
                raise _wrong(f"{name!r} is no option of the format pawnqueue, nor a setting{hint}")
        return cls(options)

    def check_use(self, use: Use) -> None:
        """Refuse options that mean nothing to what a query does.

        :raises InvalidArgumentError: one of them is for something else.
        """
        for name, (used_for, _) in NAMES.items():
            meant = used_for.split(", ")
            if name.lower() in self.given and not {use, use.rpartition(" ")[2], "all"} & set(meant):
                words = " or ".join(_USES[each] for each in meant)
                instead = _INSTEAD.get((name, use), "leave it out")
                raise _wrong(f"The option {name} is for {words}, and this is {_USES[use]}: {instead}.")
        if "allowempty" in self.given and self.write_id is None:
            raise _wrong(
                "The option allowEmpty is for a write with a writeId, and this one has none: name the write by "
                '.option("writeId", name), or leave allowEmpty out.'
            )

    # --- where the queue is ---

    def settings(self) -> Settings:
        """Return the settings: options by their names, over the connection's file, or over the environment.

        Read where the query is planned, and taken along to the executors.
        """
        names = names_of_settings()
        chosen: dict[str, str] = {}
        for name in self.given:
            if name not in names:
                continue
            other = chosen.setdefault(names[name], name)
            if self.given[other] != self.given[name]:
                raise _wrong(f"The options {other!r} and {name!r} are one setting, and differ: leave one of them out.")
        explicit = nest_by_path({path: self.given[name] for path, name in chosen.items()})
        path = self.given.get("connection") or os.environ.get(CONNECTION_VARIABLE)
        if path:
            try:
                return Settings.from_yaml(path, environ={}, **explicit)
            except ConfigError as error:
                raise ConfigError(f"{error} (It was named by the option connection.)", operation="configure") from None
        try:
            return Settings.from_env(**explicit)
        except ConfigError as error:
            raise ConfigError(
                f"{str(error).rstrip('.')}. Where the queue is, a job is told by options "
                '(.option("s3.bucket_name", "queues")), by a file (.option("connection", "queue.yaml")), or by '
                "PAWNQUEUE_* variables.",
                operation="configure",
            ) from None

    # --- what is read ---

    @property
    def has_claim(self) -> bool:
        """Say whether a claim is to be read, rather than a topic looked at."""
        if "claim" in self.given and "topic" in self.given:
            raise _wrong("A claim has its topic: give the option claim or the option topic, not both.")
        if "claim" not in self.given and "topic" not in self.given and not os.environ.get(CLAIM_VARIABLE):
            raise _wrong(
                'Nothing was named to be read: .option("claim", reference) for the messages of a claim, or '
                '.option("topic", "orders").option("mode", "peek") to look at those of a topic.'
            )
        return "topic" not in self.given

    def claims(self) -> list[ClaimReference]:
        """Return the claims that are to be read, each once; without the option, those that the job was submitted for.

        ⚑ A claim that is named twice is read once: its messages are not to be worked on twice.
        """
        given = references(self.given.get("claim") or os.environ.get(CLAIM_VARIABLE, ""))
        return list({(claim.topic, claim.claim_id, claim.generation): claim for claim in given}.values())

    @property
    def topic(self) -> str:
        """The topic that is looked at, streamed from, or written to."""
        if not self.given.get("topic"):
            raise _wrong('Name the topic: .option("topic", "orders").')
        return self.given["topic"]

    def is_dead(self) -> bool:
        """Say whether dead letters are meant."""
        mode = self.given.get("mode", "")
        if mode not in (_PEEK, _DEAD):
            said = f"mode={mode!r} is none" if mode else "a topic is read without claiming"
            raise _wrong(
                f'{said[0].upper()}{said[1:]}: .option("mode", "peek") shows the messages that are in it, whoever has '
                'them, and .option("mode", "dead") its dead letters; to claim, use a stream, or the option claim.'
            )
        return mode == _DEAD

    @property
    def shows_dead(self) -> bool:
        """Whether the rows are dead letters, as far as the options tell before they are all checked."""
        return self.given.get("mode") == _DEAD

    @property
    def payload_schema(self) -> str:
        """The columns that are parsed out of the payloads, as Spark writes schemas; empty: none."""
        return self.given.get("payloadschema", "").strip()

    @property
    def partitions(self) -> int | None:
        """Into how many partitions it is cut, if that was said."""
        return self._count("partitions")

    @property
    def max_messages(self) -> int | None:
        """How many messages are looked at, at most."""
        return self._count("maxMessages")

    # --- streams, and what is written ---

    @property
    def max_messages_per_batch(self) -> int | None:
        """How many messages a micro-batch has, at most."""
        return self._count("maxMessagesPerBatch")

    @property
    def consumer(self) -> str:
        """The name of who claims."""
        return self.given.get("consumer") or "spark"

    @property
    def producer(self) -> str | None:
        """The name of who publishes."""
        return self.given.get("producer") or None

    @property
    def ttl(self) -> float | None:
        """For how many seconds a claim is kept by a renewal."""
        text = self.given.get("ttl")
        if text is None:
            return None
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise _wrong(f"ttl={text!r}: pass a number of seconds, more than 0.")
        return seconds

    @property
    def write_id(self) -> str | None:
        """By which a write that is tried again is known."""
        return self.given.get("writeid") or None

    @property
    def allows_empty(self) -> bool:
        """Whether a write that was done without rows may have rows the next time, which are left out."""
        text = self.given.get("allowempty", "false").lower()
        if text not in ("true", "false"):
            raise _wrong(f"allowEmpty={self.given['allowempty']!r}: pass true or false.")
        return text == "true"

    def _count(self, name: str) -> int | None:
        text = self.given.get(name.lower())
        if text is None:
            return None
        try:
            count = int(text)
        except ValueError:
            count = 0
        if count < 1:
            raise _wrong(f"{name}={text!r}: pass a whole number of at least 1.")
        return count


def references(text: str) -> list[ClaimReference]:
    """Read a claim, or several of them, from JSON.

    :raises InvalidArgumentError: it is none.
    """
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        raise _wrong(
            f"The claim is no JSON ({_shown(text)}): pass json.dumps(reference), where the reference is what the "
            "sensor returned, or claim.hand_over().to_dict()."
        ) from None
    return [ClaimReference.of(each) for each in (read if isinstance(read, list) else [read])]


def _wrong(sentence: str) -> InvalidArgumentError:
    return InvalidArgumentError(sentence, operation="spark")


def _shown(text: Any) -> str:  # noqa: ANN401 - whatever was passed
    shown = repr(text)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"  # noqa: PLR2004 - as much as fits in a sentence

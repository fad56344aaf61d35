"""The options of a query, checked: what it reads or writes, and where the queue is."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Literal

from pawnqueue import ClaimReference, ConfigError, Settings
from pawnqueue.settings.short_names import names_of_settings, nest_by_path
from pyspark_pawnqueue.job_environment import CLAIM_VARIABLE, CONNECTION_VARIABLE
from pyspark_pawnqueue.spark_errors import invalid_argument, shorten

#: Each option: the uses that it applies to, and its text in the reference.
OPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "claim": (
        "read",
        "A claim reference as JSON, or a list of them. Default: the claim that the job was submitted for.",
    ),
    "topic": ("peek, stream, write", "The topic's name."),
    "mode": ("peek", "`peek` reads all messages of the topic, claimed or not. `dead` reads its dead letters."),
    "payloadSchema": ("read, peek, stream", "Columns to parse out of the payload, in Spark's schema syntax."),
    "inferSchema": (
        "read, peek, stream",
        "`true`: the columns are those of the first messages, which are read when the query is planned.",
    ),
    "samplingMessages": ("read, peek, stream", "How many messages `inferSchema` looks at. Default: 1,000."),
    "columnNameOfCorruptRecord": (
        "read, peek, stream",
        "A string column for the payload's text where something in it did not fit; null in other rows.",
    ),
    "rescuedDataColumn": (
        "read, peek, stream",
        "A string column for the fields that have no column, or do not fit theirs, as a JSON object; null if none.",
    ),
    "partitions": ("read, peek, stream", "The most partitions. Default: as many as the sizes of the messages need."),
    "maxMessages": ("peek", "The most of the selected messages to read, from the head of the topic. Default: all."),
    "createdAfter": (
        "peek",
        "Messages created at this time or later, as `2026-03-01T12:00:00Z`. Without a zone it is UTC.",
    ),
    "createdBefore": ("peek", "Messages that were created before this time."),
    "buriedAfter": ("peek", "Dead letters that were buried at this time or later. Older ones are not fetched."),
    "buriedBefore": ("peek", "Dead letters that were buried before this time."),
    "reason": (
        "peek",
        "Dead letters whose reason is this, or begins with it, as `redrive` takes it. Of others no body is fetched.",
    ),
    "letterIds": (
        "peek",
        "Dead letters with these ids (`letter_id`, not the message's `id`), with commas. Others are not fetched.",
    ),
    "maxMessagesPerBatch": ("stream", "The most messages in a micro-batch. Default: 10,000."),
    "maxBytesPerBatch": (
        "stream",
        "The most bytes in a micro-batch: those of objects, and of a pack's lines. A larger message comes alone.",
    ),
    "minMessagesPerBatch": (
        "stream",
        "Wait for this many messages, or for `maxDelay`. The triggers `availableNow` and `once` do not wait.",
    ),
    "maxDelay": (
        "stream",
        "With `minMessagesPerBatch`: how many seconds the oldest message waits for others at most. Default: 900.",
    ),
    "consumer": ("stream", "The name of the consumer. Default: `spark`."),
    "ttl": ("stream", "For how many seconds a renewal keeps a claim. Default: 300."),
    "writeId": ("batch write", "The name of the write. A name is published once. Default: a new name each time."),
    "allowEmpty": (
        "batch write",
        "`true`: if this `writeId` was committed without rows before, the rows are left out. Default: an error.",
    ),
    "producer": ("write", "The name of the producer. Default: the messages name none."),
    "connection": (
        "all",
        "The path of a YAML file with settings. Default: the submit operator's file, or the `PAWNQUEUE_*` variables.",
    ),
}
#: What a query does with the queue: the word in the table above, and the words in an error.
Use = Literal["read", "peek", "stream", "batch write", "stream write"]
_USES: Final[Mapping[str, str]] = {
    "read": "reading a claim",
    "peek": "looking at a topic",
    "stream": "reading a stream",
    "batch write": "writing a DataFrame",
    "stream write": "writing a stream",
    "write": "writing",
}
#: What to do about a misplaced option, where leaving it out is not enough.
_REMEDIES: Final[Mapping[tuple[str, str], str]] = {
    ("mode", "read"): 'leave it out, or name a topic by .option("topic", "orders")',
    ("maxMessages", "read"): "leave it out, as a claim is read as a whole",
    ("maxMessages", "stream"): "limit the messages of a micro-batch by maxMessagesPerBatch",
    ("maxMessagesPerBatch", "peek"): "limit the messages by maxMessages",
    ("claim", "stream"): "leave it out, and name a topic, from which the stream claims by itself",
    ("writeId", "stream write"): "leave it out, as a stream derives the ids of its writes from its checkpoint, so that "
    "a restart publishes nothing twice",
}
#: Options of other parts of a query, which Spark or users pass to every part.
_SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})
#: If this option is present, Spark's catalog passes the options of a table: each of them twice, once with the prefix
#: below, and beside them whatever the catalog stores about the table.
_CATALOG_MARK: Final = "provider"
_TABLE_PREFIX: Final = "option."
_PEEK, _DEAD = "peek", "dead"


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The options of a reader or a writer."""

    given: Mapping[str, str]
    """All of them, by their names in lower case, as Spark passes them."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SparkOptions:
        """Check the names.

        :raises InvalidArgumentError: one of them is neither an option nor the name of a setting.
        """
        known = {name.lower(): name for name in OPTIONS} | {name: name for name in names_of_settings()}
        options = {name.lower(): value for name, value in given.items() if name.lower() not in _SPARK_OPTIONS}
        if _CATALOG_MARK in options:
            of_table = {name: value for name, value in options.items() if name.startswith(_TABLE_PREFIX)}
            of_query = {name: value for name, value in options.items() if name in known}
            options = {name.removeprefix(_TABLE_PREFIX): value for name, value in of_table.items()} | of_query
        if "path" in options:
            raise invalid_argument(
                f"The format pawnqueue takes no path ({options['path']!r}): name a claim or a topic by an option, "
                '.option("topic", "orders"), and call load() or save() without a path.'
            )
        for name in options:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"did you mean {known[near[0]]!r}?" if near else f"the options are {', '.join(OPTIONS)}."
                raise invalid_argument(f"{name!r} is neither an option of the format pawnqueue nor a setting: {hint}")
        return cls(options)

    def check_use(self, use: Use) -> None:
        """Refuse options that do not apply to what the query does.

        :raises InvalidArgumentError: one of them is for something else.
        """
        for name, (uses, _) in OPTIONS.items():
            allowed = uses.split(", ")
            if name.lower() in self.given and not {use, use.rpartition(" ")[2], "all"} & set(allowed):
                words = " or ".join(_USES[each] for each in allowed)
                remedy = _REMEDIES.get((name, use), "leave it out")
                raise invalid_argument(f"The option {name} is for {words}, and this query is {_USES[use]}: {remedy}.")
        if "allowempty" in self.given and self.text("writeId") is None:
            raise invalid_argument(
                "The option allowEmpty needs the option writeId, which is missing: name the write by "
                '.option("writeId", name), or leave allowEmpty out.'
            )

    # --- where the queue is ---

    def settings(self) -> Settings:
        """Return the settings: those among the options, and the rest from the connection's file or the environment.

        The process that plans the query reads them. The executors receive them from there.
        """
        names = names_of_settings()
        chosen: dict[str, str] = {}
        for name in self.given:
            if name not in names:
                continue
            other = chosen.setdefault(names[name], name)
            if self.given[other] != self.given[name]:
                raise invalid_argument(
                    f"The options {other!r} and {name!r} are the same setting with different values: leave one out."
                )
        explicit = nest_by_path({path: self.given[name] for path, name in chosen.items()})
        path = self.given.get("connection") or os.environ.get(CONNECTION_VARIABLE)
        try:
            return Settings.from_yaml(path, environ={}, **explicit) if path else Settings.from_env(**explicit)
        except ConfigError as error:
            hint = f"{error} (The option connection names this file.)"
            if not path:
                hint = (
                    f"{str(error).rstrip('.')}. Tell the job where the queue is: by options "
                    '(.option("s3.bucket_name", "queues")), by a file (.option("connection", "queue.yaml")), or by '
                    "PAWNQUEUE_* variables."
                )
            raise ConfigError(hint, operation="configure") from None

    # --- what is read ---

    @property
    def has_claim(self) -> bool:
        """Whether the query reads a claim. Otherwise it looks at a topic."""
        if "claim" in self.given and "topic" in self.given:
            raise invalid_argument("A claim knows its topic: give the option claim or the option topic, not both.")
        if "claim" not in self.given and "topic" not in self.given and not os.environ.get(CLAIM_VARIABLE):
            if "mode" in self.given:
                _ = self.topic  # raises, as a mode is for topics alone
            raise invalid_argument(
                'The query does not say what to read: .option("claim", reference) reads the messages of a claim, and '
                '.option("topic", "orders").option("mode", "peek") looks at those of a topic.'
            )
        return "topic" not in self.given

    def claims(self) -> list[ClaimReference]:
        """Return the claims to read. Without the option, these are the claims that the job was submitted for.

        ⚑ A claim that is named twice is read once, so that its messages are not worked on twice.
        """
        given = read_references(self.given.get("claim") or os.environ.get(CLAIM_VARIABLE, ""))
        return list({(claim.topic, claim.claim_id, claim.generation): claim for claim in given}.values())

    @property
    def topic(self) -> str:
        """The topic that the query looks at, streams from, or writes to."""
        if (topic := self.text("topic")) is None:
            raise invalid_argument('The topic is missing: name it by .option("topic", "orders").')
        return topic

    @property
    def is_dead_mode(self) -> bool:
        """Whether the mode asks for dead letters. Any other mode counts as no, a misspelt one too."""
        return self.given.get("mode") == _DEAD

    def reads_dead_letters(self) -> bool:
        """Return whether the query looks at dead letters.

        :raises InvalidArgumentError: the mode is missing or misspelt.
        """
        mode = self.given.get("mode", "")
        if mode not in (_PEEK, _DEAD):
            problem = f"mode={mode!r} is not a mode" if mode else "A query of a topic needs the option mode"
            raise invalid_argument(
                f'{problem}: .option("mode", "peek") reads all messages of the topic, claimed or not, and '
                '.option("mode", "dead") its dead letters. To claim messages, use a stream, or the option claim.'
            )
        return mode == _DEAD

    @property
    def payload_schema(self) -> str:
        """The columns to parse out of the payloads, in Spark's schema syntax; empty for none."""
        return self.given.get("payloadschema", "").strip()

    @property
    def infers_schema(self) -> bool:
        """Whether the columns of the payload are taken from a sample of the messages.

        :raises InvalidArgumentError: they are given as well, or the size of a sample is given without one.
        """
        infers = self._flag("inferSchema")
        if infers and self.payload_schema:
            raise invalid_argument(
                "The query has both of the options inferSchema and payloadSchema: leave out one of them."
            )
        if not infers and self.text("samplingMessages") is not None:
            raise invalid_argument(
                'The option samplingMessages needs .option("inferSchema", "true"): add that, or leave both out.'
            )
        return infers

    # --- streams and writes ---

    @property
    def allows_empty(self) -> bool:
        """Whether a write that was committed without rows may have rows the next time, which are left out."""
        return self._flag("allowEmpty")

    def _flag(self, name: str) -> bool:
        text = self.given.get(name.lower(), "false").lower()
        if text not in ("true", "false"):
            raise invalid_argument(f"{name}={self.given[name.lower()]!r}: pass true or false.")
        return text == "true"

    def text(self, name: str) -> str | None:
        """Return the value of an option, or None if it is missing or empty."""
        return self.given.get(name.lower()) or None

    def seconds(self, name: str) -> float | None:
        """Return the value of an option as a number of seconds, or None if it is missing.

        :raises InvalidArgumentError: it is not a number that is more than 0.
        """
        text = self.given.get(name.lower())
        if text is None:
            return None
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise invalid_argument(f"{name}={text!r}: pass a number of seconds, more than 0.")
        return seconds

    def count(self, name: str) -> int | None:
        """Return the value of an option as a whole number, or None if it is missing.

        :raises InvalidArgumentError: it is not a whole number of at least 1.
        """
        text = self.given.get(name.lower())
        if text is None:
            return None
        try:
            count = int(text)
        except ValueError:
            count = 0
        if count < 1:
            raise invalid_argument(f"{name}={text!r}: pass a whole number of at least 1.")
        return count


def read_references(text: str) -> list[ClaimReference]:
    """Return the claim, or the claims, that a JSON text names.

    :raises InvalidArgumentError: the text is not a claim reference.
    """
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        raise invalid_argument(
            f"The claim is not JSON ({shorten(text)}): pass json.dumps(reference), where the reference is what the "
            "sensor returned, or claim.hand_over().to_dict()."
        ) from None
    return [ClaimReference.of(each) for each in (read if isinstance(read, list) else [read])]

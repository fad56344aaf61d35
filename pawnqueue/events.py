"""What happens in a queue, as events. The log is written from them, and ``on_event`` receives them.

There is one logger for each subject, below ``pawnqueue``. To follow a message, read ``pawnqueue.claims`` and
``pawnqueue.dead_letters`` at INFO, or all of it at DEBUG. No event contains a payload or a secret.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, dataclass_transform

from pawnqueue.errors import InvalidArgumentError

Subject: TypeAlias = Literal[
    "queue", "topics", "publish", "claims", "listening", "dead_letters", "janitor", "store", "registry"
]
E = TypeVar("E")

#: How many ids a sentence names.
MAX_LOGGED_IDS = 5
#: How much of a dead letter's reason a sentence has, and how long a line of the log is: others write reasons and ids.
MAX_LOGGED_REASON_CHARACTERS = 200
MAX_LINE_CHARACTERS = 4000
NO_COROUTINE = "for an async one, let a plain one put the event into an asyncio.Queue."


def one_line(text: str, longest: int = MAX_LINE_CHARACTERS) -> str:
    """Return the text with control characters escaped, and cut: it contains ids and names that others have chosen."""
    shown = text if len(text) <= longest else f"{text[:longest]}…"
    return shown if shown.isprintable() else "".join(map(_printable, shown))


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


class _OneLine(logging.Filter):
    """Keeps each message of a log to one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten the message if need be, and let every record pass."""
        text = record.getMessage()
        if (line := one_line(text)) != text:
            record.msg, record.args = line, None
        return True


_ONE_LINE = _OneLine()


def logger_of(subject: Subject) -> logging.Logger:
    """Return the logger of a subject. Each of its messages is one line."""
    logger = logging.getLogger(f"pawnqueue.{subject}")
    logger.addFilter(_ONE_LINE)  # logging adds the same filter only once
    return logger


class _Words(Formatter):
    """Fills a template with an event's fields. ``{count:message}`` counts, and ``{ids:message}`` counts and lists."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401, ARG002 - as Formatter has it
        """Return the event's field or property of this name."""
        return getattr(args[0], str(key))

    def format_field(self, value: Any, format_spec: str) -> str:  # noqa: ANN401 - as Formatter has it
        """Count messages, or show the value."""
        if isinstance(value, tuple):
            more = ", …" if len(value) > MAX_LOGGED_IDS else ""
            return f"{self.format_field(len(value), format_spec)} ({', '.join(value[:MAX_LOGGED_IDS])}{more})"
        if isinstance(value, int) and len(format_spec) > 1:
            return f"{value} {format_spec}" if value == 1 else f"{value} {format_spec}s"
        return format(value, format_spec)


_WORDS = _Words()


@dataclass_transform(frozen_default=True, kw_only_default=True)
def _event(kind: type[E]) -> type[E]:
    return dataclass(frozen=True, slots=True, kw_only=True)(kind)


@_event
class Event:
    """Something that happened. :meth:`sentence` says it in one line."""

    subject: ClassVar[Subject] = "queue"
    level: ClassVar[int] = logging.DEBUG
    template: ClassVar[str] = ""

    def sentence(self) -> str:
        """Say what happened."""
        return _WORDS.vformat(self.template, (self,), {})


@_event
class _OfTopic(Event):
    topic: str
    """The topic."""


@_event
class _OfWrite(_OfTopic):
    subject = "publish"

    write_id: str
    """The write's id."""
    count: int
    """How many messages it has."""


@_event
class _OfClaim(_OfTopic):
    subject = "claims"

    claim: str
    """The claim, by its id and generation."""


@_event
class QueueOpened(Event):
    """A process opened the bucket's queue."""

    level = logging.INFO
    template = "Opened the queue in bucket {bucket!r}, with {strategy}."

    bucket: str
    """The bucket's name."""
    strategy: str
    """The lease strategy that all its processes follow."""


@_event
class QueueClosed(Event):
    """A process closed its queue. What it had not settled was given back, or kept for claims by the same ids."""

    level = logging.INFO

    claims: int = 0
    """How many claims were open."""
    messages: int = 0
    """How many of their messages were given back, or kept."""
    kept: bool = False
    """Whether they were kept for the next claims by the same ids, rather than given back."""
    complete: bool = True
    """Whether that was done for all of them. The others wait for their claims' time to end."""

    def sentence(self) -> str:
        """Say what happened."""
        if not self.claims:
            return "Closed the queue; no claim of it was held any more."
        how = "kept for the next claims by their ids" if self.kept else "given back"
        rest = "" if self.complete else "; all others come again when their claims' time is over"
        were = "was" if self.messages == 1 else "were"
        return _WORDS.format(f"Closed with {{claims:open claim}}: {{messages:message}} {were} {how}{rest}.", self)


@_event
class QueueDrained(Event):
    """A queue was drained: its workers have ended, and what they had not finished was given back."""

    level = logging.INFO
    template = "Drained the queue: {_given_back} given back{_left}."

    given_back: tuple[str, ...]
    """The ids of the messages that were given back."""
    left: tuple[str, ...]
    """The claims that still hold messages, by their ids and generations."""

    @property
    def _given_back(self) -> str:
        return _WORDS.format("{given_back:message} were", self) if self.given_back else "nothing had to be"

    @property
    def _left(self) -> str:
        shown = ", ".join(self.left[:MAX_LOGGED_IDS])
        return f"; {len(self.left)} claims still hold messages ({shown}), until their time is over" if self.left else ""


@_event
class HandlerFailed(_OfTopic):
    """The handler of a worker raised an exception. Its message comes again, or becomes a dead letter."""

    subject = "listening"
    level = logging.WARNING
    template = (
        "The handler failed on message {message} of topic {topic!r}, delivery {deliveries}, with {error} in {where}. "
        "The message comes again in {delay:.3g} seconds, or is a dead letter then if it has no deliveries left."
    )

    message: str
    """The message's id."""
    error: str
    """The type of the exception. Its text may quote a payload: it is in the dead letter alone, if there will be one."""
    where: str
    """The file and the line in which it was raised."""
    deliveries: int
    """How often the message was delivered by now."""
    delay: float
    """After how many seconds it comes again."""


@_event
class StoreAway(Event):
    """The store does not answer a worker (``listen``), which waits for it."""

    subject = "listening"
    level = logging.WARNING
    template = "The worker cannot reach the store, and goes on when it can: {why}"

    why: str
    """What went wrong first."""


@_event
class StoreBack(Event):
    """The store answers a worker again."""

    subject = "listening"
    level = logging.INFO
    template = "The worker reaches the store again, after {seconds:.1f} seconds."

    seconds: float
    """How long it did not."""


@_event
class TopicChanged(_OfTopic):
    """A topic was created, changed, paused, resumed, purged or deleted by this process."""

    subject = "topics"
    level = logging.INFO
    template = "Topic {topic!r} was {what}."

    what: Literal["created", "changed", "paused", "resumed", "purged", "deleted"]
    """What was done to it."""


@_event
class Published(_OfTopic):
    """Messages were published into a topic."""

    subject = "publish"
    template = "Published {ids:message} into topic {topic!r}."

    ids: tuple[str, ...]
    """The ids of the messages."""


@_event
class TopicFull(_OfTopic):
    """A call could not publish at once, as the topic has as many messages as it may have. One event a call."""

    subject = "publish"
    level = logging.WARNING
    template = "Topic {topic!r} is full: it has {pending:message} of at most {max_pending}. {messages:message} {_what}."

    messages: int
    """How many messages the call would publish."""
    pending: int
    """How many the topic has, as this process has counted them."""
    max_pending: int
    """How many it may have."""
    waits: bool
    """Whether the call waits for room. Otherwise it fails."""

    @property
    def _what(self) -> str:
        return "wait for room" if self.waits else "were not published"


@_event
class Deduplicated(_OfTopic):
    """Messages were not published, as others with their deduplication keys were published before, in the window."""

    subject = "publish"
    template = "Not published into topic {topic!r}, as their keys were before: {ids:message}."

    ids: tuple[str, ...]
    """For each of them the id of the message that was published before."""


@_event
class WriteDecided(_OfWrite):
    """A staged write was decided: all of its messages will be in the topic, even if this process dies."""

    template = "Decided write {write_id} of topic {topic!r}: {count:message}."


@_event
class WriteDone(_OfWrite):
    """All messages of a staged write are in the topic."""

    level = logging.INFO
    template = "Published write {write_id} of topic {topic!r}{_begun}: {count:message}."

    taken_over: bool = False
    """Another process had decided it, and had not finished it."""

    @property
    def _begun(self) -> str:
        return ", which another process had begun" if self.taken_over else ""


@_event
class WriteDropped(_OfWrite):
    """A staged write that had been decided was dropped: none of it was visible, and some staged rows were gone."""

    level = logging.WARNING
    template = (
        "Dropped write {write_id} of topic {topic!r}: staged rows of it were removed or changed after the decision, or "
        "could not be read for a week, and none of its {count:message} was visible. Stage all of its rows again, and "
        "commit it."
    )


@_event
class RowsLost(_OfWrite):
    """A staged write is done without some of its messages: their staged rows were gone, or unreadable for a week."""

    level = logging.ERROR
    template = (
        "Write {write_id} of topic {topic!r} is done without {count:message}, as what was staged of them was removed "
        "or changed after the decision, or could not be read for a week: rows {rows}, counted from 0. Publish these "
        "rows anew, under another write id."
    )

    count: int
    """How many messages were not published."""
    rows: str
    """Which rows those are, counted from 0 over all parts: ``3-5, 9``. At most the first ten runs of rows."""


@_event
class Claimed(_OfClaim):
    """A consumer got messages: claimed, claimed again by the same id, or attached to."""

    template = "Consumer {consumer!r} has {ids:message} by claim {claim} of topic {topic!r}."

    ids: tuple[str, ...]
    """The ids of the messages."""
    consumer: str
    """The consumer's name."""


@_event
class Renewed(_OfClaim):
    """A claim was renewed."""

    template = "Renewed claim {claim} of topic {topic!r} for {seconds:g} seconds."

    seconds: float
    """For how long, from now on."""


@_event
class Settled(_OfClaim):
    """Messages of a claim were settled."""

    template = "Settled claim {claim} of topic {topic!r}: {_outcomes}."

    acked: tuple[str, ...] = ()
    """Done."""
    buried: tuple[str, ...] = ()
    """Dead letters now."""
    released: tuple[str, ...] = ()
    """Given back."""
    lost: tuple[str, ...] = ()
    """Not settled by this claim: others hold them, or may."""

    @property
    def _outcomes(self) -> str:
        names = ("acked", "buried", "released", "lost")
        phrases = [_WORDS.format(f"{{{name}:message}} {name}", self) for name in names if getattr(self, name)]
        return "; ".join(phrases) or "nothing"


@_event
class HandedOver(_OfClaim):
    """This process handed a claim over to another one, or left it to the next claim by its id."""

    template = "Left claim {claim} of topic {topic!r} to its next holder."


@_event
class ClaimLost(_OfClaim):
    """This process must not work on a claim's messages any more: others hold them, or may soon."""

    level = logging.WARNING
    template = "Lost claim {claim} of topic {topic!r}, with {messages:message}: {why}."

    messages: int
    """How many messages it had that were not settled."""
    why: str
    """What was seen."""


@_event
class TakenOver(_OfClaim):
    """A claim whose time was over was ended: what it had not settled is claimable again."""

    level = logging.INFO
    template = (
        "Ended claim {claim} of topic {topic!r}, whose time is over: {messages:message} that consumer {consumer!r} had "
        "not settled may be claimed by others."
    )

    consumer: str
    """The name of the consumer that had it."""
    messages: int
    """How many messages it had not settled."""


@_event
class CompletedUnlogged(_OfClaim):
    """What a claim has acked is missing in the completed log of its topic. The messages are acked all the same."""

    level = logging.WARNING
    template = "What claim {claim} of topic {topic!r} has acked, {messages:message}, is not in the completed log: {why}"

    messages: int
    """How many."""
    why: str
    """The store's answer."""


@_event
class GivenBack(_OfClaim):
    """Messages of a claim were given back to the queue before their work was finished."""

    level = logging.INFO
    template = "Gave back {messages:message} of claim {claim} of topic {topic!r}: {why}."

    messages: int
    """How many."""
    why: str
    """The reason."""


@_event
class MessageBuried(_OfTopic):
    """A message became a dead letter."""

    subject = "dead_letters"
    level = logging.INFO
    template = "Message {message} of topic {topic!r} is a dead letter, after {_count}: {_shown!r} (claim {claim})."

    message: str
    """The id under which the dead letter is kept."""
    reason: str
    """Why."""
    deliveries: int
    """How often it had been delivered."""
    max_deliveries: int | None = None
    """The topic's limit, if that was reached; None: it was buried for its reason alone."""
    claim: str
    """The claim that had it."""

    @property
    def _count(self) -> str:
        count = "1 delivery" if self.deliveries == 1 else f"{self.deliveries} deliveries"
        return count if self.max_deliveries is None else f"{count}, the most that its topic allows"

    @property
    def _shown(self) -> str:
        return self.reason[:MAX_LOGGED_REASON_CHARACTERS]


@_event
class LettersRedriven(_OfTopic):
    """Dead letters were given back to the queue."""

    subject = "dead_letters"
    level = logging.INFO
    template = "Redrove {moved:dead letter} of topic {topic!r}; {skipped} were skipped, and {failed} failed{_rest}."

    moved: int
    """How many are in the queue again."""
    skipped: int
    """How many were left: being buried, being redriven by another process, or gone."""
    failed: int
    """How many could not be moved now."""
    complete: bool = True
    """Whether all dead letters were looked at: the call was neither cut off nor at its ``max_messages`` before."""

    @property
    def _rest(self) -> str:
        return "" if self.complete else "; not all were looked at"


@_event
class RedriveContinued(_OfTopic):
    """A redrive that takes long goes on: once a minute at most."""

    subject = "dead_letters"
    level = logging.INFO
    template = (
        "Redriving topic {topic!r}: {looked_at:dead letter} looked at, {moved} moved, {skipped} skipped, {failed} "
        "failed so far."
    )

    looked_at: int
    """How many dead letters were compared with what was asked for."""
    moved: int
    """How many are in the queue again."""
    skipped: int
    """How many were left."""
    failed: int
    """How many could not be moved now."""


@_event
class LettersExpiring(_OfTopic):
    """The janitor will remove dead letters, and says so before: they are past a limit of their topic, or will be."""

    subject = "dead_letters"
    level = logging.WARNING
    template = (
        "{count:dead letter} of topic {topic!r} will be removed from {removal} on, as it {limits}. Redrive or copy "
        "them before, or change its setting dead_letters."
    )

    count: int
    """How many, beside those that were warned of before."""
    removal: str
    """When the first of them may be removed, in ISO 8601."""
    limits: str
    """What the topic keeps."""


@_event
class LettersRemoved(_OfTopic):
    """The janitor has removed dead letters that were past a limit of their topic, and that it had warned of."""

    subject = "dead_letters"
    level = logging.WARNING
    template = "Removed {count:dead letter} of topic {topic!r}, as it {limits}."

    count: int
    """How many."""
    limits: str
    """What the topic keeps."""


@_event
class Swept(_OfTopic):
    """The janitor swept a topic."""

    subject = "janitor"
    level = logging.INFO
    template = "Swept topic {topic!r}{_dry}: {_counts}{_failed}."

    counts: tuple[tuple[str, int], ...]
    """The numbers of the report, by their names there."""
    failures: int
    """How many objects could not be dealt with."""
    dry_run: bool
    """Whether nothing was changed."""

    @property
    def _dry(self) -> str:
        return " (dry run)" if self.dry_run else ""

    @property
    def _counts(self) -> str:
        return ", ".join(f"{name} {count}" for name, count in self.counts if count) or "nothing to do"

    @property
    def _failed(self) -> str:
        return f"; {self.failures} objects could not be dealt with" if self.failures else ""


@_event
class RequestRepeated(Event):
    """A request of the store failed and is sent again."""

    subject = "store"
    template = "{_request} is sent again: {why}"

    operation: str
    """What the request is for."""
    why: str
    """The store's answer, or that there was none."""

    @property
    def _request(self) -> str:
        return self.operation or "A request"


#: What ``PawnQueue.open(on_event=...)`` takes. It is called in the thread of the queue's loop, and must not block.
Listener: TypeAlias = Callable[[Event], None]


class Events:
    """Passes events on to the log, and to the listener."""

    def __init__(self, listener: object = None) -> None:
        if listener is not None and (not callable(listener) or inspect.iscoroutinefunction(listener)):
            raise InvalidArgumentError(
                f"on_event is a function of one argument that returns at once, not {listener!r}: {NO_COROUTINE}",
                operation="open",
            )
        self._listener: Callable[[Event], object] | None = listener
        self._has_failed = False

    def tell(self, event: Event, cause: BaseException | None = None) -> None:
        """Log the event, and pass it on. What the listener raises is logged, and changes nothing.

        :param cause: an exception of the user's own code, whose traceback the log shows.
        """
        logger = logger_of(event.subject)
        if logger.isEnabledFor(event.level):
            logger.log(event.level, "%s", event.sentence(), exc_info=cause)
        if self._listener is None:
            return
        try:
            returned = self._listener(event)
        except (Exception, asyncio.CancelledError) as error:
            # ⚑ A listener that fails changes nothing. Its traceback is logged once, its error each time.
            logger.error(  # noqa: TRY400 - the traceback is in it, once
                "on_event failed on %s: %s: %s", type(event).__name__, type(error).__name__, error,
                exc_info=None if self._has_failed else error,
            )  # fmt: skip
            self._has_failed = True
            return
        if inspect.iscoroutine(returned):
            returned.close()
            if not self._has_failed:
                logger.error("on_event returns a coroutine, which nobody awaits: %s", NO_COROUTINE)
            self._has_failed = True

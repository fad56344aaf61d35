"""What happens in a queue, as events: the log is written from them, and whoever opens the queue may have them all.

One logger a subject, below ``pawnqueue``: an operator who wants to know what became of a message reads
``pawnqueue.claims`` and ``pawnqueue.dead_letters`` at INFO, or all of it at DEBUG. No event has a payload or a secret.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from pawnqueue.errors import InvalidArgumentError

Subject: TypeAlias = Literal["queue", "topics", "publish", "claims", "dead_letters", "janitor", "store", "registry"]

#: So many ids are named in a line of the log, and so much of a reason.
SHOWN, LONGEST = 5, 200
#: Of a line of the log: ids are of any length.
LONGEST_LINE = 4000
NO_COROUTINE = "for an async one, let a plain one put the event into an asyncio.Queue."


def one_line(text: str, longest: int = LONGEST_LINE) -> str:
    """Write out what would begin a line or steer a terminal, and cut what is too long: others write ids and names."""
    shown = text if len(text) <= longest else f"{text[:longest]}…"
    return shown if shown.isprintable() else "".join(map(_printable, shown))


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


class _OneLine(logging.Filter):
    """Keeps each message of a log to one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record where it has to be, and let every one pass."""
        text = record.getMessage()
        if (line := one_line(text)) != text:
            record.msg, record.args = line, None
        return True


_ONE_LINE = _OneLine()


def logger_of(subject: Subject) -> logging.Logger:
    """Return the logger of a subject, of which each message is one line."""
    logger = logging.getLogger(f"pawnqueue.{subject}")
    logger.addFilter(_ONE_LINE)  # once, however often it is asked for
    return logger


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(ABC):
    """Something that happened. :meth:`sentence` says it in one line."""

    subject: ClassVar[Subject] = "queue"
    level: ClassVar[int] = logging.DEBUG

    @abstractmethod
    def sentence(self) -> str:
        """Say what happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOpened(Event):
    """A process opened the bucket's queue."""

    level = logging.INFO

    bucket: str
    """The bucket's name."""
    strategy: str
    """The lease strategy that all its processes follow."""

    def sentence(self) -> str:
        """See :class:`Event`."""
        return f"Opened the queue in bucket {self.bucket!r}, with {self.strategy}."


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueClosed(Event):
    """A process closed its queue; what it had not finished was given back, or left to who comes by its claims' ids."""

    level = logging.INFO

    claims: int = 0
    """How many claims were open."""
    messages: int = 0
    """How many messages of theirs were given back, or left."""
    kept: bool = False
    """Whether they were left to whoever comes by the claims' ids, rather than given back."""
    complete: bool = True
    """Whether that was done for all of them; the others wait for their time to end."""

    def sentence(self) -> str:
        """See :class:`Event`."""
        if not self.claims:
            return "Closed the queue; nothing was held."
        what = "left to whoever comes by their ids" if self.kept else "given back"
        rest = "" if self.complete else "; all others come again when their claims' time is over"
        claims, messages = _counted(self.claims, "open claim"), _counted(self.messages, "message")
        return f"Closed with {claims}: {messages} {'was' if self.messages == 1 else 'were'} {what}{rest}."


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChanged(Event):
    """A topic was created, changed, purged or deleted by this process."""

    subject = "topics"
    level = logging.INFO

    topic: str
    """The topic."""
    what: Literal["created", "changed", "purged", "deleted"]
    """What was done to it."""

    def sentence(self) -> str:
        """See :class:`Event`."""
        return f"Topic {self.topic!r} was {self.what}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Published(Event):
    """Messages came into a topic."""

    subject = "publish"

    topic: str
    """The topic."""
    ids: tuple[str, ...]
    """The ids of the messages."""

    def sentence(self) -> str:
        """See :class:`Event`."""
        return f"Published {_messages(self.ids)} into topic {self.topic!r}."


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDecided(Event):
    """A staged write was decided: all of its messages will be in the topic, whoever publishes them."""

    subject = "publish"

    topic: str
    """The topic."""
    write_id: str
    """The write's id."""
    count: int
    """How many messages it has."""

    def sentence(self) -> str:
        """See :class:`Event`."""
        return f"Decided write {self.write_id} of topic {self.topic!r}: {_counted(self.count, 'message')}."


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDone(Event):
    """All messages of a staged write are in the topic."""

    subject = "publish"
    level = logging.INFO

    topic: str
    """The topic."""
    write_id: str
    """The write's id."""
    count: int
    """How many messages it has."""
    taken_over: bool = False
    """Another process had decided it, and had not come to its end."""

    def sentence(self) -> str:
        """See :class:`Event`."""
        told = ", which another process had begun" if self.taken_over else ""
        return f"Published write {self.write_id} of topic {self.topic!r}{told}: {_counted(self.count, 'message')}."


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDropped(Event):
    """A staged write that had been decided was dropped: nothing of it was visible, and staged rows of it were gone."""

    subject = "publish"
    level = logging.WARNING

    topic: str
    """The topic."""
    write_id: str
    """The write's id."""
    count: int
    """How many messages it had."""

    def sentence(self) -> str:
        """See :class:`Event`."""
        return (
            f"Dropped write {self.write_id} of topic {self.topic!r}: staged rows of it were removed or changed after "
            f"the decision, or could not be read for a week, and none of its {_counted(self.count, 'message')} was "
            "visible. Stage all of its rows again, and commit it."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsLost(Event):
    """A staged write is done without some of its messages: their staged rows were gone, or unreadable for a week."""

    subject = "publish"
    level = logging.ERROR

    topic: str
    """The topic."""
    write_id: str
    """The write's id."""
    count: int
    """How many messages were not published."""
    rows: str
    """Which rows those are, counted from 0 over all parts: ``3-5, 9``; of more than ten runs of rows, the first ten."""

    def sentence(self) -> str:
        """See :class:`Event`."""
        return (
            f"Write {self.write_id} of topic {self.topic!r} is done without {_counted(self.count, 'message')}, as what "
            "was staged of them was removed or changed after the decision, or could not be read for a week: rows "
            f"{self.rows}, counted from 0. Publish these rows anew, under another write id."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfClaim(Event):
    subject = "claims"

    topic: str
    """The topic."""
    claim: str
    """The claim, by its id and generation."""

    def _what(self) -> str:
        return f"claim {self.claim} of topic {self.topic!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed(_OfClaim):
    """A consumer was given messages: claimed, claimed again by the same id, or attached to."""

    ids: tuple[str, ...]
    """The ids of the messages that it was given."""
    consumer: str
    """Who claimed, by name."""

    def sentence(self) -> str:
        """See :class:`Event`."""
        return f"Consumer {self.consumer!r} has {_messages(self.ids)} by {self._what()}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed(_OfClaim):
    """A claim was renewed."""

    seconds: float
    """For how long, from now on."""

    def sentence(self) -> str:
        """See :class:`Event`."""
        return f"Renewed {self._what()} for {self.seconds:g} seconds."


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled(_OfClaim):
    """Messages of a claim were settled. ``lost`` are those that others have, or may have."""

    acked: tuple[str, ...] = ()
    """Done."""
    buried: tuple[str, ...] = ()
    """Dead letters now."""
    released: tuple[str, ...] = ()
    """Given back."""
    lost: tuple[str, ...] = ()
    """Not settled by this claim: others have them, or may have."""

    def sentence(self) -> str:
        """See :class:`Event`."""
        parts = [
            f"{_messages(ids)} {how}"
            for how, ids in (
                ("acked", self.acked),
                ("buried", self.buried),
                ("released", self.released),
                ("lost", self.lost),
            )
            if ids
        ]
        return f"Settled {self._what()}: {'; '.join(parts) or 'nothing'}."


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver(_OfClaim):
    """This process gave a claim to another one, or left it to who comes by its id."""

    def sentence(self) -> str:
        """See :class:`Event`."""
        return f"Left {self._what()} to whoever works for it next."


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLost(_OfClaim):
    """This process may work on a claim's messages no more: others have them, or may have them soon."""

    level = logging.WARNING

    messages: int
    """How many messages it had that were not settled."""
    why: str
    """What was seen."""

    def sentence(self) -> str:
        """See :class:`Event`."""
        return f"Lost {self._what()}, with {_counted(self.messages, 'message')}: {self.why}."


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver(_OfClaim):
    """A claim whose time was over was ended: what it had not settled may be claimed by others."""

    level = logging.INFO

    consumer: str
    """Who had it, by name."""
    messages: int
    """How many messages it had not settled."""

    def sentence(self) -> str:
        """See :class:`Event`."""
        return (
            f"Ended {self._what()}, whose time is over: {_counted(self.messages, 'message')} that consumer "
            f"{self.consumer!r} had not settled may be claimed by others."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenBack(_OfClaim):
    """Messages of a claim were given back to the queue before anybody worked on them to the end."""

    level = logging.INFO

    messages: int
    """How many."""
    why: str
    """What the reason was."""

    def sentence(self) -> str:
        """See :class:`Event`."""
        return f"Gave back {_counted(self.messages, 'message')} of {self._what()}: {self.why}."


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageBuried(Event):
    """A message became a dead letter."""

    subject = "dead_letters"
    level = logging.INFO

    topic: str
    """The topic."""
    message: str
    """The id under which the dead letter is kept."""
    reason: str
    """Why."""
    deliveries: int
    """How often it had been handed out."""
    max_deliveries: int | None = None
    """The topic's limit, if that was reached; None: it was buried for its reason alone."""
    claim: str
    """The claim that had it."""

    def sentence(self) -> str:
        """See :class:`Event`."""
        many = "1 delivery" if self.deliveries == 1 else f"{self.deliveries} deliveries"
        most = "" if self.max_deliveries is None else ", the most that its topic allows"
        return (
            f"Message {self.message} of topic {self.topic!r} is a dead letter, after {many}{most}: "
            f"{self.reason[:LONGEST]!r} (claim {self.claim})."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersRedriven(Event):
    """Dead letters were given back to the queue."""

    subject = "dead_letters"
    level = logging.INFO

    topic: str
    """The topic."""
    moved: int
    """How many are in the queue again."""
    skipped: int
    """How many were left: being buried, or redriven by somebody else, or gone."""
    failed: int
    """How many could not be moved now."""

    def sentence(self) -> str:
        """See :class:`Event`."""
        return (
            f"Redrove {_counted(self.moved, 'dead letter')} of topic {self.topic!r}; {self.skipped} were skipped, and "
            f"{self.failed} failed."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept(Event):
    """The janitor went through a topic. ``counts`` are those of its report, by their names there."""

    subject = "janitor"
    level = logging.INFO

    topic: str
    """The topic."""
    counts: tuple[tuple[str, int], ...]
    """The numbers of the report, by their names there."""
    failures: int
    """How many objects could not be dealt with."""
    dry_run: bool
    """Whether nothing was changed."""

    def sentence(self) -> str:
        """See :class:`Event`."""
        did = ", ".join(f"{name} {count}" for name, count in self.counts if count) or "nothing to do"
        told = f"Swept topic {self.topic!r}{' (dry run)' if self.dry_run else ''}: {did}"
        return f"{told}; {self.failures} objects could not be dealt with." if self.failures else f"{told}."


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRepeated(Event):
    """A request of the store failed and is sent again."""

    subject = "store"

    operation: str
    """What the request is for."""
    why: str
    """What the store answered, or that it did not."""

    def sentence(self) -> str:
        """See :class:`Event`."""
        return f"{self.operation or 'A request'} is sent again: {self.why}"


#: What ``PawnQueue.open(on_event=...)`` takes: it is called in the thread of the queue's loop, and must not block.
Listener: TypeAlias = Callable[[Event], None]


class Events:
    """Tells of what happens: to the log, and to who asked for it."""

    def __init__(self, listener: object = None) -> None:
        if listener is not None and (not callable(listener) or inspect.iscoroutinefunction(listener)):
            raise InvalidArgumentError(
                f"on_event is a function of one argument that returns at once, not {listener!r}: {NO_COROUTINE}",
                operation="open",
            )
        self._listener: Callable[[Event], object] | None = listener
        self._has_failed = False

    def tell(self, event: Event) -> None:
        """Write the event into the log, and hand it on. What its listener raises is logged, and changes nothing."""
        logger = logger_of(event.subject)
        if logger.isEnabledFor(event.level):
            logger.log(event.level, "%s", event.sentence())
        if self._listener is None:
            return
        try:
            told = self._listener(event)
        except (Exception, asyncio.CancelledError) as error:
            # ⚑ It changes nothing. What it is broken by is shown once, and named from then on.
            logger.error(  # noqa: TRY400 - the trace is in it, once
                "on_event failed on %s: %s: %s", type(event).__name__, type(error).__name__, error,
                exc_info=None if self._has_failed else error,
            )  # fmt: skip
            self._has_failed = True
            return
        if inspect.iscoroutine(told):
            told.close()
            if not self._has_failed:
                logger.error("on_event returns a coroutine, which nobody awaits: %s", NO_COROUTINE)
            self._has_failed = True


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _messages(ids: tuple[str, ...]) -> str:
    shown = ", ".join(ids[:SHOWN]) + (", …" if len(ids) > SHOWN else "")
    return f"{len(ids)} message{'' if len(ids) == 1 else 's'} ({shown})"

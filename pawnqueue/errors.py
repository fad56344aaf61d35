"""Every error a user of the engine can meet. Each says what happened, to which topic or message, and what to do."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pawnqueue.domain.settlement import Settlement


_NEVER = datetime.min.replace(tzinfo=UTC)


class OriginalError(Exception):
    """Stands for a cause that could not be pickled: it keeps the type's name and the text.

    :when: an error with a cause of another library crosses a process border.
    :done: it is never raised; it stands in `.cause`.
    :remedy: read it.
    """


class PawnQueueError(Exception):
    """The queue could not do what was asked.

    :param sentence: what happened and what to do; without it, the first line of the class's docstring.
    :param topic: the topic concerned, if there is one.
    :param message: the id of the message concerned, if there is one.
    :param operation: what was being done, as the caller would name it (``open``, ``publish``, ``create_topic``).
    :param cause: the error of a lower layer that led to this one.
    """

    def __init__(
        self,
        sentence: str | None = None,
        *,
        topic: str | None = None,
        message: str | None = None,
        operation: str | None = None,
        cause: BaseException | None = None,
    ) -> None:
        super().__init__(sentence or (type(self).__doc__ or "").partition("\n")[0])
        self.topic = topic
        self.message = message
        self.operation = operation
        self.cause = cause

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (Airflow's supervisor, Spark's driver); a cause of another library may not.
        state = dict(self.__dict__)
        state["cause"] = _picklable(self.cause)
        return _rebuild, (type(self), self.args, state)


def _picklable(cause: BaseException | None) -> BaseException | None:
    try:
        pickle.loads(pickle.dumps(cause))  # noqa: S301 - our own bytes, made on the line itself
    except Exception:  # noqa: BLE001 - whatever a foreign exception's pickling raises, its text is what is kept
        return OriginalError(f"{type(cause).__name__}: {cause}")
    return cause


def _rebuild(kind: type[PawnQueueError], args: tuple[Any, ...], state: dict[str, Any]) -> PawnQueueError:
    error = kind.__new__(kind)
    Exception.__init__(error, *args)
    error.__dict__.update(state)
    return error


class ConfigError(PawnQueueError):
    """A setting is missing, malformed, or contradicts another setting or the bucket.

    :when: settings are made, or a queue is opened.
    :done: nothing.
    :remedy: mend what it names, which is all that is wrong; trying again does not help. What the bucket's processes
        agreed on is changed with all of them stopped.
    """


class CompatibilityError(PawnQueueError):
    """The bucket, or the store that serves it, cannot be used by this version of the library.

    :when: a queue is opened, or meets an object of a newer version.
    :done: nothing; the newer object is left as it is.
    :remedy: upgrade this process, or take another store: the sentence says which.
    """


class StoreError(PawnQueueError):
    """The object store refused a request or could not be reached.

    ``transient`` says whether the same request may succeed a little later. ``denied`` says that the store refused who
    asked: the keys are wrong, or have ended, or lack a right. Nothing was done then.

    :when: any call. What may help by being repeated has been, for ``retry.budget_seconds``.
    :done: of a look nothing; of what changes something, nothing that calling again would do twice.
    :remedy: where ``transient`` is true, call again later; else mend what it names: an address, a key, a right.
    """

    def __init__(
        self, sentence: str | None = None, *, transient: bool = False, denied: bool = False, **attributes: Any
    ) -> None:
        super().__init__(sentence, **attributes)
        self.transient = transient
        self.denied = denied


class ObjectTooLargeError(StoreError):
    """An object in the bucket is larger than anything that this process reads of its kind, and was not downloaded.

    :when: an object is read that somebody else wrote, or overwrote.
    :done: nothing: the object is left as it is, and all others are used.
    :remedy: of a message, raise ``limits.max_payload_bytes`` where it is consumed; remove what nobody should have put
        there.
    :param size: how large it is, in bytes.
    :param version: which version of it that is, as the store tells it.
    :param last_modified: when that version was written, by the store's clock.
    """

    def __init__(
        self,
        sentence: str | None = None,
        *,
        size: int = 0,
        version: str = "",
        last_modified: datetime = _NEVER,
        **attributes: Any,
    ) -> None:
        super().__init__(sentence, **attributes)
        self.size = size
        self.version = version
        self.last_modified = last_modified


class RetryBudgetExceededError(StoreError):
    """The object store kept failing for as long as the retry settings allow.

    :when: any call, once ``retry.budget_seconds`` are over.
    :done: as with :class:`StoreError`.
    :remedy: call again later: its ``transient`` is true.
    """


class InvalidArgumentError(PawnQueueError, ValueError):
    """An argument of a call is of the wrong kind or out of its range: its sentence says what to pass instead.

    :when: any call, before its first request.
    :done: nothing; what was claimed stays claimed.
    :remedy: mend the program. It is a ``ValueError`` too.
    """


class InvalidTopicError(InvalidArgumentError):
    """A topic name is 1 to 128 of A-Z a-z 0-9 . _ - and begins with a letter or a digit.

    :when: any call that is given a topic.
    :done: nothing.
    :remedy: choose another name; for a hierarchy of queues take ``s3.key_prefix``.
    """


class TopicNotFoundError(PawnQueueError):
    """The topic does not exist: create it first.

    :when: any call that is given a topic, but for ``create_topic``.
    :done: nothing; if the topic was deleted while messages were published, those are withdrawn.
    :remedy: create it: ``create_topic``, or ``publish(..., create=True)``.
    """


class TopicExistsError(PawnQueueError):
    """The topic exists already, with other settings.

    :when: ``create_topic``, with other settings than it has.
    :done: nothing.
    :remedy: leave the settings out, or change them by ``update_topic``.
    """


class TopicNotEmptyError(PawnQueueError):
    """The topic still holds messages, leases or dead letters, so it was not deleted.

    :when: ``delete_topic``.
    :done: nothing: the topic goes on.
    :remedy: settle what is there, ``purge`` it, or pass ``force=True``.
    """


class InvalidPayloadError(InvalidArgumentError):
    """A payload is a JSON object: its sentence names the place in it that is none, and nothing was published.

    :when: ``publish`` and ``stage``.
    :done: nothing, of the other messages neither.
    :remedy: mend the payload at the place that is named.
    """


class PublishError(PawnQueueError):
    """Some messages were not published, or nobody can tell.

    :when: ``publish``; ``commit_write``, which is decided then.
    :done: the messages in ``published`` are in the topic.
    :remedy: publish again those in ``failed``. Those in ``unknown`` may be there: ``find`` tells; published again,
        one may be there twice. A write is committed again, under the same id.
    :param ids: the ids of all messages of the call, in order.
    :param failed: those that are certainly not in the topic, and why.
    :param unknown: those that may be, and why it could not be found out. All others are published.
    """

    def __init__(
        self,
        sentence: str | None = None,
        *,
        ids: Sequence[str] = (),
        failed: Mapping[str, StoreError] = MappingProxyType({}),
        unknown: Mapping[str, StoreError] = MappingProxyType({}),
        **attributes: Any,
    ) -> None:
        super().__init__(sentence, **attributes)
        self.ids = list(ids)
        self.failed = dict(failed)
        self.unknown = dict(unknown)

    @property
    def published(self) -> list[str]:
        """The ids of the messages that are in the topic."""
        return [each for each in self.ids if each not in self.failed and each not in self.unknown]


class QueueFullError(PawnQueueError):
    """The topic holds as many messages as it may: consume some, or raise its limit.

    :when: never, by this version: it is there for a limit that topics are to have.
    :done: nothing.
    :remedy: nothing.
    """


class LeaseLostError(PawnQueueError):
    """The claim is no longer ours: its time was over, somebody fenced it, or another session works for it.

    What was claimed under it may be worked on by others: stop, and claim anew.

    :when: a claim is renewed, settled, left, attached to or read.
    :done: what others have is left alone; all else of the same settlement was settled.
    :remedy: stop working on its messages, and claim anew. They come again under the same ids.
    :param settlement: where messages were to be settled: what became of each, those of the others included that were
        settled all the same.
    """

    def __init__(self, sentence: str | None = None, *, settlement: Settlement | None = None, **attributes: Any) -> None:
        super().__init__(sentence, **attributes)
        self.settlement = settlement


class ClaimBusyError(PawnQueueError):
    """Somebody else works for this claim: wait until their time is over, or claim under another id.

    :when: ``claim`` by an id, ``attach``, ``release``.
    :done: nothing.
    :remedy: come again after ``retry_after``, or pass ``wait=``.
    :param claim_id: the claim's id.
    :param owner: on whose behalf it is held.
    :param until: when it can be had at the earliest, unless it is renewed until then.
    :param retry_after: the same, in seconds from now.
    """

    def __init__(
        self,
        sentence: str | None = None,
        *,
        claim_id: str = "",
        owner: str = "",
        until: datetime | None = None,
        retry_after: float = 0.0,
        **attributes: Any,
    ) -> None:
        super().__init__(sentence, **attributes)
        self.claim_id = claim_id
        self.owner = owner
        self.until = until
        self.retry_after = retry_after


class WriteBusyError(PawnQueueError):
    """Somebody else commits this write: wait until their time is over, and commit it again to have its outcome.

    :when: ``commit_write``.
    :done: nothing by this call; what the other one does stays done.
    :remedy: commit again after ``retry_after``, or pass ``wait=``.
    :param write_id: the write's id.
    :param until: when their time is over, unless they renew it until then.
    :param retry_after: the same, in seconds from now.
    """

    def __init__(
        self,
        sentence: str | None = None,
        *,
        write_id: str = "",
        until: datetime | None = None,
        retry_after: float = 0.0,
        **attributes: Any,
    ) -> None:
        super().__init__(sentence, **attributes)
        self.write_id = write_id
        self.until = until
        self.retry_after = retry_after


class StagedGoneError(PawnQueueError):
    """What was staged for this write is not there any more: stage it again.

    :when: ``commit_write``, ``stage`` behind what is gone.
    :done: nothing was published; or, where the error names rows that are missing, all the others.
    :remedy: stage the write again, and commit that; or publish the rows that are missing under another write id.
    """


class QueueClosedError(PawnQueueError):
    """The queue was closed: open it again before you use it.

    :when: any call of a queue that was closed.
    :done: nothing.
    :remedy: open another one.
    """

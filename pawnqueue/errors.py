"""Every error that the queue raises. Each says what happened, to which topic or message, and what to do."""

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
    """Replaces a cause that could not be pickled. It keeps the type's name and the text.

    :when: an error whose cause is of another library is sent to another process.
    :done: it is never raised, and only found in `.cause`.
    :remedy: read it.
    """


class PawnQueueError(Exception):
    """The queue could not do what was asked.

    :param sentence: what happened and what to do; without it, the first line of the class's docstring.
    :param topic: the topic concerned, if there is one.
    :param message: the id of the message concerned, if there is one.
    :param operation: the call that failed (``open``, ``publish``, ``create_topic``).
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
        # Errors go to other processes (Airflow's supervisor, Spark's driver). Those of other libraries may not pickle.
        state = dict(self.__dict__)
        state["cause"] = _picklable(self.cause)
        return _rebuild, (type(self), self.args, state)


def _picklable(cause: BaseException | None) -> BaseException | None:
    try:
        pickle.loads(pickle.dumps(cause))  # noqa: S301 - our own bytes, made on the line itself
    except Exception:  # noqa: BLE001 - another library's exception may raise anything here
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
    :remedy: correct what it names, which is all that is wrong; trying again does not help. What the bucket's processes
        agreed on can be changed only while all of them are stopped.
    """


class CompatibilityError(PawnQueueError):
    """The bucket, or the store that serves it, cannot be used by this version of the library.

    :when: a queue is opened, or reads an object of a newer version.
    :done: nothing; the newer object is left as it is.
    :remedy: upgrade this process, or use another store: the sentence says which.
    """


class StoreError(PawnQueueError):
    """The object store refused a request or could not be reached.

    ``transient`` says whether the same request may succeed a little later. ``denied`` says that the store refused the
    credentials: the keys are wrong, have expired, or lack a right. Then nothing was done.

    :when: any call. Requests that may succeed if repeated were repeated, for ``retry.budget_seconds``.
    :done: by a call that only reads, nothing; by any other, nothing that calling again would do twice.
    :remedy: if ``transient`` is true, call again later; else correct what it names: an address, a key, a right.
    """

    def __init__(
        self, sentence: str | None = None, *, transient: bool = False, denied: bool = False, **attributes: Any
    ) -> None:
        super().__init__(sentence, **attributes)
        self.transient = transient
        self.denied = denied


class ObjectTooLargeError(StoreError):
    """An object in the bucket is larger than this process reads of its kind, and was not downloaded.

    :when: an object is read that another program wrote, or overwrote.
    :done: nothing: the object is left as it is, and all others are used.
    :remedy: for a message, raise ``limits.max_payload_bytes`` in its consumers; remove what does not belong there.
    :param size: its size in bytes.
    :param version: the version of it that has this size.
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

    :when: any call, after ``retry.budget_seconds``.
    :done: as with :class:`StoreError`.
    :remedy: call again later: its ``transient`` is true.
    """


class InvalidArgumentError(PawnQueueError, ValueError):
    """An argument of a call has the wrong type or is out of its range: the sentence says what to pass instead.

    :when: any call, before its first request.
    :done: nothing; what was claimed stays claimed.
    :remedy: correct the program. It is a ``ValueError`` too.
    """


class InvalidTopicError(InvalidArgumentError):
    """A topic name is 1 to 128 of A-Z a-z 0-9 . _ - and begins with a letter or a digit.

    :when: any call that is given a topic.
    :done: nothing.
    :remedy: choose another name; for a hierarchy of queues use ``s3.key_prefix``.
    """


class TopicNotFoundError(PawnQueueError):
    """The topic does not exist: create it first.

    :when: any call that is given a topic, except ``create_topic``.
    :done: nothing; if the topic was deleted while messages were published, they are removed again.
    :remedy: create it: ``create_topic``, or ``publish(..., create=True)``.
    """


class TopicExistsError(PawnQueueError):
    """The topic exists already, with other settings.

    :when: ``create_topic``, with other settings than it has.
    :done: nothing.
    :remedy: omit the settings, or change them by ``update_topic``.
    """


class TopicNotEmptyError(PawnQueueError):
    """The topic still holds messages, leases or dead letters, so it was not deleted.

    :when: ``delete_topic``.
    :done: nothing: the topic stays.
    :remedy: settle its messages, ``purge`` it, or pass ``force=True``.
    """


class InvalidPayloadError(InvalidArgumentError):
    """A payload is not a JSON object: the sentence names the place in it that is wrong. Nothing was published.

    :when: ``publish`` and ``stage``.
    :done: nothing; the other messages of the call were not published either.
    :remedy: correct the payload at the place that is named.
    """


class PublishError(PawnQueueError):
    """Some messages were not published, or it could not be found out whether they were.

    :when: ``publish``; ``commit_write``, whose write is decided then.
    :done: the messages in ``published`` are in the topic.
    :remedy: publish those in ``failed`` again. Before publishing one in ``unknown`` again, look for it with ``find``:
        it may be in the topic already. A write is committed again, under the same id.
    :param ids: the ids of all messages of the call, in order.
    :param failed: those that are certainly not in the topic, and why.
    :param unknown: those that may be in the topic, and why it could not be found out. All others are published.
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
    """The topic has as many messages as it may (``max_pending``): publish again when consumers have caught up.

    :when: ``publish``, at once or after waiting, as the topic's ``overload`` and the call's ``wait`` say.
    :done: nothing was published.
    :remedy: publish again after ``retry_after`` seconds or later, wait longer, add consumers, or raise ``max_pending``
        by ``update_topic``.
    :param pending: how many messages that are not finished the topic has, as this process has counted them.
    :param max_pending: how many it may have.
    :param retry_after: in how many seconds the topic is counted again.
    """

    def __init__(
        self,
        sentence: str | None = None,
        *,
        pending: int = 0,
        max_pending: int = 0,
        retry_after: float = 0.0,
        **attributes: Any,
    ) -> None:
        super().__init__(sentence, **attributes)
        self.pending = pending
        self.max_pending = max_pending
        self.retry_after = retry_after


class LeaseLostError(PawnQueueError):
    """The claim is no longer ours: its time was over, it was fenced, or another session holds it.

    Others may work on its messages: stop, and claim again.

    :when: a claim is renewed, settled, left, attached to or read.
    :done: messages that others hold are left alone; all others of the same settlement were settled.
    :remedy: stop working on its messages, and claim again. They are delivered again under the same ids.
    :param settlement: of a call that settles: the outcome of each message, also of those that were settled.
    """

    def __init__(self, sentence: str | None = None, *, settlement: Settlement | None = None, **attributes: Any) -> None:
        super().__init__(sentence, **attributes)
        self.settlement = settlement


class ClaimBusyError(PawnQueueError):
    """Another session holds this claim: wait until its time is over, or claim under another id.

    :when: ``claim`` by an id, ``attach``, ``release``.
    :done: nothing.
    :remedy: call again after ``retry_after`` seconds, or pass ``wait=``.
    :param claim_id: the claim's id.
    :param owner: on whose behalf it is held.
    :param until: when its time is over, unless it is renewed until then.
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
    """Another process is committing this write: wait until its time is over, and commit again to get the outcome.

    :when: ``commit_write``.
    :done: nothing by this call; the other process goes on.
    :remedy: commit again after ``retry_after`` seconds, or pass ``wait=``.
    :param write_id: the write's id.
    :param until: when the other process's time is over, unless it is renewed until then.
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
    """What was staged for this write no longer exists: stage it again.

    :when: ``commit_write``; ``stage`` with ``after=`` rows that no longer exist.
    :done: nothing was published; or, if the error names the rows that are missing, all others were.
    :remedy: stage the write again, and commit that; or publish the missing rows under another write id.
    """


class QueueClosedError(PawnQueueError):
    """The queue was closed: open it again before you use it.

    :when: any call of a closed queue.
    :done: nothing.
    :remedy: open another one.
    """


class QueueDrainedError(PawnQueueError):
    """The queue is being drained, or was drained: it claims nothing more. Open another queue to go on.

    :when: ``claim``, ``attach`` and ``listen``, after ``drain`` has begun. A claim that waits ends with it at once.
    :done: nothing. Publishing, renewing and settling go on until the queue is closed.
    :remedy: let the process end, or open another queue.
    """

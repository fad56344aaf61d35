"""Every error a user of the engine can meet. Each says what happened, to which topic or message, and what to do."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.settlement import Settlement


class OriginalError(Exception):
    """Stands for a cause that could not be pickled: it keeps the type's name and the text."""


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
    """A setting is missing, malformed, or contradicts another setting or the bucket."""


class CompatibilityError(PawnQueueError):
    """The bucket, or the store that serves it, cannot be used by this version of the library."""


class StoreError(PawnQueueError):
    """The object store refused a request or could not be reached.

    ``transient`` says whether the same request may succeed a little later.
    """

    def __init__(self, sentence: str | None = None, *, transient: bool = False, **attributes: Any) -> None:
        super().__init__(sentence, **attributes)
        self.transient = transient


class RetryBudgetExceededError(StoreError):
    """The object store kept failing for as long as the retry settings allow."""


class InvalidArgumentError(PawnQueueError, ValueError):
    """An argument of a call is of the wrong kind or out of its range: its sentence says what to pass instead."""


class InvalidTopicError(InvalidArgumentError):
    """A topic name is 1 to 128 of A-Z a-z 0-9 . _ - and begins with a letter or a digit."""


class TopicNotFoundError(PawnQueueError):
    """The topic does not exist: create it first."""


class TopicExistsError(PawnQueueError):
    """The topic exists already, with other settings."""


class TopicNotEmptyError(PawnQueueError):
    """The topic still holds messages, leases or dead letters, so it was not deleted."""


class InvalidPayloadError(InvalidArgumentError):
    """A payload is a JSON object: its sentence names the place in it that is none, and nothing was published."""


class PublishError(PawnQueueError):
    """Some messages were not published, or nobody can tell.

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
    """The topic holds as many messages as it may: consume some, or raise its limit."""


class LeaseLostError(PawnQueueError):
    """The claim is no longer ours: its time was over, somebody fenced it, or another session works for it.

    What was claimed under it may be worked on by others: stop, and claim anew.

    :param settlement: where messages were to be settled: what became of each, those of the others included that were
        settled all the same.
    """

    def __init__(self, sentence: str | None = None, *, settlement: Settlement | None = None, **attributes: Any) -> None:
        super().__init__(sentence, **attributes)
        self.settlement = settlement


class ClaimBusyError(PawnQueueError):
    """Somebody else works for this claim: wait until their time is over, or claim under another id.

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
    """What was staged for this write is not there any more, so nothing was published: stage it again."""


class QueueClosedError(PawnQueueError):
    """The queue was closed: open it again before you use it."""

"""What becomes of a message by the end of its handler, and what a handler raises to decide that itself."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pawnqueue.arguments import checked_seconds, checked_text
from pawnqueue.domain.claim_record import Decision
from pawnqueue.errors import InvalidArgumentError, PawnQueueError, QueueClosedError, QueueDrainedError

if TYPE_CHECKING:
    from pawnqueue.listening.retry import Retry
    from pawnqueue.runtime.clock import Clock

#: The queue's own reason for what it gives back.
CLOSED = "closed"


class RequeueMessage(Exception):  # noqa: N818 - it is raised on purpose, and is no error
    """A handler raises it to give its message back, with a delay of its own.

    :param delay: do not deliver it for this many seconds.
    :param reason: why. A dead letter begins with it, should the message become one.
    """

    def __init__(self, delay: float = 0.0, *, reason: str = "") -> None:
        self.delay = checked_seconds(delay, "delay", "", "RequeueMessage")
        self.reason = checked_text(reason, "reason", "", "RequeueMessage")
        super().__init__(delay, reason)


class BuryMessage(Exception):  # noqa: N818 - likewise
    """A handler raises it to make a dead letter of its message, which can never succeed.

    :param reason: why, for the reader of the dead letter.
    :param error: details, cut to 2,000 characters.
    """

    def __init__(self, reason: str, error: str = "") -> None:
        self.reason = checked_text(reason, "reason", "", "BuryMessage")
        self.error = checked_text(error, "error", "", "BuryMessage")
        if not reason.strip():
            raise InvalidArgumentError(
                "BuryMessage takes a reason, which is what the dead letter is found by.", operation="BuryMessage"
            )
        super().__init__(reason, error)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is to become of one message."""

    how: Literal["acked", "requeued", "buried", "given_back"]
    delay: float = 0.0
    reason: str = ""
    error: str = ""

    def decided(self, now: float) -> Decision:
        """Return the decision, by the store's time."""
        match self.how:
            case "acked":
                return _ACKED
            case "given_back":
                return _GIVEN_BACK
            case "buried":
                return Decision(how="dead", until=now, reason=self.reason, error=self.error)
            case "requeued":
                until = now + self.delay if self.delay else 0.0
                return Decision(how="released", until=until, reason=self.reason, error=self.error)


_ACKED = Decision(how="acked")
_GIVEN_BACK = Decision(how="released", reason=CLOSED, by="closing")
ACKED = Outcome("acked")
GIVEN_BACK = Outcome("given_back")


def outcome_of(
    error: BaseException, deliveries: int, retry: Retry, clock: Clock, secrets: Collection[str] = ()
) -> Outcome:
    """Return what becomes of a message whose handler has raised this.

    :param secrets: the store's keys, which no dead letter shows, even if an exception does.
    :raises Exception: it is of a user's class, and has no reason or delay, or none that is valid.
    """
    match error:
        case RequeueMessage():  # read anew, as a subclass may set what it likes
            read = RequeueMessage(error.delay, reason=error.reason)
            return Outcome("requeued", read.delay, read.reason)
        case BuryMessage():
            buried = BuryMessage(error.reason, error.error)
            return Outcome("buried", 0.0, buried.reason, buried.error)
        case QueueDrainedError() | QueueClosedError():
            return GIVEN_BACK  # it wanted more of a queue that is ending
        case _:
            delay = retry.seconds(deliveries, clock.uniform)
            return Outcome("requeued", delay, type(error).__name__, text_of(error, secrets))


def text_of(error: BaseException, secrets: Collection[str] = ()) -> str:
    """Return an exception's text without these secrets. An exception that cannot show itself has none."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a user's class may raise anything here
        return ""
    for secret in secrets:
        text = text.replace(secret, "…")
    return text


def place_of(error: BaseException) -> str:
    """Return the file and the line in which an exception was raised.

    A log shows this in place of the exception's text and its stack trace, which may quote a payload.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "an unknown place" if trace is None else f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"


def is_on_purpose(error: BaseException) -> bool:
    """Say whether a handler has raised this to decide itself, so that it is not a failure."""
    return isinstance(error, RequeueMessage | BuryMessage) or (
        isinstance(error, PawnQueueError) and isinstance(error, QueueDrainedError | QueueClosedError)
    )

"""Every error a user can meet says what happened, where, and crosses process borders with all it knows."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest

from pawnqueue import errors
from pawnqueue.errors import (
    OriginalError,
    PawnQueueError,
    RetryBudgetExceededError,
    StoreError,
)

PUBLIC = sorted(
    (kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PawnQueueError)),
    key=lambda kind: kind.__name__,
)
ATTRIBUTES = {"topic": "orders", "message": "0f8fad5b", "operation": "publish"}

every_error = pytest.mark.parametrize("kind", PUBLIC)


def state(error: PawnQueueError) -> dict[str, object]:
    """Return all that the error knows, but for its cause."""
    return {name: value for name, value in vars(error).items() if name != "cause"}


def sent(error: PawnQueueError, protocol: int = pickle.DEFAULT_PROTOCOL) -> PawnQueueError:
    """Return what arrives in another process."""
    again = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301
    assert isinstance(again, PawnQueueError)
    return again


class OddError(Exception):
    """Pickles, and cannot be made again from what was pickled: it wants two arguments and keeps one."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.second = second


class LockedError(Exception):
    """Cannot be pickled at all."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


@every_error
def test_the_docstring_is_the_default_sentence(kind: type[PawnQueueError]) -> None:
    """Without a sentence of its own an error says its class's first line, and everything else is empty."""
    error = kind()
    first_line = (kind.__doc__ or "").partition("\n")[0]
    assert str(error) == first_line
    assert first_line.endswith(".")
    assert (error.topic, error.message, error.operation, error.cause) == (None, None, None, None)


@every_error
def test_an_error_has_its_attributes(kind: type[PawnQueueError]) -> None:
    """Topic, message, operation and cause are what they were given as."""
    cause = ValueError("deep down")
    error = kind("It went wrong.", cause=cause, **ATTRIBUTES)
    assert str(error) == "It went wrong."
    assert {name: getattr(error, name) for name in ATTRIBUTES} == ATTRIBUTES
    assert error.cause is cause


@every_error
def test_an_error_crosses_a_process_border(kind: type[PawnQueueError]) -> None:
    """Pickled and read again, in every protocol, it is the same error with the same attributes."""
    error = kind("It went wrong.", cause=ValueError("deep down"), **ATTRIBUTES)
    error.add_note("seen on host a")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = sent(error, protocol)
        assert (type(again), again.args, state(again)) == (kind, error.args, state(error))
        assert (type(again.cause), str(again.cause)) == (ValueError, "deep down")


@every_error
@pytest.mark.parametrize("cause", [OddError("text", "more"), LockedError("text")], ids=["odd", "locked"])
def test_a_cause_that_cannot_be_pickled_leaves_its_text(kind: type[PawnQueueError], cause: Exception) -> None:
    """Where the cause stays behind, its type's name and text arrive, and everything else of the error."""
    error = kind("It went wrong.", cause=cause, **ATTRIBUTES)
    again = sent(error)
    assert state(again) == state(error)
    assert isinstance(again.cause, OriginalError)
    assert str(again.cause) == f"{type(cause).__name__}: text"
    assert error.cause is cause


@every_error
def test_an_error_is_copied(kind: type[PawnQueueError]) -> None:
    """A copy, shallow or deep, is the same error."""
    error = kind("It went wrong.", cause=ValueError("deep down"), **ATTRIBUTES)
    for again in (copy.copy(error), copy.deepcopy(error)):
        assert again is not error
        assert (type(again), str(again), state(again)) == (kind, str(error), state(error))
        assert str(again.cause) == "deep down"


def test_a_chain_of_causes_is_kept() -> None:
    """The error, its cause and the cause's cause are unpickled."""
    first = StoreError("The store is too busy.", transient=True, cause=LockedError("text"))
    error = RetryBudgetExceededError("Given up.", transient=True, cause=first, operation="GetObject")
    again = sent(error)
    assert (again.transient, again.operation) == (True, "GetObject")
    assert (str(again.cause), again.cause.transient) == ("The store is too busy.", True)
    assert str(again.cause.cause) == "LockedError: text"


def test_an_attribute_that_was_added_is_kept() -> None:
    """An attribute that a caller added to an error survives pickling."""
    error = StoreError("It went wrong.")
    error.attempts = ["one", "two"]  # type: ignore[attr-defined]
    assert sent(error).attempts == ["one", "two"]


def test_one_type_catches_them_all() -> None:
    """A handler of PawnQueueError catches every error of the queue, and the store's errors are StoreError."""
    assert issubclass(RetryBudgetExceededError, StoreError)
    assert len(PUBLIC) >= 10
    assert all(issubclass(kind, PawnQueueError) for kind in PUBLIC)

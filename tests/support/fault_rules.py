"""Faults: which requests they befall, what they do to them, and the book that has them while a test runs."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from tests.support.journal import RecordedRequest


@dataclass(frozen=True, slots=True)
class Status:
    """Answered with an error; not applied."""

    code: int
    s3_code: str = "InternalError"


@dataclass(frozen=True, slots=True)
class AppliedThenStatus:
    """Applied, whatever comes of it; then answered with an error."""

    code: int
    s3_code: str = "InternalError"


@dataclass(frozen=True, slots=True)
class Dropped:
    """The connection is reset; not applied."""


@dataclass(frozen=True, slots=True)
class AppliedThenDropped:
    """Applied; then the connection is reset, so that the answer is lost."""


@dataclass(frozen=True, slots=True)
class LandsLate:
    """Answered with an error (or dropped, where ``answer`` is None) at once, and applied ``seconds`` later."""

    seconds: float
    answer: Status | None = None


@dataclass(frozen=True, slots=True)
class NeverAnswers:
    """Not applied; the connection is held until the client gives up or the server stops."""


@dataclass(frozen=True, slots=True)
class PartialDelete:
    """``DeleteObjects`` answers 200 with an error for the keys that match the glob, and leaves those. Memory only.

    With a ``chance`` it is each key's in each request.
    """

    keys: str = "*"
    code: str = "InternalError"
    chance: float = 1.0
    dice: random.Random = field(default_factory=lambda: random.Random(0), compare=False, repr=False)  # noqa: S311

    def spares(self, key: str) -> str | None:
        """Return the error code of a key that is not to be deleted, None for the others."""
        if not fnmatchcase(key, self.keys):
            return None
        return self.code if self.chance >= 1.0 or self.dice.random() < self.chance else None


@dataclass(frozen=True, slots=True)
class MalformedBody:
    """Applied, and answered with status 200 and this body: by default the first half of the right one."""

    body: bytes | None = None


Effect: TypeAlias = (
    Status | AppliedThenStatus | Dropped | AppliedThenDropped | LandsLate | NeverAnswers | PartialDelete | MalformedBody
)


@dataclass(frozen=True, slots=True)
class Fault:
    """An effect, and the requests it befalls: those that everything here applies to."""

    effect: Effect
    #: The operation's name, or several; None: any.
    operation: str | frozenset[str] | None = None
    #: A glob over what the request is about: its key, the prefix of a listing, any of the keys of a bulk delete. A star
    #: matches slashes too.
    key: str = "*"
    #: Called in the server's thread.
    where: Callable[[RecordedRequest], bool] | None = None
    #: How often it happens; None: without end.
    times: int | None = None
    probability: float = 1.0

    def concerns(self, request: RecordedRequest) -> bool:
        """Tell whether this is such a request, chance and number of times aside."""
        match self.operation:
            case None:
                wanted = True
            case str():
                wanted = request.operation == self.operation
            case _:
                wanted = request.operation in self.operation
        return (
            wanted
            and any(fnmatchcase(key, self.key) for key in request.touches)
            and (self.where is None or self.where(request))
        )


class Injection:
    """A fault that has been injected. Also a context manager, which removes it at the end."""

    def __init__(self, fault: Fault, book: RuleBook) -> None:
        """Belong to the book."""
        self.fault = fault
        #: How many requests it has befallen.
        self.hits = 0
        self._book = book

    def remove(self) -> None:
        """Have it happen no more. May be called twice."""
        self._book.remove(self)

    def __enter__(self) -> Self:
        """Go on."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove it."""
        self.remove()


class RuleBook:
    """The faults in force, oldest first; of those that apply to a request, the first that chance allows happens."""

    def __init__(self, chance: random.Random) -> None:
        """Start without faults."""
        self._chance = chance
        self._injections: list[Injection] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> Injection:
        """Put a fault in force."""
        injection = Injection(fault, self)
        with self._lock:
            self._injections.append(injection)
        return injection

    def remove(self, injection: Injection) -> None:
        """Take a fault out of force."""
        with self._lock:
            if injection in self._injections:
                self._injections.remove(injection)

    def choose(self, request: RecordedRequest) -> Effect | None:
        """Return what happens to the request, and count it."""
        with self._lock:
            for injection in self._injections:
                fault = injection.fault
                exhausted = fault.times is not None and injection.hits >= fault.times
                if exhausted or not fault.concerns(request):
                    continue
                if fault.probability >= 1.0 or self._chance.random() < fault.probability:
                    injection.hits += 1
                    return fault.effect
        return None

"""Faults: which requests they befall, what they do to them, and the book that has them while a test runs."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

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
    #: The operation's name; None: any.
    operation: str | None = None
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
        return (
            self.operation in {None, request.operation}
            and any(fnmatchcase(key, self.key) for key in request.touches)
            and (self.where is None or self.where(request))
        )


@dataclass(slots=True)
class Injection:
    """A fault that has been injected."""

    fault: Fault
    #: How many requests it has befallen.
    hits: int = 0


class RuleBook:
    """The faults in force, oldest first; of those that apply to a request, the first that chance allows happens."""

    def __init__(self, chance: random.Random) -> None:
        """Start without faults."""
        self._chance = chance
        self._injections: list[Injection] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> Injection:
        """Put a fault in force."""
        injection = Injection(fault)
        with self._lock:
            self._injections.append(injection)
        return injection

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

"""The places at which a queue can be traced. Untraced, each hands back what it was given, and does nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from pawnqueue.domain.settlement import Settlement


class NewlyMade(Protocol):
    """A message that is about to be published."""

    @property
    def headers(self) -> dict[str, str]:
        """Its headers."""

    def with_headers(self, more: Mapping[str, str]) -> Self:
        """Return it with these headers too."""


class Handed(Protocol):
    """A message that a consumer was given."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def topic(self) -> str:
        """Its topic."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers."""

    @property
    def deliveries(self) -> int:
        """How often it was handed out."""


class Held(Protocol):
    """A claim."""

    @property
    def topic(self) -> str:
        """Its topic."""

    @property
    def consumer(self) -> str:
        """The name of its consumer."""

    @property
    def stem(self) -> str:
        """Its id and generation."""

    @property
    def has_payloads(self) -> bool:
        """Whether it can be iterated over."""

    def __iter__(self) -> Iterator[Handed]: ...

    def __len__(self) -> int: ...


N = TypeVar("N", bound=NewlyMade)
I = TypeVar("I", bound=Sequence[str])  # noqa: E741 - ids
C = TypeVar("C", bound=Held)
M = TypeVar("M", bound=Handed)


class Spans:
    """Traces nothing. :class:`pawnqueue.tracing.Tracing` traces."""

    def publish(
        self, send: Callable[[Sequence[N]], Awaitable[I]], topic: str, messages: Sequence[N], producer: str | None
    ) -> Awaitable[I]:
        """Send the messages, and return their ids."""
        del self, topic, producer
        return send(messages)

    def receive(
        self, work: Awaitable[C], operation: str, topics: Sequence[str], consumer: str | None = None
    ) -> Awaitable[C]:
        """Return the claim that is made or attached to."""
        del self, operation, topics, consumer
        return work

    def process(self, handle: Callable[[M], Awaitable[object]], consumer: str) -> Callable[[M], Awaitable[object]]:
        """Return what a worker calls with each message."""
        del self, consumer
        return handle

    def settle(self, work: Awaitable[Settlement], operation: str, claim: Held) -> Awaitable[Settlement]:
        """Return what became of the messages of a claim."""
        del self, operation, claim
        return work

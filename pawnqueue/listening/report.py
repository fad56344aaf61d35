"""What a worker and a drain report when they end."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Listened:
    """What became of the messages that a worker was given."""

    acked: int = 0
    """How many its handler has done."""
    requeued: int = 0
    """How many come again, as the handler failed or asked for that."""
    buried: int = 0
    """How many the handler made dead letters of."""
    lost: int = 0
    """How many were lost while they waited or were worked on: others hold them, or may. They are delivered again."""
    given_back: list[str] = field(default_factory=list)
    """The ids of those that were given back at the end, as nobody had begun or finished them."""
    left: list[str] = field(default_factory=list)
    """The ids of those of which nobody knows whether they were settled, as the store did not answer in time. If not,
    they are delivered again when their claim's time is over."""


@dataclass(slots=True)
class Drained:
    """What a drain has given back, and what it could not give back in time."""

    given_back: list[str] = field(default_factory=list)
    """The ids of the messages that were given back: others may have them at once."""
    left: list[str] = field(default_factory=list)
    """The claims that still hold messages, by their ids and generations: they are kept for claims by their ids
    (``claims.keep_when_closed``), or the store did not answer in time. In the end their time is over."""

    @property
    def complete(self) -> bool:
        """Whether nothing is held any more."""
        return not self.left

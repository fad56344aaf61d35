"""The list of all strategies. Settings, the probe and a bucket's record name one of them.

A new strategy is a module with an implementation of :class:`~.strategy.Registers` and a description of itself
(:class:`~.strategy.Strategy`), and an entry in this list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue.domain import layout
from pawnqueue.errors import CompatibilityError, ConfigError
from pawnqueue.registers import conditional_write, csprng_verify

if TYPE_CHECKING:
    from pawnqueue.domain.records import BucketRecord
    from pawnqueue.registers.strategy import Abilities, Strategy
    from pawnqueue.settings import Settings

#: The setting that leaves the choice to the first process of a bucket.
AUTO = "auto"

#: All strategies, the preferred ones first. Every store can carry the last one.
STRATEGIES: tuple[Strategy, ...] = (conditional_write.STRATEGY, csprng_verify.STRATEGY)

_MAX_SHOWN_CHARACTERS = 40  # of an unknown strategy's name


def names() -> list[str]:
    """Return the names of all strategies, the preferred ones first."""
    return [strategy.name for strategy in STRATEGIES]


def wanted(settings: Settings) -> Strategy | None:
    """Return the strategy that the settings name, or None where they leave the choice.

    :raises ConfigError: no strategy has that name, or it cannot work with the other settings.
    """
    name = settings.concurrency.strategy
    if name == AUTO:
        return None
    strategy = _named(name)
    if strategy is None:
        *some, last = [AUTO, *names()]
        raise ConfigError(
            f"concurrency.strategy is {name[:_MAX_SHOWN_CHARACTERS]!r}, and there is no such strategy: set it to "
            f"{', '.join(some)} or {last}.",
            operation="open",
        )
    strategy.check(settings)
    return strategy


def agreed(record: BucketRecord) -> Strategy:
    """Return the strategy that a bucket's processes agreed on.

    :raises CompatibilityError: only a newer version knows its name.
    """
    strategy = _named(record.strategy)
    if strategy is None:
        raise CompatibilityError(
            f"The bucket's processes agreed on the strategy {record.strategy[:_MAX_SHOWN_CHARACTERS]!r} "
            f"({layout.BUCKET_RECORD}), and this version of "
            f"airflow-provider-pawnqueue has {' and '.join(names())} only: upgrade it in this process.",
            operation="open",
        )
    return strategy


def best(store: Abilities) -> tuple[Strategy, str]:
    """Return the most preferred strategy that a store can carry, and why it cannot carry the first one, or "".

    :raises CompatibilityError: it can carry none.
    """
    refusals: list[str] = []
    for strategy in STRATEGIES:
        refusal = strategy.refusal(store)
        if not refusal:
            return strategy, refusals[0] if refusals else ""
        refusals.append(refusal)
    raise CompatibilityError(f"This store can carry no strategy: {refusals[0]}.", operation="probe")


def founder(strategy: Strategy, store: Abilities) -> Strategy:
    """Return the strategy that creates the bucket's record: the agreed one, if each of its registers is one object.

    The record is read before its reader knows the strategy, so it is one object in any bucket.
    """
    return next(
        candidate for candidate in (strategy, *STRATEGIES) if candidate.is_one_object and not candidate.refusal(store)
    )


def _named(name: str) -> Strategy | None:
    return next((strategy for strategy in STRATEGIES if strategy.name == name), None)

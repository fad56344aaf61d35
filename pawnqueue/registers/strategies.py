"""The strategies that there are: the one list of them, from which settings, the probe and a bucket's record name one.

A new strategy is a module with its way to carry registers (:class:`~.cas.Registers`) and what it says of itself
(:class:`~.cas.Strategy`), and a line in here.
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

#: All strategies, those first that are preferred where a store can carry several. The last one any store can carry.
STRATEGIES: tuple[Strategy, ...] = (conditional_write.STRATEGY, csprng_verify.STRATEGY)

_SHOWN = 40  # of a name that is none


def names() -> list[str]:
    """Return the names of all strategies, the preferred ones first."""
    return [strategy.name for strategy in STRATEGIES]


def wanted(settings: Settings) -> Strategy | None:
    """Return the strategy that the settings name, or None where they leave the choice.

    :raises ConfigError: there is no such strategy, or other settings are not as it needs them.
    """
    name = settings.concurrency.strategy
    if name == AUTO:
        return None
    strategy = _named(name)
    if strategy is None:
        *some, last = [AUTO, *names()]
        raise ConfigError(
            f"concurrency.strategy is {name[:_SHOWN]!r}, and there is no such strategy: set it to {', '.join(some)} or "
            f"{last}.",
            operation="open",
        )
    strategy.check(settings)
    return strategy


def agreed(record: BucketRecord) -> Strategy:
    """Return the strategy that a bucket's processes agreed on.

    :raises CompatibilityError: a newer version has written its name.
    """
    strategy = _named(record.strategy)
    if strategy is None:
        raise CompatibilityError(
            f"The bucket's processes agreed on the strategy {record.strategy[:_SHOWN]!r} ({layout.BUCKET_RECORD}), and "
            f"this version of airflow-provider-pawnqueue has {' and '.join(names())} only: upgrade it in this process.",
            operation="open",
        )
    return strategy


def best(store: Abilities) -> tuple[Strategy, str]:
    """Return the most preferred strategy that a store can carry, and why not a more preferred one: "" if there is none.

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
    """Return the strategy by which the bucket's record is created: the agreed one, if a register of it is an object.

    The record is read before anybody knows the strategy, so it is one object in any bucket.
    """
    return next(
        candidate for candidate in (strategy, *STRATEGIES) if candidate.is_one_object and not candidate.refusal(store)
    )


def _named(name: str) -> Strategy | None:
    return next((strategy for strategy in STRATEGIES if strategy.name == name), None)

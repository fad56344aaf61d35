"""What is published: orders, some of which nobody can fulfil."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def order(number: int, poison_every: int) -> dict[str, Any]:
    """Make one order; every so-manieth is for nothing."""
    return {"order": number, "quantity": 0 if is_poison(number, poison_every) else 1 + number % 5}


def is_poison(number: int, poison_every: int) -> bool:
    """Say whether the order with this number cannot be fulfilled."""
    return number % poison_every == poison_every // 2


def can_be_fulfilled(payload: Mapping[str, Any]) -> bool:
    """Say what a consumer says that has read the order."""
    return payload["quantity"] > 0


def poison_among(numbers: Iterable[int], poison_every: int) -> int:
    """Count the orders that will end among the dead letters."""
    return sum(is_poison(number, poison_every) for number in numbers)

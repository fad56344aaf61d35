"""Orders for tests, and the check of the result: good ones are in the Parquet once, and others are dead letters."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pawnqueue import SyncPawnQueue

#: With what their reasons begin.
BAD: dict[str, dict[str, Any]] = {
    "the payload does not fit the schema": {"order_id": "none"},
    "there is no order_id": {"item": "plum"},
    "the quantity is not above zero": {"order_id": 7_000_000, "item": "pear", "quantity": 0, "price": "1.00"},
}


def orders(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Make good orders."""
    items = ["apple", "pear", "plum"]
    return [
        {"order_id": n, "item": items[n % 3], "quantity": 1 + n % 4, "price": "2.50"}
        for n in range(first, first + count)
    ]


def written(out: Path, table: str, column: str) -> Counter[Any]:
    """Count the values of a column, as a reader without the claim's id finds them."""
    return Counter(value for each in out.glob(f"claim=*/{table}") for value in pq.read_table(each)[column].to_pylist())


def left_of(queue: SyncPawnQueue, topic: str) -> dict[str, int]:
    """Return what is left of a topic's messages."""
    found = queue.stats(topic)
    left = {"pending": found.pending, "in_flight": found.in_flight, "delayed": found.delayed, "dead": found.dead}
    return {name: count for name, count in left.items() if count}


def judge(queue: SyncPawnQueue, topic: str, out: Path, good: int) -> None:
    """Check that each good order is there once, in the sums too, and that only dead letters are left, with reasons."""
    found = written(out, "orders", "order_id")
    wrong = {"missing": sorted(Counter(range(good)) - found), "too often": sorted(found - Counter(range(good)))}
    assert not any(wrong.values()), f"{wrong}, left of the topic: {left_of(queue, topic)}"
    assert sum(written(out, "by_item", "quantity").elements()) == sum(1 + n % 4 for n in range(good))
    letters = queue.dead_letters(topic)
    said = [f"{letter.reason}: {letter.error}" for letter in letters]
    reasons = [next((reason for reason in BAD if reason in one), one) for one in said]
    assert sorted(reasons) == sorted(BAD), said
    assert left_of(queue, topic) == {"dead": len(BAD)}

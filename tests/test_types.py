"""What a user's type checker says: misspelled and mistyped arguments are refused, by both queues alike."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

RIGHT = """
from datetime import datetime
from pawnqueue import Claim, MemoryStore, Message, NewMessage, PawnQueue, SyncPawnQueue

def work(queue: SyncPawnQueue) -> None:
    queue.create_topic("t", max_deliveries=None)
    queue.publish("t", [{"a": 1}, NewMessage({"a": 2}, headers={"h": "1"})], headers={"all": "x"})
    claim: Claim = queue.claim("t", "c", max_messages=3, max_bytes=10**6, ttl=60, claim_id="run", wait=1.5)
    first: Message = claim[0]
    when: datetime = first.created_at
    left: float = claim.seconds_left
    queue.ack(claim, first)
    queue.ack(claim, claim[1:])
    queue.nack(claim, [first.id], requeue=True, delay=5)
    queue.requeue(claim, first, delay=5, reason="not yet")
    queue.bury(claim, claim[1:], reason="no item", error="KeyError")
    queue.settle(claim, requeue={first: "not yet"}, bury={first.id: "no item"})
    for letter in queue.dead_letters("t"):
        print(letter.reason, when, left)

async def work_async() -> None:
    async with PawnQueue.open(store=MemoryStore(), polling={"interval_seconds": 1}) as queue:
        claim = await queue.claim("t", "c")
        async with queue.keep_alive(claim, on_lost=lambda error: print(error.settlement)):
            await queue.ack(claim)
"""
WRONG = (
    'queue.claim("t", "c", max_mesages=3)',
    'queue.claim("t", "c", max_messages="many")',
    'queue.create_topic("t", max_deliverys=3)',
    'queue.publish("t", {"a": 1})',
    "queue.ack(None)",
    'queue.nack(claim, requeue="yes")',
    "queue.bury(claim)",
    "claim.lost = None",
    "queue.redrive()",
)


def checked(tmp_path: Path, source: str) -> list[str]:
    """Return mypy's errors in a user's module, by its lines."""
    module = tmp_path / "users_module.py"
    module.write_text(source)
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path), str(module)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return [line for line in ran.stdout.splitlines() if "users_module" in line and ": error:" in line]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_type_checker_knows_the_front_door(tmp_path: Path) -> None:
    """What is right passes in strict mode; of what is wrong, each line is an error, whichever queue it is."""
    assert checked(tmp_path, RIGHT) == []
    head = "from pawnqueue import Claim, PawnQueue, SyncPawnQueue\n"
    of_sync = "def sync(queue: SyncPawnQueue, claim: Claim) -> None:\n" + "".join(f"    {line}\n" for line in WRONG)
    of_async = "async def other(queue: PawnQueue, claim: Claim) -> None:\n" + "".join(
        f"    {'await ' if line.startswith('queue') else ''}{line}\n" for line in WRONG
    )
    without_async = "def third() -> None:\n    with PawnQueue.open():\n        pass\n"
    errors = checked(tmp_path, head + of_sync + of_async + without_async)
    lines = {int(error.split(":")[1]) for error in errors}
    count = len(WRONG)
    assert lines == {*range(3, 3 + count), *range(4 + count, 4 + 2 * count), 5 + 2 * count}, "\n".join(errors)

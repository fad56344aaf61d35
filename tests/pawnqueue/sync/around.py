"""What tests of a synchronous queue share: its topic, its threads, and a process that fences its claims."""

from __future__ import annotations

import threading

from pawnqueue import Claim, MemoryStore
from pawnqueue.domain import layout

TOPIC = "orders"


def threads() -> list[str]:
    """Return the threads of queues that run now."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pawnqueue")]


def fence(store: MemoryStore, claim: Claim) -> None:
    """Fence the claim, as another process does."""
    record = claim._record.model_copy(update={"state": "expired"})
    store._write(layout.claim(TOPIC, record.stem), record.encode())

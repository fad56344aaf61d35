"""What is around a sync queue: its topic, the threads that it has, and somebody who ends its claims."""

from __future__ import annotations

import threading

from pawnqueue import Claim, MemoryStore
from pawnqueue.domain import layout

TOPIC = "orders"


def threads() -> list[str]:
    """The threads of queues."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pawnqueue")]


def fence(store: MemoryStore, claim: Claim) -> None:
    """Let somebody end the claim."""
    record = claim._record.model_copy(update={"state": "expired"})
    store._write(layout.claim(TOPIC, record.stem), record.encode())

"""A synchronous queue with a topic, in a bucket that was opened before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pawnqueue import MemoryStore, SyncPawnQueue
from pawnqueue.domain import layout
from pawnqueue.domain.records import BucketRecord
from tests.pawnqueue.sync.around import TOPIC, threads


@pytest.fixture
def store() -> MemoryStore:
    """A bucket that was opened before."""
    made = MemoryStore()
    made._write(layout.BUCKET_RECORD, BucketRecord(strategy="conditional_write").encode())
    return made


@pytest.fixture
def queue(store: MemoryStore) -> Iterator[SyncPawnQueue]:
    """A queue with a topic. Closing it leaves no thread."""
    with SyncPawnQueue.open(store=store, registry={"register_consumers": False}) as queue:
        queue.create_topic(TOPIC)
        yield queue
    assert threads() == []

"""UUIDs that are made many at once are those that Python makes one at a time."""

from __future__ import annotations

import hashlib
import random
import uuid

from pawnqueue.domain import layout
from pawnqueue.domain.uuids import named_uuid, uuids_of


def test_they_are_pythons_uuids_of_version_4() -> None:
    """Each has the bytes that it is made of, but for the bits of the version."""
    data = random.Random(4).randbytes(16 * 500)  # noqa: S311 - repeatable on purpose
    assert uuids_of(data) == [str(uuid.UUID(bytes=data[at : at + 16], version=4)) for at in range(0, len(data), 16)]
    assert uuids_of(b"") == []


def test_the_ids_of_a_write_never_change() -> None:
    """Topic, write, part and place make an id, in each version of this package."""
    ids = layout.written_ids("orders", "run-1", 3, range(9, 12))
    digests = [hashlib.sha256(f"orders\x00run-1\x003\x00{place}".encode()).digest() for place in range(9, 12)]
    assert ids == [str(uuid.UUID(bytes=digest[:16], version=4)) for digest in digests]
    assert ids[1:2] == [layout.written_id("orders", "run-1", 3, 10)] == [named_uuid("orders\x00run-1\x003\x0010")]

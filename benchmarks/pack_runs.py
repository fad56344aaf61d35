"""What a run of the benchmarks of packs passes on, and what it took."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pawnqueue import Settings

if TYPE_CHECKING:
    from tools.kit.servers import S3Server

TOPIC = "orders"
#: How many messages a claim asks for, where nothing else is said.
CLAIM = 10_000
#: Dollars a thousand requests on S3 Standard: PUT, COPY, POST and LIST; GET and HEAD. DELETE is free.
WRITES, READS = 0.005, 0.0004


@dataclass(frozen=True)
class Run:
    """What one run took: from publish to ack, and how long either part of it."""

    count: int
    published: float
    consumed: float
    requests: Counter[str] = field(default_factory=Counter)
    cpu: float = 0.0

    @property
    def rate(self) -> float:
        """Messages a second from publish to ack."""
        return self.count / (self.published + self.consumed)

    @property
    def dollars(self) -> float:
        """What a million messages cost on S3."""
        kinds: Counter[str] = Counter()
        for name, count in self.requests.items():
            kinds[name.partition(" ")[0]] += count
        reads = kinds["GET"] + kinds["HEAD"]
        writes = kinds.total() - reads - kinds["DELETE"]
        return (reads * READS + writes * WRITES) / 1000 * 1e6 / self.count


def settings_for(server: S3Server, bucket: str) -> Settings:
    """Return the queue's default settings for a bucket."""
    return Settings(s3=server.address(bucket))


def payloads_from(first: int, count: int) -> list[dict[str, Any]]:
    """Return payloads of about 200 bytes, numbered from ``first`` on."""
    pad = "x" * 60
    return [
        {
            "n": n,
            "item": f"item {n % 97}",
            "price": n / 7,
            "at": "2026-11-20T04:22:14Z",
            "who": str(uuid.UUID(int=n)),
            "pad": pad,
        }
        for n in range(first, first + count)
    ]

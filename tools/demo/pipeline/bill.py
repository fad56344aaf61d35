"""What the store was asked for, as the server itself counted it, and what that costs on S3."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from tools.kit.processes import loopback

#: Dollars a thousand requests, S3 Standard in us-east-1: PUT, COPY, POST and LIST; GET and HEAD; DELETE is free.
WRITES, READS = 0.005, 0.0004
_READS, _FREE = frozenset({"GET", "HEAD"}), frozenset({"DELETE"})

_LINE = re.compile(r'^SeaweedFS_s3_request_total\{bucket="(?P<bucket>[^"]*)",.*type="(?P<kind>\w+)"\} (?P<count>\S+)$')
_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Bill:
    """Requests, by kind."""

    requests: Counter[str]

    @property
    def total(self) -> int:
        """How many there were."""
        return self.requests.total()

    @property
    def dollars(self) -> float:
        """What they cost on S3."""
        reads = sum(count for kind, count in self.requests.items() if kind in _READS)
        free = sum(count for kind, count in self.requests.items() if kind in _FREE)
        return (reads * READS + (self.total - reads - free) * WRITES) / 1000

    def told(self) -> str:
        """Say it in words, the most frequent kind first."""
        return ", ".join(f"{count:,} {kind}" for kind, count in self.requests.most_common() if count)


def bill(metrics: str, bucket: str, but: Counter[str]) -> Bill:
    """Read what a server (SeaweedFS) counted for a bucket.

    :param but: what was asked for only to show how far it is, by kind.
    """
    with loopback.open(metrics, timeout=_SECONDS) as answer:
        text = answer.read().decode("utf-8")
    requests: Counter[str] = Counter()
    for line in text.splitlines():
        if (found := _LINE.match(line)) and found["bucket"] == bucket:
            requests[found["kind"]] += int(float(found["count"]))
    return Bill(requests - but)

"""A fault-injecting S3 server for tests: everything one needs from here.

::

    with FaultServer(Behaviour(if_none_match="racy"), buckets=("queues",)) as server:
        lost = server.inject(Fault(AppliedThenDropped(), operation="PutObject", key="*/leases/*", times=1))
"""

from __future__ import annotations

from tests.support.behaviour import Behaviour, Discipline
from tests.support.fault_rules import (
    AppliedThenDropped,
    AppliedThenStatus,
    Dropped,
    Effect,
    Fault,
    Injection,
    LandsLate,
    MalformedBody,
    NeverAnswers,
    PartialDelete,
    Status,
)
from tests.support.fault_server import FaultServer
from tests.support.journal import RecordedRequest

__all__ = [
    "AppliedThenDropped",
    "AppliedThenStatus",
    "Behaviour",
    "Discipline",
    "Dropped",
    "Effect",
    "Fault",
    "FaultServer",
    "Injection",
    "LandsLate",
    "MalformedBody",
    "NeverAnswers",
    "PartialDelete",
    "RecordedRequest",
    "Status",
]

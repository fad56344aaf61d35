"""The planning process is killed at each kind of request: each message comes once, and nothing is left."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.streams import Sink, Stream, planners
from tests.support.fault_rules import AppliedThenDropped, Dropped, Fault
from tests.support.faults import FaultServer

if TYPE_CHECKING:
    from tests.support.fault_rules import Effect, Injection
    from tests.support.journal import RecordedRequest
    from tools.kit.servers import S3Server

pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(500)]


@dataclass(frozen=True)
class Phase:
    """The request at which the process is killed, whether the store carries it out, and from when on it counts."""

    name: str
    operation: str
    key: str
    effect: Effect
    once_the_sink_has_a_batch: bool = False

    def arm(self, server: FaultServer) -> Injection:
        """Kill all planning processes at the next such request."""
        return server.inject(Fault(self.effect, self.operation, self.key, where=_kill, times=1))


LOST, DONE = Dropped(), AppliedThenDropped()
PHASES = [
    Phase("it has won a lease", "PutObject", "*/leases/*", DONE),
    Phase("before it records a claim", "PutObject", "*/claims/*", LOST),
    Phase("it has recorded a claim, and Spark has not noted it", "PutObject", "*/claims/*", DONE),
    Phase("the executors read", "GetObject", "*/[mp]*s/*", DONE),
    Phase("before it acks", "PutObject", "*/claims/*", LOST, once_the_sink_has_a_batch=True),
    Phase("it has acked", "PutObject", "*/claims/*", DONE, once_the_sink_has_a_batch=True),
    Phase("before it deletes", "DeleteObjects", "*", LOST, once_the_sink_has_a_batch=True),
    Phase("it has deleted", "DeleteObjects", "*", DONE, once_the_sink_has_a_batch=True),
]


QUICK = PHASES[4:5]


@pytest.mark.parametrize(
    ("packs", "phases"),
    [
        pytest.param(True, QUICK, id="packs"),
        pytest.param(True, PHASES, id="packs-all", marks=pytest.mark.full),
        pytest.param(False, PHASES, id="single-all", marks=pytest.mark.full),
    ],
)
def test_a_planning_process_that_is_killed_at_any_request(
    stream: Stream, seaweedfs: S3Server, phases: list[Phase], *, packs: bool
) -> None:
    """The restart after each kill brings what the sink lacks, and nothing twice. Packs are handed out in parts."""
    stream.queue.update_topic(stream.topic, packs=packs)
    how: dict[str, Any] = {"maxMessagesPerBatch": 5, "ttl": 6}
    sink, ids = Sink(), _publish(stream, 2, packs=packs)
    stream.run(sink, "one", **how)

    with FaultServer(upstream=seaweedfs.endpoint) as server:
        for phase in phases:
            ids += _publish(stream, 8, packs=packs)
            _run_until_killed(stream, sink, phase, server, how)
    stream.run(sink, "one", **how)

    assert sorted(sink.ids) == sorted(ids)
    assert stream.counts() == (0, 0)
    assert _left(stream, seaweedfs, "messages", "packs", "dead") == []
    stream.queue.sweep(stream.topic)  # a process that was killed may leave leases whose messages are gone
    assert _left(stream, seaweedfs, "leases") == []


def _run_until_killed(stream: Stream, sink: Sink, phase: Phase, server: FaultServer, how: dict[str, Any]) -> None:
    armed: list[Injection] = []

    def arm(_: int = 0) -> None:
        if not armed:
            armed.append(phase.arm(server))

    if phase.once_the_sink_has_a_batch:
        sink.seen = arm
    else:
        arm()
    query = stream.start(sink, "one", **how, **{"s3.endpoint_url": server.endpoint})
    with pytest.raises(StreamingQueryException):
        assert not query.awaitTermination(100), phase.name
    assert [each.hits for each in armed] == [1], phase.name
    sink.seen = lambda _: None


def _publish(stream: Stream, count: int, *, packs: bool) -> list[str]:
    return stream.queue.publish(stream.topic, [{"order_id": number} for number in range(count)], pack=packs)


def _kill(_request: RecordedRequest) -> bool:
    for pid in planners():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return True


def _left(stream: Stream, server: S3Server, *folders: str) -> list[str]:
    """Return the keys in some folders of the topic."""
    s3 = stream.settings.s3
    found = server.client().list_objects_v2(Bucket=s3.bucket_name, Prefix=f"{s3.key_prefix}{stream.topic}/")
    return [each["Key"] for each in found["Contents"] if each["Key"].split("/")[-2] in folders]

"""One bucket on each store, used by us and by the published library at once."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import PawnQueue, Settings
from pawnqueue.domain import layout
from tests.e2e.backends import CONDITIONAL, CSPRNG, Backend, patiently
from tests.interop.driver import Peer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tools.kit.servers import S3Server


@dataclass(frozen=True)
class Bucket:
    """A bucket that both use, and a third pair of eyes on it."""

    server: S3Server
    name: str
    backend: Backend

    @property
    def address(self) -> dict[str, Any]:
        """Where it is, in the words of either library's configuration."""
        return self.server.address(self.name)

    def settings(self, **s3: Any) -> Settings:
        """Return our settings for it."""
        return Settings(s3={**self.address, **s3}, **self.backend.sections)

    def config(self, **polling: Any) -> dict[str, Any]:
        """Return the peer's configuration for it. Alone with its bucket for that moment, it needs no long pauses."""
        pauses = {"jitter_min_ms": 1, "jitter_max_ms": 5, "verify_retries": 0, "verify_retry_delay_ms": 1}
        concurrency = {"strategy": self.backend.sections["concurrency"]["strategy"], "csprng_verify": pauses}
        return {"s3": self.address, "polling": polling, "concurrency": concurrency}

    def agree(self, prefix: str) -> None:
        """Let our processes below a prefix follow what those at the top have agreed on, without a probe of theirs."""
        source = {"Bucket": self.name, "Key": layout.BUCKET_RECORD}
        self.server.client().copy_object(Bucket=self.name, Key=prefix + layout.BUCKET_RECORD, CopySource=source)

    def keys(self, prefix: str) -> list[str]:
        """List what is below a prefix, without the prefix."""
        listed = self.server.client().list_objects_v2(Bucket=self.name, Prefix=prefix).get("Contents", [])
        return [one["Key"].removeprefix(prefix) for one in listed]

    def body(self, key: str) -> bytes:
        """Read an object."""
        return self.server.client().get_object(Bucket=self.name, Key=key)["Body"].read()

    def json(self, key: str) -> dict[str, Any]:
        """Read an object that is JSON."""
        return json.loads(self.body(key))

    def leases(self, topic: str) -> dict[str, bytes]:
        """Read all leases of a topic."""
        return {key: self.body(f"{topic}/leases/{key}") for key in self.keys(f"{topic}/leases/")}


@pytest.fixture(scope="session")
def buckets(request: pytest.FixtureRequest) -> Callable[[Backend], Bucket]:
    """A bucket for each backend, made when it is first asked for."""
    made: dict[str, Bucket] = {}

    def bucket(backend: Backend) -> Bucket:
        if str(backend) not in made:
            server = request.getfixturevalue(backend.server)
            made[str(backend)] = Bucket(server, server.make_bucket(), backend)
        return made[str(backend)]

    return bucket


@pytest.fixture(params=[CONDITIONAL, CSPRNG], ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each store with the strategy that it is used with."""
    return request.param


@pytest.fixture
def bucket(buckets: Callable[[Backend], Bucket], backend: Backend) -> Bucket:
    """The bucket of this test's backend."""
    return buckets(backend)


@pytest.fixture
async def ours(bucket: Bucket) -> AsyncIterator[PawnQueue]:
    """Our queue in the bucket."""
    queue = await patiently(lambda: PawnQueue.open(bucket.settings()))
    assert queue.strategy == bucket.backend.strategy
    async with queue:
        yield queue


@pytest.fixture(scope="session")
def process() -> Iterator[Callable[[], Peer]]:
    """The process of the published library that the tests share; another one after a test that left it in disorder."""
    started: list[Peer] = []

    def usable() -> Peer:
        if not started or not started[-1].usable:
            started.append(Peer())
        return started[-1]

    yield usable
    for one in started:
        one.close()


@pytest.fixture
async def peer(process: Callable[[], Peer], bucket: Bucket) -> Peer:
    """The published library, with the bucket open."""
    peer = process()
    assert (await peer.open(bucket.config()))["strategy"] == bucket.backend.strategy
    return peer


@pytest.fixture
async def mortal(bucket: Bucket) -> AsyncIterator[Peer]:
    """Another process of it, that may be killed."""
    peer = Peer()
    try:
        await peer.open(bucket.config())
        yield peer
    finally:
        peer.close()


@pytest.fixture
async def topic(peer: Peer) -> str:
    """A topic that the peer has created."""
    name = f"orders-{uuid.uuid4().hex[:12]}"
    await peer.create_topic(name)
    return name

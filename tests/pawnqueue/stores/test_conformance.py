"""Each adapter against each server that it can reach, by one suite."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pawnqueue import Settings
from pawnqueue.stores.connect import connect
from pawnqueue.stores.memory import MemoryStore
from tests.pawnqueue.opened import BUCKET, settings_at
from tests.pawnqueue.stores.conformance import (
    ConcurrentConformance,
    ConditionalConformance,
    ConditionalDeleteConformance,
    PlainConformance,
)
from tests.support.faults import Behaviour, FaultServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pawnqueue.stores.port import Store

both_clients = pytest.fixture(params=["obstore", "boto3"])


@pytest.fixture
def bare_etags() -> bool:
    """Whether ``If-Match`` wants the ETag without its quotes."""
    return False


class TestMemory(PlainConformance, ConditionalConformance, ConditionalDeleteConformance, ConcurrentConformance):
    """The memory store."""

    @pytest.fixture
    def store(self) -> Store:
        """A new bucket."""
        return MemoryStore()


class TestOverHttp(ConditionalDeleteConformance):
    """A server in memory that minds the ETags of a bulk DELETE."""

    @both_clients
    def client(self, request: pytest.FixtureRequest) -> str:
        """The adapter, by its setting."""
        return str(request.param)

    @pytest.fixture
    async def store(self, client: str) -> AsyncIterator[Store]:
        """An empty bucket, below a prefix."""
        with FaultServer(Behaviour(conditional_deletes=True), buckets=(BUCKET,)) as server:
            store = connect(Settings(**settings_at(server.endpoint, client, key_prefix="team/")).s3)
            yield store
            await store.aclose()


class _OnServer:
    server = ""

    @both_clients
    def client(self, request: pytest.FixtureRequest) -> str:
        """The adapter, by its setting."""
        return str(request.param)

    @pytest.fixture
    async def store(
        self, request: pytest.FixtureRequest, client: str, settings_for: Callable[..., Settings]
    ) -> AsyncIterator[Store]:
        """A prefix of its own in a bucket of the server."""
        settings = settings_for(request.getfixturevalue(self.server), s3={"client": client})
        store = connect(settings.s3)
        yield store
        await store.aclose()


@pytest.mark.servers
class TestSeaweedFS(
    _OnServer, PlainConformance, ConditionalConformance, ConditionalDeleteConformance, ConcurrentConformance
):
    """SeaweedFS does all of it."""

    server = "seaweedfs"


@pytest.mark.servers
class TestMoto(_OnServer, PlainConformance, ConditionalConformance):
    """moto does it in sequence."""

    server = "moto"


@pytest.mark.servers
class TestRclone(_OnServer, PlainConformance):
    """rclone has no conditions."""

    server = "rclone"


@pytest.mark.ceph
class TestCeph(_OnServer, PlainConformance, ConditionalConformance, ConcurrentConformance):
    """Ceph 16 does all of it, where ``If-Match`` has no quotes."""

    server = "ceph"

    @pytest.fixture
    def bare_etags(self) -> bool:
        """See above."""
        return True


@pytest.mark.own_store
class TestOwnStore(PlainConformance, ConditionalConformance, ConcurrentConformance):
    """The user's own bucket, below a prefix that is removed again."""

    @both_clients
    def client(self, request: pytest.FixtureRequest) -> str:
        """The adapter, by its setting."""
        return str(request.param)

    @pytest.fixture
    async def store(self, client: str, own_settings: Callable[[str], Settings]) -> AsyncIterator[Store]:
        """A prefix of its own in the bucket that the environment names."""
        store = connect(own_settings(client).s3)
        yield store
        async for page in store.pages(""):
            await store.delete([info.key for info in page])
        await store.aclose()

    @pytest.fixture
    def own_settings(self) -> Callable[[str], Settings]:
        """Settings from ``PAWNQUEUE_S3_*``."""

        def make(client: str) -> Settings:
            prefix = os.environ.get("PAWNQUEUE_S3_KEY_PREFIX", "")
            unique = f"{prefix.strip('/')}/pawnqueue-conformance/{os.getpid()}-{os.urandom(6).hex()}/".lstrip("/")
            return Settings.from_env(s3={"client": client, "key_prefix": unique})

        return make

    @pytest.fixture
    def bare_etags(self) -> bool:
        """``PAWNQUEUE_TEST_BARE_ETAGS=1`` for stores such as Ceph 16."""
        return os.environ.get("PAWNQUEUE_TEST_BARE_ETAGS") == "1"

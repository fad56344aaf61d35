"""The open queues of a process: one a connection, whoever asks, and closed when it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import pytest

from airflow_provider_pawnqueue.hooks import clients
from airflow_provider_pawnqueue.hooks.clients import Clients
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from pawnqueue import ClaimReference, MemoryStore, SyncPawnQueue
from tests.hooks.opening import done, program
from tests.support.airflow_names import redact
from tests.support.faults import FaultServer
from tools.kit.servers import S3Server


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """A store."""
    with FaultServer(buckets=("queues",)) as server:
        yield server


def test_hooks_of_one_connection_share_a_client(
    here: Clients, connection: Callable[..., str], server: FaultServer
) -> None:
    """Hooks that ask at once get one client; a connection that has changed gets another one."""
    fields = {"host": server.endpoint, "login": "key", "password": "secret0"}
    conn_id = connection(extra={"bucket_name": "queues"}, **fields)
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: id(PawnQueueHook(conn_id).queue), range(16)))
    first = PawnQueueHook(conn_id).get_conn()
    assert found == {id(first)}
    connection(extra={"bucket_name": "queues", "key_prefix": "other"}, **fields)
    assert PawnQueueHook(conn_id).queue is not first
    assert not first.closed


def test_a_client_that_was_closed_is_opened_again(hook: PawnQueueHook) -> None:
    """The next caller gets an open client."""
    first = hook.queue
    first.close()
    assert hook.queue is not first
    assert hook.list_topics() == ["orders"]


def test_a_store_that_fails_is_asked_again(here: Clients, hook: PawnQueueHook, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure to open is not remembered."""
    here.close()
    with monkeypatch.context() as patched:
        patched.setattr(clients, "open_queue", lambda *_, **__: (_ for _ in ()).throw(OSError("away")))
        with pytest.raises(OSError, match="away"):
            hook.list_topics()
    assert hook.list_topics() == ["orders"]


async def test_it_may_be_called_inside_a_running_loop(hook: PawnQueueHook) -> None:
    """A synchronous call in a running loop blocks the loop and returns."""
    ids = hook.publish("orders", [{"n": 1}])
    assert hook.ack(hook.claim("orders", "c")).acked == ids


class Slow:
    """Opening takes its time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_end = threading.Event()
        self.began = threading.Event()
        self.count = 0
        really = clients.open_queue

        def slowly(*arguments: Any, **named: Any) -> SyncPawnQueue:
            self.count += 1
            self.began.set()
            assert self.may_end.wait(20)
            return really(*arguments, **named)

        monkeypatch.setattr(clients, "open_queue", slowly)


async def topics(hook: PawnQueueHook) -> list[str]:
    """List topics from another event loop."""
    return await hook.awaited(lambda queue: queue.list_topics())


async def test_opening_blocks_no_loop(here: Clients, hook: PawnQueueHook, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a connection takes its time, the loop of the waiting caller ticks on; all waiting callers share one."""
    here.close()
    slow = Slow(monkeypatch)
    calls = [asyncio.create_task(topics(hook)) for _ in range(3)]
    ticks = 0
    longest = 0.0
    while ticks < 50:
        before = time.monotonic()
        await asyncio.sleep(0.005)
        longest = max(longest, time.monotonic() - before)
        ticks += 1
    assert slow.began.is_set()
    assert not any(call.done() for call in calls)
    assert longest < 0.2
    slow.may_end.set()
    assert await asyncio.gather(*calls) == [["orders"]] * 3
    assert slow.count == 1


async def test_a_caller_that_is_cancelled_while_it_opens_leaves_it_to_others(
    here: Clients, hook: PawnQueueHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancelled caller returns at once, and the next caller gets the client."""
    here.close()
    slow = Slow(monkeypatch)
    call = asyncio.create_task(topics(hook))
    await asyncio.to_thread(slow.began.wait, 20)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(call, 1)
    slow.may_end.set()
    assert await topics(hook) == ["orders"]
    assert slow.count == 1


def test_several_loops_share_one(hook: PawnQueueHook) -> None:
    """Loops in several threads share a client, one after the other and at once."""

    async def work() -> int:
        ids = await hook.awaited(lambda queue: queue.publish("orders", [{"n": 1}]))
        claim = await hook.awaited(lambda queue: queue.claim("orders", "c", max_messages=1, wait=20))
        done = await hook.awaited(lambda queue: queue.ack(claim))
        return len(ids) if len(done.acked) == 1 else -1

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: asyncio.run(work()), range(8))) == [1] * 8


async def test_a_call_that_is_cancelled_leaves_nothing(hook: PawnQueueHook, store: MemoryStore) -> None:
    """A cancelled claim stops waiting, and other consumers get messages that come later."""
    waiting = asyncio.ensure_future(hook.awaited(lambda queue: queue.claim("orders", "c", wait=60)))
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    ids = await hook.awaited(lambda queue: queue.publish("orders", [{"n": 1}]))
    assert (await hook.awaited(lambda queue: queue.claim("orders", "d"))).ids == ids


FORKS = """
import os, sys
from airflow_provider_pawnqueue.hooks.clients import CLIENTS
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook

hook = PawnQueueHook("q")
hook.create_topic("orders")
mine = hook.queue
claim = hook.claim("orders", "nobody", claim_id="parents") if hook.publish("orders", [{"n": 0}]) else None
for number in (1, 2):
    child = os.fork()
    if child == 0:
        assert CLIENTS.find(hook.address) is None
        hook.publish("orders", [{"n": number}])
        assert hook.queue is not mine
        grandchild = os.fork()
        if grandchild == 0:
            hook.publish("orders", [{"n": number + 10}])
            sys.exit(0)  # which ends as a script does
        assert os.waitpid(grandchild, 0)[1] == 0
        hook.publish("orders", [{"n": number + 20}])
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert hook.queue is mine and not mine.closed
assert hook.ack(claim).acked == claim.ids
print("=>", sorted(message.payload["n"] for message in hook.peek("orders", 20)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("client", ["obstore", "boto3"])
def test_forked_children_open_their_own(server: FaultServer, client: str) -> None:
    """A child ends without closing its parent's client, which goes on with its claim."""
    assert done(program(FORKS, server.endpoint, client=client)) == "[1, 2, 11, 12, 21, 22]"


ENDS = """
import sys, time
from pawnqueue.stores import credentials
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
credentials.HOLD = credentials.timedelta(seconds=0.2)

hook = PawnQueueHook("q")
hook.create_topic("orders")
hook.publish("orders", [{"n": 0}])
claim = hook.claim("orders", "c", claim_id="a", ttl=600)
print("=>", claim.generation, flush=True)
time.sleep(0.4)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "end"), [("obstore", ""), ("boto3", ""), ("obstore", "sys.exit(3)"), ("boto3", "1 / 0")]
)
def test_a_process_that_ends_leaves_its_claims(
    server: FaultServer, here: Clients, connection: Callable[..., str], client: str, end: str
) -> None:
    """The next claim by the same id need not wait, also where the requests at the end have to read keys again."""
    process = program(f"{ENDS}\n{end}", server.endpoint, client=client)
    generation = int(done(process, {"": 0, "sys.exit(3)": 3}.get(end, 1)))
    login = {"login": "AKTEST", "password": "SKTEST0123456789"}
    hook = PawnQueueHook(connection(extra={"bucket_name": "queues"}, host=server.endpoint, **login))
    assert len(hook.attach(ClaimReference("orders", "a", generation, "unknown"), wait=0)) == 1


class TestBorrowedIdentity:
    """An AWS connection gives the identity, through the amazon provider."""

    def test_its_keys_sign_the_requests(
        self, here: Clients, connection: Callable[..., str], server: FaultServer
    ) -> None:
        """Requests to the endpoint are signed with the AWS connection's keys."""
        aws = connection(
            "aws_there", {"endpoint_url": server.endpoint}, conn_type="aws", login="AWSKEY", password="aws-secret-key"
        )
        hook = PawnQueueHook(connection(extra={"bucket_name": "queues", "aws_conn_id": aws}))
        hook.create_topic("orders")
        assert {request.access_key_id for request in server.requests} == {"AWSKEY"}

    def test_others_are_given_its_keys(
        self, here: Clients, connection: Callable[..., str], server: FaultServer
    ) -> None:
        """Settings for another program have the AWS connection's keys, which logs mask."""
        aws = connection(
            "aws_there", {"endpoint_url": server.endpoint}, conn_type="aws", login="AWSKEY", password="aws-secret-key"
        )
        address = PawnQueueHook(connection(extra={"bucket_name": "queues", "aws_conn_id": aws})).address
        settings = clients.settings_for_others(address)
        assert settings.s3.aws_access_key_id == "AWSKEY"
        assert settings.s3.endpoint_url == server.endpoint
        assert redact("it is aws-secret-key") == "it is ***"
        with SyncPawnQueue.open(settings) as queue:
            queue.create_topic("orders")
        assert {request.access_key_id for request in server.requests} == {"AWSKEY"}

    def test_others_find_the_identity_of_the_machine_themselves(
        self, connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An AWS connection without keys gives another program none, as it finds the machine's identity itself."""
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "MACHINE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "machine-secret")
        aws = connection("aws_there", {"region_name": "us-east-1"}, conn_type="aws")
        address = PawnQueueHook(connection(extra={"bucket_name": "queues", "aws_conn_id": aws})).address
        assert clients.settings_for_others(address) == address.settings

    @pytest.mark.servers
    def test_a_role_is_assumed(self, here: Clients, connection: Callable[..., str], moto: S3Server) -> None:
        """The requests are signed with the token service's keys, not with the connection's."""
        bucket = moto.make_bucket()
        aws = connection(
            "aws_there",
            {
                "endpoint_url": moto.endpoint,
                "service_config": {"sts": {"endpoint_url": moto.endpoint}},
                "role_arn": "arn:aws:iam::123456789012:role/queues",
                "region_name": "us-east-1",
            },
            conn_type="aws",
            login=moto.access_key,
            password=moto.secret_key,
        )
        hook = PawnQueueHook(connection(extra={"bucket_name": bucket, "aws_conn_id": aws}))
        session = clients.aws_hook(aws).get_session(region_name="us-east-1")
        assert isinstance(session, boto3.Session)
        frozen = session.get_credentials().get_frozen_credentials()
        assert frozen.access_key != moto.access_key
        assert frozen.token
        hook.create_topic("orders")
        assert hook.list_topics() == ["orders"]
        lent = clients.settings_for_others(hook.address).s3
        assert lent.aws_session_token is not None
        assert lent.aws_access_key_id != moto.access_key


def test_a_test_of_the_users_may_keep_it_in_memory(here: Clients, connection: Callable[..., str]) -> None:
    """A store that was put at a connection's address is used for that connection."""
    hook = PawnQueueHook(connection(extra={"bucket_name": "queues"}))
    here.put(hook.address, MemoryStore())
    hook.create_topic("orders")
    assert hook.list_topics() == ["orders"]

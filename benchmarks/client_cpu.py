"""Client CPU per request, obstore against boto3.

Each client runs in a process of its own, so that what it uses is its own, and the two take turns on one server. What is
measured is the process's user and system CPU, threads included, over many requests, divided by their number. Requests
a second say less: server and client share the machine.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import resource
import statistics
import subprocess
import sys
import time
import uuid
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.store import S3Store

from pawnqueue import Settings
from pawnqueue.runtime.concurrency import for_each
from pawnqueue.stores.boto3_s3 import MAX_KEYS_PER_DELETE
from pawnqueue.stores.connect import connect
from pawnqueue.stores.port import Done, Expect
from tools.kit import servers
from tools.kit.stores import ALL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from pawnqueue.settings import S3Settings
    from pawnqueue.stores.port import Store

T = TypeVar("T")

#: Through the engine's port; and obstore without anything of ours, to see what the port costs.
CLIENTS = ("obstore", "boto3", "raw obstore")
OBJECTS = 2 * MAX_KEYS_PER_DELETE
LISTS = 10
ROUNDS = 3
AT_ONCE = 32
BODY = b"x" * 512


@dataclass(frozen=True, slots=True)
class Measure:
    """What one operation took, in one round."""

    client: str
    operation: str
    requests: int
    cpu: float
    seconds: float


# --- the process that starts the others ---


def run() -> None:
    """Measure, and print a table."""
    measures: list[Measure] = []
    print("   starting SeaweedFS", flush=True)
    with servers.seaweedfs() as server:
        bucket = server.make_bucket()
        for number in range(ROUNDS):
            for client in CLIENTS:
                settings = Settings(
                    s3=server.address(
                        bucket,
                        key_prefix=f"bench-{uuid.uuid4().hex[:8]}/",
                        client="boto3" if client == "boto3" else "obstore",
                        max_connections=AT_ONCE,
                    )
                )
                started = time.monotonic()
                found = _in_a_process(client, settings)
                measures += found
                took = f"{sum(one.requests for one in found)} requests in {time.monotonic() - started:.1f} s"
                print(f"   round {number + 1} of {ROUNDS}, {client}: {took}", flush=True)
    _print_table(measures)


def _in_a_process(client: str, settings: Settings) -> list[Measure]:
    command = [sys.executable, "-m", "benchmarks.client_cpu", client, b64encode(pickle.dumps(settings.s3)).decode()]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return [Measure(**one) for one in json.loads(done.stdout)]


def _print_table(measures: Iterable[Measure]) -> None:
    """Print the median of the rounds, and how many times more than obstore's each client takes."""
    by_place: dict[tuple[str, str], list[Measure]] = {}
    for one in measures:
        by_place.setdefault((one.operation, one.client), []).append(one)
    print()
    print(f"   {'operation':<24}{'client':<14}{'CPU ms/request':>16}{'requests/s':>13}{'CPU : obstore':>16}")
    base = 0.0
    for operation in dict.fromkeys(place[0] for place in by_place):
        for client in CLIENTS:
            rounds = by_place[operation, client]
            cpu = statistics.median(one.cpu / one.requests for one in rounds) * 1000
            rate = statistics.median(one.requests / one.seconds for one in rounds)
            base = cpu if client == CLIENTS[0] else base
            ratio = f"{cpu / base:.1f}"
            print(f"   {operation:<24}{client:<14}{cpu:>16.3f}{rate:>13,.0f}{ratio:>16}")
    print()
    print(f"   Median of {ROUNDS} rounds; bodies of {len(BODY)} bytes, {AT_ONCE} requests at once, LIST one by one.")


# --- the measured process ---


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class _Bench:
    def __init__(self, client: str) -> None:
        self._client = client
        self.measures: list[Measure] = []

    async def measure(self, operation: str, requests: int, work: Callable[[], Awaitable[T]]) -> T:
        cpu, started = _cpu(), time.monotonic()
        result = await work()
        self.measures.append(Measure(self._client, operation, requests, _cpu() - cpu, time.monotonic() - started))
        return result


async def _through_the_port(bench: _Bench, store: Store) -> None:
    keys = [f"objects/{number:05d}" for number in range(OBJECTS)]

    async def create(key: str) -> None:
        outcome = await store.put(key, BODY, expect=Expect.NOTHING)
        if not isinstance(outcome, Done):
            raise TypeError(outcome)

    async def read(key: str) -> None:
        found = await store.get(key, ALL)
        if found is None or found.body != BODY:
            raise ValueError(key)

    async def list_all(_: int) -> None:
        found = [info.key async for page in store.pages("objects/") for info in page]
        if found != keys:
            raise ValueError(len(found))

    await store.put("warm/up", b"")
    await bench.measure("PUT, create", OBJECTS, lambda: for_each(create, keys, at_once=AT_ONCE))
    await bench.measure("GET", OBJECTS, lambda: for_each(read, keys, at_once=AT_ONCE))
    requests = LISTS * OBJECTS // MAX_KEYS_PER_DELETE
    await bench.measure("LIST of 1,000", requests, lambda: for_each(list_all, range(LISTS), at_once=1))
    if await bench.measure("DELETE of 1,000", OBJECTS // MAX_KEYS_PER_DELETE, lambda: store.delete(keys)):
        raise ValueError("not all were deleted")
    await store.aclose()


async def _raw(bench: _Bench, settings: S3Settings) -> None:
    secret = settings.aws_secret_access_key
    store = S3Store(
        settings.bucket_name,
        prefix=settings.key_prefix.rstrip("/"),
        endpoint=settings.endpoint_url or "",
        region=settings.region_name,
        access_key_id=settings.aws_access_key_id or "",
        secret_access_key=secret.get_secret_value() if secret else "",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    keys = [f"objects/{number:05d}" for number in range(OBJECTS)]

    async def create(key: str) -> None:
        await obstore.put_async(store, key, BODY, mode="create", use_multipart=False)

    async def read(key: str) -> None:
        if bytes(await (await obstore.get_async(store, key)).bytes_async()) != BODY:
            raise ValueError(key)

    async def list_all(_: int) -> None:
        found = [meta["path"] async for page in _pages(store) for meta in page]
        if found != keys:
            raise ValueError(len(found))

    await obstore.put_async(store, "warm/up", b"")
    await bench.measure("PUT, create", OBJECTS, lambda: for_each(create, keys, at_once=AT_ONCE))
    await bench.measure("GET", OBJECTS, lambda: for_each(read, keys, at_once=AT_ONCE))
    requests = LISTS * OBJECTS // MAX_KEYS_PER_DELETE
    await bench.measure("LIST of 1,000", requests, lambda: for_each(list_all, range(LISTS), at_once=1))
    await bench.measure("DELETE of 1,000", OBJECTS // MAX_KEYS_PER_DELETE, lambda: obstore.delete_async(store, keys))


async def _pages(store: S3Store) -> AsyncIterator[list[obstore.ObjectMeta]]:
    async for page in obstore.list(store, "objects/", chunk_size=MAX_KEYS_PER_DELETE):
        yield list(page)


def _main() -> None:
    client, encoded = sys.argv[1:]
    settings: S3Settings = pickle.loads(b64decode(encoded))  # noqa: S301 - our own parent's
    bench = _Bench(client)
    asyncio.run(_raw(bench, settings) if client == "raw obstore" else _through_the_port(bench, connect(settings)))
    print(json.dumps([asdict(one) for one in bench.measures]))


if __name__ == "__main__":
    _main()

"""A bucket that is opened: settings for it, and a store that watches who does."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from pawnqueue.stores.port import Done
from tests.support.faults import FaultServer
from tools.kit.stores import Answer, CarryOut, HookedStore, Request

BUCKET = "queues"
RECORD = "_registry/bucket.json"
SECRET, TOKEN = "secret-that-nobody-may-see", "token-that-nobody-may-see"
QUICK = {"initial_delay_seconds": 0.001, "max_delay_seconds": 0.02}

both_clients = pytest.mark.parametrize("client", ["obstore", "boto3"])


def settings_at(endpoint: str, client: str = "obstore", **s3: Any) -> dict[str, Any]:
    """Return settings for the bucket behind the endpoint."""
    chosen = {
        "bucket_name": BUCKET,
        "endpoint_url": endpoint,
        "aws_access_key_id": "AKTEST",
        "aws_secret_access_key": SECRET,
        "client": client,
        **s3,
    }
    return {"s3": {name: value for name, value in chosen.items() if value is not None}, "retry": QUICK}


def operations(server: FaultServer) -> list[tuple[str, str]]:
    """Return what was asked of the server."""
    return [(request.operation, request.key) for request in server.requests]


class Watched(HookedStore):
    """A bucket in memory that takes turns by chance, counts its calls, and remembers its writes of the record."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._chance = random.Random(seed)  # noqa: S311
        self.calls = 0
        self.records: list[bytes] = []

    async def answer(self, request: Request, carry_out: CarryOut) -> Answer:
        """Take some turns first."""
        if not request.page:
            self.calls += 1
            for _ in range(self._chance.randrange(4)):
                await asyncio.sleep(0)
        answer = await carry_out()
        if (request.call, request.key) == ("put", RECORD) and isinstance(answer, Done):
            self.records.append(request.body)
        return answer

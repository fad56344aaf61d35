"""Registrations in a bucket, and a store that tells of them."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from datetime import datetime
from typing import Any

from pawnqueue import StoreError
from tests.pawnqueue.virtual import Client
from tools.kit.stores import Answer, CarryOut, HookedStore, Request

INTERVAL = 60.0


class ScriptedStore(HookedStore):
    """A store in memory that tells when a registration was written, and can refuse to write any."""

    def __init__(self) -> None:
        """Start well."""
        super().__init__()
        self.refuses: StoreError | None = None
        self.tried: asyncio.Queue[str] = asyncio.Queue()
        self.held: asyncio.Event | None = None

    async def answer(self, request: Request, carry_out: CarryOut) -> Answer:
        """Write, and tell."""
        if request.call == "put" and request.key.startswith(("_registry/producers/", "_registry/consumers/")):
            self.tried.put_nowait(request.key)
            if self.held is not None:
                await self.held.wait()
            if self.refuses is not None:
                raise self.refuses
        return await carry_out()

    async def json(self, key: str) -> dict[str, Any]:
        """Return the stored object."""
        found = await self.get(key)
        assert found is not None
        return dict(json.loads(found.body))

    async def keys(self, folder: str = "_registry/") -> list[str]:
        """Return the keys below the folder, without the bucket's record."""
        keys = [info.key async for page in self.pages(folder) for info in page]
        return [key for key in keys if key != "_registry/bucket.json"]


def registered_by_pawn_queue(name: str, registered_at: str, role: str = "producers") -> tuple[str, bytes, str]:
    """Return key, body and id of a registration as the published library writes it."""
    entity_id = str(uuid.uuid4())
    body = {
        "role": role,
        "name": name,
        "entity_id": entity_id,
        "registered_at": registered_at,
        "last_seen": registered_at,
    }
    return f"_registry/{role}/{entity_id}.json", json.dumps(body).encode(), entity_id


def seen(record: dict[str, Any]) -> float:
    """Return when it was last seen."""
    return datetime.fromisoformat(record["last_seen"]).timestamp()


async def every_record(store: ScriptedStore) -> dict[str, dict[str, Any]]:
    """Return all registrations by key."""
    return {key: await store.json(key) for key in await store.keys()}


def beating() -> list[str]:
    """Return the heartbeats that are under way."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "pawnqueue-heartbeat"]


def registry(client: Client, since: int = 0) -> list[tuple[str, str]]:
    """What was asked of the producers' folder."""
    return [(kind, key) for kind, key in client.requests[since:] if key.startswith("_registry/producers/")]


def kinds(client: Client, since: int = 0) -> Counter[str]:
    """How often each kind of request was."""
    return Counter(kind for kind, _ in registry(client, since))

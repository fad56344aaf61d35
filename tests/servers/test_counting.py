"""The number of requests that the demo shows is the number of requests that a server gets."""

from __future__ import annotations

import pytest

from pawnqueue import PawnQueue, Settings
from pawnqueue.stores.connect import connect
from tests.support.faults import FaultServer
from tools.kit.stores import CountingStore

BUCKET = "queues"


@pytest.mark.parametrize("client", ["obstore", "boto3"])
async def test_every_request_is_counted(client: str) -> None:
    """Publish, claim, renew, bury, ack, sweep and looking in vain: what was counted is what arrived."""
    with FaultServer(buckets=(BUCKET,)) as server:
        settings = Settings(s3=server.s3.address(BUCKET, client=client))
        store = CountingStore(connect(settings.s3))
        async with PawnQueue.open(settings, store=store) as queue:
            await queue.create_topic("orders", packs=False)
            await queue.publish("orders", [{"order": number} for number in range(1_100)])
            claim = await queue.claim("orders", "shop", max_messages=1_050)
            await queue.renew(claim)
            await queue.nack(claim, claim.ids[:3])
            await queue.nack(claim, claim.ids[3:5], requeue=True, delay=60)
            await queue.ack(claim)
            assert len(await queue.claim("orders", "shop", max_messages=1_000)) == 50
            assert not await queue.claim("orders", "shop")
            await queue.sweep("orders")
            await queue.list_topics()
        await store.aclose()
        assert store.total == len(server.requests)

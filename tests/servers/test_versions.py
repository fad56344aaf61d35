"""What the page on AWS says of versions, Object Lock and its lifecycle rule."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import StoreError, SyncPawnQueue

if TYPE_CHECKING:
    from tools.kit.servers import S3Server

pytestmark = pytest.mark.servers

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "aws.md"
RETENTION = {"Mode": "GOVERNANCE", "Days": 1}


def live(server: S3Server, bucket: str) -> None:
    """Let fifty messages be published, claimed, renewed, settled, redriven and swept."""
    with SyncPawnQueue.open(s3=server.address(bucket)) as queue:
        assert queue.strategy == "conditional_write"
        queue.create_topic("orders")
        queue.publish("orders", [{"n": n} for n in range(50)])
        claim = queue.claim("orders", "billing", max_messages=50)
        for _ in range(10):
            queue.renew(claim)
        queue.nack(claim, claim.ids[:5], reason="not yet")
        queue.ack(claim, claim.ids[5:])
        assert len(queue.redrive("orders").moved) == 5
        assert len(queue.ack(queue.claim("orders", "billing", max_messages=50)).acked) == 5
        assert not queue.sweep("orders").failures
        stats = queue.stats("orders")
        assert (stats.pending, stats.in_flight, stats.dead) == (0, 0, 0)


def versions(server: S3Server, bucket: str) -> tuple[int, int, int]:
    """Count objects, old versions and delete markers."""
    listed: dict[str, Any] = dict(server.client().list_object_versions(Bucket=bucket))
    found = listed.get("Versions", [])
    current = sum(version["IsLatest"] for version in found)
    return current, len(found) - current, len(listed.get("DeleteMarkers", []))


def lockable(server: S3Server, retention: dict[str, Any] | None) -> str:
    """Make a bucket with Object Lock."""
    bucket = f"lock-{uuid.uuid4().hex[:12]}"
    server.client().create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    if retention is not None:
        rule: Any = {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": retention}}
        server.client().put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration=rule)
    return bucket


def test_a_bucket_with_versions_keeps_them_all(seaweedfs: S3Server) -> None:
    """The queue works, and what it has done with stays, some six objects a message."""
    bucket = seaweedfs.make_bucket()
    seaweedfs.client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    live(seaweedfs, bucket)
    current, old, markers = versions(seaweedfs, bucket)
    assert current == 4
    assert 140 <= old <= 180
    assert 120 <= markers <= 145


@pytest.mark.parametrize("retention", [None, RETENTION], ids=["without", "with-retention"])
def test_seaweedfs_takes_it_below_object_lock(seaweedfs: S3Server, retention: dict[str, Any] | None) -> None:
    """With a retention too, as it asks for no checksum."""
    live(seaweedfs, lockable(seaweedfs, retention))


def test_a_store_that_wants_checksums_below_object_lock_refuses_ours(moto: S3Server) -> None:
    """As AWS documents it for a bucket with a default retention; without one, all is well."""
    live(moto, lockable(moto, None))
    with pytest.raises(StoreError, match=r"rejected PutObject .*\(400"):
        live(moto, lockable(moto, RETENTION))


def test_the_pages_rule_is_one(moto: S3Server) -> None:
    """A store takes it."""
    found = re.search(r"^```json lifecycle\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    bucket = moto.make_bucket()
    rules: Any = json.loads(found[1])
    moto.client().put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration=rules)
    kept = moto.client().get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    assert [rule["Status"] for rule in kept] == ["Enabled"]

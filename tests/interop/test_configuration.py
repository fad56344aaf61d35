"""A configuration that was written for the published library configures us."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import PawnQueue, Settings
from tests.e2e.backends import CONDITIONAL

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interop.conftest import Bucket
    from tests.interop.driver import Peer

pytestmark = [pytest.mark.servers, pytest.mark.peer, pytest.mark.parametrize("backend", [CONDITIONAL], ids=str)]

# All settings that it has, none at its default.
CONFIG = """
s3:
  endpoint_url: "{endpoint_url}"
  bucket_name: "{bucket_name}"
  aws_access_key_id: "{aws_access_key_id}"
  aws_secret_access_key: "{aws_secret_access_key}"
  region_name: "{region_name}"
  use_ssl: false

polling:
  interval_seconds: 4
  max_messages_per_poll: 7
  visibility_timeout_seconds: 25
  lease_refresh_interval_seconds: 8
  jitter_max_ms: 150

concurrency:
  strategy: "conditional_write"
  csprng_verify:
    jitter_min_ms: 90
    jitter_max_ms: 300
    verify_retries: 1
    verify_retry_delay_ms: 110

registry:
  heartbeat_interval_seconds: 45
"""


def as_it_has_it(settings: Settings) -> dict[str, Any]:
    """Return of our settings those that it has too, by its names."""
    ours = settings.model_dump()
    mine = settings.s3
    ours["s3"]["aws_secret_access_key"] = mine.aws_secret_access_key and mine.aws_secret_access_key.get_secret_value()
    return ours


def common(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Return ours, as far as it has theirs."""
    return {
        name: common(ours[name], value) if isinstance(value, dict) else ours[name] for name, value in theirs.items()
    }


async def exchange(ours: PawnQueue, peer: Peer, topic: str) -> None:
    """Give each other a message."""
    theirs = await peer.publish(topic, [{}])
    claim = await ours.claim(topic, "ours")
    assert claim.ids == theirs
    await ours.ack(claim)
    published = await ours.publish(topic, [{}])
    assert [message["id"] for message in await peer.poll(topic)] == published


async def test_its_config_yaml_configures_us(peer: Peer, bucket: Bucket, topic: str, tmp_path: Path) -> None:
    """One file opens both: every setting that it has means the same to us, and messages go both ways."""
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format_map(bucket.address))
    theirs = await peer.open(str(path))
    assert theirs.pop("strategy") == "conditional_write"

    assert common(as_it_has_it(Settings.from_yaml(path)), theirs) == theirs
    async with PawnQueue.open(path) as ours:
        await exchange(ours, peer, topic)


async def test_its_environment_configures_us(
    peer: Peer, bucket: Bucket, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All variables that it reads mean the same to us, without a file."""
    environment = {
        "PAWNQUEUE_S3_ENDPOINT_URL": bucket.server.endpoint,
        "PAWNQUEUE_S3_BUCKET_NAME": bucket.name,
        "PAWNQUEUE_S3_ACCESS_KEY": bucket.server.access_key,
        "PAWNQUEUE_S3_SECRET_KEY": bucket.server.secret_key,
        "PAWNQUEUE_S3_REGION": bucket.server.region,
        "PAWNQUEUE_S3_USE_SSL": "false",
        "PAWNQUEUE_POLLING_INTERVAL_SECONDS": "1.5",
        "PAWNQUEUE_POLLING_MAX_MESSAGES_PER_POLL": "3",
        "PAWNQUEUE_POLLING_VISIBILITY_TIMEOUT": "20",
        "PAWNQUEUE_POLLING_LEASE_REFRESH_INTERVAL": "6",
        "PAWNQUEUE_POLLING_JITTER_MAX_MS": "100",
        "PAWNQUEUE_CONCURRENCY_STRATEGY": "conditional_write",
        "PAWNQUEUE_CSPRNG_JITTER_MIN_MS": "80",
        "PAWNQUEUE_CSPRNG_JITTER_MAX_MS": "240",
        "PAWNQUEUE_CSPRNG_VERIFY_RETRIES": "3",
        "PAWNQUEUE_CSPRNG_RETRY_DELAY_MS": "70",
        "PAWNQUEUE_REGISTRY_HEARTBEAT_INTERVAL": "50",
    }
    theirs = await peer.open(environment=environment)
    assert theirs.pop("strategy") == "conditional_write"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert common(as_it_has_it(Settings.from_env()), theirs) == theirs
    async with PawnQueue.open() as ours:
        await exchange(ours, peer, topic)

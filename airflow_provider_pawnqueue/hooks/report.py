"""What *Test connection* answers, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine import ProbeResult, SyncPawnQueue
    from airflow_provider_pawnqueue.engine.health import Health

#: A clock that is further off than this confuses who reads two logs side by side; the queue goes by the store's alone.
_FAR_OFF = 1.0


def connection(queue: SyncPawnQueue) -> str:
    """Ask the store of an open queue what it can do, and say it in a few sentences."""
    return " ".join(_sentences(queue, queue.probe(), queue.health()))


def _sentences(queue: SyncPawnQueue, found: ProbeResult, health: Health) -> list[str]:
    s3 = queue.settings.s3
    below = f" below {s3.key_prefix}" if s3.key_prefix else ""
    took = f"{health.round_trip_seconds * 1000:.0f} ms"
    said = [
        f"Reached {s3.endpoint_url or 'AWS'}, bucket {s3.bucket_name!r}{below}; a request takes {took}.",
        f"The lease strategy of this queue is {queue.strategy}: {found.reason}",
        "What is written is read at once, and listed at once.",
        _clock(health),
    ]
    if found.strategy != queue.strategy:
        said.append(f"The probe would choose {found.strategy} today; what the bucket's processes agreed on stays.")
    return [sentence if sentence.endswith(".") else f"{sentence}." for sentence in said]


def _clock(health: Health) -> str:
    offset = health.clock_offset_seconds
    way = "ahead of" if offset > 0 else "behind"
    said = f"This machine's clock is {abs(offset):.2f} s {way} the store's"
    return f"{said}, which the queue goes by alone." if abs(offset) > _FAR_OFF else f"{said}."

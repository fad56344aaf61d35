"""Reading leases, whoever wrote them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue.domain import layout
from pawnqueue.domain.bounds import LATEST_TIME
from pawnqueue.domain.records import Lease, UnreadableRecordError
from pawnqueue.domain.times import any_instant
from pawnqueue.registers.register import Versioned

if TYPE_CHECKING:
    from pawnqueue.registers.strategy import Registers
    from pawnqueue.stores.port import StoredObject


async def read(registers: Registers, topic: str, uuid: str, ttl: float) -> Versioned[Lease] | None:
    """Read a lease, or return None where there is none.

    :param ttl: how long garbage counts as held.
    """
    key = layout.lease(topic, uuid)
    found = await registers.read(key)
    return None if found is None else understood(found, key, ttl)


def understood(found: StoredObject, key: str, ttl: float) -> Versioned[Lease]:
    """Read a lease's body, whoever wrote it. Garbage is judged by its age: held, for a usual time since it was written.

    :param ttl: that usual time.
    """
    written = found.info.last_modified.timestamp()
    try:
        lease = Lease.decode(found.body, key)
    except UnreadableRecordError:
        lease = Lease(v=0, until=written + ttl)
    else:
        if lease.v == 0:
            # pawn-queue's own: held until its expires_at, by nobody who has a claim record.
            expires = any_instant(lease.expires_at)
            lease = lease.model_copy(
                update={
                    "state": "held",
                    "claim": "",
                    "deliveries": max(lease.deliveries, 1),
                    "until": min(max(expires.timestamp(), 0.0), LATEST_TIME) if expires else written + ttl,
                }
            )
    return Versioned(lease, found.info.version)

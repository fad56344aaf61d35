"""The register of one message's lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue.domain import layout
from pawnqueue.domain.bounds import LATEST_TIME
from pawnqueue.domain.lease import Lease
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.domain.times import any_instant
from pawnqueue.registers.register import Register

if TYPE_CHECKING:
    from pawnqueue.registers.strategy import Registers
    from pawnqueue.stores.port import StoredObject


class LeaseRegister(Register[Lease]):
    """The lease of one message.

    :param ttl: for how many seconds a body that tells no time counts as held, from when it was written.
    """

    def __init__(self, registers: Registers, topic: str, uuid: str, ttl: float) -> None:
        super().__init__(registers, layout.lease(topic, uuid))
        self._ttl = ttl

    def _understand(self, found: StoredObject) -> Lease:
        return understand(found, self._key, self._ttl)


def understand(found: StoredObject, key: str, ttl: float) -> Lease:
    """Return the lease that a stored body means: ours, pawn-queue's, or garbage.

    Garbage counts as held for ``ttl`` seconds from when it was written.
    """
    written = found.info.last_modified.timestamp()
    try:
        lease = Lease.decode(found.body, key)
    except UnreadableRecordError:
        return Lease(v=0, until=written + ttl)
    if lease.v != 0:
        return lease
    # pawn-queue's own: held until its expires_at, by a consumer that has no claim record.
    expires = any_instant(lease.expires_at)
    return lease.model_copy(
        update={
            "state": "held",
            "claim": "",
            "deliveries": max(lease.deliveries, 1),
            "until": min(max(expires.timestamp(), 0.0), LATEST_TIME) if expires else written + ttl,
        }
    )

"""What every operation on an open queue needs, in one hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine.errors import StoreError
from airflow_provider_pawnqueue.engine.leases import lease

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.clock import Clock
    from airflow_provider_pawnqueue.engine.leases.cas import Registers
    from airflow_provider_pawnqueue.engine.leases.lease import FoundLease
    from airflow_provider_pawnqueue.engine.server_time import ServerTime
    from airflow_provider_pawnqueue.engine.settings import Settings
    from airflow_provider_pawnqueue.engine.store.retry import ResilientStore


@dataclass(frozen=True, slots=True)
class Context:
    """One process's hold on one bucket."""

    store: ResilientStore
    registers: Registers
    clock: Clock
    time: ServerTime
    settings: Settings

    @property
    def at_once(self) -> int:
        """How many requests one operation has under way."""
        return self.settings.concurrency.max_in_flight

    @property
    def margin(self) -> float:
        """How long before its time a holder stops trusting its claim, and how long after it a taker waits."""
        return self.settings.claims.margin_seconds

    async def read_lease(self, topic: str, uuid: str) -> FoundLease | None:
        """Return the lease on a message as it stands now, or None."""
        return await lease.read(self.registers, topic, uuid, self.settings.polling.visibility_timeout_seconds)

    async def now(self) -> float:
        """Return the store's time, or refuse to time leases by a store that is too slow to tell it.

        ⚑ §2: a holder is early by the margin and a taker late by it, so each may be wrong by as much and no more.
        """
        now = await self.time.now()
        if self.time.error > self.margin > 0:
            raise StoreError(
                f"The store answers too slowly to time leases by it: its time is known to {self.time.error:.1f} "
                f"seconds, and claims.margin_seconds is {self.margin:g}. Raise it, in every process of the bucket.",
                transient=True,
                operation="server time",
            )
        return now

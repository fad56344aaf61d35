"""What every operation on an open queue needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pawnqueue.domain import lease as lease_times
from pawnqueue.errors import StoreError
from pawnqueue.events import Events
from pawnqueue.registers.claim_records import ClaimRecordRegister
from pawnqueue.registers.dedup_segments import DedupSegmentRegister
from pawnqueue.registers.leases import LeaseRegister
from pawnqueue.registers.topic_markers import TopicMarker
from pawnqueue.registers.write_records import WriteRecordRegister
from pawnqueue.runtime.concurrency import ByteBudget
from pawnqueue.runtime.done_writes import DoneWrites
from pawnqueue.spans import Spans
from pawnqueue.stores.recent_bodies import RecentBodies
from pawnqueue.stores.server_time import local_seconds

if TYPE_CHECKING:
    from pawnqueue.domain.lease import Lease
    from pawnqueue.registers.strategy import Registers
    from pawnqueue.runtime.clock import Clock
    from pawnqueue.settings import Settings
    from pawnqueue.stores.retry import ResilientStore
    from pawnqueue.stores.server_time import ServerTime

#: How long a request for one object is retried where other objects wait: the next claim or sweep tries it again.
PER_OBJECT_RETRY_SECONDS = 3.0
#: How many bytes of lines of packs are in memory while they are buried. The lines of one pack may be as many.
MAX_BURIED_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class Context:
    """One process's access to one bucket."""

    store: ResilientStore
    registers: Registers
    clock: Clock
    time: ServerTime
    settings: Settings
    events: Events = field(default_factory=Events)
    spans: Spans = field(default_factory=Spans)
    done_writes: DoneWrites = field(default_factory=DoneWrites)
    recent_packs: RecentBodies = field(default_factory=RecentBodies)
    #: ⚑ §1: for the lines of packs that are in memory while they are buried.
    buried_bytes: ByteBudget = field(default_factory=lambda: ByteBudget(MAX_BURIED_BYTES))

    @property
    def at_once(self) -> int:
        """How many requests one operation sends at once."""
        return self.settings.concurrency.max_in_flight

    @property
    def margin(self) -> float:
        """Seconds on each side of a claim's end: its holder stops this much earlier, a taker waits this much longer."""
        return self.settings.claims.margin_seconds

    def trusted_until(self, started: float, seconds: float) -> float:
        """Return the elapsed time until which a holder trusts a claim that lasts these seconds from ``started`` on.

        ⚑ §2: it is earlier by the margin, and by as much as the holder's clock may run slow meanwhile.
        """
        return started + local_seconds(seconds) - self.margin

    def is_over(self, until: float, now: float) -> bool:
        """⚑ §2: say whether the time of another process is over, and the margin too."""
        return lease_times.is_over(until, now, self.margin)

    def due_at(self, of_message: Lease) -> float:
        """Return the server time from which on a message may be claimed, by its lease alone."""
        return lease_times.due_at(of_message, self.margin)

    def is_due(self, of_message: Lease, now: float) -> bool:
        """Say whether a message may be claimed, by its lease alone."""
        return lease_times.is_due(of_message, now, self.margin)

    def lease(self, topic: str, uuid: str) -> LeaseRegister:
        """Return the register of a message's lease."""
        return LeaseRegister(self.registers, topic, uuid, self.settings.polling.visibility_timeout_seconds)

    def claim_record(self, topic: str, stem: str) -> ClaimRecordRegister:
        """Return the register of one generation of a claim."""
        return ClaimRecordRegister(self.registers, topic, stem, self.now)

    def topic_marker(self, topic: str) -> TopicMarker:
        """Return the register of a topic and its settings."""
        return TopicMarker(self.registers, topic)

    def write_record(self, topic: str, write_id: str) -> WriteRecordRegister:
        """Return the register of a staged write."""
        return WriteRecordRegister(self.registers, topic, write_id, self.margin)

    def dedup_segment(self, topic: str, tag: str, shard: int, number: int) -> DedupSegmentRegister:
        """Return the register of a segment of a topic's deduplication log."""
        return DedupSegmentRegister(self.registers, topic, (tag, shard, number), self.margin)

    def with_budget(self, seconds: float = PER_OBJECT_RETRY_SECONDS, *, cut: bool = False) -> Context:
        """Return a context that retries each request, and each compare-and-set, for at most this long.

        ⚑ §5.6: a single object that does not answer well must not delay the others.

        :param cut: a read that does not answer in this time is cancelled.
        """
        store = self.store.with_budget(seconds, cut=cut)
        return replace(self, store=store, registers=self.registers.through(store))

    async def earliest_now(self) -> float:
        """Return the earliest that the store's time can be now. Something that must not happen early waits for it."""
        return await self.now() - self.time.error

    async def now(self) -> float:
        """Return the store's time, or raise if the store is too slow to time leases by it.

        ⚑ §2: a holder is early by the margin and a taker late by it, so the time of each may be wrong by the margin.
        """
        # One slow sample must not refuse claims for as long as samples are used: an inexact time is sampled again.
        now = await self.time.now(within=self.margin or math.inf)
        if self.time.error > self.margin > 0:
            raise StoreError(
                f"The store answers too slowly to time leases by it: its time is known to {self.time.error:.1f} "
                f"seconds, and claims.margin_seconds is {self.margin:g}. Raise it, in every process of the bucket.",
                transient=True,
                operation="server time",
            )
        return now

"""What all processes of a bucket agree on: the format, and one strategy. The first process probes and records it.

Two strategies at once would not exclude each other, so a setting that contradicts the record is an error.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pawnqueue.domain import layout
from pawnqueue.domain.object_sizes import MAX_SMALL_RECORD_BYTES
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.domain.records import BucketRecord
from pawnqueue.domain.times import iso
from pawnqueue.errors import CompatibilityError, ConfigError, ObjectTooLargeError, StoreError
from pawnqueue.events import logger_of
from pawnqueue.registers import strategies
from pawnqueue.registers.probe import ProbeResult, probe
from pawnqueue.registers.strategy import Registers, Step, Strategy
from pawnqueue.stores.port import Done, Unknown

if TYPE_CHECKING:
    from pawnqueue.runtime.clock import Clock
    from pawnqueue.settings import Settings
    from pawnqueue.stores.retry import ResilientStore

logger = logger_of("queue")

#: How long the first request may take with all its retries: a wrong setting should be reported soon.
FIRST_READ_TIMEOUT_SECONDS = 8.0
#: How much of that may go into retries.
FIRST_READ_RETRY_SECONDS = 4.0


async def agree(store: ResilientStore, clock: Clock, settings: Settings) -> BucketRecord:
    """Return the bucket's record; probe and write it if there is none."""
    wanted = strategies.wanted(settings)
    record = await _read_first(store, settings.store.endpoint)
    if record is None:
        record = await _probe_and_record(store, clock, settings, wanted)
    agreed = strategies.agreed(record)
    if wanted not in (None, agreed):
        raise ConfigError(
            f"concurrency.strategy is {settings.concurrency.strategy}, but the bucket's processes agreed on "
            f"{agreed.name} ({layout.BUCKET_RECORD}): set it to auto or {agreed.name}; to change the bucket, stop "
            "every process that uses it, delete that object, and start them with the new setting.",
            operation="open",
        )
    return record


def registers_for(record: BucketRecord, store: ResilientStore, clock: Clock, settings: Settings) -> Registers:
    """Return the registers of the strategy that the bucket's processes agreed on."""
    strategy = strategies.agreed(record)
    strategy.check(settings)
    return strategy.build(record, store, clock, settings)


async def _read_first(store: ResilientStore, endpoint: str) -> BucketRecord | None:
    try:
        async with asyncio.timeout(FIRST_READ_TIMEOUT_SECONDS):
            return await _read(store.with_budget(FIRST_READ_RETRY_SECONDS))
    except TimeoutError:
        raise StoreError(
            f"{endpoint} did not answer within {FIRST_READ_TIMEOUT_SECONDS:g} seconds: check s3.endpoint_url and the "
            "network.",
            transient=True,
            operation="open",
        ) from None


async def _read(store: ResilientStore) -> BucketRecord | None:
    try:
        found = await store.get(layout.BUCKET_RECORD, MAX_SMALL_RECORD_BYTES)
        if found is None:
            return None
        return BucketRecord.decode(found.body, layout.BUCKET_RECORD)
    except (UnreadableRecordError, ObjectTooLargeError) as problem:
        raise CompatibilityError(
            f"{layout.BUCKET_RECORD} was not written by this library ({problem}): use another bucket or s3.key_prefix, "
            "or, if nothing uses this one, delete the object; and see whether it is an S3 server that answers at "
            "s3.endpoint_url.",
            operation="open",
            cause=problem,
        ) from None


async def _probe_and_record(
    store: ResilientStore, clock: Clock, settings: Settings, wanted: Strategy | None
) -> BucketRecord:
    finding = await probe(store, clock)
    chosen = _chosen(finding, wanted)
    founder = strategies.founder(chosen, finding)
    founder.check(settings)
    record = BucketRecord(
        strategy=chosen.name,
        unquoted_if_match=finding.unquoted_if_match,
        conditional_deletes=finding.conditional_deletes,
        created_at=iso(clock.wall()),
    )
    registers = founder.build(record, store, clock, settings)
    [outcome] = await registers.write([Step(layout.BUCKET_RECORD, record)])
    if isinstance(outcome, Done):
        logger.info("This bucket is now used with %s.", record.strategy)
        if chosen.advice is not None and finding.look_to_answer is not None:
            logger.info("%s: %s", chosen.name, chosen.advice(finding.look_to_answer, settings))
        return record
    # Another process was faster, or the outcome is unknown: the stored record holds.
    stored = await _read(store)
    if stored is not None:
        return stored
    raise (
        outcome.fault
        if isinstance(outcome, Unknown)
        else StoreError(
            f"{layout.BUCKET_RECORD} was deleted while it was being written: open the queue again.", operation="open"
        )
    )


def _chosen(finding: ProbeResult, wanted: Strategy | None) -> Strategy:
    chosen = wanted or strategies.best(finding)[0]
    refusal = chosen.refusal(finding)
    if refusal:
        raise CompatibilityError(
            f"concurrency.strategy is {chosen.name}, but this store cannot carry it ({refusal}): set it to auto.",
            operation="open",
        )
    return chosen

"""What all processes that use a bucket agree on: the format, and one strategy. The first one probes and writes it down.

Mixed strategies do not exclude each other, so a setting that contradicts the record is an error, never an exception to
it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine import layout
from airflow_provider_pawnqueue.engine.clock import iso
from airflow_provider_pawnqueue.engine.errors import CompatibilityError, ConfigError, StoreError
from airflow_provider_pawnqueue.engine.leases.cas import Registers, Step
from airflow_provider_pawnqueue.engine.leases.conditional_write import ConditionalWrite
from airflow_provider_pawnqueue.engine.leases.csprng_verify import CsprngVerify, advice, shortest_verification
from airflow_provider_pawnqueue.engine.probe import Finding, probe
from airflow_provider_pawnqueue.engine.records import BucketRecord, UnreadableRecordError
from airflow_provider_pawnqueue.engine.store.port import Done, Unknown

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.clock import Clock
    from airflow_provider_pawnqueue.engine.settings import Settings
    from airflow_provider_pawnqueue.engine.store.retry import ResilientStore

logger = logging.getLogger(__name__)

#: How long the first request may take with all its retries: a wrong setting should be told soon.
FIRST_CONTACT = 8.0
#: How much of that may go into trying again.
FIRST_PATIENCE = 4.0


async def agree(store: ResilientStore, clock: Clock, settings: Settings) -> BucketRecord:
    """Return the bucket's record; write it, after a probe, where there is none."""
    record = await _first_contact(store, settings.s3.endpoint_url or f"AWS S3 ({settings.s3.region_name})")
    if record is None:
        record = await _establish(store, clock, settings)
    wanted = settings.concurrency.strategy
    if wanted not in ("auto", record.strategy):
        raise ConfigError(
            f"concurrency.strategy is {wanted}, but the bucket's processes agreed on {record.strategy} "
            f"({layout.BUCKET_RECORD}): set it to auto or {record.strategy}; to change the bucket, stop every process "
            "that uses it, delete that object, and start them with the new setting.",
            operation="open",
        )
    return record


def registers_for(record: BucketRecord, store: ResilientStore, clock: Clock, settings: Settings) -> Registers:
    """Return the way to carry registers that the bucket's processes agreed on."""
    at_once = settings.concurrency.max_in_flight
    if record.strategy == "csprng_verify":
        if not shortest_verification(settings.concurrency.csprng_verify):
            raise ConfigError(
                "concurrency.csprng_verify.jitter_min_ms and verify_retry_delay_ms are both 0: without pauses nothing "
                "is verified; use 100 and 150.",
                operation="open",
            )
        return CsprngVerify(store, clock, settings.concurrency.csprng_verify, at_once=at_once)
    return ConditionalWrite(store, clock, unquoted=record.unquoted_if_match, at_once=at_once)


async def _first_contact(store: ResilientStore, endpoint: str) -> BucketRecord | None:
    try:
        async with asyncio.timeout(FIRST_CONTACT):
            return await _read(store.with_budget(FIRST_PATIENCE))
    except TimeoutError:
        raise StoreError(
            f"{endpoint} did not answer within {FIRST_CONTACT:g} seconds: check s3.endpoint_url and the network.",
            transient=True,
            operation="open",
        ) from None


async def _read(store: ResilientStore) -> BucketRecord | None:
    found = await store.get(layout.BUCKET_RECORD)
    if found is None:
        return None
    try:
        return BucketRecord.decode(found.body, layout.BUCKET_RECORD)
    except UnreadableRecordError as problem:
        raise CompatibilityError(
            f"{layout.BUCKET_RECORD} was not written by this library ({problem}): use another bucket or s3.key_prefix, "
            "or, if nothing uses this one, delete the object; and see whether it is an S3 server that answers at "
            "s3.endpoint_url.",
            operation="open",
            cause=problem,
        ) from None


async def _establish(store: ResilientStore, clock: Clock, settings: Settings) -> BucketRecord:
    finding = await probe(store, clock)
    record = BucketRecord(
        strategy=_chosen(finding, settings),
        unquoted_if_match=finding.unquoted_if_match,
        created_at=iso(clock.wall()),
    )
    registers = registers_for(record, store, clock, settings)
    [outcome] = await registers.write([Step(layout.BUCKET_RECORD, record)])
    if isinstance(outcome, Done):
        logger.info("This bucket is now used with %s.", record.strategy)
        if finding.look_to_answer is not None:
            logger.info("csprng_verify: %s", advice(finding.look_to_answer, settings.concurrency.csprng_verify))
        return record
    # Another process was faster, or nobody can tell who was: what stands there is what holds.
    standing = await _read(store)
    if standing is not None:
        return standing
    raise (
        outcome.fault
        if isinstance(outcome, Unknown)
        else StoreError(
            f"{layout.BUCKET_RECORD} was deleted while it was being written: open the queue again.", operation="open"
        )
    )


def _chosen(finding: Finding, settings: Settings) -> str:
    wanted = settings.concurrency.strategy
    if wanted == "conditional_write" and finding.strategy != wanted:
        raise CompatibilityError(
            f"concurrency.strategy is conditional_write, but this store cannot carry it ({finding.reason}): "
            "set it to auto.",
            operation="open",
        )
    return finding.strategy if wanted == "auto" else wanted

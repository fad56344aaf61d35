"""The command that checks a connection and its store."""

from __future__ import annotations

import platform
from argparse import Namespace
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from airflow_provider_pawnqueue import __version__
from airflow_provider_pawnqueue.cli.running import command, fail, show
from airflow_provider_pawnqueue.hooks.connection import Address
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.triggers.janitor_watch import is_swept, no_janitor
from pawnqueue import Health, PawnQueueError, ProbeResult, SyncPawnQueue
from pawnqueue import __version__ as engine_version
from pawnqueue.domain.layout import BUCKET_RECORD
from pawnqueue.registers import csprng_verify
from pawnqueue.registers.strategies import STRATEGIES

_LIBRARIES: Final = ("apache-airflow", "apache-airflow-providers-amazon", "obstore", "boto3")
#: How many topics are read to see whether a janitor sweeps them. Most janitors sweep all topics.
_MAX_SAMPLED_TOPICS: Final = 20
#: A clock that differs by more makes the logs of two machines hard to compare.
_MAX_CLOCK_OFFSET_SECONDS: Final = 1.0


@dataclass(slots=True)
class _Findings:
    """The rows to print, and a sentence for each thing that is wrong."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, check: str, result: Any, state: Literal["", "ok", "note", "wrong"] = "") -> None:  # noqa: ANN401 - as it was found
        self.rows.append({"check": check, "state": state, "result": result})

    def add_wrong(self, check: str, result: Any, sentence: str) -> None:  # noqa: ANN401 - as it was found
        self.add(check, result, "wrong")
        self.wrong.append(sentence)


@command
def doctor(hook: PawnQueueHook, args: Namespace) -> None:
    """Check everything, print the findings, and exit with code 1 if something is wrong."""
    findings = _Findings()
    _add_versions(findings)
    try:
        address = hook.address
    except PawnQueueError as error:
        findings.add_wrong("connection", args.conn_id, str(error))
        show(findings.rows, args.output)
        fail(*findings.wrong)
    findings.add("connection", args.conn_id, "ok")
    _add_address(findings, address)
    try:
        queue = hook.queue
        found, health = queue.probe(), queue.health()
    except PawnQueueError as error:
        findings.add_wrong("store", "cannot be used", str(error))
    else:
        findings.add("store", "can be read, written, listed and deleted from", "ok")
        _add_strategy(findings, queue, found)
        _add_probe(findings, found)
        _add_clock(findings, health)
        _add_janitor(findings, queue)
    show(findings.rows, args.output)
    if findings.wrong:
        fail(*findings.wrong)


def _add_versions(findings: _Findings) -> None:
    findings.add("airflow-provider-pawnqueue", __version__)
    if engine_version == __version__:
        findings.add("pawnqueue-engine", engine_version)
    else:
        findings.add_wrong(
            "pawnqueue-engine",
            engine_version,
            f"airflow-provider-pawnqueue is {__version__} and pawnqueue-engine is {engine_version}. They work together "
            "only in the same version: pip install --upgrade airflow-provider-pawnqueue pawnqueue-engine",
        )
    findings.add("python", platform.python_version())
    for name in _LIBRARIES:
        findings.add(name, _version(name))


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _add_address(findings: _Findings, address: Address) -> None:
    s3 = address.settings.s3
    findings.add("endpoint", _without_user(s3.endpoint_url) or f"AWS, {s3.region_name}")
    findings.add("bucket", s3.bucket_name)
    findings.add("key prefix", s3.key_prefix)
    if address.aws_conn_id:
        identity = f"from AWS connection {address.aws_conn_id}"
    elif s3.aws_access_key_id:
        identity = "the keys of the connection"
    else:
        identity = "found by boto3: a profile, a role or the instance"
    findings.add("identity", identity)
    findings.add("client", s3.client)


def _without_user(url: str | None) -> str | None:
    if url is None or "@" not in url:
        return url
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _add_strategy(findings: _Findings, queue: SyncPawnQueue, found: ProbeResult) -> None:
    agreed = next(each for each in STRATEGIES if each.name == queue.strategy)
    findings.add("strategy", agreed.name, "ok")
    refusal = agreed.refusal(found)
    if refusal:
        findings.rows[-1]["state"] = "wrong"
        findings.add("strategy, why", "the bucket's processes agreed on it")
        findings.wrong.append(
            f"The bucket's processes use the strategy {agreed.name}, which the store does not support ({refusal}). Two "
            "consumers may get the same message. Stop every process that uses the bucket, delete the object "
            f"{BUCKET_RECORD} below its key prefix, and start them again."
        )
    elif agreed.name == found.strategy:
        findings.add("strategy, why", found.reason, "ok")
    else:
        named = queue.settings.concurrency.strategy == agreed.name
        why = "the connection names it" if named else "the bucket's processes agreed on it"
        findings.add("strategy, why", f"{why}; the probe would choose {found.strategy} today", "note")
    pauses = queue.settings.concurrency.csprng_verify
    took = found.look_to_answer
    if agreed.advice is None or took is None:
        return
    advice = agreed.advice(took, queue.settings)
    if took * csprng_verify.ROOM > csprng_verify.shortest_verification(pauses):
        findings.add_wrong("pauses", "too short for this store", f"{agreed.name}: {advice}")
    else:
        findings.add("pauses", advice, "ok")


def _add_probe(findings: _Findings, found: ProbeResult) -> None:
    """Add each field of the probe's result."""
    for name, value in asdict(found).items():
        if name not in {"creates", "updates"}:
            findings.add(f"probe: {name}", value)
        elif value:
            findings.add(f"probe: {name}", value, "note")
        else:
            findings.add(f"probe: {name}", "held in sequence and in a race", "ok")


def _add_janitor(findings: _Findings, queue: SyncPawnQueue) -> None:
    """Check whether a janitor sweeps the topics; of many topics, only the first are read."""
    topics = queue.list_topics()
    read_count = 0
    unswept: list[str] = []
    for topic in topics[:_MAX_SAMPLED_TOPICS]:
        try:
            if not is_swept(queue.topic(topic).swept_at):
                unswept.append(topic)
            read_count += 1
        except PawnQueueError as error:
            findings.add(f"topic {topic}", str(error), "note")
    if not topics:
        findings.add("janitor", "there is no topic yet")
    elif unswept:
        findings.add("janitor", no_janitor(unswept), "note")
    else:
        findings.add("janitor", f"has swept {read_count} of {len(topics)} topics within the last hour", "ok")


def _add_clock(findings: _Findings, health: Health) -> None:
    findings.add("round trip", f"{health.round_trip_seconds * 1000:.1f} ms")
    offset, error = health.clock_offset_seconds, health.clock_error_seconds
    way = "ahead of" if offset > 0 else "behind"
    difference = f"{abs(offset):.2f} s {way} the store's clock (give or take {error:.2f} s)"
    if abs(offset) > _MAX_CLOCK_OFFSET_SECONDS + error:
        findings.add("clock", f"{difference}: the queue uses only the store's clock; set this machine's by NTP", "note")
    else:
        findings.add("clock", difference, "ok")

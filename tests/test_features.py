"""The page of features names what exists, links to the tests that show it, and leaves out nothing that others have."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import pawnqueue
from pawnqueue import PawnQueue, Settings, SyncPawnQueue, events
from pawnqueue.bucket.topics import TopicOptions

TOP = Path(__file__).parent.parent
PAGE = TOP / "docs" / "features.md"
LIBRARIES = ["pawn-queue", "jqueue", "redis-message-queue", "SQS"]
WORDS = ["have", "otherwise", "not", "planned"]

TEST = re.compile(r"\[`(?P<name>test_\w+)`\]\((?P<path>[^)\s]+)\)")
LINK = re.compile(r"\[[^\]]*\]\([^)\s]+\)")
CODE = re.compile(r"`([^`]+)`")
NAME = re.compile(r"[A-Za-z_][\w.]*")
#: Words in code that are Python's own, or a value of a setting.
NO_NAMES = {"None", "True", "False", "async", "with"}

#: What each of them has that is public: calls, arguments, settings, attributes, errors and events.
THEIRS = {
    "pawn-queue": """
        from_config setup teardown create_topic list_topics register_producer register_consumer Producer.id
        Producer.name Producer.publish Consumer.id Consumer.name Consumer.poll Consumer.listen Message.id Message.topic
        Message.payload Message.created_at producer_id Message.ack Message.nack TopicNotFoundError PublishError
        PawnQueueBuilder .s3 .polling .concurrency .registry .from_env .build s3.endpoint_url s3.bucket_name
        s3.aws_access_key_id s3.aws_secret_access_key s3.region_name s3.use_ssl polling.interval_seconds
        polling.max_messages_per_poll polling.visibility_timeout_seconds polling.lease_refresh_interval_seconds
        polling.jitter_max_ms concurrency.strategy csprng_verify.jitter_min_ms csprng_verify.jitter_max_ms
        csprng_verify.verify_retries csprng_verify.verify_retry_delay_ms registry.heartbeat_interval_seconds
        PAWNQUEUE_
    """,
    "jqueue": """
        BrokerQueue DirectQueue max_retries GroupCommitLoop start stop enqueue entrypoint payload priority dequeue
        batch_size ack nack heartbeat requeue_stale stale_timeout read_state QueueState queued_jobs in_progress_jobs
        QueueState.find QueueState.version HeartbeatManager interval Job.id Job.entrypoint Job.payload Job.status
        Job.priority Job.created_at Job.heartbeat_at JobStatus.DEAD JQueueError CASConflictError JobNotFoundError
        StorageError S3Storage session region_name endpoint_url GCSStorage blob_name LocalFileSystemStorage
        InMemoryStorage ObjectStoragePort read write if_match
    """,
    "redis-message-queue": """
        name client gateway key_separator visibility_timeout_seconds heartbeat_interval_seconds on_heartbeat_failure
        max_delivery_count get_deduplication_key max_completed_length max_failed_length max_pending_length
        pending_overload_policy pending_overload_block_timeout_seconds strict_payload_types max_payload_bytes
        max_payload_depth strict_envelope_decoding interrupt on_event retry_budget_seconds retry_max_delay_seconds
        retry_initial_delay_seconds message_deduplication_log_ttl_seconds message_wait_interval_seconds
        message_visibility_timeout_seconds dead_letter_queue publish process_message process_message_callback drain
        is_draining is_drained stats peek redrive_dead_letters purge key.pending key.processing key.completed key.failed
        key.dead_letter key.deduplication GracefulInterruptHandler EventDrivenInterruptHandler
        BaseGracefulInterruptHandler RedisGateway AbstractRedisGateway ClaimedMessage ReceivedPayload PublishPayload
        QueueStats QueueEvent EventOperation EventOutcome RedisMessageQueueError ConfigurationError GatewayContractError
        LuaScriptError ClaimStoreFailedError CleanupFailedError DrainFailedError MalformedStoredMessageError
        PayloadTooLargeError PayloadTooDeepError QueueBackpressureError QueueDrainedError RetryBudgetExhaustedError
        publish_dedup_hit claim claim_empty claim_reclaim ack nack dlq completed failed lease_renew lease_renew_failed
        heartbeat_stop_timeout stale_lease_ack stale_lease_nack cleanup_failed trim_failed retry_attempt retry_exhausted
    """,
    "SQS": """
        AddPermission CancelMessageMoveTask ChangeMessageVisibility ChangeMessageVisibilityBatch CreateQueue
        DeleteMessage DeleteMessageBatch DeleteQueue GetQueueAttributes GetQueueUrl ListDeadLetterSourceQueues
        ListMessageMoveTasks ListQueues ListQueueTags PurgeQueue ReceiveMessage RemovePermission SendMessage
        SendMessageBatch SetQueueAttributes StartMessageMoveTask TagQueue UntagQueue DelaySeconds MaximumMessageSize
        MessageRetentionPeriod Policy ReceiveMessageWaitTimeSeconds VisibilityTimeout RedrivePolicy maxReceiveCount
        deadLetterTargetArn RedriveAllowPolicy KmsMasterKeyId KmsDataKeyReusePeriodSeconds SqsManagedSseEnabled
        FifoQueue ContentBasedDeduplication DeduplicationScope FifoThroughputLimit ApproximateNumberOfMessages
        ApproximateNumberOfMessagesNotVisible ApproximateNumberOfMessagesDelayed CreatedTimestamp LastModifiedTimestamp
        QueueArn MessageBody MessageAttributes MessageSystemAttributes AWSTraceHeader MessageDeduplicationId
        MessageGroupId SequenceNumber MaxNumberOfMessages WaitTimeSeconds ReceiveRequestAttemptId
        ApproximateReceiveCount SentTimestamp SenderId ApproximateFirstReceiveTimestamp DestinationArn
        MaxNumberOfMessagesPerSecond ReceiptHandle MessageId Body
    """,
}


@dataclass(frozen=True)
class Row:
    """A row of one of the page's tables."""

    line: int
    cells: list[str]

    @property
    def here(self) -> str:
        """Return what this queue has."""
        return self.cells[-1]

    @property
    def word(self) -> str:
        """Return which of the page's words its last cell begins with."""
        found = re.match(r"\*\*(\w+):\*\* ", self.here)
        return found[1] if found else ""

    @property
    def names(self) -> list[str]:
        """Return the names of this queue's in it, in order."""
        return [name for code in CODE.findall(LINK.sub("", self.here)) for name in names_in(code)]


def names_in(code: str) -> list[str]:
    """Return the names in a piece of code, such as ``claim(topic, consumer)``."""
    return [name for name in NAME.findall(re.sub(r'"[^"]*"|=\w+', "", code)) if name not in NO_NAMES]


def rows() -> list[Row]:
    """Return all rows, without the tables' heads."""
    lines = enumerate(PAGE.read_text().splitlines(), 1)
    found = [
        Row(line, [cell.strip() for cell in text.strip("|").split("|")]) for line, text in lines if text[:1] == "|"
    ]
    return [row for row in found if row.cells[0] not in ("pawn-queue", "---")]


def settings_in(section: type[object], prefix: str = "") -> set[str]:
    """Return the names of all settings of a section, with the section's own."""
    found: set[str] = set()
    for name, field in section.model_fields.items():  # type: ignore[attr-defined]
        found.add(prefix + name)
        if inspect.isclass(field.annotation) and hasattr(field.annotation, "model_fields"):
            found |= settings_in(field.annotation, f"{prefix}{name}.")
    return found


def attributes_of(kind: type[object]) -> set[str]:
    """Return the names of a type's public attributes, those included that its constructor sets."""
    declared = [name for base in kind.__mro__ for name in getattr(base, "__annotations__", ())]
    made = re.findall(r"self\.(\w+)", inspect.getsource(kind))
    return {name for name in [*dir(kind), *declared, *made] if name[0] != "_"}


@cache
def public_names() -> frozenset[str]:
    """Return every public name: types and their attributes, calls and their arguments, settings, and events."""
    names = {*pawnqueue.__all__, *TopicOptions.__annotations__, *settings_in(Settings)}
    exported = {name: getattr(pawnqueue, name) for name in pawnqueue.__all__}
    for name, kind in {**exported, **vars(events)}.items():
        if inspect.isclass(kind) and kind.__module__.startswith("pawnqueue"):
            names |= {name, *(f"{name}.{attribute}" for attribute in attributes_of(kind))}
    for queue in (PawnQueue, SyncPawnQueue):
        for name in dir(queue):
            if name[0] != "_":
                names.add(name)
                call = getattr(queue, name)
                names |= set(inspect.signature(call).parameters) if callable(call) else set()
    return frozenset(names - {"self"})


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"line {row.line}")
def test_a_row_has_five_cells_and_a_word(row: Row) -> None:
    """One for each of the four libraries, and one for this queue, which says at once whether it exists here."""
    assert len(row.cells) == len(LIBRARIES) + 1
    assert all(row.cells)
    assert row.word in WORDS
    assert any(cell != "-" for cell in row.cells[:-1])


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"line {row.line}")
def test_a_row_links_to_its_test(row: Row) -> None:
    """Where something exists, or does not on purpose, a test that exists shows it."""
    found = list(TEST.finditer(row.here))
    assert found or row.word == "planned"
    for test in found:
        assert f"def {test['name']}(" in (PAGE.parent / test["path"]).read_text(), test["name"]


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"line {row.line}")
def test_what_a_row_names_exists(row: Row) -> None:
    """Every name of this queue's is public. What is planned is not, and what exists is not called planned."""
    names = public_names()
    if row.word == "planned":
        assert row.names[:1] == [] or row.names[0] not in names, "it exists: say have, and link to its test"
    else:
        assert set(row.names) <= names


def test_what_is_not_here_has_no_name() -> None:
    """What the page says does not exist is not public under the names that others have for it."""
    missing = [row for row in rows() if row.word == "not"]
    theirs = {
        name for row in missing for cell in row.cells[:-1] for code in CODE.findall(cell) for name in names_in(code)
    }
    assert len(missing) > 5
    assert not {name for name in theirs if name[0].isupper()} & public_names()


@pytest.mark.parametrize("library", LIBRARIES)
def test_nothing_that_others_have_is_left_out(library: str) -> None:
    """Each public name of a library is in a row, in its column."""
    place = LIBRARIES.index(library)
    column = "\n".join(code for row in rows() for code in CODE.findall(row.cells[place]))
    assert [name for name in THEIRS[library].split() if not re.search(rf"(?<!\w){re.escape(name)}", column)] == []

"""The queue. It runs in Airflow, on a Spark executor and in a plain script, and imports neither Airflow nor Spark.

What is named here is what users import. A ``§`` with a number, in comments and docstrings of this package, is a section
of ``docs/protocol.md``; ``⚑`` marks a rule that keeps a promise of the protocol, and which a mutant in
``tests/sim/mutants`` leaves out to show that its absence is noticed.
"""

from pawnqueue import events
from pawnqueue.bucket.registry import Registration
from pawnqueue.bucket.topics import Topic
from pawnqueue.claims import Claim, ClaimReference, KeepAlive, Message, Settlement
from pawnqueue.claims.claim_reads import LastClaim
from pawnqueue.domain.completed import CompletedMessage
from pawnqueue.domain.records import TopicSettings
from pawnqueue.domain.topic_limits import CompletedLog, DeadLetterLimits
from pawnqueue.errors import (
    ClaimBusyError,
    CompatibilityError,
    ConfigError,
    InvalidArgumentError,
    InvalidPayloadError,
    InvalidTopicError,
    LeaseLostError,
    ObjectTooLargeError,
    PawnQueueError,
    PublishError,
    QueueClosedError,
    QueueDrainedError,
    QueueFullError,
    RetryBudgetExceededError,
    StagedGoneError,
    StoreError,
    TopicExistsError,
    TopicNotEmptyError,
    TopicNotFoundError,
    WriteBusyError,
)
from pawnqueue.listening.handlers import HandedMessage
from pawnqueue.listening.outcomes import BuryMessage, RequeueMessage
from pawnqueue.listening.report import Drained, Listened
from pawnqueue.listening.retry import Retry
from pawnqueue.maintenance import OpenClaim, SweepReport
from pawnqueue.maintenance.redrive import RedriveProgress, RedriveResult
from pawnqueue.maintenance.removal import Removed
from pawnqueue.publish.new_messages import NewMessage
from pawnqueue.publish.publish_once import PublishedIds
from pawnqueue.publish.staging import Staged
from pawnqueue.publish.write_outcome import Written
from pawnqueue.queue import PawnQueue
from pawnqueue.reads.columns import MessageColumns
from pawnqueue.reads.completed import CompletedPage
from pawnqueue.reads.counting import Backlog, Stats
from pawnqueue.reads.dead_letters import DeadLetter, DeadLetterPage
from pawnqueue.reads.health import Health
from pawnqueue.reads.inspect_topic import Location
from pawnqueue.reads.portions import FetchedPortion, PlannedUnit, Portion
from pawnqueue.reads.selection import Selection
from pawnqueue.registers.probe import ProbeResult
from pawnqueue.settings import Settings
from pawnqueue.stores.memory import MemoryStore
from pawnqueue.sync import SyncPawnQueue
from pawnqueue.sync_callbacks import SyncKeepAlive

__version__ = "0.1.0"

__all__ = [
    "Backlog",
    "BuryMessage",
    "Claim",
    "ClaimBusyError",
    "ClaimReference",
    "CompatibilityError",
    "CompletedLog",
    "CompletedMessage",
    "CompletedPage",
    "ConfigError",
    "DeadLetter",
    "DeadLetterLimits",
    "DeadLetterPage",
    "Drained",
    "FetchedPortion",
    "HandedMessage",
    "Health",
    "InvalidArgumentError",
    "InvalidPayloadError",
    "InvalidTopicError",
    "KeepAlive",
    "LastClaim",
    "LeaseLostError",
    "Listened",
    "Location",
    "MemoryStore",
    "Message",
    "MessageColumns",
    "NewMessage",
    "ObjectTooLargeError",
    "OpenClaim",
    "PawnQueue",
    "PawnQueueError",
    "PlannedUnit",
    "Portion",
    "ProbeResult",
    "PublishError",
    "PublishedIds",
    "QueueClosedError",
    "QueueDrainedError",
    "QueueFullError",
    "RedriveProgress",
    "RedriveResult",
    "Registration",
    "Removed",
    "RequeueMessage",
    "Retry",
    "RetryBudgetExceededError",
    "Selection",
    "Settings",
    "Settlement",
    "Staged",
    "StagedGoneError",
    "Stats",
    "StoreError",
    "SweepReport",
    "SyncKeepAlive",
    "SyncPawnQueue",
    "Topic",
    "TopicExistsError",
    "TopicNotEmptyError",
    "TopicNotFoundError",
    "TopicSettings",
    "WriteBusyError",
    "Written",
    "events",
]

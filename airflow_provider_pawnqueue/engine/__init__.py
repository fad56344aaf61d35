"""The queue. It runs in Airflow, on a Spark executor and in a plain script, and imports neither Airflow nor Spark.

What is named here is what users import. A ``§`` with a number, in comments and docstrings of this package, is a section
of ``docs/protocol.md``; ``⚑`` marks a rule that keeps a promise of the protocol, and which a mutant in
``tests/sim/mutants`` leaves out to show that its absence is noticed.
"""

from airflow_provider_pawnqueue.engine import events
from airflow_provider_pawnqueue.engine.claims import Claim, ClaimReference, KeepAlive, Message, Settlement
from airflow_provider_pawnqueue.engine.claims.looking import LastClaim
from airflow_provider_pawnqueue.engine.counting import Backlog, Stats
from airflow_provider_pawnqueue.engine.dead_letters import DeadLetter, DeadLetterPage
from airflow_provider_pawnqueue.engine.errors import (
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
    QueueFullError,
    RetryBudgetExceededError,
    StagedGoneError,
    StoreError,
    TopicExistsError,
    TopicNotEmptyError,
    TopicNotFoundError,
    WriteBusyError,
)
from airflow_provider_pawnqueue.engine.health import Health
from airflow_provider_pawnqueue.engine.inspect_topic import Location
from airflow_provider_pawnqueue.engine.janitor import OpenClaim, SweepReport
from airflow_provider_pawnqueue.engine.portions import Portion, Unit
from airflow_provider_pawnqueue.engine.probe import ProbeResult
from airflow_provider_pawnqueue.engine.publish import NewMessage
from airflow_provider_pawnqueue.engine.queue import PawnQueue
from airflow_provider_pawnqueue.engine.records import TopicSettings
from airflow_provider_pawnqueue.engine.redrive import RedriveResult
from airflow_provider_pawnqueue.engine.registry import Registration
from airflow_provider_pawnqueue.engine.removal import Removed
from airflow_provider_pawnqueue.engine.settings import Settings
from airflow_provider_pawnqueue.engine.staging import Staged
from airflow_provider_pawnqueue.engine.store.memory import MemoryStore
from airflow_provider_pawnqueue.engine.sync import SyncKeepAlive, SyncPawnQueue
from airflow_provider_pawnqueue.engine.topics import Topic
from airflow_provider_pawnqueue.engine.write_outcome import Written

__all__ = [
    "Backlog",
    "Claim",
    "ClaimBusyError",
    "ClaimReference",
    "CompatibilityError",
    "ConfigError",
    "DeadLetter",
    "DeadLetterPage",
    "Health",
    "InvalidArgumentError",
    "InvalidPayloadError",
    "InvalidTopicError",
    "KeepAlive",
    "LastClaim",
    "LeaseLostError",
    "Location",
    "MemoryStore",
    "Message",
    "NewMessage",
    "ObjectTooLargeError",
    "OpenClaim",
    "PawnQueue",
    "PawnQueueError",
    "Portion",
    "ProbeResult",
    "PublishError",
    "QueueClosedError",
    "QueueFullError",
    "RedriveResult",
    "Registration",
    "Removed",
    "RetryBudgetExceededError",
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
    "Unit",
    "WriteBusyError",
    "Written",
    "events",
]

"""The queue. It runs in Airflow, on a Spark executor and in a plain script, and imports neither Airflow nor Spark."""

from airflow_provider_pawnqueue.engine.claims import Claim, ClaimReference, Message, Settlement
from airflow_provider_pawnqueue.engine.errors import (
    ClaimBusyError,
    CompatibilityError,
    ConfigError,
    InvalidArgumentError,
    InvalidPayloadError,
    InvalidTopicError,
    LeaseLostError,
    PawnQueueError,
    PublishError,
    QueueClosedError,
    QueueFullError,
    RetryBudgetExceededError,
    StoreError,
    TopicExistsError,
    TopicNotEmptyError,
    TopicNotFoundError,
)
from airflow_provider_pawnqueue.engine.queue import PawnQueue
from airflow_provider_pawnqueue.engine.settings import Settings
from airflow_provider_pawnqueue.engine.store.memory import MemoryStore
from airflow_provider_pawnqueue.engine.sync import SyncPawnQueue

__all__ = [
    "Claim",
    "ClaimBusyError",
    "ClaimReference",
    "CompatibilityError",
    "ConfigError",
    "InvalidArgumentError",
    "InvalidPayloadError",
    "InvalidTopicError",
    "LeaseLostError",
    "MemoryStore",
    "Message",
    "PawnQueue",
    "PawnQueueError",
    "PublishError",
    "QueueClosedError",
    "QueueFullError",
    "RetryBudgetExceededError",
    "Settings",
    "Settlement",
    "StoreError",
    "SyncPawnQueue",
    "TopicExistsError",
    "TopicNotEmptyError",
    "TopicNotFoundError",
]

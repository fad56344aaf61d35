"""The queue. It runs in Airflow, on a Spark executor and in a plain script, and imports neither Airflow nor Spark."""

from airflow_provider_pawnqueue.engine.errors import (
    CompatibilityError,
    ConfigError,
    InvalidTopicError,
    PawnQueueError,
    QueueClosedError,
    RetryBudgetExceededError,
    StoreError,
    TopicExistsError,
    TopicNotEmptyError,
    TopicNotFoundError,
)
from airflow_provider_pawnqueue.engine.queue import PawnQueue
from airflow_provider_pawnqueue.engine.settings import Settings
from airflow_provider_pawnqueue.engine.store.memory import MemoryStore

__all__ = [
    "CompatibilityError",
    "ConfigError",
    "InvalidTopicError",
    "MemoryStore",
    "PawnQueue",
    "PawnQueueError",
    "QueueClosedError",
    "RetryBudgetExceededError",
    "Settings",
    "StoreError",
    "TopicExistsError",
    "TopicNotEmptyError",
    "TopicNotFoundError",
]

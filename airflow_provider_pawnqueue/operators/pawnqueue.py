"""The operators, where users import them from."""

from airflow_provider_pawnqueue.operators.janitor import PawnQueueJanitorOperator
from airflow_provider_pawnqueue.operators.publishing import (
    PawnQueueCreateTopicOperator,
    PawnQueuePublishOperator,
    PawnQueueRedriveOperator,
)
from airflow_provider_pawnqueue.operators.reading import PawnQueueMessagesOperator
from airflow_provider_pawnqueue.operators.settling import (
    PawnQueueAckOperator,
    PawnQueueNackOperator,
    PawnQueueSettleOperator,
)

__all__ = [
    "PawnQueueAckOperator",
    "PawnQueueCreateTopicOperator",
    "PawnQueueJanitorOperator",
    "PawnQueueMessagesOperator",
    "PawnQueueNackOperator",
    "PawnQueuePublishOperator",
    "PawnQueueRedriveOperator",
    "PawnQueueSettleOperator",
]

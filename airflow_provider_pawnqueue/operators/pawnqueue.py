"""The operators, as users import them."""

from airflow_provider_pawnqueue.operators.acking import (
    PawnQueueAckOperator,
    PawnQueueBuryOperator,
    PawnQueueNackOperator,
    PawnQueueRequeueOperator,
)
from airflow_provider_pawnqueue.operators.administration import (
    PawnQueueCreateTopicOperator,
    PawnQueueDeleteTopicOperator,
    PawnQueuePauseTopicOperator,
    PawnQueueResumeTopicOperator,
    PawnQueueUpdateTopicOperator,
)
from airflow_provider_pawnqueue.operators.publishing import PawnQueuePublishOperator, PawnQueueRedriveOperator
from airflow_provider_pawnqueue.operators.reading import PawnQueueMessagesOperator
from airflow_provider_pawnqueue.operators.settling import PawnQueueSettleOperator
from airflow_provider_pawnqueue.operators.sweeping import PawnQueueJanitorOperator

__all__ = [
    "PawnQueueAckOperator",
    "PawnQueueBuryOperator",
    "PawnQueueCreateTopicOperator",
    "PawnQueueDeleteTopicOperator",
    "PawnQueueJanitorOperator",
    "PawnQueueMessagesOperator",
    "PawnQueueNackOperator",
    "PawnQueuePauseTopicOperator",
    "PawnQueuePublishOperator",
    "PawnQueueRedriveOperator",
    "PawnQueueRequeueOperator",
    "PawnQueueResumeTopicOperator",
    "PawnQueueSettleOperator",
    "PawnQueueUpdateTopicOperator",
]

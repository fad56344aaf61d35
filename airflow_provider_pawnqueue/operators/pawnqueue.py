"""The operators, where users import them from."""

from airflow_provider_pawnqueue.operators.administration import (
    PawnQueueCreateTopicOperator,
    PawnQueueDeleteTopicOperator,
    PawnQueueUpdateTopicOperator,
)
from airflow_provider_pawnqueue.operators.janitor import PawnQueueJanitorOperator
from airflow_provider_pawnqueue.operators.publishing import (
    PawnQueuePublishOperator,
    PawnQueueRedriveOperator,
)
from airflow_provider_pawnqueue.operators.reading import PawnQueueMessagesOperator
from airflow_provider_pawnqueue.operators.settling import (
    PawnQueueAckOperator,
    PawnQueueBuryOperator,
    PawnQueueNackOperator,
    PawnQueueRequeueOperator,
    PawnQueueSettleOperator,
)

__all__ = [
    "PawnQueueAckOperator",
    "PawnQueueBuryOperator",
    "PawnQueueCreateTopicOperator",
    "PawnQueueDeleteTopicOperator",
    "PawnQueueJanitorOperator",
    "PawnQueueMessagesOperator",
    "PawnQueueNackOperator",
    "PawnQueuePublishOperator",
    "PawnQueueRedriveOperator",
    "PawnQueueRequeueOperator",
    "PawnQueueSettleOperator",
    "PawnQueueUpdateTopicOperator",
]

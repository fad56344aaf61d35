"""What to do about an error in Airflow, where that is not what a program does: added to the sentence of the engine."""

from __future__ import annotations

from pawnqueue import PawnQueueError, TopicNotEmptyError, TopicNotFoundError


def in_airflow(error: PawnQueueError) -> str:
    """Return the sentence of an error, with what Airflow's users do about it."""
    match error:
        case TopicNotFoundError(topic=str(topic)) if topic:
            return (
                f"{error} In Airflow, PawnQueueCreateTopicOperator makes a topic, and by hand "
                f"`airflow pawnqueue create-topic {topic}`."
            )
        case TopicNotEmptyError(topic=str(topic)) if topic:
            return f"{error} By hand, `airflow pawnqueue delete-topic {topic} --force` does that."
        case _:
            return str(error)

"""Making, changing and deleting topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_pawnqueue.engine import TopicExistsError, TopicNotFoundError
from airflow_provider_pawnqueue.operators.arguments import checked_count, checked_flag
from airflow_provider_pawnqueue.operators.base import PawnQueueOperator, failures

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

_IF_EXISTS: Final = ("keep", "update")
#: What ``max_deliveries`` says where no message is ever buried for its deliveries.
NEVER: Final = "never"


class PawnQueueCreateTopicOperator(PawnQueueOperator):
    """Creates a topic; returns its name. A topic that exists already keeps its settings, unless ``if_exists`` says so.

    :param topic: its name.
    :param max_deliveries: how many deliveries without a settlement before a message is buried, or ``"never"``; without
        it, ten.
    :param if_exists: what to do with a topic that exists with other settings: ``keep`` them, or ``update`` them.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("topic", "max_deliveries", "if_exists", "pawnqueue_conn_id")

    def __init__(
        self,
        *,
        topic: str,
        max_deliveries: int | str | None = None,
        if_exists: Literal["keep", "update"] | str = "keep",  # noqa: PYI051 - or a template
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if "{{" not in str(if_exists) and if_exists not in _IF_EXISTS:
            raise ValueError(f"if_exists={if_exists!r}: pass 'keep' or 'update'.")
        self.topic = topic
        self.max_deliveries = max_deliveries
        self.if_exists = if_exists

    def execute(self, context: Context) -> str:
        """Create it."""
        del context
        if self.if_exists not in _IF_EXISTS:
            raise AirflowFailException(f"if_exists={self.if_exists!r}: pass 'keep' or 'update'.")
        given: Any = {} if self.max_deliveries is None else {"max_deliveries": checked_deliveries(self.max_deliveries)}
        with failures():
            try:
                return self.hook.create_topic(self.topic, **given).name
            except TopicExistsError as exists:
                if self.if_exists == "update":
                    return self.hook.update_topic(self.topic, **given).name
                self.log.warning("It keeps its settings: %s", exists)
                return self.topic


class PawnQueueUpdateTopicOperator(PawnQueueOperator):
    """Changes the settings of a topic, for all that use it; returns them.

    :param topic: its name.
    :param max_deliveries: how many deliveries without a settlement before a message is buried, or ``"never"``.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("topic", "max_deliveries", "pawnqueue_conn_id")

    def __init__(self, *, topic: str, max_deliveries: int | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.max_deliveries = max_deliveries

    def execute(self, context: Context) -> dict[str, int | None]:
        """Change it."""
        del context
        most = checked_deliveries(self.max_deliveries)
        with failures():
            return {"max_deliveries": self.hook.update_topic(self.topic, max_deliveries=most).settings.max_deliveries}


class PawnQueueDeleteTopicOperator(PawnQueueOperator):
    """Deletes a topic; returns how many messages and dead letters went with it. One that does not exist is no error.

    :param topic: its name.
    :param force: delete a topic with messages or dead letters too, and all of these. Without it, such a topic fails the
        task.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("topic", "force", "pawnqueue_conn_id")

    def __init__(self, *, topic: str, force: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.force = force

    def execute(self, context: Context) -> dict[str, int]:
        """Delete it."""
        del context
        force = checked_flag(self.force, "force")
        with failures():
            try:
                removed = self.hook.delete_topic(self.topic, force=force)
            except TopicNotFoundError:  # as after a try that has deleted it, and was killed
                self.log.info("Topic %s does not exist.", self.topic)
                return {"messages": 0, "dead_letters": 0}
        return {"messages": removed.messages, "dead_letters": removed.dead_letters}


def checked_deliveries(given: object) -> int | None:
    """Return a number of deliveries, None for ``never``, or fail without another try."""
    return None if given == NEVER else checked_count(given, "max_deliveries")

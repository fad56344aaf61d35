"""Operators that create, change, pause, resume and delete topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, Literal

from airflow.providers.common.compat.sdk import Context

from airflow_provider_pawnqueue.hooks import references
from airflow_provider_pawnqueue.hooks.arguments import (
    WrongArgumentError,
    check_early,
    checked_count,
    checked_delay,
    checked_flag,
    checked_seconds,
    checked_text,
    checked_topic,
    checked_word,
)
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.operators.base import PawnQueueOperator, failures
from pawnqueue import Topic, TopicExistsError, TopicNotFoundError

_checked_if_exists = partial(checked_word, of=("keep", "update"))
#: The value of ``max_deliveries``, ``max_pending`` and ``max_age_seconds`` for topics without such a limit.
NEVER: Final = "never"
#: The values of a setting with parts that is not wanted, and of one that is wanted as it is by default.
OFF: Final = "off"
ON: Final = "on"


def checked_deliveries(given: object, name: str = "max_deliveries") -> int | None:
    """Return a number of deliveries, or None for ``never``."""
    return None if given == NEVER else checked_count(given, name)


def checked_pending(given: object, name: str = "max_pending") -> int | None:
    """Return a number of messages, or None for ``never``."""
    return None if given == NEVER else checked_count(given, name)


def checked_age(given: object, name: str = "max_age_seconds") -> float | None:
    """Return a number of seconds, or None for ``never``."""
    return None if given == NEVER else checked_seconds(given, name)


def checked_group(given: object, name: str) -> dict[str, Any] | None:
    """Return the parts of a setting, also where a template made a text of them; None for ``off``."""
    if given == OFF:
        return None
    read = references.literal(given) if isinstance(given, str) and given.lstrip().startswith("{") else given
    if not isinstance(read, Mapping) or not read:
        raise WrongArgumentError(f"{name}={given!r}: pass a dict, or {OFF!r}.")
    return {str(each): value for each, value in read.items()}


def checked_log(given: object, name: str) -> dict[str, Any] | bool:
    """Return the limits of a log, or whether there is one: ``on``, ``off``, or a flag."""
    if isinstance(given, bool) or given in (ON, OFF):
        return given is True or given == ON
    return checked_group(given, name) or False


#: The settings of a topic, and how each of them is checked.
_SETTINGS: Final[Mapping[str, Callable[[object, str], Any]]] = {
    "max_deliveries": checked_deliveries,
    "packs": checked_flag,
    "max_pending": checked_pending,
    "overload": checked_text,  # the queue says why it drops nothing
    "overload_timeout_seconds": checked_delay,
    "max_age_seconds": checked_age,
    "priorities": checked_flag,
    "delays": checked_flag,
    "completed": checked_log,
    "dead_letters": checked_group,
    "dedup_window_seconds": checked_seconds,
}


class _TopicSettingsOperator(PawnQueueOperator):
    """An operator that is given settings of a topic, each of them or none."""

    def __init__(  # noqa: PLR0913 - the settings of a topic
        self,
        *,
        topic: str,
        max_deliveries: int | str | None = None,
        packs: bool | str | None = None,
        max_pending: int | str | None = None,
        overload: Literal["raise", "block"] | str | None = None,  # noqa: PYI051 - or a template
        overload_timeout_seconds: float | timedelta | str | None = None,
        max_age_seconds: float | timedelta | str | None = None,
        priorities: bool | str | None = None,
        delays: bool | str | None = None,
        completed: Mapping[str, Any] | bool | str | None = None,
        dead_letters: Mapping[str, Any] | str | None = None,
        dedup_window_seconds: float | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = check_early(topic, checked_topic, "topic")
        self.max_deliveries = check_early(max_deliveries, checked_deliveries, "max_deliveries")
        self.packs = check_early(packs, checked_flag, "packs")
        self.max_pending = check_early(max_pending, checked_pending, "max_pending")
        self.overload = check_early(overload, checked_text, "overload")
        self.overload_timeout_seconds = check_early(overload_timeout_seconds, checked_delay, "overload_timeout_seconds")
        self.max_age_seconds = check_early(max_age_seconds, checked_age, "max_age_seconds")
        self.priorities = check_early(priorities, checked_flag, "priorities")
        self.delays = check_early(delays, checked_flag, "delays")
        self.completed = check_early(completed, checked_log, "completed")
        self.dead_letters = check_early(dead_letters, checked_group, "dead_letters")
        self.dedup_window_seconds = check_early(dedup_window_seconds, checked_seconds, "dedup_window_seconds")

    def _settings(self) -> Any:  # noqa: ANN401 - arguments of a topic, by their names
        """Return those settings that are given, once templates are filled in."""
        given = {name: getattr(self, name) for name in _SETTINGS}
        return {name: _SETTINGS[name](value, name) for name, value in given.items() if value is not None}


class PawnQueueCreateTopicOperator(_TopicSettingsOperator):
    """Creates a topic; returns its name. If the topic exists, it keeps its settings, unless ``if_exists="update"``.

    :param topic: the topic's name.
    :param max_deliveries: bury a message after this many deliveries without a settlement, or ``"never"``; without it,
        after ten.
    :param packs: whether many messages that are published at once become packs; without it, yes. Pass False if
        consumers of the topic use the pawn-queue library: they do not see packs.
    :param max_pending: how many messages that are not finished the topic may have. Publishing more is held up; without
        it, or by ``"never"``, it never is.
    :param overload: what publishing more does: ``raise`` an error, or ``block`` until there is room; without it, raise.
    :param overload_timeout_seconds: for how long it waits for room; without it, 30.
    :param max_age_seconds: bury a message that was published longer ago than this, and hand it out to nobody; without
        it, or by ``"never"``, none.
    :param priorities: whether messages may be published with a priority; without it, no.
    :param delays: whether messages may be published with a delay; without it, no.
    :param completed: a log of what was acked: True, or a dict with ``max_count``, ``max_age_seconds`` and ``payloads``.
    :param dead_letters: which dead letters the janitor removes, after a warning: a dict with ``max_age_seconds``,
        ``max_count``, or both, and ``notice_seconds``; or ``"off"``. Without it, none.
    :param dedup_window_seconds: for how long a message keeps others with its deduplication key from being published;
        without it, an hour.
    :param if_exists: what to do with a topic that exists with other settings: ``keep`` them, or ``update`` them.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("topic", *_SETTINGS, "if_exists", "pawnqueue_conn_id")

    def __init__(
        self,
        *,
        if_exists: Literal["keep", "update"] | str = "keep",  # noqa: PYI051 - or a template
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.if_exists = check_early(if_exists, _checked_if_exists, "if_exists")

    def execute(self, context: Context) -> str:
        """Create the topic."""
        del context
        if_exists = _checked_if_exists(self.if_exists, "if_exists")
        given = self._settings()
        with failures():
            return ensure_topic(self.hook, self.topic, if_exists, self.log.warning, **given).name


class PawnQueueUpdateTopicOperator(_TopicSettingsOperator):
    """Changes the settings of a topic for all its users; returns them. What is not given stays as it is.

    :param topic: the topic's name.
    :param max_deliveries: bury a message after this many deliveries without a settlement, or ``"never"``.
    :param packs: whether many messages that are published at once become packs. False: no new ones. Consumers that use
        the pawn-queue library do not see packs.
    :param max_pending: how many messages that are not finished the topic may have, or ``"never"`` for any number.
    :param overload: what publishing more does: ``raise`` an error, or ``block`` until there is room.
    :param overload_timeout_seconds: for how long it waits for room.
    :param max_age_seconds: bury a message that was published longer ago than this, and hand it out to nobody; or
        ``"never"``.
    :param priorities: whether messages may be published with a priority.
    :param delays: whether messages may be published with a delay. Consumers of earlier versions do not wait for it.
    :param completed: a log of what was acked: True, or a dict with ``max_count``, ``max_age_seconds`` and ``payloads``.
    :param dead_letters: which dead letters the janitor removes, after a warning: a dict with ``max_age_seconds``,
        ``max_count``, or both, and ``notice_seconds``; or ``"off"``, and all of them are kept.
    :param dedup_window_seconds: for how long a message keeps others with its deduplication key from being published.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("topic", *_SETTINGS, "pawnqueue_conn_id")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if all(getattr(self, name) is None for name in _SETTINGS):
            raise WrongArgumentError(
                f"PawnQueueUpdateTopicOperator changes nothing: pass one of {', '.join(_SETTINGS)}."
            )

    def execute(self, context: Context) -> dict[str, Any]:
        """Change the settings."""
        del context
        given = self._settings()
        with failures():
            return self.hook.update_topic(self.topic, **given).settings.model_dump()


class PawnQueuePauseTopicOperator(PawnQueueOperator):
    """Pauses a topic: nobody is given its messages until it is resumed. Returns the topic's name.

    Sensors and consumers that wait go on waiting. Publishing goes on, and so does whatever is done with messages that
    tasks hold already. To pause a paused topic changes nothing.

    :param topic: the topic's name.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("topic", "pawnqueue_conn_id")

    def __init__(self, *, topic: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = check_early(topic, checked_topic, "topic")

    def execute(self, context: Context) -> str:
        """Pause the topic."""
        del context
        with failures():
            return self.hook.pause(self.topic).name


class PawnQueueResumeTopicOperator(PawnQueueOperator):
    """Resumes a paused topic: consumers are given its messages again. Returns the topic's name.

    To resume a topic that is not paused changes nothing.

    :param topic: the topic's name.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("topic", "pawnqueue_conn_id")

    def __init__(self, *, topic: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = check_early(topic, checked_topic, "topic")

    def execute(self, context: Context) -> str:
        """Resume the topic."""
        del context
        with failures():
            return self.hook.resume(self.topic).name


class PawnQueueDeleteTopicOperator(PawnQueueOperator):
    """Deletes a topic; returns how many messages and dead letters were deleted with it.

    A topic that does not exist is not an error.

    :param topic: the topic's name.
    :param force: delete the topic even if it has messages or dead letters, and delete these too. Without it, the task
        fails in this case.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("topic", "force", "pawnqueue_conn_id")

    def __init__(self, *, topic: str, force: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = check_early(topic, checked_topic, "topic")
        self.force = check_early(force, checked_flag, "force")

    def execute(self, context: Context) -> dict[str, int]:
        """Delete the topic."""
        del context
        force = checked_flag(self.force, "force")
        with failures():
            try:
                removed = self.hook.delete_topic(self.topic, force=force)
            except TopicNotFoundError:  # such as after a try that deleted the topic and was killed
                self.log.info("Topic %s does not exist.", self.topic)
                return {"messages": 0, "dead_letters": 0}
        return {"messages": removed.messages, "dead_letters": removed.dead_letters}


def ensure_topic(hook: PawnQueueHook, topic: str, if_exists: str, warn: Callable[[str], None], **given: Any) -> Topic:
    """Create a topic, or return the topic that exists, updated if ``if_exists`` is ``update``.

    :param warn: is called with a sentence if the topic exists with other settings and keeps them.
    """
    try:
        return hook.create_topic(topic, **given)
    except TopicExistsError as exists:
        if if_exists == "update":
            return hook.update_topic(topic, **given)
        warn(f"The topic keeps its settings: {exists}")
        return hook.topic(topic)

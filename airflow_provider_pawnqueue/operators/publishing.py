"""Operators that publish messages, and that move dead letters back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeVar

from airflow.providers.common.compat.sdk import AirflowFailException, Context

from airflow_provider_pawnqueue.hooks import references
from airflow_provider_pawnqueue.hooks.arguments import (
    check_early,
    checked_count,
    checked_delay,
    checked_flag,
    checked_ids,
    checked_pack,
    checked_priority,
    checked_rate,
    checked_seconds,
    checked_text,
    checked_topic,
)
from airflow_provider_pawnqueue.lineage import lineage_of
from airflow_provider_pawnqueue.operators.base import PawnQueueOperator, failures

T = TypeVar("T")


class PawnQueuePublishOperator(PawnQueueOperator):
    """Publishes messages; returns their ids, in order.

    :param topic: the topic's name.
    :param payloads: one message or a list of messages, each a JSON object as a dict or as a text. They may come from
        another task: ``payloads=rows.output``. In XCom, Airflow interprets some keys of dicts (``__id__``,
        ``__classname__``, ``__type``). If others choose the keys, let that task return texts.
    :param producer: the name of the producer; without it, ``{dag_id}.{task_id}``.
    :param headers: headers of all messages, as a dict of texts.
    :param create: create the topic if it does not exist, with the default settings: a message is buried after ten
        deliveries.
    :param delay: for how many seconds nobody is given the messages, if the topic allows delays.
    :param priority: from -9 to 9, if the topic allows priorities. Consumers are given higher ones first.
    :param dedup_key: publish no message whose key was published within the topic's window: a text for one message, or a
        function that returns the key of each payload. The id of the message that was is returned in its place.
    :param pack: whether to put many messages into one object, a pack. ``"auto"``: if the topic allows packs and there
        are at least ``packs.min_messages`` of them. True: always. False: never.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = (
        "topic",
        "payloads",
        "producer",
        "headers",
        "delay",
        "priority",
        "dedup_key",
        "pawnqueue_conn_id",
    )
    template_fields_renderers = {"payloads": "json", "headers": "json"}  # noqa: RUF012 - as Airflow declares it

    def __init__(  # noqa: PLR0913 - as the queue's call has them
        self,
        *,
        topic: str,
        payloads: Mapping[str, Any] | Iterable[Mapping[str, Any]],
        producer: str | None = None,
        headers: Mapping[str, str] | None = None,
        create: bool = False,
        delay: float | timedelta | str | None = None,
        priority: int | str = 0,
        dedup_key: str | Callable[[Any], str] | None = None,
        pack: bool | Literal["auto"] = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = check_early(topic, checked_topic, "topic")
        self.payloads = payloads
        self.producer = producer
        self.headers = headers
        self.create = checked_flag(create, "create")
        self.delay = check_early(delay, checked_delay, "delay")
        self.priority = check_early(priority, checked_priority, "priority")
        # Airflow would call a function that is in a template field.
        self._key_of = dedup_key if callable(dedup_key) else None
        self.dedup_key = None if callable(dedup_key) else check_early(dedup_key, checked_text, "dedup_key")
        self.pack = checked_pack(pack)

    def execute(self, context: Context) -> list[str]:
        """Publish the messages."""
        ti: Any = context["ti"]
        delay = None if self.delay is None else checked_delay(self.delay, "delay")
        key = None if self.dedup_key is None else checked_text(self.dedup_key, "dedup_key")
        with failures():
            ids = self.hook.publish(
                self.topic,
                self._payloads(),
                producer=self.producer or f"{ti.dag_id}.{ti.task_id}",
                headers=self.headers,
                create=self.create,
                delay=delay,
                priority=checked_priority(self.priority, "priority"),
                dedup_key=self._key_of or key,
                pack=self.pack,
            )
        new = len(ids) - len(ids.duplicates)
        self.log.info("Published %d messages into topic %s.", new, self.topic)
        if ids.duplicates:
            self.log.info("%d messages were not published, as their keys had been.", len(ids.duplicates))
        return list(ids)

    def _payloads(self) -> Iterable[Mapping[str, Any]]:
        given: Any = self.payloads
        if given is None:
            raise AirflowFailException(
                f"payloads is None: the task that should return messages for topic {self.topic!r} has returned nothing."
            )
        if isinstance(given, str):
            given = references.literal(given)  # a template has turned the list into a text
        if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
            raise AirflowFailException(
                f"payloads is a {type(given).__name__}: pass a message for topic {self.topic!r}, a JSON object as a "
                "dict, or a list of them."
            )
        payloads = [given] if isinstance(given, Mapping) else given
        return (references.literal(each) if isinstance(each, str) else each for each in payloads)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ANN401 - of a package that may not be installed
        """Name the topic that was written to for OpenLineage."""
        del task_instance
        return lineage_of(self.hook.settings, outputs=[self.topic])


class PawnQueueRedriveOperator(PawnQueueOperator):
    """Moves dead letters back into their topic; returns how many were moved, were skipped, and failed.

    A task that was cut off goes on in its next try: what was moved is no dead letter any more. So a retry leaves out
    ids that have no dead letter, which the first try would refuse.

    :param topic: the topic's name.
    :param ids: the ids of dead letters or of their messages; without it, all. What follows chooses among these: all
        that is given has to be true of a letter.
    :param reason: those that were buried for this reason, or for one that begins with it. A ``*`` in it means any text:
        ``*KeyError`` finds ``work: KeyError: 'total'``, as tasks report it.
    :param older_than: those that were buried at least this long ago, in seconds or as a timedelta.
    :param younger_than: those that were buried less than this long ago.
    :param max_messages: how many to move at most.
    :param per_second: how many to move a second at most.
    :param dry_run: change nothing, and count what would be moved.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = (
        "topic",
        "ids",
        "reason",
        "older_than",
        "younger_than",
        "max_messages",
        "per_second",
        "pawnqueue_conn_id",
    )

    def __init__(  # noqa: PLR0913 - as the queue's call has them
        self,
        *,
        topic: str,
        ids: Sequence[str] | str | None = None,
        reason: str | None = None,
        older_than: float | str | timedelta | None = None,
        younger_than: float | str | timedelta | None = None,
        max_messages: int | str | None = None,
        per_second: float | str | None = None,
        dry_run: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = check_early(topic, checked_topic, "topic")
        self.ids = check_early(ids, checked_ids, "ids")
        self.reason = check_early(reason, checked_text, "reason")
        self.older_than = check_early(older_than, checked_delay, "older_than")
        self.younger_than = check_early(younger_than, checked_seconds, "younger_than")
        self.max_messages = check_early(max_messages, checked_count, "max_messages")
        self.per_second = check_early(per_second, checked_rate, "per_second")
        self.is_dry_run = checked_flag(dry_run, "dry_run")  # BaseOperator.dry_run is a method

    def execute(self, context: Context) -> dict[str, int]:
        """Redrive the dead letters."""
        ids = checked_ids(self.ids)
        given: dict[str, Any] = {
            "reason": self._given(self.reason, checked_text, "reason"),
            "older_than": self._given(self.older_than, checked_delay, "older_than"),
            "younger_than": self._given(self.younger_than, checked_seconds, "younger_than"),
            "max_messages": self._given(self.max_messages, checked_count, "max_messages"),
            "per_second": self._given(self.per_second, checked_rate, "per_second"),
        }
        if ids == []:
            # A task before this one has found no letters to redrive, which is not the same as all.
            return {"moved": 0, "skipped": 0, "failed": 0}
        is_retry = getattr(context.get("ti"), "try_number", 1) > 1
        with failures():
            done = self.hook.redrive(self.topic, ids, missing_ok=is_retry, dry_run=self.is_dry_run, **given)
        for message, why in done.failed.items():
            self.log.warning("Dead letter %s of topic %s was not moved back: %s", message, self.topic, why)
        return {"moved": done.moved_count, "skipped": done.skipped_count, "failed": done.failed_count}

    @staticmethod
    def _given(value: object, check: Callable[[Any, str], T], name: str) -> T | None:
        return None if value is None else check(value, name)

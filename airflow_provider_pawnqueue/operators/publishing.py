"""Operators that publish messages, and that move dead letters back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from airflow.providers.common.compat.sdk import AirflowFailException, Context

from airflow_provider_pawnqueue.hooks import references
from airflow_provider_pawnqueue.hooks.arguments import (
    check_early,
    checked_count,
    checked_flag,
    checked_ids,
    checked_pack,
    checked_topic,
)
from airflow_provider_pawnqueue.lineage import lineage_of
from airflow_provider_pawnqueue.operators.base import PawnQueueOperator, failures


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
    :param pack: whether to put many messages into one object, a pack. ``"auto"``: if the topic allows packs and there
        are at least ``packs.min_messages`` of them. True: always. False: never.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("topic", "payloads", "producer", "headers", "pawnqueue_conn_id")
    template_fields_renderers = {"payloads": "json", "headers": "json"}  # noqa: RUF012 - as Airflow declares it

    def __init__(  # noqa: PLR0913 - as the queue's call has them
        self,
        *,
        topic: str,
        payloads: Mapping[str, Any] | Iterable[Mapping[str, Any]],
        producer: str | None = None,
        headers: Mapping[str, str] | None = None,
        create: bool = False,
        pack: bool | Literal["auto"] = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = check_early(topic, checked_topic, "topic")
        self.payloads = payloads
        self.producer = producer
        self.headers = headers
        self.create = checked_flag(create, "create")
        self.pack = checked_pack(pack)

    def execute(self, context: Context) -> list[str]:
        """Publish the messages."""
        ti: Any = context["ti"]
        with failures():
            ids = self.hook.publish(
                self.topic,
                self._payloads(),
                producer=self.producer or f"{ti.dag_id}.{ti.task_id}",
                headers=self.headers,
                create=self.create,
                pack=self.pack,
            )
        self.log.info("Published %d messages into topic %s.", len(ids), self.topic)
        return ids

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

    :param topic: the topic's name.
    :param ids: the ids of dead letters or of their messages; without it, all.
    :param max_messages: how many to move at most.
    :param dry_run: change nothing, and count what would be moved.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("topic", "ids", "max_messages", "pawnqueue_conn_id")

    def __init__(
        self,
        *,
        topic: str,
        ids: Sequence[str] | str | None = None,
        max_messages: int | str | None = None,
        dry_run: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = check_early(topic, checked_topic, "topic")
        self.ids = check_early(ids, checked_ids, "ids")
        self.max_messages = check_early(max_messages, checked_count, "max_messages")
        self.is_dry_run = checked_flag(dry_run, "dry_run")  # BaseOperator.dry_run is a method

    def execute(self, context: Context) -> dict[str, int]:
        """Redrive the dead letters."""
        del context
        ids = checked_ids(self.ids)
        most = None if self.max_messages is None else checked_count(self.max_messages, "max_messages")
        if ids == []:
            # A task before this one has found no letters to redrive, which is not the same as all.
            return {"moved": 0, "skipped": 0, "failed": 0}
        with failures():
            if self.is_dry_run:
                return {"moved": self._count(ids, most), "skipped": 0, "failed": 0}
            done = self.hook.redrive(self.topic, ids, max_messages=most)
        for message, why in done.failed.items():
            self.log.warning("Dead letter %s of topic %s was not moved back: %s", message, self.topic, why)
        return {"moved": len(done.moved), "skipped": len(done.skipped), "failed": len(done.failed)}

    def _count(self, ids: Sequence[str] | None, most: int | None) -> int:
        dead = len(ids) if ids is not None else self.hook.stats(self.topic).dead
        return dead if most is None else min(dead, most)

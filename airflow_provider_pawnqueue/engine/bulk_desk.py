"""The part of the front door for work that many processes share: Spark's driver and its executors, a pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_pawnqueue.engine import layout
from airflow_provider_pawnqueue.engine.arguments import checked_count, checked_flag
from airflow_provider_pawnqueue.engine.claims import ClaimReference, Message
from airflow_provider_pawnqueue.engine.errors import InvalidArgumentError
from airflow_provider_pawnqueue.engine.portions import Portion, portions_of_claim, portions_of_topic, read_portion
from airflow_provider_pawnqueue.engine.topic_desk import TopicDesk

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.dead_letters import DeadLetter


class BulkDesk(TopicDesk):
    """What one process plans, and others carry out."""

    async def portions(
        self,
        of: ClaimReference | Mapping[str, Any] | str,
        *,
        parts: int | None = None,
        dead: bool = False,
        max_messages: int | None = None,
    ) -> list[Portion]:
        """Cut what a claim has, or what is in a topic, into portions that other processes read: :meth:`read`.

        A look: nothing is claimed, and nothing written. A portion can be pickled, and reading it twice gives the same.

        :param of: a claim, by its reference, as far as it is not settled; or the name of a topic: all that is in it,
            whoever has it.
        :param parts: how many, at most; without it, as many as their sizes are worth.
        :param dead: of a topic, its dead letters instead.
        :param max_messages: of a topic, how many at most, from its head.
        :raises LeaseLostError: the claim has no record any more, was taken over, its time is over, or all of it is
            settled.
        """
        self._life.check_open()
        wanted = None if parts is None else checked_count(parts, "parts", "portions")
        if not isinstance(of, str):
            reference = ClaimReference.of(of)
            if dead is not False or max_messages is not None:
                raise InvalidArgumentError(
                    "dead= and max_messages= are for the messages of a topic: a claim is cut as a whole.",
                    topic=reference.topic,
                    operation="portions",
                )
            await self._topic(reference.topic, "portions")
            return await portions_of_claim(self._context, reference, wanted)
        layout.checked_topic(of)
        checked_flag(dead, "dead", "portions")
        most = None if max_messages is None else checked_count(max_messages, "max_messages", "portions")
        await self._topic(of, "portions")
        return await portions_of_topic(self._context, of, wanted, most, dead=dead)

    async def read(self, portion: Portion) -> list[Message] | list[DeadLetter]:
        """Read a portion: of dead letters those, else messages; nothing else is asked of the store.

        :raises LeaseLostError: a message of the claim is not there any more, as it was settled or lost.
        :raises StoreError: one of the claim's messages cannot be read now.
        """
        self._life.check_open()
        if not isinstance(portion, Portion):
            raise InvalidArgumentError(
                f"A {type(portion).__name__} is no portion: pass one of those that portions() returns.",
                operation="read",
            )
        return await read_portion(self._context, portion)

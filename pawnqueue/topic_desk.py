"""The part of the front door where topics are looked after, and where those who use them are registered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from pawnqueue.arguments import checked_flags
from pawnqueue.bucket.registry import Heartbeat, Registration, Registry
from pawnqueue.bucket.topics import KnownTopics, Topic, TopicOptions, Topics
from pawnqueue.claims import Claims
from pawnqueue.maintenance import removal
from pawnqueue.maintenance.removal import Removed
from pawnqueue.runtime.lifetime import Lifetime

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.layout import Role
    from pawnqueue.domain.records import RegistrationRecord, TopicRecord


class TopicDesk:
    """What an open queue does with topics as a whole. Its claims have to know of some of that."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._life = Lifetime(context.clock)
        self._topics = Topics(context)
        self._known_topics = KnownTopics(context, self._topics)
        self._claims = Claims(context)
        self._registry = Registry(context)
        self._heartbeat = Heartbeat(self._registry, context.clock, context.settings.registry.heartbeat_interval_seconds)

    # --- topics ---

    async def create_topic(self, topic: str, **settings: Unpack[TopicOptions]) -> Topic:
        """Create the topic if it does not exist, and return it. Creating it again changes nothing.

        :param max_deliveries: after so many deliveries without a settlement a message is buried (10 where nothing is
            said); None: never.
        :raises InvalidTopicError: it is no topic name.
        :raises TopicExistsError: it exists with other settings than those given here.
        """
        self._life.check_open()
        return Topic.of(await self._topics.create(topic, settings))

    async def update_topic(self, topic: str, **settings: Unpack[TopicOptions]) -> Topic:
        """Change settings of the topic for everyone, and return it.

        Once this has returned, no process buries by a lower ``max_deliveries`` than the new one. A lowered one is known
        to every process after a minute.

        :param max_deliveries: as :meth:`create_topic` takes it; what is not named stays as it is.
        """
        self._life.check_open()
        return Topic.of(await self._known_topics.update(topic, settings))

    async def topic(self, topic: str) -> Topic:
        """Return a topic, with what is set for it, and when it was last swept.

        :raises TopicNotFoundError: it does not exist.
        """
        self._life.check_open()
        return Topic.of(await self._topics.get(topic), await self._topics.swept_at(topic))

    async def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        self._life.check_open()
        return await self._topics.names()

    async def delete_topic(self, topic: str, *, force: bool = False, dry_run: bool = False) -> Removed:
        """Delete the topic, if nothing is left in it; what claims have left that have ended goes with it.

        It takes a second, which is how long other processes may go on publishing into it.

        :param force: delete all that is in it too: messages, whoever works on them, and dead letters.
        :param dry_run: change nothing: raise where the deletion would, else count what would be deleted.
        :raises TopicNotEmptyError: there are messages, leases, unfinished claims or dead letters: how many, roughly.
        """
        self._life.check_open()
        checked_flags("delete_topic", force=force, dry_run=dry_run)
        self._claims.forget([topic])
        try:
            return await removal.delete(self._context, self._topics, topic, force=force, dry_run=dry_run)
        finally:
            self._known_topics.forget(topic)

    async def purge(
        self, topic: str, *, messages: bool = True, dead_letters: bool = False, dry_run: bool = False
    ) -> Removed:
        """Remove the messages of a topic, those too that somebody works on, or its dead letters; the topic goes on.

        :param messages: whether messages are removed.
        :param dead_letters: whether dead letters are.
        :param dry_run: change nothing, and count what would be removed.
        """
        self._life.check_open()
        checked_flags("purge", messages=messages, dead_letters=dead_letters, dry_run=dry_run)
        await self._topic(topic, "purge")
        try:
            return await removal.purge(
                self._context, topic, messages=messages, dead_letters=dead_letters, dry_run=dry_run
            )
        finally:
            self._claims.look_anew(topic)

    # --- who is here ---

    async def register_producer(self, name: str) -> Registration:
        """Return the producer's registration; a name has one id, in all processes and for ever."""
        return Registration.of(await self._register("producers", name))

    async def register_consumer(self, name: str) -> Registration:
        """Return the consumer's registration; a name has one id, in all processes and for ever."""
        return Registration.of(await self._register("consumers", name))

    async def list_producers(self) -> list[Registration]:
        """Return every producer that ever registered, and when it was last seen."""
        self._life.check_open()
        return [Registration.of(entry) for entry in await self._registry.everyone("producers")]

    async def list_consumers(self) -> list[Registration]:
        """Return every consumer that ever registered, and when it was last seen."""
        self._life.check_open()
        return [Registration.of(entry) for entry in await self._registry.everyone("consumers")]

    async def _topic(self, topic: str, operation: str) -> TopicRecord:
        return await self._known_topics.get(topic, operation)

    async def _register(self, role: Role, name: str) -> RegistrationRecord:
        self._life.check_open()
        registration = await self._registry.register(role, name)
        self._heartbeat.start()
        return registration

    async def _producer_id(self, producer: str | None) -> str:
        if producer is None:
            return ""
        self._life.check_open()
        producer_id = await self._registry.id_of("producers", producer)
        if self._registry.knows("producers", producer):
            self._heartbeat.start()
        return producer_id

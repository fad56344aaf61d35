"""PawnQueue: the front door."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_pawnqueue.engine import bucket
from airflow_provider_pawnqueue.engine.clock import Clock, SystemClock
from airflow_provider_pawnqueue.engine.errors import QueueClosedError
from airflow_provider_pawnqueue.engine.probe import Finding, probe
from airflow_provider_pawnqueue.engine.registry import Heartbeat, Registry
from airflow_provider_pawnqueue.engine.server_time import ServerTime
from airflow_provider_pawnqueue.engine.settings import Settings
from airflow_provider_pawnqueue.engine.store.connect import connect
from airflow_provider_pawnqueue.engine.store.retry import ResilientStore
from airflow_provider_pawnqueue.engine.topics import Topics

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.layout import Role
    from airflow_provider_pawnqueue.engine.records import BucketRecord, Registration, TopicRecord, TopicSettings
    from airflow_provider_pawnqueue.engine.store.credentials import Session
    from airflow_provider_pawnqueue.engine.store.port import Store


class PawnQueue:
    """A queue in a bucket. Made by :meth:`open`."""

    def __init__(self, store: ResilientStore, clock: Clock, settings: Settings, agreed: BucketRecord) -> None:
        at_once = settings.concurrency.max_in_flight
        registers = bucket.registers_for(agreed, store, clock, settings)
        time = ServerTime(store, clock)
        self._store = store
        self._clock = clock
        self._agreed = agreed
        self._topics = Topics(store, registers, time, at_once=at_once)
        self._registry = Registry(store, registers, time, at_once=at_once)
        self._heartbeat = Heartbeat(self._registry, clock, settings.registry.heartbeat_interval_seconds)
        self._closed = False

    @staticmethod
    def open(
        settings: Settings | Mapping[str, Any] | str | PathLike[str] | None = None,
        *,
        store: Store | None = None,
        session: Session | None = None,
        clock: Clock | None = None,
        **explicit: Any,
    ) -> Opening:
        """Open the queue that is in a bucket.

        ``async with PawnQueue.open(...) as queue:`` closes it again; so does ``await queue.aclose()`` after
        ``queue = await PawnQueue.open(...)``.

        The first process that opens a bucket probes what its store can do and writes that down; it takes a few seconds.

        :param settings: :class:`Settings`, a dict, the path of a YAML file, or None for the environment alone; dicts
        and files are overridden by ``PAWNQUEUE_*`` variables, and those by the sections given as keyword arguments
        (``s3={...}``).
        :param store: a store of your own instead of the one the settings describe. It is not closed with the queue.
        :param session: a boto3 session whose credentials are used instead of those in the settings.
        :param clock: another source of time, randomness and ids, for simulations.
        :raises ConfigError: a setting is wrong or contradicts what the bucket's processes agreed on.
        :raises StoreError: the bucket cannot be reached or used, and why.
        :raises CompatibilityError: the bucket has a newer format, or its store cannot carry a queue.
        """
        return Opening(settings, store, session, clock, explicit)

    @property
    def strategy(self) -> str:
        """The lease strategy that all processes of this bucket follow."""
        return self._agreed.strategy

    async def probe(self) -> Finding:
        """Ask the store again what it can do. Changes nothing; :attr:`strategy` stays what was agreed on."""
        self._check_open()
        return await probe(self._store, self._clock)

    async def create_topic(self, topic: str, **settings: Any) -> TopicSettings:
        """Create the topic if it does not exist, and return its settings. Creating it again changes nothing.

        :raises InvalidTopicError: it is no topic name.
        :raises TopicExistsError: it exists with other settings than those given here.
        """
        self._check_open()
        return (await self._topics.create(topic, settings)).settings

    async def update_topic(self, topic: str, **settings: Any) -> TopicSettings:
        """Change settings of the topic for everyone, and return all of them."""
        self._check_open()
        return (await self._topics.update(topic, settings)).settings

    async def topic(self, topic: str) -> TopicRecord:
        """Return what is stored of the topic.

        :raises TopicNotFoundError: it does not exist.
        """
        self._check_open()
        return await self._topics.get(topic)

    async def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        self._check_open()
        return await self._topics.names()

    async def delete_topic(self, topic: str) -> None:
        """Delete the topic, if nothing is left in it.

        :raises TopicNotEmptyError: there are messages, leases, claims or dead letters.
        """
        self._check_open()
        await self._topics.delete(topic)

    async def register_producer(self, name: str) -> Registration:
        """Return the producer's registration; a name has one id, in all processes and for ever."""
        return await self._register("producers", name)

    async def register_consumer(self, name: str) -> Registration:
        """Return the consumer's registration; a name has one id, in all processes and for ever."""
        return await self._register("consumers", name)

    async def list_producers(self) -> list[Registration]:
        """Return every producer that ever registered, and when it was last seen."""
        self._check_open()
        return await self._registry.everyone("producers")

    async def list_consumers(self) -> list[Registration]:
        """Return every consumer that ever registered, and when it was last seen."""
        self._check_open()
        return await self._registry.everyone("consumers")

    async def aclose(self) -> None:
        """Close the queue: end its background work and give back its connections. May be called twice."""
        if self._closed:
            return
        self._closed = True
        await self._heartbeat.stop()
        await self._store.aclose()

    async def _register(self, role: Role, name: str) -> Registration:
        self._check_open()
        registration = await self._registry.register(role, name)
        self._heartbeat.start()
        return registration

    def _check_open(self) -> None:
        if self._closed:
            raise QueueClosedError

    async def __aenter__(self) -> Self:
        """Use an open queue as a context manager, once more."""
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the queue."""
        await self.aclose()


class Opening:
    """A queue that is about to be opened: await it, or enter it."""

    def __init__(
        self,
        settings: Settings | Mapping[str, Any] | str | PathLike[str] | None,
        store: Store | None,
        session: Session | None,
        clock: Clock | None,
        explicit: dict[str, Any],
    ) -> None:
        self._settings = settings
        self._given = store
        self._session = session
        self._clock = clock or SystemClock()
        self._explicit = explicit
        self._queue: PawnQueue | None = None

    async def _open(self) -> PawnQueue:
        if self._given is not None:
            self._explicit = {
                "s3": {"bucket_name": "own-store"},
                **self._explicit,
            }  # where the bucket is, only it knows
        settings = Settings.load(self._settings, **self._explicit)
        # Importing boto3, reading profiles and making clients take a while, and other work of this loop goes on.
        made = self._given if self._given is not None else await asyncio.to_thread(connect, settings.s3, self._session)
        store = ResilientStore(made, settings.retry, self._clock, owned=self._given is None)
        try:
            return PawnQueue(store, self._clock, settings, await bucket.agree(store, self._clock, settings))
        except BaseException:
            await store.aclose()
            raise

    def __await__(self) -> Generator[Any, None, PawnQueue]:
        """Open the queue; its user closes it."""
        return self._open().__await__()

    async def __aenter__(self) -> PawnQueue:
        """Open the queue for the length of a block."""
        self._queue = await self._open()
        return self._queue

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the queue."""
        if self._queue is not None:
            await self._queue.aclose()

"""Who was here: producers and consumers by name, each with one id for ever."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine import layout
from airflow_provider_pawnqueue.engine.errors import ConfigError, PawnQueueError, StoreError
from airflow_provider_pawnqueue.engine.gather import each
from airflow_provider_pawnqueue.engine.leases.cas import Step
from airflow_provider_pawnqueue.engine.records import Registration, UnreadableRecordError
from airflow_provider_pawnqueue.engine.store.port import Done, Unknown

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.clock import Clock
    from airflow_provider_pawnqueue.engine.layout import Role
    from airflow_provider_pawnqueue.engine.leases.cas import Registers
    from airflow_provider_pawnqueue.engine.server_time import ServerTime
    from airflow_provider_pawnqueue.engine.store.retry import ResilientStore

logger = logging.getLogger(__name__)

LONGEST_NAME = 256


class Registry:
    """The registrations of one bucket. What a name was given once is remembered for the life of the process."""

    def __init__(self, store: ResilientStore, registers: Registers, time: ServerTime, *, at_once: int) -> None:
        self._store = store
        self._registers = registers
        self._time = time
        self._at_once = at_once
        self._mine: dict[tuple[Role, str], Registration] = {}

    async def register(self, role: Role, name: str) -> Registration:
        """Return the registration of the name; make it if there is none.

        The key is derived from the name, so whoever registers it at the same instant meets us there, and the id that
        stands there is the name's. A name that pawn-queue has registered, under a random key, keeps the id it got.
        """
        _check(name)
        known = self._mine.get((role, name))
        if known is not None:
            return known
        key = _key(role, name)
        standing = await self._read(key)
        if standing is None:
            standing = await self._create(role, name, key)
        self._mine[role, name] = standing
        return standing

    async def everyone(self, role: Role) -> list[Registration]:
        """Return everyone who ever registered in the role, by name."""
        by_name: dict[str, Registration] = {}
        found = await self._all(role)
        # What stands at the name's own key holds, as in register(); then the eldest.
        for key in sorted(found, key=lambda key: (key != _key(role, found[key].name), _seniority(found[key]))):
            entry = found[key]
            first = by_name.setdefault(entry.name, entry)
            seen = max(entry.last_seen, first.last_seen)
            by_name[entry.name] = first.model_copy(update={"last_seen": seen})
        return [by_name[name] for name in sorted(by_name)]

    async def beat(self) -> None:
        """Write ``last_seen`` of everyone whom this process has registered: one PUT each."""
        now = await self._time.now_iso()

        async def touch(mine: tuple[tuple[Role, str], Registration]) -> None:
            # The last write may win: all who write it mean the same name and id, and only the time differs.
            (role, name), entry = mine
            fresh = entry.model_copy(update={"last_seen": now}).stamped(entry.nonce)
            await self._store.overwrite(_key(role, name), fresh.encode())

        await each(touch, list(self._mine.items()), at_once=self._at_once)

    async def _create(self, role: Role, name: str, key: str) -> Registration:
        now = await self._time.now_iso()
        earlier = [entry for entry in (await self._all(role)).values() if entry.name == name]
        if earlier:
            entry = min(earlier, key=_seniority)
            record = entry.model_copy(update={"last_seen": now})
        else:
            entity_id = layout.id_of_name(role, name)
            record = Registration(role=role, name=name, entity_id=entity_id, registered_at=now, last_seen=now)
        [outcome] = await self._registers.write([Step(key, record)])
        if isinstance(outcome, Done):
            return record
        standing = await self._read(key)
        if standing is not None:
            return standing
        if isinstance(outcome, Unknown):
            sentence = f"It could not be found out whether {role[:-1]} {name!r} was registered ({outcome.fault})"
            cause = outcome.fault
        else:
            sentence = f"The place of {role[:-1]} {name!r} is taken by what is no registration: delete {key}"
            cause = None
        raise StoreError(
            f"{sentence}, and try again.",
            operation=f"register_{role[:-1]}",
            cause=cause,
            transient=isinstance(outcome, Unknown),
        )

    async def _all(self, role: Role) -> dict[str, Registration]:
        keys = [info.key async for page in self._store.pages(layout.registrations(role)) for info in page]
        found = await each(self._read, keys, at_once=self._at_once)
        return {key: entry for key, entry in zip(keys, found, strict=True) if entry is not None}

    async def _read(self, key: str) -> Registration | None:
        found = await self._store.get(key)
        if found is None:
            return None
        try:
            return Registration.decode(found.body, key)
        except UnreadableRecordError:
            logger.warning("%s is no registration and is left alone.", key)
            return None


class Heartbeat:
    """Keeps ``last_seen`` of this process's registrations fresh. A failed beat is logged, and the next one makes up."""

    def __init__(self, registry: Registry, clock: Clock, interval: float) -> None:
        self._registry = registry
        self._clock = clock
        self._interval = interval
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, if it has not begun."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="pawnqueue-heartbeat")

    async def stop(self) -> None:
        """End, also in the middle of a beat."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(self._interval)
            try:
                await self._registry.beat()
            except PawnQueueError as error:
                logger.warning("The heartbeat of the registrations failed and is tried again: %s", error)


def _check(name: object) -> None:
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME or not _has_utf8(name):
        raise ConfigError(
            f"The name of a producer or consumer is a text of 1 to {LONGEST_NAME} characters, not {str(name)[:40]!r}: "
            "it stays the same over restarts, as its id belongs to it.",
            operation="register",
        )


def _has_utf8(name: str) -> bool:
    return name.encode(errors="replace").decode() == name


def _key(role: Role, name: str) -> str:
    return layout.registration(role, layout.id_of_name(role, name))


def _seniority(entry: Registration) -> tuple[str, str]:
    return entry.registered_at, entry.entity_id

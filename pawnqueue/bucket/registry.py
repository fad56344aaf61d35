"""The registry of producers and consumers: each name has one id for ever, and the time when it was last seen."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Self, get_args

from pawnqueue.context import PER_OBJECT_RETRY_SECONDS
from pawnqueue.domain import layout
from pawnqueue.domain.bounds import LONGEST_REGISTERED_NAME, is_plain
from pawnqueue.domain.object_sizes import MAX_SMALL_RECORD_BYTES
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.domain.records import RegistrationRecord
from pawnqueue.domain.times import instant, iso
from pawnqueue.errors import CompatibilityError, InvalidArgumentError, PawnQueueError, StoreError
from pawnqueue.events import logger_of
from pawnqueue.registers.strategy import Step
from pawnqueue.runtime.cancellation import LAST_ANSWER_SECONDS
from pawnqueue.runtime.concurrency import SharedWork, for_each, wait_at_most
from pawnqueue.stores.port import NO_VERSION, Done, Unknown

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.layout import Role
    from pawnqueue.registers.strategy import Registers
    from pawnqueue.runtime.clock import Clock
    from pawnqueue.stores.retry import ResilientStore

logger = logger_of("registry")


@dataclass(frozen=True, slots=True)
class Registration:
    """A producer or a consumer: its name has one id, in all processes and for ever."""

    role: Literal["producer", "consumer"]
    """Whether it is a producer or a consumer."""
    name: str
    """Its name."""
    id: str
    """The id of the name; messages carry the ids of their producers."""
    registered_at: datetime | None
    """None where its registration does not say, as with other libraries."""
    last_seen: datetime | None
    """When it last wrote its heartbeat; None where that is not known."""

    @classmethod
    def of(cls, entry: RegistrationRecord) -> Self:
        """Return a stored registration as users see it."""
        role: Literal["producer", "consumer"] = "producer" if entry.role.startswith("producer") else "consumer"
        return cls(role, entry.name, entry.entity_id, instant(entry.registered_at), instant(entry.last_seen))


class Registry:
    """The registrations of one bucket. This process caches its own for as long as it lives.

    What many callers ask for at the same time is done once: starting together costs as much as starting alone.
    """

    def __init__(self, context: Context) -> None:
        store, at_once = context.store, context.at_once
        self._store = store
        self._registers = context.registers
        self._time = context.time
        self._at_once = at_once
        self._mine: dict[tuple[Role, str], RegistrationRecord] = {}
        self._attempts: SharedWork[tuple[Role, str], RegistrationRecord | PawnQueueError] = SharedWork()
        self._taken: set[tuple[Role, str]] = set()
        self._caches: dict[Role, _RegistrationCache] = {
            role: _RegistrationCache(store, self._registers, role, at_once=at_once) for role in get_args(layout.Role)
        }

    async def register(self, role: Role, name: str) -> RegistrationRecord:
        """Return the registration of the name; create it if there is none.

        The key is derived from the name, so all that register it at the same time write the same object, and get the id
        in it. A name that pawn-queue has registered, under a random key, keeps its id.

        :raises StoreError: the object at its key is not its registration.
        :raises CompatibilityError: the object at its key has a newer format.
        """
        found = await self._find(role, name)
        if isinstance(found, PawnQueueError):
            raise found
        return found

    async def id_of(self, role: Role, name: str) -> str:
        """Return the name's id, for its messages, and register the name if that is possible.

        ⚑ §5.6: everybody can derive the key, so anything may be stored there. That is logged once, and stops no
        producer.
        """
        found = self._mine.get((role, name))
        if found is None and (role, name) not in self._taken:
            attempt = await self._find(role, name)
            if isinstance(attempt, RegistrationRecord):
                found = attempt
            elif (role, name) not in self._taken:
                self._taken.add((role, name))
                logger.warning("%s %.60r publishes without a registration: %s", role[:-1], name, attempt)
        return layout.id_of_name(role, name) if found is None else found.entity_id

    async def _find(self, role: Role, name: str) -> RegistrationRecord | PawnQueueError:
        """Return the registration of the name, which is created if need be, or the error of the object at its key."""
        _check_name(name)
        known = self._mine.get((role, name))
        if known is not None:
            return known
        return await self._attempts.do((role, name), lambda: self._register(role, name))

    def has_registered(self, role: Role, name: str) -> bool:
        """Say whether this process has registered the name."""
        return (role, name) in self._mine

    async def list_all(self, role: Role) -> list[RegistrationRecord]:
        """Return all registrations of the role, in the order of their names. Those that cannot be read are left out."""
        by_name: dict[str, RegistrationRecord] = {}
        found = await self._caches[role].read_all()
        # The registration at the name's own key wins, as in register(); else the oldest one.
        for key in sorted(found, key=lambda key: (key != _key(role, found[key].name), _seniority(found[key]))):
            entry = found[key]
            first = by_name.setdefault(entry.name, entry)
            seen = max(entry.last_seen, first.last_seen)
            by_name[entry.name] = first.model_copy(update={"last_seen": seen})
        return [by_name[name] for name in sorted(by_name)]

    async def write_last_seen(self, *, older_than: float = 0.0) -> None:
        """Write ``last_seen`` of all names that this process has registered: one PUT each.

        An error of one does not stop the others; the first error is raised when all were tried.

        :param older_than: only of names that were last seen at least these seconds ago.
        """
        now = await self._time.now()
        due = [name for name, entry in self._mine.items() if not older_than or _age(entry, now) >= older_than]
        outcomes = await for_each(lambda name: self._write_last_seen(*name, iso(now)), due, at_once=self._at_once)
        for error in outcomes:
            if error is not None:
                raise error

    async def _write_last_seen(self, role: Role, name: str, now: str) -> PawnQueueError | None:
        # The last write may win: all writers write the same name and id, and only the time differs.
        entry = self._mine[role, name]
        fresh = entry.model_copy(update={"last_seen": now}).stamped(entry.nonce)
        key = _key(role, name)
        try:
            version = await self._registers.overwrite(key, fresh)
        except PawnQueueError as error:
            return error
        self._caches[role].remember(key, version, fresh)
        return None

    async def _register(self, role: Role, name: str) -> RegistrationRecord | PawnQueueError:
        key = _key(role, name)
        try:
            stored = await self._caches[role].read(key) or await self._create(role, name, key)
        except CompatibilityError as error:
            return error
        # Another name under the id of this name: only a forger makes such a registration.
        if stored is None or stored.name != name:
            return StoreError(
                f"{key}, the key of {role[:-1]} {name!r}, holds something else than its registration: delete it, and "
                "try again.",
                operation=f"register_{role[:-1]}",
            )
        self._mine[role, name] = stored
        return stored

    async def _create(self, role: Role, name: str, key: str) -> RegistrationRecord | None:
        """Create it, and return what is stored then; None: that is not a registration."""
        now = await self._time.now_iso()
        earlier = await self._caches[role].find_by_name(name)
        if earlier:
            entry = min(earlier, key=_seniority)
            record = entry.model_copy(update={"last_seen": now})
        else:
            entity_id = layout.id_of_name(role, name)
            record = RegistrationRecord(role=role, name=name, entity_id=entity_id, registered_at=now, last_seen=now)
        [outcome] = await self._registers.write([Step(key, record)])
        if isinstance(outcome, Done):
            self._caches[role].remember(key, outcome.version, record)
            return record
        stored = await self._caches[role].read(key)
        if stored is not None:
            return stored
        if not isinstance(outcome, Unknown):
            return None
        cause = outcome.fault
        sentence = f"{role[:-1].capitalize()} {name!r} could not be registered: {cause}"
        if cause.transient:
            sentence = f"It could not be found out whether {role[:-1]} {name!r} was registered ({cause}): try again."
        raise StoreError(sentence, operation=f"register_{role[:-1]}", cause=cause, transient=cause.transient)


class _RegistrationCache:
    """All registrations of one role, cached by their versions."""

    def __init__(self, store: ResilientStore, registers: Registers, role: Role, *, at_once: int) -> None:
        self._store = store
        self._registers = registers
        self._role = role
        self._at_once = at_once
        self._known: dict[str, tuple[str, RegistrationRecord | None]] = {}
        self._listings: SharedWork[bool, set[str]] = SharedWork()
        self._lock = asyncio.Lock()

    def remember(self, key: str, version: str, entry: RegistrationRecord | None) -> None:
        """Remember the registration that is stored at this key."""
        self._known[key] = (version, entry)

    async def read(self, key: str) -> RegistrationRecord | None:
        """Return the registration at this key, or None."""
        return await self._read(self._registers, key)

    async def _read(self, registers: Registers, key: str) -> RegistrationRecord | None:
        found = await registers.look(key)
        if found is None:
            return None
        entry = None
        try:
            entry = RegistrationRecord.decode(found.body, key)
        except UnreadableRecordError:
            if self._known.get(key) != (found.info.version, None):
                logger.warning("%s is not a registration, and is left alone.", key)
        self.remember(key, found.info.version, entry)
        return entry

    async def read_all(self) -> dict[str, RegistrationRecord]:
        """Return all registrations that can be read, by their keys."""
        unread = await self._refresh(names_only=False)
        found = {key: entry for key, (_, entry) in self._known.items() if entry is not None and key not in unread}
        if unread and not found:
            # ⚑ §5.6: a store that answers no read at all is an error, not an empty registry.
            await self._store.get(layout.BUCKET_RECORD, MAX_SMALL_RECORD_BYTES)
        return found

    async def find_by_name(self, name: str) -> list[RegistrationRecord]:
        """Return the registrations of this name; their ``last_seen`` may be out of date.

        ⚑ §5.6: a registration that cannot be read, for good or for now, is taken for one of another name. The risk is
        that a name gets a second id: a name that only pawn-queue has registered, under that object. (A name of ours is
        registered at its own key, which was read before with the full retry budget.) From then on the list has the new
        id too; messages are distinguished by their own ids and not by their producers'. It is the lesser evil: else a
        single object that answers 500 would keep every new name from publishing, for ever.
        """
        await self._refresh(names_only=True)
        return [entry for _, entry in self._known.values() if entry is not None and entry.name == name]

    async def _refresh(self, *, names_only: bool) -> set[str]:
        """List the registrations and read the new ones; return the keys that could not be read.

        One listing at a time: a caller that comes during one shares the next one, as this one may have passed by the
        key that the caller needs.
        """

        async def refresh() -> set[str]:
            async with self._lock:
                self._listings.stop_sharing(names_only)
                return await self._list_and_read(names_only=names_only)

        return await self._listings.do(names_only, refresh)

    async def _list_and_read(self, *, names_only: bool) -> set[str]:
        before = set(self._known)
        pages = self._registers.pages(layout.registrations(self._role))
        listed = {info.key: info.version async for page in pages for info in page}
        for key in before.difference(listed):
            self._known.pop(key, None)
        unreadable: set[str] = set()
        registers = self._registers.through(self._store.with_budget(PER_OBJECT_RETRY_SECONDS))

        async def read(key: str) -> None:
            try:
                await self._read(registers, key)
            except PawnQueueError as error:
                unreadable.add(key)
                logger.warning("%s cannot be read and is left alone: %s", key, error)

        unread = [key for key, version in listed.items() if not self._knows(key, version, names_only=names_only)]
        await for_each(read, unread, at_once=self._at_once)
        return unreadable

    def _knows(self, key: str, version: str, *, names_only: bool) -> bool:
        known = self._known.get(key)
        if known is None:
            return False
        # A registration keeps its name when it is overwritten.
        return (names_only and known[1] is not None) or known[0] == version != NO_VERSION


class Heartbeat:
    """Keeps ``last_seen`` of this process's registrations up to date. A failure is logged, and the next one follows."""

    def __init__(self, registry: Registry, clock: Clock, interval: float) -> None:
        self._registry = registry
        self._clock = clock
        self._interval = interval
        self._task: asyncio.Task[None] | None = None
        self._registering: dict[tuple[Role, str], asyncio.Task[None]] = {}
        self._refused: set[tuple[Role, str]] = set()

    def register_in_background(self, role: Role, name: str) -> None:
        """Register a name in the background: the caller does not wait for it, nor fail with it."""
        is_tried = (role, name) in self._registering or (role, name) in self._refused
        if is_tried or self._registry.has_registered(role, name):
            return
        task = asyncio.create_task(self._register(role, name), name=f"pawnqueue-register-{name}")
        self._registering[role, name] = task
        task.add_done_callback(lambda _: self._registering.pop((role, name), None))

    async def _register(self, role: Role, name: str) -> None:
        try:
            await self._registry.register(role, name)
        except PawnQueueError as error:
            # A name that is denied, or not valid, is not tried again by this process.
            if not getattr(error, "transient", False):
                self._refused.add((role, name))
            logger.warning("%s %.60r could not be registered, and continues without: %s", role[:-1], name, error)
            return
        self.start()

    def start(self) -> None:
        """Start the heartbeat, unless it is running."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="pawnqueue-heartbeat")

    async def stop(self) -> None:
        """Stop the heartbeat at once."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        # ⚑ §4, Interrupted: a request that was sent may land, so it waits for the answer, though not for ever.
        enlisting = list(self._registering.values())
        if enlisting:
            await wait_at_most(asyncio.gather(*enlisting, return_exceptions=True), self._clock, LAST_ANSWER_SECONDS)

    async def _run(self) -> None:
        # Names registered earlier are written at once: a process that ends within a minute is seen too.
        await self._write(older_than=self._interval)
        while True:
            await self._clock.sleep(self._interval)
            await self._write()

    async def _write(self, *, older_than: float = 0.0) -> None:
        try:
            await self._registry.write_last_seen(older_than=older_than)
        except Exception as error:  # noqa: BLE001 - a heartbeat must not end silently
            logger.warning("The heartbeat of the registrations failed and will be retried: %s", error)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip() or not is_plain(name):
        raise InvalidArgumentError(
            f"{str(name)[:40]!r} is not a valid name of a producer or consumer: pass 1 to {LONGEST_REGISTERED_NAME} "
            "characters without control characters, and the same name after a restart, as the id is found by the name.",
            operation="register",
        )


def _key(role: Role, name: str) -> str:
    return layout.registration(role, layout.id_of_name(role, name))


def _age(entry: RegistrationRecord, now: float) -> float:
    seen = instant(entry.last_seen)
    return math.inf if seen is None else now - seen.timestamp()


def _seniority(entry: RegistrationRecord) -> tuple[str, str]:
    return entry.registered_at, entry.entity_id

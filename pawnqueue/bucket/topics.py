"""Topics: created idempotently, listed without walking the bucket, with settings in a register."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, TypedDict

from pydantic import ValidationError

from pawnqueue.arguments import is_number, shown
from pawnqueue.bucket.grouped_settings import CompletedOptions, DeadLetterOptions, with_groups
from pawnqueue.domain import layout
from pawnqueue.domain.records import (
    DEFAULT_DEDUP_WINDOW_SECONDS,
    LONGEST_DEDUP_WINDOW_SECONDS,
    TopicRecord,
    TopicSettings,
)
from pawnqueue.domain.times import instant
from pawnqueue.errors import ConfigError, StoreError, TopicExistsError, TopicNotFoundError
from pawnqueue.events import TopicChanged
from pawnqueue.registers.topic_markers import TopicMarker
from pawnqueue.runtime.concurrency import SharedWork, for_each

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.registers.register import Versioned


#: How long a topic's record is cached.
RECORD_CACHE_SECONDS = 60.0
#: ⚑ §4: how old the record may be by which a claim hands out messages: by then nobody is given any of a paused topic.
RECENT_RECORD_SECONDS = 5.0
#: How long it is cached that a topic exists.
EXISTENCE_CACHE_SECONDS = 1.0
#: How long the check whether a topic still exists is retried: messages wait for it.
EXISTENCE_CHECK_RETRY_SECONDS = 5.0

#: Settings that are None in a topic that never had the thing. Later they are True or False, and never None again.
_FOR_EVER: Final = ("packs", "priorities", "delays")
#: A topic, and whether it was seen with settings by which its consumers look for packs; or when it was created.
_Seen: TypeAlias = tuple[str, bool | str]


#: What a wrong setting should have been.
_TO_PASS: Final = {
    "max_deliveries": "a whole number from 1, or None for never",
    "max_pending": "a whole number from 1, or None for any number",
    "overload": "'raise' or 'block' (an overload that drops messages does not exist, as nothing is lost here)",
    "overload_timeout_seconds": "a number of seconds from 0 to ten years",
    "max_age_seconds": "a number of seconds from 1 to ten years, or None for never",
    "paused": "True or False",
}


class TopicOptions(TypedDict, total=False):
    """The settings of one topic, for all its users."""

    max_deliveries: int | None
    """After this many deliveries without a settlement a message is buried (10 by default); None: never."""
    dedup_window_seconds: float | None
    """For how long a message keeps others with its deduplication key from being published (an hour by default)."""
    packs: bool | None
    """Whether many messages that are published at once become packs (default True)."""
    max_pending: int | None
    """How many messages that are not finished the topic may have before publishers are held up; None: any number."""
    overload: Literal["raise", "block"]
    """Whether publishing into a topic with ``max_pending`` messages is an error (default), or waits for room."""
    overload_timeout_seconds: float
    """For how long publishing waits for room (30 by default)."""
    max_age_seconds: float | None
    """A message that is older than this is buried, and handed out to nobody; None: never (default)."""
    priorities: bool | None
    """Whether messages may be published with a priority (default False)."""
    delays: bool | None
    """Whether messages may be published with a delay (default False)."""
    paused: bool
    """Whether nobody is given messages of the topic (default False). ``pause`` and ``resume`` set it."""
    completed: CompletedOptions | bool | None
    """A log of what was acked, by which consumer, when: True, or its limits (default False)."""
    dead_letters: DeadLetterOptions | None
    """Which dead letters the janitor removes, after a warning; None (the default): none."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and its settings."""

    name: str
    """Its name."""
    settings: TopicSettings
    """Its settings."""
    created_at: datetime | None = None
    """None where its marker does not tell: made by hand, or by another library."""

    swept_at: datetime | None = None
    """When a janitor last swept it completely, in whole seconds of the store's time; None: never. Only ``queue.topic``
    sets it."""

    @classmethod
    def of(cls, record: TopicRecord, swept_at: datetime | None = None) -> Self:
        """Return a stored topic as users see it."""
        created = instant(record.created_at)
        # A note that is older than the topic was left by an earlier topic of this name.
        is_own = swept_at is not None and (created is None or swept_at >= created.replace(microsecond=0))
        return cls(record.name, record.settings, created, swept_at if is_own else None)


class Topics:
    """The topics of one bucket."""

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._registers = context.registers
        self._time = context.time
        self._events = context.events
        self._at_once = context.at_once
        self._clock = context.clock

    async def create(self, topic: str, settings: Mapping[str, Any]) -> TopicRecord:
        """Create the topic, or return it if it exists with the same settings; other settings are an error."""
        layout.checked_topic(topic)
        if settings.get("packs", True) is None:  # the settings of a topic that never had any, for another one
            settings = {**settings, "packs": False}
        wanted = _merge_settings(topic, TopicSettings(), {"packs": True, **settings})
        found = await self.find(topic)
        if found is None:
            limits_id = "" if wanted.dead_letters is None else self._clock.uuid()
            created_at = await self._time.now_iso()
            record = TopicRecord(topic=topic, created_at=created_at, settings=wanted, limits_id=limits_id)
            fault = None
            try:
                created = await TopicMarker(self._registers, topic).create(record)
            except StoreError as error:
                created, fault = None, error
            if created is not None:
                self._events.tell(TopicChanged(topic=topic, what="created"))
                return record
            found = await self.find(topic)
            if found is None:
                raise _unknown_outcome_error(topic, "create_topic", fault)
        existing = found.value
        updated = _merge_settings(topic, existing.settings, settings)
        differing = [name for name in settings if getattr(existing.settings, name) != getattr(updated, name)]
        if differing:
            names = ", ".join(f"{name}={getattr(existing.settings, name)!r}" for name in differing)
            raise TopicExistsError(
                f"Topic {topic!r} exists already, with {names}: use update_topic to change it.",
                topic=topic,
                operation="create_topic",
            )
        return existing

    async def update(self, topic: str, settings: Mapping[str, Any], *, unset_only: bool = False) -> TopicRecord:
        """Change settings of the topic by compare-and-set, so that simultaneous changes of other processes are kept.

        :param unset_only: change only those that are None.
        """
        layout.checked_topic(topic)
        backoff = self._store.backoff()
        while True:
            found = await self.find(topic)
            if found is None:
                raise topic_not_found_error(topic, "update_topic")
            record = found.value
            changes = settings
            if unset_only:
                changes = {name: each for name, each in settings.items() if getattr(record.settings, name) is None}
            changed = record.model_copy(update={"settings": _merge_settings(topic, record.settings, changes)})
            if changed.settings == record.settings:
                return record
            if changed.settings.dead_letters != record.settings.dead_letters:
                # ⚑ §5: what was warned of under other limits is warned of again.
                changed = changed.model_copy(update={"limits_id": self._clock.uuid()})
            try:
                replaced = await TopicMarker(self._registers, topic).replace(found, changed)
            except StoreError as error:
                raise _unknown_outcome_error(topic, "update_topic", error) from error
            if replaced is not None:
                self._events.tell(TopicChanged(topic=topic, what=_change(record.settings, changed.settings)))
                return changed
            if not await backoff.pause():
                raise _unknown_outcome_error(topic, "update_topic")

    async def get(self, topic: str, operation: str = "topic") -> TopicRecord:
        """Return the topic's record. A marker that pawn-queue wrote is a topic with default settings."""
        layout.checked_topic(topic)
        found = await self.find(topic)
        if found is None:
            raise topic_not_found_error(topic, operation)
        return found.value

    async def swept_at(self, topic: str) -> datetime | None:
        """Return when a janitor last swept the topic: one HEAD."""
        note = await self._store.head(layout.swept(topic))
        return None if note is None else note.last_modified

    async def list_names(self) -> list[str]:
        """Return the names of all topics: one LIST, and a HEAD for each folder, as a folder alone is not a topic."""
        names = [name for name in map(layout.topic_of_folder, await self._store.folders()) if name]
        markers = await for_each(self._registers.head, map(layout.topic_marker, names), at_once=self._at_once)
        return sorted(name for name, marker in zip(names, markers, strict=True) if marker)

    async def exists(self, topic: str, *, with_packs: bool = False) -> bool:
        """Say whether the topic has a marker: one HEAD.

        :param with_packs: say whether its consumers look for packs, too: one GET.
        """
        registers = self._registers.through(self._store.with_budget(EXISTENCE_CHECK_RETRY_SECONDS))
        if with_packs:
            found = await TopicMarker(registers, topic).look()
            return found is not None and found.value.settings.packs is not None
        return await registers.head(layout.topic_marker(topic)) is not None

    async def is_of(self, topic: str, created_at: str) -> bool:
        """Say whether the topic exists, as it was created at this time: one GET."""
        registers = self._registers.through(self._store.with_budget(EXISTENCE_CHECK_RETRY_SECONDS))
        found = await TopicMarker(registers, topic).look()
        return found is not None and found.value.created_at == created_at

    async def find(self, topic: str) -> Versioned[TopicRecord] | None:
        """Return the topic's record and its version, or None if the topic does not exist."""
        return await TopicMarker(self._registers, topic).look()


class KnownTopics:
    """Caches what one process reads about the topics that it uses: their settings seldom change."""

    def __init__(self, context: Context, topics: Topics) -> None:
        self._topics = topics
        self._clock = context.clock
        self._records: dict[str, tuple[TopicRecord, float]] = {}
        self._seen: dict[_Seen, float] = {}
        self._reads: SharedWork[str, TopicRecord | None] = SharedWork()
        self._creations: SharedWork[str, None] = SharedWork()
        self._read_began: dict[str, float] = {}
        self._checks: SharedWork[_Seen, bool] = SharedWork()
        self._check_began: dict[_Seen, float] = {}
        self._changes = 0

    async def get(self, topic: str, operation: str) -> TopicRecord:
        """Return the topic's record, read once a minute, and once for all callers that ask at the same time."""
        known = self._records.get(topic)
        if known is not None and self._clock.elapsed() - known[1] < RECORD_CACHE_SECONDS:
            return known[0]
        layout.checked_topic(topic)
        may_be_old = self._reads.is_running(topic)
        record = await self._reads.do(topic, lambda: self._read(topic))
        if record is None and may_be_old:  # that read began before this call, and perhaps before the topic was created
            record = await self._reads.do(topic, lambda: self._read(topic))
        if record is None:
            raise topic_not_found_error(topic, operation)
        return record

    async def recent(self, topic: str) -> TopicRecord | None:
        """Return the topic's record as it was a few seconds ago, or later; None: the topic does not exist.

        ⚑ §4: only by such a record may a claim hand out messages. Older ones may not tell that the topic is paused.
        """
        known, now = self._records.get(topic), self._clock.elapsed()
        if known is not None and now - known[1] < RECENT_RECORD_SECONDS:
            return known[0]
        if now - self._read_began.get(topic, -math.inf) >= RECENT_RECORD_SECONDS:
            self._reads.stop_sharing(topic)
        return await self._reads.do(topic, lambda: self._read(topic))

    async def update(self, topic: str, settings: Mapping[str, Any], *, unset_only: bool = False) -> TopicRecord:
        """Change settings of the topic, and forget what was cached."""
        try:
            return await self._topics.update(topic, settings, unset_only=unset_only)
        finally:
            self.forget(topic)

    async def create(self, topic: str) -> None:
        """Create the topic if it does not exist, once for all callers that want it at the same time."""
        await self._creations.do(topic, lambda: self._create(topic))

    async def exists(self, topic: str, *, with_packs: bool = False) -> bool:
        """Say whether the topic still exists: one HEAD, unless that was seen within the last second.

        :param with_packs: say whether its consumers look for packs, too: one GET, or none as well. ⚑ §7: a topic that
            was deleted and created again may allow none. Nobody would see a pack in it.
        """
        return await self._is_seen((topic, with_packs))

    async def is_same(self, record: TopicRecord) -> bool:
        """Say whether the topic still exists, and was not created again: one GET, unless that was seen just now."""
        return await self._is_seen((record.name, record.created_at))

    async def _is_seen(self, what: _Seen) -> bool:
        now = self._clock.elapsed()
        if now - self._seen.get(what, -math.inf) < EXISTENCE_CACHE_SECONDS:
            return True
        may_be_old = self._checks.is_running(what) and now - self._check_began[what] < EXISTENCE_CACHE_SECONDS
        if not may_be_old:
            self._checks.stop_sharing(what)
            self._check_began[what] = now
        is_seen = await self._checks.do(what, lambda: self._check(what))
        # A check that began before this call may have come before the topic was created again.
        return is_seen or (may_be_old and await self._checks.do(what, lambda: self._check(what)))

    def forget(self, topic: str) -> None:
        """Forget what was cached of the topic, and do not cache what is being read at the moment."""
        self._changes += 1
        self._records.pop(topic, None)
        self._reads.stop_sharing(topic)
        self._creations.stop_sharing(topic)
        for what in [each for each in {*self._seen, *self._check_began} if each[0] == topic]:
            self._seen.pop(what, None)
            self._checks.stop_sharing(what)

    async def _read(self, topic: str) -> TopicRecord | None:
        self._read_began[topic] = began = self._clock.elapsed()
        changes = self._changes
        found = await self._topics.find(topic)
        if found is None:
            return None
        self._remember(topic, found.value, began, changes)
        return found.value

    async def _create(self, topic: str) -> None:
        began, changes = self._clock.elapsed(), self._changes
        self._remember(topic, await self._topics.create(topic, {}), began, changes)

    async def _check(self, what: _Seen) -> bool:
        topic, which = what
        began, changes = self._clock.elapsed(), self._changes
        if isinstance(which, bool):
            is_seen = await self._topics.exists(topic, with_packs=which)
        else:
            is_seen = await self._topics.is_of(topic, which)
        if not is_seen:
            self.forget(topic)
            return False
        if changes == self._changes:
            self._seen[what] = began
        return True

    def _remember(self, topic: str, record: TopicRecord, began: float, changes: int) -> None:
        known = self._records.get(topic)
        # A record that was read before a change, or before the one that is cached, is not cached.
        if changes == self._changes and (known is None or known[1] <= began):
            self._records[topic] = (record, began)
            self._seen[topic, False] = self._seen[topic, record.created_at] = began
            if record.settings.packs is not None:
                self._seen[topic, True] = began


def _merge_settings(topic: str, before: TopicSettings, changes: Mapping[str, Any]) -> TopicSettings:
    unknown = [name for name in changes if name not in TopicSettings.model_fields]
    if unknown:
        known = ", ".join(TopicSettings.model_fields)
        raise ConfigError(f"Topics have no setting {unknown[0]!r}, only {known}.", topic=topic)
    _check_window(topic, before, changes)
    for name in _FOR_EVER:
        _check_for_ever(topic, name, before, changes)
        if getattr(before, name) is None and changes.get(name) is False:
            changes = {**changes, name: None}  # it never had any, and its consumers need no further LIST
    changes = with_groups(topic, before, changes)
    try:
        return TopicSettings.model_validate({**before.model_dump(), **changes})
    except ValidationError as problem:
        first = problem.errors()[0]
        name = ".".join(map(str, first["loc"]))
        advice = f"{first['msg']}."
        if name in _TO_PASS:
            advice = f"pass {_TO_PASS[name]}, not {shown(changes[name])}."
        raise ConfigError(f"Setting {name} of topic {topic!r} is wrong: {advice}", topic=topic) from None


def _change(before: TopicSettings, after: TopicSettings) -> Literal["changed", "paused", "resumed"]:
    if before.paused == after.paused:
        return "changed"
    return "paused" if after.paused else "resumed"


def _check_for_ever(topic: str, name: str, before: TopicSettings, changes: Mapping[str, Any]) -> None:
    wanted = changes.get(name)
    if wanted is not None and not isinstance(wanted, bool):
        advice = f"pass True, False or None, not {shown(wanted)}."
    elif name in changes and wanted is None and getattr(before, name) is not None:
        # ⚑ §1: by None, consumers would not list them any more.
        advice = f"it has or had {name}, so it cannot be None again. Pass False, and there are no new ones."
    else:
        return
    raise ConfigError(f"Setting {name} of topic {topic!r} is wrong: {advice}", topic=topic)


def _check_window(topic: str, before: TopicSettings, changes: Mapping[str, Any]) -> None:
    name = "dedup_window_seconds"
    window = changes.get(name, before.dedup_window_seconds)
    if window is None and before.dedup_window_seconds is not None:
        # ⚑ §7: by None, sweeps would not resolve its keys any more, and remove the records that tell of them.
        why = f"it has a window, so pass a number of seconds, such as {DEFAULT_DEDUP_WINDOW_SECONDS:g}."
    elif window is not None and (not is_number(window) or not 1 <= window <= LONGEST_DEDUP_WINDOW_SECONDS):
        why = f"pass a number of seconds from 1 to {LONGEST_DEDUP_WINDOW_SECONDS:.0f}, not {shown(window)}."
    else:
        return
    raise ConfigError(f"Setting {name} of topic {topic!r} is wrong: {why}", topic=topic)


def topic_not_found_error(topic: str, operation: str) -> TopicNotFoundError:
    """Return the error for an operation on a topic that does not exist."""
    return TopicNotFoundError(
        f"Topic {topic!r} does not exist: create it with create_topic({topic!r}), or look for its right name in "
        "list_topics().",
        topic=topic,
        operation=operation,
    )


def _unknown_outcome_error(topic: str, operation: str, cause: StoreError | None = None) -> StoreError:
    why = f" ({cause})" if cause is not None else ""
    return StoreError(
        f"It could not be found out whether topic {topic!r} was written{why}: try again.",
        topic=topic,
        operation=operation,
        cause=cause,
        transient=True,
    )

"""Purge a topic, or delete it: only if it holds no message, lease or open claim, or with all that is in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pawnqueue.bucket.topics import EXISTENCE_CACHE_SECONDS, topic_not_found_error
from pawnqueue.catalog import letters, units
from pawnqueue.catalog.view import TopicView
from pawnqueue.domain import layout, size_hint
from pawnqueue.domain.identifiers import Version
from pawnqueue.errors import PawnQueueError, StoreError, TopicNotEmptyError
from pawnqueue.events import TopicChanged, logger_of
from pawnqueue.publish import writes
from pawnqueue.runtime.cancellation import finish_despite_cancellation
from pawnqueue.runtime.concurrency import for_each
from pawnqueue.stores.port import Unknown

if TYPE_CHECKING:
    from pawnqueue.bucket.topics import Topics
    from pawnqueue.context import Context
    from pawnqueue.domain.records import TopicRecord
    from pawnqueue.stores.port import ObjectInfo

logger = logger_of("topics")

#: How many pages of a folder are counted for the error that says what a topic still holds.
MAX_COUNTED_PAGES = 10
#: How often a topic is listed that is deleted with all its objects, as publishers may still write to it.
MAX_REMOVAL_ROUNDS = 10


@dataclass(slots=True)
class Removed:
    """How many objects of each kind a purge or a deletion has removed, or would remove in a dry run."""

    messages: int = 0
    """Messages of the topic. All messages of a pack count, also those that were finished."""
    dead_letters: int = 0
    """Its dead letters."""
    claims: int = 0
    """Records of claims, including closed ones."""


async def purge(context: Context, topic: str, *, messages: bool, dead_letters: bool, dry_run: bool) -> Removed:
    """Remove messages, or dead letters, or both, of a topic that stays.

    Messages that are published after the listing stay. The janitor removes the leases of removed messages; a consumer
    that holds such a message settles it as always.
    """
    removal = _Removal(context, topic)
    parts = [units.folder] * messages + [units.packs_folder] * messages + [letters.folder] * dead_letters
    for part in parts:
        async for page in context.store.pages(part(topic)):
            # Objects that are not the queue's are left alone.
            await removal.remove([info.key for info in page if removal.count(info.key)], dry_run=dry_run)
    if not dry_run:
        context.events.tell(TopicChanged(topic=topic, what="purged"))
    return removal.removed


async def delete(context: Context, topics: Topics, topic: str, *, force: bool, dry_run: bool) -> Removed:
    """Delete the topic and what is left below it, if it holds no message, lease, unfinished claim or dead letter.

    A message that a publisher sends at the same time is not lost: it is delivered when the topic is created again.

    :param force: delete those too.
    :param dry_run: change nothing, and count what would be deleted.
    """
    layout.checked_topic(topic)
    if await topics.find(topic) is None:
        raise topic_not_found_error(topic, "delete_topic")
    removal = _Removal(context, topic)
    if not force:
        await removal.refuse_if_used()
    if dry_run:
        async for page in context.registers.pages(layout.topic_folder(topic)):
            await removal.remove([info.key for info in page if removal.count(info.key)], dry_run=True)
        return removal.removed
    found = await topics.find(topic)
    try:
        # The marker goes first, so that publishers stop. The listing after that sees what they have written before.
        await finish_despite_cancellation(lambda: removal.remove_marker(found.version if found else Version("")))
        await context.clock.sleep(EXISTENCE_CACHE_SECONDS)  # which is how long they rely on what they saw
        await (removal.remove_all() if force else removal.remove_the_rest())
    except BaseException:
        # After any interruption the topic exists again, so that it can be used, or deleted again.
        if found is not None:
            record = found.value
            await finish_despite_cancellation(lambda: removal.restore(record))
        raise
    context.events.tell(TopicChanged(topic=topic, what="deleted"))
    return removal.removed


class _Removal:
    """One purge or deletion of one topic."""

    def __init__(self, context: Context, topic: str) -> None:
        self._context = context
        # Registers list and delete a register as one key, and any other object as itself. In a topic's folder, leases,
        # records and the marker lie between messages and strangers' objects: each is deleted once, with its page.
        self._registers = context.registers
        self._topic = topic
        self._marker = layout.topic_marker(topic)
        self._records = (layout.claims(topic), layout.writes(topic), layout.dedup(topic))
        self.removed = Removed()

    def count(self, key: str) -> bool:
        """Count an object before its removal; return whether it is the queue's."""
        if key.startswith((units.folder(self._topic), units.packs_folder(self._topic))):
            unit = units.parse(key)
            self.removed.messages += 0 if unit is None else unit.count
            return unit is not None
        if key.startswith(letters.folder(self._topic)):
            letter = letters.parse(key)
            self.removed.dead_letters += letter is not None and not letter[1]
            return letter is not None
        self.removed.claims += key.startswith(layout.claims(self._topic))
        return True

    async def remove(self, keys: Sequence[str], *, dry_run: bool) -> None:
        """Delete objects, except in a dry run."""
        if keys and not dry_run:
            self._require_all(await self._context.store.delete(keys), "purge", operation="purge")

    async def refuse_if_used(self) -> list[str]:
        """Raise if the topic holds a message, a lease or an open claim; return the records of what has ended."""
        parts = (units.folder, units.packs_folder, layout.leases, letters.folder)
        found = await for_each(self._first_pages, [part(self._topic) for part in parts], at_once=len(parts))
        if any(folder.infos for folder in found):
            raise self._not_empty_error(await _describe_contents(self._context, *found))
        return [*await self._ended_claims(), *await self._ended_writes()]

    async def remove_marker(self, version: Version) -> None:
        """Delete the topic's marker, if it is the one that was read."""
        if await self._delete_unchanged({self._marker: version}):
            raise StoreError(
                f"Topic {self._topic!r} was changed, or created again, meanwhile: it was not deleted. Delete it again.",
                topic=self._topic,
                operation="delete_topic",
                transient=True,
            )

    async def restore(self, record: TopicRecord) -> None:
        """Create the topic's marker again, unless another process has done so."""
        try:
            await self._context.topic_marker(self._topic).create(record)
        except PawnQueueError as error:
            logger.error(  # noqa: TRY400 - the error says enough
                "Topic %r was deleted in part only, and its marker could not be restored. create_topic(%r) makes its "
                "remaining messages available again: %s", self._topic, self._topic, error,
            )  # fmt: skip

    async def remove_the_rest(self) -> None:
        """Remove all that is left, if the topic still holds no message, lease or open claim."""
        ended = await self.refuse_if_used()
        dropped = await self._drop_staged()
        # Objects that were written meanwhile are kept. A marker that exists now was created again.
        kept = (
            *(part(self._topic) for part in (units.folder, units.packs_folder, layout.leases, letters.folder)),
            *(part(self._topic) for part in (layout.claims, layout.writes, layout.staging, layout.dedup)),
            self._marker,
        )
        async for page in self._registers.pages(layout.topic_folder(self._topic)):
            await self._delete_unchanged({info.key: info.version for info in page if not info.key.startswith(kept)})
        # ⚑ §5.4: last, as only these records say what ended. If the deletion fails earlier, the topic keeps them.
        async for page in self._registers.pages(layout.dedup(self._topic)):
            ended += [info.key for info in page]
        if not await self._is_created_again():
            await self._delete_unchanged(dict.fromkeys({*ended, *dropped}, Version("")))

    async def _drop_staged(self) -> list[str]:
        """Delete the staged objects, and return the keys of the write records that exclude them from every commit.

        ⚑ §7: a commit may be about to rely on an object, so each record excludes its objects by compare-and-set first.

        :raises TopicNotEmptyError: a write is decided and not fully published.
        """
        staged: dict[str, list[str]] = defaultdict(list)
        keys = []
        async for page in self._context.store.pages(layout.staging(self._topic)):
            for info in page:
                keys.append(info.key)
                if (parsed := layout.parse_staged(info.key)) is not None:
                    staged[parsed[0]].append(parsed[1])

        async def drop(write_id: str) -> None:
            if await writes.drop(self._context, self._topic, write_id, staged[write_id]):
                return
            found = await self._context.write_record(self._topic, write_id).read()
            if found is not None and found.value.state == "begun":
                raise self._not_empty_error(_describe_counts({"write": 1}, layout.write(self._topic, write_id)))

        await for_each(drop, staged, at_once=self._context.at_once)
        await self._delete_unchanged(dict.fromkeys(keys, Version("")))
        return [layout.write(self._topic, write_id) for write_id in staged]

    async def remove_all(self) -> None:
        """Remove everything, until nothing is left or the topic was created again."""
        # Messages go before their leases and claims: if this is interrupted, no message is delivered twice.
        for part in (units.folder, units.packs_folder):
            await self._clear(part(self._topic))
        for _ in range(MAX_REMOVAL_ROUNDS):
            if not await self._clear(layout.topic_folder(self._topic)):
                return
        raise StoreError(
            f"Topic {self._topic!r} was deleted in part only, as other processes keep writing to it: stop them, and "
            "delete it again.",
            topic=self._topic,
            operation="delete_topic",
            transient=True,
        )

    async def _clear(self, folder: str) -> bool:
        """Remove the objects of a folder; return whether to list it again."""
        some = False
        records: dict[str, Version] = {}
        async for page in self._registers.pages(folder):
            versions = {info.key: info.version for info in page}
            if self._marker in versions:
                return False
            some = True
            held_back = {key: version for key, version in versions.items() if key.startswith(self._records)}
            records |= held_back
            await self._remove({key: version for key, version in versions.items() if key not in held_back})
        # ⚑ §5.4: last, as only these records say what was consumed, and which writes were published.
        if records and await self._is_created_again():
            return False
        await self._remove(records)
        return some

    async def _is_created_again(self) -> bool:
        return await self._registers.head(self._marker) is not None

    async def _remove(self, versions: Mapping[str, Version]) -> None:
        kept = await self._delete_unchanged(versions)
        for key in versions.keys() - kept:
            self.count(key)

    async def _ended_claims(self) -> list[str]:
        """Return the records of claims without open messages; raise if there is anything else."""
        ended: list[str] = []
        unsure: dict[str, str] = {}
        async for page in self._registers.pages(layout.claims(self._topic)):
            for info in page:
                parsed = layout.parse_claim(info.key)
                hint = size_hint.hint_of_record(info.size, info.last_modified)
                if parsed is None:
                    raise self._not_empty_error(_describe_counts({"stranger": 1}, info.key))
                if hint is not None and hint.state == "closed":
                    ended.append(info.key)
                else:
                    unsure[info.key] = layout.claim_stem(*parsed)
        registers = [self._context.claim_record(self._topic, stem) for stem in unsure.values()]
        records = await for_each(lambda register: register.read(), registers, at_once=self._context.at_once)
        open_ = [
            found.value.stem
            for found in records
            if found is not None and found.value.state != "closed" and found.value.unsettled
        ]
        if open_:
            raise self._not_empty_error(_describe_counts({"claim": len(open_)}, open_[0]))
        # Without messages and leases, settled claims have nothing left to carry out.
        return [*ended, *unsure]

    async def _ended_writes(self) -> list[str]:
        """Return the records of writes that are done or dropped; raise if a write has messages to publish."""
        ended: list[str] = []
        async for page in self._registers.pages(layout.writes(self._topic)):
            for info in page:
                if layout.parse_write(info.key) is None:
                    raise self._not_empty_error(_describe_counts({"stranger": 1}, info.key))
                hint = size_hint.hint_of_write(info.size, info.last_modified)
                if hint is None or hint.state == "begun":
                    raise self._not_empty_error(_describe_counts({"write": 1}, info.key))
                ended.append(info.key)
        return ended

    async def _first_pages(self, folder: str) -> _Folder:
        found = _Folder()
        async with aclosing(self._registers.pages(folder)) as pages:
            async for page in pages:
                if found.pages == MAX_COUNTED_PAGES:
                    found.more = True
                    break
                found.infos += page
                found.pages += 1
        return found

    async def _delete_unchanged(self, versions: Mapping[str, Version]) -> set[str]:
        """Delete objects, and return those that were overwritten since, if the store can delete by version.

        On such a store, a DELETE that lands late spares the objects of a topic that was created again.
        """
        answered = await self._registers.delete_versions(versions) if versions else {}
        failed = {key: outcome.fault for key, outcome in answered.items() if isinstance(outcome, Unknown)}
        self._require_all(failed, "delete", operation="delete_topic")
        return set(answered)

    def _require_all(self, failed: Mapping[str, StoreError], verb: str, *, operation: str) -> None:
        """Raise an error for the first object that could not be deleted, if there is one."""
        for key, error in failed.items():
            raise StoreError(
                f"Topic {self._topic!r} was {verb}d in part only: {key} still exists ({error}). "
                f"{verb.capitalize()} it again.",
                topic=self._topic,
                operation=operation,
                cause=error,
                transient=error.transient,
            )

    def _not_empty_error(self, contents: str) -> TopicNotEmptyError:
        return TopicNotEmptyError(
            f"Topic {self._topic!r} was not deleted, as it holds {contents}. Consume, redrive or sweep them, or "
            f"delete them with the topic: delete_topic({self._topic!r}, force=True).",
            topic=self._topic,
            operation="delete_topic",
        )


@dataclass(slots=True)
class _Folder:
    infos: list[ObjectInfo] = field(default_factory=list)
    pages: int = 0
    more: bool = False


#: What a topic may hold, in the singular and in the plural.
_NAMES_OF_CONTENTS = {
    "pending": ("pending message", "pending messages"),
    "delayed": ("delayed message", "delayed messages"),
    "in flight": ("message in flight", "messages in flight"),
    "dead": ("dead letter", "dead letters"),
    "lease": ("lease without a message", "leases without a message"),
    "reason": ("reason without a dead letter", "reasons without a dead letter"),
    "claim": ("claim that is not settled", "claims that are not settled"),
    "write": ("write that is not fully published", "writes that are not fully published"),
    "stranger": ("object that is not the queue's", "objects that are not the queue's"),
}


async def _describe_contents(
    context: Context, messages: _Folder, packs: _Folder, leases: _Folder, dead: _Folder
) -> str:
    """Describe what a topic holds, according to LISTs."""
    now = await context.time.now()
    view = TopicView(leases.infos, now)
    view.add(units.sorted_out([*messages.infos, *packs.infos]))
    view.judge_by_listing(context, now)
    letters_here = letters.sorted_out(dead.infos)
    strangers = view.strangers + letters_here.strangers
    counts = {
        "pending": view.counts["pending"],
        "delayed": view.counts["delayed"],
        "in flight": view.counts["in_flight"],
        "dead": len(letters_here.letters),
        "reason": len(letters_here.reasons) - len(letters_here.letters),  # each letter has a reason
        "lease": 0 if messages.more or packs.more else view.leases_alone,
        "stranger": len(strangers),
    }
    roughly = any(folder.more for folder in (messages, packs, leases, dead))
    return ("at least " if roughly else "") + _describe_counts(counts, strangers[0] if strangers else "")


def _describe_counts(counts: Mapping[str, int], example: str = "") -> str:
    parts = [
        f"{counts[what]:,} {names[counts[what] > 1]}"
        for what, names in _NAMES_OF_CONTENTS.items()
        if counts.get(what, 0) > 0
    ]
    # A pack stays until its lease says that all of it is finished, and for a moment longer.
    parts = parts or ["messages that are finished and not removed yet"]
    contents = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    return f"{contents} ({example})" if example else contents

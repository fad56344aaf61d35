"""The part of the front door for work that many processes share: Spark's driver and its executors, a pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pawnqueue.arguments import checked_count, checked_flag, checked_seconds
from pawnqueue.claims import ClaimReference, Message
from pawnqueue.claims.waiting import until_free
from pawnqueue.domain import layout
from pawnqueue.errors import InvalidArgumentError
from pawnqueue.publish import staging, writes
from pawnqueue.publish.publisher import NewMessage, Publisher, checked_messages
from pawnqueue.publish.staging import Staged
from pawnqueue.publish.write_outcome import Written
from pawnqueue.publish.writes import Commit
from pawnqueue.reads.portions import (
    Portion,
    look_again,
    portions_of_claim,
    portions_of_topic,
    read_portion,
)
from pawnqueue.topic_desk import TopicDesk

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.reads.dead_letters import DeadLetter


class BulkDesk(TopicDesk):
    """What one process plans, and others carry out."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._publisher = Publisher(context)
        self._ended_commits: set[str] = set()

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
        return await read_portion(self._context, _checked(portion, "read"))

    async def look_again(self, portion: Portion) -> Portion:
        """Return a portion of a look at a topic with what is there now: a LIST of its part of the topic.

        The portions of one look together have all of the topic, then too, except that of a look at the first so many
        messages the end stays where it was. A portion of a claim is returned as it is: what it has is fixed.
        """
        self._life.check_open()
        return await look_again(self._context, _checked(portion, "look_again"))

    # --- writes: what many processes stage becomes visible as one ---

    async def stage(  # noqa: PLR0913 - what is written, and as what; the rest has a default
        self,
        topic: str,
        write_id: str,
        part: int,
        messages: Iterable[Mapping[str, Any] | NewMessage],
        *,
        producer: str | None = None,
        after: Staged | None = None,
    ) -> Staged:
        """Stage messages of a write: nobody sees them before :meth:`commit_write`, which is given what this returns.

        Their ids are made of the write's id, the part and their place in it: the same write has the same ids.

        :param write_id: names the write in its topic, like the id of a claim. A write that is done is not done again.
        :param part: which part of the write it is, by a number of your own: parts are published in their order. Several
            attempts at a part may be staged, and one of them is committed.
        :param messages: as :meth:`publish` takes them.
        :param producer: who publishes, by name; its id is in each message.
        :param after: what was staged of the same part, behind which these are: for more messages than memory has.
        :raises TopicNotFoundError: there is no such topic.
        :raises InvalidPayloadError: one of the payloads is no JSON object; nothing was staged.
        """
        self._life.check_open()
        layout.checked_topic(topic)
        layout.checked_write_id(write_id)
        layout.checked_part(part)
        before = staging.continued(Staged(topic, write_id, part), after)
        checked = checked_messages(messages, None, self._context.settings.limits, topic, first=len(before))
        await self._topic(topic, "stage")
        producer_id = await self._producer_id(producer)
        return await staging.stage(self._context, before, checked, producer_id)

    async def commit_write(
        self, topic: str, write_id: str, staged: Iterable[Staged], *, wait: float = 0.0, allow_empty: bool = False
    ) -> Written:
        """Publish what was staged: all of it, once, whatever dies meanwhile; or nothing.

        One request decides it. Before that nothing is visible; after it all of it will be, within the time that one
        PUT a message takes: if this process dies, whoever commits the write again goes on, and so does the janitor.
        A write that is done publishes nothing again: its outcome is returned, and what was staged anew is removed.

        :param staged: what :meth:`stage` has returned, of one attempt at each part.
        :param wait: for how many seconds to wait while another process commits this write.
        :param allow_empty: what becomes of rows whose write was committed before without any: they are left out as
            those of any write that is done; without this, that is an error.
        :raises InvalidArgumentError: the write was committed before without rows, and now has some, which were not
            published.
        :raises TopicNotFoundError: there is no such topic, or it was deleted.
        :raises WriteBusyError: another process is at it, or died less than a minute ago: when to try again.
        :raises StagedGoneError: some of what was staged is not there any more. Nothing was published, unless the
            error names the rows that are missing.
        :raises PublishError: it is decided, and some of it could not be published now.
        """
        self._life.check_open()
        layout.checked_topic(topic)
        layout.checked_write_id(write_id)
        parts = staging.in_order(topic, write_id, staged)
        seconds = checked_seconds(wait, "wait", topic, "commit_write")
        await self._topic(topic, "commit_write")
        commit = Commit(
            self._context,
            topic,
            write_id,
            parts,
            place=self._publisher.place,
            is_there=self._known_topics.is_there,
            ended=self._ended_commits,
            allow_empty=allow_empty,
        )
        try:
            return await until_free(self._context, commit.done, wait=seconds, check_open=self._life.check_open)
        finally:
            self._claims.look_again(topic)

    async def abort_write(self, topic: str, write_id: str, staged: Iterable[Staged] | None = None) -> int:
        """Remove what was staged for a write that is not decided, and return how many objects are gone.

        A write that is decided is left alone. What nobody removes, the janitor does, a day after the last was staged.

        :param staged: only that; without it, all that is staged under this id, whoever has staged it.
        :raises TopicNotFoundError: there is no such topic.
        """
        self._life.check_open()
        layout.checked_topic(topic)
        layout.checked_write_id(write_id)
        parts = None if staged is None else staging.in_order(topic, write_id, staged)
        await self._topic(topic, "abort_write")
        return await writes.abort(self._context, topic, write_id, parts)


def _checked(portion: object, operation: str) -> Portion:
    if not isinstance(portion, Portion):
        raise InvalidArgumentError(
            f"A {type(portion).__name__} is no portion: pass one of those that portions() returns.", operation=operation
        )
    return portion

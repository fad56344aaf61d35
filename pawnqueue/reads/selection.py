"""Which messages or dead letters of a topic are read without a claim. What a LIST rules out is not fetched."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout
from pawnqueue.domain.reasons import is_reason
from pawnqueue.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pawnqueue.catalog.letters import ListedLetter
    from pawnqueue.claims.claim import Message
    from pawnqueue.domain.unit import Unit

#: How much later than its object's name or date a message or a burial may say that it is. Both come from estimates of
#: the store's time, which differ by seconds. Other programs may use their machines' clocks.
MAX_CLOCK_DIFFERENCE_SECONDS: Final = 3600.0
#: Names without a lane begin with the digits of a time. Those of higher priorities come before them.
_FIRST_DIGIT: Final = "0"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages, or dead letters, of a topic are read: those of which all that is given here is true.

    A LIST rules out objects that are over an hour too old, and dead letters with other ids. They are not fetched.
    """

    created_after: datetime | None = None
    """Messages that were created at this time, or later."""
    created_before: datetime | None = None
    """Messages that were created before this time."""
    buried_after: datetime | None = None
    """Dead letters that were buried at this time, or later."""
    buried_before: datetime | None = None
    """Dead letters that were buried before this time."""
    reason: str | None = None
    """Dead letters that were buried for this reason, or one that begins with it, as ``redrive`` takes it."""
    letter_ids: frozenset[str] | None = None
    """Dead letters with these ids, which are not always the ids of their messages."""
    reads_reasons: bool = True
    """Whether the reasons of dead letters are read, if nothing else here needs them."""
    reads_messages: bool = True
    """Whether the messages of dead letters are read, if nothing else here needs them."""

    def __post_init__(self) -> None:
        """Refuse what cannot be compared.

        :raises InvalidArgumentError: a time has no zone, or an id is not one of a dead letter.
        """
        for name in ("created_after", "created_before", "buried_after", "buried_before"):
            time = getattr(self, name)
            if time is not None and (not isinstance(time, datetime) or time.tzinfo is None):
                raise InvalidArgumentError(
                    f"{name} is a datetime with a zone, not {time!r}: pass datetime(…, tzinfo=UTC).",
                    operation="portions",
                )
        for letter_id in self.letter_ids or ():
            layout.checked_message_id(letter_id)

    @property
    def is_for_letters(self) -> bool:
        """Whether it selects by what only dead letters have."""
        return self.is_by_reason or self.letter_ids is not None

    @property
    def is_by_message(self) -> bool:
        """Whether it selects by what messages say of themselves."""
        return self.created_after is not None or self.created_before is not None

    @property
    def is_by_reason(self) -> bool:
        """Whether it selects by what the reasons of dead letters say."""
        return any(each is not None for each in (self.buried_after, self.buried_before, self.reason))

    @property
    def is_by_content(self) -> bool:
        """Whether a LIST does not tell which messages or dead letters are selected."""
        return self.is_by_message or self.is_by_reason

    @property
    def needs_messages(self) -> bool:
        """Whether the messages of dead letters have to be read."""
        return self.reads_messages or self.is_by_message

    @property
    def needs_reasons(self) -> bool:
        """Whether the reasons of dead letters have to be read: they also say what a message's object was called."""
        return self.reads_reasons or self.is_by_reason or self.needs_messages

    # --- what a LIST tells ---

    def listing_start(self, end: str) -> str:
        """Return the place at which the listing of a topic may go on instead of ``end``, or "" for none.

        §1: a name without a lane begins with the time at which it was published, and none of its messages was created
        later. Names of other lanes are listed as they come.
        """
        if self.created_after is None:
            return ""
        start = layout.timestamp(_seconds(self.created_after) - MAX_CLOCK_DIFFERENCE_SECONDS)
        return start if _FIRST_DIGIT <= end < start else ""

    def may_have(self, unit: Unit) -> bool:
        """Say whether a unit may have messages of this selection, by its name.

        A redriven message is older than its name, so names that are too new rule out packs only. A line of a pack that
        is over an hour older than its pack's name is left out with it.
        """
        published = units.published_at(unit.name)
        if published is None:
            return True
        if self.created_after is not None and published < _seconds(self.created_after) - MAX_CLOCK_DIFFERENCE_SECONDS:
            return False
        return not (
            unit.is_pack
            and self.created_before is not None
            and published > _seconds(self.created_before) + MAX_CLOCK_DIFFERENCE_SECONDS
        )

    def letter_bounds(self, topic: str) -> tuple[str, str]:
        """Return the place behind which the listing of letters begins, and the key at which it may end; "" for none."""
        if not self.letter_ids:
            return "", ""
        return letters.place_before(topic, min(self.letter_ids)), letters.key_of(topic, max(self.letter_ids))

    def may_have_letter(self, letter: ListedLetter) -> bool:
        """Say whether a dead letter may be of this selection, by its id and its date.

        A burial that was finished late has a later date than its reason says, so a date is never too new.
        """
        if self.letter_ids is not None and letter.id not in self.letter_ids:
            return False
        earliest = None if self.buried_after is None else _seconds(self.buried_after) - MAX_CLOCK_DIFFERENCE_SECONDS
        return earliest is None or letter.written_at.timestamp() >= earliest

    # --- what is known once it is read ---

    def has_burial(self, buried_at: datetime, reason: str) -> bool:
        """Say whether a dead letter was buried at the right time, and for the right reason."""
        is_right = self.reason is None or is_reason(reason, self.reason)
        return is_right and _is_within(buried_at, self.buried_after, self.buried_before)

    def has_message(self, message: Message | None) -> bool:
        """Say whether a message was created at the right time. One that cannot be read has no such time."""
        if not self.is_by_message:
            return True
        return message is not None and _is_within(message.created_at, self.created_after, self.created_before)


#: Selects everything.
EVERYTHING: Final = Selection()


def _is_within(time: datetime, after: datetime | None, before: datetime | None) -> bool:
    return (after is None or time >= after) and (before is None or time < before)


def _seconds(time: datetime) -> float:
    """Return a time as names can have it."""
    return max(time.timestamp(), MAX_CLOCK_DIFFERENCE_SECONDS)

"""Notes that tasks leave in XCom for the task that settles their messages.

Imports nothing of the engine: Airflow loads the plugin, which uses this, in every process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

#: XCom key of what a task knew when it began: see :class:`TaskStart`.
BEGUN_KEY: Final = "pawnqueue_begun"
#: XCom key of a task's exception.
ERROR_KEY: Final = "pawnqueue_error"
#: XCom key that says that a task skipped itself.
SKIPPED_KEY: Final = "pawnqueue_skipped"
#: XCom key of what a task reports of single messages: see :mod:`.reports`.
REPORT_KEY: Final = "pawnqueue_report"
#: Field of a note: how often the task's run had been cleared. A note without it was written before the first clear.
CLEAR_NUMBER: Final = "round"
#: Field of a note: the claims that existed when the task began, each as a list of topic, claim id and generation. A
#: claim that is not listed is in generation 0.
CLAIMS: Final = "claims"
#: An error is cut to this length.
MAX_ERROR_CHARACTERS: Final = 2000


@dataclass(frozen=True, slots=True)
class TaskStart:
    """Which claims a task knew when it began. A settlement finds out with it which messages the task can have seen.

    False where the run had not been cleared and every claim was in its first generation.

    ⚑ No clock is asked. A claim that is made anew has a new generation, and a run that is cleared has a new clear
    number. Both are compared, as each can stay the same: generations count from 0 again after the record of an old
    claim was removed, and the clear number does not rise where Airflow clears tasks without their run.
    """

    #: How often the run had been cleared.
    clear_number: int = 0
    #: The generations of claims, by topic and claim id. A claim that is missing is in generation 0.
    generations: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.clear_number or any(self.generations.values()))

    @classmethod
    def of_claims(cls, clear_number: int, claims: Iterable[tuple[str, str, int]]) -> Self:
        """Return what a task knows when these claims exist."""
        return cls(clear_number, {(topic, claim_id): generation for topic, claim_id, generation in claims})

    @classmethod
    def from_note(cls, note: object) -> Self:
        """Read what :meth:`to_note` returned. Without a note, nothing was cleared or made anew."""
        if not isinstance(note, Mapping):
            return cls()
        listed: Any = note.get(CLAIMS, ())
        named = [dict(zip(("topic", "claim_id", "generation"), each, strict=False)) for each in listed]
        return cls.of_claims(int(note.get(CLEAR_NUMBER, 0)), claims_in(named))

    def to_note(self) -> dict[str, Any]:
        """Return a note for XCom.

        Each claim in it is a list, ``[topic, claim_id, generation]``, as Airflow interprets some keys of dicts itself.
        """
        claims = [[*claim, generation] for claim, generation in sorted(self.generations.items()) if generation]
        return {CLEAR_NUMBER: self.clear_number, CLAIMS: claims} if claims else {CLEAR_NUMBER: self.clear_number}

    def limited(self, claims: Iterable[tuple[str, str, int]]) -> Self:
        """Return this start with no later generations than those of the given claims."""
        known = dict(self.generations)
        for topic, claim_id, generation in claims:
            known[topic, claim_id] = min(generation, known.get((topic, claim_id), generation))
        return replace(self, generations=known)

    def up_to(self, other: TaskStart) -> Self:
        """Return what both tasks knew."""
        known = {claim: min(number, other.generations.get(claim, 0)) for claim, number in self.generations.items()}
        return replace(self, clear_number=min(self.clear_number, other.clear_number), generations=known)

    def knows(self, claim: tuple[str, str], generation: int, clear_number: int) -> bool:
        """Return whether a task that began like this can have seen a claim.

        :param claim: its topic and id.
        :param generation: its generation.
        :param clear_number: how often the run had been cleared when the claim was made.
        """
        return self.clear_number >= clear_number and self.generations.get(claim, 0) >= generation


def clear_number_of(context: Context) -> int:
    """Return how often the run had been cleared when this task began."""
    return getattr(context.get("dag_run"), "clear_number", None) or 0


def is_current(note: Mapping[str, Any] | object, clear_number: int) -> bool:
    """Return whether a task wrote a note since its run was last cleared.

    ⚑ Airflow deletes a task's notes when the task begins again, and not when it is cleared. So a task that was cleared
    and has not begun again still has the notes of its last try.
    """
    return (note.get(CLEAR_NUMBER, 0) if isinstance(note, Mapping) else 0) == clear_number


def claims_in(value: object) -> Iterator[tuple[str, str, int]]:
    """Yield topic, id and generation of each claim in what a task returned or was given: a reference, or several."""
    if isinstance(value, Mapping):
        found = value.get("topic"), value.get("claim_id"), value.get("generation")
        if isinstance(found[0], str) and isinstance(found[1], str) and isinstance(found[2], int):
            yield found[0], found[1], found[2]
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for each in value:
            yield from claims_in(each)


def error_text(error: object) -> str:
    """Return an error as a reason for messages: cut, and with its secrets masked as in Airflow's logs."""
    from airflow.providers.common.compat.sdk import redact  # noqa: PLC0415 - not at import: plugins are loaded everywhere

    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    return str(redact(text))[:MAX_ERROR_CHARACTERS]

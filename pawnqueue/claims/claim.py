"""What a consumer is given: messages, the claim that holds them, and what became of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Self, overload

from pawnqueue.domain import layout
from pawnqueue.errors import InvalidArgumentError

if TYPE_CHECKING:
    from datetime import datetime

    from pawnqueue.domain.records import ClaimRecord
    from pawnqueue.registers.register import Versioned


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``id`` never changes, whatever happens to the message: deduplicate by it."""

    id: str
    """Never changes."""
    topic: str
    """The topic that it is in."""
    producer_id: str
    """The id of who published it; empty where nobody was named."""
    created_at: datetime
    """When it was published, by the store's time, as its publisher knew it."""
    payload: dict[str, Any] = field(repr=False, hash=False)
    """The JSON object."""
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Text to text, as they were published."""
    deliveries: int = 1
    """How often it was handed out, this time included; 0 where it is only looked at."""
    write_id: str = ""
    """The staged write that published it; empty where none did."""
    unit: str = field(default="", repr=False)
    """The uuid in its key. Its id is in its body, where another message may have the same."""


@dataclass(frozen=True, slots=True)
class OneMessage:
    """One message of a claim, whatever others have its id: it is meant by the uuid in its key."""

    id: str
    unit: str


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """A claim in a few hundred bytes: what XCom, a Spark argument or an event carries. Holds no payload."""

    topic: str
    """The topic whose messages it has."""
    claim_id: str
    """Its id: the one that was asked for, or one that was made up."""
    generation: int
    """Which one under that id: the first is 0."""
    session: str
    """The session that it is from: when that has left the claim, who brings the reference need not wait."""

    @property
    def stem(self) -> str:
        """Its id and generation, as logs and leases name it: a name for what is made of its messages, once."""
        return layout.claim_stem(self.claim_id, self.generation)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "topic": self.topic,
            "claim_id": self.claim_id,
            "generation": self.generation,
            "session": self.session,
        }

    @classmethod
    def of(cls, given: Self | Mapping[str, Any]) -> Self:
        """Return a reference as it was handed over, or read from a dict, if it can be one."""
        reference = given if isinstance(given, cls) else cls.from_dict(given)  # type: ignore[arg-type]
        layout.checked_claim_id(reference.claim_id)
        return reference

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        try:
            return cls(str(data["topic"]), str(data["claim_id"]), int(data["generation"]), str(data["session"]))
        except (KeyError, OverflowError, TypeError, ValueError) as problem:
            raise InvalidArgumentError(
                f"This is no claim reference ({_wrong(data, problem)}): pass what hand_over() returned, or the dict of "
                "its to_dict(), which JSON can carry.",
                operation="attach",
            ) from None


def _wrong(data: object, problem: Exception) -> str:
    if not isinstance(data, Mapping):
        return f"it is a {type(data).__name__}"
    return f"{problem} is missing" if isinstance(problem, KeyError) else f"{problem}"


class Claim(ABC):
    """A batch of messages that this process alone works on, for :attr:`seconds_left`; renewing it gives more of them.

    Iterates over its messages, which are had by number too (``claim[0]``); one without any is falsy. Made by
    ``PawnQueue.claim`` and ``PawnQueue.attach``, and read by whoever is given it: what becomes of it is the queue's.

    ``.topic``, ``.claim_id``, ``.generation``, ``.owner``, ``.consumer`` and ``.session`` say which one it is.

    One that was attached to without payloads counts its messages and has their :attr:`ids`, and has not read them.
    """

    def __init__(
        self,
        topic: str,
        found: Versioned[ClaimRecord],
        messages: Sequence[Message],
        uuids: Mapping[str, str],
        unread: Sequence[str] = (),
    ) -> None:
        record = found.value
        self.topic: Final = topic
        self.claim_id: Final = record.claim_id
        self.generation: Final = record.generation
        self.owner: Final = record.owner
        self.consumer: Final = record.consumer
        self.session: Final = record.session
        self._messages = tuple(messages)
        self._unread = tuple(unread)  # the uuids of its messages instead, where they were not read
        self._uuids = dict(uuids)  # of each member's key, its message's id
        self._record = record
        self._version = found.version
        self._lost: str | None = None
        self._given_away = False

    @property
    def messages(self) -> tuple[Message, ...]:
        """Its messages, in order.

        :raises InvalidArgumentError: it was attached to without payloads.
        """
        if self._unread:
            raise InvalidArgumentError(
                f"Claim {self.claim_id} of topic {self.topic!r} was attached to without payloads, so its "
                f"{len(self)} messages were not read: use its .ids, or attach with payloads=True.",
                topic=self.topic,
                operation="attach",
            )
        return self._messages

    @property
    def has_payloads(self) -> bool:
        """Whether its messages can be had from it: they were read, or there are none."""
        return not self._unread

    @property
    def stem(self) -> str:
        """Its id and generation, as logs and leases name it."""
        return self._record.stem

    @property
    def ids(self) -> list[str]:
        """The ids of its messages, in order.

        Without payloads they are the ids under which the messages are kept: a redriven one has another there.
        """
        return list(self._unread) or [message.id for message in self._messages]

    @abstractmethod
    def has(self, message_id: str) -> bool:
        """Say whether a message of this id was claimed with it, settled since or not.

        Without payloads, the ids are those under which the messages are kept, as :attr:`ids` has them.
        """

    @property
    @abstractmethod
    def seconds_left(self) -> float:
        """For how many seconds from now this process may still trust the claim: none, where it is lost or over."""

    @property
    @abstractmethod
    def deadline(self) -> datetime:
        """When :attr:`seconds_left` is over, by this machine's own clock; renewing moves it."""

    @property
    @abstractmethod
    def session_ttl(self) -> float:
        """For how many seconds after a renewal this process is trusted with it: at most :attr:`ttl`."""

    @property
    def ttl(self) -> float:
        """For how many seconds a renewal keeps the claim."""
        return self._record.lasts or self._record.ttl

    @property
    def lost(self) -> str | None:
        """Why the claim was lost, or None as far as is known."""
        return self._lost

    @property
    def state(self) -> Literal["open", "expired", "closed"]:
        """The state of its record, when it was last seen."""
        return self._record.state

    @property
    def recorded(self) -> bool:
        """Whether it is in the bucket: a claim that found no message is not."""
        return bool(self._version)

    @property
    def was_handed_out(self) -> bool:
        """Whether its owner was ever given a message of it, in this session or an earlier one."""
        return self._record.was_handed_out

    @property
    def ended_unsettled(self) -> bool:
        """Whether others ended it before all of it was settled: its time was over, or its run was taken for ended."""
        record = self._record
        return any(decision.by == "other" for decision in record.settled.values()) or (
            record.state != "open" and bool(record.unsettled)
        )

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why messages of it were buried or given back, by id."""
        return {
            decision.id or self._uuids.get(uuid, uuid): decision.reason
            for uuid, decision in self._record.settled.items()
            if decision.reason
        }

    @property
    def decided(self) -> Mapping[str, str]:
        """What was decided of its messages, by id: acked, dead, released."""
        return {
            decision.id or self._uuids.get(uuid, uuid): decision.how
            for uuid, decision in self._record.settled.items()
            if decision.how != "gone" and decision.by != "other"
        }

    @property
    def reference(self) -> ClaimReference:
        """Its name, for who reads it while this process works on it: a Spark job, say. It hands nothing over."""
        return ClaimReference(self.topic, self.claim_id, self.generation, self.session)

    def hand_over(self) -> ClaimReference:
        """Give the claim to another process, which attaches to it: this one works on it no more.

        The other process need not wait, as it knows by the reference that nobody works on the messages. The
        reference's ``to_dict()`` goes through JSON.
        """
        self.give_away()
        return self.reference

    @abstractmethod
    def give_away(self) -> None:
        """Leave it to whoever comes next; :meth:`hand_over` says to whom."""

    @overload
    def __getitem__(self, position: int) -> Message: ...

    @overload
    def __getitem__(self, position: slice) -> tuple[Message, ...]: ...

    def __getitem__(self, position: int | slice) -> Message | tuple[Message, ...]:
        """Give one message by its number, or some of them."""
        return self.messages[position]

    def __iter__(self) -> Iterator[Message]:
        """Give the messages, in order."""
        return iter(self.messages)

    def __len__(self) -> int:
        """Count the messages."""
        return len(self._unread) or len(self._messages)

    def __bool__(self) -> bool:
        """Say whether there is a message to work on."""
        return bool(self._unread or self._messages)

    def __repr__(self) -> str:
        """Show which claim it is; payloads are nobody's business in a log."""
        state = "lost" if self.lost else self.state
        return f"<Claim {self.claim_id}.{self.generation} of {self.topic!r}: {len(self)} messages, {state}>"

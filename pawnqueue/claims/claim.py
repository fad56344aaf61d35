"""What a consumer is given: messages, and the claim that holds them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, overload

from pawnqueue.catalog import units
from pawnqueue.domain import layout, numbers
from pawnqueue.domain.times import instant
from pawnqueue.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pawnqueue.domain.claim_record import ClaimRecord, Decision
    from pawnqueue.domain.envelope import Envelope
    from pawnqueue.domain.pack import Line, PackEntry
    from pawnqueue.registers.register import Versioned


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a topic."""

    id: str
    """It never changes, whatever happens to the message: deduplicate by it."""
    topic: str
    """The topic that it is in."""
    producer_id: str
    """The id of its producer; empty where the publisher named none."""
    created_at: datetime
    """When it was published, by the publisher's estimate of the store's time."""
    payload: dict[str, Any] = field(repr=False, hash=False)
    """The JSON object."""
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Its headers, as they were published."""
    deliveries: int = 1
    """How often it was handed out, this time included; 0 for a message that was peeked at."""
    write_id: str = ""
    """The staged write that published it; empty where none did."""
    priority: int = 0
    """The priority with which it was published. A message that was redriven has it too, and is in no lane any more."""
    dedup_key: str | None = None
    """The key by which its publisher kept it from being published twice; None where it gave none."""
    unit: str = field(default="", repr=False)
    """What the claim names it by, and no other message of it: the uuid in its key; of a message of a pack, the pack's
    unit and its number. Another body may have the same ``id``."""


@dataclass(frozen=True, slots=True)
class OneMessage:
    """One message of a claim, named by the uuid in its key, as other messages may have its id."""

    id: str
    unit: str


@dataclass(frozen=True, slots=True)
class AllOfPack:
    """All messages of one pack that a claim has."""

    unit: str


class LazyMessages(Sequence[Message], ABC):
    """Messages that are made whenever somebody looks at them, and their ids, which are known."""

    @property
    @abstractmethod
    def ids(self) -> list[str]:
        """The ids of all of them."""


#: What a caller may name of a claim to have it settled.
Meant: TypeAlias = str | OneMessage | AllOfPack


def as_message(  # the fields of an envelope, and where it was found
    envelope: Envelope | PackEntry | Line, topic: str, name: str, *, deliveries: int, unit: str = ""
) -> Message:
    """Return the message in an envelope, as a consumer is given it.

    A time that cannot be read, or that is out of the bounds of §1, does not cost the message. The time in the name
    replaces it, or by 1970 where the name has none.

    :param unit: where it is one message of a pack, its name in the claim.
    """
    created_at = instant(envelope.created_at)
    if created_at is None:
        created_at = datetime.fromtimestamp(units.published_at(name) or 0.0, UTC)
    return Message(
        id=envelope.id,
        topic=topic,
        producer_id=envelope.producer_id,
        created_at=created_at,
        payload=envelope.payload,
        headers=envelope.headers,
        deliveries=deliveries,
        write_id=getattr(envelope, "write_id", ""),
        priority=envelope.priority,
        dedup_key=envelope.dedup_key,
        unit=unit or (parsed.id if (parsed := units.parse(name)) is not None else ""),
    )


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """A claim in a few hundred bytes, for XCom, a Spark argument or an event. It has no payload."""

    topic: str
    """The topic of its messages."""
    claim_id: str
    """Its id: the one that was asked for, or one that was made up."""
    generation: int
    """Its number among the claims of that id: the first is 0."""
    session: str
    """The session that handed it over. Attaching does not wait for a session that has left the claim."""

    @property
    def stem(self) -> str:
        """Its id and generation, as logs and leases name it. Use it as a name for results that are written once."""
        return layout.claim_stem(self.claim_id, self.generation)

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict that JSON can carry."""
        return {
            "topic": self.topic,
            "claim_id": self.claim_id,
            "generation": self.generation,
            "session": self.session,
        }

    @classmethod
    def of(cls, given: Self | Mapping[str, Any]) -> Self:
        """Return a reference that is given as such, or as a dict."""
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
                f"This is not a claim reference ({_mistake(data, problem)}): pass what hand_over() returned, or the "
                "dict of its to_dict(), which JSON can carry.",
                operation="attach",
            ) from None


def _mistake(data: object, problem: Exception) -> str:
    if not isinstance(data, Mapping):
        return f"it is a {type(data).__name__}"
    return f"{problem} is missing" if isinstance(problem, KeyError) else f"{problem}"


class Claim(ABC):
    """A batch of messages that this process alone works on, for :attr:`seconds_left`. Renewing it gives more time.

    Iterate over it, or index it (``claim[0]``), to get its messages. A claim without messages is falsy.
    ``PawnQueue.claim`` and ``PawnQueue.attach`` return it, and only calls of the queue change it.

    ``.topic``, ``.claim_id``, ``.generation``, ``.owner``, ``.consumer`` and ``.session`` say which claim it is.

    A claim that was attached to without payloads has a length and :attr:`ids`, and no messages.
    """

    def __init__(
        self,
        topic: str,
        found: Versioned[ClaimRecord],
        messages: tuple[Message, ...] | LazyMessages,
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
        self._messages = messages
        self._unread = tuple(unread)  # the unit ids of its messages, where they were not read
        self._uuids = dict(uuids)  # the message id of each member
        self._record = record
        self._version = found.version
        self._lost: str | None = None
        self._given_away = False

    @property
    def messages(self) -> tuple[Message, ...]:
        """Its messages, in order. To hold only a part of a large claim in memory, iterate over the claim instead.

        :raises InvalidArgumentError: it was attached to without payloads.
        """
        return tuple(self._readable)

    @property
    def _readable(self) -> Sequence[Message]:
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
        """Whether :attr:`messages` can be used: they were read, or the claim is empty."""
        return not self._unread

    @property
    def stem(self) -> str:
        """Its id and generation, as logs and leases name it."""
        return self._record.stem

    @property
    def ids(self) -> list[str]:
        """The ids of its messages, in order.

        Without payloads they are the names under which the messages are kept, which settle them as well. Those of
        messages in packs (``{uuid}.0-1000#7``) and of redriven messages differ from the messages' own ids.
        """
        if self._unread:
            return list(self._unread)
        if isinstance(self._messages, LazyMessages):
            return self._messages.ids
        return [message.id for message in self._messages]

    @property
    def unsettled(self) -> list[Message]:
        """Its messages of which nothing is decided yet, in order, as far as this process knows.

        :raises InvalidArgumentError: it was attached to without payloads: use :attr:`unsettled_ids`.
        """
        return [message for message in self._readable if self._record.decision_of(message.unit) is None]

    def unsettled_with_units(self) -> dict[str, str]:
        """Return the ids of its messages of which nothing is decided yet, by their names in the claim."""
        if self._unread:
            return {unit: self._id_of(unit) for unit in self._unread if self._record.decision_of(unit) is None}
        return {message.unit: message.id for message in self.unsettled}

    @property
    def unsettled_ids(self) -> list[str]:
        """The ids of its messages of which nothing is decided yet, in order; without payloads as in :attr:`ids`."""
        if self._unread:
            return [unit for unit in self._unread if self._record.decision_of(unit) is None]
        return [message.id for message in self.unsettled]

    @abstractmethod
    def has(self, message_id: str) -> bool:
        """Say whether it was made with a message of this id, whether or not that is settled by now.

        Without payloads, the ids are the names under which messages are kept, as in :attr:`ids`.
        """

    @property
    @abstractmethod
    def seconds_left(self) -> float:
        """For how many seconds from now this process may trust the claim: 0 if it is lost or over."""

    @property
    @abstractmethod
    def deadline(self) -> datetime:
        """When :attr:`seconds_left` ends, by this machine's own clock. Renewing moves it."""

    @property
    @abstractmethod
    def session_ttl(self) -> float:
        """For how many seconds after a renewal this process may work on it: at most :attr:`ttl`."""

    @property
    def ttl(self) -> float:
        """For how many seconds a renewal keeps the claim."""
        return self._record.lasts or self._record.ttl

    @property
    def lost(self) -> str | None:
        """Why the claim was lost, or None as far as this process knows."""
        return self._lost

    @property
    def state(self) -> Literal["open", "expired", "closed"]:
        """The state of its record when it was last read."""
        return self._record.state

    @property
    def recorded(self) -> bool:
        """Whether it has a record in the bucket. A claim that found no message has none."""
        return bool(self._version)

    @property
    def was_handed_out(self) -> bool:
        """Whether its owner was ever given a message of it, in this session or an earlier one."""
        return self._record.was_handed_out

    @property
    def ended_unsettled(self) -> bool:
        """Whether it was ended from outside before all of it was settled: its time was over, or its run had ended."""
        record = self._record
        return any(decision.by == "other" for decision in record.all_decisions()) or (
            record.state != "open" and bool(record.unsettled)
        )

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why messages of this claim were buried or given back, by message id."""
        return {message_id: decision.reason for message_id, decision in self._decisions() if decision.reason}

    @property
    def decided(self) -> Mapping[str, str]:
        """The decision about each settled message, by message id: acked, dead or released."""
        return {
            message_id: decision.how
            for message_id, decision in self._decisions()
            if decision.how != "gone" and decision.by != "other"
        }

    def _decisions(self) -> Iterator[tuple[str, Decision]]:
        """Give each decision with the id of its message; of a pack that was not read, with its name in the claim."""
        record = self._record
        if not record.has_packs:
            for uuid, decision in record.settled.items():
                yield decision.id or self._uuids.get(uuid, uuid), decision
            return
        for unit_id in record.members:
            for part in record.parts_of(unit_id):
                for entry in (layout.entry_of(unit_id, number) for number in numbers.each(part.of)):
                    yield self._id_of(entry), part

    @abstractmethod
    def _id_of(self, entry: str) -> str:
        """Return the id of a message of a pack; where it was not read, its name in the claim."""

    @property
    def reference(self) -> ClaimReference:
        """Its reference, for a Spark job or another reader while this process works on it. It hands nothing over."""
        return ClaimReference(self.topic, self.claim_id, self.generation, self.session)

    def hand_over(self) -> ClaimReference:
        """Give the claim to another process, which attaches to it. This process must not work on it any more.

        The other process need not wait, as the reference shows that this one has left. JSON can carry the
        reference's ``to_dict()``.
        """
        self.give_away()
        return self.reference

    @abstractmethod
    def give_away(self) -> None:
        """End this process's work on it."""

    @overload
    def __getitem__(self, position: int) -> Message: ...

    @overload
    def __getitem__(self, position: slice) -> Sequence[Message]: ...

    def __getitem__(self, position: int | slice) -> Message | Sequence[Message]:
        """Return one message by its number, or a slice of them."""
        return self._readable[position]

    def __iter__(self) -> Iterator[Message]:
        """Iterate over the messages, in order."""
        return iter(self._readable)

    def __len__(self) -> int:
        """Count the messages."""
        return len(self._unread) or len(self._messages)

    def __bool__(self) -> bool:
        """Say whether there is a message to work on."""
        return bool(self._unread or self._messages)

    def __repr__(self) -> str:
        """Show which claim it is, without payloads."""
        state = "lost" if self.lost else self.state
        return f"<Claim {self.claim_id}.{self.generation} of {self.topic!r}: {len(self)} messages, {state}>"

"""The keys of the bucket (``docs/protocol.md``, section 1). Those of messages are in :mod:`pawnqueue.catalog`."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from enum import Enum
from typing import Literal, TypeAlias, TypeGuard, get_args

from pawnqueue.domain.bounds import MAX_HOLDER_CHARACTERS, UNIT_ID, within_bounds
from pawnqueue.domain.identifiers import ClaimStem, UnitId
from pawnqueue.domain.numbers import MAX_PACK_MESSAGES
from pawnqueue.domain.uuids import UUID_BYTES, named_uuid, uuids_of
from pawnqueue.errors import InvalidArgumentError, InvalidTopicError

Role: TypeAlias = Literal["producers", "consumers"]

BUCKET_RECORD = "_registry/bucket.json"
PROBES = "_probe/"

#: What the name of a pack ends with, waiting or staged.
PACK_SUFFIX = ".jsonl.zst"

_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_CLAIM_ID = re.compile(r"[A-Za-z0-9_:+-](?:[A-Za-z0-9._:+-]{0,126}[A-Za-z0-9_:+-])?")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_UNIT_ID = re.compile(UNIT_ID)
_PACK_ENDING = re.compile(rf".-(?P<uuid>{_UUID.pattern})\.(?P<count>[1-9][0-9]{{0,3}})\.jsonl\.zst\Z")
_GENERATION = re.compile(r"0|[1-9][0-9]{0,17}")  # in one spelling: of two, one would name the record of the other
_SLASHES = (0, 2)  # of a name alone, and of a key: topic, folder, name
_DEDUP_SEGMENT = re.compile(r"(?P<tag>[0-9a-f]{8})-(?P<shard>[0-9])\.(?P<number>[0-9]{8}|[1-9][0-9]{8,11})\.json")
_STAGED = re.compile(r"[0-9]{9}-[0-9a-f]{32}\.[0-9]{6}\.jsonl(\.zst)?")
_STAGED_SLASHES = 3  # topic, folder, write, name
_MOST_PARTS = 10**9
_STAMP = "%Y%m%dT%H%M%S_%f"
_STAMPED = re.compile(r"\d{8}T\d{6}_\d{6}")
_SHOWN = 40  # of a bad name, in an error


def _is_text(value: object) -> TypeGuard[str]:
    """Say whether it is a plain text. A member of an Enum of texts is not: an f-string writes its name into a key."""
    return isinstance(value, str) and not isinstance(value, Enum)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - whatever a user's class raises, the error names its type
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def checked_topic(topic: object) -> str:
    """Return the topic's name, or raise before any request is made with it."""
    if _is_text(topic) and _TOPIC.fullmatch(topic):
        return topic
    shown = _shown(topic)
    size = f" ({len(topic)} characters)" if _is_text(topic) else ""
    sentence = (
        f"{shown}{size} is not a valid topic name: use 1 to 128 of A-Z a-z 0-9 . _ - and begin with a letter or a "
        "digit; for a hierarchy of queues, use s3.key_prefix."
    )
    raise InvalidTopicError(sentence, topic=str(topic)[:128])


def topic_of_folder(folder: str) -> str | None:
    """Return the topic whose folder this is, or None for a folder of ours or of a stranger."""
    name = folder.rstrip("/")
    return name if _TOPIC.fullmatch(name) else None


def topic_marker(topic: str) -> str:
    """Return the key of the object that says that the topic exists."""
    return f"{topic}/.topic"


def swept(topic: str) -> str:
    """Return the key of the object whose date says when a janitor last swept the topic."""
    return f"{topic}/.swept"


def letter_notices(topic: str) -> str:
    """Return the key of the object that says which dead letters were warned of before their removal."""
    return f"{topic}/.dead-letters"


def topic_folder(topic: str) -> str:
    """Return the folder of all objects of a topic."""
    return f"{topic}/"


def last_part(key: str) -> str:
    """Return the name of an object in a folder of ours, or "" for an object in a folder below it.

    Such an object is a stranger's. Under its name alone, it would be looked for in the wrong folder:
    ``{topic}/messages/old/x.json``.
    """
    return key.rpartition("/")[2] if key.count("/") in _SLASHES else ""


def folder_name(key: str) -> str:
    """Return the folder of its topic that an object is in, such as ``claims``, or "" where it is in none."""
    return key.split("/", 2)[1] if key.count("/") > 1 else ""


def pack_unit_id(uuid_: str, count: int) -> UnitId:
    """Return the id of the unit that is a pack with this number of messages.

    It is not a uuid: versions that know no packs take its lease for a stranger's, and leave it alone.
    """
    return UnitId(f"{uuid_}.0-{count}")


def slice_id(uuid_: str, begin: int, end: int) -> UnitId:
    """Return the id of the unit that is a part of a pack: its messages from ``begin`` on, and before ``end``."""
    return UnitId(f"{uuid_}.{begin}-{end}")


def range_of(unit_id: str) -> tuple[int, int] | None:
    """Return the numbers at which a unit of a pack begins and ends; None: it is a single message."""
    begin, dash, end = unit_id.partition(".")[2].partition("-")
    return (int(begin), int(end)) if dash else None


def is_of_pack(entry: str) -> bool:
    """Say whether a unit of a pack, or a message of one, is named."""
    return "." in entry


def do_overlap(unit_id: str, other: str) -> bool:
    """Say whether two units have a message in common."""
    if unit_id == other:
        return True
    first, second = range_of(unit_id), range_of(other)
    if first is None or second is None or uuid_of(unit_id) != uuid_of(other):
        return False
    return first[0] < second[1] and second[0] < first[1]


def is_whole_pack(name: str, unit_id: str) -> bool:
    """Say whether a unit is all of the pack of this name, and not a slice of it."""
    return name.endswith(f"-{uuid_of(unit_id)}.{unit_id.rpartition('-')[2]}{PACK_SUFFIX}") and ".0-" in unit_id


def count_in(name: str) -> int:
    """Return how many messages are in the pack of this name."""
    return int(name.removesuffix(PACK_SUFFIX).rpartition(".")[2])


def uuid_of(unit_id: str) -> str:
    """Return the uuid in the key of the unit."""
    return unit_id.partition(".")[0]


def is_unit_id(text: str) -> bool:
    """Say whether this can be the id of a unit, and so become a part of a lease's key."""
    return _UNIT_ID.fullmatch(text) is not None


def entry_of(unit_id: str, number: int) -> str:
    """Name one message of a pack, as a claim and its settlement do."""
    return f"{unit_id}#{number}"


def parse_entry(entry: str) -> tuple[str, int | None]:
    """Return the unit and the number of a message that a claim names; the number of a single message is None."""
    unit_id, mark, number = entry.partition("#")
    return unit_id, int(number) if mark else None


def is_name_of(name: str, unit_id: str) -> bool:
    """Say whether an object's name is one that the unit of this id can have."""
    covers = range_of(unit_id)
    if covers is None:
        return name.endswith(f"-{unit_id}.json") and len(name) > len(unit_id) + len("-.json")
    match = _PACK_ENDING.search(name)
    return match is not None and match["uuid"] == uuid_of(unit_id) and covers[1] <= int(match["count"])


def timestamp(seconds: float) -> str:
    """Write a server time as keys have it, to the microsecond."""
    return datetime.fromtimestamp(seconds, UTC).strftime(_STAMP)


def read_stamp(name: str) -> float | None:
    """Read the time out of a name that :func:`timestamp` is in, or return None where it has none within §1's bounds."""
    match = _STAMPED.search(name)
    if match is None:
        return None
    try:
        time = within_bounds(datetime.strptime(match[0], _STAMP).replace(tzinfo=UTC))
    except ValueError:
        return None
    return None if time is None else time.timestamp()


def lease(topic: str, unit: str) -> str:
    """Return the key of the lease on a unit."""
    return f"{topic}/leases/{unit}.lease"


def parse_lease(key: str) -> UnitId | None:
    """Read the unit's id out of a key below ``leases/``, or return None for a stranger's."""
    name = last_part(key)
    unit_id = name.removesuffix(".lease")
    if not name.endswith(".lease") or not _UNIT_ID.fullmatch(unit_id):
        return None
    begin, end = range_of(unit_id) or (0, 1)
    return UnitId(unit_id) if begin < end <= MAX_PACK_MESSAGES else None


def claim(topic: str, stem: str) -> str:
    """Return the key of a claim record."""
    return f"{topic}/claims/{stem}.json"


def claim_beginning(topic: str, claim_id: str) -> str:
    """Return what the keys of all generations of a claim begin with, and where a LIST of them starts."""
    return f"{topic}/claims/{claim_id}."


def claim_stem(claim_id: str, generation: int) -> ClaimStem:
    """Name one generation of a claim, in keys and leases."""
    return ClaimStem(f"{claim_id}.{generation}")


def parse_claim(key: str) -> tuple[str, int] | None:
    """Read claim id and generation out of a key below ``claims/``, or return None for a stranger's."""
    name = last_part(key)
    return parse_stem(name.removesuffix(".json")) if name.endswith(".json") else None


def parse_stem(stem: str) -> tuple[str, int] | None:
    """Read claim id and generation out of a record's name, as a lease has it, or return None for any other text.

    ⚑ §1: :func:`claim_stem` makes the same name of them again.
    """
    claim_id, _, generation = stem.rpartition(".")
    if not _CLAIM_ID.fullmatch(claim_id) or not _GENERATION.fullmatch(generation):
        return None
    return claim_id, int(generation)


def is_message_id(message_id: object) -> TypeGuard[str]:
    """Say whether a message can be kept under this id."""
    return _is_text(message_id) and _UUID.fullmatch(message_id) is not None


def checked_message_id(message_id: object) -> str:
    """Return the id under which a message is kept, or raise before any request is made with it."""
    if is_message_id(message_id):
        return message_id
    raise InvalidArgumentError(
        f"{_shown(message_id)} is not a message id: pass the UUID that publish() returned.", operation="find"
    )


def checked_claim_id(claim_id: object) -> str:
    """Return the claim's id, or raise before any request is made with it."""
    if _is_text(claim_id) and _CLAIM_ID.fullmatch(claim_id):
        return claim_id
    raise InvalidArgumentError(
        f"{_shown(claim_id)} is not a valid claim id: use a text of 1 to 128 of A-Z a-z 0-9 _ : + - and dots "
        "between them.",
        operation="claim",
    )


def checked_holder(name: object, what: str) -> str:
    """Return the name of an owner or a consumer, or raise before any request is made with it."""
    if (
        _is_text(name)
        and name.strip()
        and len(name) <= MAX_HOLDER_CHARACTERS
        and name.encode(errors="replace").decode() == name
    ):
        return name
    raise InvalidArgumentError(
        f"{what} is a text of 1 to {MAX_HOLDER_CHARACTERS:,} characters, not {_shown(name)}.", operation="claim"
    )


def is_write_id(write_id: object) -> TypeGuard[str]:
    """Say whether this can be a write's id."""
    return _is_text(write_id) and _CLAIM_ID.fullmatch(write_id) is not None


def checked_write_id(write_id: object) -> str:
    """Return the write's id, or raise before any request is made with it."""
    if is_write_id(write_id):
        return write_id
    raise InvalidArgumentError(
        f"{_shown(write_id)} is not a valid write id: use a text of 1 to 128 of A-Z a-z 0-9 _ : + - and dots "
        "between them.",
        operation="stage",
    )


def checked_part(part: object) -> int:
    """Return the number of a part of a write, or raise before any request is made with it."""
    if isinstance(part, int) and not isinstance(part, bool) and 0 <= part < _MOST_PARTS:
        return part
    raise InvalidArgumentError(
        f"part is a whole number from 0, and below {_MOST_PARTS:,}, not {_shown(part)}.", operation="stage"
    )


def write(topic: str, write_id: str) -> str:
    """Return the key of a write record."""
    return f"{topic}/writes/{write_id}.json"


def parse_write(key: str) -> str | None:
    """Read the write's id out of a key below ``writes/``, or return None for a stranger's."""
    name = last_part(key)
    write_id = name.removesuffix(".json")
    return write_id if name.endswith(".json") and _CLAIM_ID.fullmatch(write_id) else None


def staged_name(part: int, attempt: str, number: int, *, is_pack: bool = False) -> str:
    """Make the name of an object that an attempt at a part of a write stages. No two attempts share one.

    :param attempt: 128 random bits, in hex.
    """
    return f"{part:09}-{attempt}.{number:06}{PACK_SUFFIX if is_pack else '.jsonl'}"


def part_of_staged(name: str) -> int:
    """Return the number of the part whose rows the object of this name has; 0 where the name does not tell."""
    return int(name.partition("-")[0]) if _STAGED.fullmatch(name) else 0


def is_pack_name(name: str) -> bool:
    """Say whether this is the name of a pack, if it is the name of a unit or of a staged object."""
    return name.endswith(PACK_SUFFIX)


def is_staged_name(name: str) -> bool:
    """Say whether this can be the name of a staged object."""
    return _STAGED.fullmatch(name) is not None


def staged(topic: str, write_id: str) -> str:
    """Return the folder of what is staged for a write."""
    return f"{topic}/staged/{write_id}/"


def staged_object(topic: str, write_id: str, name: str) -> str:
    """Return the key of an object that is staged for a write."""
    return f"{topic}/staged/{write_id}/{name}"


def parse_staged(key: str) -> tuple[str, str] | None:
    """Read the write's id and the object's name out of a key below ``staged/``, or return None for a stranger's."""
    if key.count("/") != _STAGED_SLASHES:
        return None
    _, _, write_id, name = key.split("/")
    return (write_id, name) if _CLAIM_ID.fullmatch(write_id) and _STAGED.fullmatch(name) else None


def written_ids(topic: str, write_id: str, part: int, positions: range) -> list[str]:
    """Return the ids of messages of a write: the same write gives its messages the same ids."""
    before = f"{topic}\x00{write_id}\x00{part}\x00".encode()
    digests = [hashlib.sha256(b"%b%d" % (before, position)).digest()[:UUID_BYTES] for position in positions]
    return uuids_of(b"".join(digests))


def written_id(topic: str, write_id: str, part: int, position: int) -> str:
    """Return the id of one message of a write."""
    return written_ids(topic, write_id, part, range(position, position + 1))[0]


def written_pack_uuid(topic: str, write_id: str, name: str) -> str:
    """Return the uuid of the pack that a staged object becomes: another one for each attempt at its rows."""
    return named_uuid(f"{topic}\x00{write_id}\x00{name}")


def dedup(topic: str) -> str:
    """Return the folder of the topic's deduplication log."""
    return f"{topic}/dedup/"


def dedup_segment(topic: str, tag: str, shard: int, number: int) -> str:
    """Return the key of a segment of the topic's deduplication log.

    :param tag: of the topic that was created at one time: another one for a topic that is created anew.
    """
    return f"{topic}/dedup/{tag}-{shard}.{number:08}.json"


def dedup_tag(created_at: str) -> str:
    """Return what the keys of a topic's segments begin with, from what its marker says of its creation."""
    return hashlib.sha256(created_at.encode("utf-8", "replace")).hexdigest()[:8]


def parse_dedup_segment(key: str) -> tuple[str, int, int] | None:
    """Read tag, shard and number out of a key below ``dedup/``, or return None for a stranger's."""
    match = _DEDUP_SEGMENT.fullmatch(last_part(key))
    return None if match is None else (match["tag"], int(match["shard"]), int(match["number"]))


def completed(topic: str) -> str:
    """Return the folder of the topic's completed log."""
    return f"{topic}/completed/"


def completed_object(topic: str, name: str) -> str:
    """Return the key of an object of the completed log."""
    return f"{topic}/completed/{name}"


def leases(topic: str) -> str:
    """Return the folder of the topic's leases."""
    return f"{topic}/leases/"


def claims(topic: str) -> str:
    """Return the folder of the topic's claim records."""
    return f"{topic}/claims/"


def writes(topic: str) -> str:
    """Return the folder of the topic's write records."""
    return f"{topic}/writes/"


def staging(topic: str) -> str:
    """Return the folder of all that is staged for writes into the topic."""
    return f"{topic}/staged/"


def registrations(role: Role) -> str:
    """Return the folder of the registrations in a role."""
    return f"_registry/{role}/"


def registration(role: Role, entity_id: str) -> str:
    """Return the key of one registration."""
    return f"_registry/{role}/{entity_id}.json"


def parse_registration(key: str) -> tuple[Role, str] | None:
    """Read role and id out of the key of a registration, or return None for a stranger's."""
    for role in get_args(Role):
        if key.startswith(registrations(role)) and key.endswith(".json"):
            return role, key.removeprefix(registrations(role)).removesuffix(".json")
    return None


def id_of_name(role: Role, name: str) -> str:
    """Return the id that a name has unless it was registered before under another one.

    Derived, so that two processes that register a name at the same instant write the same key.
    """
    return named_uuid(f"{role}\x00{name}")


def probe(identifier: str) -> str:
    """Return the key of a probe object."""
    return f"{PROBES}{identifier}.probe"

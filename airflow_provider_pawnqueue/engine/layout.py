"""Every key in the bucket is made and parsed here, and nowhere else (``docs/protocol.md``, section 1)."""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Literal, TypeAlias

from airflow_provider_pawnqueue.engine.errors import InvalidTopicError

Role: TypeAlias = Literal["producers", "consumers"]

BUCKET_RECORD = "_registry/bucket.json"
PROBES = "_probe/"

_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHOWN = 40  # of a bad name, in an error


def checked_topic(topic: object) -> str:
    """Return the topic's name, or raise before any request is made with it."""
    if isinstance(topic, str) and _TOPIC.fullmatch(topic):
        return topic
    shown = repr(topic) if len(repr(topic)) <= _SHOWN else f"{repr(topic)[:_SHOWN]}…"
    size = f" ({len(topic)} characters)" if isinstance(topic, str) else ""
    sentence = (
        f"{shown}{size} is no topic name: use 1 to 128 of A-Z a-z 0-9 . _ - and begin with a letter or a digit; "
        "for a hierarchy of queues, use s3.key_prefix."
    )
    raise InvalidTopicError(sentence, topic=str(topic)[:128])


def topic_of_folder(folder: str) -> str | None:
    """Return the topic whose folder this is, or None for a folder of ours or of a stranger."""
    name = folder.rstrip("/")
    return name if _TOPIC.fullmatch(name) else None


def topic_marker(topic: str) -> str:
    """Return the key of the object that says that the topic exists."""
    return f"{topic}/.topic"


def topic_folder(topic: str) -> str:
    """Return the folder that all of a topic's objects are in."""
    return f"{topic}/"


def messages(topic: str) -> str:
    """Return the folder of the topic's pending messages."""
    return f"{topic}/messages/"


def packs(topic: str) -> str:
    """Return the folder of the topic's packs."""
    return f"{topic}/packs/"


def leases(topic: str) -> str:
    """Return the folder of the topic's leases."""
    return f"{topic}/leases/"


def claims(topic: str) -> str:
    """Return the folder of the topic's claim records."""
    return f"{topic}/claims/"


def dead_letters(topic: str) -> str:
    """Return the folder of the topic's dead letters."""
    return f"{topic}/dead-letter/"


def registrations(role: Role) -> str:
    """Return the folder of everyone who registered in the role."""
    return f"_registry/{role}/"


def registration(role: Role, entity_id: str) -> str:
    """Return the key of one registration."""
    return f"_registry/{role}/{entity_id}.json"


def id_of_name(role: Role, name: str) -> str:
    """Return the id that a name has unless it was registered before under another one.

    Derived, so that two processes that register a name at the same instant write the same key.
    """
    digest = hashlib.sha256(f"{role}\x00{name}".encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))


def probe(identifier: str) -> str:
    """Return the key of a probe object."""
    return f"{PROBES}{identifier}.probe"

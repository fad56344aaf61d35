"""Keys: made in one place, as the protocol's first section has them, and read back."""

from __future__ import annotations

import re
import string
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pawnqueue import InvalidTopicError
from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout
from pawnqueue.domain.layout import Role

ALLOWED = string.ascii_letters + string.digits + "._-"
FIRST = string.ascii_letters + string.digits

topics = st.builds(
    lambda first, rest: first + rest, st.sampled_from(FIRST), st.text(st.sampled_from(ALLOWED), max_size=127)
)


# --- topics ---


@given(topics)
def test_a_topic_s_folder_is_read_back(topic: str) -> None:
    """A good name is taken as it is, and its folder differs from all others."""
    assert layout.checked_topic(topic) == topic
    assert layout.topic_folder(topic) == f"{topic}/"
    assert layout.topic_of_folder(layout.topic_folder(topic)) == topic


@given(st.text(max_size=140))
def test_any_text_is_a_name_or_told_why_not(text: str) -> None:
    """A name is 1 to 128 of A-Z a-z 0-9 . _ - and begins with a letter or a digit; nothing else is."""
    good = 1 <= len(text) <= 128 and text[0] in FIRST and all(character in ALLOWED for character in text)
    if good:
        assert layout.checked_topic(text) == text
    else:
        with pytest.raises(InvalidTopicError, match="is not a valid topic name"):
            layout.checked_topic(text)
        assert layout.topic_of_folder(f"{text}/") is None or text.endswith("/")


@pytest.mark.parametrize(
    "bad", ["", ".", "..", "_x", "-x", "a/b", "a b", "a\n", "\na", "ä", "a\u0000", "x" * 129, "٣", None, 5, b"a", ["a"]]
)
def test_a_bad_name_is_shown_and_explained(bad: object) -> None:
    """The error shows the name, shortened, says what a name is, and what to use instead of slashes."""
    with pytest.raises(InvalidTopicError) as caught:
        layout.checked_topic(bad)
    sentence = str(caught.value)
    assert repr(bad)[:20] in sentence
    assert "use 1 to 128 of A-Z a-z 0-9 . _ - and begin with a letter or a digit" in sentence
    assert "s3.key_prefix" in sentence
    assert len(sentence) < 250


def test_the_longest_name() -> None:
    """128 characters are a name."""
    assert layout.checked_topic("x" * 128) == "x" * 128


@pytest.mark.parametrize("folder", ["_registry/", "_probe/", "-x/", ".x/", "a b/", "ü/", "/", ""])
def test_folders_of_others_are_no_topics(folder: str) -> None:
    """Our own folders and strangers' are not taken for topics."""
    assert layout.topic_of_folder(folder) is None


def test_a_topic_s_keys() -> None:
    """All of a topic is below its folder, each kind in the folder that pawn-queue looks into."""
    assert layout.topic_marker("orders") == "orders/.topic"
    assert layout.swept("orders") == "orders/.swept"
    assert units.folder("orders") == "orders/messages/"
    assert units.packs_folder("orders") == "orders/packs/"
    assert layout.leases("orders") == "orders/leases/"
    assert layout.claims("orders") == "orders/claims/"
    assert letters.folder("orders") == "orders/dead-letter/"


@given(topics, topics)
def test_topics_keep_out_of_each_other_s_folders(one: str, other: str) -> None:
    """No key of a topic is below another topic's folder, whatever their names."""
    if one != other:
        for part in (
            layout.topic_marker,
            layout.swept,
            units.folder,
            layout.leases,
            layout.claims,
            letters.folder,
        ):
            assert not part(one).startswith(layout.topic_folder(other))


# --- the registry and probes ---


def test_the_registry_s_keys() -> None:
    """Producers and consumers have a folder each, beside the bucket's record."""
    assert layout.BUCKET_RECORD == "_registry/bucket.json"
    assert layout.registrations("producers") == "_registry/producers/"
    assert layout.registration("consumers", "x") == "_registry/consumers/x.json"
    assert not layout.BUCKET_RECORD.startswith((layout.registrations("producers"), layout.registrations("consumers")))


@given(name=st.text(max_size=256), role=st.sampled_from(["producers", "consumers"]))
def test_an_id_is_derived_from_role_and_name(name: str, role: Role) -> None:
    """The same name has the same id in every process, the other role has another one, and it is a UUID."""
    entity_id = layout.id_of_name(role, name)
    assert entity_id == layout.id_of_name(role, name)
    assert str(uuid.UUID(entity_id)) == entity_id
    assert uuid.UUID(entity_id).version == 4
    other: Role = "consumers" if role == "producers" else "producers"
    assert layout.id_of_name(other, name) != entity_id
    assert layout.id_of_name(role, f"{name}x") != entity_id


def test_ids_never_change() -> None:
    """Ids are in buckets for ever: this one was made by the first release."""
    assert layout.id_of_name("producers", "billing") == "984719b5-fccf-4d8a-82e4-7d081a4a8956"


def test_probes_have_a_folder_of_their_own() -> None:
    """A probe is never below a topic or in the registry."""
    assert layout.probe("x") == "_probe/x.probe"
    assert layout.probe("x").startswith(layout.PROBES)
    assert layout.topic_of_folder(layout.PROBES) is None


# --- messages, leases, claims, dead letters ---

ids = st.uuids().map(str)
moments = st.floats(0, 4e9)


@given(seconds=moments, identifier=ids)
def test_a_message_s_key_is_read_back(seconds: float, identifier: str) -> None:
    """Time and uuid are in the name, to the microsecond."""
    name = units.name_at(seconds, identifier)
    parsed = units.parse(units.key_of("orders", name))
    assert parsed is not None
    assert (parsed.name, parsed.id) == (name, identifier)
    told = units.published_at(name)
    assert told is not None
    assert abs(told - seconds) <= 2e-6


@given(st.lists(moments, min_size=2, max_size=10), ids)
def test_names_sort_by_time(seconds: list[float], identifier: str) -> None:
    """LIST is publish order."""
    names = [units.name_at(one, identifier) for one in sorted(seconds)]
    stamps = [name.removesuffix(f"-{identifier}.json") for name in names]
    assert stamps == sorted(stamps)


UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"


@pytest.mark.parametrize("lane", ["", "!8-", "_-4-", "~"])
def test_lanes_are_parsed(lane: str) -> None:
    """The uuid is read in every lane, as pawn-queue reads it: the last five groups."""
    parsed = units.parse(f"orders/messages/{lane}20260102T030405_000006-{UUID}.json")
    assert parsed is not None
    assert parsed.id == UUID
    assert parsed.name.startswith(lane)


STRANGERS = [
    "",
    "x",
    "x.json",
    f"{UUID}.json",
    f"20260102T030405_000006-{UUID}",
    "20260102T030405_000006-.json",
    ".json",
]


@pytest.mark.parametrize("name", STRANGERS)
def test_strangers_are_no_messages(name: str) -> None:
    """What nobody of ours wrote is left alone."""
    assert units.parse(f"orders/messages/{name}") is None


@given(st.text(max_size=80))
def test_no_key_crashes_a_parser(key: str) -> None:
    """Any key is read, or left alone."""
    for parse in (units.parse, layout.parse_lease, layout.parse_claim, letters.parse):
        parse(key)
        parse(f"orders/messages/{key}")
    units.published_at(key)


@given(ids)
def test_a_lease_s_key_is_read_back(identifier: str) -> None:
    """A lease is found by the uuid of its message."""
    assert layout.parse_lease(layout.lease("orders", identifier)) == identifier
    assert layout.parse_lease(layout.lease("orders", identifier).removesuffix(".lease")) is None
    assert layout.parse_lease(f"orders/leases/x{identifier}.lease") is None


@given(st.from_regex(r"[A-Za-z0-9_:+-]([A-Za-z0-9._:+-]{0,20}[A-Za-z0-9_:+-])?", fullmatch=True), st.integers(0, 10**6))
def test_a_claim_s_key_is_read_back(claim_id: str, generation: int) -> None:
    """Id and generation are separated, with or without dots in the id."""
    stem = layout.claim_stem(layout.checked_claim_id(claim_id), generation)
    assert layout.parse_claim(layout.claim("orders", stem)) == layout.parse_stem(stem) == (claim_id, generation)


@pytest.mark.parametrize(
    "stem", ["", ".", "a", "a.", ".0", "a.x", "a.-1", "a.0.json", "a/b.0", "a/b/c.0", ".a.0", "a.00", "a.007"]
)
def test_what_is_no_claim_s_stem_is_none(stem: str) -> None:
    """A lease may name anything as its claim; what has no record by that name could not be fenced."""
    assert layout.parse_stem(stem) is None


SPELLINGS = [UUID, UUID.upper(), "job.7", "job.07", "job.0", "job.00", "job.-0", "job.7.0", "job.7.json", "job.\u0667"]
SPELLINGS += [f"20260102T030405_000006-{one}" for one in (UUID, UUID.upper())]
SPELLINGS += [
    layout.staged_name(7, "0f" * 16, 3).removesuffix(".jsonl"),
    f"7-{'0f' * 16}.3",
    f"000000007-{'0F' * 16}.000003",
]
ENDINGS = [".json", ".lease", ".reason.json", ".jsonl", "", ".JSON", ".json\n"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_what_is_read_out_of_a_key_makes_that_key_again(spelling: str, ending: str) -> None:
    """Every parser knows one spelling of what it reads: no two keys are taken for one another."""
    name = spelling + ending
    if message := units.parse(f"t/messages/{name}"):
        assert (units.key_of("t", message.name), name.endswith(f"-{message.id}.json")) == (
            f"t/messages/{name}",
            True,
        )
    if uuid_ := layout.parse_lease(f"t/leases/{name}"):
        assert layout.lease("t", uuid_) == f"t/leases/{name}"
    if claim := layout.parse_claim(f"t/claims/{name}"):
        assert layout.claim("t", layout.claim_stem(*claim)) == f"t/claims/{name}"
    if write_id := layout.parse_write(f"t/writes/{name}"):
        assert layout.write("t", write_id) == f"t/writes/{name}"
    if staged := layout.parse_staged(f"t/staged/w/{name}"):
        assert layout.staged_object("t", *staged) == f"t/staged/w/{name}"
        part, attempt, number = re.split(r"[-.]", name)[:3]
        assert layout.staged_name(int(part), attempt, int(number)) == name
    if letter := letters.parse(f"t/dead-letter/{name}"):
        make = letters.reason_key_of if letter[1] else letters.key_of
        assert make("t", letter[0]) == f"t/dead-letter/{name}"
    if person := layout.parse_registration(f"_registry/producers/{name}"):
        assert layout.registration(*person) == f"_registry/producers/{name}"


@given(ids)
def test_a_dead_letter_and_its_reason_are_told_apart(identifier: str) -> None:
    """Both lie side by side under one uuid."""
    assert letters.parse(letters.key_of("orders", identifier)) == (identifier, False)
    assert letters.parse(letters.reason_key_of("orders", identifier)) == (identifier, True)
    assert letters.parse("orders/dead-letter/x.json") is None

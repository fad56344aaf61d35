"""The format of packs (§1): what is written can be read by every tool, and whatever is read harms nobody."""

from __future__ import annotations

import itertools
import json
import random
import struct
import time
import tracemalloc
import uuid
from typing import Any

import pytest
import zstandard

from pawnqueue.domain import pack
from pawnqueue.domain.envelope import Envelope
from pawnqueue.domain.numbers import MAX_PACK_MESSAGES
from pawnqueue.domain.pack import (
    FRAME_MESSAGES,
    MAX_PACK_BYTES,
    MAX_STORED_PACK_BYTES,
    entry_line,
    letter_id,
    lines_of,
    pack_body,
    read_entry,
)
from pawnqueue.domain.record import FORMAT, UnreadableRecordError, canonical
from pawnqueue.errors import CompatibilityError
from tests.pawnqueue.hostile.forged_packs import BOMBS, CHECKED, RAW, RLE, SKIPPABLE, STREAMED, frame, mutated

KEY = "t/packs/20260101T000000_000000-00000000-0000-4000-8000-000000000000.3.jsonl.zst"
UUID = "00000000-0000-4000-8000-000000000001"
LINES = [b'{"n":1}', b'{"n":2}', b'{"n":3}']
TEXT = b'{"n":1}\n{"n":2}\n{"n":3}\n'


def numbered(count: int, *, size: int = 0) -> list[bytes]:
    """Return lines that differ."""
    return [json.dumps({"n": number, "filler": "x" * size}).encode() for number in range(count)]


def is_refused(body: bytes, count: int) -> bool:
    """Say whether the body is garbage, and check that the error is ours and does not quote it."""
    try:
        lines_of(body, count, KEY)
    except UnreadableRecordError as error:
        sentence = str(error)
    else:
        return False
    assert sentence == f"{KEY} is not a pack of {count} messages"
    return True


# -- writing


@pytest.mark.parametrize("count", [1, 99, 100, 101, 1000, MAX_PACK_MESSAGES])
def test_what_is_packed_is_read(count: int) -> None:
    """The lines come back in order, and every reader of zstd gets them as JSON lines."""
    lines = numbered(count)
    body = pack_body(lines)

    assert lines_of(body, count, KEY) == lines
    plain = zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True).read()
    assert plain == b"".join(line + b"\n" for line in lines)


def test_one_message_is_found_by_the_seek_table() -> None:
    """The table at the end names each frame's sizes, so that a ranged read gets the frame of any message."""
    lines = numbered(250)
    body = pack_body(lines)

    frames, descriptor, magic = struct.unpack("<IBI", body[-9:])
    assert (frames, descriptor, magic) == (3, 0, 0x8F92EAB1)
    table = body[-9 - 8 * frames - 8 :]
    assert struct.unpack_from("<II", table) == (0x184D2A5E, len(table) - 8)
    start = 0
    for number in range(frames):
        stored, plain = struct.unpack_from("<II", table, 8 + 8 * number)
        frame = body[start : start + stored]
        text = zstandard.ZstdDecompressor().decompress(frame)
        assert len(text) == plain
        assert text.split(b"\n")[:-1] == lines[FRAME_MESSAGES * number : FRAME_MESSAGES * (number + 1)]
        assert zstandard.get_frame_parameters(frame).has_checksum
        start += stored
    assert start + len(table) == len(body)


def test_the_largest_pack_is_within_the_bounds_of_reading() -> None:
    """A pack of as many bytes as are allowed is read, also if it cannot be compressed. One byte more is not packed."""
    chance = random.Random(1)  # noqa: S311 - repeatable
    size = MAX_PACK_BYTES // MAX_PACK_MESSAGES - 1
    lines = [chance.randbytes(size).replace(b"\n", b" ") for _ in range(MAX_PACK_MESSAGES)]
    body = pack_body(lines)

    assert MAX_PACK_BYTES < len(body) < MAX_STORED_PACK_BYTES
    assert lines_of(body, MAX_PACK_MESSAGES, KEY) == lines
    with pytest.raises(ValueError, match="bounds of a pack"):
        pack_body([lines[0] + b"x", *lines[1:]])


def test_what_nobody_could_read_is_not_packed() -> None:
    """No lines, too many lines, and lines with a newline in them are refused."""
    for lines in ([], [b"{}"] * (MAX_PACK_MESSAGES + 1)):
        with pytest.raises(ValueError, match="bounds of a pack"):
            pack_body(lines)
    with pytest.raises(ValueError, match="newline"):
        pack_body([b"{}", b"{\n}"])


# -- reading a body


@pytest.mark.parametrize(
    "body",
    [
        CHECKED.compress(TEXT),
        STREAMED.compress(TEXT),
        CHECKED.compress(TEXT[:3]) + CHECKED.compress(TEXT[3:9]) + CHECKED.compress(TEXT[9:]),
        SKIPPABLE + CHECKED.compress(TEXT) + SKIPPABLE,
        pack_body(LINES[:1]) + pack_body(LINES[1:]),
    ],
    ids=["one frame", "a stream", "frames that end anywhere", "other skippable frames", "two packs, joined"],
)
def test_what_a_tool_has_rewritten_is_read(body: bytes) -> None:
    """The seek table may be missing, and frames may end anywhere."""
    assert lines_of(body, 3, KEY) == LINES


@pytest.mark.parametrize(
    "body",
    [
        b"",
        TEXT,
        SKIPPABLE,
        CHECKED.compress(b""),
        CHECKED.compress(TEXT) + CHECKED.compress(b""),
        CHECKED.compress(TEXT[:-1]),
        CHECKED.compress(TEXT + b"{}"),
        CHECKED.compress(TEXT + b"\n"),
        CHECKED.compress(TEXT[:16]),
        CHECKED.compress(TEXT) + b"\n",
        b"\x00" * 4 + CHECKED.compress(TEXT),
        CHECKED.compress(TEXT) + b"\x00" * 4,
        CHECKED.compress(TEXT) + SKIPPABLE[:-1],
        CHECKED.compress(TEXT) + SKIPPABLE[:6],
        CHECKED.compress(TEXT) + struct.pack("<II", 0x184D2A50, 2**32 - 1),
        struct.pack("<I", 0xFD2FB527) + CHECKED.compress(TEXT)[4:],
        zstandard.ZstdCompressor(
            dict_data=zstandard.ZstdCompressionDict(TEXT * 9, zstandard.DICT_TYPE_RAWCONTENT), write_checksum=True
        ).compress(TEXT),
        CHECKED.compress(TEXT)[:-1] + b"\x00",
    ],
    ids=[
        "nothing",
        "not compressed",
        "no frame with content",
        "an empty frame",
        "an empty frame at the end",
        "no newline at the end",
        "half a line more",
        "a line too many",
        "a line too few",
        "garbage at the end",
        "zeros at the beginning",
        "zeros at the end",
        "half a skippable frame",
        "half of its header",
        "an endless skippable frame",
        "an old format of zstd",
        "a dictionary is needed",
        "a wrong checksum",
    ],
)
def test_anything_else_is_garbage(body: bytes) -> None:
    """The error names the key, and never quotes the body."""
    assert is_refused(body, 3)


def test_a_dictionary_with_an_id_is_garbage() -> None:
    """A reader has no dictionaries."""
    samples = [entry_line_of({"n": number}) for number in range(500)]
    body = zstandard.ZstdCompressor(dict_data=zstandard.train_dictionary(1024, samples)).compress(TEXT)

    assert zstandard.get_frame_parameters(body).dict_id
    assert is_refused(body, 3)


def test_every_part_of_a_body_is_garbage() -> None:
    """A body that is cut off is refused, but for one that lacks only the seek table: it has all lines."""
    body = pack_body(numbered(150))
    table = len(body) - 8 - 2 * 8 - 9

    assert {end for end in range(len(body) + 1) if not is_refused(body[:end], 150)} == {table, len(body)}


def test_a_large_window_is_garbage() -> None:
    """A reader would have to allocate the window, whether the frame says how long it is or not."""
    text = (b"x" * 999_999 + b"\n") * 9
    for says_size in (True, False):
        for log, is_fine in ((23, True), (24, False)):
            parameters = zstandard.ZstdCompressionParameters(
                window_log=log, compression_level=1, write_content_size=says_size
            )
            body = zstandard.ZstdCompressor(compression_params=parameters).compress(text)
            assert is_refused(body, 9) is not is_fine


def test_the_frames_of_these_tests_can_be_read() -> None:
    """A frame that is made by hand is as any other, so what makes a bomb garbage is its size."""
    for says in (None, 3):
        assert lines_of(frame(says, (RLE, 2, b"x"), (RAW, 1, b"\n")), 1, KEY) == [b"xx"]


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_garbage(bomb: str) -> None:
    """It takes no more memory than twice the largest pack, and no more time than that takes to read."""
    body = BOMBS[bomb]()
    tracemalloc.start()
    began = time.process_time()
    try:
        assert is_refused(body, MAX_PACK_MESSAGES)
        took = time.process_time() - began
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * MAX_PACK_BYTES + 2**20
    assert took < 3


def test_each_bound_is_exact() -> None:
    """A body that is within a bound is read. A body that is just outside of one is garbage, though it has all lines."""
    line = b"x" * (MAX_PACK_BYTES // 64 - 1)
    fine = b"\n".join([*[line] * 64, b""])
    for text, is_fine in ((fine, True), (b"x" + fine, False)):
        for body in (
            CHECKED.compress(text),
            STREAMED.compress(text),
            CHECKED.compress(text[:9]) + CHECKED.compress(text[9:]),
            STREAMED.compress(text[:9]) + STREAMED.compress(text[9:]),
        ):
            assert is_refused(body, 64) is not is_fine
    body = CHECKED.compress(TEXT)
    for room in (MAX_STORED_PACK_BYTES - len(body), MAX_STORED_PACK_BYTES - len(body) + 1):
        filled = body + struct.pack("<II", 0x184D2A50, room - 8) + bytes(room - 8)
        assert is_refused(filled, 3) is (len(filled) > MAX_STORED_PACK_BYTES)
    assert not is_refused(body + SKIPPABLE * 10_000, 3)
    assert is_refused(body + SKIPPABLE * 20_000, 3)


def test_a_count_that_no_pack_has_is_refused() -> None:
    """The bounds of a pack hold whatever its name says."""
    count = MAX_PACK_MESSAGES + 1
    assert is_refused(CHECKED.compress(b"\n" * count), count)
    assert is_refused(CHECKED.compress(TEXT), 0)
    assert is_refused(b"", 0)


def test_a_damaged_body_has_its_own_lines_or_none() -> None:
    """Bits that flip, and parts that are lost, moved or written twice, are noticed."""
    chance = random.Random(20)  # noqa: S311 - repeatable
    lines = [entry_line_of({"n": number, "text": chance.randbytes(9).hex()}) for number in range(120)]
    body = pack_body(lines)
    survived = 0
    for _ in range(4_000):
        damaged = mutated(body, chance)
        try:
            read = lines_of(damaged, len(lines), KEY)
        except UnreadableRecordError:
            continue
        assert read == lines
        survived += 1
    assert 0 < survived < 2_000  # some damage concerns the seek table alone


# -- reading a line


def entry_line_of(payload: dict[str, Any], *, headers: dict[str, str] | None = None, **fields: str) -> bytes:
    """Return the line of a message of ours."""
    given = {"id": UUID, "topic": "t", "producer_id": "p", "created_at": "2026-01-01T00:00:00+00:00", **fields}
    return entry_line(**given, payload_json=canonical(payload), headers=headers or {})


def outcome_of(line: bytes) -> str:
    """Return what a consumer sees of a line, or the error. Its text tells ``1`` from ``1.0`` and ``True``."""
    try:
        entry = read_entry(line, KEY)
    except (UnreadableRecordError, CompatibilityError) as error:
        return repr(error)
    return repr((entry.id, entry.producer_id, entry.created_at, entry.payload, entry.headers))


def outcome_as_single(line: bytes) -> str:
    """Return the same of a message that has an object of its own."""
    try:
        envelope = Envelope.decode(line, KEY)
    except (UnreadableRecordError, CompatibilityError) as error:
        return repr(error)
    return repr((envelope.id, envelope.producer_id, envelope.created_at, envelope.payload, envelope.headers))


def test_a_line_of_ours_is_read_quickly() -> None:
    """What our publishers write needs no second look."""
    for payload in ({}, {"n": [1, -2.5, None, True, {"ö": "😀 \n \x7f"}]}, {"n": 10**400}, {"rows": [{}] * 600}):
        line = entry_line_of(payload, headers={"a": "b"})
        assert pack._read_quickly(line) is not None
        entry = read_entry(line, KEY)
        assert (entry.id, entry.producer_id, entry.payload, entry.headers) == (UUID, "p", payload, {"a": "b"})
        assert entry.created_at == "2026-01-01T00:00:00+00:00"


#: Values that JSON's readers differ in, or that our bounds refuse.
ODD = [
    *(
        "null",
        "true",
        "false",
        "0",
        "1",
        "-1",
        "2",
        "1.0",
        "2.0",
        "0.5",
        "-0",
        "-0.0",
        "1e0",
        "1E+2",
        "1e999",
        "-1e999",
    ),
    *("01", "1.", ".5", "+1", "-", "1e", "NaN", "Infinity", "-Infinity", "1e-400", "2147483647", "2147483648", "1e300"),
    *("9223372036854775808", "18446744073709551616", "-9223372036854775809", "0.1", "123456789012345678901234567890.5"),
    *("9" * 300, "9" * 300 + ".0", "9" * 4300, "9" * 4301, "5e-324", "2.2250738585072011e-308", "9007199254740993.0"),
    *('""', '"a"', '"1"', '"ö"', '"\\u00f6"', '"\\ud800"', '"\\udc00"', '"\\ud83d\\ude00"', '"\\uD83D"', '"\\u0000"'),
    *('"\\x"', '"\\/"', '"\\n"', '"\n"', '"\x00"', '"\x7f"', '"\t"', '"\u2028"', '"😀"', '"\ufeff"', '"', "'a'", "a"),
    *('"' + "x" * 42 + '"', '"' + "x" * 43 + '"', '"' + "x" * 255 + '"', '"' + "x" * 256 + '"', '"' + "ö" * 42 + '"'),
    *('"' + "\\n" * 42 + '"', '"' + "\\u0001" * 42 + '"', '"' + "\\u0001" * 43 + '"', '"' + "😀" * 64 + '"'),
    *("{}", "[]", '{"a":1}', '{"a":"b"}', '{"a":1,"a":2}', '{"a":"b","a":1}', '{"a":1,"a":"b"}', '{"a":null}', "{1:2}"),
    *('{"":{"":""}}', '{"a":1,}', "[1,]", "[,]", "{,}", '{"a"}', '{"\\u0061":1,"a":2}', '{"\\ud800":1}', "[1 2]", ""),
    *('{"a":' + "[" * depth + "]" * depth + "}" for depth in (498, 499, 500, 501, 600)),
    *('{"a":' * depth + "1" + "}" * depth for depth in (499, 500, 501, 2000)),
    '{"a":' + "[" * 5000 + "]" * 5000 + "}",
    '{"a":' + "[" * 400_000,
    '{"rows":[' + ",".join(['{"a":[]}'] * 600) + "]}",
]
FIELDS = {
    "id": f'"{UUID}"',
    "payload": '{"n":1}',
    "v": str(FORMAT),
    "topic": '"t"',
    "producer_id": '"p"',
    "created_at": '"2026-01-01T00:00:00+00:00"',
    "headers": '{"a":"b"}',
    "dedup_key": "null",
    "priority": "0",
    "write_id": '"w"',
    "nonce": '""',
    "unknown": "1",
}


@pytest.mark.parametrize("field", FIELDS)
def test_each_odd_value_is_read_as_in_a_single_message(field: str) -> None:
    """In every field, and once more behind a good value of the same name, or before it."""
    for value in ODD:
        others = {**FIELDS}
        good = others.pop(field)
        rest = ",".join(f'"{name}":{other}' for name, other in others.items() if name != "unknown")
        for given in (
            f'"{field}":{value}',
            f'"{field}":{good},"{field}":{value}',
            f'"{field}":{value},"{field}":{good}',
        ):
            line = f"{{{given},{rest}}}".encode()
            assert outcome_of(line) == outcome_as_single(line), line[:200]


def test_each_odd_value_within_a_payload_is_read_as_in_a_single_message() -> None:
    """Also in a list, and as an object's last value."""
    for value in ODD:
        for payload in (f'{{"a":{value}}}', f'{{"a":[1,{value},2]}}', f'{{"a":{{"b":{value}}},"c":{value}}}'):
            line = f'{{"id":"{UUID}","payload":{payload}}}'.encode()
            assert outcome_of(line) == outcome_as_single(line), line[:200]


LINES_OF_OTHERS = [
    *(b"", b" ", b"{}", b"[]", b"null", b"1", b'"a"', b"\xff", b"\xef\xbb\xbf", b"{", b"[" * 100_000, b"\x00"),
    *(b'{"a":' * 100_000, b'{"id":"a"}', b'{"payload":{}}', b'{"id":"a","payload":{}}x'),
    *(b'\xef\xbb\xbf{"id":"a","payload":{}}', b' \t\r\n{ "id" : "a" , "payload" : { } } '),
    *(b'{"id":"a","payload":{"\xff":1}}', b'{"id":"a","payload":{"a":"\xed\xa0\x80"}}', b'{"id":"a","\xff":{}}'),
    '{"id":"a","payload":{}}'.encode("utf-16"),
]


def test_other_lines_are_read_as_single_messages() -> None:
    """A line that is not JSON, or has half a message, is no more and no less than an object with this body."""
    for line in LINES_OF_OTHERS:
        assert outcome_of(line) == outcome_as_single(line), line[:200]


def test_a_newer_line_is_named() -> None:
    """It is not garbage: a process of that version can read it."""
    with pytest.raises(CompatibilityError, match=f"format {FORMAT + 1}"):
        read_entry(entry_line_of({}).replace(f'"v":{FORMAT}'.encode(), f'"v":{FORMAT + 1}'.encode()), KEY)


def test_escaped_surrogates_are_read_as_in_a_single_message() -> None:
    """Two halves are a character. A half alone is not text, whatever is beside it."""
    parts = [r"\ud800", r"\uDBFF", r"\udc00", r"\uDFFF", r"\u0041", r"\u", r"\ud8", r"\u00g0", r"\n", "x", "\xe9", ""]
    for text in itertools.product(parts, repeat=3):
        line = f'{{"id":"{UUID}","payload":{{"a":"{"".join(text)}"}}}}'.encode()
        assert outcome_of(line) == outcome_as_single(line), line


def test_both_ways_of_reading_agree() -> None:
    """Of thousands of made-up lines, what is read quickly is what the other way reads, and the errors are the same."""
    chance = random.Random(7)  # noqa: S311 - repeatable
    quickly = refused = 0
    for _ in range(6_000):
        line = _made_up(chance)
        if chance.random() < 0.4:
            line = mutated(line, chance)
        outcome = outcome_as_single(line)
        assert outcome_of(line) == outcome, line[:500]
        quickly += pack._read_quickly(line) is not None
        refused += "Error" in outcome
    assert quickly > 1_000
    assert refused > 1_000


def _made_up(chance: random.Random) -> bytes:
    """Return the line of an envelope with a few things that others would not write."""
    names = [name for name in FIELDS if name in {"id", "payload"} or chance.random() < 0.6]
    if chance.random() < 0.7 and "unknown" in names:
        names.remove("unknown")
    if chance.random() < 0.1:
        names.append(chance.choice(list(FIELDS)))
    if chance.random() < 0.05:
        names.remove(chance.choice(names))
    chance.shuffle(names)
    space = chance.choice(["", "", " ", "\n\t"])
    fields = []
    for name in names:
        value = FIELDS[name]
        if name == "payload":
            value = _made_up_value(chance, 4, odd=chance.choice([0, 0, 0.02]))
            value = value if chance.random() < 0.05 else f'{{"p":{value}}}'
        elif chance.random() < 0.03:
            value = chance.choice(ODD)
        fields.append(f'{space}"{name}"{space}:{space}{value}')
    return f"{{{','.join(fields)}{space}}}".encode()


def _made_up_value(chance: random.Random, depth: int, *, odd: float) -> str:
    """Return JSON, or with this probability at each place something that may be none."""
    if chance.random() < odd:
        return chance.choice(ODD)
    inner = [_made_up_value(chance, depth - 1, odd=odd) for _ in range(chance.randrange(4))] if depth else []
    match chance.randrange(6):
        case 0 if depth:
            made = f"[{','.join(inner)}]"
        case 1 if depth:
            made = "{" + ",".join(f'"{chance.choice("abcö")}":{value}' for value in inner) + "}"
        case 2:
            digits = "".join(chance.choices("0123456789", k=chance.choice([1, 3, 17, 18, 19, 20, 40])))
            made = f"{chance.choice(['', '-'])}{int(digits)}"
        case 3:
            digits = "".join(chance.choices("0123456789", k=chance.choice([1, 16, 17, 30, 200])))
            made = f"{int(digits)}.{digits}e{chance.randrange(-330, 310)}"
        case 4:
            made = repr(struct.unpack("<d", chance.randbytes(8))[0]).replace("nan", "0").replace("inf", "1e5")
        case _:
            kinds = [chance.randrange(32), chance.randrange(128), 0xF6, 0x1F600]
            made = json.dumps("".join(map(chr, chance.choices(kinds, k=3))), ensure_ascii=chance.random() < 0.1)
    return made


# -- writing a line


def test_a_line_has_the_bytes_of_a_single_message() -> None:
    """It is what the publisher stores in an object of its own, byte for byte."""
    chance = random.Random(3)  # noqa: S311 - repeatable
    texts = ["", "a", 'quote " and \\', "\n\r\t\b\f", "\x00\x1f\x7f", "ö€😀", "</script>", "\u2028"]
    for _ in range(500):
        payload = {chance.choice(texts): [chance.choice(texts), chance.random(), None, {"b": 1, "a": 2}]}
        headers = {chance.choice(texts): chance.choice(texts) for _ in range(chance.randrange(4))}
        of = {name: chance.choice(texts) for name in ("topic", "producer_id", "created_at")}
        message_id = chance.choice([UUID, *texts])
        single = Envelope.model_construct(id=message_id, payload=payload, headers=headers, **of)  # type: ignore[arg-type]
        line = entry_line(id=message_id, **of, payload_json=canonical(payload), headers=headers)
        assert line == single.encode()
    assert Envelope(id=UUID, topic="t", producer_id="p", created_at="c", payload={"n": 1}).encode() == entry_line(
        id=UUID, topic="t", producer_id="p", created_at="c", payload_json=b'{"n":1}', headers={}
    )


def test_a_buried_message_has_an_id_of_its_own() -> None:
    """It is a uuid, the same at every attempt, and another one for each message of each pack."""
    ids = {letter_id(each, number) for each in (UUID, str(uuid.UUID(int=9))) for number in range(1000)}

    assert len(ids) == 2000
    assert {str(uuid.UUID(each)) for each in ids} == ids
    assert letter_id(UUID, 7) in ids

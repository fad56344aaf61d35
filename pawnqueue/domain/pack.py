"""The format of a pack (``docs/protocol.md``, section 1): envelopes as lines of JSON, in frames of zstd."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from json.encoder import encode_basestring as to_json_text
from typing import Annotated, Any, Final, Literal

import msgspec
import zstandard

from pawnqueue.domain.bounds import LONGEST_MESSAGE_ID_BYTES, MOST_COUNT, MOST_PAYLOAD_DEPTH, is_deeper
from pawnqueue.domain.envelope import Envelope
from pawnqueue.domain.layout import is_write_id
from pawnqueue.domain.numbers import MAX_PACK_MESSAGES
from pawnqueue.domain.record import FORMAT, UnreadableRecordError, to_json
from pawnqueue.domain.uuids import named_uuid

#: Of all lines of a pack together, with their newlines. A body that expands to more is garbage.
MAX_PACK_BYTES: Final = 64 * 1024**2
#: The largest object that is downloaded as a pack. What cannot be compressed grows by less than this.
MAX_STORED_PACK_BYTES: Final = MAX_PACK_BYTES + 1024**2
#: How many messages are in a frame. A ranged read of one message reads one frame.
FRAME_MESSAGES: Final = 100

_LEVEL: Final = 3
#: What every decoder of zstd has to bear, by its specification. A larger window is garbage.
_MAX_WINDOW_BYTES: Final = 8 * 1024**2
#: Blocks and skippable frames in a body. A pack of ours has fewer than 700: one for each 128 KiB and for each frame.
_MAX_BLOCKS: Final = 16_384
_MAX_HEADER_BYTES: Final = 18
_CHECKSUM_BYTES: Final = 4

_U32: Final = struct.Struct("<I")
_TWO_U32: Final = struct.Struct("<II")
_U24: Final = struct.Struct("<HB")
_FOOTER: Final = struct.Struct("<IBI")

_FRAME: Final = 0xFD2FB528
_SKIPPABLE: Final = 0x184D2A50  # and the fifteen numbers behind it
_SEEK_TABLE: Final = 0x184D2A5E
_SEEKABLE: Final = 0x8F92EAB1
_RLE_BLOCK: Final = 1  # its size is what it expands to: one byte is stored


def pack_body(lines: Sequence[bytes]) -> bytes:
    """Return the body of a pack.

    :param lines: envelopes, each without a newline.
    :raises ValueError: the bounds of a pack do not allow them.
    """
    if not 0 < len(lines) <= MAX_PACK_MESSAGES or sum(map(len, lines)) + len(lines) > MAX_PACK_BYTES:
        raise ValueError("these lines are not within the bounds of a pack")
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    frames = []
    sizes = []
    for first in range(0, len(lines), FRAME_MESSAGES):
        chunk = lines[first : first + FRAME_MESSAGES]
        text = b"\n".join([*chunk, b""])
        if text.count(b"\n") != len(chunk):
            raise ValueError("a line of a pack has a newline in it")
        frames.append(compressor.compress(text))
        sizes.append(_TWO_U32.pack(len(frames[-1]), len(text)))
    table = b"".join([*sizes, _FOOTER.pack(len(frames), 0, _SEEKABLE)])
    return b"".join([*frames, _TWO_U32.pack(_SEEK_TABLE, len(table)), table])


def lines_of(body: bytes, count: int, key: str) -> list[bytes]:
    """Return the lines of a pack, each without its newline.

    ⚑ §1: whatever the body is, it takes no more memory than twice ``MAX_PACK_BYTES``.

    :raises UnreadableRecordError: it is not the body of a pack with this many messages.
    """
    try:
        text = b"".join(_expand(body)) if count <= MAX_PACK_MESSAGES else b""
    except (zstandard.ZstdError, struct.error, _NotFramesError):
        text = b""
    if not text.endswith(b"\n") or text.count(b"\n") != count:
        raise UnreadableRecordError(f"{key} is not a pack of {count} messages")
    lines = text.split(b"\n")
    lines.pop()
    return lines


class _NotFramesError(ValueError):
    """A body that is not a sequence of whole zstd frames within the bounds of a pack."""


def _expand(body: bytes) -> list[bytes]:
    """Return what the frames of a body expand to."""
    if len(body) > MAX_STORED_PACK_BYTES:
        raise _NotFramesError
    # Threads cannot share one.
    decompressor = zstandard.ZstdDecompressor()
    parts = []
    room = MAX_PACK_BYTES
    for frame, header in _frames_in(body):
        # The decompressor allocates what a header says.
        says_size = header.content_size != zstandard.CONTENTSIZE_UNKNOWN
        if header.window_size > _MAX_WINDOW_BYTES or (says_size and header.content_size > room):
            raise _NotFramesError
        part = decompressor.decompress(frame, max_output_size=room)
        if not part:  # a frame that says that it is empty is not even looked into
            raise _NotFramesError
        parts.append(part)
        room -= len(part)
    return parts


def _frames_in(body: bytes) -> Iterator[tuple[bytes, zstandard.FrameParameters]]:
    """Yield each frame that has content, and what its header says.

    The decompressor does not tell where a frame ends, and some of its ways accept half a frame.
    """
    place = blocks = 0
    while place < len(body):
        (magic,) = _U32.unpack_from(body, place)
        if magic & ~0xF == _SKIPPABLE:
            blocks += 1
            place += _TWO_U32.size + _U32.unpack_from(body, place + _U32.size)[0]
        elif magic == _FRAME:
            start = place
            beginning = body[place : place + _MAX_HEADER_BYTES]
            header = zstandard.get_frame_parameters(beginning)
            place += zstandard.frame_header_size(beginning)
            is_last = 0
            while not is_last and blocks < _MAX_BLOCKS:
                blocks += 1
                low, high = _U24.unpack_from(body, place)
                is_last, kind, size = low & 1, low >> 1 & 3, (high << 16 | low) >> 3
                place += _U24.size + (1 if kind == _RLE_BLOCK else size)
            place += _CHECKSUM_BYTES if header.has_checksum else 0
            yield body[start:place], header
        else:
            raise _NotFramesError
        if blocks >= _MAX_BLOCKS or place > len(body):
            raise _NotFramesError


class PackEntry(msgspec.Struct, frozen=True, gc=False):  # a frozen dataclass takes five times as long to make
    """One message of a pack: what a consumer sees of its line."""

    id: str
    producer_id: str
    created_at: str
    payload: dict[str, Any]
    headers: dict[str, str]
    write_id: str = ""
    priority: int = 0
    dedup_key: str | None = None


class Line(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An envelope that needs no second look. It has narrower bounds than :class:`Envelope`."""

    # A character takes at most six bytes in JSON.
    id: Annotated[str, msgspec.Meta(max_length=LONGEST_MESSAGE_ID_BYTES // 6)]
    payload: dict[str, Any]
    v: Literal[0, 1] = 0
    topic: str = ""
    producer_id: str = ""
    created_at: str = ""
    headers: dict[str, str] = {}
    dedup_key: str | None = None
    priority: Annotated[int, msgspec.Meta(ge=-MOST_COUNT, le=MOST_COUNT)] = 0
    write_id: str = ""
    nonce: str = ""


_DECODER: Final = msgspec.json.Decoder(Line)
_MSGSPEC_ERRORS: Final = (msgspec.MsgspecError, ValueError, RecursionError)
_UNDATED: Final = b'{"created_at":"",'


def read_entry(line: bytes, key: str) -> PackEntry:
    """Read one line of a pack, as :meth:`Envelope.decode` reads the body of a single message.

    :raises CompatibilityError: the line has a newer format.
    :raises UnreadableRecordError: it is not a message.
    """
    quick = _read_quickly(line)
    if quick is not None:
        write_id = quick.write_id if quick.write_id and is_write_id(quick.write_id) else ""
        return PackEntry(
            quick.id,
            quick.producer_id,
            quick.created_at,
            quick.payload,
            quick.headers,
            write_id,
            quick.priority,
            quick.dedup_key,
        )
    read = Envelope.decode(line, key)
    return PackEntry(
        read.id,
        read.producer_id,
        read.created_at,
        read.payload,
        read.headers,
        read.write_id,
        read.priority,
        read.dedup_key,
    )


def read_quickly(lines: Sequence[bytes]) -> list[Line] | None:
    """Read lines of which none needs a second look. Return None if one does."""
    try:
        read = [_DECODER.decode(line) for line in lines]
    except _MSGSPEC_ERRORS:
        return None
    long = [(line, each) for line, each in zip(lines, read, strict=True) if len(line) > 2 * MOST_PAYLOAD_DEPTH]
    return None if any(_is_too_deep(line, each) for line, each in long) else read


def _read_quickly(line: bytes) -> Line | None:
    """Read a line in a sixth of the time, or return None where only :class:`Envelope` can judge it.

    ⚑ §1: a line that is read here is read in the same way by :class:`Envelope`. msgspec refuses what is not strict JSON
    (NaN, ``1e999``, half of a surrogate pair), except in fields that it skips. So it may skip none.
    """
    try:
        read = _DECODER.decode(line)
    except _MSGSPEC_ERRORS:
        return None
    return None if _is_too_deep(line, read) else read


def _is_too_deep(line: bytes, read: Line) -> bool:
    # A level takes two bytes, an opening and a closing bracket.
    may_be_deep = len(line) > 2 * MOST_PAYLOAD_DEPTH and line.count(b"{") + line.count(b"[") > MOST_PAYLOAD_DEPTH
    return may_be_deep and is_deeper(read.payload, MOST_PAYLOAD_DEPTH)


def entry_line(  # noqa: PLR0913 - an envelope has these fields
    *,
    id: str,  # noqa: A002 - the field's name
    topic: str,
    producer_id: str,
    created_at: str,
    payload_json: bytes,
    headers: Mapping[str, str],
    write_id: str = "",
    priority: int = 0,
    dedup_key: str | None = None,
) -> bytes:
    """Return the line of a message to be published: the bytes that its envelope would have in an object of its own.

    :param payload_json: the payload as canonical JSON.
    """
    before = f"{_start_of_line(created_at, dedup_key, headers)}{to_json_text(id)}{_BEHIND_ID}"
    end = _end_of_line(topic, producer_id, write_id, priority)
    return b"".join([before.encode("utf-8", "replace"), payload_json, end])


def staged_lines(
    ids: Iterable[str],
    contents: Iterable[tuple[bytes, Mapping[str, str]]],
    *,
    topic: str,
    producer_id: str,
    write_id: str,
) -> list[bytes]:
    """Return the lines of messages of a write. They have no time: the one in the name of their pack or message counts.

    :param ids: UUIDs.
    :param contents: of each message the payload as canonical JSON, and the headers.
    """
    without_headers = _start_of_line("", None, {}).encode()
    end = _end_of_line(topic, producer_id, write_id, 0)
    return [
        b'%b"%b"%b%b%b'
        % (
            _start_of_line("", None, headers).encode("utf-8", "replace") if headers else without_headers,
            id_.encode(),
            _BEHIND_ID.encode(),
            payload_json,
            end,
        )
        for id_, (payload_json, headers) in zip(ids, contents, strict=True)
    ]


#: What is between a message's id and its payload.
_BEHIND_ID: Final = ',"nonce":"","payload":'


def _start_of_line(created_at: str, dedup_key: str | None, headers: Mapping[str, str]) -> str:
    text = to_json_text
    return (
        f'{{"created_at":{text(created_at)},"dedup_key":{"null" if dedup_key is None else text(dedup_key)},'
        f'"headers":{to_json(headers) if headers else "{}"},"id":'
    )


@lru_cache(maxsize=64)
def _end_of_line(topic: str, producer_id: str, write_id: str, priority: int) -> bytes:
    """Return what the lines of one publisher end with. It is made once, as that takes a tenth of publishing."""
    text = to_json_text
    end = f',"priority":{priority},"producer_id":{text(producer_id)},"topic":{text(topic)},"v":{FORMAT}'
    end += f',"write_id":{text(write_id)}}}' if write_id else "}"
    return end.encode("utf-8", "replace")


def dated(line: bytes, created_at: str) -> bytes:
    """Return a line with a time, if it was staged, and so has none. Outside its pack no name tells its time."""
    return line.replace(_UNDATED, f'{{"created_at":"{created_at}",'.encode(), 1) if line.startswith(_UNDATED) else line


def letter_id(pack_uuid: str, number: int) -> str:
    """Return the id under which a message of a pack is buried: the same one at every attempt."""
    return named_uuid(f"pack\x00{pack_uuid}\x00{number}")

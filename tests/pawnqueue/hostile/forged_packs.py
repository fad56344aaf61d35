"""Bodies of packs that nobody of ours writes: frames made by hand, bombs, and packs with damage."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Final

import zstandard

from pawnqueue.domain.pack import MAX_PACK_BYTES

CHECKED: Final = zstandard.ZstdCompressor(write_checksum=True)
STREAMED: Final = zstandard.ZstdCompressor(write_content_size=False)
SKIPPABLE: Final = struct.pack("<II", 0x184D2A50, 5) + b"notes"


def frame(content_size: int | None, *blocks: tuple[int, int, bytes]) -> bytes:
    """Make a frame of blocks by hand: each is its type, the size that it says, and what is stored of it."""
    header = b"\x00\x60" if content_size is None else b"\xc0\x60" + struct.pack("<Q", content_size)
    made = [struct.pack("<I", 0xFD2FB528), header]
    for number, (kind, size, stored) in enumerate(blocks, 1):
        made += [(size << 3 | kind << 1 | (number == len(blocks))).to_bytes(3, "little"), stored]
    return b"".join(made)


#: The types of blocks.
RAW, RLE, RESERVED = 0, 1, 3
LONG = 128 * 1024
BOMBS: dict[str, Callable[[], bytes]] = {
    "of a known size": lambda: frame(LONG * 8_000, *[(RLE, LONG, b"\n")] * 8_000),
    "of an unknown size": lambda: frame(None, *[(RLE, LONG, b"\n")] * 8_000),
    "of frames of a known size": lambda: CHECKED.compress(b"\n" * LONG) * 8_000,
    "of frames of an unknown size": lambda: STREAMED.compress(b"\n" * LONG) * 8_000,
    "of newlines": lambda: CHECKED.compress(b"\n" * MAX_PACK_BYTES),
    "of small frames": lambda: CHECKED.compress(b"\n") * 4_000_000,
    "of empty blocks": lambda: frame(None, (RAW, 0, bytes(60_000_000)), (RAW, 1, b"\n")),
    "of skippable frames": lambda: struct.pack("<II", 0x184D2A5F, 0) * 8_000_000,
    "that says it is empty": lambda: frame(0, *[(RLE, LONG, b"\n")] * 8_000),
    "that says it has 4 EiB": lambda: frame(2**62, (RAW, 1, b"\n")),
    "that says it has 64 MiB": lambda: frame(MAX_PACK_BYTES, (RAW, 1, b"\n")),
    "with a reserved block": lambda: frame(None, (RESERVED, 1, b"\n")),
}


def mutated(body: bytes, chance: random.Random) -> bytes:
    """Return the bytes with one to three changes."""
    changed = bytearray(body)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        place = chance.randrange(min(24, len(changed)) if chance.random() < 0.3 else len(changed))
        length = chance.choice([1, 1, 2, 4, 50])
        match chance.randrange(6):
            case 0:
                changed[place] ^= 1 << chance.randrange(8)
            case 1:
                changed[place] = chance.randrange(256)
            case 2:
                del changed[max(place, 1) : place + length]
            case 3:
                changed[place:place] = chance.randbytes(length)
            case 4:
                changed[place:place] = changed[place : place + length]
            case _:
                del changed[place + 1 :]
    return bytes(changed)

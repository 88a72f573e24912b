"""The mark of an HDF5 file that is open for writing, which stays if the program is killed.

HDF5 refuses to open such a file for writing until the mark is cleared, as its tool ``h5clear -s``
does. The mark is a byte of the superblock, version 3, whose last four bytes are a checksum (HDF5
File Format Specification 3.0, II.A; lookup3 by B. Jenkins).
"""

from __future__ import annotations

import struct
from pathlib import Path

from ..paths import HDF5_SIGNATURE

_VERSION_AT, _FLAGS_AT, _CHECKSUM_AT = 8, 11, 44
_WORD = 0xFFFFFFFF


def clear_write_flag(path: Path) -> None:
    """Clear the mark of a file that no program has open, if it is there.

    Files of other versions, and those with addresses of other than eight bytes, have none.
    """
    with path.open("r+b") as file:
        block = bytearray(file.read(_CHECKSUM_AT))
        if _is_marked(block):
            block[_FLAGS_AT] = 0
            file.seek(0)
            file.write(bytes(block) + struct.pack("<I", _lookup3(bytes(block))))


def has_write_flag(path: Path) -> bool:
    """True if a file has the mark."""
    with path.open("rb") as file:
        return _is_marked(file.read(_CHECKSUM_AT))


def _is_marked(block: bytes | bytearray) -> bool:
    """True if the begin of a superblock has the mark."""
    return (
        len(block) == _CHECKSUM_AT
        and block.startswith(HDF5_SIGNATURE)
        and tuple(block[_VERSION_AT:_FLAGS_AT]) == (3, 8, 8)
        and block[_FLAGS_AT] != 0
    )


def _lookup3(data: bytes) -> int:
    """Jenkins' hash of bytes, from 0."""
    a = b = c = (0xDEADBEEF + len(data)) & _WORD
    n_blocks = -(-len(data) // 12)
    words = struct.unpack(f"<{3 * n_blocks}I", data.ljust(12 * n_blocks, b"\0"))
    for first in range(0, len(words), 3):
        a, b, c = (
            (x + y) & _WORD for x, y in zip((a, b, c), words[first : first + 3], strict=True)
        )
        if first + 3 < len(words):
            for turn in (4, 6, 8, 16, 19, 4):
                a = (a - c) & _WORD
                a ^= _turned(c, turn)
                c = (c + b) & _WORD
                a, b, c = b, c, a
    for turn in (14, 11, 25, 16, 4, 14, 24):
        c ^= b
        c = (c - _turned(b, turn)) & _WORD
        a, b, c = b, c, a
    return b  # of the last step


def _turned(word: int, n: int) -> int:
    return (word << n | word >> (32 - n)) & _WORD

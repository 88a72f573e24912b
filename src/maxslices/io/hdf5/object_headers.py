"""Headers of objects of HDF5 files, read without the HDF5 library.

See "Data Object Headers" in the HDF5 File Format Specification 3.0 (IV.A).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import h5py

_VERSION_2, _CONTINUATION = b"OHDR", b"OCHK"
"""What a header of version 2 begins with, and another part of it."""
_HEAD_1, _HEAD_2, _HEAD_2_ORDERED = map(struct.Struct, ("<HHB3x", "<BHB", "<BHB2x"))
"""Type, bytes and flags of a message."""
_LAYOUT, _CONTINUED = 0x08, 0x10
"""Types of messages: the layout of the data, and the place of another part."""
_VIRTUAL, _SHARED = 3, 0b10
"""Class of a layout, and the flag of a message that is elsewhere."""
_FIRST_BYTES = 512
"""What is read at first, as HDF5 does: most headers have less."""
_MAX_PARTS, _MAX_PART_BYTES = 64, 2**20
"""Most parts of a header and bytes of one: another is made for attributes that came later."""
_MAX_FILES = 16
"""Most files that are remembered."""
_known: dict[int, ObjectHeaders] = {}
"""Number that HDF5 gives to an open file, and to no other -> the headers in it."""


def headers_of(item: h5py.HLObject) -> ObjectHeaders:
    """Headers of the objects of the file that an object is in."""
    number = h5py.h5i.get_file_id(item.id).id
    if number not in _known:
        if len(_known) >= _MAX_FILES:
            _known.clear()
        _known[number] = ObjectHeaders(item.file)
    return _known[number]


class ObjectHeaders:
    """Headers of the objects of an open file.

    Attributes
    ----------
    file_number : int
        Number of the file, which tells its objects from those of others.
    """

    def __init__(self, file: h5py.File) -> None:
        self.file_number: int = h5py.h5o.get_info(file.id).fileno
        self._fd = file.id.get_vfd_handle() if file.driver == "sec2" else None
        settings = file.id.get_create_plist()
        self._base = settings.get_userblock()
        self._n_offset_bytes, self._n_length_bytes = settings.get_sizes()

    def may_be_virtual(self, address: int) -> bool:
        """False if an object is surely no data set that is made of others."""
        try:
            return any(
                kind == _LAYOUT and (flags & _SHARED or data[1] == _VIRTUAL)
                for kind, flags, data in self._messages(address)
            )
        except (ValueError, IndexError, struct.error, OSError):
            return True  # a header that only HDF5 understands

    def _messages(self, address: int) -> Iterator[tuple[int, int, bytes]]:
        """Iterate over the messages of a header: type, flags and data."""
        start = self._read(address, _FIRST_BYTES)
        if start[0] == 1:
            head, begin, margin = _HEAD_1, 16, slice(None)
            size = int.from_bytes(start[8:12], "little")
        elif start.startswith(_VERSION_2):
            flags = start[5]
            head = _HEAD_2_ORDERED if flags & 0b100 else _HEAD_2
            at = 6 + (16 if flags & 0b100000 else 0) + (4 if flags & 0b10000 else 0)
            begin = at + (1 << (flags & 0b11))
            size = int.from_bytes(start[at:begin], "little")
            margin = slice(len(_CONTINUATION), -4)  # of other parts, with a checksum
        else:
            raise ValueError("another version")
        whole = begin + size <= len(start)
        parts = [start[begin : begin + size] if whole else self._read(address + begin, size)]
        for part in parts:
            at = 0
            while at + head.size <= len(part):
                kind, n_bytes, flags = head.unpack_from(part, at)
                at += head.size + n_bytes
                data = part[at - n_bytes : at]
                yield kind, flags, data
                if kind == _CONTINUED:
                    parts.append(self._part(data)[margin])
                    if len(parts) > _MAX_PARTS:
                        raise ValueError("too many parts")

    def _part(self, place: bytes) -> bytes:
        """Another part of a header."""
        middle, end = self._n_offset_bytes, self._n_offset_bytes + self._n_length_bytes
        address, n_bytes = place[:middle], place[middle:end]
        return self._read(int.from_bytes(address, "little"), int.from_bytes(n_bytes, "little"))

    def _read(self, address: int, n_bytes: int) -> bytes:
        if self._fd is None or n_bytes > _MAX_PART_BYTES or address > 2**62:
            raise ValueError("nothing that can be read")
        return os.pread(self._fd, n_bytes, self._base + address)

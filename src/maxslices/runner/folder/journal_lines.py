"""Lines of a journal: JSON with a checksum, which also covers all lines before."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

_SEALED = re.compile(rb'(\{.*),"crc":([0-9]{1,10})\}', re.DOTALL)


def seal(entry: Mapping[str, Any], before: int) -> tuple[bytes, int]:
    """Write an entry as a line.

    Parameters
    ----------
    entry : mapping
        Plain values, at least one.
    before : int
        Checksum of the line before; 0 for the first.

    Returns
    -------
    bytes
        The line.
    int
        Its checksum.
    """
    body = json.dumps(entry, separators=(",", ":")).encode()[:-1]
    checksum = zlib.crc32(body, before)
    return b'%s,"crc":%d}\n' % (body, checksum), checksum


def unseal(lines: Iterable[bytes]) -> tuple[list[dict[str, Any]], int]:
    """Read lines up to one that is damaged, or that has lost the line before.

    Returns
    -------
    list of dict
        Their entries.
    int
        Checksum of the last of them.
    """
    entries: list[dict[str, Any]] = []
    checksum = 0
    for line in lines:
        found = _SEALED.fullmatch(line)
        if found is None or zlib.crc32(found[1], checksum) != int(found[2]):
            break
        checksum = int(found[2])
        entries.append(json.loads(found[1] + b"}"))
    return entries, checksum

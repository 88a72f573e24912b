"""The chain of a TIFF's pages, followed to its end.

Each page says where the next one begins (TIFF 6.0, "Image File Directory"). tifffile reads a stack
that is cut off as one of fewer pages, with a line in its log at most.
"""

from __future__ import annotations

import os
from pathlib import Path

from ...errors import SourceError


def count_pages(path: Path) -> int:
    """Number of pages of a TIFF, by its chain.

    Raises
    ------
    SourceError
        If the chain leaves the file or comes back to a page, or it is no TIFF.
    """
    with path.open("rb") as file:
        fd = file.fileno()
        size = os.fstat(fd).st_size
        head = os.pread(fd, 16, 0)
        order = {b"II": "little", b"MM": "big"}.get(head[:2])
        version = int.from_bytes(head[2:4], order) if order else 0  # type: ignore[arg-type]
        if version not in (42, 43):
            raise SourceError(f"{path}: is not a TIFF, whatever its name says")
        # The number of tags, a tag, and an offset take so many bytes.
        n_count, n_tag, n_offset = (8, 20, 8) if version == 43 else (2, 12, 4)

        def number(at: int, n_bytes: int) -> int:
            held = os.pread(fd, n_bytes, at) if at < size else b""
            if len(held) < n_bytes:
                raise SourceError(
                    f"{path}: is cut off or damaged after {len(seen)} pages: page {len(seen)} is "
                    f"to be at byte {at}, and the file has {size}: copy it again"
                )
            return int.from_bytes(held, order)  # type: ignore[arg-type]

        seen: set[int] = set()
        offset = number(8 if version == 43 else 4, n_offset)
        while offset:
            if offset in seen:
                raise SourceError(
                    f"{path}: is damaged: after page {len(seen) - 1} comes one before it: copy it "
                    "again"
                )
            n_tags = number(offset, n_count)
            following = number(offset + n_count + n_tag * n_tags, n_offset)
            seen.add(offset)
            offset = following
    return len(seen)

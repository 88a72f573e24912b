"""Files in folders that others may write to: a name that somebody planted there is not followed.

Who may write to a folder may put a symbolic or a hard link where a program is to write, and have it
write elsewhere with its own rights. So files are made anew under names that nobody knows before,
and then renamed, which replaces a link and leaves its target alone.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from ..core.units import readable
from ..errors import StoreError


def replace_text(path: Path, text: str) -> None:
    """Replace a file's text at once: readers see the old text or the new, never a part.

    Raises
    ------
    OSError
        If it cannot be written; nothing is left behind.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # O_EXCL: what is there already, a link too, is an error.
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(readable(text))
        os.replace(fresh, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(fresh)
        raise


def remove_fresh(path: Path) -> None:
    """Remove what `replace_text` left behind where it was killed."""
    for fresh in path.parent.glob(f".{path.name}.*"):
        if re.fullmatch(r"[0-9a-f]{16}", fresh.suffix[1:]) and not fresh.is_dir():
            fresh.unlink(missing_ok=True)


def check_one_name(path: Path, found: os.stat_result) -> None:
    """Check that a file that is written to again has no other name.

    Raises
    ------
    StoreError
        If it has: a hard link, through which a file of somebody else would be written to.
    """
    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        raise StoreError(
            f"{path}: has another name too (a hard link), and what has it would be changed: copy "
            "the file to one of its own, or remove it and start anew"
        )

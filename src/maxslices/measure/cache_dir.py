"""Folder that keeps measurements between programs, and how files are written there."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

FOLDER_VARIABLE = "MAXSLICES_RECORDS"
"""Environment variable that names the folder of the records."""


def records_folder() -> Path:
    """Folder of the records: the one that the environment names, or one in the user's cache."""
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("maxslices", appauthor=False) / "records"


def replace_text(path: Path, text: str) -> None:
    """Replace a file's text at once: readers see the old text or the new, never a part."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise

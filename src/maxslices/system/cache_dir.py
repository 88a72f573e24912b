"""Folder for measurements that are reused by later processes."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from .files import read_small_text, replace_text

FOLDER_VARIABLE = "MAXSLICES_RECORDS"
"""Environment variable for the folder of the records."""
_MOST_BYTES = 2**26
"""Size limit of a file, so that a wrong file does not fill the memory: 64 MiB, as for the report of
an earlier run."""


def records_folder() -> Path:
    """Folder of the records, from the environment or in the user's cache."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        return Path(folder).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):  # relative paths are ignored, as in the XDG specification
        cache = os.path.expanduser("~/.cache")
    return Path(cache) / "maxslices" / "records"


def cache_file(folder: str, conditions: Any) -> Path:
    """File for measurements under some conditions. Its name is a hash of these."""
    text = json.dumps(conditions, sort_keys=True)
    return records_folder() / folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def read_cached(path: Path) -> Any:
    """Read a file of `keep`; None if it is missing or damaged."""
    with suppress(OSError, ValueError):
        return json.loads(read_small_text(path, _MOST_BYTES))
    return None


def keep(path: Path, content: Any) -> None:
    """Write measurements. Errors are ignored, as the next process can measure again."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(content))

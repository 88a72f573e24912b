"""Folder that keeps measurements between programs."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from .files import read_small_text, replace_text

FOLDER_VARIABLE = "MAXSLICES_RECORDS"
"""Environment variable that names the folder of the records."""
_MOST_BYTES = 2**26
"""Most of a file that is read, so that none of another kind in its place fills memory: 64 MiB,
chosen as for the report of an earlier run."""


def records_folder() -> Path:
    """Folder of the records: the one that the environment names, or one in the user's cache."""
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):  # the XDG specification has relative paths ignored
        cache = os.path.expanduser("~/.cache")
    return Path(cache) / "maxslices" / "records"


def cache_file(folder: str, conditions: Any) -> Path:
    """File of what was measured under some conditions, of which its name is a hash."""
    text = json.dumps(conditions, sort_keys=True)
    return records_folder() / folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def read_cached(path: Path) -> Any:
    """Read what `keep` wrote; None if it is not there, or damaged: then it is measured again."""
    with suppress(OSError, ValueError):
        return json.loads(read_small_text(path, _MOST_BYTES))
    return None


def keep(path: Path, content: Any) -> None:
    """Write what was measured; if that cannot be done, the next program measures again."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(content))

"""The page of a plan, written where the user says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import StoreError, UsageError


def check_page(path: str) -> Path:
    """Check that a page can be written there, before a plan is made.

    Raises
    ------
    UsageError
        If the name is not that of a page; it might be that of a scan.
    StoreError
        If nothing can be written there.
    """
    page = Path(path)
    if page.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--html {path}: give a name ending in .html")
    if page.is_dir():
        raise StoreError(f"cannot write {path}: it is a folder")
    if not page.parent.is_dir():
        raise StoreError(f"cannot write {path}: there is no folder {page.parent}")
    if not os.access(page.parent, os.W_OK):
        raise StoreError(f"cannot write {path}: Permission denied")
    return page


def write_page(page: Path, plan: Mapping[str, Any]) -> None:
    """Write the page of a plan, given as plain values.

    Raises
    ------
    StoreError
        If it cannot be written.
    """
    from ..report_page.page import plan_page
    from ..system.fresh_files import replace_text

    try:
        replace_text(page, plan_page(plan))
    except OSError as error:
        raise StoreError(f"cannot write {page}: {error.strerror}") from None

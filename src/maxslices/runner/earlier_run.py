"""The results of an earlier run in a folder, by its report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from ..errors import StoreError
from ..io import remove_result
from ..io.result_names import is_result_name
from ..tuning.deferred_free import close_in_background

REPORT_NAME = "report.json"
TIMELINE_NAME = "timeline.json"
PAGE_NAME = "report.html"
RECORD_NAMES = (PAGE_NAME,)
"""Files in the folder of a run that tell people of it."""


def foreign_file(path: Path) -> str:
    """Say that a file is of no run."""
    return f"{path} is there already and of no run: move it away, or choose another folder"


def results_of(report: Path) -> list[Path]:
    """Files that the report of an earlier run names, in the folder of the report."""
    try:
        earlier = json.loads(report.read_text(encoding="utf-8"))
        names = [Path(entry).name for entry in earlier["files"]]
        for name in names:
            if not is_result_name(name):
                raise ValueError(f"no run writes {name!r}")
        results = [report.parent / name for name in names]
        records = [Path(entry).name for entry in earlier.get("records", [])]
        for name in records:
            if name not in RECORD_NAMES:
                raise ValueError(f"no run writes {name!r}")
        has_timeline = earlier.get("timeline") is not None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"cannot replace the run in {report.parent}: {report.name} is not readable as a "
            f"report ({error}); remove the folder by hand"
        ) from None
    for name in RECORD_NAMES:
        if name in records:
            results.append(report.parent / name)
        elif (report.parent / name).exists():
            raise StoreError(foreign_file(report.parent / name))
    timeline = report.parent / TIMELINE_NAME
    if has_timeline:
        results.append(timeline)
    elif timeline.exists():
        raise StoreError(foreign_file(timeline))
    return results


def remove_earlier(results: Sequence[Path], report: Path | None) -> None:
    """Remove the results of an earlier run, then its report.

    Their names are gone at once; their disk space is freed in the background.
    """
    with ExitStack() as opened:
        files = []
        for result in results:
            if result.is_file():
                with suppress(OSError):  # one that may not be read
                    files.append(opened.enter_context(result.open("rb", buffering=0)))
            remove_result(result)
        if report is not None:
            remove_result(report)
        opened.pop_all()
    close_in_background(files)

"""What is kept of a run that fails: after an hour it may be most of the data."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from ..errors import MethodError, StoreError
from ..model.json_values import plain
from ..planner import Plan
from .results_folder import RunFolder
from .run_report import SectionReport


def keep_finished(
    error: MethodError,
    folder: RunFolder,
    counts: Sequence[int],
    plan: Plan,
    reports: Sequence[SectionReport],
) -> MethodError:
    """Keep results as far as they go, with a report that says that the run failed.

    Results of sections that are complete get their names. The one under way is cut to the
    slices that are done, and is called ``<name>.incomplete``. Where there is nothing to keep,
    there is no report.

    Parameters
    ----------
    error : MethodError
        What ended the run.
    folder : RunFolder
        Has the results.
    counts : sequence of int
        For each of them, in the order in which they were made, its slices that are done.
    plan : Plan
        What was run.
    reports : sequence of SectionReport
        The sections that are complete.

    Returns
    -------
    MethodError
        To be raised: the same with what was kept.
    """
    try:
        kept = folder.keep_finished(counts)
        if not kept:
            return error
        entries = {
            "failed": str(error),
            "sections": [plain(dataclasses.asdict(report)) for report in reports],
            "files": [str(path) for path, _ in kept],
            "slices": [count for _, count in kept],
            "timeline": None,
            "plan": plan.to_dict(),
        }
        folder.write_failure(json.dumps(entries, indent=2))
    except StoreError as other:
        return type(error)(f"{error}; what was finished could not be kept: {other}")
    files = ", ".join(f"{path.name} ({count} slices)" for path, count in kept)
    return type(error)(f"{error}; kept in {folder.path}: {files}")

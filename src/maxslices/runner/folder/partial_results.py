"""Results that are kept when a run fails: after an hour they may be most of the data."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from ...core.json_values import plain
from ...errors import MethodError, StoreError
from ...planner import Plan
from ..report.run_report import SectionReport
from .earlier_run import LOG_NAME
from .results_in_memory import Results


def keep_finished(
    error: MethodError,
    folder: Results,
    counts: Sequence[int],
    plan: Plan,
    reports: Sequence[SectionReport],
) -> MethodError:
    """Keep finished slices, with a report that says that the run failed.

    Results of complete sections get their names. Those of the failed section are cut to the slices
    that are done and named ``<name>.incomplete``. If nothing was finished, no report is written.

    Parameters
    ----------
    error : MethodError
        Error that ended the run.
    folder : RunFolder or ResultsInMemory
        Folder with the results.
    counts : sequence of int
        Finished slices of each result, in the order in which the results were made.
    plan : Plan
        Plan that was run.
    reports : sequence of SectionReport
        Reports of the complete sections.

    Returns
    -------
    MethodError
        Error to raise: the same, with the names of what was kept; `error` itself if nothing was.
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
            "records": [] if folder.log is None else [LOG_NAME],
            "plan": plan.to_dict(),
        }
        folder.write_failure(json.dumps(entries, indent=2))
    except (StoreError, MemoryError) as other:
        why = str(other) or "memory ran out"
        return type(error)(f"{error}; what was finished could not be kept: {why}")
    files = ", ".join(f"{path.name} ({count} slices)" for path, count in kept)
    return type(error)(f"{error}; kept in {folder.path}: {files}")

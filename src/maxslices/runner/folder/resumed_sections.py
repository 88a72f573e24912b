"""Which sections of a run that was stopped are run again, and from which slice on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...planner import Plan
from .section_state import SectionState
from .unfinished_run import UnfinishedRun, store_names


class ResumedSections:
    """Decides for each section of a plan whether it runs, and whether it goes on within.

    A section runs if it is not finished, or if its output is needed and was lost: an output in
    memory ends with its process. One whose output is on disk goes on behind its last finished
    block; any other begins anew.

    Parameters
    ----------
    plan : Plan
        The plan.
    unfinished : UnfinishedRun or None
        The run that was stopped; None if this one is new.
    folder : Path or None
        Folder of the scratch files.
    """

    def __init__(self, plan: Plan, unfinished: UnfinishedRun | None, folder: Path | None) -> None:
        self._states = [SectionState() for _ in plan.sections]
        self.side_results: Sequence[tuple[int, Any]] = ()
        if unfinished is not None:
            self._states, self.side_results = unfinished.sections, unfinished.side_results
        self._is_stored = [
            state.layout is not None
            and folder is not None
            and all((folder / name).is_file() for name in store_names(number, state.layout))
            for number, state in enumerate(self._states)
        ]
        self._runs = [state.report is None for state in self._states]
        for number in reversed(range(len(self._runs) - 1)):
            if self._runs[number + 1] and not self._is_stored[number]:
                self._runs[number] = True

    @property
    def known_steps(self) -> set[int]:
        """Indices, in the pipeline, of the steps whose side results are known."""
        return {index for index, _ in self.side_results}

    def state(self, number: int) -> SectionState:
        """How far a section came."""
        return self._states[number]

    def runs(self, number: int) -> bool:
        """True if a section runs."""
        return number < len(self._runs) and self._runs[number]

    def goes_on_within(self, number: int) -> bool:
        """True if a section that runs goes on behind its last finished block."""
        is_last = number == len(self._runs) - 1
        return self._states[number].done.count > 0 and (is_last or self._is_stored[number])

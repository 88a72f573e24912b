"""Begin a run in its folder: names and disk space checked, the runs that it replaces removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import StoreError
from ...planner import Plan
from ...system.disk_space import check_absent, check_free_space, hidden_path
from .earlier_run import EarlierRun
from .folder_place import ScratchPlace
from .journal import JOURNAL_NAME, Journal
from .unfinished_files import (
    named_results,
    remove_unfinished,
    restore_hidden_names,
    unfinished_bytes,
)
from .unfinished_run import VERSION, UnfinishedRun, read_journal


@dataclass(frozen=True, slots=True)
class RunStart:
    """What is in the folder of a run before it begins."""

    folder: Path
    """The folder."""
    earlier: EarlierRun
    """The finished run that is replaced, if there is one."""
    unfinished: UnfinishedRun | None
    """The run that goes on; None if a new one begins."""
    replaced: UnfinishedRun | None
    """The unfinished run that is replaced; None without."""
    scratch: ScratchPlace
    """Where the scratch files are."""

    def begin(
        self, plan: Plan, results: Sequence[Path], result_bytes: int, header: Mapping[str, Any]
    ) -> Journal:
        """Begin the run, or go on with it; its journal.

        Parameters
        ----------
        plan : Plan
            Its plan.
        results : sequence of Path
            All files that it will name.
        result_bytes : int
            Disk space that they take at most.
        header : mapping
            What the journal keeps of the run beside its plan and its files.

        Raises
        ------
        StoreError
            If a name is taken, or the disk has not enough free space; then nothing was changed.
        """
        path = self.folder / JOURNAL_NAME
        is_beside = self.scratch.elsewhere is None
        n_bytes = result_bytes + (plan.scratch_bytes if is_beside else 0)
        going_on = self.unfinished or self.replaced
        if going_on is not None:
            again = read_journal(path)
            if again is None or again.n_lines != going_on.n_lines:
                raise StoreError(f"{path} has changed meanwhile: another run went on; try again")
            n_bytes -= unfinished_bytes(self.folder, going_on)
        if self.unfinished is not None:
            check_free_space(self.folder, n_bytes)
            self._make_scratch_folder(plan)
            if restore_hidden_names(self.folder, self.unfinished):
                self.earlier.remove_report()
            journal = Journal(path, self.unfinished.n_lines)
            journal.went_on()
            self.earlier.results = [self.folder / name for name in self.unfinished.replaces]
            return journal
        self.check_names(results)
        if not is_beside:
            check_free_space(self.scratch.path, plan.scratch_bytes)
        check_free_space(self.folder, n_bytes)  # the earlier results stay until these are whole
        self.remove_replaced()
        self._make_scratch_folder(plan)
        names = {hidden_path(each).name: each.name for each in results}
        replaces = [each.name for each in self.earlier.results]
        entry = {**header, "names": names, "replaces": replaces, "plan": plan.to_dict()}
        return Journal.create(path, {"journal": VERSION, **entry})

    def _make_scratch_folder(self, plan: Plan) -> None:
        if plan.scratch_bytes:
            self.scratch.make()

    def check_names(self, results: Sequence[Path]) -> None:
        """Check that names of results are free, or of a run that is replaced.

        Raises
        ------
        StoreError
            If one is taken.
        """
        if self.replaced is not None:
            self.earlier.add(named_results(self.folder, self.replaced))
        for path in results:
            if path not in self.earlier.results:
                check_absent(path)

    def remove_replaced(self) -> None:
        """Remove the hidden files of an unfinished run that is replaced."""
        if self.replaced is not None:
            remove_unfinished(self.folder, self.replaced)

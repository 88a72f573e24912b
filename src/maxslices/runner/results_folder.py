"""The folder of a run: replaced only on request; incomplete results never look complete."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..errors import ScanChangedError, StoreError, UsageError
from ..io import (
    Sink,
    SinkFormat,
    SinkStart,
    remove_result,
    result_path,
)
from ..model.arrays import ArraySpec
from ..planner import Plan
from ..system.disk_space import check_absent, check_free_space, hidden_path
from ..system.fresh_files import replace_text
from .earlier_run import (
    PAGE_NAME,
    RECORD_NAMES,
    REPORT_NAME,
    TIMELINE_NAME,
    foreign_file,
    remove_earlier,
    results_of,
)
from .folder_lock import FolderLock, check_usable
from .journal import JOURNAL_NAME, Journal
from .result_sinks import ResultSinks
from .run_identity import can_go_on
from .unfinished_files import (
    disk_bytes,
    named_results,
    remove_remains,
    remove_unfinished,
    restore_hidden_names,
    unfinished_bytes,
)
from .unfinished_run import VERSION, UnfinishedRun, read_journal

_SPARE_BYTES, _SPARE_SLICE_BYTES = 2**20, 2**12
"""Disk space that files take beside their data at most: header, report and journal; and a block of
ext4 or XFS for each slice of a result."""


class RunFolder:
    """Holds the results of one run; a run that is stopped can go on, or removes what it wrote.

    A journal says what is done (see `Journal`). A run that ends early stays as it is if slices of
    it are finished, and if it can be told later whether its input is the same; else it removes what
    it wrote. The results of an earlier run are removed only when those of the new one are whole.

    Parameters
    ----------
    path : path-like
        The folder; it is made if it does not exist.
    format : {"hdf5", "tiff"}
        File format of the results.
    overwrite : bool
        Whether the results of an earlier run, finished or not, are replaced.
    resume : bool
        Whether an unfinished run goes on.

    Raises
    ------
    StoreError
        If the folder holds a run already, is a file, or cannot be written to; or if it holds no
        unfinished run that could go on.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: SinkFormat = "hdf5",
        overwrite: bool = False,
        resume: bool = False,
    ) -> None:
        self.path = Path(path)
        self.identity: dict[str, Any] = {}
        """What the run is made for; see `run_identity`."""
        self.journal: Journal | None = None
        """Journal of the run, once it has begun."""
        self.is_kept = False
        """Whether the run ended unfinished and can go on."""
        self._results = ResultSinks(format)
        self._is_complete = False
        self._lock = FolderLock(self.path)
        self._made: list[Path] = []
        self._timeline: Path | None = None
        self._replaces: list[Path] = []
        check_usable(self.path)
        report = self.path / REPORT_NAME
        self._earlier = report if report.exists() else None
        found = read_journal(self.path / JOURNAL_NAME)
        self._check_wanted(found, overwrite=overwrite, resume=resume)
        self.unfinished = found if resume else None
        """The run that goes on; None if a new one begins."""
        self._replaced_run = None if resume else found
        if found is not None and resume:
            if format not in ("hdf5", found.format):
                raise UsageError(f"the unfinished run writes {found.format}, not {format}")
            self._results.format = found.format

    def _check_wanted(self, found: UnfinishedRun | None, *, overwrite: bool, resume: bool) -> None:
        """Check that what is in the folder is what the user takes it to be."""
        if overwrite and resume:
            raise UsageError("a run either goes on (resume) or is replaced (overwrite)")
        if found is not None:
            if not (overwrite or resume):
                self._lock.acquire()
                self._lock.release()
                raise StoreError(
                    f"{self.path} holds an unfinished run ({found.progress}): go on with "
                    f"`{found.command(self.path, '--resume')}`, or start anew with "
                    f"`{found.command(self.path, '--overwrite')}`"
                )
        elif resume:
            whole = "" if self._earlier is None else ", only a finished one"
            raise StoreError(f"{self.path} holds no unfinished run{whole}: leave out --resume")
        elif self._earlier is not None and not overwrite:
            raise StoreError(
                f"{self.path} already holds a run ({REPORT_NAME}): choose another folder, or "
                "allow it to be replaced with --overwrite"
            )
        elif self._earlier is None:
            for name in (TIMELINE_NAME, *RECORD_NAMES):
                if (self.path / name).exists():
                    raise StoreError(foreign_file(self.path / name))

    def check_spares(self, path: Path) -> None:
        """Check that a file or folder is none of the earlier results that will be removed.

        Raises
        ------
        StoreError
            If it is one of them or inside one, or if the earlier report cannot be read.
        """
        whole = path.resolve()
        for result in [] if self._earlier is None else results_of(self._earlier):
            if result.resolve() in (whole, *whole.parents):
                raise StoreError(
                    f"{path} is read, and --overwrite would remove it with the run in "
                    f"{self.path}: choose another folder for the results"
                )

    def __enter__(self) -> Self:
        try:
            missing = [p for p in (self.path, *self.path.parents) if not p.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            self._made = missing
        except OSError as error:
            raise StoreError(f"cannot make the folder {self.path}: {error.strerror}") from None
        self._lock.acquire()
        try:
            if self._earlier is not None and self.unfinished is None:
                self._replaces = results_of(self._earlier)
        except BaseException:
            self._lock.release()
            raise
        return self

    def begin(self, plan: Plan, names: Sequence[str]) -> None:
        """Begin the run, after all that can be checked before it; or go on with it.

        Parameters
        ----------
        plan : Plan
            Its plan.
        names : sequence of str
            Name of each result, without a suffix.

        Raises
        ------
        StoreError
            If the disk has not enough free space; then nothing was changed.
        """
        path = self.path / JOURNAL_NAME
        n_bytes = plan.result_bytes + plan.scratch_bytes
        going_on = self.unfinished or self._replaced_run
        if going_on is not None:
            again = read_journal(path)
            if again is None or again.n_lines != going_on.n_lines:
                raise StoreError(f"{path} has changed meanwhile: another run went on; try again")
            n_bytes -= unfinished_bytes(self.path, going_on)
        if self.unfinished is not None:
            check_free_space(self.path, n_bytes)
            if restore_hidden_names(self.path, self.unfinished):
                remove_result(self.path / REPORT_NAME)
                self._earlier = None
            self.journal = Journal(path, self.unfinished.n_lines)
            self.journal.went_on()
            self._replaces = [self.path / name for name in self.unfinished.replaces]
            return
        if self._replaced_run is not None:
            self._replaces += named_results(self.path, self._replaced_run)
        finals = [result_path(self.path / name, self._results.format) for name in names]
        for final in finals:
            if final not in self._replaces:
                check_absent(final)
        n_slices = sum(section.n_slices for section in plan.sections)
        self._make_room(n_bytes, _SPARE_BYTES + len(names) * n_slices * _SPARE_SLICE_BYTES)
        if self._replaced_run is not None:
            remove_unfinished(self.path, self._replaced_run)
        header = {
            "journal": VERSION,
            "identity": self.identity,
            "format": self._results.format,
            "names": {hidden_path(each).name: each.name for each in finals},
            "replaces": [each.name for each in self._replaces],
            "plan": plan.to_dict(),
        }
        self.journal = Journal.create(path, header)

    def _make_room(self, n_bytes: int, spare_bytes: int) -> None:
        """Check the disk's free space; an earlier run is removed if there is none for both.

        It is removed only if its space and `spare_bytes`, which files take beside their data, are
        surely enough.
        """
        try:
            check_free_space(self.path, n_bytes)
        except StoreError:
            n_earlier = sum(disk_bytes(each) for each in self._replaces)
            if not n_earlier:
                raise
            check_free_space(self.path, n_bytes + spare_bytes - n_earlier)
            warnings.warn(
                f"the disk of {self.path} has no room for two runs: the earlier one is removed "
                "before the new one is whole",
                stacklevel=2,
            )
            self._remove_earlier()

    def _remove_earlier(self) -> None:
        report, self._earlier = self._earlier, None
        replaced, self._replaces = self._replaces, []
        remove_earlier(replaced, report)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._leave(error)
        finally:
            self._lock.release()

    def _leave(self, error: BaseException | None) -> None:
        """Remove everything that was written, unless the run is complete or can go on."""
        journal, self.journal = self.journal, None
        if journal is not None:
            journal.close()
        if self._is_complete:
            return
        if self._goes_on(journal) and not isinstance(error, ScanChangedError):
            self._results.suspend()
            self.is_kept = True
            return
        self._results.remove()
        if self._timeline is not None:
            self._timeline.unlink(missing_ok=True)
        if journal is not None:
            remove_remains(self.path)
        for made in self._made:
            try:
                made.rmdir()
            except FileNotFoundError:  # removed or renamed meanwhile
                continue
            except OSError:  # something else is in it
                break

    def _goes_on(self, journal: Journal | None) -> bool:
        """True if the run has done what it could go on with."""
        if self.unfinished is not None or journal is None:
            return self.unfinished is not None
        return journal.is_whole or (journal.has_progress and can_go_on(self.identity))

    @property
    def way_on(self) -> str:
        """Say how a run that is kept can go on."""
        run = read_journal(self.path / JOURNAL_NAME)
        if run is None:
            return "what is done is kept"
        return (
            f"what is done is kept ({run.progress}): go on with "
            f"`{run.command(self.path, '--resume')}`"
        )

    def sink(
        self, name: str, spec: ArraySpec, slice_dim: int, *, has_slices: bool = False
    ) -> Sink | None:
        """Make the sink for a result called `name`; None if it is whole and has its name.

        If it has slices that were written before the run was stopped, it goes on.
        """
        path = result_path(self.path / name, self._results.format)
        start: SinkStart = "replace" if path in self._replaces else "new"
        is_whole = self.unfinished is not None and self.unfinished.is_whole
        return self._results.add(
            path, spec, slice_dim, "resume" if has_slices else start, is_whole=is_whole
        )

    def finish(self) -> tuple[Path, ...]:
        """Complete all results and give them their names; paths of the results.

        Only then the results of an earlier run are removed.
        """
        self._results.suspend()
        if self.journal is not None:
            self.journal.whole()
        if self._results.have_hidden_names:
            self._remove_earlier()
        self._results.finish()
        return tuple(self._results.named)

    def keep_finished(self, counts: Sequence[int]) -> list[tuple[Path, int]]:
        """Keep finished slices of a failed run; incomplete results say so in their names.

        Where an earlier run has these names, nothing is named.

        Parameters
        ----------
        counts : sequence of int
            Finished slices of each sink, in the order in which the sinks were made.

        Returns
        -------
        list of (Path, int)
            Each file that was kept, and its number of slices.
        """
        if self._earlier is not None or self._replaces:
            return []
        finished = self._results.finished(counts)
        if self.journal is not None:
            names = {hidden_path(sink.path).name: path.name for sink, path, _ in finished}
            self.journal.set_aside(names)
        return self._results.keep(finished)

    def write_failure(self, text: str) -> None:
        """Write the report of a failed run of which finished slices are kept."""
        self._results.abandon()
        self._write(REPORT_NAME, text)
        if not self._goes_on(self.journal):
            self._end_journal()

    def write_timeline(self, text: str) -> Path:
        """Write the timeline beside the results; its path."""
        self._timeline = self._write(TIMELINE_NAME, text)
        return self._timeline

    def write_report(self, text: str) -> None:
        """Write the report, which marks the folder as holding a complete run."""
        self._write(REPORT_NAME, text)
        self._end_journal()

    def write_page(self, text: str) -> None:
        """Write the page for people, after the report."""
        self._write(PAGE_NAME, text)

    def _end_journal(self) -> None:
        """Remove the journal: there is nothing to go on with."""
        self._is_complete = True
        if self.journal is not None:
            remove_remains(self.path)

    def _write(self, name: str, text: str) -> Path:
        path = self.path / name
        try:
            replace_text(path, text)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}{self._kept()}") from None
        return path

    def _kept(self) -> str:
        """Words that say that complete results are kept although their report is missing."""
        if not self._results.named:
            return ""
        if self.journal is None:
            self._is_complete = True
        names = ", ".join(path.name for path in self._results.named)
        return f"; kept all the same, without a report: {names}"

"""The folder of a run. It is replaced only on request, and gets results when all are complete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ...core.arrays import ArraySpec
from ...errors import ScanChangedError, StoreError, UsageError
from ...io import Sink
from ...io.results.result_format import FormatLike, ResultFormat, parse_formats
from ...io.results.result_info import ResultInfo
from ...io.results.result_names import check_removable
from ...io.results.stored_result import Choice
from ...planner import Plan
from ...system.disk_space import check_absent, check_free_space, store_errors
from ...system.files import replace_text
from ..report.progress import Progress, ProgressOnAll
from ..report.run_record import RunLog
from .folder_place import (
    JOURNAL_NAME,
    LOG_NAME,
    PICTURE_NAME,
    RECORD_NAMES,
    REPORT_NAME,
    TEXT_NAMES,
    WORK_NAME,
    check_usable,
    check_work_folder,
    clear_work_folder,
    disk_bytes,
    find_finished,
    locked,
    move,
    publish,
    scratch_place,
)
from .journal import Journal
from .result_sinks import LabelledSlice, ResultSinks
from .unfinished_run import VERSION, UnfinishedRun, find_unfinished


class RunFolder:
    """The folder of a run's results.

    The run works in a hidden folder, with a journal of the finished blocks (see `Journal`). Once
    all its files are complete, an earlier run is removed, and the files are moved to its place. A
    run that ends early keeps the hidden folder if it has finished slices, and if a later run can
    check that its input is the same. Otherwise the hidden folder is removed.

    Parameters
    ----------
    path : path-like
        The folder. It is made if it does not exist.
    format : str or sequence of str
        File formats of the results; see `parse_formats`.
    overwrite : bool
        Whether an earlier run, finished or unfinished, is replaced.
    resume : bool
        Whether an unfinished run is resumed. Without one, a new run begins.
    scratch : path-like, optional
        Folder for scratch files. By default they are in the hidden folder.

    Raises
    ------
    UsageError
        If both `overwrite` and `resume` are set.
    StoreError
        If the folder contains a run that is neither replaced nor resumed, is a file, or is not
        writable.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: FormatLike = "hdf5",
        overwrite: bool = False,
        resume: bool = False,
        scratch: str | os.PathLike[str] | None = None,
    ) -> None:
        if overwrite and resume:
            raise UsageError("give either resume or overwrite, not both")
        self.path = Path(path)
        self.work = self.path / WORK_NAME
        """Hidden folder in which the run works."""
        self.identity: dict[str, Any] = {}
        """Description of its methods, device and input; see `run_identity`."""
        self.journal: Journal | None = None
        """Journal of the run, once it has begun."""
        self.is_kept = False
        """Whether the run ended early and can be resumed."""
        self.origin = ResultInfo()
        """Metadata that all results have in common."""
        self.log: RunLog | None = None
        """Log of the run. It is also written if the run ends early and can be resumed."""
        formats = parse_formats(format)
        check_usable(self.path)
        check_work_folder(self.path)
        earlier = find_unfinished(self.path)
        if earlier is None or (overwrite and earlier.is_whole):
            if find_finished(self.work) is not None:  # killed while its files were moved
                with locked(self.path):
                    publish(self.path, None if earlier is None else earlier.scratch(self.path))
            earlier = None
        self._check(earlier, overwrite=overwrite, resume=resume)
        self._earlier = earlier
        self.unfinished = earlier if resume else None
        """The run that is resumed; None if a new one begins."""
        self._elsewhere = None if scratch is None else Path(scratch)
        if self.unfinished is not None:
            formats, self._elsewhere = self.unfinished.formats, self.unfinished.elsewhere
        self._is_begun = self._is_complete = False
        self._new_folders: list[Path] = []
        self._exit_stack = ExitStack()
        self._results = ResultSinks(self.work, formats)

    def _check(self, earlier: UnfinishedRun | None, *, overwrite: bool, resume: bool) -> None:
        """Check that an earlier run is neither lost nor mixed with this one."""
        has_report = (self.path / REPORT_NAME).exists()
        if earlier is not None and not (overwrite or resume):
            with locked(self.path):  # raises another error if that run is at work
                raise StoreError(
                    f"{self.path} contains an unfinished run ({earlier.progress}): resume it with "
                    f"`{earlier.command(self.path, '--resume')}`, or start anew with "
                    f"`{earlier.command(self.path, '--overwrite')}`"
                )
        if earlier is None and has_report and not overwrite:
            raise StoreError(
                f"{self.path} already contains a run ({REPORT_NAME}): choose another folder, or "
                "replace the run with --overwrite"
            )
        if overwrite:
            for path in self._replaced():
                check_removable(path)

    def _replaced(self) -> tuple[Path, ...]:
        """Files of the finished run in the folder."""
        earlier = find_finished(self.path)
        return () if earlier is None else earlier.files

    @property
    def scratch_folder(self) -> Path:
        """Folder of the scratch files."""
        return scratch_place(self.path, self._elsewhere)

    @property
    def result_formats(self) -> tuple[ResultFormat, ...]:
        """File formats of the results."""
        return self._results.formats

    def describe(self, identity: Callable[[], dict[str, Any]]) -> None:
        """Set the description of methods, device and input; see `run_identity`."""
        self.identity = identity()

    def mark(self, origin: Callable[[], ResultInfo], log: RunLog) -> None:
        """Set the metadata that all results have in common, and the log of the run."""
        self.origin, self.log = origin(), log

    def check_spares(self, path: Path) -> None:
        """Check that the run does not remove a file or folder that it reads.

        Raises
        ------
        StoreError
            If it would be removed, or the report of the earlier run is unreadable.
        """
        resolved = Path(os.path.realpath(path))  # unlike `resolve`, accepts a loop of links
        for removed in (self.work, *self._replaced()):
            if Path(os.path.realpath(removed)) in (resolved, *resolved.parents):
                raise StoreError(
                    f"{path} is read, and --overwrite would remove it with the run in "
                    f"{self.path}: choose another folder for the results"
                )

    def __enter__(self) -> Self:
        with store_errors(self.path, 0):
            self._new_folders = [p for p in (self.path, *self.path.parents) if not p.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
        self._exit_stack.enter_context(locked(self.path))
        return self

    def begin(self, plan: Plan, results: Mapping[str, ArraySpec]) -> None:
        """Begin or resume the run, after the last check.

        Parameters
        ----------
        plan : Plan
            Its plan.
        results : mapping of str to ArraySpec
            Name of each result, without a suffix -> its shape and dtype.

        Raises
        ------
        StoreError
            If a name is taken, or the disk is too full. Nothing is changed then.
        """
        names = [name for base in results for name in self._results.names(base)]
        n_bytes = plan.result_bytes + sum(map(self._results.export_bytes, results.values()))
        if self._elsewhere is None:
            n_bytes += plan.scratch_bytes
        elif self.unfinished is None:
            check_free_space(self.scratch_folder, plan.scratch_bytes)
        self.prepare(names, n_bytes)
        path = self.path / JOURNAL_NAME
        if self.unfinished is not None:
            self.journal = Journal(path, self.unfinished.n_lines)
            self.journal.note("resumed")
            for name in (*TEXT_NAMES, REPORT_NAME):  # they are written again
                (self.work / name).unlink(missing_ok=True)
        else:
            header = {
                "journal": VERSION,
                "identity": self.identity,
                "formats": [str(each) for each in self.result_formats],
                "scratch": None if self._elsewhere is None else str(self._elsewhere.absolute()),
                "names": names,
                "plan": plan.to_dict(),
            }
            self.journal = Journal.create(path, header)
        if plan.scratch_bytes:
            check_usable(self.scratch_folder)
            with store_errors(self.scratch_folder, 0):
                self.scratch_folder.mkdir(parents=True, exist_ok=True)

    def prepare(self, names: Sequence[str], n_bytes: int = 0) -> None:
        """Make the hidden folder, or prepare the existing one to resume: `begin` without a journal.

        Parameters
        ----------
        names : sequence of str
            Names of the results. The caller writes those without a sink into the folder.
        n_bytes : int
            Disk space that they take.

        Raises
        ------
        StoreError
            If one of them exists and does not belong to the replaced run, or the disk is too full.
            Nothing is changed then.
        """
        now = find_unfinished(self.path)
        n_lines, n_before = (0 if run is None else run.n_lines for run in (now, self._earlier))
        if n_lines != n_before:
            raise StoreError(f"another run has written to {self.path} meanwhile")
        earlier = find_finished(self.path)
        if self.unfinished is None:
            for name in (*names, *TEXT_NAMES):
                if earlier is None or self.path / name not in earlier.files:
                    check_absent(self.path / name)
        # The results of a finished run stay until the new ones are complete.
        check_free_space(self.path, n_bytes - disk_bytes(self.work))
        if self.unfinished is not None:
            self._take_back()
            return
        self._is_begun = True
        clear_work_folder(self.path, None if now is None else now.scratch(self.path))
        with store_errors(self.work, 0):
            self.work.mkdir()

    def _take_back(self) -> None:
        """Move files back that the run had moved out of the hidden folder."""
        assert self.unfinished is not None
        if not self.unfinished.was_moving:
            return
        for name in (*self.unfinished.names, *TEXT_NAMES, REPORT_NAME):
            if os.path.lexists(self.path / name) and not os.path.lexists(self.work / name):
                move(self.path / name, self.work / name)

    def sink(self, name: str, spec: ArraySpec, info: ResultInfo, *, has_slices: bool) -> Sink:
        """Make the sink of a result.

        Parameters
        ----------
        name : str
            Name of the result, without a suffix.
        spec : ArraySpec
            The whole result.
        info : ResultInfo
            Its metadata, of which each format keeps a part.
        has_slices : bool
            Whether it has slices from before the run was stopped. They are kept.
        """
        return self._results.add(name, spec, info, has_slices=has_slices)

    def some_slices(self, choose: Choice) -> Iterator[tuple[str, ResultInfo, list[LabelledSlice]]]:
        """Read some slices of each result; see `ResultSinks.some_slices`."""
        return self._results.some_slices(choose)

    def finish(
        self, values: Mapping[str, Any] | None = None, progress: Progress | None = None
    ) -> tuple[Path, ...]:
        """Complete all results in the hidden folder; the paths that they are moved to.

        Parameters
        ----------
        values : mapping of str to value, optional
            Text of a reference -> its value, which is stored with the parameters.
        progress : Progress, optional
            Shows the progress of exports.
        """
        names = self._results.complete(values or {}, progress or ProgressOnAll())
        return tuple(self.path / name for name in names)

    def write(self, name: str, text: str) -> Path:
        """Write a text into the hidden folder; the path that it is moved to.

        Raises
        ------
        StoreError
            If it cannot be written.
        """
        with store_errors(self.work / name, 0):
            replace_text(self.work / name, text)
        return self.path / name

    def records(self, with_picture: bool) -> tuple[Path, ...]:
        """Files for people that describe the run."""
        names = (*RECORD_NAMES, PICTURE_NAME) if with_picture else RECORD_NAMES
        return tuple(self.path / name for name in names)

    def conclude(self, write: Callable[[RunFolder], str]) -> None:
        """Write the texts of the finished run, then publish it.

        Parameters
        ----------
        write : callable
            Called with the folder. It writes all texts except the report, and returns that.
        """
        self.write(REPORT_NAME, write(self))
        if self.journal is not None:
            self.journal.note("moving")
        publish(self.path, self.scratch_folder)
        self._is_complete = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        journal, self.journal = self.journal, None
        with self._exit_stack:  # the lock is released last
            if journal is not None:
                self._exit_stack.callback(journal.close)
            if not self._is_complete:
                self._leave(journal, error)

    def _leave(self, journal: Journal | None, error: BaseException | None) -> None:
        """Remove all files of the run, unless it can be resumed."""
        self._results.close()
        self.is_kept = self._can_resume(journal) and not isinstance(error, ScanChangedError)
        if self.is_kept:
            if self.log is not None and error is not None:
                self.log.add(f"ended early: {type(error).__name__}: {error}")
                with suppress(StoreError):  # a full disk may be the error itself
                    self.write(LOG_NAME, self.log.text)
            return
        if self._is_begun:
            clear_work_folder(self.path, self.scratch_folder)
        for folder in self._new_folders:
            try:
                folder.rmdir()
            except FileNotFoundError:  # removed or renamed meanwhile
                continue
            except OSError:  # not empty
                break

    def _can_resume(self, journal: Journal | None) -> bool:
        """True if the journal holds progress that a later run can resume."""
        if self.unfinished is not None or journal is None:
            return self.unfinished is not None
        try:
            run = find_unfinished(self.path)
        except (StoreError, MemoryError):  # it may be readable later
            return True
        if run is None:
            return not self.path.exists()  # removed or renamed, as `resume_hint` says
        # A scan in memory has no state with which a later run could compare its own.
        is_known = self.identity.get("input") is not None
        return run.is_computed or (is_known and any(s.has_slices for s in run.sections))

    @property
    def resume_hint(self) -> str:
        """Progress of the run, and the command that resumes it."""
        run = find_unfinished(self.path)
        if run is None and not self.path.exists():
            return f"{self.path} was removed or renamed during the run"
        if run is None:
            return "finished slices are kept"
        return (
            f"finished slices are kept ({run.progress}): resume with "
            f"`{run.command(self.path, '--resume')}`"
        )

"""The folder of a run: replaced only on request; incomplete results never look complete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ...core.arrays import ArraySpec
from ...errors import ScanChangedError, StoreError
from ...io import Sink, SinkFormat, SinkStart
from ...io.results.nexus_notes import fill_in_found
from ...io.results.result_format import FormatLike, ResultFormat, parse_formats
from ...io.results.result_info import ResultInfo
from ...planner import Plan
from ...system.disk_space import hidden_path, store_errors
from ..report.progress import Progress, ProgressOnAll
from ..report.run_log import RunLog
from .begin_run import RunStart
from .earlier_run import (
    LOG_NAME,
    PAGE_NAME,
    PICTURE_NAME,
    RECORD_NAMES,
    REPORT_NAME,
    TIMELINE_NAME,
    EarlierRun,
)
from .folder_place import FolderLock, ScratchPlace, check_usable
from .folder_request import check_request
from .folder_texts import FolderTexts
from .journal import JOURNAL_NAME, Journal
from .result_sinks import ResultSinks
from .run_identity import can_go_on
from .snapshots import PREFIX, Snapshots
from .unfinished_files import remove_remains
from .unfinished_run import read_journal


class RunFolder:
    """Holds the results of one run; a run that is stopped can go on, or removes what it wrote.

    A journal says what is done (see `Journal`). A run that ends early stays as it is if slices of
    it are finished, and if it can be told later whether its input is the same; else it removes what
    it wrote. The results of an earlier run are removed only when those of the new one are whole.

    Parameters
    ----------
    path : path-like
        The folder; it is made if it does not exist.
    format : str or sequence of str
        File formats of the results; see `parse_formats`.
    overwrite : bool
        Whether the results of an earlier run, finished or not, are replaced.
    resume : bool
        Whether an unfinished run goes on.
    save_snapshots : bool
        Whether the middle slice after each step is kept; a run that goes on does as it did.
    scratch : path-like, optional
        Folder for a folder of scratch files; by default they are beside the results.

    Raises
    ------
    StoreError
        If the folder holds a run already, is a file, or cannot be written to; or if it holds no
        unfinished run that could go on.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: FormatLike = "hdf5",
        overwrite: bool = False,
        resume: bool = False,
        save_snapshots: bool = False,
        scratch: str | os.PathLike[str] | None = None,
    ) -> None:
        self.path = Path(path)
        self.saves_snapshots = save_snapshots
        """Whether the middle slice after each step is kept."""
        self.snapshots: Snapshots | None = None
        """Takes them, once the run has begun."""
        self.identity: dict[str, Any] = {}
        """What the run is made for; see `run_identity`."""
        self.journal: Journal | None = None
        """Journal of the run, once it has begun."""
        self.is_kept = False
        """Whether the run ended unfinished and can go on."""
        self.origin = ResultInfo()
        """What all results have in common."""
        formats = parse_formats(format)
        self.scratch = ScratchPlace(self.path, None if scratch is None else Path(scratch))
        """Where its scratch files are."""
        self._is_complete = False
        self._lock = FolderLock(self.path)
        self._made: list[Path] = []
        self.log: RunLog | None = None
        """Log of the run, which is written where a run that ends early leaves something."""
        self._texts = FolderTexts(self.path)
        check_usable(self.path)
        self._earlier = EarlierRun(self.path)
        found = read_journal(self.path / JOURNAL_NAME)
        check_request(self.path, found, self._earlier, overwrite=overwrite, resume=resume)
        self.unfinished = found if resume else None
        """The run that goes on; None if a new one begins."""
        replaced = None if resume else found
        if found is not None and resume:
            formats = found.formats
            self.scratch = found.scratch(self.path)
            self.saves_snapshots = any(n.startswith(PREFIX) for n in found.names.values())
        self._is_new = found is None
        self._start = RunStart(self.path, self._earlier, self.unfinished, replaced, self.scratch)
        self._results = ResultSinks(formats)

    @property
    def scratch_folder(self) -> Path:
        """Folder of the scratch files."""
        return self.scratch.path

    @property
    def result_formats(self) -> tuple[ResultFormat, ...]:
        """File formats of the results."""
        return self._results.formats

    def describe(self, identity: Callable[[], dict[str, Any]]) -> None:
        """Keep what the run is made for; see `run_identity`."""
        self.identity = identity()

    def mark(self, origin: Callable[[], ResultInfo], log: RunLog) -> None:
        """Keep what all results have in common, and the log of the run."""
        self.origin, self.log = origin(), log

    @property
    def streamed(self) -> SinkFormat:
        """Format that is written during the run; see `ResultSinks`."""
        return self._results.streamed

    @property
    def formats(self) -> tuple[str, ...]:
        """File formats of the results, as `parse_formats` takes them."""
        return tuple(str(each) for each in self._results.formats)

    def export_bytes(self, results: Iterable[ArraySpec]) -> int:
        """Disk space that results take at most in other formats, beside that of the plan."""
        return sum(map(self._results.export_bytes, results))

    def check_spares(self, path: Path) -> None:
        """Check that a file or folder that is read is none of the results that are replaced.

        Raises
        ------
        StoreError
            If it is one of them or inside one, or if the earlier report cannot be read.
        """
        self._earlier.check_spares(path)

    def __enter__(self) -> Self:
        try:
            missing = [p for p in (self.path, *self.path.parents) if not p.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            self._made = missing
        except OSError as error:
            raise StoreError(f"cannot make the folder {self.path}: {error.strerror}") from None
        self._lock.acquire()
        try:
            if self.unfinished is None:
                self._earlier.find_results()
        except BaseException:
            self._lock.release()
            raise
        return self

    def begin(
        self,
        plan: Plan,
        results: Mapping[str, ArraySpec],
        snapshots: Mapping[int, str] | None = None,
    ) -> None:
        """Begin the run, after all that can be checked before it; or go on with it.

        Parameters
        ----------
        plan : Plan
            Its plan.
        results : mapping of str to ArraySpec
            Name of each result, without a suffix -> the result.
        snapshots : mapping of int to str, optional
            Index of a step -> name of its snapshot.

        Raises
        ------
        StoreError
            If the disk has not enough free space; then nothing was changed.
        """
        if snapshots is not None:
            self.snapshots = Snapshots(self.path, dict(snapshots))
        finals = [path for name in results for path in self._results.paths(self.path / name)]
        finals += [self.path / name for name in (snapshots or {}).values()]
        n_bytes = plan.result_bytes + self.export_bytes(results.values())
        elsewhere = self.scratch.elsewhere
        header = {
            "identity": self.identity,
            "formats": [*self.formats],
            "scratch": None if elsewhere is None else str(elsewhere.absolute()),
        }
        self.journal = self._start.begin(plan, finals, n_bytes, header)

    def begin_alone(self, names: Sequence[str]) -> None:
        """Begin a run whose results are other files than sinks write, and that cannot go on.

        Parameters
        ----------
        names : sequence of str
            Names of its results.

        Raises
        ------
        StoreError
            If one of them is there and not of the run that is replaced.
        """
        self._start.check_names([self.path / name for name in names])
        self._start.remove_replaced()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        journal, self.journal = self.journal, None
        try:
            self._leave(journal, error)
        finally:
            if journal is not None:
                journal.close()
            self._earlier.free()
            self._lock.release()

    def _leave(self, journal: Journal | None, error: BaseException | None) -> None:
        """Remove everything that was written, unless the run is complete or can go on."""
        goes_on = self._goes_on(journal) and not isinstance(error, ScanChangedError)
        is_left = (self._is_complete or goes_on) and not self._earlier.results
        if self.log is not None and error is not None and is_left:
            self.log.add(f"ended early: {type(error).__name__}: {error}")
            with suppress(StoreError):  # the disk may be full, which is the error then
                self._texts.write(LOG_NAME, self.log.text)
        if self._is_complete:
            return
        if goes_on:
            self._results.suspend()
            self.is_kept = True
            return
        is_noted = journal is not None and journal.given_up()
        self._results.remove()
        if self.snapshots is not None:
            self.snapshots.remove()
        self._texts.remove()
        if journal is not None:
            is_needed = bool(self._earlier.results) and not self._earlier.is_there
            remove_remains(self.path, self.scratch, keeps_journal=is_noted and is_needed)
        elif self._is_new and read_journal(self.path / JOURNAL_NAME) is not None:
            # The run was stopped while its journal was made.
            remove_remains(self.path, self.scratch)
        self.scratch.remove()
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
    def resume_hint(self) -> str:
        """Say how a run that is kept can go on."""
        run = read_journal(self.path / JOURNAL_NAME)
        if run is None and not self.path.exists():
            return f"{self.path} was removed or renamed during the run"
        if run is None:
            return "what is done is kept"
        return (
            f"what is done is kept ({run.progress}): go on with "
            f"`{run.command(self.path, '--resume')}`"
        )

    def sink(
        self,
        name: str,
        spec: ArraySpec,
        slice_dim: int,
        *,
        has_slices: bool = False,
        info: ResultInfo | None = None,
    ) -> Sink | None:
        """Make the sink for a result called `name`; None if it is whole and has its name.

        If it has slices that were written before the run was stopped, it goes on. `info` is kept
        with it as far as its format can.
        """
        base = self.path / name
        start: SinkStart = "new"
        if self._results.path(base) in self._earlier.results:
            start = "replace"
        is_whole = self.unfinished is not None and self.unfinished.is_whole
        how: SinkStart = "resume" if has_slices else start
        info = info or self.origin
        return self._results.add(base, spec, slice_dim, how, is_whole=is_whole, info=info)

    def finish(
        self, found: Mapping[str, Any] | None = None, progress: Progress | None = None
    ) -> tuple[Path, ...]:
        """Complete all results and give them their names; paths of the results.

        Only then the results of an earlier run are removed.

        Parameters
        ----------
        found : mapping of str to value, optional
            Text of a reference -> its value, to be kept with the parameters.
        progress : Progress, optional
            Shows how far other formats are.
        """
        self._results.suspend()
        if self._results.streamed == "hdf5":
            for path in self._results.open_paths:
                with store_errors(path, 0):
                    fill_in_found(path, found or {})
        if self.journal is not None:
            self.journal.whole()
        self._results.export(progress or ProgressOnAll([]))
        if self._results.have_hidden_names:
            self._earlier.remove()
        taken = () if self.snapshots is None else self.snapshots.finish()
        self._results.finish()
        return (*taken, *self._results.named)

    def slice_name(self, path: Path, index: int) -> str:
        """Name of a slice of a result, such as "row 42"."""
        return self._results.slice_name(path, index)

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
        if self._earlier.is_there or self._earlier.results:
            return []
        finished = self._results.finished(counts)
        if self.journal is not None:
            names = {hidden_path(sink.path).name: path.name for sink, path, _ in finished}
            self.journal.set_aside(names)
        return self._results.keep(finished)

    def write_failure(self, text: str) -> None:
        """Write the report of a failed run of which finished slices are kept."""
        self._results.abandon()
        self._texts.write(REPORT_NAME, text)
        if not self._goes_on(self.journal):
            if self.snapshots is not None:
                self.snapshots.remove()
            self._end_journal()

    def write_timeline(self, text: str) -> Path:
        """Write the timeline beside the results; its path."""
        return self._texts.add(TIMELINE_NAME, text, self._kept())

    def write_records(self, texts: Mapping[str, str]) -> None:
        """Write what says how the results were made: name -> text."""
        for name, text in texts.items():
            self._texts.add(name, text, self._kept())

    def write_report(self, text: str) -> None:
        """Write the report, which marks the folder as holding a complete run."""
        self._texts.write(REPORT_NAME, text, self._kept())
        self._end_journal()

    def records(self, with_picture: bool) -> tuple[Path, ...]:
        """Files that tell people of the run."""
        names = (*RECORD_NAMES, PICTURE_NAME) if with_picture else RECORD_NAMES
        return tuple(self.path / name for name in names)

    def conclude(self, write: Callable[[RunFolder], None]) -> None:
        """Have what is known of the whole run written into the folder."""
        write(self)

    def write_page(self, text: str) -> None:
        """Write the page for people."""
        self._texts.write(PAGE_NAME, text)

    def _end_journal(self) -> None:
        """Remove the journal: there is nothing to go on with."""
        self._is_complete = True
        remove_remains(self.path, self.scratch)
        self.scratch.remove()

    def _kept(self) -> str:
        """Words that say that complete results are kept although their report is missing."""
        if not self._results.named:
            return ""
        if self.journal is None:
            self._is_complete = True
        names = ", ".join(path.name for path in self._results.named)
        return f"; kept all the same, without a report: {names}"

"""Run a pipeline on several scans, one after the other: `run_scans`."""

from __future__ import annotations

import glob
import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np

from ..errors import DeviceError, MaxslicesError, SourceError, StoreError, UsageError
from ..io.results.result_format import parse_formats
from ..pipeline import Pipeline
from ..pipeline.pipeline import PipelineLike, as_pipeline
from ..runner.folder.folder_place import JOURNAL_NAME, REPORT_NAME, read_report
from ..runner.folder.unfinished_run import find_unfinished, input_changes, input_state
from .on_workers import check_for_workers, held_workers
from .run_request import RunOptions, RunRequest
from .run_scan import run_requested
from .scan_and_output import files_read

ScanState = Literal["done", "done before", "failed"]


@dataclass(frozen=True, slots=True)
class ScanOutcome:
    """Outcome of one of several scans."""

    scan: Path
    """Path of the scan."""
    folder: Path
    """Folder of the results and of the report, ``report.json``."""
    state: ScanState
    """"done", "done before" (by an earlier command) or "failed"."""
    error: str | None = None
    """Error message of a failed scan."""


@dataclass(frozen=True, slots=True)
class ScansReport:
    """Outcomes of several scans."""

    scans: tuple[ScanOutcome, ...]
    """Outcome of each scan, in order."""

    @property
    def failed(self) -> tuple[ScanOutcome, ...]:
        """Outcomes of the scans that failed."""
        return tuple(outcome for outcome in self.scans if outcome.state == "failed")

    def to_dict(self) -> dict[str, Any]:
        """Convert the report to plain types, ready for JSON."""
        return {
            "scans": [
                asdict(outcome) | {"scan": str(outcome.scan), "folder": str(outcome.folder)}
                for outcome in self.scans
            ]
        }

    def __str__(self) -> str:
        states = [outcome.state for outcome in self.scans]
        counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
        lines = [f"{_counted(len(self.scans))}: {', '.join(counts)}"]
        lines += [f"  {outcome.scan} failed: {outcome.error}" for outcome in self.failed]
        return "\n".join(lines)


def run_scans(
    scans: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    pipeline: PipelineLike,
    out: str | os.PathLike[str],
    **options: Unpack[RunOptions],
) -> ScansReport:
    """Run a pipeline on several scans, each into its own folder.

    The other scans run even if one fails. All scans share the same workers.

    Parameters
    ----------
    scans : path-like, or iterable of them
        Paths of scans, or patterns such as ``"scans/*.nxs"``.
    pipeline : Pipeline, path or iterable of steps
        A pipeline, its YAML file, or steps as `Pipeline.from_steps` takes them.
    out : path-like
        Folder for the folders of the results, each named after its scan.
    resume : bool
        Whether to skip scans that an earlier call finished, and to resume the one that it did not
        finish.
    **options
        Options of `maxslices.run` for each scan.

    Returns
    -------
    ScansReport
        Outcome of each scan.

    Raises
    ------
    MaxslicesError
        If no scan can run: the pipeline is invalid, options exclude each other, or a folder
        already has a run.
    KeyboardInterrupt
        If it is stopped. Its text says how many scans are done.
    """
    if not os.fspath(out):
        raise UsageError("the folder for the results has no name: use '.' for the current folder")
    folders = find_scans(scans, Path(out))
    read = as_pipeline(pipeline)  # once: its file may change while the scans run
    requests = {
        scan: RunRequest(scan=scan, pipeline=read, out=folder, **options)
        for scan, folder in folders.items()
    }
    announce = next(iter(requests.values())).announce_workers
    checked = _check({folders[scan]: request for scan, request in requests.items()})
    outcomes: list[ScanOutcome] = []
    with held_workers(next(iter(requests.values()))) as engine:
        for scan, request in requests.items():
            folder = folders[scan]
            try:
                if request.resume and _is_done(request, folder, checked):
                    outcomes.append(ScanOutcome(scan, folder, "done before"))
                    continue
                announce(f"scan {len(outcomes) + 1} of {len(folders)}: {scan}")
                report = run_requested(replace(request, **engine))
                outcomes.append(ScanOutcome(scan, folder, "done"))
                announce(f"{scan} done in {report.duration_s:.1f} s: {folder}")
            except (DeviceError, KeyboardInterrupt) as error:  # not the fault of a scan
                raise type(error)(_stopped(str(error), outcomes, scan, len(folders))) from error
            except (MaxslicesError, MemoryError) as error:
                text = str(error).removeprefix(f"{scan}: ") or "memory ran out"
                outcomes.append(ScanOutcome(scan, folder, "failed", text))
                announce(f"{scan} failed: {text}")
    return ScansReport(tuple(outcomes))


def _check(requests: dict[Path, RunRequest]) -> Pipeline:
    """Check the options that all scans share, and return the pipeline to run.

    Raises
    ------
    MaxslicesError
        If no scan could run, or a folder has a run that is neither replaced nor resumed.
    """
    first = next(iter(requests.values()))
    if first.resume and first.overwrite:
        raise UsageError("resume and overwrite exclude each other")
    pipeline, _ = replace(first, resume=False).checked()
    check_for_workers(first)
    for folder, request in requests.items():
        if request.resume:
            continue
        try:
            request.results(pipeline)
        except StoreError as error:
            if not any((folder / name).exists() for name in (REPORT_NAME, JOURNAL_NAME)):
                raise
            raise StoreError(
                f"{error}; the same command with --resume runs what is missing"
            ) from None
    return pipeline


def _is_done(request: RunRequest, folder: Path, pipeline: Pipeline) -> bool:
    """Whether a folder has the finished run of a request.

    Raises
    ------
    StoreError
        If its run has another pipeline, other data or other formats.
    """
    report = folder / REPORT_NAME
    if find_unfinished(folder) is not None or not report.exists():
        return False
    try:
        earlier = read_report(report)
        planned, origin = earlier["plan"]["made_for"]["pipeline"], earlier["provenance"]
        # A scan that was copied with its date is the same, although its inode differs.
        files = [{n: file[n] for n in file if n != "inode"} for file in origin["input"]]
        formats = tuple(origin["formats"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StoreError(f"{report} is not a valid report ({error})") from None
    try:
        now = input_state(files_read(request.scan, pipeline))
    except OSError as error:
        raise SourceError(f"{error.filename}: cannot be read ({error.strerror})") from None
    differences = []
    if planned != json.loads(json.dumps(pipeline.content())):
        differences.append("of another pipeline or part of the scan")
    if changed := input_changes(files, now):
        differences.append(f"of other data ({'; '.join(changed)})")
    requested = tuple(map(str, parse_formats(request.format)))
    if formats and formats != requested:
        differences.append(f"with results in {', '.join(formats)}, not {', '.join(requested)}")
    if differences:
        raise StoreError(
            f"{folder} has a finished run {' and '.join(differences)}: choose another folder, or "
            "replace all runs with --overwrite"
        )
    return True


def _stopped(why: str, outcomes: list[ScanOutcome], scan: Path, count: int) -> str:
    """Describe which of several scans are done."""
    done = sum(outcome.state != "failed" for outcome in outcomes)
    failed = len(outcomes) - done
    texts = [
        f"{done} of {_counted(count)} are done" + (f", {failed} failed" if failed else ""),
        f"it was at {scan}",
        "the same command with --resume runs what is missing",
    ]
    return "; ".join([why, *texts] if why else texts)


def _counted(count: int) -> str:
    return f"{count} scan" if count == 1 else f"{count} scans"


def find_scans(
    scans: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], out: Path
) -> dict[Path, Path]:
    """Find scans, and name a folder for the results of each.

    A folder has the name of its scan without the suffix. If several scans share a name, it keeps
    the suffix and as many parts of the path as distinguish them.

    Parameters
    ----------
    scans : path-like, or iterable of them
        Paths, or patterns such as ``"scans/*.nxs"``. ``**`` matches any folders.
    out : Path
        Folder of these folders, which patterns do not match.

    Returns
    -------
    dict of Path to Path
        Path of each scan -> its folder, in the order of `scans`; matches of a pattern by name. A
        scan that is named twice appears once, under the first of its names.

    Raises
    ------
    UsageError
        If there is no scan, a pattern matches none, or two scans would share a folder.
    """
    patterns: list[Any] = [scans]
    if isinstance(scans, Iterable) and not isinstance(scans, str | os.PathLike | np.ndarray):
        patterns = [*scans]
    for pattern in patterns:
        if not isinstance(pattern, str | os.PathLike):
            raise UsageError(
                f"scans are paths, not a {type(pattern).__name__}: give a list of paths"
            )
    by_real_path: dict[str, Path] = {}
    for path in (path for text in patterns for path in _matching(os.fspath(text), out)):
        by_real_path.setdefault(os.path.realpath(path), path)
    paths = list(by_real_path.values())
    if not paths:
        raise UsageError("no scan is named")
    whole = [path.absolute() for path in paths]
    names = [path.stem or path.name for path in whole]
    shared = _shared(names)
    for n_parts in range(1, max(len(path.parts) for path in whole)):
        if not shared:
            break
        # Other scans keep their names, by which --resume finds finished scans.
        names = [
            "-".join(path.parts[1:][-n_parts:]) if name in shared else name
            for path, name in zip(whole, names, strict=True)
        ]
        shared = _shared(names)
    if shared:
        raise UsageError(
            f"the results of two scans would go to {out / min(shared)}: run them separately"
        )
    return {scan: out / name for scan, name in zip(paths, names, strict=True)}


def _shared(names: list[str]) -> set[str]:
    """Return the names that occur several times."""
    return {name for name, count in Counter(names).items() if count > 1}


def _matching(text: str, out: Path) -> list[Path]:
    """Return the paths that match a pattern. An existing path matches only itself."""
    if not text:
        raise UsageError("the path of a scan is empty")
    if os.path.lexists(text) or not glob.has_magic(text):
        return [Path(text)]
    here = out.absolute()
    paths = [Path(name) for name in sorted(glob.glob(text, recursive=True))]
    paths = [path for path in paths if path.absolute() not in (here, *here.parents)]
    if not paths:
        raise UsageError(f"no scan matches {text}")
    return paths

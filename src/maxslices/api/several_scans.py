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
    """What became of one of several scans."""

    scan: Path
    """Its path."""
    folder: Path
    """Folder of its results, with the report of its run (report.json)."""
    state: ScanState
    """"done", "done before" (by an earlier command) or "failed"."""
    error: str | None = None
    """Why it failed; None if it did not."""


@dataclass(frozen=True, slots=True)
class ScansReport:
    """What became of several scans."""

    scans: tuple[ScanOutcome, ...]
    """Each of them, in order."""

    @property
    def failed(self) -> tuple[ScanOutcome, ...]:
        """Those that failed."""
        return tuple(each for each in self.scans if each.state == "failed")

    def to_dict(self) -> dict[str, Any]:
        """Convert the report to plain types, ready for JSON."""
        return {
            "scans": [
                asdict(each) | {"scan": str(each.scan), "folder": str(each.folder)}
                for each in self.scans
            ]
        }

    def __str__(self) -> str:
        states = [each.state for each in self.scans]
        counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
        lines = [f"{_counted(len(self.scans))}: {', '.join(counts)}"]
        lines += [f"  {each.scan} failed: {each.error}" for each in self.failed]
        return "\n".join(lines)


def run_scans(
    scans: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    pipeline: PipelineLike,
    out: str | os.PathLike[str],
    **options: Unpack[RunOptions],
) -> ScansReport:
    """Run a pipeline on several scans, each into a folder of its own.

    A scan that fails does not end the others. All scans share the workers that are started.

    Parameters
    ----------
    scans : path-like, or iterable of them
        Paths of scans, or patterns such as ``"scans/*.nxs"``.
    pipeline : Pipeline, path or iterable of steps
        A pipeline, its YAML file, or steps as `Pipeline.from_steps` takes them.
    out : path-like
        Folder for the folders of the results; each of these has the name of its scan.
    resume : bool
        Whether scans that an earlier call finished are left as they are, and one that it did not
        finish goes on.
    **options
        What `maxslices.run` takes, for each scan.

    Returns
    -------
    ScansReport
        What became of each scan.

    Raises
    ------
    MaxslicesError
        If it is seen before the first scan that none can run: the pipeline is not well formed,
        options do not go together, or a folder holds a run already.
    KeyboardInterrupt
        If it is stopped; its text says how many scans are done.
    """
    if not os.fspath(out):
        raise UsageError("the folder for the results has no name; '.' is the current one")
    found = find_scans(scans, Path(out))
    read = as_pipeline(pipeline)  # once: its file may change while the scans run
    requests = {
        scan: RunRequest(scan=scan, pipeline=read, out=folder, **options)
        for scan, folder in found.items()
    }
    tell = next(iter(requests.values())).announce_workers
    checked = _check({found[scan]: request for scan, request in requests.items()})
    outcomes: list[ScanOutcome] = []
    with held_workers(next(iter(requests.values()))) as engine:
        for scan, request in requests.items():
            folder = found[scan]
            try:
                if request.resume and _is_done(request, folder, checked):
                    outcomes.append(ScanOutcome(scan, folder, "done before"))
                    continue
                tell(f"scan {len(outcomes) + 1} of {len(found)}: {scan}")
                report = run_requested(replace(request, **engine))
                outcomes.append(ScanOutcome(scan, folder, "done"))
                tell(f"{scan} done in {report.duration_s:.1f} s: {folder}")
            except (DeviceError, KeyboardInterrupt) as error:  # of no scan
                raise type(error)(_stopped(str(error), outcomes, scan, len(found))) from error
            except (MaxslicesError, MemoryError) as error:
                text = str(error).removeprefix(f"{scan}: ") or "memory ran out"
                outcomes.append(ScanOutcome(scan, folder, "failed", text))
                tell(f"{scan} failed: {text}")
    return ScansReport(tuple(outcomes))


def _check(requests: dict[Path, RunRequest]) -> Pipeline:
    """Check, before the first scan, what is the same for all; the pipeline as it will run.

    Raises
    ------
    MaxslicesError
        If no scan could run, or a folder holds a run that is neither replaced nor continued.
    """
    first = next(iter(requests.values()))
    if first.resume and first.overwrite:
        raise UsageError("runs either go on (resume) or are replaced (overwrite)")
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
    """True if a folder holds the finished run that is asked for.

    Raises
    ------
    StoreError
        If it is of another pipeline or other data, or has results in other formats.
    """
    report = folder / REPORT_NAME
    if find_unfinished(folder) is not None or not report.exists():
        return False
    try:
        told = read_report(report)
        made_for, made = told["plan"]["made_for"]["pipeline"], told["provenance"]
        # A scan that was copied with its date has another inode, and is the same.
        read = [{name: each[name] for name in each if name != "inode"} for each in made["input"]]
        formats = tuple(made["formats"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StoreError(f"{report} is not readable as a report ({error})") from None
    try:
        now = input_state(files_read(request.scan, pipeline))
    except OSError as error:
        raise SourceError(f"{error.filename}: cannot be read ({error.strerror})") from None
    found = []
    if made_for != json.loads(json.dumps(pipeline.content())):
        found.append("of another pipeline or part of the scan")
    if other := input_changes(read, now):
        found.append(f"of other data ({'; '.join(other)})")
    if formats and formats != (asked := tuple(map(str, parse_formats(request.format)))):
        found.append(f"with results in {', '.join(formats)}, not {', '.join(asked)}")
    if found:
        raise StoreError(
            f"{folder} holds a finished run {' and '.join(found)}: choose another folder, or "
            "replace all runs with --overwrite"
        )
    return True


def _stopped(why: str, outcomes: list[ScanOutcome], scan: Path, count: int) -> str:
    """Say how far several scans came."""
    done = sum(each.state != "failed" for each in outcomes)
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
    given: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], out: Path
) -> dict[Path, Path]:
    """Find scans, and name a folder for the results of each.

    A folder has the name of the scan without its suffix; where several scans would share that, the
    suffix and as many parts of their paths as tell them apart.

    Parameters
    ----------
    given : path-like, or iterable of them
        Paths, or patterns such as ``"scans/*.nxs"``; ``**`` stands for any folders.
    out : Path
        Folder of these folders; a pattern does not find it.

    Returns
    -------
    dict of Path to Path
        Path of each scan, in the order given, those of a pattern by name -> its folder. One that is
        named twice, in whatever way, is there once, by the first of its names.

    Raises
    ------
    UsageError
        If there is no scan, a pattern finds none, or the same folder would be that of two.
    """
    each: list[Any] = [given]
    if isinstance(given, Iterable) and not isinstance(given, str | os.PathLike | np.ndarray):
        each = [*given]
    for one in each:
        if not isinstance(one, str | os.PathLike):
            raise UsageError(f"scans are paths, not a {type(one).__name__}: give a list of paths")
    found: dict[str, Path] = {}
    for path in (path for one in each for path in _matching(os.fspath(one), out)):
        found.setdefault(os.path.realpath(path), path)
    scans = list(found.values())
    if not scans:
        raise UsageError("no scan is named")
    whole = [path.absolute() for path in scans]
    names = [path.stem or path.name for path in whole]
    shared = _shared(names)
    for n_parts in range(1, max(len(path.parts) for path in whole)):
        if not shared:
            break
        # Others keep their names, by which --resume knows what was done before.
        names = [
            "-".join(path.parts[1:][-n_parts:]) if name in shared else name
            for path, name in zip(whole, names, strict=True)
        ]
        shared = _shared(names)
    if shared:
        raise UsageError(
            f"the results of two scans would go to {out / min(shared)}: run them apart"
        )
    return {scan: out / name for scan, name in zip(scans, names, strict=True)}


def _shared(names: list[str]) -> set[str]:
    """Names that there are several times."""
    return {name for name, count in Counter(names).items() if count > 1}


def _matching(text: str, out: Path) -> list[Path]:
    """Paths that a pattern finds; a path that is there, or no pattern, is itself."""
    if not text:
        raise UsageError("the path of a scan is empty")
    if os.path.lexists(text) or not glob.has_magic(text):
        return [Path(text)]
    here = out.absolute()
    found = [Path(name) for name in sorted(glob.glob(text, recursive=True))]
    found = [path for path in found if path.absolute() not in (here, *here.parents)]
    if not found:
        raise UsageError(f"no scan matches {text}")
    return found

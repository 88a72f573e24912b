"""The state of a stopped run, and where it resumes.

`find_unfinished` reads the journal. `ResumedSections` decides which sections run again, and from
which slice on. `run_identity` describes the methods, the device and the input of a run, and
`changes` compares two descriptions.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import stat
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ...core.arrays import SLICE_NAMES
from ...devices import Backend
from ...devices.backend import device_name
from ...errors import MaxslicesError, StoreError
from ...estimate.request_key import package_version, source_hash
from ...io.results.result_format import ResultFormat, parse_formats
from ...io.results.result_names import is_result_name
from ...io.scans.frame_source import FileStamp
from ...pipeline import Pipeline
from ...planner import Plan, SectionPlan
from ...system.plain_records import from_plain
from ..report.run_report import SectionReport
from .folder_place import JOURNAL_NAME, REPORT_NAME, WORK_NAME, scratch_place
from .journal import boot_id, decode, unseal


@dataclass(slots=True)
class DoneSlices:
    """Finished slices, as intervals, because workers finish them in any order."""

    parts: list[tuple[int, int]] = field(default_factory=list)
    """First slice of each interval and one past its last, in order. No two are adjacent."""

    def add(self, start: int, stop: int) -> None:
        """Add an interval.

        Raises
        ------
        ValueError
            If it is empty, or overlaps finished slices.
        """
        at = bisect(self.parts, (start, stop))
        before = self.parts[at - 1] if at else (0, 0)
        after = self.parts[at] if at < len(self.parts) else (stop, stop)
        if not before[1] <= start < stop <= after[0]:
            raise ValueError(f"slices {start} to {stop} overlap {self.parts}")
        low, high = at, at
        if at and before[1] == start:
            low, start = at - 1, before[0]
        if at < len(self.parts) and after[0] == stop:
            high, stop = at + 1, after[1]
        self.parts[low:high] = [(start, stop)]

    @property
    def count(self) -> int:
        """Number of finished slices."""
        return sum(stop - start for start, stop in self.parts)

    @property
    def n_first(self) -> int:
        """Number of finished slices before the first gap."""
        return self.parts[0][1] if self.parts and not self.parts[0][0] else 0

    def missing(self, n_slices: int) -> list[range]:
        """Unfinished intervals of the first `n_slices` slices, in order."""
        edges = [0, *(edge for part in self.parts for edge in part), n_slices]
        gaps = zip(edges[::2], edges[1::2], strict=True)
        return [range(start, stop) for start, stop in gaps if start < stop]


@dataclass(slots=True)
class SectionState:
    """Progress of a section."""

    done: DoneSlices = field(default_factory=DoneSlices)
    """Finished slices."""
    block: int | None = None
    """Slices in a full block at the end; None if no block is finished."""
    partial: dict[int, list[tuple[int, Any]]] = field(default_factory=dict)
    """Index of a step in the section -> (first slice of a block, its side result)."""
    layout: dict[str, int] | None = None
    """Layout of the scratch files with its output; None if it has none."""
    report: SectionReport | None = None
    """Its report; None if the section is not finished."""

    @property
    def has_slices(self) -> bool:
        """True if its results have finished slices."""
        return self.done.count > 0 or self.report is not None

    def note(self, section: SectionPlan) -> str:
        """Note in the report of a resumed section; "" if it starts from the first slice."""
        if not self.done.count:
            return ""
        unit = SLICE_NAMES[section.slice_dim]
        return (
            f"{self.done.count} of {section.n_slices} {unit}s were done before. Times are for the "
            "rest"
        )


_MOST_FILES = 2**12
"""Upper limit of the number of scratch files. No machine has so many threads."""
VERSION = 4
"""Version of the journal's format."""


@dataclass(slots=True)
class UnfinishedRun:
    """A stopped run."""

    plan: Plan
    """Its plan."""
    identity: dict[str, Any]
    """Description of its methods, device and input; see `run_identity`."""
    formats: tuple[ResultFormat, ...]
    """File formats of the results."""
    names: list[str]
    """Names of its results."""
    sections: list[SectionState]
    """State of each section."""
    elsewhere: Path | None = None
    """Folder with a subfolder of its scratch files; None if they are in the work folder."""
    side_results: list[tuple[int, Any]] = field(default_factory=list)
    """Index of a step in the pipeline, and its side results, in the order in which they came."""
    is_whole: bool = False
    """Whether all its files are complete, and on disk unless the machine has stopped since."""
    was_moving: bool = False
    """Whether some of its files may be outside the work folder."""
    n_lines: int = 1
    """Number of valid lines of the journal."""

    def scratch(self, folder: Path) -> Path:
        """Folder of the scratch files, given the folder of the results."""
        return scratch_place(folder, self.elsewhere)

    @property
    def is_computed(self) -> bool:
        """True if all sections are finished."""
        return all(section.report is not None for section in self.sections)

    @property
    def progress(self) -> str:
        """Description of its progress."""
        total = len(self.sections)
        at = next((i for i, each in enumerate(self.sections) if each.report is None), None)
        if at is None:
            return "all is computed, and only its files have to be completed"
        plan = self.plan.sections[at]
        slices = f"{self.sections[at].done.count} of {plan.n_slices} {SLICE_NAMES[plan.slice_dim]}s"
        return f"section {at + 1} of {total}, {slices} are done"

    def command(self, out: Path, option: str) -> str:
        """Command line with an option that resumes or replaces the run."""
        paths = [self.identity.get("scan_path"), self.identity.get("pipeline_path")]
        scan, pipeline = [
            shlex.quote(path) if isinstance(path, str) else name
            for path, name in zip(paths, ("SCAN", "PIPELINE"), strict=True)
        ]
        return f"maxslices run {scan} {pipeline} {shlex.quote(str(out))} {option}"


def store_names(section: int, layout: Mapping[str, int]) -> list[str]:
    """Names of the scratch files for the output of a section."""
    return [f"section-{section + 1}.{i:03d}.scratch" for i in range(layout["n_files"])]


class ResumedSections:
    """Decides for each section of a plan whether it runs, and whether it keeps finished slices.

    An unfinished section runs. A finished section runs again if the next one runs and its output is
    lost. That happens to output in memory, as the process has ended. A section whose output is on
    disk keeps its finished slices. Any other starts from its first slice.

    Parameters
    ----------
    plan : Plan
        The plan.
    unfinished : UnfinishedRun or None
        The stopped run; None if a new one begins.
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

    def state(self, number: int) -> SectionState:
        """Progress of a section."""
        return self._states[number]

    def runs(self, number: int) -> bool:
        """True if a section runs."""
        return number < len(self._runs) and self._runs[number]

    def resumes_within(self, number: int) -> bool:
        """True if a section that runs keeps its finished slices."""
        is_last = number == len(self._runs) - 1
        return self._states[number].done.count > 0 and (is_last or self._is_stored[number])


def find_unfinished(folder: Path) -> UnfinishedRun | None:
    """Find the unfinished run in a folder, from its journal; None if there is none.

    Raises
    ------
    StoreError
        If the journal is unreadable, or of another version.
    """
    path = folder / JOURNAL_NAME
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):  # reading a pipe could wait forever
            kind = "a link" if stat.S_ISLNK(mode) else "not a file"
            raise StoreError(f"{path} is {kind}, so it is not the journal of a run: remove it")
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    try:
        run = _read(lines)
    except (
        LookupError,
        SyntaxError,
        TypeError,
        ValueError,
        RecursionError,
        MaxslicesError,
    ) as error:
        raise StoreError(
            f"{path} is not a readable journal of a run ({error}). To start anew, remove "
            f"{path.parent} by hand"
        ) from None
    if run.is_whole and not (folder / WORK_NAME / REPORT_NAME).exists():
        return None  # all its files are moved, the report last
    return run


def _read(lines: list[bytes]) -> UnfinishedRun:
    """Read the lines of a journal whose data are on disk.

    If the machine was restarted since, the lines after the last "synced" do not count. Their data
    may have been in the page cache only.
    """
    entries, _ = unseal(lines)
    if not entries or entries[0]["journal"] != VERSION:
        raise ValueError("its first line is missing or of another version")
    is_same_boot = [e["boot"] for e in entries if "boot" in e][-1] == boot_id()
    # A machine that stops may leave half a line. Otherwise an invalid line is damage.
    if is_same_boot and len(entries) < len(lines):
        raise ValueError(f"its line {len(entries) + 1} is damaged")
    synced = [int(each["n_lines"]) for each in entries[1:] if each["event"] == "synced"]
    n_safe = len(entries) if is_same_boot else max([1, *synced])
    run = _run_of(entries[:n_safe])
    run.was_moving = "moving" in (entry["event"] for entry in entries[n_safe:]) or run.is_whole
    return run


def _run_of(entries: list[dict[str, Any]]) -> UnfinishedRun:
    header = entries[0]
    plan = Plan.from_json(json.dumps(header["plan"]))
    names = [_name(name) for name in header["names"]]
    identity = header["identity"]
    parts = [*identity["methods"], *(identity["input"] or ())]
    _check(
        all(isinstance(each, dict) for each in [identity, *parts]),
        "methods or input that are not objects",
    )
    _check(isinstance(identity["device"], str), "a device that is not a string")
    states = [SectionState() for _ in plan.sections]
    formats = parse_formats([str(each) for each in header["formats"]])
    scratch = header["scratch"]
    _check(scratch is None or Path(scratch).is_absolute(), f"the scratch folder {scratch!r}")
    run = UnfinishedRun(plan, identity, formats, names, states)
    run.elsewhere = None if scratch is None else Path(scratch)
    run.n_lines = len(entries)
    for entry in entries[1:]:
        _apply(run, entry)
    return run


def _apply(run: UnfinishedRun, entry: dict[str, Any]) -> None:
    """Apply an event to the state of a run."""
    event = entry["event"]
    number, total = entry.get("section", 0), len(run.sections)
    _check(number in range(total), f"section {number} of {total}")
    if event == "begin":
        run.sections[number] = SectionState()
        if "layout" in entry:
            layout = {name: int(entry["layout"][name]) for name in ("band_rows", "n_files")}
            _check(layout["band_rows"] > 0 and 0 < layout["n_files"] <= _MOST_FILES, f"{layout}")
            run.sections[number].layout = layout
    elif event == "side":
        n_steps = sum(len(section.steps) for section in run.plan.sections)
        _check(entry["step"] in range(n_steps), f"step {entry['step']} of {n_steps}")
        run.side_results.append((entry["step"], decode(entry["value"])))
    elif event == "done":
        state = run.sections[number]
        for index, value in decode(entry.get("values", [])):
            state.partial.setdefault(index, []).append((entry["start"], value))
        n_slices = run.plan.sections[number].n_slices
        _check(entry["start"] in range(n_slices), f"slice {entry['start']}")
        _check(entry["stop"] in range(n_slices + 1), f"slice {entry['stop']}")
        _check(entry["block"] in range(1, n_slices + 1), f"a block of {entry['block']}")
        state.done.add(entry["start"], entry["stop"])
        state.block = entry["block"]
    elif event == "finished":
        state = run.sections[number]
        state.report = from_plain(SectionReport, entry["report"], "report")
    elif event in ("moving", "resumed"):
        run.is_whole = event == "moving"


def _name(value: Any) -> str:
    """Check that a name is one that runs write, because the file may be moved."""
    if not isinstance(value, str) or not is_result_name(value):
        raise ValueError(f"runs do not write {value!r}")
    return value


def _check(is_valid: bool, fault: str) -> None:
    if not is_valid:
        raise ValueError(f"it has {fault}")


def run_identity(
    pipeline: Pipeline, backend: Backend, files: Sequence[Path] | None
) -> dict[str, Any]:
    """Describe the methods, the device and the input of a run in JSON types.

    Parameters
    ----------
    pipeline : Pipeline
        Its methods.
    backend : Backend
        Its device.
    files : sequence of Path, optional
        Files and folders that it reads; None if the scan is an array in memory.
    """
    methods = [
        {
            "method": step.meta.full_name,
            "source": source_hash(step.meta.function),
            "package": package_version(step.meta.function),
        }
        for step in pipeline.steps
    ]
    return {
        "device": device_name(backend),
        "methods": methods,
        "input": None if files is None else input_state(files),
    }


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Differences between two descriptions of a run, a phrase each."""
    texts = []
    if before["device"] != now["device"]:
        texts.append(f"it ran on {before['device']}, and now on {now['device']}")
    for old, new in zip(before["methods"], now["methods"], strict=False):
        if old.get("package") != new["package"]:
            texts.append(
                f"{new['method']} is from {new['package']}, and was from {old.get('package')}"
            )
        elif old.get("source") != new["source"]:
            texts.append(f"the source of {new['method']} has changed")
    if before["input"] is None or now["input"] is None:
        return [*texts, "its scan is an array in memory, which may have changed"]
    return [*texts, *input_changes(before["input"], now["input"])]


def input_changes(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    """Differences between the states of input files, a phrase each."""
    texts = []
    if len(before) != len(now):
        texts.append(f"it read {len(before)} files, and now reads {len(now)}")
    for old, new in zip(before, now, strict=False):
        names = [name for name in old if name != "path" and old[name] != new.get(name)]
        if names and new["path"] != old["path"]:
            texts.append(f"it read {old['path']}, and {new['path']} is another file")
        elif names:
            differences = ", ".join(
                f"{name} {_shown(name, old[name])} before, {_shown(name, new.get(name))} now"
                for name in names
            )
            texts.append(f"{new['path']} has changed ({differences})")
    return texts


def _shown(name: str, value: Any) -> Any:
    """Format a time in nanoseconds as a date; other values stay."""
    if name != "time" or not isinstance(value, int) or not 0 <= value < 2**63:
        return value
    return datetime.fromtimestamp(value / 1e9).isoformat(" ", "milliseconds")


def input_state(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Describe the files and folders that a run reads, to detect changes.

    Raises
    ------
    OSError
        If one cannot be examined.
    """
    return [_state_of(path) for path in files]


def _state_of(path: Path) -> dict[str, Any]:
    """Size, time of change and inode of a file, or a hash of these for all files in a folder."""
    entry: dict[str, Any] = {"path": str(path.absolute())}
    if not path.is_dir():
        stamp = FileStamp.of(path)
        return {**entry, "bytes": stamp.n_bytes, "time": stamp.time_ns, "inode": stamp.inode}
    digest, names = hashlib.sha256(), sorted(os.listdir(path))
    for name in names:
        stamp = FileStamp.of(path / name)
        text = f"{name}\0{stamp.n_bytes} {stamp.time_ns} {stamp.inode}\0"
        digest.update(text.encode(errors="surrogateescape"))
    return {**entry, "files": len(names), "their state": digest.hexdigest()[:16]}

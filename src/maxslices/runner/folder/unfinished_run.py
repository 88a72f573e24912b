"""What a journal says of a run that was stopped: where it goes on."""

from __future__ import annotations

import json
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.arrays import SLICE_NAMES
from ...errors import MaxslicesError, StoreError
from ...io.results.result_format import ResultFormat, parse_formats
from ...io.results.sink import is_result_name
from ...planner import Plan
from ...system.disk_space import hidden_path
from ...system.plain_records import from_plain
from ..report.run_report import SectionReport
from .earlier_run import BESIDE_NAMES, TIMELINE_NAME
from .folder_place import ScratchPlace
from .journal import boot_id
from .journal_lines import decode, unseal
from .section_state import SectionState

_RECORDS = (TIMELINE_NAME, *BESIDE_NAMES)
_MOST_FILES = 2**12
"""Largest number of scratch files that is believed: no machine has so many threads."""
VERSION = 3
"""Version of the journal's format."""


@dataclass(slots=True)
class UnfinishedRun:
    """A run that was stopped."""

    plan: Plan
    """Its plan."""
    identity: dict[str, Any]
    """What it was made for: see `run_identity`."""
    formats: tuple[ResultFormat, ...]
    """File formats of the results."""
    names: dict[str, str]
    """Hidden name of each result -> its name."""
    replaces: list[str]
    """Names of results of earlier runs, to be removed when this one is whole."""
    sections: list[SectionState]
    """State of each section."""
    scratch_folder: Path | None = None
    """Folder in which it has a folder of scratch files; None if they are beside the results."""
    side_results: list[tuple[int, Any]] = field(default_factory=list)
    """Index of a step in the pipeline, and its side results, in the order of their finding."""
    is_whole: bool = False
    """Whether all results are written; some may have their names."""
    is_given_up: bool = False
    """Whether another run was replacing it: some of its files may be removed."""
    aside: dict[str, str] = field(default_factory=dict)
    """Hidden name of a result -> the name that it may have been given meanwhile."""
    n_lines: int = 1
    """Lines of the journal that are believed."""

    def scratch(self, folder: Path) -> ScratchPlace:
        """Where its scratch files are, of a run in a folder."""
        return ScratchPlace(folder, self.scratch_folder)

    @property
    def scratch_names(self) -> list[str]:
        """Names of all scratch files that may be there."""
        pairs = [(i, each.layout) for i, each in enumerate(self.sections) if each.layout]
        return [name for i, layout in pairs for name in store_names(i, layout)]

    @property
    def progress(self) -> str:
        """How far it has come, in words."""
        total = len(self.sections)
        at = next((i for i, each in enumerate(self.sections) if each.report is None), None)
        if self.is_whole or at is None:
            return "all is computed, and results are to be named"
        plan = self.plan.sections[at]
        slices = f"{self.sections[at].done.count} of {plan.n_slices} {SLICE_NAMES[plan.slice_dim]}s"
        return f"section {at + 1} of {total}, {slices} are done"

    def command(self, out: Path, option: str) -> str:
        """Command line that goes on with the run, or starts anew."""
        given = [self.identity.get("scan_path"), self.identity.get("pipeline_path")]
        scan, pipeline = [
            shlex.quote(path) if isinstance(path, str) else name
            for path, name in zip(given, ("SCAN", "PIPELINE"), strict=True)
        ]
        return f"maxslices run {scan} {pipeline} {shlex.quote(str(out))} {option}"


def store_names(section: int, layout: Mapping[str, int]) -> list[str]:
    """Names of the scratch files with the output of a section."""
    return [f".section-{section + 1}.{i:03d}.scratch" for i in range(layout["n_files"])]


def read_journal(path: Path) -> UnfinishedRun | None:
    """Read a journal; None if there is none.

    Raises
    ------
    StoreError
        If it is no journal of this version.
    """
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):  # reading a pipe may wait without end
            what = "a link" if stat.S_ISLNK(mode) else "no file"
            raise StoreError(f"{path} is {what}, and no journal of a run: remove it")
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        entries, _ = unseal(lines)
        if not entries or entries[0]["journal"] != VERSION:
            raise ValueError("it has no first line of this version")
        is_same_boot = [e["boot"] for e in entries if "boot" in e][-1] == boot_id()
        if is_same_boot and len(entries) < len(lines):  # else the machine may have broken off
            raise ValueError(f"its line {len(entries) + 1} is damaged")
        n_safe = len(entries) if is_same_boot else _count_synced(entries)
        run = _run_of(entries[:n_safe])
        unsafe = [entry["event"] for entry in entries[n_safe:]]
        if "whole" in unsafe:
            run.aside = dict(run.names)
        run.is_given_up = run.is_given_up or "given up" in unsafe
        return run
    except (
        LookupError,
        SyntaxError,
        TypeError,
        ValueError,
        RecursionError,
        MaxslicesError,
    ) as error:
        raise StoreError(
            f"{path} is not readable as the journal of a run ({error}): remove it by hand to start "
            "anew"
        ) from None


def _count_synced(entries: list[dict[str, Any]]) -> int:
    """Lines whose data were on disk before the machine was started again."""
    return max([1, *(int(each["n_lines"]) for each in entries[1:] if each["event"] == "synced")])


def _run_of(entries: list[dict[str, Any]]) -> UnfinishedRun:
    header = entries[0]
    plan = Plan.from_json(json.dumps(header["plan"]))
    names = _names(header["names"])
    _check(all(hidden == hidden_path(Path(n)).name for hidden, n in names.items()), f"{names}")
    replaces = [_name(name) for name in header["replaces"]]
    identity = header["identity"]
    parts = [*identity["methods"], *(identity["input"] or ())]
    _check(all(isinstance(each, dict) for each in [identity, *parts]), "no methods and no input")
    _check(isinstance(identity["device"], str), "no device")
    states = [SectionState() for _ in plan.sections]
    formats = parse_formats([str(each) for each in header["formats"]])
    scratch = header["scratch"]
    _check(scratch is None or Path(scratch).is_absolute(), f"the scratch folder {scratch!r}")
    run = UnfinishedRun(plan, identity, formats, names, replaces, states)
    run.scratch_folder = None if scratch is None else Path(scratch)
    run.n_lines = len(entries)
    for entry in entries[1:]:
        _apply(run, entry)
    return run


def _apply(run: UnfinishedRun, entry: dict[str, Any]) -> None:
    """Bring the state of a run up to an event."""
    event = entry["event"]
    number, total = entry.get("section", 0), len(run.sections)
    _check(number in range(total), f"section {number} of {total}")
    if event == "begin":
        run.sections[number] = SectionState()
    elif event == "store":
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
    elif event == "whole":
        run.is_whole = True
    elif event == "given up":
        run.is_given_up = True
    elif event == "set aside":
        run.aside = _names(entry["names"])
        _check(run.aside.keys() <= run.names.keys(), f"{run.aside}")
    elif event == "went on":
        run.aside = {}


def _names(value: Any) -> dict[str, str]:
    """Hidden name of each result -> its name, which is checked."""
    return {str(hidden): _name(name) for hidden, name in dict(value).items()}


def _name(value: Any) -> str:
    """Name of a file, checked to be one that runs write: it may be removed."""
    if not isinstance(value, str) or not (is_result_name(value) or value in _RECORDS):
        raise ValueError(f"no run writes {value!r}")
    return value


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"it speaks of {what}")

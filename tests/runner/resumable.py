"""Runs of several kinds that tests stop and resume, and what is in a folder afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import h5py

from maxslices import Pipeline
from maxslices.core.block_memory import PYTHON_BYTES
from maxslices.runner.folder.folder_place import RECORD_NAMES
from maxslices.runner.folder.journal import Journal
from tests.planner.fakes import fakes

SHAPE = (23, 17, 64)
SCRATCH = PYTHON_BYTES + 120_000
FIND = {"method": "find_middle", "id": "f", "side_outputs": {"cor": "axis"}}
ALL = {"method": "extremes", "id": "e", "side_outputs": {"low": "low", "high": "high"}}
SCALED = {"method": "scaled_by", "parameters": {"centre": "${{f.side_outputs.axis}}"}}
RAISED = {"method": "scaled_by", "parameters": {"centre": "${{e.side_outputs.high}}"}}
SAVED = {"method": "negate", "save_result": True}
CASES = {
    "one section": (["to_float", "negate"], {"block": 4}),
    "TIFF": (["to_float", SAVED, "neighbours"], {"block": 4, "format": "tiff"}),
    "in memory": (["to_float", SAVED, "work", "negate"], {"block": 5}),
    "scratch files": (["to_float", "reaching", SAVED, "work"], {"memory": SCRATCH}),
    "few slices": (["to_float", FIND, SCALED, "neighbours"], {"block": 4}),
    "all slices": (["to_float", ALL, RAISED, "extremes"], {"block": 6}),
    "all slices in scratch files": (["to_float", ALL, RAISED], {"memory": SCRATCH}),
    "nothing saved": ([{**ALL, "save_result": False}], {"block": 6}),
}


def of(steps):
    return Pipeline.from_steps(steps, fakes)


def results_in(folder: Path):
    """Names in the folder of a finished run, without the texts that each run leaves."""
    return {path.name for path in folder.iterdir()} - {"report.json", *RECORD_NAMES}


def content(folder: Path):
    """Names in a folder, and what its results and side results are."""
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if name.startswith(".run/"):
            continue
        if path.suffix == ".h5":
            with h5py.File(path) as file:
                found[name] = file["entry/data/data"][()].tobytes()
        elif path.suffix == ".tif":
            found[name] = path.read_bytes()
        else:
            found[name] = ""
    report = json.loads((folder / "report.json").read_text())
    return found, report["side_results"], [section["methods"] for section in report["sections"]]


def stop_after(monkeypatch, n_blocks, error=KeyboardInterrupt):
    """Have runs stop when that many blocks are noted."""
    original, counted = Journal.done, []

    def done(self, *args):
        result = original(self, *args)
        counted.append(args)
        if len(counted) == n_blocks:
            raise error
        return result

    monkeypatch.setattr(Journal, "done", done)

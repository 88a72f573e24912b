"""Runs of several kinds that tests stop and resume, and the content of their folders."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import h5py
import pytest

from maxslices import Pipeline, run
from maxslices.core.block_memory import PYTHON_BYTES
from maxslices.runner.folder import folder_place, result_sinks
from maxslices.runner.folder.folder_place import RECORD_NAMES
from maxslices.runner.folder.journal import Journal
from tests.planner.fakes import fakes

SHAPE = (23, 17, 64)
SCRATCH = PYTHON_BYTES + 120_000
"""Memory budget with which data between sections go to scratch files."""
FIND = {"method": "find_middle", "id": "f", "side_outputs": {"cor": "axis"}}
ALL = {"method": "extremes", "id": "e", "side_outputs": {"low": "low", "high": "high"}}
SCALED = {"method": "scaled_by", "parameters": {"centre": "${{f.side_outputs.axis}}"}}
RAISED = {"method": "scaled_by", "parameters": {"centre": "${{e.side_outputs.high}}"}}
SAVED = {"method": "negate", "save_result": True}
CASES = {
    "one section": (["to_float", "negate"], {"block": 4}),
    "with a halo": (["to_float", SAVED, "neighbours"], {"block": 4}),
    "in memory": (["to_float", SAVED, "work", "negate"], {"block": 5}),
    "scratch files": (["to_float", "reaching", SAVED, "work"], {"memory": SCRATCH}),
    "few slices": (["to_float", FIND, SCALED, "neighbours"], {"block": 4}),
    "all slices": (["to_float", ALL, RAISED, "extremes"], {"block": 6}),
    "all slices in scratch files": (["to_float", ALL, RAISED], {"memory": SCRATCH}),
    "nothing saved": ([{**ALL, "save_result": False}], {"block": 6}),
}
"""Steps and options of runs."""


def of(steps):
    return Pipeline.from_steps(steps, fakes)


def results_in(folder: Path):
    """Names in the folder of a finished run, without its report and records."""
    return {path.name for path in folder.iterdir()} - {"report.json", *RECORD_NAMES}


def content(folder: Path):
    """Names in a folder, the values of its results, its side results, and the sections' methods."""
    files = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if name.startswith(".run/"):
            continue
        if path.suffix == ".h5":
            with h5py.File(path) as file:
                files[name] = file["entry/data/data"][()].tobytes()
        elif path.suffix == ".tif":
            files[name] = path.read_bytes()
        else:
            files[name] = ""
    report = json.loads((folder / "report.json").read_text())
    return files, report["side_results"], [section["methods"] for section in report["sections"]]


@contextmanager
def stopping_after(n_blocks, error=KeyboardInterrupt, lost=()):
    """Stop runs once that many blocks are in the journal; `lost` blocks, by number, never are."""
    done, started, noted = Journal.done, [], []

    def done_or_lost(*args):
        started.append(args)
        if len(started) in lost:
            return True
        noted.append(done(*args))
        if len(noted) == n_blocks:
            raise error
        return noted[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "done", done_or_lost)
        yield


def stop(scan, out, steps=("to_float", "negate"), n_blocks=2, *, match=None, lost=(), **options):
    """Run until `n_blocks` blocks are in the journal."""
    with stopping_after(n_blocks, lost=lost), pytest.raises(KeyboardInterrupt, match=match):
        run(scan, of(steps), out, **{"device": "cpu", "block": 4, **options})


def resume(scan, out, steps=("to_float", "negate"), **options):
    """Resume a stopped run; its report."""
    return run(scan, of(steps), out, **{"device": "cpu", "resume": True, **options})


def watch_folder(watch: Callable[[object, str], object]) -> None:
    """Call `watch` with each function, as its owner and name, that changes the folder of a run.

    Between two of these calls only data change that no line of the journal describes.
    """
    for name in ("note", "side", "done"):
        watch(Journal, name)
    watch(result_sinks, "Sink")
    watch(folder_place, "remove_result")
    for name in ("rename", "unlink", "mkdir"):
        watch(Path, name)
    watch(os, "replace")
    watch(shutil, "rmtree")

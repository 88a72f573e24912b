"""The script that stops runs has runs of all kinds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from maxslices.api import plan

SCRIPT = Path(__file__).parents[2] / "docs/scripts/kill_resume.py"


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("kill_resume", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "kill_resume", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("size", ["small", "middle"])
def test_one_case_has_scratch_files(script, tmp_path, size):
    (case,) = [
        each
        for each in script.make_cases(tmp_path, "cpu", size, ["hdf5"])
        if each.name.startswith("scratch files")
    ]
    _, scan, pipeline, *options = case.arguments
    given = dict(zip(options[::2], options[1::2], strict=True))
    made = plan(scan, pipeline, device="cpu", memory=given["--memory"], block=int(given["--block"]))
    assert made.scratch_bytes > 0

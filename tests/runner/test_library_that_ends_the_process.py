"""A library that ends the process, as FFTW and HDF5 do where they find no memory."""

from __future__ import annotations

import shlex
import subprocess
import sys

import h5py
import numpy as np
import pytest

METHODS = """
import os, signal, sys
from pathlib import Path
from maxslices import from_ledger, method
from maxslices.cli.main import main

@from_ledger
def two(m, shape, dtype):
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)

@method("projection", calc_max_slices=two)
def calls_a_library(data, first_slice):
    if first_slice >= 8 and not Path("mended").exists():
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    return data * 2

sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("signal", ["SIGABRT", "SIGSEGV"])
def test_next_run_names_the_command_that_resumes(tmp_path, signal):
    data = np.random.default_rng(0).random((20, 3, 5), np.float32)
    np.save(tmp_path / "scan.npy", data)
    (tmp_path / "methods.py").write_text(METHODS)
    (tmp_path / "p.yaml").write_text("- method: calls_a_library\n")

    def maxslices(*options):
        command = [sys.executable, "methods.py", signal, "run", "scan.npy", "p.yaml", "out"]
        return subprocess.run(
            [*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )

    broken = maxslices("--device", "cpu", "--block", "2")
    assert broken.returncode < 0
    second = maxslices("--device", "cpu")
    assert second.returncode == 1
    assert "contains an unfinished run" in second.stderr
    (tmp_path / "mended").touch()
    command = second.stderr.partition("resume it with `")[2].partition("`")[0]
    assert shlex.split(command)[-1] == "--resume"
    assert maxslices("--resume").returncode == 0
    with h5py.File(tmp_path / "out" / "result.h5") as file:
        np.testing.assert_array_equal(file["entry/data/data"], data * 2)

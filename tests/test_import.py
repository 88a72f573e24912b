"""Importing the package is light, for those who only declare a method."""

from __future__ import annotations

import subprocess
import sys

import pytest

import maxslices

HEAVY = ["torch", "cupy", "scipy", "h5py", "matplotlib", "tifffile", "yaml", "dask"]


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("import maxslices", HEAVY),
        ("import maxslices; len(maxslices.registry)", ["torch", "cupy"]),
        ("import maxslices_methods", ["scipy.ndimage", "scipy.fft", "scipy.special"]),
        ("import maxslices.cli.main as cli; cli.main(['--help'])", ["torch", "yaml", "h5py"]),
    ],
)
def test_what_is_not_needed_is_not_imported(code, modules):
    code = f"import sys; {code}; print([m for m in {modules!r} if m in sys.modules])"
    assert python(code).splitlines()[-1] == "[]"


def test_what_only_runs_need_is_not_imported_before():
    parts = ["maxslices.api", "maxslices.planner", "maxslices.runner", "maxslices.estimate"]
    code = (
        "import sys, maxslices.cli.main as cli; cli.main(['--help']);"
        f"print([m for m in {parts!r} if m in sys.modules], maxslices.run.__module__)"
    )
    code = "import maxslices;" + code
    assert python(code).splitlines()[-1] == "[] maxslices.api.run_scan"


def test_methods_are_declared_and_checked_without_what_runs_scans():
    missing = sorted({*HEAVY, *maxslices.RUN_MODULES})
    python(
        f"import sys; sys.modules |= dict.fromkeys({missing!r}); import maxslices;"
        "from maxslices.testing import check_max_slices"
    )


POSIX = ("fcntl", "resource", "termios", "pwd", "grp")
ONLY_LINUX = ("sched_getaffinity", "posix_fallocate", "getuid", "O_DIRECTORY", "pread", "statvfs")
CHECK = """
from maxslices import from_ledger, method
from maxslices.testing import check_max_slices

@from_ledger
def needs(m, shape, dtype):
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)

@method("projection", calc_max_slices=needs)
def twice(data):
    return data * 2

print(check_max_slices(twice, (60, 50, 40), "float32", device="cpu").verdict)
"""


def test_methods_are_declared_and_checked_without_posix():
    code = (
        f"import os, sys; sys.modules |= dict.fromkeys({POSIX!r})\n"
        f"for name in {ONLY_LINUX!r}: delattr(os, name)\n"
    )
    assert python(code + CHECK) == "ok\n"

"""Importing the package is light, for those who only declare a method."""

from __future__ import annotations

import subprocess
import sys

import maxslices

HEAVY = ["torch", "cupy", "scipy", "h5py", "matplotlib", "tifffile", "rich", "yaml", "dask"]


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_the_import_loads_no_heavy_library():
    code = f"import sys, maxslices; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert python(code).strip() == "[]"


def test_what_only_runs_need_is_not_imported_before():
    parts = ["maxslices.api", "maxslices.planner", "maxslices.runner", "maxslices.estimate"]
    code = (
        "import sys, maxslices.cli.main as cli; cli.main(['--help']);"
        f"print([m for m in {parts!r} if m in sys.modules], maxslices.run.__module__)"
    )
    code = "import maxslices;" + code
    assert python(code).splitlines()[-1] == "[] maxslices.api.run_scan"


def test_listing_methods_loads_no_gpu_library():
    code = (
        "import sys, maxslices; len(maxslices.registry);"
        "print([m for m in ('torch', 'cupy') if m in sys.modules])"
    )
    assert python(code).strip() == "[]"


def test_methods_are_declared_and_checked_without_what_runs_scans():
    missing = sorted({*HEAVY, *maxslices.RUN_MODULES})
    python(
        f"import sys; sys.modules |= dict.fromkeys({missing!r}); import maxslices;"
        "from maxslices.testing import check_max_slices"
    )

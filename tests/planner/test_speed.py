"""Start-up time of common tasks, as the number of Python calls in a new process."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

STEPS = [
    "remove_outlier", "dark_flat_field_correction", "minus_log", "remove_stripe_based_sorting",
    "remove_stripe_ti", "median_filter", "total_variation_pd",
    {"method": "find_center_vo", "id": "axis", "side_outputs": {"cor": "cor"}},
    {"method": "fbp", "parameters": {"center": "${{axis.side_outputs.cor}}"}}, "minus_log",
]  # fmt: skip
PLAN = f"""
from maxslices import ArraySpec, plan
made = plan(ArraySpec((1801, 2160, 2560), "uint16"), {STEPS}, device="cuda", memory="16GB")
assert sum(len(s.steps) for s in made.sections) == 10
"""
HELP = """
import contextlib, io
from maxslices.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    assert main(["--help"]) == 0
"""
COUNTED = """
import sys
calls = 0
def count(frame, event, arg):
    global calls
    calls += event == "call"
sys.setprofile(count)
{code}
sys.setprofile(None)
print(calls)
"""
IMPORT_CALLS = 15_000
"""7,000 calls, in addition to the 50,000 of NumPy."""
HELP_CALLS = 150_000
"""115,000 calls, 0.26 s of a processor (Python 3.11, 2026-11-23)."""
PLAN_CALLS = 1_000_000
"""760,000 calls, 0.7 s of a processor."""


def calls_of(code: str) -> int:
    """Return the number of calls of Python functions in a new process, including imports."""
    command = [sys.executable, "-c", COUNTED.format(code=code)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_the_import_calls_little():
    assert calls_of("import maxslices") - calls_of("import numpy") < IMPORT_CALLS


def test_help_calls_little():
    assert calls_of(HELP) < HELP_CALLS


@pytest.mark.skipif(find_spec("maxslices_methods") is None, reason="needs maxslices-methods")
def test_a_plan_of_ten_steps_calls_little():
    assert calls_of(PLAN) < PLAN_CALLS

"""What people wait for before anything runs, each in a fresh process with one thread."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

PLAN = """
from maxslices import ArraySpec, plan
made = plan(ArraySpec((1801, 2160, 2560), "uint16"), {steps}, device="cuda", memory="16GB")
assert sum(len(s.steps) for s in made.sections) == 10
"""
STEPS = [
    "remove_outlier", "dark_flat_field_correction", "minus_log", "remove_stripe_based_sorting",
    "remove_stripe_ti", "median_filter", "total_variation_pd",
    {"method": "find_center_vo", "id": "axis", "side_outputs": {"cor": "cor"}},
    {"method": "fbp", "parameters": {"center": "${{axis.side_outputs.cor}}"}}, "minus_log",
]  # fmt: skip


def fastest_s(*command, limit_s, tries=8):
    """Return the shortest processor time of a few runs, the last of them within the limit.

    The machine may be busy otherwise: that makes a run longer, and never shorter.
    """
    found = []
    while len(found) < tries and not (found and found[-1] < limit_s):
        process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        found.append(usage.ru_utime + usage.ru_stime)
    return min(found)


def test_help_is_there_in_half_a_second():
    assert fastest_s("-m", "maxslices.cli.main", "--help", limit_s=0.5) < 0.5


@pytest.mark.skipif(find_spec("maxslices_methods") is None, reason="needs maxslices-methods")
def test_a_plan_of_ten_steps_takes_less_than_a_second():
    assert fastest_s("-c", PLAN.format(steps=STEPS), limit_s=1.0) < 1.0

"""What people wait for before anything runs, each in a fresh process.

Off by default, as all benchmarks are: ``pytest --benchmark-only tests/benchmarks/test_start_up.py``
shows them.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.planner.start_up import PLAN

COMMANDS = {
    "help": ("-m", "maxslices", "--help"),
    "plan of ten steps": ("-c", PLAN),
    "import": ("-c", "import maxslices"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_start_up(benchmark, name):
    command = [sys.executable, *COMMANDS[name]]
    benchmark(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)

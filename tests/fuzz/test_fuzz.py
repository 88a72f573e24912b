"""Each kind of random case for seconds under a fixed seed, which keeps the cases working.

`make fuzz` runs for an hour under new seeds.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from maxslices.errors import SourceError

from . import child
from .__main__ import KINDS

ROOT = Path(__file__).parents[2]


def in_a_process(*arguments):
    """Run Python without threads of ours: a child is forked for each case, and may inherit none."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=600
    )


READ = ["hdf5", "npy", "tiff", "pipelines", "estimators"]
"""Kinds whose cases take milliseconds. Those of the others run a pipeline."""


@pytest.mark.parametrize(
    ("kinds", "n_cases"),
    [(READ, 25), ([kind for kind in KINDS if kind not in READ], 3)],
    ids=["files", "runs"],
)
def test_attacks_find_nothing(kinds, n_cases):
    done = in_a_process("-m", "tests.fuzz", *kinds, "--seed", "7", "--cases", str(n_cases))
    assert done.returncode == 0, done.stdout[-4000:]
    for kind in kinds:
        assert f"{kind:<12}{n_cases:>7}" in done.stdout or f"{kind}: left out" in done.stdout


def fails():
    raise SourceError("it is damaged")


def breaks():
    raise KeyError("a fault")


def takes_memory():
    bytearray(child.GROWTH_BYTES + 2**24)


def spins():
    while True:
        pass


def waits():
    time.sleep(60)


def dies():
    import ctypes
    import faulthandler

    faulthandler.disable()  # the crash is meant: pytest would show it in a run without failures
    ctypes.string_at(0)


def succeeds():
    return None


OUTCOMES = {
    succeeds: "fine",
    fails: "refused",
    breaks: "traceback",
    takes_memory: "memory",
    spins: "hang",
    waits: "hang",
    dies: "died",
}


def outcome_of(name):
    """Print the outcome of one of the cases above, under limits that it reaches at once."""
    child.CPU_S = 1 if name == "spins" else child.CPU_S
    child.WALL_S = 0.2 if name == "waits" else child.WALL_S
    child.GROWTH_BYTES = 2**24
    print(child.in_child(globals()[name]).kind)


@pytest.mark.parametrize(("case", "kind"), OUTCOMES.items())
def test_each_kind_of_fault_is_seen(case, kind):
    code = f"from tests.fuzz.test_fuzz import outcome_of; outcome_of({case.__name__!r})"
    done = in_a_process("-c", code)
    assert (done.stdout.strip(), done.stderr) == (kind, "")


def test_every_kind_is_on_the_page_about_attacks():
    page = (ROOT / "docs" / "attacks.md").read_text()
    assert {kind for kind in KINDS if f"`{kind}`" not in page} == set()

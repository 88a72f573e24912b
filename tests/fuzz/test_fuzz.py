"""Seconds of each attack under a fixed seed, so that the attacks themselves stay in working order.

`make fuzz` attacks for an hour under new seeds.
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


READ = ["hdf5", "npy", "tiff", "pipelines", "estimators"]
"""Kinds whose cases take milliseconds. Those of the others run a pipeline."""


@pytest.mark.parametrize(
    ("kinds", "n_cases"),
    [(READ, 25), ([kind for kind in KINDS if kind not in READ], 3)],
    ids=["what is read", "runs"],
)
def test_attacks_find_nothing(kinds, n_cases):
    """In a process of its own: a child is forked for each case, which must not inherit threads."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *kinds, "--seed", "7", "--cases", str(n_cases)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    for kind in kinds:
        assert f"{kind:<12}{n_cases:>7}" in done.stdout or f"{kind}: left out" in done.stdout


def fails():
    raise SourceError("it is damaged")


def breaks():
    raise KeyError("a fault")


def takes_memory():
    bytearray(child.GROWTH_BYTES + 2**27)


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


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (lambda: None, "fine"),
        (fails, "refused"),
        (breaks, "traceback"),
        (takes_memory, "memory"),
        (spins, "hang"),
        (waits, "hang"),
        (dies, "died"),
    ],
)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_each_kind_of_fault_is_seen(case, kind, monkeypatch):
    monkeypatch.setattr(child, "CPU_S", 1)
    monkeypatch.setattr(child, "WALL_S", 10 if case is not waits else 0.2)
    assert child.in_child(case).kind == kind


def test_every_kind_is_on_the_page_about_attacks():
    page = (ROOT / "docs" / "attacks.md").read_text()
    assert {kind for kind in KINDS if f"`{kind}`" not in page} == set()

"""The report as text and JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

from maxslices import Pipeline, Report, run
from maxslices.runner import SectionReport
from maxslices.runner.report.run_report import BlockUse
from maxslices.runner.report.run_timeline import StageUse
from tests.planner.fakes import fakes

GB = 10**9


def section(**fields):
    defaults = {
        "methods": ("dark_flat_field_correction", "minus_log"),
        "slice_dim": 0,
        "n_slices": 64,
        "block": 32,
        "smallest_block": 32,
        "n_splits": 0,
        "duration_s": 2.0,
        "estimated_bytes": 4 * GB,
        "measured_bytes": 3 * GB,
        "blocks": (BlockUse(0, 32, "as planned"),),
    }
    return SectionReport(**{**defaults, **fields})


STAGES = {
    "read": StageUse(0.24, 0.12, 3 * GB, 2),
    "in": StageUse(1.9, 0.95, 5 * GB, 2),
    "compute": StageUse(0.76, 0.38, 15 * GB, 2),
    "out": StageUse(1.94, 0.97, 107 * GB, 2),
    "write": StageUse(2.0, 1.0, 10 * GB, 2),
}


@pytest.fixture(scope="module")
def ran():
    data = np.zeros((6, 4, 8), np.uint16)
    return run(data, Pipeline.from_steps(["to_float"], fakes), device="cpu")


def report(ran, *sections, **fields):
    return Report(ran.plan, "cpu", sections, {}, (), 2.0, **fields)


@pytest.mark.parametrize(
    ("bound_by", "words"),
    [
        ("read", "bound by reading, 12.5 GB/s"),
        ("link in", "bound by the link in, 2.63 GB/s"),
        ("compute", "bound by computing, 19.7 GB/s"),
        ("write", "bound by writing, 5.00 GB/s"),
        ("overhead", "bound by overhead\n"),
        ("pipeline stalls", "bound by pipeline stalls\n"),
    ],
)
def test_each_bound_has_words(ran, bound_by, words):
    one = section(stages=STAGES, idle_share=0.02, bound_by=bound_by)
    assert words in f"{report(ran, one)}\n"


def test_blocks_that_changed_are_listed(ran):
    blocks = (
        BlockUse(0, 8, "to measure with"),
        BlockUse(8, 32, "measured"),
        BlockUse(40, 16, "memory ran out"),
    )
    text = str(report(ran, section(blocks=blocks)))
    assert "    blocks of 8, 32 from slice 8 on (measured), 16 from slice 40 on (memory ran" in text
    assert "blocks of" not in str(report(ran, section(blocks=blocks[:1])))


def test_low_estimate_is_named_with_the_command_to_measure(ran):
    name = ran.plan.sections[0].limited_by
    kept = str(report(ran, section(estimated_bytes=1000, measured_bytes=1049)))
    missed = str(report(ran, section(estimated_bytes=1000, measured_bytes=1051)))
    assert "too low" not in kept
    assert f"the estimate of {name} is likely too low" in " ".join(missed.split())
    assert f"maxslices measure {name}" in " ".join(missed.split())


def test_the_json_holds_it_all(ran):
    blocks = (BlockUse(0, 8, "chosen"),)
    one = section(stages=STAGES, idle_share=0.02, bound_by="write", blocks=blocks)
    entry = json.loads(report(ran, one).to_json())["sections"][0]
    assert entry["stages"]["read"] == {
        "active_s": 0.24,
        "share": 0.12,
        "n_bytes": 3 * GB,
        "n_spans": 2,
        "gb_per_s": 12.5,
    }
    assert list(entry["stages"]) == ["read", "in", "compute", "out", "write"]
    assert (entry["idle_share"], entry["bound_by"], entry["gb_per_s"]) == (0.02, "write", 5.0)
    assert entry["blocks"] == [{"first_slice": 0, "block": 8, "why": "chosen"}]
    assert (entry["slices_per_s"], entry["ratio"]) == (32.0, 0.75)

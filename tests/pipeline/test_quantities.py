"""Warnings about steps whose data have the wrong quantity."""

from __future__ import annotations

import numpy as np
import pytest

import maxslices
from maxslices import Pipeline

CORRECT, LOG, PAGANIN = "dark_flat_field_correction", "minus_log", "paganin_filter"
WRONG = {
    "logarithm twice": (
        [CORRECT, LOG, PAGANIN, "fbp"],
        "paganin_filter takes transmission, but minus_log gives line integrals",
    ),
    "no logarithm": (
        [CORRECT, "median_filter", "fbp"],
        "fbp takes line integrals or thickness, but dark_flat_field_correction gives transmission",
    ),
    "logarithm after phase": (
        [CORRECT, PAGANIN, LOG],
        "minus_log takes transmission, but paganin_filter gives thickness",
    ),
    "corrected twice": (
        [CORRECT, CORRECT],
        "dark_flat_field_correction takes counts, but "
        "dark_flat_field_correction gives transmission",
    ),
}
RIGHT = {
    "absorption": [CORRECT, "remove_stripe_fw", LOG, "find_center_vo", "fbp", "median_filter"],
    "phase": [CORRECT, "remove_outlier", PAGANIN, "fbp", "total_variation_pd", "rescale_to_int"],
    "sinograms that were prepared elsewhere": ["fbp"],
    "logarithm alone": [LOG, "fbp"],
}


def steps(names):
    glob = {"method": "rescale_to_int", "parameters": {"glob_stats": [0.0, 1.0]}}
    return [glob if name == "rescale_to_int" else name for name in names]


@pytest.mark.parametrize("case", WRONG)
def test_a_mismatch_is_a_warning_with_its_line(tmp_path, case):
    names, text = WRONG[case]
    path = tmp_path / "p.yaml"
    path.write_text("".join(f"- method: {name}\n" for name in names))
    (warning,) = Pipeline.from_file(path).warnings
    assert warning.startswith("p.yaml:")
    assert text in warning
    assert text in " ".join(maxslices.check(path).split())


@pytest.mark.parametrize("names", RIGHT.values(), ids=RIGHT)
def test_the_usual_orders_of_steps_have_no_warning(names):
    assert Pipeline.from_steps(steps(names)).warnings == ()


def test_a_run_warns_and_its_plan_has_a_note():
    data = np.ones((5, 6, 8), np.float32)
    pipeline = Pipeline.from_steps([LOG, LOG])
    with pytest.warns(UserWarning, match="step 2: minus_log takes transmission, but minus_log"):
        report = maxslices.run(data, pipeline, device="cpu")
    assert any("minus_log takes transmission" in note for note in report.plan.notes)

"""A plan of ten steps, for tests and benchmarks of the time before anything runs."""

from __future__ import annotations

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

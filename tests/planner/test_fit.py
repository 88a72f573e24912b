"""What is said of a plan that does not fit, and what `fit="auto"` then does."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxslices import ArraySpec, Pipeline
from maxslices.api.plan_scan import plan_pipeline
from maxslices.core.units import parse_bytes
from maxslices.errors import DoesNotFitError, UsageError
from maxslices.pipeline import ScanSpec
from maxslices.planner import Budgets
from tests.runner.test_fit import fit_fakes

FRAMES = ArraySpec((7, 160, 200), "uint16")
SCAN = ScanSpec(ArraySpec((24, 160, 200), "float32"), FRAMES, FRAMES)
NAMES = ["median", "spread", "turned", "correct", "whole", "lowest", "negate", "work"]


def planned(names, budget, device, **kwargs):
    pipeline = Pipeline.from_steps(names, fit_fakes)
    return plan_pipeline(pipeline, SCAN, Budgets(device, parse_bytes(budget), 10**8), **kwargs)


def fits(names, budget, device, block):
    """Whether it does; that more slices are asked for than a section has room for is no matter."""
    try:
        return planned(names, budget, device, block=block, fit="auto")
    except DoesNotFitError as error:
        return str(error).startswith(f"a block of {block}")


ALLOW = re.compile(r"allow --memory (\S+),")


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3),
    st.integers(2 * 10**5, 3 * 10**7),
    st.sampled_from(["cpu", "cuda"]),
    st.sampled_from([1, 5, "auto", "max"]),
)
def test_what_is_promised_is_done(names, budget, device, block):
    try:
        planned(names, budget, device, block=block)
        advice = ""
    except DoesNotFitError as error:
        advice = str(error)
    try:
        plan = planned(names, budget, device, block=block, fit="auto")
    except DoesNotFitError as error:
        assert advice
        if enough := re.search(r"makes it fit from --memory (\S+) on", str(error)):
            assert f"--fit auto {enough[0]}" in advice
            assert budget < parse_bytes(enough[1]) < parse_bytes(ALLOW.search(advice)[1])
            assert fits(names, enough[1], device, block)
        return
    if advice and not advice.startswith(f"a block of {block}"):
        assert "--fit auto makes it fit, with blocks of up to" in advice
    for section in plan.sections:
        assert section.estimated_bytes <= section.available_bytes
        assert section.host_bytes <= plan.host_budget_bytes
        done = [s.tile for s in section.steps if s.tile] + [s for s in section.steps if s.on_host]
        assert len(section.fitted) == len(done) + section.side_on_host
    if advice == "":
        # What fits is cut for its halo alone, and nothing moves that could round differently.
        assert not any(step.on_host for section in plan.sections for step in section.steps)


def test_a_choice_that_there_is_not():
    with pytest.raises(UsageError, match=r"fit must be 'none' or 'auto', not 'yes'"):
        planned(["median"], 10**7, "cpu", fit="yes")


def test_the_least_memory_with_which_it_fits_is_said():
    with pytest.raises(DoesNotFitError) as failed:
        planned(["spread", "whole"], 10**6, "cuda")
    enough = re.search(
        r"--fit auto makes it fit from --memory (\S+) on: spread ", str(failed.value)
    )
    assert parse_bytes(enough[1]) < parse_bytes(ALLOW.search(str(failed.value))[1])
    assert planned(["spread", "whole"], enough[1], "cuda", fit="auto")
    with pytest.raises(DoesNotFitError):
        planned(["spread", "whole"], int(0.98 * parse_bytes(enough[1])), "cuda", fit="auto")

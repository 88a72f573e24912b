"""Plans as arithmetic, without running anything."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxslices import ArraySpec, Pipeline, Registry, from_ledger
from maxslices.api.plan_scan import plan_pipeline
from maxslices.core.block_memory import PYTHON_BYTES
from maxslices.core.units import format_bytes
from maxslices.errors import DoesNotFitError, EstimatorError, SourceError, UsageError
from maxslices.pipeline import ScanSpec
from maxslices.planner import Budgets
from tests.planner.fakes import fakes
from tests.planner.ledgers import one

SHAPE = (101, 67, 53)
FRAME, SINO = 67 * 53, 101 * 53
MB = 10**6
SHORT = PYTHON_BYTES + 430_000
"""Budget for a few slices only."""


def scan(dtype="float32", **kwargs):
    return ScanSpec(ArraySpec(SHAPE, dtype), **kwargs)


def planned(*steps, of=None, budget=100 * MB, host=None, device="cpu", reserved=0, **kwargs):
    budgets = Budgets(device, budget, budget if host is None else host, reserved)
    return plan_pipeline(Pipeline.from_steps(steps, fakes), of or scan(), budgets, **kwargs)


def cropped(keep):
    return {"method": "crop", "parameters": {"keep": keep}}


def test_shape_and_dtype_follow_the_methods():
    plan = planned("to_float", cropped(11), "work", of=scan("uint16"))
    arrays = [str(step.output) for s in plan.sections for step in s.steps]
    assert arrays == ["101x67x53 float32", "101x67x11 float32", "101x67x11 float32"]
    assert str(plan.sections[0].input) == "101x67x53 uint16"
    assert plan.result_bytes == 101 * 67 * 11 * 4


def test_the_largest_block_is_the_last_that_fits():
    # In and out, the next block that is read meanwhile, the last one that is written.
    needed = PYTHON_BYTES + 4 * 13 * FRAME * 4
    plan = planned("negate", budget=needed, block="max")
    assert (plan.sections[0].block, plan.sections[0].max_block) == (13, 13)
    plan = planned("negate", budget=needed - 1, block="max")
    assert plan.sections[0].block == 12


def test_a_halo_is_in_the_block_and_clipped_at_the_whole():
    steps = planned("neighbours", block=7).sections[0]
    assert steps.steps[0].estimated_bytes == 2 * (7 + 3) * FRAME * 4
    steps = planned("neighbours", block=100).sections[0]
    assert steps.steps[0].estimated_bytes == 2 * 101 * FRAME * 4


def test_frames_are_whole_for_projections_and_rows_for_sinograms():
    frames = ArraySpec((17, 67, 53), "uint16")
    of = scan("uint16", flats=frames, darks=frames)
    section = planned("flat_field", of=of, block=5).sections[0]
    assert section.side_bytes == 2 * 17 * 67 * 53 * 2
    section = planned("flat_field", "work", of=of, block=5).sections[0]
    assert section.side_bytes == 2 * 17 * 5 * 53 * 2


def test_the_limiting_method_is_the_one_with_the_highest_peak():
    many = {"method": "work", "parameters": {"copies": 5}}
    section = planned("work", many, "to_float").sections[0]
    assert section.limited_by == "work"
    assert section.steps[1].estimated_bytes == 7 * section.block * SINO * 4
    assert planned("to_float", "negate", of=scan("uint8")).sections[0].limited_by == "negate"


def test_arrays_between_sections_are_in_memory_if_blocks_stay_as_large():
    plan = planned("negate", "work", block="auto")
    assert [s.destination for s in plan.sections] == ["memory", "result"]
    assert plan.sections[0].host_bytes == plan.sections[0].estimated_bytes + 4 * 101 * FRAME
    assert plan.sections[1].available_bytes == 100 * MB - 4 * 101 * FRAME


def test_arrays_between_sections_are_in_scratch_files_if_memory_is_short():
    plan = planned("negate", "work", "negate", budget=SHORT)
    assert [s.destination for s in plan.sections] == ["scratch file", "scratch file", "result"]
    assert plan.scratch_bytes == 2 * 4 * 101 * FRAME
    assert all(s.available_bytes == SHORT for s in plan.sections)


def test_an_array_between_sections_never_makes_a_block_smaller():
    budget = 2 * 4 * 101 * FRAME + PYTHON_BYTES + 3 * 4 * FRAME
    plan = planned("negate", "work", "negate", budget=budget, block="max")
    alone = planned("negate", budget=budget, block="max")
    assert plan.sections[0].block == alone.sections[0].block
    assert plan.sections[0].destination == "scratch file"


def test_a_result_in_memory_counts_against_the_budget():
    whole = 4 * 101 * FRAME
    with pytest.raises(DoesNotFitError, match=r"in addition to 1.43 MB of stored data"):
        planned("negate", budget=whole + PYTHON_BYTES, result_in_memory=True)
    section = planned("negate", result_in_memory=True).sections[0]
    assert (section.destination, section.available_bytes) == ("memory", 100 * MB - whole)


def test_nothing_is_stored_if_nothing_is_saved():
    plan = planned({"method": "negate", "save_result": False})
    assert (plan.sections[0].destination, plan.result_bytes) == ("nothing", 0)
    assert not plan.sections[0].on_blocks
    plan = planned("find_middle")
    assert (plan.sections[0].destination, plan.sections[0].on_blocks) == ("nothing", False)
    assert planned("extremes").sections[0].on_blocks


def test_a_slice_that_does_not_fit_is_reported_with_method_memory_and_remedy():
    many = {"method": "work", "parameters": {"copies": 200}}
    with pytest.raises(DoesNotFitError) as caught:
        planned("negate", many, budget=3 * MB)
    # One block at a time, and the buffer of a thread that writes a sinogram.
    needed = (202 + 1) * SINO * 4 + PYTHON_BYTES
    text = str(caught.value)
    assert text.startswith(
        f"work needs {needed / 1e6:.2f} MB for one sinogram of 101x53 float32, but 3.00 MB are "
        "available: allow --memory "
    )
    advised = re.search(r"--memory ([\d.]+)MB", text)
    assert 0 <= float(advised[1]) * MB - needed < 0.02 * MB
    planned("negate", many, budget=round(float(advised[1]) * MB))


def test_the_section_that_lacks_most_is_reported_first():
    small = {"method": "work", "parameters": {"copies": 100}}
    large = {"method": "reaching", "parameters": {"reach": 50}}
    with pytest.raises(DoesNotFitError, match=r"^reaching needs .* \(with a halo of 50\+50\)"):
        planned(small, large, budget=1 * MB)


def test_frames_that_do_not_fit_are_named():
    frames = ArraySpec((200, 67, 53), "uint16")
    with pytest.raises(DoesNotFitError, match=r"including 1\.42 MB of flats and darks"):
        planned("flat_field", of=scan("uint16", flats=frames), budget=1 * MB)


def test_a_block_that_does_not_fit_is_reported_with_one_that_fits():
    with pytest.raises(DoesNotFitError, match=r"a block of 90 projections .* allow (\d+): use"):
        planned("negate", budget=SHORT, block=90)


def test_a_block_that_is_advised_fits_in_every_section():
    steps = "negate", {"method": "work", "parameters": {"copies": 5}}
    with pytest.raises(DoesNotFitError) as caught:
        planned(*steps, budget=5 * MB, block=60)
    advised = int(re.search(r"--block (\d+)", str(caught.value))[1])
    assert all(s.block == advised for s in planned(*steps, budget=5 * MB, block=advised).sections)


@pytest.mark.parametrize("block", [0, -1, True, "all", 2.5, None])
def test_an_invalid_block_is_refused(block):
    with pytest.raises(UsageError, match="'auto', 'max' or a positive number"):
        planned("negate", block=block)


def test_the_budget_on_a_gpu_must_exceed_its_context():
    with pytest.raises(DoesNotFitError, match="not more than the 800 MB"):
        planned("negate", device="cuda", budget=700 * MB, reserved=800 * MB)


def test_host_memory_limits_the_block_on_a_gpu_too():
    # Two blocks are read to and copied from, three halves of a result copied to and written.
    needed = PYTHON_BYTES + (2 * 10 + 3 * 5) * 4 * FRAME
    section = planned("negate", device="cuda", host=needed, block="max").sections[0]
    assert section.max_block == 10
    assert "host memory allow 10" in section.why
    assert section.host_bytes == needed
    section = planned("negate", device="cuda", host=needed - 1, block="max").sections[0]
    assert section.max_block == 9


def test_too_little_host_memory_of_a_gpu_run_is_reported():
    needed = format_bytes(PYTHON_BYTES + 3 * 4 * FRAME)
    with pytest.raises(
        DoesNotFitError, match=rf"needs {needed} of host memory, .* --host-memory [\d.]+MB"
    ):
        planned("negate", device="cuda", host=10_000)


def test_pinned_scans_and_results_need_no_staging():
    kwargs = {"device": "cuda", "block": 10, "result_in_memory": True}
    staged = planned("negate", **kwargs).sections[0]
    direct = planned("negate", of=scan(in_memory=True), result_is_direct=True, **kwargs)
    assert direct.sections[0].host_bytes == PYTHON_BYTES + 4 * 101 * FRAME  # the result
    assert staged.host_bytes - direct.sections[0].host_bytes == (2 * 10 + 3 * 5) * 4 * FRAME


def looking_at_fifty():
    """Return a pipeline of a method that samples fifty slices."""
    registry = Registry()
    registry.register(
        lambda data: 1.0, name="look", pattern="sinogram", calc_max_slices=one,
        side_results=("value",), sample_slices=lambda n_slices: range(3, 53),
    )  # fmt: skip
    return Pipeline.from_steps(["look"], registry)


def test_host_memory_includes_sampled_slices():
    pipeline = looking_at_fifty()
    plan = plan_pipeline(pipeline, scan(), Budgets("cuda", 100 * MB, 100 * MB), block=1)
    # They are read, and go to the device through staging memory of as much.
    assert plan.sections[0].host_bytes == PYTHON_BYTES + 2 * 50 * SINO * 4


def test_spare_host_memory_keeps_a_part_of_a_scratch_file():
    whole, blocks = 4 * 101 * FRAME, {"block": 1, "device": "cuda", "budget": MB}
    budget = PYTHON_BYTES + whole // 2
    plan = planned("negate", "work", "negate", host=budget, **blocks)
    first, second, third = plan.sections
    assert [first.destination, second.destination] == ["scratch file", "scratch file"]
    staging = [(2 + 3) * 4 * FRAME, (2 + 3) * 4 * SINO]
    assert 0 < first.kept_bytes <= (budget - PYTHON_BYTES - max(staging)) * 3 // 4
    assert 0 < second.kept_bytes < first.kept_bytes  # in addition to the first
    assert third.kept_bytes == 0
    for section, kept_bytes in (
        (first, first.kept_bytes),
        (second, first.kept_bytes + second.kept_bytes),
        (third, second.kept_bytes),
    ):
        assert PYTHON_BYTES + kept_bytes < section.host_bytes <= budget
    assert planned("negate", "work", budget=SHORT + MB, block=1).sections[0].kept_bytes == 0


def test_arrays_between_sections_stay_on_a_gpu_if_they_fit():
    whole = -(-4 * 101 * FRAME // 512) * 512
    plan = planned("negate", "work", device="cuda")
    assert [s.destination for s in plan.sections] == ["device", "result"]
    assert [s.stored_bytes for s in plan.sections] == [whole, whole]
    assert {s.available_bytes for s in plan.sections} == {100 * MB - whole}
    # Otherwise in the host's memory, which takes nothing from the device, or in a file.
    plan = planned("negate", "work", device="cuda", budget=2 * MB, host=100 * MB)
    assert [s.destination for s in plan.sections] == ["memory", "result"]
    assert {s.available_bytes for s in plan.sections} == {2 * MB}
    assert min(s.host_bytes for s in plan.sections) > whole
    plan = planned("negate", "work", device="cuda", budget=2 * MB, host=PYTHON_BYTES + 2 * MB)
    assert plan.sections[0].destination == "scratch file"


@pytest.mark.parametrize("name", ["flats", "angles"])
def test_missing_data_of_a_scan_are_reported_before_the_run(name):
    step = {"flats": "flat_field", "angles": "turn"}[name]
    with pytest.raises(SourceError, match=f"a.nxs has no {name}, which {step} needs: set"):
        planned(step, of=scan(has_angles=False, name="a.nxs"))


def test_frames_of_another_shape_than_the_data_are_refused():
    of = scan(flats=ArraySpec((5, 67, 53), "uint16"))
    with pytest.raises(SourceError, match="flat_field receives flats of 67x53 for data of 67x11"):
        planned(cropped(11), "flat_field", of=of)


def test_a_failing_estimator_is_not_reported_as_too_little_memory():
    registry = Registry()

    @from_ledger
    def broken(m, shape, dtype):
        raise ZeroDivisionError("division by zero")

    registry.register(lambda data: data, name="bad", pattern="all", calc_max_slices=broken)
    with pytest.raises(EstimatorError, match="bad"):
        plan_pipeline(Pipeline.from_steps(["bad"], registry), scan(), Budgets("cpu", MB, MB))


NAMES = ("to_float", "negate", "work", "neighbours", "reaching", "extremes", "find_middle")
STEPS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=5)


@settings(max_examples=80, deadline=None)
@given(
    steps=STEPS,
    budget=st.integers(PYTHON_BYTES + 500_000, 12 * MB),
    device=st.sampled_from(["cpu", "cuda"]),
    block=st.sampled_from(["auto", "max", 1, 5]),
    in_memory=st.booleans(),
)
def test_every_plan_stays_within_its_budgets(steps, budget, device, block, in_memory):
    try:
        plan = planned(
            *steps, budget=budget, device=device, block=block, result_in_memory=in_memory
        )
    except DoesNotFitError:
        return
    position = 0
    for section in plan.sections:
        position += len(section.steps)
        assert 1 <= section.block <= section.max_block <= section.n_slices
        assert (section.n_blocks - 1) * section.block < section.n_slices
        assert section.n_blocks * section.block >= section.n_slices
        assert section.estimated_bytes <= section.available_bytes <= budget
        assert section.host_bytes <= budget
        assert max(step.estimated_bytes for step in section.steps) <= section.estimated_bytes
        if block == "max" and section.max_block < section.n_slices and device == "cpu":
            # One slice more is at most this much: four in the hungriest of the methods, its place,
            # the next one and the last one, and what the threads hold that read and write.
            one_more = (4 + 3 + 2) * max(FRAME, SINO) * 4
            assert section.estimated_bytes + one_more > section.available_bytes
    assert position == len(steps)
    assert all(len(line) <= 100 for line in str(plan).splitlines())
    assert json.loads(plan.to_json()) == plan.to_dict()


def test_parameters_without_json_type_become_text():
    registry = Registry()
    registry.register(lambda data, value=None: data, name="any", pattern="all", calc_max_slices=one)
    value = [np.float32(1.5), float("inf"), {"a": np.arange(2)}, (1, 2), object]
    steps = [{"method": "any", "parameters": {"value": value}}]
    plan = plan_pipeline(Pipeline.from_steps(steps, registry), scan(), Budgets("cpu", SHORT, SHORT))
    written = json.loads(plan.to_json())["sections"][0]["steps"][0]["parameters"]["value"]
    assert written == [1.5, "inf", {"a": [0, 1]}, [1, 2], "<class 'object'>"]


def test_long_names_are_not_truncated_and_lines_are_wrapped():
    registry, name = Registry(), "m" * 70
    registry.register(lambda data: data, name=name, pattern="all", calc_max_slices=one)
    path = "/very/long" * 30 + "/scan.nxs"
    plan = plan_pipeline(
        Pipeline.from_steps([name], registry), scan(name=path), Budgets("cpu", SHORT, SHORT)
    )
    text = str(plan)
    assert name in text
    assert path in text.replace("\n    ", "")
    assert all(len(line) <= 100 for line in text.splitlines())


def test_arrays_between_sections_take_at_most_half_of_the_memory():
    whole, of = 16 * 101 * FRAME, scan("complex128")
    plan = planned("negate", "work", of=of, budget=2 * whole - 1, block=1)
    assert plan.sections[0].destination == "scratch file"
    plan = planned("negate", "work", of=of, budget=2 * whole, block=1)
    assert plan.sections[0].destination == "memory"


def test_sampled_slices_must_fit_together():
    pipeline = looking_at_fifty()
    needed = 50 * SINO * 4 + PYTHON_BYTES
    plan = plan_pipeline(pipeline, scan(), Budgets("cpu", needed, needed), block=1)
    assert plan.sections[0].estimated_bytes == needed
    with pytest.raises(DoesNotFitError, match=r"^look needs .* the 50 sinograms that it samples"):
        plan_pipeline(pipeline, scan(), Budgets("cpu", needed - 1, needed - 1), block=1)


def test_an_estimator_for_cuda_only_is_marked_on_the_cpu():
    registry = Registry()

    def estimate(slice_dim, other_dims, dtype, available_memory):
        return available_memory // (2 * other_dims[0] * other_dims[1] * dtype.itemsize), dtype

    registry.register(lambda data: data, name="old", pattern="all", calc_max_slices=estimate)
    pipeline = Pipeline.from_steps(["old"], registry)
    for device, expected in (("cuda", "declared"), ("cpu", "declared for CUDA")):
        plan = plan_pipeline(pipeline, scan(), Budgets(device, 9 * MB, 9 * MB))
        assert plan.sections[0].steps[0].estimator == expected
        assert plan.sections[0].steps[0].estimated_bytes == 2 * plan.sections[0].block * FRAME * 4

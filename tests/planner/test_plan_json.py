"""Plans are written as JSON, read back, and carried out elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import maxslices
from maxslices import ArraySpec, Pipeline, Plan
from maxslices.api.plan_scan import plan_pipeline
from maxslices.api.resources import budgets_of
from maxslices.core.units import parse_bytes
from maxslices.errors import PlanError, UsageError
from maxslices.pipeline import ScanSpec
from maxslices.planner import Budgets, MadeFor, SectionPlan, StepPlan
from maxslices.system.threads import MOST_THREADS
from tests.planner.fakes import fakes

SCAN = ScanSpec(ArraySpec((101, 67, 53), "uint16"), ArraySpec((3, 67, 53), "uint16"))
PIPELINES = {
    "one": ["negate"],
    "many": ["to_float", "negate", "work", "neighbours", "extremes"],
    "looks": [{"method": "find_middle", "id": "a", "side_outputs": {"cor": "c"}},
              {"method": "scaled_by", "parameters": {"centre": "${{a.side_outputs.c}}"}}],
    "frames": [{"method": "flat_field", "save_result": True}, "work"],
    "values": [{"method": "scaled_by", "parameters": {"centre": float("inf"), "note": "a\u2028b"}}],
}  # fmt: skip


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
@pytest.mark.parametrize("block", ["auto", "max", 3])
def test_from_json_is_the_inverse_of_to_json(name, device, block):
    pipeline = Pipeline.from_steps(PIPELINES[name], fakes)
    size = parse_bytes("20MB")
    plan = plan_pipeline(pipeline, SCAN, Budgets(device, size, size), block=block)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.to_json() == plan.to_json()
    assert str(again) == str(plan)
    assert isinstance(again.sections[0], SectionPlan)
    assert isinstance(again.sections[0].steps[0], StepPlan)


def a_plan():
    pipeline = Pipeline.from_steps(["negate"], fakes)
    return json.loads(plan_pipeline(pipeline, SCAN, Budgets("cpu", 10**8, 10**8)).to_json())


def without(*keys):
    content = at = a_plan()
    for key in keys[:-1]:
        at = at[key]
    del at[keys[-1]]
    return json.dumps(content)


def with_value(value, *keys):
    content = at = a_plan()
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    return json.dumps(content)


def shaped(shape):
    return {"shape": shape, "dtype": "float32"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[" * 10_000, "not JSON"),
        ("[]", "plan: Expected `object`, got `array`"),
        ("{}", "plan: Object missing required field `scan`"),
        (without("sections", 0, "block"), "plan.sections.*: .* missing required field `block`"),
        (with_value(True, "budget_bytes"), "budget_bytes: Expected `int`, got `bool`"),
        (with_value("moon", "sections", 0, "origin"), "origin: Invalid enum value 'moon'"),
        (with_value(shaped([1.5, 2, 3]), "sections", 0, "steps", 0, "input"), "Expected `int`"),
        (with_value(shaped([-1, 2, 3]), "sections", 0, "steps", 0, "input"), "at least 1"),
        (with_value(-1, "sections", 0, "host_bytes"), "host_bytes must be at least 0, not -1"),
        (with_value(10**400, "scratch_bytes"), "scratch_bytes must be at most 9223372036854775807"),
        ('{"scan": "a", "scan": "b"}', "repeats the key 'scan'"),
    ],
)
def test_text_that_is_not_a_plan_is_refused_in_one_line(text, message):
    with pytest.raises(UsageError, match=message) as caught:
        Plan.from_json(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("steps", [], "steps must be a list of at least one"),
        ("slice_dim", 2, "slice_dim must be 0 or 1"),
        ("n_slices", 100, "n_slices must be 101, not 100"),
        ("halo", [-1, 0], "halo must be at least 0"),
        ("block", 0, "block must be a number from 1 to 101, not 0"),
        ("block", 102, "block must be"),
        ("max_block", 1, "max_block must be a number from"),
        ("limiting_step", 1, "limiting_step must be one of 0, not 1"),
        ("estimated_bytes", 10**9, "estimated_bytes must be at most .*, the available bytes"),
        ("available_bytes", 10**9, "available_bytes must be at most 100000000, the budget"),
        ("origin", "memory", "origin must be 'scan'"),
        ("destination", "scratch file", "destination must be one of 'memory'"),
        ("on_blocks", False, "on_blocks must be true"),
        ("kept_bytes", 1, "kept_bytes must be at most 0"),
    ],
)
def test_inconsistent_numbers_of_a_section_are_refused(name, value, message):
    with pytest.raises(UsageError, match=rf"plan.sections\[0\].{message}"):
        Plan.from_json(with_value(value, "sections", 0, name))


def test_sections_that_do_not_follow_from_each_other_are_refused():
    pipeline = Pipeline.from_steps(PIPELINES["many"], fakes)
    plan = plan_pipeline(pipeline, SCAN, Budgets("cpu", 10**8, 10**8))
    assert len(plan.sections) > 1
    first, *later = json.loads(plan.to_json())["sections"]
    for sections, message in (
        ([], "at least one section"),
        ([*later], "index must be 0"),
        ([first, first], "index must be"),
        ([first, later[0] | {"origin": "scan"}, *later[1:]], r"sections\[1\].origin must be"),
    ):
        value = json.loads(plan.to_json()) | {"sections": sections}
        with pytest.raises(UsageError, match=message):
            Plan.from_json(json.dumps(value))


DATA = np.random.default_rng(3).integers(1, 99, (31, 17, 13)).astype("uint16")
STEPS = ["to_float", "work", {"method": "scaled_by", "parameters": {"centre": 2.0}}]


def of(steps):
    return Pipeline.from_steps(steps, fakes)


def planned(data=DATA, steps=STEPS, **kwargs):
    plan = maxslices.plan(data, of(steps), device="cpu", **kwargs)
    return Plan.from_json(plan.to_json())


def holds_numbers(item):
    import h5py

    return isinstance(item, h5py.Dataset) and item.dtype.kind in "uif"


def results(folder):
    import h5py

    with h5py.File(folder / "result.h5") as file:
        content = []
        file.visititems(
            lambda name, item: content.append(item[...]) if holds_numbers(item) else None
        )
    return content


@pytest.mark.parametrize("block", ["auto", "max", 3])
@pytest.mark.parametrize("memory", ["100MB", "5.15MB"])
def test_a_run_of_a_plan_is_bitwise_one_that_plans_itself(tmp_path, block, memory):
    kwargs = {"memory": memory, "block": block}
    itself = maxslices.run(DATA, of(STEPS), tmp_path / "a", device="cpu", **kwargs)
    report = maxslices.run(DATA, of(STEPS), tmp_path / "b", plan=planned(**kwargs))
    assert report.plan == itself.plan
    for one, other in zip(results(tmp_path / "a"), results(tmp_path / "b"), strict=True):
        assert one.tobytes() == other.tobytes()


def test_the_plan_of_a_report_is_carried_out_in_memory_again():
    first = maxslices.run(DATA, of(STEPS), device="cpu", memory="50MB", block=4)
    again = maxslices.run(DATA, of(STEPS), plan=first.plan)
    assert again.result.tobytes() == first.result.tobytes()


@pytest.mark.parametrize(
    ("data", "steps", "message"),
    [
        (DATA[:, :16], STEPS, "projections of the scan is 31x16x13 uint16; the plan is for 31x17"),
        (DATA.astype("int32"), STEPS, "projections of the scan is 31x17x13 int32"),
        (DATA, STEPS[:-1], r"step 3 of the pipeline is none; the plan is for [\w.]+scaled_by$"),
        (
            DATA,
            [*STEPS, "negate"],
            r"step 4 of the pipeline is [\w.]+negate; the plan is for none$",
        ),
        (
            DATA,
            STEPS[1:],
            r"else: step 1 of the pipeline is [\w.]+; the plan is for [\w.]+to_float$",
        ),
        (
            DATA,
            [*STEPS[:2], {"method": "scaled_by", "parameters": {"centre": 2.5}}],
            r"parameters of the pipeline is {'centre': 2.5}; the plan is for {'centre': 2.0}",
        ),
        (DATA, [{"method": "to_float", "save_result": True}, *STEPS[1:]], "save_result .* True"),
    ],
)
def test_a_plan_for_something_else_is_refused_with_the_difference(tmp_path, data, steps, message):
    with pytest.raises(PlanError, match=message):
        maxslices.run(data, of(steps), tmp_path / "out", plan=planned())
    assert not (tmp_path / "out").exists()


def test_a_plan_for_another_device_or_version_is_refused(tmp_path):
    value = json.loads(planned().to_json())
    value["made_for"]["device"] = "cuda"
    value["made_for"]["versions"]["numpy"] = "1.0"
    with pytest.raises(PlanError, match=r"device is cpu, .* for cuda; numpy installed is .* 1\.0"):
        maxslices.run(
            DATA, of(STEPS), tmp_path, device="cpu", plan=Plan.from_json(json.dumps(value))
        )


def test_a_plan_for_fewer_cores_is_refused(tmp_path):
    value = json.loads(planned().to_json())
    n_cores = value["made_for"]["n_cores"]
    value["made_for"]["n_cores"] = n_cores - 1
    message = rf"{n_cores} cores may be used here, but the plan is for {n_cores - 1}"
    with pytest.raises(PlanError, match=message):
        maxslices.run(DATA, of(STEPS), tmp_path, plan=Plan.from_json(json.dumps(value)))
    value["made_for"]["n_cores"] = n_cores + 1
    maxslices.run(DATA, of(STEPS), tmp_path, plan=Plan.from_json(json.dumps(value)))


def test_a_plan_for_a_gpu_is_the_same_on_hosts_with_any_number_of_cores():
    budgets, _ = budgets_of("cuda", "10MB", "10MB", False)
    assert budgets.n_threads == MOST_THREADS
    assert MadeFor(device="cuda").differences(MadeFor(device="cuda", n_cores=64)) == []


def edited(plan, **values):
    value = json.loads(plan.to_json())
    value["sections"][0] |= values
    return Plan.from_json(json.dumps(value))


def test_sections_that_are_not_the_pipelines_are_refused(tmp_path):
    for values, message in (
        ({"halo": [1, 0]}, "sections are not those of the pipeline"),
        ({"destination": "nothing"}, "'nothing'; the pipeline saves a result"),
    ):
        with pytest.raises(PlanError, match=message):
            maxslices.run(
                DATA, of(STEPS[:1]), tmp_path, plan=edited(planned(steps=STEPS[:1]), **values)
            )
    plan = planned(steps=STEPS[:2])
    value = json.loads(plan.to_json())
    value["sections"][0]["steps"][1]["method"] = "elsewhere.other"
    with pytest.raises(PlanError, match="sections are not those of the pipeline"):
        maxslices.run(DATA, of(STEPS[:2]), tmp_path, plan=Plan.from_json(json.dumps(value)))


def test_an_inconsistent_plan_made_in_python_is_refused(tmp_path):
    plan = planned()
    broken = replace(plan, sections=(replace(plan.sections[0], block=0), *plan.sections[1:]))
    with pytest.raises(UsageError, match="block must be a number from 1"):
        maxslices.run(DATA, of(STEPS), tmp_path / "out", plan=broken)


def test_a_plan_for_a_scan_in_memory_is_refused_for_one_that_is_read(tmp_path):
    import h5py

    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["exchange/data"] = DATA
    from_file = maxslices.plan(tmp_path / "scan.h5", of(STEPS), device="cpu")
    assert maxslices.run(DATA, of(STEPS), tmp_path / "out", plan=from_file).files
    with pytest.raises(PlanError, match="the scan must be read"):
        maxslices.run(tmp_path / "scan.h5", of(STEPS), tmp_path / "out2", plan=planned())


def test_a_package_that_was_missing_when_planning_is_ignored(tmp_path):
    value = json.loads(planned().to_json())
    value["made_for"]["versions"]["cupy"] = None
    maxslices.run(DATA, of(STEPS), tmp_path / "out", plan=Plan.from_json(json.dumps(value)))


def test_a_plan_that_needs_more_than_is_free_is_refused(tmp_path, monkeypatch):
    plan = planned(memory="100MB")
    monkeypatch.setattr("maxslices.devices.cpu.CpuBackend.free_bytes", lambda self: 10_000)
    with pytest.raises(PlanError, match=r"needs .* of host memory, and 10.0 kB are free \(cpu\)"):
        maxslices.run(DATA, of(STEPS), tmp_path / "out", plan=plan)


@pytest.mark.parametrize("given", [{"memory": "1GB"}, {"block": 3}, {"estimator": "declared"}])
def test_options_of_a_plan_cannot_be_passed_with_it(given):
    with pytest.raises(UsageError, match=f"{next(iter(given))} cannot be combined with a plan"):
        maxslices.run(DATA, of(STEPS), plan=planned(), **given)


def test_where_the_result_goes_is_the_plans(tmp_path):
    with pytest.raises(PlanError, match="to a folder: name one"):
        maxslices.run(DATA, of(STEPS), plan=planned())
    in_memory = maxslices.run(DATA, of(STEPS), device="cpu").plan
    with pytest.raises(PlanError, match="in memory: leave out the folder"):
        maxslices.run(DATA, of(STEPS), tmp_path / "out", plan=in_memory)


def test_two_steps_of_the_same_method_are_distinguished():
    pipeline = of(["negate", {"method": "negate"}, "work", "negate"])
    plan = plan_pipeline(pipeline, SCAN, Budgets("cpu", 10**8, 10**8))
    assert [step.index for section in plan.sections for step in section.steps] == [0, 1, 2, 3]
    assert plan.sections[0].limiting_step in (0, 1)

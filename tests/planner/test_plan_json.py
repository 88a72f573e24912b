"""A plan is data: it can be written as JSON, read back, and carried out elsewhere."""

from __future__ import annotations

import json

import numpy as np
import pytest

import maxslices
from maxslices import ArraySpec, Pipeline, Plan
from maxslices.api.plan_scan import plan_pipeline
from maxslices.errors import PlanError, UsageError
from maxslices.model.units import parse_bytes
from maxslices.pipeline import ScanSpec
from maxslices.planner import Budgets, SectionPlan, StepPlan
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
    made = plan_pipeline(pipeline, SCAN, Budgets(device, size, size), block=block)
    again = Plan.from_json(made.to_json())
    assert again == made
    assert again.to_json() == made.to_json()
    assert str(again) == str(made)
    assert isinstance(again.sections[0], SectionPlan)
    assert isinstance(again.sections[0].steps[0], StepPlan)


def a_plan():
    pipeline = Pipeline.from_steps(["negate"], fakes)
    return json.loads(plan_pipeline(pipeline, SCAN, Budgets("cpu", 10**8, 10**8)).to_json())


def without(*keys):
    found = at = a_plan()
    for key in keys[:-1]:
        at = at[key]
    del at[keys[-1]]
    return json.dumps(found)


def with_value(value, *keys):
    found = at = a_plan()
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    return json.dumps(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[" * 10_000, "not JSON"),
        ("[]", "plan must be an object"),
        ("{}", "plan.scan is missing"),
        (without("sections", 0, "block"), r"plan.sections\[0\].block is missing"),
        (with_value("3", "sections", 0, "block"), r"sections\[0\].block must be of type int"),
        (with_value(True, "budget_bytes"), "budget_bytes must be of type int, not True"),
        (with_value("moon", "sections", 0, "origin"), "origin must be one of .*'scan'"),
        (with_value([1], "sections", 0, "halo"), "halo must be a list of 2"),
        (with_value({"shape": 3}, "sections", 0, "steps", 0, "input"), "shape and dtype"),
    ],
)
def test_what_is_no_plan_is_told_in_a_line(text, said):
    with pytest.raises(UsageError, match=said):
        Plan.from_json(text)


DATA = np.random.default_rng(3).integers(1, 99, (31, 17, 13)).astype("uint16")
STEPS = ["to_float", "work", {"method": "scaled_by", "parameters": {"centre": 2.0}}]


def of(steps):
    return Pipeline.from_steps(steps, fakes)


def planned(data=DATA, steps=STEPS, **kwargs):
    made = maxslices.plan(data, of(steps), device="cpu", **kwargs)
    return Plan.from_json(made.to_json())


def results(folder):
    import h5py

    with h5py.File(folder / "result.h5") as file:
        found = []
        file.visititems(
            lambda name, item: found.append(item[...]) if isinstance(item, h5py.Dataset) else None
        )
    return found


@pytest.mark.parametrize("block", ["auto", "max", 3])
@pytest.mark.parametrize("memory", ["100MB", "2MB"])
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
    ("data", "steps", "said"),
    [
        (DATA[:, :16], STEPS, "projections of the scan is 31x16x13 uint16; the plan is for 31x17"),
        (DATA.astype("int32"), STEPS, "projections of the scan is 31x17x13 int32"),
        (DATA, STEPS[:-1], "step 3"),
        (DATA, [*STEPS, "negate"], "step 4"),
        (DATA, ["negate", *STEPS[1:]], "step 1 .*negate.*method"),
        (
            DATA,
            [*STEPS[:2], {"method": "scaled_by", "parameters": {"centre": 2.5}}],
            r"parameters of the pipeline is {'centre': 2.5}; the plan is for {'centre': 2.0}",
        ),
        (DATA, [{"method": "to_float", "save_result": True}, *STEPS[1:]], "save_result .* True"),
    ],
)
def test_a_plan_for_something_else_is_refused_with_the_difference(tmp_path, data, steps, said):
    with pytest.raises(PlanError, match=said):
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


def test_a_package_that_was_missing_where_the_plan_was_made_says_nothing(tmp_path):
    value = json.loads(planned().to_json())
    value["made_for"]["versions"]["cupy"] = None
    maxslices.run(DATA, of(STEPS), tmp_path / "out", plan=Plan.from_json(json.dumps(value)))


def test_a_plan_that_needs_more_than_is_free_is_refused(tmp_path, monkeypatch):
    made = planned(memory="100MB")
    monkeypatch.setattr("maxslices.devices.cpu.CpuBackend.free_bytes", lambda self: 10_000)
    with pytest.raises(PlanError, match=r"needs .* on cpu, where 10.0 kB are free"):
        maxslices.run(DATA, of(STEPS), tmp_path / "out", plan=made)


@pytest.mark.parametrize(
    "given", [{"memory": "1GB"}, {"block": 3}, {"fit": "auto"}, {"estimator": "declared"}]
)
def test_what_a_plan_holds_is_not_given_beside_it(given):
    with pytest.raises(UsageError, match=f"{next(iter(given))} cannot be given with a plan"):
        maxslices.run(DATA, of(STEPS), plan=planned(), **given)


def test_where_the_result_goes_is_the_plans(tmp_path):
    with pytest.raises(PlanError, match="to a folder: name one"):
        maxslices.run(DATA, of(STEPS), plan=planned())
    in_memory = maxslices.run(DATA, of(STEPS), device="cpu").plan
    with pytest.raises(PlanError, match="in memory: leave out the folder"):
        maxslices.run(DATA, of(STEPS), tmp_path / "out", plan=in_memory)


def test_two_steps_of_one_method_are_told_apart():
    pipeline = of(["negate", {"method": "negate"}, "work", "negate"])
    made = plan_pipeline(pipeline, SCAN, Budgets("cpu", 10**8, 10**8))
    assert [step.index for section in made.sections for step in section.steps] == [0, 1, 2, 3]
    assert made.sections[0].limiting_step in (0, 1)


def test_the_planner_imports_no_device_no_file_and_nothing_that_measures():
    import subprocess
    import sys

    code = (
        "import sys, maxslices.planner\n"
        "parts = 'devices', 'io', 'estimate', 'measure', 'runner', 'pipeline', 'system', 'tuning'\n"
        "print([h for h in parts if f'maxslices.{h}' in sys.modules], "
        "[m for m in ('cupy', 'torch', 'h5py', 'yaml') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[] []"

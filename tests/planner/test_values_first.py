"""Values of references that a plan depends on are computed before planning."""

from __future__ import annotations

import os

import h5py
import numpy as np
import pytest

from maxslices import Pipeline, Plan, Registry, check, from_ledger, method, plan, run
from maxslices.errors import MethodError, PlanError, UnknownReferenceError
from tests.planner.ledgers import two

registry = Registry()
FOUND = 9


@from_ledger
def _copies_bytes(m, shape, dtype, copies):
    m.alloc(shape, dtype)
    m.alloc((copies, *shape), np.float32)
    m.alloc(shape, np.float32)


def _sampled(function, name, **declared):
    return method(
        "projection",
        side_results=[name],
        calc_max_slices=two,
        registry=registry,
        **declared,
    )(function)


def find_size(data):
    """Return the size that the tests plan with."""
    return FOUND


def find_in_all(data):
    """Return the same from every block."""
    return FOUND


def value_at(data, *, ind: int = 0):
    """Return the first value of one slice."""
    return float(data[0, 0, 0])


_sampled(find_size, "size", sample_slices=lambda n: [n // 2])
_sampled(find_in_all, "size", combine=max)
_sampled(value_at, "value", sample_slices=lambda n, ind: [ind])


@method("projection", calc_max_slices=two, halo=lambda size: size // 2, registry=registry)
def smooth(data, *, size: int = 3):
    """Mean of neighbouring slices, with the slices at the ends repeated."""
    before = size // 2
    padded = np.pad(data, ((before, before), (0, 0), (0, 0)), mode="edge")
    return sum(padded[i : i + len(data)] for i in range(size)) / np.float32(size)


@method("projection", calc_max_slices=_copies_bytes, registry=registry)
def with_copies(data, *, copies: int = 1):
    """Add ones that take as much memory as the copies."""
    return data + np.ones((copies, *data.shape), np.float32)[0]


@method(
    "projection",
    calc_max_slices=two,
    output_dims=lambda other_dims, size: (size, other_dims[1]),
    registry=registry,
)
def cut_rows(data, *, size: int = 4):
    """Keep the first rows."""
    return data[:, :size].copy()


@method(
    "projection",
    calc_max_slices=two,
    output_dtype=lambda dtype, bits: f"float{32 if bits == 9 else 64}",
    registry=registry,
)
def as_float(data, *, bits: int = 64):
    """Convert, by a number of bits."""
    return data.astype(np.float32 if bits == 9 else np.float64)


@method("projection", calc_max_slices=two, registry=registry)
def add(data, *, value: float = 0.0):
    """Add a value that has no influence on plans."""
    return data + np.float32(value)


DATA = np.random.default_rng(0).random((40, 16, 16), np.float32)
FIND = {"method": "find_size", "id": "f", "side_outputs": {"size": "s"}}
FIND_IN_ALL = {**FIND, "method": "find_in_all"}


def steps(name, parameter, *, first=FIND):
    used = {"method": name, "parameters": {parameter: "${{f.side_outputs.s}}"}}
    return Pipeline.from_steps([first, used], registry)


def given(name, parameter):
    return Pipeline.from_steps([{"method": name, "parameters": {parameter: FOUND}}], registry)


DECIDED = {
    "halo": ("smooth", "size"),
    "memory": ("with_copies", "copies"),
    "dims": ("cut_rows", "size"),
    "dtype": ("as_float", "bits"),
}


@pytest.mark.parametrize("first", [FIND, FIND_IN_ALL], ids=["of a few slices", "of all"])
@pytest.mark.parametrize(("name", "parameter"), DECIDED.values(), ids=DECIDED)
def test_a_run_equals_one_with_the_value_as_a_parameter(name, parameter, first):
    options = {"device": "cpu", "memory": "6MB", "block": "max"}
    report = run(DATA, steps(name, parameter, first=first), **options)
    wanted = run(DATA, given(name, parameter), **options)
    np.testing.assert_array_equal(report.result, wanted.result)
    assert report.result.dtype == wanted.result.dtype
    planned, right = report.plan.sections[-1], wanted.plan.sections[-1]
    assert planned.halo == right.halo
    assert planned.steps[-1].estimated_bytes == right.steps[-1].estimated_bytes
    assert planned.steps[-1].planned_values == {parameter: FOUND}


def test_the_slices_that_a_method_looks_at_are_those_of_the_value():
    look = {"method": "value_at", "id": "v", "parameters": {"ind": "${{f.side_outputs.s}}"}}
    report = run(DATA, Pipeline.from_steps([FIND, look], registry), device="cpu", memory="6MB")
    assert report.side_results["value_at.value"] == DATA[FOUND, 0, 0]


def test_a_value_without_influence_on_the_plan_is_not_computed_first():
    report = run(DATA, steps("add", "value"), device="cpu", memory="6MB")
    assert report.plan.sections[0].steps[1].planned_values == {}
    np.testing.assert_array_equal(report.result, DATA + np.float32(FOUND))


def test_a_plan_without_a_run_takes_the_default_and_has_a_note():
    planned = plan(DATA, steps("smooth", "size"), device="cpu", memory="6MB")
    assert planned.sections[0].halo == (1, 1)
    assert "smooth: size is ${{f.side_outputs.s}}, which a run finds" in str(planned)


def test_a_run_that_finds_another_value_refuses_a_plan():
    pipeline = steps("smooth", "size")
    planned = plan(DATA, pipeline, device="cpu", memory="6MB")
    planned = Plan.from_json(planned.to_json().replace('"result"', '"memory"'))
    with pytest.raises(PlanError, match="made with size = 3 for smooth, and the run computed 9"):
        run(DATA, pipeline, plan=planned, device="cpu")


def test_the_plan_of_a_run_can_be_used_again():
    pipeline = steps("smooth", "size")
    first = run(DATA, pipeline, device="cpu", memory="6MB", block=8)
    again = run(DATA, pipeline, device="cpu", plan=Plan.from_json(first.plan.to_json()))
    np.testing.assert_array_equal(first.result, again.result)


@method("projection", calc_max_slices=two, halo=lambda size: size, registry=registry)
def required(data, *, size: int):
    """Return a copy."""
    return data.copy()


def test_a_plan_without_a_run_and_without_a_default_is_refused_with_the_step():
    message = "step 2: required: size is .*, which is known only during a run"
    with pytest.raises(UnknownReferenceError, match=message):
        plan(DATA, steps("required", "size"), device="cpu", memory="6MB")
    assert "well formed" in check(steps("required", "size"), DATA)
    assert run(DATA, steps("required", "size"), device="cpu", memory="6MB").result.shape == (
        DATA.shape
    )


def test_a_sweep_finds_the_value_before_it_plans():
    swept = Pipeline.from_steps(
        [
            FIND,
            {"method": "smooth", "parameters": {"size": "${{f.side_outputs.s}}"}},
            {"method": "add"},
        ],
        registry,
    )
    pictures = run(DATA, swept, device="cpu", memory="20MB", sweep={"add.value": [0.0, 1.0]})
    whole = run(DATA, given("smooth", "size"), device="cpu", memory="6MB").result
    np.testing.assert_array_equal(pictures.result[0], whole[:, 8])


@method("projection", calc_max_slices=two, registry=registry)
def stops(data, first_slice):
    """Fail during the run if an environment variable is set."""
    if first_slice >= 16 and "STOP" in os.environ:
        raise RuntimeError("stop")
    return data.copy()


def test_a_stopped_run_resumes_with_its_values(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "scan.nxs", "w") as file:
        file["data"] = DATA
        file["image_key"] = np.zeros(len(DATA), int)
        file["angles"] = np.linspace(0, 180, len(DATA))
    loader = {
        "method": "standard_tomo",
        "module_path": "maxslices.io",
        "parameters": {"data_path": "data", "rotation_angles": {"data_path": "angles"}},
    }
    smoothed = {"method": "smooth", "parameters": {"size": "${{f.side_outputs.s}}"}}
    pipeline = Pipeline.from_steps([loader, FIND, smoothed, "stops"], registry)
    arguments = (tmp_path / "scan.nxs", pipeline, tmp_path / "out")
    monkeypatch.setenv("STOP", "1")
    with pytest.raises(MethodError, match="stop"):
        run(*arguments, device="cpu", memory="6MB", block=8)
    monkeypatch.delenv("STOP")
    report = run(*arguments, resume=True)
    with h5py.File(report.files[0]) as file:
        kept = next(v for v in file["entry/data"].values() if v.ndim == 3)[()]
    wanted = run(DATA, given("smooth", "size"), device="cpu", memory="6MB").result
    np.testing.assert_array_equal(kept, wanted)

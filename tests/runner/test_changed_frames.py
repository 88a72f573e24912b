"""Methods that change flats and darks, and methods that change the angles."""

from __future__ import annotations

import numpy as np
import pytest

import maxslices
from maxslices import Pipeline, Registry
from maxslices.errors import MethodError
from maxslices.io import ArrayScan

RNG = np.random.default_rng(3)
DATA = RNG.integers(0, 900, (14, 9, 6)).astype(np.uint16)
FLATS = RNG.integers(0, 900, (5, 9, 6)).astype(np.uint16)
DARKS = RNG.integers(0, 90, (3, 9, 6)).astype(np.uint16)
ANGLES = np.linspace(0, 3, 14, dtype=np.float32)

methods = Registry()
seen: list[dict] = []


def tell(data, *, flats, darks, angles):
    seen.append({"flats": flats.copy(), "darks": darks.copy(), "angles": angles.copy()})
    return data


def plus(data, by: float = 10.0):
    return data + data.dtype.type(by)


def largest(data):
    return data.max(axis=0, keepdims=True)


def grouped(data, factor: int = 4):
    starts = range(0, len(data), factor)
    return np.stack([data[i : i + factor].mean(axis=0) for i in starts]).astype(data.dtype)


def _groups(other_dims, factor):
    return -(-other_dims[0] // factor), other_dims[1]


def _group_angles(angles, factor):
    return np.array([angles[i : i + factor].mean() for i in range(0, len(angles), factor)])


methods.register(tell, name="tell", module="own", pattern="projection")
methods.register(tell, name="tell_rows", module="own", pattern="sinogram")
methods.register(plus, name="plus", module="own", pattern="all", side_data="too")
methods.register(largest, name="largest", module="own", pattern="all", side_data="alone")
methods.register(
    lambda data: data[:, :-1], name="shorter", module="own", pattern="all", side_data="alone"
)
methods.register(
    grouped,
    name="grouped",
    module="own",
    pattern="sinogram",
    output_dims=_groups,
    output_angles=_group_angles,
)


def run(*steps, block="auto"):
    seen.clear()
    source = ArrayScan(DATA, flats=FLATS, darks=DARKS, angles=ANGLES)
    pipeline = Pipeline.from_steps(steps, methods)
    report = maxslices.run(source, pipeline, device="cpu", memory="20MB", block=block)
    return report, seen[-report.plan.sections[-1].n_blocks :]


def joined(calls, name, axis):
    return np.concatenate([each[name] for each in calls], axis=axis)


def test_a_method_changes_the_means_of_flats_and_darks_for_those_after_it():
    report, calls = run("plus", "tell", block=5)
    np.testing.assert_array_equal(report.result, DATA + 10)
    for name, frames in (("flats", FLATS), ("darks", DARKS)):
        expected = frames.mean(axis=0, dtype=np.float32, keepdims=True) + 10
        assert all(np.array_equal(each[name], expected) for each in calls)
        assert calls[0][name].dtype == np.float32


def test_earlier_methods_get_unchanged_frames():
    run("tell", "plus", "tell")
    before, after = seen[-2:]
    np.testing.assert_array_equal(before["flats"], FLATS)
    assert after["flats"].shape == (1, 9, 6)


def test_a_later_section_along_the_rows_gets_its_rows():
    _, calls = run("plus", {"method": "plus", "parameters": {"by": 3.0}}, "tell_rows", block=4)
    expected = FLATS.mean(axis=0, dtype=np.float32, keepdims=True) + 13
    np.testing.assert_array_equal(joined(calls, "flats", 1), expected)


def test_a_method_for_the_frames_alone_leaves_the_data_and_sees_every_frame():
    report, calls = run("largest", "tell")
    np.testing.assert_array_equal(report.result, DATA)
    np.testing.assert_array_equal(calls[0]["flats"][0], FLATS.max(axis=0))


def test_unused_frames_are_not_changed():
    report, _ = run("tell", "shorter")
    np.testing.assert_array_equal(report.result, DATA)


def test_frames_of_another_shape_are_an_error():
    with pytest.raises(MethodError, match="shorter returned flats of 5x8x6: it must return 1x9x6"):
        run("shorter", "tell")


def test_plan_counts_changed_frames():
    raw, _ = run("tell")
    changed, _ = run("plus", "tell")
    sections = raw.plan.sections[0], changed.plan.sections[0]
    assert [section.side_bytes for section in sections] == [8 * 54 * 2, 2 * 54 * 4]


def test_angles_go_with_the_projections_of_a_method_that_changes_them():
    _, calls = run("grouped", "tell", block=2)
    np.testing.assert_allclose(joined(calls, "angles", 0), _group_angles(ANGLES, 4), rtol=1e-6)


def test_angles_are_changed_within_a_section_too():
    _, calls = run({"method": "grouped", "parameters": {"factor": 7}}, "tell_rows", block=4)
    np.testing.assert_allclose(calls[0]["angles"], _group_angles(ANGLES, 7), rtol=1e-6)

"""Blocks are copied while other blocks are computed: nothing is lost, mixed up or too early."""

from __future__ import annotations

import h5py
import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from maxslices import Pipeline, run
from maxslices.io import ArrayScan
from tests.planner.fakes import fakes

NAMES = (
    "to_float", "negate", "work", "neighbours", "reaching", "extremes", "flat_field", "turn",
    "same", "triple_in_place", "left",
)  # fmt: skip

MANY = (1100, 3, 11)
"""Shape with enough slices for larger blocks to be tried."""


def source(shape=(37, 19, 11), dtype="float32", pinned_by=None):
    rng = np.random.default_rng(7)
    data = rng.integers(1, 99, shape).astype(dtype)
    if pinned_by is not None:
        pinned_by.pin(data)
    return ArrayScan(
        data,
        flats=rng.integers(1, 9, (3, *shape[1:])).astype(dtype),
        darks=None,
        angles=np.linspace(0, 3, shape[0], dtype=np.float32),
    )


def plain_loop(scan, pipeline, plan):
    """Expected result of each saved step, computed on the whole scan."""
    data = np.empty(scan.spec.shape, scan.spec.dtype)
    scan.read(0, 0, len(data), data)
    frames = {"flats": scan.read_side("flats", 0, 0, 1), "angles": scan.angles}
    steps = iter(pipeline.steps)
    saved = []
    for section in plan.sections:
        for _ in section.steps:
            step = next(steps)
            supplied = {
                name: {**frames, "slice_dim": section.slice_dim}[name]
                for name in step.meta.supplied if name in (*frames, "slice_dim")
            }  # fmt: skip
            result = step.meta.function(data.copy(), **step.parameters, **supplied)
            if not step.meta.side_results:
                data = np.ascontiguousarray(result)
            if step.save_result:
                saved.append(data.copy())
    return saved


def is_possible(names):
    """True if frames still have the shape that a method needs."""
    return all("left" not in names[:i] for i, name in enumerate(names) if name == "flat_field")


@st.composite
def pipelines(draw):
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5).filter(is_possible))
    return [{"method": name, "save_result": draw(st.booleans())} for name in names[:-1]] + [
        {"method": names[-1], "save_result": True}
    ]


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=pipelines(),
    block=st.sampled_from([1, 2, 5, 7, 9, 18, 36, "auto"]),
    between=st.sampled_from(["device", "memory", "scratch file"]),
    seed=st.sampled_from([None, "eager"]) | st.integers(0, 99),
    pinned=st.booleans(),
    in_turns=st.booleans(),
    dtype=st.sampled_from(["float32", "uint16"]),
)
@example(  # the last block is filled up, the saved result leaves in mid-section
    steps=[{"method": "same", "save_result": True}, {"method": "triple_in_place",
           "save_result": True}],
    block=9, between="device", seed=None, pinned=True, in_turns=False, dtype="uint16",
)  # fmt: skip
def test_files_equal_those_of_a_plain_loop(
    on_fake_gpu, tmp_path_factory, steps, block, between, seed, pinned, in_turns, dtype
):
    pipeline = Pipeline.from_steps(steps, fakes)
    shape = (37, 19, 11) if block != "auto" else MANY
    with on_fake_gpu(seed, between=between, in_turns=in_turns) as gpu:
        scan = source(shape, dtype, gpu if pinned else None)
        out = tmp_path_factory.mktemp("run") / "out"
        report = run(scan, pipeline, out, device="cuda", block=block, memory="50MB")
    assert all(s.destination == between for s in report.plan.sections[:-1])
    assert [s.n_splits for s in report.sections] == [0] * len(report.sections)
    expected = plain_loop(scan, pipeline, report.plan)
    assert len(report.files) == len(expected)
    for path, data in zip(report.files, expected, strict=True):
        with h5py.File(path) as file:
            np.testing.assert_array_equal(file["entry/data/data"], data)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).filter(
        lambda names: is_possible(names) and set(names) != {"extremes"}
    ),
    block=st.sampled_from([1, 2, 5, 9, 18, 36]),
    seed=st.sampled_from([None, "eager"]) | st.integers(0, 99),
    pinned=st.tuples(st.booleans(), st.booleans()),
)
def test_arrays_equal_those_of_a_plain_loop(on_fake_gpu, names, block, seed, pinned):
    pipeline = Pipeline.from_steps(names, fakes)
    scan = source()
    loop = plain_loop(scan, pipeline, run(scan, pipeline, device="cpu", block=1000).plan)
    with on_fake_gpu(seed) as gpu:
        scan = source(pinned_by=gpu if pinned[0] else None)
        out = np.empty(loop[-1].shape, loop[-1].dtype)
        if pinned[1]:
            gpu.pin(out)
        report = run(scan, pipeline, out, device="cuda", block=block)
        # What the device copies itself passes through no memory between.
        if pinned == (True, True) and len(report.plan.sections) == 1:
            assert not any("pinned" in what for what in gpu.allocated)
    np.testing.assert_array_equal(report.result, loop[-1])


def test_every_copy_and_every_block_is_on_the_timeline(on_fake_gpu):
    out = np.empty(MANY, np.float32)
    with on_fake_gpu() as gpu:
        gpu.pin(out)
        scan = source(MANY, pinned_by=gpu)
        report = run(scan, Pipeline.from_steps(["negate"], fakes), out, device="cuda")
    stages = report.sections[0].stages
    assert {name: use.n_bytes for name, use in stages.items()} == dict.fromkeys(
        ("in", "compute", "out"), out.nbytes
    )

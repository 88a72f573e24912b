"""Each allocation of a run is in the memory account, and the plan counts all of them."""

from __future__ import annotations

from collections import Counter
from functools import partial
from importlib import import_module

import numpy as np
import pytest

from maxslices import Pipeline, run
from maxslices.core import block_memory
from maxslices.core.allocators import round_to_granule
from maxslices.devices.cpu import CpuBackend
from maxslices.io import ArrayScan
from maxslices.runner.section_run import SectionRun
from tests.planner.fakes import fakes

ANGLES, ROWS, COLUMNS = 41, 37, 512
"""Distinct primes, so no two sizes are equal. Rows are whole granules, so nothing is rounded."""
FRAMES = 3
BLOCK = 5


def a_scan(gpu=None):
    rng = np.random.default_rng(1)
    data = rng.integers(1, 99, (ANGLES, ROWS, COLUMNS)).astype("float32")
    if gpu is not None:
        gpu.pin(data)
    return ArrayScan(
        data, flats=data[:FRAMES].copy(), angles=np.linspace(0, 3, ANGLES, dtype="float32")
    )


def a_file(tmp_path):
    np.save(tmp_path / "scan.npy", a_scan().read_side("flats", 0, 0, 1)[:1].repeat(ANGLES, axis=0))
    return tmp_path / "scan.npy"


def n_blocks(section):
    return -(-section.n_slices // section.block)


def given_bytes(section):
    """Bytes of a block with its halo."""
    n_given = min(section.block + sum(section.halo), section.n_slices)
    return section.input.with_slices(section.slice_dim, n_given).nbytes


def expected(plan, in_memory, out_in_memory, saved):
    """Allocations of a run by the memory account: Counter of (purpose, bytes)."""
    account: Counter[tuple[str, int]] = Counter()
    for number, section in enumerate(plan.sections):
        is_last = number == len(plan.sections) - 1
        overlaps = section.overlaps and n_blocks(section) > 1
        way = block_memory.input_way("cuda", section.origin, section.slice_dim, in_memory=in_memory)
        size, counts = given_bytes(section), {"overlaps": overlaps, "n_blocks": n_blocks(section)}
        buffers = block_memory.input_buffers(way, size, **counts)
        account["input buffer", buffers.n_bytes] += buffers.count
        staging = block_memory.read_staging(way, size, **counts)
        account["staging", staging.n_bytes] += staging.count
        out = block_memory.output_way(
            "cuda",
            section.destination,
            in_memory=out_in_memory if is_last else section.destination == "memory",
        )
        outputs = {step.output for step in section.steps if step.index in saved}
        if out == "staged":
            outputs.add(section.output)
        for output in outputs:
            slice_bytes = output.with_slices(section.slice_dim, 1).nbytes
            pieces = block_memory.result_staging(section.block, slice_bytes, overlaps=overlaps)
            account["staging", pieces.usual.n_bytes] += pieces.usual.count
        if not is_last and section.destination in ("device", "memory"):
            place = "device" if section.destination == "device" else "host"
            account[f"store on the {place}", section.output.nbytes] += 1
    return +account


def allocated(gpu):
    return Counter(gpu.sizes)


@pytest.mark.parametrize("between", ["device", "memory", "scratch file"])
@pytest.mark.parametrize("origin", ["file", "pinned"])
@pytest.mark.parametrize("result", ["folder", "array", "pinned array"])
@pytest.mark.parametrize("memory", ["2GB", "9MB"])
def test_every_allocation_of_a_gpu_run_is_accounted_for(
    on_fake_gpu, tmp_path, between, origin, result, memory
):
    pipeline = Pipeline.from_steps(["negate", "work", "negate"], fakes)
    with on_fake_gpu(between=between) as gpu:
        scan = a_scan(gpu) if origin == "pinned" else a_file(tmp_path)
        out = tmp_path / "out"
        if result != "folder":
            out = np.empty((ANGLES, ROWS, COLUMNS), np.float32)
        if result == "pinned array":
            gpu.pin(out)
        report = run(scan, pipeline, out, device="cuda", block=BLOCK, memory=memory)
        is_pinned = result == "pinned array"
        saved = {2} if result == "folder" else set()
        wanted = expected(report.plan, origin == "pinned", is_pinned, saved)
        assert allocated(gpu) == wanted
        assert report.plan.sections[1].origin == between


@pytest.mark.parametrize("in_turns", [False, True])
def test_halo_saved_results_and_flats_are_in_the_account(on_fake_gpu, tmp_path, in_turns):
    steps = [
        {"method": "flat_field", "save_result": True},
        {"method": "neighbours", "save_result": True},
    ]
    with on_fake_gpu(in_turns=in_turns) as gpu:
        pipeline = Pipeline.from_steps(steps, fakes)
        report = run(a_scan(), pipeline, tmp_path, device="cuda", block=BLOCK, memory="2GB")
        wanted = expected(report.plan, False, False, {0, 1})
        wanted["copy to the device", FRAMES * ROWS * COLUMNS * 4] = 1
        assert allocated(gpu) == wanted


@pytest.mark.parametrize("between", ["device", "memory", "scratch file"])
@pytest.mark.parametrize("in_turns", [False, True])
def test_plan_is_the_sum_of_allocations(on_fake_gpu, tmp_path, between, in_turns):
    with on_fake_gpu(between=between, in_turns=in_turns) as gpu:
        pipeline = Pipeline.from_steps(["negate", "work"], fakes)
        report = run(
            a_file(tmp_path), pipeline, tmp_path / "out", device="cuda", block=BLOCK, memory="9MB"
        )
        sections = report.plan.sections

        def total(what, of=lambda n_bytes: n_bytes):
            return sum(count * of(n) for (name, n), count in allocated(gpu).items() if name == what)

        threads = 0
        for section in sections:
            if section.destination in ("result", "scratch file"):
                out = section.output.with_slices(section.slice_dim, section.block)
                threads += block_memory.thread_buffer_bytes(section.slice_dim, out.nbytes, 1)
        # Data between two sections count for both.
        stores = 2 * (total("store on the host") + sum(each.kept_bytes for each in sections))
        own = threads + len(sections) * block_memory.PYTHON_BYTES
        assert sum(each.host_bytes for each in sections) == total("staging") + stores + own
        # On the device: the methods' own peaks, which have the first block in them, and the rest.
        needed = total("input buffer", round_to_granule)
        for section in sections:
            needed += section.steps[0].estimated_bytes
            if section.origin != "device":
                needed -= round_to_granule(given_bytes(section))
            if section.destination != "device" and section.overlaps:  # the result that leaves
                n_given = min(section.block, section.n_slices)
                needed += section.output.with_slices(section.slice_dim, n_given).nbytes
        assert sum(each.estimated_bytes for each in sections) == needed
        assert gpu.faults == []


@pytest.mark.parametrize("origin", ["file", "array"])
@pytest.mark.parametrize("block", [BLOCK, ANGLES])
def test_on_the_cpu_blocks_are_read_into_the_buffers_of_the_account(
    monkeypatch, tmp_path, origin, block
):
    sizes = []
    empty = CpuBackend.empty

    def noted(self, shape, dtype):
        sizes.append(int(np.prod(shape)) * np.dtype(dtype).itemsize)
        return empty(self, shape, dtype)

    monkeypatch.setattr(CpuBackend, "empty", noted)
    scan = a_scan() if origin == "array" else a_file(tmp_path)
    report = run(
        scan, Pipeline.from_steps(["negate", "work"], fakes), tmp_path / "out", device="cpu",
        block=block, memory="100MB",
    )  # fmt: skip
    wanted = []
    for section in report.plan.sections:
        way = block_memory.input_way(
            "cpu", section.origin, section.slice_dim, in_memory=origin == "array"
        )
        if section.block == section.n_slices and (section.origin == "memory" or origin == "array"):
            way = "in place"  # all slices together have no gaps, though the plan counts a buffer
        buffers = block_memory.input_buffers(
            way, given_bytes(section), overlaps=section.overlaps, n_blocks=n_blocks(section)
        )
        wanted += [buffers.n_bytes] * buffers.count
    assert sizes == wanted


@pytest.mark.parametrize("n_slices", range(1, 40))
@pytest.mark.parametrize("slice_bytes", [1, 10**6, 2**28, 2**28 + 1, 2**27 - 1])
@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("is_shared", [False, True])
def test_staging_of_results_never_shrinks_with_more_slices(
    n_slices, slice_bytes, overlaps, is_shared
):
    fewer, more = (
        block_memory.result_staging(n, slice_bytes, overlaps=overlaps, is_shared=is_shared)
        for n in (n_slices, n_slices + 1)
    )
    assert fewer.usual.total_bytes <= more.usual.total_bytes
    assert fewer.most.total_bytes <= more.most.total_bytes
    assert fewer.usual.total_bytes <= fewer.most.total_bytes
    # All of a result, and the piece that is being written.
    if overlaps:
        assert fewer.most.total_bytes >= (n_slices + fewer.n_slices) * slice_bytes


def test_a_part_of_a_section_leaves_in_the_pieces_of_several_processes(
    on_fake_gpu, tmp_path, monkeypatch
):
    slice_bytes = ROWS * COLUMNS * 4
    monkeypatch.setattr(block_memory, "SHARED_PIECE_BYTES", slice_bytes)
    as_on_a_worker = partial(SectionRun, part=range(ANGLES))
    module = import_module("maxslices.runner.execute")
    monkeypatch.setattr(module, "SectionRun", as_on_a_worker)
    with on_fake_gpu() as gpu:
        pipeline = Pipeline.from_steps(["negate"], fakes)
        run(a_file(tmp_path), pipeline, tmp_path / "out", device="cuda", block=BLOCK, memory="2GB")
    pieces = block_memory.result_staging(BLOCK, slice_bytes, overlaps=True, is_shared=True).usual
    assert allocated(gpu)["staging", pieces.n_bytes] == pieces.count
    assert pieces.n_bytes == slice_bytes

"""Records that come with a package: they plan its methods where there is no GPU."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from maxslices import Pipeline, Registry, plan
from maxslices.core.arrays import ArraySpec
from maxslices.errors import EstimatorError, StoreError
from maxslices.estimate import ModelRequest, ModelResolver
from maxslices.estimate.formula import Formula
from maxslices.estimate.peak_model import Observation
from maxslices.estimate.probe_result import OUTSIDE
from maxslices.estimate.recorded import Entry, Records
from maxslices.estimate.request_key import Environment, request_key
from maxslices.estimate.shipped_records import find_shipped, read_shipped, shipped_text
from maxslices.estimate.size_model import SizeRecord
from maxslices.measure.allocation_sequence import CallSite, SequenceBuilder

from .record_cases import FOUND, OTHERS, PROBE, SIZES, peaks, rfft, strange

PLACE = Environment("NVIDIA H200", {"numpy": np.__version__, "cupy": "14.2"})


def padded(data, *, size: int = 3, center: float | None = None, mode: str = "a"):
    return data


def scattered(n, dims):
    """One to five arrays, as the rows happen to be."""
    building = SequenceBuilder(n)
    site = building.site(CallSite("a.py", 1, "f", "1"))
    building.alloc(4 * n * dims[0] * dims[1] * (dims[0] * 7919 % 5 + 1), site)
    return Observation.of(building.sequence())


def in_steps(n, dims):
    """The same, padded to 16 slices."""
    return replace(scattered(-(-n // 16) * 16, dims), n_slices=n)


def sizes_of(method, dims):
    model = peaks(method, dims).pruned()
    return replace(FOUND, peaks=model, rungs=PROBE.rungs, output_dims=(dims[1], dims[1] // 2))


def request_at(meta, dims, dtype="float32", **parameters):
    return ModelRequest(meta, 0, dims, np.dtype(dtype), parameters, 500)


def made(tmp_path, method=rfft, same=None, place=PLACE, at=sizes_of, **parameters):
    """Registry with one method and the file of its records."""
    path = tmp_path / "lab.padded.json"
    path.touch()
    meta = Registry().register(padded, pattern="projection", module="lab", records=path)
    entries = [
        Entry(
            request_key(request_at(meta, dims, **parameters)),
            place,
            1795397188.0 + i,
            at(method, dims),
        )
        for i, dims in enumerate(SIZES)
    ]
    path.write_text(shipped_text([SizeRecord.of(entries, same)]))
    return meta


def chosen(tmp_path, meta, dims, **parameters):
    resolver = ModelResolver("cuda", records=Records(tmp_path / "own"))
    return resolver.resolve(request_at(meta, dims, **parameters))


def test_a_few_rows_take_no_more_than_the_smallest_detector_as_wide(tmp_path):
    meta, smallest = made(tmp_path), min(a * b for a, b in SIZES)
    for dims in ((4, 2560), (5, 2557), (60, 70)):
        choice = chosen(tmp_path, meta, dims)
        assert "the fewest rows that are covered" in choice.why
        assert choice.output_dims == (dims[1], dims[1] // 2)
        for n in (1, 7, 64, 999):
            assert rfft(n, dims).n_bytes <= choice.model.bytes(n)
            rows = smallest // dims[1] + 3
            assert choice.model.bytes(n) <= rfft(n, (rows, dims[1])).n_bytes


@pytest.mark.parametrize("dims", [*SIZES, *OTHERS])
def test_a_method_is_planned_without_a_gpu_for_any_detector(tmp_path, dims):
    choice = chosen(tmp_path, made(tmp_path), dims)
    assert choice.origin == "recorded"
    if dims[0] * dims[1] >= min(a * b for a, b in SIZES):
        for n in (1, 7, 64, 999):
            assert choice.model.bytes(n) == rfft(n, dims).n_bytes
    assert choice.output_dims == (dims[1], dims[1] // 2)


def test_the_plan_says_what_comes_from_where(tmp_path):
    meta = made(tmp_path, place=Environment("NVIDIA H200", {"numpy": "1.2.3", "cupy": "14.2"}))
    registry = Registry()
    registry.add(meta)
    made_plan = plan(
        ArraySpec((100, *OTHERS[0]), "float32"),
        Pipeline.from_steps(["padded"], registry),
        memory="16GB",
        host_memory="64GB",
    )
    text = " ".join(str(made_plan).split())
    assert "a record comes with it: formulas that give it to the byte at 4 sizes" in text
    assert "padded: measured on NVIDIA H200, 2026-11-23, " in text
    assert f"cupy 14.2; here are numpy {np.__version__}" in text


def test_other_code_is_said(tmp_path):
    meta = made(tmp_path)
    path = meta.records
    plain = json.loads(path.read_text())
    plain["records"][0]["question"]["source"] = "0" * 32
    plain["records"][0]["question"]["package"] = "lab 1.0"
    path.write_text(json.dumps(plain))
    _, where = find_shipped(meta, request_key(request_at(meta, OTHERS[0]))).why.split("\n")
    assert "lab 1.0" in where
    assert "with other code" in where


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"size": 5}, "size=5 as it was the same with 3 and 9"),
        ({"size": 10}, None),
        ({"size": 2}, None),
        ({"center": 100.5}, "center=100.5 as it was the same with None and 7.5"),
        ({"center": 100}, "center=100 as it was the same with None and 7.5"),
        ({"mode": "b"}, None),
    ],
)
def test_parameters_that_were_seen_not_to_matter_may_differ(tmp_path, parameters, says):
    meta = made(tmp_path, same={"size": (3, 9), "center": (None, 7.5)})
    if says is None:
        with pytest.raises(EstimatorError, match=r"the records that come with it are for \w+="):
            chosen(tmp_path, meta, OTHERS[0], **parameters)
        return
    assert says in chosen(tmp_path, meta, OTHERS[0], **parameters).why


def test_floating_point_parameters_are_no_sizes(tmp_path):
    meta = made(tmp_path, center=3.5)
    assert chosen(tmp_path, meta, OTHERS[0], center=1200.25).origin == "recorded"


def test_what_does_not_fit_is_named(tmp_path):
    meta = made(tmp_path)
    with pytest.raises(EstimatorError, match=r"records that come with it are for dtype float32\)"):
        chosen(tmp_path, meta, OTHERS[0], dtype="uint16")
    made(tmp_path, method=scattered)
    with pytest.raises(EstimatorError, match=r"for other dims: 1801x2560, 901x1279, 1200x2048, 7"):
        chosen(tmp_path, meta, (60, 70))


def test_what_follows_no_formula_answers_for_its_own_dims_within_a_hundredth(tmp_path):
    meta = made(tmp_path, method=in_steps)
    choice = chosen(tmp_path, meta, SIZES[0])
    assert "measured at this size" in choice.why
    model = choice.model
    for n in (1, 8, 63, 65, 76, 81, 100, 129, 300, 1000):
        measured = sizes_of(in_steps, SIZES[0]).model().bytes(n)
        assert measured <= model.bytes(n) <= 1.01 * measured
    with pytest.raises(EstimatorError, match="for other dims"):
        chosen(tmp_path, meta, OTHERS[0])


def test_memory_outside_the_pool_is_said(tmp_path):
    def outside(method, dims):
        probe = sizes_of(method, dims)
        rungs = tuple(replace(rung, outside_bytes=2**24) for rung in probe.rungs)
        return replace(probe, peaks=probe.peaks.plus(OUTSIDE, Formula(2**24)), rungs=rungs)

    choice = chosen(tmp_path, made(tmp_path, at=outside), OTHERS[0])
    assert "memory outside CuPy's pool is that card's" in choice.why


def corrected(data, flats):
    return data


def test_the_number_of_flats_may_differ_where_it_was_seen_not_to_matter(tmp_path):
    def key(meta, dims, n_frames, dtype="uint16"):
        request = ModelRequest(meta, 0, dims, np.dtype("uint16"), {}, 500)
        return request_key(request, {"flats": ArraySpec((n_frames, *dims), dtype)})

    path = tmp_path / "lab.corrected.json"
    path.touch()
    meta = Registry().register(corrected, pattern="projection", module="lab", records=path)
    entries = [Entry(key(meta, dims, 20), PLACE, 1e9, sizes_of(rfft, dims)) for dims in SIZES]
    path.write_text(shipped_text([SizeRecord.of(entries)]))
    assert find_shipped(meta, key(meta, OTHERS[0], 20))
    with pytest.raises(LookupError, match="20 uint16 flats"):
        find_shipped(meta, key(meta, OTHERS[0], 50))
    path.write_text(shipped_text([SizeRecord.of(entries, {"flats": (20, 50)})]))
    assert find_shipped(meta, key(meta, OTHERS[0], 30))
    with pytest.raises(LookupError, match="20 uint16 flats"):
        find_shipped(meta, key(meta, OTHERS[0], 50, "float32"))


def test_own_measurements_come_first(tmp_path):
    meta, own = made(tmp_path), Records(tmp_path / "own")
    own.add(request_key(request_at(meta, OTHERS[0])), PLACE, FOUND)
    assert "record comes with it" not in chosen(tmp_path, meta, OTHERS[0]).why


def test_a_damaged_file_is_one_line(tmp_path):
    meta = made(tmp_path)
    meta.records.write_text('{"format": 3, "records": [{}]}')
    with pytest.raises(StoreError, match=r"lab\.padded\.json cannot be understood"):
        chosen(tmp_path, meta, OTHERS[0])
    meta.records.unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        chosen(tmp_path, meta, OTHERS[0])


def test_text_and_records_are_the_same(tmp_path):
    for method in (rfft, strange, scattered):
        records = read_shipped(made(tmp_path, method=method, same={"size": (3, 9)}).records)
        text = shipped_text(records)
        (tmp_path / "again.json").write_text(text)
        assert read_shipped(tmp_path / "again.json") == records
        assert max(map(len, text.splitlines())) < 2500

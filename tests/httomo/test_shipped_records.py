"""The records shipped with maxslices, compared with the measured calls."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from maxslices.estimate.shipped_records import read_shipped
from maxslices.httomo.register_methods import RECORDS
from maxslices.trial.trial import OUTSIDE_BYTES

FILES = sorted(RECORDS.glob("*.json"))
RECORDED = [(path.stem, i) for path in FILES for i in range(len(read_shipped(path)))]


SIZES = Path(__file__).parents[1] / "records" / "httomo_sizes.json.gz"
"""What `docs/scripts/record_pipelines.py` wrote on an H200 on 2026-11-23; for FBP3d_tomobar at
`DETECTORS` on 2026-11-26."""
DETECTORS = ((1801, 2160, 2560), (1801, 2048, 2048), (1801, 1601, 2557))
PROJECTIONS = (
    "corr.remove_outlier", "alignment.distortion_correction_proj_discorpy", "phase.paganin_filter",
    "normalize.dark_flat_field_correction",
)  # fmt: skip
SINOGRAMS = (
    "morph.average_projection_frames", "morph.sino_360_to_180", "stripe.remove_all_stripe",
    "stripe.remove_stripe_based_sorting", "stripe.remove_stripe_ti", "algorithm.FBP2d_astra",
    "algorithm.FBP3d_tomobar", "algorithm.FISTA3d_tomobar", "algorithm.LPRec3d_tomobar",
)  # fmt: skip
SLICES = ("denoise.total_variation_PD", "morph.data_resampler", "methods.calculate_stats")


def record_of(name, number):
    return read_shipped(RECORDS / f"{name}.json")[number]


@pytest.mark.parametrize(("name", "number"), RECORDED)
def test_no_call_took_more_than_its_record(name, number):
    record = record_of(name, number)
    for dims, calls, peaks in record.sizes:
        model = record.at(dims).model
        for n, size in calls:
            if not peaks and record.is_of_any_card:
                assert model.bytes(n) == size
            assert size <= model.bytes(n)


@pytest.mark.parametrize(("name", "number"), RECORDED)
def test_a_record_names_its_method_card_and_versions(name, number):
    record = record_of(name, number)
    assert record.question.method == name
    assert record.place.device.startswith("NVIDIA")
    assert {"numpy", "cupy", "cuda driver"} <= set(record.place.libraries)
    assert record.question.source
    assert len(record.sizes) >= 4


def test_files_are_small_and_readable():
    texts = {path.name: path.read_text() for path in FILES}
    assert len(texts) >= 17
    assert max(map(len, texts.values())) < 40_000
    assert sum(map(len, texts.values())) < 300_000
    assert all(json.loads(text)["format"] == 3 for text in texts.values())
    assert not any("/root/" in text or "/tmp/" in text for text in texts.values())


@pytest.mark.parametrize("detector", DETECTORS)
def test_records_cover_httomos_pipelines_at_common_detectors_and_an_odd_one(detector):
    angles, rows, columns = detector
    questions = [(name, (rows, columns)) for name in PROJECTIONS]
    questions += [(name, (angles, columns)) for name in SINOGRAMS]
    questions += [(name, (columns, columns)) for name in SLICES]
    questions += [("LPRec3d_tomobar", (901, columns)), ("FBP3d_tomobar", (900, 2 * columns))]
    for name, dims in questions:
        (path,) = (each for each in FILES if each.stem.endswith(name))
        assert read_shipped(path)[0].at(dims) is not None, (name, dims)


@pytest.mark.parametrize("dims", [(4, 2560), (5, 2557)])
def test_records_cover_the_few_rows_of_a_sweep(dims):
    for name in ("dark_flat_field_correction", "minus_log", "remove_outlier"):
        (path,) = (each for each in FILES if each.stem.endswith(name))
        record = next(each for each in read_shipped(path) if each.question.slice_dim == 0)
        assert record.at(dims) is not None


@pytest.mark.parametrize(
    ("name", "iterations"),
    [
        ("total_variation_PD", {"iterations": 1000}),
        ("FISTA3d_tomobar", {"iterations": 20, "regularisation_iterations": 50}),
    ],
)
def test_memory_does_not_depend_on_the_iterations_of_pipelines(name, iterations):
    (path,) = (each for each in FILES if each.stem.endswith(name))
    (record,) = read_shipped(path)
    for parameter, value in iterations.items():
        assert max(record.same[parameter]) >= value


def test_all_measured_calls_are_in_the_records():
    with gzip.open(SIZES, "rt") as file:
        entries = json.load(file)["entries"]
    n_found = 0
    for entry in entries:
        question, probe = entry["question"], entry["probe"]
        if ".rotation." in question["method"]:  # declared: see test_adapters.py
            continue
        calls = [(r["n_slices"], r["n_bytes"], r["outside_bytes"] > 0) for r in probe["rungs"]]
        for record in read_shipped(RECORDS / f"{question['method']}.json"):
            keys = ("slice_dim", "dtype", "parameters", "side")
            if all(getattr(record.question, key) == question[key] for key in keys):
                n_found += 1
                at = record.dims.index(tuple(question["other_dims"]))
                sizes = set(record.sizes[at].measured)
                assert {n for n, _ in sizes} == {n for n, _, _ in calls}
                for n, size in sizes:  # readings of device memory exceed the arrays
                    assert any(
                        n == m and abs(size - n_bytes) <= is_read * OUTSIDE_BYTES["cuda"]
                        for m, n_bytes, is_read in calls
                    )
    assert n_found >= 30

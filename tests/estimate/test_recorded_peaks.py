"""Records of what a method allocates: they answer for any memory, and for other cards."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from maxslices.cli.main import main
from maxslices.estimate import ModelRequest
from maxslices.estimate.formula import Formula
from maxslices.estimate.model_resolver import ModelResolver
from maxslices.estimate.probe_result import OUTSIDE
from maxslices.estimate.recorded import Records
from maxslices.estimate.shipped_records import find_by_sizes
from maxslices.system.cache_dir import FOLDER_VARIABLE

from .record_cases import (
    FOUND,
    H200,
    LAPTOP,
    META,
    OTHERS,
    PEAKS,
    PROBE,
    SIZES,
    asked,
    peaks,
    rfft,
)  # fmt: skip


@pytest.fixture
def records(tmp_path):
    return Records(tmp_path / "records")


def test_a_record_of_another_card_serves(records):
    records.add(asked(size=5), LAPTOP, FOUND)
    assert records.find(asked(size=5), H200) is None
    record = records.of_other_card(asked(size=5), H200)
    assert (record.probe, record.place) == (FOUND, LAPTOP)


def test_a_record_of_this_card_with_another_driver_serves(records):
    other = replace(H200, libraries={"cupy": "14.2", "cuda driver": "13010"})
    records.add(asked(size=5), other, FOUND)
    assert records.of_other_card(asked(size=5), H200).place == other


OUTSIDE_TOO = replace(FOUND, peaks=PEAKS.plus(OUTSIDE, Formula(0, 2**25, "depth(n)")))


@pytest.mark.parametrize(
    ("place", "probe"),
    [
        (replace(LAPTOP, libraries={"cupy": "13.0", "cuda driver": "12080"}), FOUND),
        (replace(LAPTOP, device="cpu"), FOUND),
        (LAPTOP, OUTSIDE_TOO),
        (LAPTOP, replace(FOUND, extrapolates_exactly=False)),
        (LAPTOP, PROBE),
    ],
    ids=["other library", "cpu", "outside the pool", "changes its ways", "peaks alone"],
)
def test_what_may_depend_on_the_card_does_not(records, place, probe):
    records.add(asked(size=5), place, probe)
    assert records.of_other_card(asked(size=5), H200) is None


def test_chunks_of_no_slices_are_damage(records):
    records.add(asked(size=5), H200, FOUND)
    (file,) = records.folder.glob("*.json")
    content = json.loads(file.read_text())
    terms = next(iter(content["entries"][0]["probe"]["peaks"]["moments"].values()))
    terms[0][1] = [0, 1, "ceil(n/k)", 0, []]
    file.write_text(json.dumps(content))
    with pytest.warns(UserWarning, match="cannot be understood"):
        assert records.find(asked(size=5), H200) is None


def test_the_command_shows_what_a_peak_is_made_of(records, monkeypatch, capsys):
    monkeypatch.setenv(FOLDER_VARIABLE, str(records.folder))
    records.add(asked(size=5), H200, FOUND)
    assert main(["records", "show", "blur"]) == 0
    shown = capsys.readouterr().out
    assert "13 slices take" in shown
    assert re.search(r"\* n bytes +input\n", shown)


def at_size(dims):
    """What would be recorded at a size of a method with a real FFT, which crops its result."""
    kept, output_dims = ((1, 1000), (2, 2000)), (dims[1], dims[1])
    return replace(FOUND, peaks=peaks(rfft, dims).pruned(), kept=kept, output_dims=output_dims)


def is_named(name):
    return lambda place: place.device == name


def keyed(dims, **parameters):
    return asked(dims=dims, **parameters)


@pytest.fixture
def four_sizes(records):
    for i, dims in enumerate(SIZES):
        records.add(keyed(dims, size=5, weights=float(i)), H200, at_size(dims))
    return records


def test_three_sizes_do_not_nor_another_method_device_or_parameter(four_sizes):
    dims = OTHERS[0]
    assert find_by_sizes(four_sizes, keyed(dims, size=7), is_named("NVIDIA H200")) is None
    assert find_by_sizes(four_sizes, keyed(dims, size=5), is_named("other")) is None
    four_sizes.clear("blur")
    for each in SIZES[:3]:
        four_sizes.add(keyed(each, size=5), H200, at_size(each))
    assert find_by_sizes(four_sizes, keyed(dims, size=5), is_named("NVIDIA H200")) is None


def test_a_plan_without_a_gpu_takes_records_at_other_sizes(four_sizes):
    request = ModelRequest(META, 0, OTHERS[0], np.dtype("float32"), {"size": 5}, 2160)
    for dims in SIZES:  # with the default of the other parameter
        four_sizes.add(keyed(dims, size=5), H200, at_size(dims))
    resolver = ModelResolver("cuda", records=four_sizes, available_bytes=10**10)
    choice = resolver.resolve(request)
    assert choice.origin == "recorded"
    sizes = "1801x2560, 901x1279, 1200x2048, 777x1111"
    assert f"measured on NVIDIA H200, at other sizes ({sizes})" in choice.why
    assert choice.output_dims == (OTHERS[0][1], OTHERS[0][1])
    assert choice.model.kept_bytes(2) > 0
    assert choice.model.bytes(40) == rfft(40, OTHERS[0]).n_bytes

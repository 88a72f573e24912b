"""Suggested ledgers, pasted, pass `check_max_slices` at sizes that they were not made of."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from maxslices import Registry
from maxslices.core.named_method import method_named
from maxslices.errors import DeviceError, EstimatorError, UnknownMethodError, UsageError
from maxslices.suggest.suggest_ledger import suggest_ledger
from maxslices.suggest.traced_runs import RunMaker
from maxslices.testing import check_max_slices

FURTHER = ((60, 127, 140), (52, 230, 301))


def chunked(data):
    result = np.empty(data.shape, np.float32)
    for start in range(0, len(data), 16):
        part = data[start : start + 16].astype(np.float64)
        part *= part.mean()
        result[start : start + 16] = np.sqrt(part)
    return result


def list_of_slices(data):
    parts = [np.fft.irfft(np.fft.rfft(image), n=image.shape[1]) for image in data]
    return np.stack(parts)


def padded(data):
    wide = np.pad(data, ((0, 0), (5, 5), (7, 7)), mode="edge")
    smooth = np.cumsum(wide, axis=2)
    return smooth[:, 5:-5, 7:-7] - data


def sorted_in_parts(data):
    """Whole rows of 2**19 values at a time, as CuPy sorts 2**22, with scratch that is padded."""
    result = data.copy()
    rows = result.reshape(-1, data.shape[2])
    step = min(len(rows), 2**19 // data.shape[2])
    keys = np.empty((step, data.shape[2]))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        scratch = np.empty(16 * part.size + 255 + 256 * -(-part.size // 2**15), np.uint8)
        scratch[::4096] = 1
        part.sort(axis=1)
        del scratch
    del keys
    return result


def refuses_small(data):
    if data.shape[1] < 600:
        raise ValueError("too few rows")
    return data


def registered(function, text=None, **declaration):
    scope = {}
    if text is not None:
        exec(text, scope)
        declaration["calc_max_slices"] = scope["needs"]
    return Registry().register(function, pattern="all", module="suggested", **declaration)


@functools.cache
def suggested(function):
    return suggest_ledger(registered(function), device="cpu")


def assert_passes(function, text, parameters, dtypes=("float32",)):
    """The text alone is what an author pastes."""
    for shape in FURTHER:
        for dtype in dtypes:
            out = np.asarray(function(np.ones((2, 64, 65), dtype), **parameters)).dtype
            meta = registered(
                lambda data: function(data, **parameters), text, name="pasted", output_dtype=out
            )
            result = check_max_slices(meta, shape, dtype, device="cpu")
            assert result.estimated_bytes >= 0.999 * result.peak_bytes


@pytest.mark.parametrize("function", [chunked, list_of_slices, padded, sorted_in_parts])
def test_own_functions(function):
    run_alone(f"assert_own_suggestion_passes({function.__name__})")


def run_alone(call):
    """Run it in a process of its own: what threads of other tests allocate would count."""
    code = f"from {__name__} import *; {call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def assert_own_suggestion_passes(function):
    found = suggested(function)
    assert min(found.ratios) > 0.999
    assert_passes(function, str(found), {})


@pytest.mark.parametrize(
    "name, parameters",
    [
        ("scipy.ndimage:gaussian_filter", {"sigma": 2.0}),
        ("scipy.fft:dctn", {"axes": (1, 2)}),
        ("skimage.filters:sobel", {}),
        ("skimage.exposure:rescale_intensity", {}),
    ],
)
def test_functions_of_other_packages(name, parameters):
    run_alone(f"assert_suggestion_passes({name!r}, {parameters!r})")


def assert_suggestion_passes(name, parameters):
    meta = method_named(name)
    found = suggest_ledger(meta, "float32", parameters, "cpu")
    assert_passes(meta.function, str(found), parameters)


def test_lines_names_and_loops_are_in_the_text():
    text = suggested(chunked).text
    assert "# the input" in text
    assert "result = np.empty(data.shape, np.float32)" in text
    assert "part.append(m.alloc((min(angles, 16), rows, columns)" in text
    assert "# -(-angles // 16) - 1 times, with this alive each time:" in text
    text = suggested(list_of_slices).text
    assert "# angles times, and these of every time stay:" in text


def test_of_integers():
    found = suggest_ledger(registered(padded), "uint16", device="cpu")
    assert all(0.999 < ratio < 1.2 for ratio in found.ratios)


def test_along_the_other_axis():
    found = suggest_ledger(registered(padded), device="cpu", slice_dim=1)
    assert min(found.ratios) > 0.999
    assert found.runs[0].shape == (109, 7, 139)


def test_what_refuses_all_blocks_is_an_error():
    with pytest.raises(EstimatorError, match="too few rows"):
        suggest_ledger(registered(refuses_small), device="cpu")


def test_what_no_meter_sees_is_an_error():
    def unseen(data):
        tracemalloc.stop()
        return data + 1

    with pytest.raises(DeviceError, match=r"unseen: no meter gives .* switched tracemalloc off"):
        suggest_ledger(registered(unseen), device="cpu")


def test_a_method_that_is_registered_under_another_name_is_found_in_its_module(monkeypatch):
    registry = Registry()
    registry.register(abs, pattern="all", name="size", module="operator")
    monkeypatch.setattr(sys.modules[method_named.__module__], "registry", registry)
    assert method_named("operator:size").function is abs
    with pytest.raises(UsageError, match="operator has no sizes"):
        method_named("operator:sizes")


def test_names():
    assert method_named("minus_log").full_name.endswith("normalize.minus_log")
    assert method_named("numpy.fft:rfft2").full_name == "numpy.fft.rfft2"
    with pytest.raises(UsageError, match="there is no module 'nowhere'"):
        method_named("nowhere:function")
    with pytest.raises(UsageError, match="numpy has no nothing"):
        method_named("numpy:nothing")
    with pytest.raises(UnknownMethodError):
        method_named("nothing_like_it")


@pytest.mark.parametrize(
    ("name", "parameters", "lines"),
    [
        ("numpy:sqrt", {}, ['m.alloc(shape, "float32")']),
        ("torch:sort", {}, ['m.alloc(shape, "float32")', 'm.alloc(shape, "float64")']),
        ("torch:cumsum", {"dim": 0}, ['m.alloc(shape, "float32")']),
        ("torch.fft:rfft2", {}, ['m.alloc((angles, rows, columns // 2 + 1), "float64")']),
    ],
)
def test_functions_in_c_are_called_though_python_cannot_read_their_signature(
    name, parameters, lines
):
    """In a process of its own: what threads of other tests allocate would count."""
    pytest.importorskip(name.partition(":")[0])
    given = [part for key, value in parameters.items() for part in ("-p", f"{key}={value}")]
    command = [sys.executable, "-m", "maxslices", "measure", name, "--suggest", "--json", *given]
    options = ["--dtype", "float32", "--device", "cpu"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert all(line in found["ledger"] for line in lines)
    ratios = [run["ratio"] for run in found["runs"]]
    assert 1.0 <= min(ratios) <= max(ratios) < 1.01


def test_blocks_on_a_gpu_are_above_what_its_library_sorts_at_a_time(monkeypatch):
    maker = RunMaker(registered(padded), 0, "cpu", {})
    maker.backend_kind = "cuda"
    shapes = []
    monkeypatch.setattr(maker, "run", lambda shape, dtype: shapes.append(shape) or shape)
    maker.runs(np.dtype("float32"))
    assert sum(np.prod(shape) > 3 * 2**22 for shape in shapes) == 2


def masked_disc(data):
    """What stays of each frame is in a disc: a product of dims that no formula gives is alive."""
    y, x = np.ogrid[: data.shape[1], : data.shape[2]]
    r = np.hypot(y - data.shape[1] / 2, x - data.shape[2] / 2)
    return np.where(r < min(data.shape[1:]) / 2, data, 0).astype(np.float32)


def test_a_ledger_of_what_is_alive_at_the_peak_names_no_dtype_that_it_does_not_follow():
    meta = Registry().register(masked_disc, pattern="all", output_dtype="float32")
    ledger = suggest_ledger(meta, device="cpu")
    assert any("alive at the peak" in note for note in ledger.notes)
    assert "of float32 data" in ledger.text


def test_what_compiled_code_allocates_has_no_line_of_this_package():
    text = suggest_ledger(method_named("numpy:negative"), device="cpu").text
    assert text.count("m.alloc(shape, dtype)") == 2
    assert "trial.py" not in text


def as_float(data):
    """What images functions of scikit-image do: integers become float64."""
    return np.multiply(data, 2, dtype=data.dtype if data.dtype.kind == "f" else np.float64)


def test_a_ledger_refuses_dtypes_that_it_was_not_tried_with():
    """It was pasted for uint16, and said that 2.3 times as many slices fit as do."""
    meta = Registry().register(as_float, pattern="all", name="halved", module="lab")
    found = suggest_ledger(meta, device="cpu").estimator()
    assert found(0, (50, 60), "float32", 10**6, device="cpu")[0] > 0
    with pytest.raises(ValueError, match="for float32 data: suggest a ledger with --dtype uint16"):
        found(0, (50, 60), "uint16", 10**6, device="cpu")
    declared = Registry().register(
        as_float, pattern="all", name="halved", module="lab", calc_max_slices=found
    )
    with pytest.raises(EstimatorError, match="suggest a ledger with --dtype uint16"):
        declared.calc_max_slices(0, (50, 60), "uint16", 10**6)


def test_what_is_no_array_is_told_of_the_first_dtype_alone():
    """Bytes of a float32 block were counted for uint16 as well: 1.5 times what it took."""

    def from_bytes(data):
        return np.frombuffer(data.tobytes(), data.dtype).reshape(data.shape)

    found = suggest_ledger(registered(from_bytes), device="cpu")
    assert "objects that are no arrays" in found.text
    with pytest.raises(ValueError, match="suggest a ledger with --dtype uint16"):
        found.estimator()(0, (50, 60), "uint16", 10**6, device="cpu")


def test_a_method_is_given_as_for_the_check():
    with pytest.raises(UsageError, match="is not a registered method"):
        suggest_ledger(np.sort, device="cpu")
    with pytest.raises(UsageError, match="slices along dim 0 or 1, not 2"):
        suggest_ledger("numpy:sort", device="cpu", slice_dim=2)


def test_slices_made_square_are_told_by_the_longer_dim():
    """A bound was 1.4 times the truth."""

    def squared(data):
        side = max(data.shape[1:])
        square = np.zeros((len(data), side, side), np.float32)
        square[:, : data.shape[1], : data.shape[2]] = data
        return square

    assert "(angles, max(rows, columns), max(rows, columns))" in suggested(squared).text


def test_a_sum_that_grows_with_the_dtype_is_written_in_its_items():
    """It was in bytes of float32, and two thirds of what fits were answered for uint16."""
    text = suggest_ledger(method_named("numpy:diff"), device="cpu").text
    needs = {}
    exec(text, needs)
    few, many = (needs["needs"](0, (80, 90), each, 10**7, device="cpu")[0] for each in ("f4", "u2"))
    assert many == pytest.approx(2 * few, rel=0.05)

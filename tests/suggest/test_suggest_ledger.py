"""Suggested ledgers, pasted, pass `check_max_slices` at sizes that they were not made of."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import numpy as np
import pytest

from maxslices import Registry
from maxslices.core.named_method import method_named
from maxslices.errors import EstimatorError, UnknownMethodError, UsageError
from maxslices.suggest.suggest_ledger import suggest_ledger
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
    """An author pastes only the text. For loops, it is an upper bound."""
    for shape in FURTHER:
        for dtype in dtypes:
            out = np.asarray(function(np.ones((2, 64, 65), dtype), **parameters)).dtype
            meta = registered(
                lambda data: function(data, **parameters), text, name="pasted", output_dtype=out
            )
            result = check_max_slices(meta, shape, dtype, lower=0.7, device="cpu")
            assert result.estimated_bytes >= 0.999 * result.peak_bytes


@pytest.mark.parametrize("function", [chunked, list_of_slices, padded])
def test_own_functions(function):
    run_alone(f"assert_own_suggestion_passes({function.__name__})")


def run_alone(call):
    """Run it in a process of its own: what threads of other tests allocate would count."""
    code = f"from {__name__} import *; {call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def assert_own_suggestion_passes(function):
    suggestion = suggested(function)
    assert min(suggestion.ratios) > 0.999
    assert_passes(function, str(suggestion), {})


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
    suggestion = suggest_ledger(meta, "float32", parameters, "cpu")
    assert_passes(meta.function, str(suggestion), parameters)


def test_lines_have_their_code_and_what_a_loop_collects_is_one_line():
    text = suggested(chunked).text
    assert "m.alloc(shape, dtype)  # the input" in text
    assert "result = np.empty(data.shape, np.float32)" in text
    text = suggested(list_of_slices).text
    assert "return np.stack(parts)" in text
    assert text.count('m.alloc(shape, "float32")') == 2  # the parts, which are one line


def test_what_no_formula_gives_is_one_bound():
    def in_a_disc(data):
        y, x = np.ogrid[: data.shape[1], : data.shape[2]]
        inside = np.hypot(y, x) < min(data.shape[1:])
        return data[:, inside]

    suggestion = suggest_ledger(registered(in_a_disc, output_dtype="float32"), device="cpu")
    assert "at most: " in suggestion.text
    assert "return data[:, inside]" in suggestion.text
    assert all(1 <= ratio < 1.5 for ratio in suggestion.ratios)


def test_along_the_other_axis():
    suggestion = suggest_ledger(registered(padded), device="cpu", slice_dim=1)
    assert min(suggestion.ratios) > 0.999
    assert suggestion.shapes[0] == (109, 7, 139)


def test_what_refuses_all_blocks_is_an_error():
    with pytest.raises(EstimatorError, match="too few rows"):
        suggest_ledger(registered(refuses_small), device="cpu")


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
    with pytest.raises(UsageError, match="the module 'nowhere' cannot be found"):
        method_named("nowhere:function")
    with pytest.raises(UsageError, match="numpy has no nothing"):
        method_named("numpy:nothing")
    with pytest.raises(UnknownMethodError):
        method_named("nothing_like_it")


@pytest.mark.parametrize(
    ("name", "parameters", "lines"),
    [
        ("numpy:sqrt", {}, ['m.alloc(shape, "float32")']),
        ("torch:sort", {}, ["math.ceil"]),
    ],
)
def test_functions_in_c_are_called_though_python_cannot_read_their_signature(
    name, parameters, lines
):
    """In a process of its own: what threads of other tests allocate would count."""
    pytest.importorskip(name.partition(":")[0])
    options = [part for key, value in parameters.items() for part in ("-p", f"{key}={value}")]
    command = [sys.executable, "-m", "maxslices", "measure", name, "--suggest", "--json", *options]
    options = ["--dtype", "float32", "--device", "cpu"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    output = json.loads(done.stdout)
    assert all(line in output["ledger"] for line in lines)
    ratios = [run["ratio"] for run in output["runs"]]
    assert 1.0 <= min(ratios) <= max(ratios) < 1.03


def as_float(data):
    """What images functions of scikit-image do: integers become float64."""
    return np.multiply(data, 2, dtype=data.dtype if data.dtype.kind == "f" else np.float64)


def test_a_ledger_refuses_dtypes_that_it_was_not_tried_with():
    """A ledger pasted for uint16 estimated 2.3 times as many slices as fit."""
    meta = Registry().register(as_float, pattern="all", name="halved", module="lab")
    estimator = suggest_ledger(meta, device="cpu").estimator()
    assert estimator(0, (50, 60), "float32", 10**6, device="cpu")[0] > 0
    with pytest.raises(ValueError, match="for float32 data: suggest a ledger with --dtype uint16"):
        estimator(0, (50, 60), "uint16", 10**6, device="cpu")
    declared = Registry().register(
        as_float, pattern="all", name="halved", module="lab", calc_max_slices=estimator
    )
    with pytest.raises(EstimatorError, match="suggest a ledger with --dtype uint16"):
        declared.calc_max_slices(0, (50, 60), "uint16", 10**6)

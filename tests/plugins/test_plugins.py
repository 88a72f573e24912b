from __future__ import annotations

LISTED = """
import json
from maxslices import registry
of_labs = [m for m in registry if m.module.partition(".")[0].endswith("lab_methods")]
print(json.dumps([m.full_name for m in of_labs]))
"""
FAKE_LAB = [
    "fake_lab_methods.filters.bin_detector",
    "fake_lab_methods.flip",
    "fake_lab_methods.filters.mean_filter",
    "fake_lab_methods.filters.scale",
]


def test_methods_of_an_installed_package_are_listed(run_with_plugins):
    listed, errors = run_with_plugins(["fake_lab_methods"], LISTED)
    assert listed == FAKE_LAB
    assert errors == ""


def test_they_run_and_are_planned(run_with_plugins):
    code = """
import json
import numpy as np
from maxslices import registry
from maxslices.estimate import ModelRequest, declared_model

data = np.arange(4 * 6 * 8, dtype=np.uint16).reshape(4, 6, 8)
binned = registry["bin_detector"]
scaled = registry.get("scale", "fake_lab_methods.filters")
flipped = registry["fake_lab_methods.flip"]
request = ModelRequest(binned, 0, (6, 8), data.dtype, {"factor": 2}, 4)
print(json.dumps({
    "binned": [list(binned.function(data, factor=2).shape), float(binned.function(data)[0, 0, 0])],
    "dims": binned.output_other_dims(0, (6, 8), factor=2),
    "dtype": str(binned.output_dtype(0, (6, 8), data.dtype)),
    "bytes": declared_model(request, "cpu").bytes(4),
    "scaled": int(scaled.function(data, strength=2.0)[0, 0, 1]),
    "slices": scaled.calc_max_slices(0, (10, 20), np.float32(), 14450)[0],
    "halo": registry["mean_filter"].halo_slices(radius=2),
    "filtered": list(registry["mean_filter"].function(data, radius=2).shape),
    "flipped": int(flipped.function(data)[0, 0, 0]),
    "pattern": flipped.pattern,
    "unchanged": hasattr(np.flip, "meta"),
}))
"""
    output, errors = run_with_plugins(["fake_lab_methods"], code)
    assert output == {
        "binned": [[4, 3, 4], 4.5],
        "dims": [3, 4],
        "dtype": "float32",
        "bytes": 4 * 6 * 8 * 2 + 4 * 3 * 4 * 4,
        "scaled": 2,
        "slices": 9,
        "halo": [2, 2],
        "filtered": [4, 6, 8],
        "flipped": 4 * 6 * 8 - 1,
        "pattern": "sinogram",
        "unchanged": False,
    }
    assert errors == ""


def test_package_that_fails_to_import_is_named_and_others_work(run_with_plugins):
    listed, errors = run_with_plugins(["broken_lab_methods", "fake_lab_methods"], LISTED)
    assert listed == FAKE_LAB
    assert "UserWarning: the methods of broken-lab-methods are missing" in errors
    assert "ModuleNotFoundError: No module named 'a_library_that_is_not_there'" in errors


def test_methods_of_one_name_in_two_packages_are_distinguished(run_with_plugins):
    code = """
import json
from maxslices import registry
from maxslices.errors import UnknownMethodError

try:
    registry["scale"]
    message = ""
except UnknownMethodError as error:
    message = str(error)
print(json.dumps([
    message,
    registry["other_lab_methods.scale"].pattern,
    registry.get("scale", "fake_lab_methods.filters").pattern,
]))
"""
    output, _ = run_with_plugins(["fake_lab_methods", "other_lab_methods"], code)
    assert output == [
        "several methods are named 'scale': write fake_lab_methods.filters.scale or "
        "other_lab_methods.scale",
        "sinogram",
        "projection",
    ]


def test_nothing_is_imported_until_a_method_is_asked_for(run_with_plugins):
    code = """
import json, sys
import maxslices
before = "fake_lab_methods" in sys.modules
len(maxslices.registry)
print(json.dumps([before, "fake_lab_methods" in sys.modules]))
"""
    output, _ = run_with_plugins(["fake_lab_methods"], code)
    assert output == [False, True]

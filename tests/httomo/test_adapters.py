"""Calls and results of methods, as by httomo's wrappers, in a package written for the test."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from maxslices import Registry
from maxslices.core.parameters import check_parameters
from maxslices.errors import DeviceError, ParameterError, UnknownMethodError
from maxslices.httomo.method_adapters import calculate_stats, global_stats
from maxslices.httomo.method_database import read_entries
from maxslices.httomo.register_methods import register_entry
from maxslices.testing import check_max_slices

SIZES = Path(__file__).parents[1] / "records" / "httomo_sizes.json.gz"
"""Memory of calls, measured on an H200."""
ENTRY = {
    "pattern": "all", "output_dims_change": False, "implementation": "cpu", "padding": False
}  # fmt: skip


def make(
    package: Path, module: str, source: str, *, name: str, supporting: str = "", **entry: Any
) -> Registry:
    """Write a package with one method and its database; return a registry that has it."""
    area, stem = module.split(".")
    folder = package / "httomo_backends/methods_database/packages/backends/fakelib"
    database = {area: {stem: {name: ENTRY | entry}}}
    (folder / "fakelib.yaml").write_text(yaml.safe_dump(database))
    (folder / "supporting_funcs" / area).mkdir(parents=True)
    (folder / "supporting_funcs" / area / f"{stem}.py").write_text(dedent(supporting))
    (package / "fakelib" / area).mkdir()
    (package / "fakelib" / area / "__init__.py").touch()
    (package / "fakelib" / area / f"{stem}.py").write_text(dedent(source))
    methods = Registry()
    for each in read_entries("fakelib"):
        register_entry(methods, each)
    return methods


def may_be_imported(package: Path) -> None:
    (package / "fakelib" / "__init__.py").write_text("")


DATA = np.arange(6 * 5 * 4, dtype=np.float32).reshape(6, 5, 4)


def test_a_new_method_works_as_soon_as_it_is_in_the_database(package):
    methods = make(
        package,
        "misc.brandnew",
        """
        import cupy as cp
        from typing import Optional, Union

        def grow(tomo: cp.ndarray, by: int, factor: Optional[Union[float, int]] = 2.0,
                 calc_peak_gpu_mem: bool = False) -> cp.ndarray:
            return tomo
        """,
        name="grow",
        pattern="projection",
        implementation="gpu_cupy",
        output_dims_change=True,
        padding=True,
        supporting="""
        import cupy
        from fakelib.misc.brandnew import grow

        def _calc_padding_grow(**kwargs):
            return (kwargs["by"], kwargs["by"] + 1)

        def _calc_output_dim_grow(non_slice_dims_shape, **kwargs):
            return (non_slice_dims_shape[0] + kwargs["by"], non_slice_dims_shape[1])
        """,
    )
    meta = methods["fakelib.misc.brandnew.grow"]
    assert meta.pattern == "projection"
    assert list(meta.parameters) == ["by", "factor"]
    assert meta.halo_slices(by=3) == (3, 4)
    assert meta.output_other_dims(0, (7, 11), by=3) == (10, 11)
    assert check_parameters(meta.function, {"by": 3, "factor": None}) == []
    ((name, text),) = check_parameters(meta.function, {"by": 3, "factor": "much"})
    assert name == "factor"
    assert "float or int or None" in text
    with pytest.raises(DeviceError, match=r"fakelib.misc.brandnew.grow runs only on a GPU"):
        meta.function(DATA, by=3)


def test_a_method_that_is_not_installed_is_not_registered(package):
    methods = make(package, "misc.other", "def something(data):\n    return data\n", name="missing")
    assert len(methods) == 0


def test_a_method_whose_signature_cannot_be_read_is_refused_with_the_reason(package):
    source = "from cupy import DEFAULT\n\ndef odd(data, a=DEFAULT):\n    return data\n"
    methods = make(package, "misc.odd", source, name="odd")
    with pytest.raises(UnknownMethodError, match=r"odd is not supported.*'DEFAULT' is not defined"):
        methods.get("odd", "fakelib.misc.odd")


def test_axis_auto_is_the_slice_axis(package):
    methods = make(
        package,
        "misc.axes",
        "def tell(data, axis: int = 2):\n    return data + axis\n",
        name="tell",
    )
    may_be_imported(package)
    meta = methods["tell"]
    assert meta.supplied == ("slice_dim",)
    assert check_parameters(meta.function, {"axis": "auto"}) == []
    assert check_parameters(meta.function, {"axis": "none"}) != []
    np.testing.assert_array_equal(meta.function(DATA, axis="auto", slice_dim=1), DATA + 1)
    np.testing.assert_array_equal(meta.function(DATA, slice_dim=1), DATA + 1)
    np.testing.assert_array_equal(meta.function(DATA, axis=0, slice_dim=1), DATA)


def test_the_start_of_the_preview_is_passed(package):
    methods = make(
        package,
        "prep.alignment",
        """
        from typing import List

        def correct(data, shift_xy: List[int] = [0, 0], step_xy: List[int] = [1, 1]):
            return data + shift_xy[0] * 1000 + shift_xy[1]
        """,
        name="correct",
    )
    may_be_imported(package)
    meta = methods["correct"]
    result = meta.function(DATA, detector_start=(3, 7))
    np.testing.assert_array_equal(result, DATA + 7003)
    result = meta.function(DATA, shift_xy=[1, 2], detector_start=(3, 7))
    np.testing.assert_array_equal(result, DATA + 1002)


class OnDevice:
    """Fake of a CuPy array, with its device and its copy to the host."""

    def __init__(self, array: np.ndarray, number: int = 0) -> None:
        self.array = array
        self.device = SimpleNamespace(id=number)

    def get(self) -> np.ndarray:
        return self.array


def test_the_device_of_the_data_is_the_methods_gpu_id(package):
    methods = make(
        package,
        "misc.denoise",
        "def smooth(data, gpu_id: int = 0):\n    return gpu_id\n",
        name="smooth",
        implementation="gpu_cupy",
    )
    may_be_imported(package)
    assert methods["smooth"].function(OnDevice(DATA, 3)) == 3
    assert methods["smooth"].function(OnDevice(DATA, 3), gpu_id=1) == 1


@pytest.mark.parametrize("implementation", ["cpu", "gpu"])
def test_numpy_methods_get_host_copies_and_their_result_returns_to_the_device(
    package, monkeypatch, implementation
):
    methods = make(
        package,
        "misc.segm",
        "import numpy\n\ndef twice(data):\n"
        "    assert isinstance(data, numpy.ndarray)\n    return 2 * data\n",
        name="twice",
        implementation=implementation,
    )
    may_be_imported(package)
    monkeypatch.setattr("maxslices.httomo.filled_call.to_device", OnDevice)
    result = methods["twice"].function(OnDevice(DATA))
    assert isinstance(result, OnDevice)
    np.testing.assert_array_equal(result.array, 2 * DATA)
    np.testing.assert_array_equal(methods["twice"].function(DATA), 2 * DATA)


FIND = """
import numpy as np
from typing import Literal, Optional, Tuple

def find(data: np.ndarray, ind: Optional[int] = None, average_radius: int = 0,
         drop: int = 20) -> np.float32:
    assert data.shape[1] == 1 and ind == 0 and data.dtype == np.float32
    return np.float32(data.sum() + drop)

def find_wide(data, ind: Optional[int] = None) -> Tuple[np.float32, np.float32,
              Optional[Literal["left", "right"]], np.float32]:
    return np.float32(1), np.float32(2), "left", np.float32(3)

def find_pair(proj1: np.ndarray, proj2: np.ndarray, tol: float = 0.5) -> np.float32:
    return np.float32(proj1[0, 0] + 10 * proj2[0, 0] + tol)
"""


def in_blocks(meta, data: np.ndarray, *, block: int = 4, **parameters):
    """Run a method on blocks of projections, and combine its results."""
    starts = range(0, len(data), block)
    return meta.combine([meta.function(data[i : i + block], **parameters) for i in starts])


def finder(package: Path, name: str, implementation: str = "cpu"):
    methods = make(
        package,
        "recon.rotation",
        FIND,
        name=name,
        pattern="projection",
        implementation=implementation,
    )
    may_be_imported(package)
    return methods[name]


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        ({}, [2]),
        ({"ind": "mid"}, [2]),
        ({"ind": 4}, [4]),
        ({"average_radius": 1}, [1, 2, 3]),
        ({"ind": 3, "average_radius": 1, "drop": 7}, [2, 3, 4]),
    ],
)
def test_a_centre_is_found_from_one_sinogram_of_all_blocks(package, arguments, rows):
    meta = finder(package, "find")
    assert meta.side_results == ("cor",)
    assert check_parameters(meta.function, arguments) == []
    expected = DATA[:, rows].mean(axis=1).sum() + arguments.get("drop", 20)
    assert in_blocks(meta, DATA.astype(np.uint16), **arguments) == pytest.approx(float(expected))


def test_sinograms_beyond_the_detector_are_refused(package):
    meta = finder(package, "find")
    with pytest.raises(ParameterError, match=r"sinograms 3 to 5 .* not all within the 5 rows"):
        meta.function(DATA, ind=4, average_radius=1)


def test_a_centre_that_needs_a_gpu_is_refused_at_the_first_block(package):
    with pytest.raises(DeviceError, match="find runs only on a GPU"):
        finder(package, "find", implementation="gpu_cupy").function(DATA)


def test_the_part_of_a_block_does_not_keep_the_block(package):
    part = finder(package, "find").function(DATA)
    assert part.frames[0].base is None
    assert part.frames[0].shape == (6, 4)


def test_a_wide_scans_side_results_have_four_names(package):
    meta = finder(package, "find_wide")
    assert meta.side_results == ("cor", "overlap", "side", "overlap_position")
    assert in_blocks(meta, DATA) == (1.0, 2.0, "left", 3.0)


def test_a_centre_of_two_projections_is_of_the_first_and_the_last(package):
    meta = finder(package, "find_pair")
    arguments = {"proj1": "auto", "proj2": "auto", "tol": 0.25}
    assert check_parameters(meta.function, arguments) == []
    result = in_blocks(meta, DATA, **arguments)
    assert result == DATA[0, 0, 0] + 10 * DATA[-1, 0, 0] + 0.25


@pytest.mark.parametrize(
    ("name", "arguments"), [("find", {}), ("find", {"average_radius": 1}), ("find_pair", {})]
)
@pytest.mark.parametrize("dtype", [np.uint16, np.float32, np.float64])
def test_taking_a_part_of_a_block_needs_the_declared_memory(package, name, arguments, dtype):
    check_max_slices(finder(package, name), (211, 13, 1009), dtype, device="cpu", **arguments)


@pytest.mark.parametrize("name", ["find_center_vo", "find_center_360", "find_center_pc"])
def test_the_declared_memory_of_centre_finding_is_what_a_gpu_measured(real, name):
    meta = real[f"httomolibgpu.recon.rotation.{name}"]
    with gzip.open(SIZES, "rt") as file:
        entries = json.load(file)["entries"]
    entries = [entry for entry in entries if entry["question"]["method"] == meta.full_name]
    assert entries
    for entry in entries:
        question = entry["question"]
        dims, arguments = tuple(question["other_dims"]), meta.merged(**question["parameters"])
        model = meta.estimator.slices_model(0, dims, np.dtype("float32"), "cuda", **arguments)
        for call in entry["probe"]["rungs"]:
            assert model.bytes(call["n_slices"]) == call["n_bytes"]


IMAGES = """
import numpy as np
from pathlib import Path

def save_to_images(data, out_dir, subfolder_name: str = "images", axis: int = 1,
                   offset: int = 0, asynchronous: bool = False):
    np.nan_to_num(data, copy=False)
    folder = Path(out_dir) / subfolder_name
    folder.mkdir(exist_ok=True)
    for i in range(data.shape[axis]):
        np.save(folder / f"{i + offset:05d}.npy", data.take(i, axis))
"""


def test_images_are_saved_block_by_block_next_to_the_results(package, tmp_path):
    methods = make(package, "misc.images", IMAGES, name="save_to_images")
    may_be_imported(package)
    meta = methods["save_to_images"]
    arguments = {"subfolder_name": "pictures", "axis": "auto", "asynchronous": True}
    assert check_parameters(meta.function, arguments) == []
    data = DATA.copy()
    data[0, 0, 0] = np.nan
    folders = [
        meta.function(
            data[:, first : first + 2],
            **arguments,
            slice_dim=1,
            first_slice=first,
            results_folder=tmp_path,
        )
        for first in (0, 2, 4)
    ]
    assert meta.combine(folders) == str(tmp_path)
    saved = sorted(tmp_path.glob("pictures/*.npy"))
    assert [file.stem for file in saved] == [f"{i:05d}" for i in range(5)]
    np.testing.assert_array_equal(np.load(saved[3]), data[:, 3])
    assert np.isnan(data[0, 0, 0])


def test_a_run_in_memory_saves_no_images(package):
    methods = make(package, "misc.images", IMAGES, name="save_to_images")
    assert methods["save_to_images"].function(DATA, axis="auto") is None


def test_images_along_another_axis_than_the_slice_axis_are_refused(package, tmp_path):
    methods = make(package, "misc.images", IMAGES, name="save_to_images")
    with pytest.raises(ParameterError, match="Use axis: auto, not 0"):
        methods["save_to_images"].function(DATA, axis=0, slice_dim=1, results_folder=tmp_path)


def test_statistics_are_of_all_blocks():
    data = DATA.copy()
    data[0, 0, :3] = np.nan, np.inf, -np.inf
    clean = np.nan_to_num(data, nan=0, posinf=0, neginf=0)
    result = global_stats([calculate_stats(data[:4]), calculate_stats(data[4:])])
    assert result == (0.0, 119.0, pytest.approx(clean.mean()), 120)
    assert np.isnan(data[0, 0, 0])
    assert calculate_stats(np.array([3, 250], np.uint8)) == (3.0, 250.0, (253.0,), 2)


def test_statistics_have_the_same_bits_in_blocks_of_any_size():
    data = np.random.default_rng(1).normal(0, 1e3, (13, 7, 101)).astype(np.float32)
    result = {
        global_stats([calculate_stats(block) for block in np.array_split(data, n, axis)])
        for n in (1, 2, 5, 7)
        for axis in (0, 1)
    }
    assert len(result) == 1

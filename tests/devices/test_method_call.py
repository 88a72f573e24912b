"""Calls of methods on a CPU, with and without torch."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import maxslices
from maxslices import Registry, method
from maxslices.core.declaration import describe
from maxslices.devices import call_method, require_libraries, select_backend
from maxslices.errors import DeviceError

CPU = select_backend("cpu")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


def described(function, **declaration):
    return describe(function, pattern="all", array_module="torch", name="tried", **declaration)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("code", "message"), [(None, "sys.exit(None)"), ("no scan", "sys.exit('no scan')")]
)
def test_a_method_that_exits_is_an_error(code, message):
    meta = describe(lambda data: sys.exit(code), pattern="all", name="tried")
    with pytest.raises(RuntimeError, match=re.escape(message)):
        call_method(meta, np.ones((2, 3, 4)), {}, CPU)


@pytest.mark.parametrize(
    "dtype", ["uint8", "uint16", "int16", "uint32", "float16", "float32", "float64", "complex64"]
)
def test_nothing_is_copied(torch, dtype):
    data = np.ones((4, 3, 5), dtype)
    seen = []

    def same(data):
        assert isinstance(data, torch.Tensor)
        assert str(data.dtype) == f"torch.{dtype}"
        seen.append(data.data_ptr())
        return data

    result = call_method(described(same), data, {}, CPU)
    assert isinstance(result, np.ndarray)
    assert result.dtype == data.dtype
    assert seen == [data.ctypes.data] == [result.ctypes.data]


@needs_torch
@pytest.mark.parametrize(
    "change",
    [
        lambda a: a[::-1],
        lambda a: a.astype(">f4"),
        lambda a: np.broadcast_to(a[:1], a.shape),
    ],
    ids=["backwards", "other byte order", "read-only"],
)
def test_arrays_that_torch_cannot_share_are_copied(change):
    data = change(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    result = call_method(described(lambda data: data.add_(1)), data, {}, CPU)
    np.testing.assert_array_equal(result, data + 1)
    assert not np.shares_memory(result, data)


def test_frames_become_tensors_and_angles_do_not(torch):
    parameters = {"flats": np.ones((2, 3, 4)), "darks": None, "angles": np.zeros(5), "level": 2.0}
    seen = {}

    def keep(data, flats, darks, angles, level):
        seen.update(flats=flats, darks=darks, angles=angles, level=level)
        return data

    call_method(described(keep), np.ones((5, 3, 4)), parameters, CPU)
    assert isinstance(seen["flats"], torch.Tensor)
    assert seen["darks"] is None
    assert seen["angles"] is parameters["angles"]
    assert seen["level"] == 2.0


def test_side_results_come_as_arrays(torch):
    meta = described(
        lambda data: (data.sum(), data[0, 0], "text"),
        side_results=["a", "b", "c"],
        sample_slices=lambda n_slices: [0],
    )
    total, row, text = call_method(meta, np.ones((2, 3, 4)), {}, CPU)
    assert (float(total), text) == (24.0, "text")
    assert isinstance(row, np.ndarray)


@needs_torch
def test_a_dtype_of_torch_alone_is_named():
    with pytest.raises(TypeError, match=r"torch\.bfloat16, which NumPy lacks: convert it"):
        call_method(described(lambda data: data.bfloat16()), np.ones((1, 2, 3)), {}, CPU)


@needs_torch
def test_a_tensor_elsewhere_is_named():
    with pytest.raises(TypeError, match="a tensor on meta, but its data are on the CPU"):
        call_method(described(lambda data: data.to("meta")), np.ones((1, 2, 3)), {}, CPU)


@needs_torch
@pytest.mark.skipif(np.longdouble(0).itemsize == 8, reason="longdouble is float64 here")
def test_a_dtype_of_numpy_alone_is_named():
    with pytest.raises(TypeError, match="torch has no tensors of dtype"):
        call_method(described(lambda data: data), np.ones((1, 2, 3), np.longdouble), {}, CPU)


def test_missing_torch_is_reported_with_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    meta = described(lambda data: data)
    with pytest.raises(DeviceError, match=r"^tried needs torch.*pip install 'maxslices\[torch\]'"):
        require_libraries([meta])
    with pytest.raises(DeviceError, match=r"maxslices\[torch\]"):
        maxslices.run(
            np.ones((4, 5, 6), np.float32),
            [{"method": "nonlocal_means", "parameters": {"strength": 0.1}}],
            device="cpu",
            memory="64MB",
        )


def test_torch_is_not_imported_for_methods_without_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it fails
    assert not require_libraries([describe(lambda data: data, pattern="all", name="tried")])


@needs_torch
def test_methods_of_both_kinds_in_one_section():
    @method("all", output_dtype="float32", calc_max_slices=_two)
    def add_with_numpy(data):
        return data.astype(np.float32) + np.float32(1)

    @method("all", array_module="torch", output_dtype="float32", calc_max_slices=_two)
    def double_with_torch(data):
        return data.float().mul(2)

    frames = np.arange(4000, dtype=np.uint16).reshape(40, 10, 10)
    frames.flags.writeable = False
    steps = [{"method": name} for name in ("double_with_torch", "add_with_numpy") * 2]
    report = maxslices.run(frames, steps, device="cpu", memory="5.15MB")
    np.testing.assert_array_equal(report.result, (2 * frames.astype(np.float32) + 1) * 2 + 1)
    assert report.sections[0].measured_bytes < report.sections[0].estimated_bytes + 2**16


def _two(slice_dim, other_dims, dtype, available_memory, device="cuda"):
    return available_memory // (other_dims[0] * other_dims[1] * 12), np.float32


def test_the_working_directory_is_restored_after_a_method(tmp_path, monkeypatch):
    """Otherwise results with a relative path go to another folder."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)

    def goes_elsewhere(data):
        os.chdir(elsewhere)
        return data * 2

    meta = Registry().register(goes_elsewhere, pattern="all", calc_max_slices=None)
    call_method(meta, np.ones((1, 2, 3)), {}, select_backend("cpu"))
    assert Path.cwd() == here


@needs_fork
def test_a_forked_child_ends_at_the_end_of_the_method(tmp_path):
    def forks(data, how):
        if os.fork() == 0 and how == "raises":
            raise ValueError("in the child")
        return data * 2

    meta = Registry().register(forks, pattern="all", calc_max_slices=None)
    here, log = os.getpid(), tmp_path / "log"
    for how in ("returns", "raises"):
        try:
            call_method(meta, np.ones((1, 2, 3)), {"how": how}, CPU)
        finally:
            if os.getpid() != here:  # the child must not run the rest of pytest
                log.touch()
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 1
    assert not log.exists()


def test_a_method_that_would_end_the_process_is_an_error():
    """With os._exit(0) an unfinished run had the status of a finished one."""
    before = os._exit

    def ends(data):
        os._exit(0)

    meta = Registry().register(ends, pattern="all", calc_max_slices=None)
    with pytest.raises(RuntimeError, match=r"^it called os\._exit\(0\)$"):
        call_method(meta, np.ones((1, 2, 3)), {}, CPU)
    assert os._exit is before


def test_another_thread_can_end_the_process_during_a_call():
    """As a worker's does when the process that started it is killed."""

    def ends_by_a_thread(data):
        ending = threading.Thread(target=lambda: os._exit(7))
        ending.start()
        ending.join()
        return data

    meta = Registry().register(ends_by_a_thread, pattern="all", calc_max_slices=None)
    child = os.fork()
    if child == 0:
        threading.excepthook = lambda _: None
        call_method(meta, np.ones((1, 2, 3)), {}, CPU)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

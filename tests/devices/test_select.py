"""Selecting backends by name, without CuPy or without a GPU."""

from __future__ import annotations

import sys

import pytest

from maxslices import ArraySpec, Pipeline, plan
from maxslices.devices import select_backend
from maxslices.errors import DeviceError, UsageError
from tests.devices.fake_cupy import install
from tests.planner.fakes import fakes


def test_auto_is_the_cpu_without_cupy_and_without_a_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert select_backend("auto").name == "cpu"
    install(monkeypatch, n_devices=0)
    assert select_backend("auto").name == "cpu"
    install(monkeypatch, n_devices=2)
    assert select_backend("auto").name == "cuda:0"


def test_a_missing_device_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(
        DeviceError, match=r"pip install 'maxslices\[cuda13\]' .*, or use --device cpu"
    ):
        select_backend("cuda")
    install(monkeypatch, n_devices=0)
    with pytest.raises(DeviceError, match="no device cuda:0: CuPy finds no GPU here"):
        select_backend("cuda")
    install(monkeypatch, n_devices=2)
    assert select_backend("cuda:1").name == "cuda:1"
    with pytest.raises(DeviceError, match="no device cuda:2: CuPy finds 2; use --device cpu"):
        select_backend("cuda:2")


def test_a_home_that_cupy_cannot_write_to_is_reported(tmp_path, monkeypatch):
    (tmp_path / "cupy.py").write_text("import os; os.makedirs('/dev/null/.cupy')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    for device in ("auto", "cuda"):
        with pytest.raises(DeviceError, match=r"/dev/null/\.cupy.*: set CUPY_CACHE_DIR"):
            select_backend(device)


@pytest.mark.parametrize("name", ["gpu", "", "cuda:", "cuda:-1", "cuda:1.5", "CPU", "cpu:0"])
def test_other_names_are_refused(name):
    with pytest.raises(UsageError, match="use auto, cpu, cuda or cuda:N"):
        select_backend(name)


def test_planning_for_a_gpu_needs_its_memory_or_the_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    pipeline = Pipeline.from_steps(["negate"], fakes)
    scan = ArraySpec((20, 30, 40), "float32")
    for device in ("cuda", "cuda:3", "auto"):
        assert plan(scan, pipeline, device=device, memory="2GB").device.startswith("cuda")
    assert plan(scan, pipeline, device="auto").device == "cpu"
    with pytest.raises(DeviceError, match="to plan for a GPU of another machine, give its --mem"):
        plan(scan, pipeline, device="cuda")

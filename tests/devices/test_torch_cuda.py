"""Methods for torch on a simulated GPU, whose memory is the host's."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from maxslices.core.declaration import describe
from maxslices.devices import call_method
from maxslices.errors import DeviceError
from tests.devices import fake_cupy

torch = pytest.importorskip("torch", reason="torch is not installed")

from maxslices.devices import torch_arrays

GPU = SimpleNamespace(kind="cuda")
DATA = np.arange(24).reshape(2, 3, 4)


class OnDevice(torch.Tensor):
    """A tensor that claims to be on a GPU, as do results of operations with it."""

    device = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch):
    """The devices and streams that torch used, in order."""
    calls = SimpleNamespace(entered=[], pointer=0)

    @contextmanager
    def entered(what):
        calls.entered.append(what)
        yield
        calls.entered.append(None)

    cupy = fake_cupy.install(monkeypatch)
    cupy.cuda.get_current_stream = lambda: SimpleNamespace(ptr=calls.pointer)
    cupy.dtype = np.dtype
    cupy.from_dlpack = lambda tensor: tensor.as_subclass(torch.Tensor).numpy()
    stand_ins = {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "device": entered,
        "stream": entered,
        "default_stream": lambda device: f"the usual one of {device}",
        "ExternalStream": lambda pointer, device: (pointer, device),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(
        torch_arrays, "from_dlpack", lambda array: torch.from_numpy(array).as_subclass(OnDevice)
    )
    return calls


def call(function, data=DATA, parameters=None, **declaration):
    meta = describe(function, pattern="all", array_module="torch", name="tried", **declaration)
    return call_method(meta, data, parameters or {}, GPU)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int16", "float32"])
def test_arrays_become_tensors_and_back(gpu, dtype):
    data = DATA.astype(dtype)
    kinds = []

    def same(tensor):
        kinds.append(str(tensor.dtype))
        assert not torch.is_grad_enabled()
        return tensor

    back = call(same, data)
    assert kinds == [f"torch.{dtype}"]
    assert back.dtype == dtype
    assert back.ctypes.data == data.ctypes.data  # nothing is copied


@pytest.mark.parametrize(
    ("pointer", "stream"),
    [(0, "the usual one of 0"), (1, "the usual one of 0"), (4096, (4096, 0))],
    ids=["the old default", "the newer default", "one of CuPy's"],
)
def test_torch_works_on_the_stream_that_is_current(gpu, pointer, stream):
    gpu.pointer = pointer
    call(lambda tensor: tensor)
    assert gpu.entered == [0, stream, None, None]


def test_frames_are_tensors_and_side_results_are_on_the_host(gpu):
    def both(tensor, flats):
        return (tensor + flats).sum(), 7

    results = call(both, parameters={"flats": DATA}, side_results=("a", "b"), combine=tuple)
    assert results == (2 * DATA.sum(), 7)
    assert type(results[0]) is np.ndarray
    one = call(lambda tensor: tensor.sum(), side_results=("a",), combine=tuple)
    assert type(one) is np.ndarray


def test_tensors_that_cupy_cannot_represent_are_refused(gpu):
    with pytest.raises(TypeError, match=r"torch.bfloat16, which CuPy lacks: .*\.float\(\)"):
        call(lambda tensor: tensor.to(torch.bfloat16))
    with pytest.raises(TypeError, match="tensor on cpu, but its data are on cuda:0"):
        call(lambda tensor: torch.zeros(3))
    assert call(lambda tensor: 5) == 5


def test_torch_without_a_gpu_is_reported(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="finds no GPU, although CuPy does"):
        call(lambda tensor: tensor)

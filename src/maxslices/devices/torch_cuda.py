"""CuPy arrays as torch tensors on the same GPU, and back, by DLPack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from ..core.method_meta import MethodMeta
from ..errors import DeviceError
from .torch_cpu import convert_frames

_SIGNED = {"uint16": "int16", "uint32": "int32", "uint64": "int64"}
"""Exchanged by DLPack as the signed types of their size: not every torch accepts these."""


def call(meta: MethodMeta, data: Any, parameters: Mapping[str, Any]) -> Any:
    """Call a torch method on CuPy arrays; see `maxslices.devices.call_method`."""
    with current_stream(), torch.no_grad():
        result = meta.function(to_tensor(data), **convert_frames(parameters, to_tensor))
        if not meta.side_results:
            return to_array(result)
        if isinstance(result, tuple | list):
            return tuple(_to_host(value) for value in result)
        return _to_host(result)


@contextmanager
def current_stream() -> Iterator[None]:
    """Make CuPy's current device and stream torch's current ones.

    Raises
    ------
    DeviceError
        If torch finds no GPU.
    """
    if not torch.cuda.is_available():
        raise DeviceError(
            f"torch {torch.__version__} finds no GPU, though CuPy does: install a torch with CUDA, "
            "or use --device cpu"
        )
    import cupy

    number, pointer = int(cupy.cuda.Device().id), int(cupy.cuda.get_current_stream().ptr)
    with torch.cuda.device(number):
        if pointer in (0, 1):  # the default stream, by its old and its newer name
            stream = torch.cuda.default_stream(number)
        else:
            external: Any = torch.cuda.ExternalStream
            stream = external(pointer, device=number)
        with torch.cuda.stream(stream):
            yield


def to_tensor(array: Any) -> torch.Tensor:
    """Tensor that shares an array's memory."""
    name = str(array.dtype)
    if name in _SIGNED:
        return from_dlpack(array.view(_SIGNED[name])).view(getattr(torch, name))
    return from_dlpack(array)


def to_array(result: Any) -> Any:
    """CuPy array that shares a tensor's memory; anything else unchanged.

    Raises
    ------
    TypeError
        If CuPy has no such dtype, or the tensor is on another device.
    """
    import cupy

    if not isinstance(result, torch.Tensor):
        return result
    if result.device.type != "cuda" or result.device.index != torch.cuda.current_device():
        raise TypeError(
            f"it returned a tensor on {result.device}; its data are on "
            f"cuda:{torch.cuda.current_device()}"
        )
    result = result.detach().resolve_conj().resolve_neg()
    name = str(result.dtype).removeprefix("torch.")
    try:
        cupy.dtype(name)
    except TypeError:
        raise TypeError(
            f"it returned a tensor of {result.dtype}, which CuPy lacks: convert it, "
            "for example with .float()"
        ) from None
    if name in _SIGNED:
        return cupy.from_dlpack(result.view(getattr(torch, _SIGNED[name]))).view(name)
    return cupy.from_dlpack(result)


def _to_host(value: Any) -> Any:
    return value.numpy(force=True) if isinstance(value, torch.Tensor) else value

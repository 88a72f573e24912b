"""Convert arrays to torch tensors on the same device and back: of NumPy, or of CuPy with DLPack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from ..core.allocators import Device
from ..core.method_meta import MethodMeta
from ..errors import DeviceError
from ..measure.torch_cpu_memory import counted, until_freed

_FRAMES = ("flats", "darks")
"""Parameters that become tensors like the data. Angles stay a NumPy array."""
_SIGNED = {"uint16": "int16", "uint32": "int32", "uint64": "int64"}
"""Types that some versions of torch lack. DLPack exchanges them as signed types."""


def call(meta: MethodMeta, data: Any, parameters: Mapping[str, Any], kind: Device) -> Any:
    """Call a torch method on arrays of a device. See `maxslices.devices.call_method`."""
    is_cuda = kind == "cuda"
    to_tensor = _from_cupy if is_cuda else _from_numpy
    to_array, to_side_result = (_to_cupy, _to_host) if is_cuda else (_to_numpy, _to_numpy)
    with _current_stream() if is_cuda else nullcontext():
        inputs = {
            name: to_tensor(value) if name in _FRAMES and hasattr(value, "shape") else value
            for name, value in parameters.items()
        }

        def work() -> Any:
            with torch.no_grad():
                return meta.function(to_tensor(data), **inputs)

        result = work() if is_cuda else counted(work)
        if not meta.side_results:
            return to_array(result)
        if isinstance(result, tuple | list):
            return tuple(to_side_result(value) for value in result)
        return to_side_result(result)


def _from_numpy(array: Any) -> torch.Tensor:
    """Tensor that shares an array's memory.

    Read-only arrays are copied, because torch could write to them. Arrays with another byte order
    or negative strides are copied, because torch does not support them.
    """
    array = np.asarray(array)
    shared = (
        array.flags.writeable and array.dtype.isnative and all(step >= 0 for step in array.strides)
    )
    if not shared:
        array = np.array(array, array.dtype.newbyteorder("="), order="C")
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise TypeError(f"torch has no tensors of dtype {array.dtype}") from None


def _to_numpy(result: Any) -> Any:
    """NumPy array that shares a tensor's memory. Other objects are returned unchanged.

    Raises
    ------
    TypeError
        If NumPy lacks the dtype, or the tensor is not on the CPU.
    """
    if not isinstance(result, torch.Tensor):
        return result
    if result.device.type != "cpu":
        raise TypeError(f"it returned a tensor on {result.device}, but its data are on the CPU")
    result = result.detach().resolve_conj().resolve_neg()
    is_torchs_own = result.untyped_storage().resizable()  # not if it shares an array's memory
    try:
        array = result.numpy()
    except TypeError:
        raise _missing_dtype(result, "NumPy") from None
    if is_torchs_own:
        until_freed(array.base)
    return array


@contextmanager
def _current_stream() -> Iterator[None]:
    """Make CuPy's current device and stream the current ones of torch.

    Raises
    ------
    DeviceError
        If torch finds no GPU.
    """
    if not torch.cuda.is_available():
        raise DeviceError(
            f"torch {torch.__version__} finds no GPU, although CuPy does: install torch with CUDA, "
            "or use --device cpu"
        )
    import cupy

    number, pointer = int(cupy.cuda.Device().id), int(cupy.cuda.get_current_stream().ptr)
    with torch.cuda.device(number):
        if pointer in (0, 1):  # the two numbers of the default stream
            stream = torch.cuda.default_stream(number)
        else:
            external: Any = torch.cuda.ExternalStream
            stream = external(pointer, device=number)
        with torch.cuda.stream(stream):
            yield


def _from_cupy(array: Any) -> torch.Tensor:
    """Tensor that shares an array's memory."""
    name = str(array.dtype)
    if name in _SIGNED:
        return from_dlpack(array.view(_SIGNED[name])).view(getattr(torch, name))
    return from_dlpack(array)


def _to_cupy(result: Any) -> Any:
    """CuPy array that shares a tensor's memory. Other objects are returned unchanged.

    Raises
    ------
    TypeError
        If CuPy lacks the dtype, or the tensor is on another device.
    """
    import cupy

    if not isinstance(result, torch.Tensor):
        return result
    if result.device.type != "cuda" or result.device.index != torch.cuda.current_device():
        raise TypeError(
            f"it returned a tensor on {result.device}, but its data are on "
            f"cuda:{torch.cuda.current_device()}"
        )
    result = result.detach().resolve_conj().resolve_neg()
    name = str(result.dtype).removeprefix("torch.")
    try:
        cupy.dtype(name)
    except TypeError:
        raise _missing_dtype(result, "CuPy") from None
    if name in _SIGNED:
        return cupy.from_dlpack(result.view(getattr(torch, _SIGNED[name]))).view(name)
    return cupy.from_dlpack(result)


def _to_host(value: Any) -> Any:
    return value.numpy(force=True) if isinstance(value, torch.Tensor) else value


def _missing_dtype(result: torch.Tensor, library: str) -> TypeError:
    return TypeError(
        f"it returned a tensor of {result.dtype}, which {library} lacks: convert it, for example "
        "with .float()"
    )

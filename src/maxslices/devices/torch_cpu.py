"""NumPy arrays as torch tensors on the CPU, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..core.method_meta import MethodMeta
from ..measure.torch_cpu_memory import counted, until_freed

_FRAMES = ("flats", "darks")
"""Parameters that become tensors as the data do. Angles stay a NumPy array."""


def convert_frames(
    parameters: Mapping[str, Any], to_tensor: Callable[[Any], Any]
) -> dict[str, Any]:
    """Parameters of a method, with flats and darks made tensors."""
    return {
        name: to_tensor(value) if name in _FRAMES and hasattr(value, "shape") else value
        for name, value in parameters.items()
    }


def call(meta: MethodMeta, data: Any, parameters: Mapping[str, Any]) -> Any:
    """Call a torch method on NumPy arrays; see `maxslices.devices.call_method`."""
    given = convert_frames(parameters, to_tensor)

    def work() -> Any:
        with torch.no_grad():
            return meta.function(to_tensor(data), **given)

    result = counted(work)
    if not meta.side_results:
        return to_array(result)
    if isinstance(result, tuple | list):
        return tuple(to_array(value) for value in result)
    return to_array(result)


def to_tensor(array: Any) -> torch.Tensor:
    """Tensor that shares an array's memory.

    Read-only arrays are copied, because torch would write to them. So are arrays with another byte
    order or negative strides, because torch has no such tensors.
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


def to_array(result: Any) -> Any:
    """NumPy array that shares a tensor's memory; anything else unchanged.

    Raises
    ------
    TypeError
        If NumPy has no such dtype, or the tensor is not on the CPU.
    """
    if not isinstance(result, torch.Tensor):
        return result
    if result.device.type != "cpu":
        raise TypeError(f"it returned a tensor on {result.device}; its data are on the CPU")
    result = result.detach().resolve_conj().resolve_neg()
    is_torchs_own = result.untyped_storage().resizable()  # not if it shares an array's memory
    try:
        array = result.numpy()
    except TypeError:
        raise TypeError(
            f"it returned a tensor of {result.dtype}, which NumPy lacks: convert it, "
            "for example with .float()"
        ) from None
    if is_torchs_own:
        until_freed(array.base)
    return array

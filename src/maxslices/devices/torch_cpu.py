"""NumPy arrays as torch tensors on the CPU, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..measure.torch_cpu_memory import counted, until_freed
from ..registry.method_meta import MethodMeta
from .method_call import handed_over


def call(meta: MethodMeta, data: Any, parameters: Mapping[str, Any]) -> Any:
    """Call a torch method on NumPy arrays; see `hand_over.call_method`."""
    given = handed_over(parameters, to_tensor)

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
    """Return a tensor on an array's memory.

    Of a read-only array it is a copy, because torch would write to it; of one with another
    byte order or backward strides too, because torch has no such tensors.
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
    """Return a NumPy array on a tensor's memory; anything else as it is.

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
    is_torchs = result.untyped_storage().resizable()  # or an array's, from which it was made
    try:
        array = result.numpy()
    except TypeError:
        raise TypeError(
            f"it returned a tensor of {result.dtype}, which NumPy lacks: convert it, "
            "for example with .float()"
        ) from None
    if is_torchs:
        until_freed(array.base)  # a tensor of its own
    return array

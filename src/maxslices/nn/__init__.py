"""Memory of networks on a card: the memory of a step, and the largest batch or patch that fits.

`max_batch_size` and `max_patch_shape` predict from a replay without data, and verify the answer
with one real step if there is a device. `memory_report` breaks a step's memory down, and
`reduce_memory` rewrites a model until its step fits. ``import maxslices`` does not import this
package. torch is imported when one of its functions is first accessed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .fit.answers import BatchSize, PatchShape, SearchLog, VerifiedStep
from .nn_errors import ModelArgumentError, NoDeviceError, TooLargeError

if TYPE_CHECKING:
    from .fit.largest import (
        compute_max_batch_size,
        compute_max_patch_shape,
        max_batch_size,
        max_patch_shape,
    )
    from .reduce import reduce_memory
    from .replay import Spec
    from .report.model_layers import layer_table
    from .report.step_report import MemoryReport, memory_report

__all__ = [
    "BatchSize",
    "MemoryReport",
    "ModelArgumentError",
    "NoDeviceError",
    "PatchShape",
    "SearchLog",
    "Spec",
    "TooLargeError",
    "VerifiedStep",
    "compute_max_batch_size",
    "compute_max_patch_shape",
    "layer_table",
    "max_batch_size",
    "max_patch_shape",
    "memory_report",
    "reduce_memory",
]

_HOMES = {
    "MemoryReport": "maxslices.nn.report.step_report",
    "Spec": "maxslices.nn.replay",
    "compute_max_batch_size": "maxslices.nn.fit.largest",
    "compute_max_patch_shape": "maxslices.nn.fit.largest",
    "layer_table": "maxslices.nn.report.model_layers",
    "max_batch_size": "maxslices.nn.fit.largest",
    "max_patch_shape": "maxslices.nn.fit.largest",
    "memory_report": "maxslices.nn.report.step_report",
    "reduce_memory": "maxslices.nn.reduce",
}
"""Module of each name that needs torch, imported on the first access."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise NoDeviceError(
            f"maxslices.nn.{name} needs torch: pip install 'maxslices[torch]'"
        ) from None

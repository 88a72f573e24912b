"""Calls a method with arrays of the library that it is written for.

Methods for NumPy and CuPy are called as they are. One for torch is given tensors that share
the arrays' memory, on the backend's current stream, and what it returns comes back in the same
way: nothing is copied, save a read-only array, for which torch has no tensors.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import DeviceError
from ..registry.method_meta import MethodMeta
from .backend import Backend

FRAMES = ("flats", "darks")
"""Parameters that are handed over as the data are."""


def call_method(
    meta: MethodMeta, data: Any, parameters: Mapping[str, Any], backend: Backend
) -> Any:
    """Call a method on a block of the backend's device.

    Parameters
    ----------
    meta : MethodMeta
        The method.
    data : array
        The block, axes (angles, detector_y, detector_x): NumPy on the CPU, CuPy on a GPU.
    parameters : mapping
        Its parameters and what the runner supplies. Flats and darks become tensors like the
        data; angles stay a NumPy array.
    backend : Backend
        The device.

    Returns
    -------
    array or values
        An array of the backend; or side results, arrays among them on the host.

    Raises
    ------
    DeviceError
        If the method's library is not installed, or finds no GPU.
    TypeError
        If torch knows no such data, or the result has a dtype or device of torch's alone.
    RuntimeError
        If the method calls `sys.exit`, which would end the program without a word.
    """
    try:
        if meta.array_module is None:
            return meta.function(data, **parameters)
        require_libraries([meta])
        if backend.kind == "cuda":
            from .torch_cuda import call
        else:
            from .torch_cpu import call
        return call(meta, data, parameters)
    except SystemExit as error:
        raise RuntimeError(f"it called sys.exit({error.code!r})") from error


def require_libraries(methods: Iterable[MethodMeta]) -> bool:
    """Import what methods need besides NumPy and CuPy; tell whether that was anything.

    Raises
    ------
    DeviceError
        If it is not installed, naming the first such method.
    """
    found = False
    for meta in methods:
        if meta.array_module is None:
            continue
        if importlib.util.find_spec("torch") is None:
            raise DeviceError(
                f"{meta.name} needs torch, which is not installed: pip install 'maxslices[torch]'"
            )
        import torch  # noqa: F401 - now, so that no measurement counts the import

        found = True
    return found


def handed_over(parameters: Mapping[str, Any], convert: Any) -> dict[str, Any]:
    """Return parameters with the frames among them converted."""
    return {
        name: convert(value) if name in FRAMES and hasattr(value, "shape") else value
        for name, value in parameters.items()
    }

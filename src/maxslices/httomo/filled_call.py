"""Calls of httomo's methods, with the parameters that httomo fills in."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from ..errors import DeviceError
from .method_database import DatabaseEntry

HIDDEN = ("calc_peak_gpu_mem",)
"""Parameters that a pipeline cannot give: they make a method estimate its own memory."""
_AUTO = Literal["auto"]


def edit_signature(
    stub: Callable[..., Any],
    *,
    hidden: tuple[str, ...] = (),
    added: Mapping[str, Any] | None = None,
    data_name: str | None = None,
    axis_is_filled_in: bool = True,
    takes_any: bool = False,
) -> None:
    """Edit the signature of a stub in place.

    Parameters
    ----------
    stub : function
        The function that `make_stub` returns.
    hidden : tuple of str
        Parameters that a pipeline does not give.
    added : mapping
        Parameters that the runner fills in, with their defaults.
    data_name : str, optional
        Name of a new first parameter.
    axis_is_filled_in : bool
        Whether a parameter ``axis`` may be "auto".
    takes_any : bool
        Whether ``**kwargs`` of the signature are kept.
    """
    signature = inspect.signature(stub)
    parameters = list(signature.parameters.values())
    if data_name is not None:
        parameters.insert(0, inspect.Parameter(data_name, inspect.Parameter.POSITIONAL_OR_KEYWORD))
    kept = [parameters[0]]
    for parameter in parameters[1:]:
        if parameter.name in (*HIDDEN, *hidden):
            continue
        if parameter.name == "axis" and axis_is_filled_in:
            _accept_auto(stub)
            parameter = parameter.replace(default="auto")
        # Keyword-only parameters without a default may follow those with one.
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            parameter = parameter.replace(kind=parameter.KEYWORD_ONLY)
        kept.append(parameter)
    rest = [kept.pop()] if kept[-1].kind is inspect.Parameter.VAR_KEYWORD else []
    for name, default in (added or {}).items():
        kept.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
    stub.__signature__ = signature.replace(parameters=kept + rest * takes_any)  # type: ignore[attr-defined]


def _accept_auto(stub: Callable[..., Any]) -> None:
    """Add "auto" to the values that a textual annotation of `axis` accepts."""
    annotation = stub.__annotations__.get("axis")
    if annotation is not None:
        stub.__globals__["_maxslices_auto"] = _AUTO
        stub.__annotations__["axis"] = f"_maxslices_auto | ({annotation})"


class FilledCall:
    """A method, imported at its first call, and the parameters that httomo fills in.

    Parameters
    ----------
    entry : DatabaseEntry
        The method.
    stub : function
        Its stub, with the signature of the source.
    """

    def __init__(self, entry: DatabaseEntry, stub: Callable[..., Any]) -> None:
        self.entry = entry
        self.names = tuple(inspect.signature(stub).parameters)

    def hidden(self) -> tuple[str, ...]:
        """Parameters that a pipeline does not give."""
        return ()

    def takes_slices_axis(self) -> bool:
        """True if ``axis`` is the slice axis."""
        return "axis" in self.names

    def supplied(self) -> dict[str, Any]:
        """Parameters that the runner fills in, with their defaults."""
        added: dict[str, Any] = {}
        if "axis" in self.names:
            added["slice_dim"] = 0
        if {"shift_xy", "shift_seam_index"} & set(self.names):
            added["detector_start"] = (0, 0)
        return added

    def arguments(self, data: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Fill in the parameters with which the method is called on `data`.

        ``axis: auto`` becomes the slice dim, a missing ``gpu_id`` the device of the data, and a
        missing ``shift_xy`` or ``shift_seam_index`` the start of the loader's preview.
        """
        arguments = dict(parameters)
        slice_dim = arguments.pop("slice_dim", 0)
        first_row, first_column = arguments.pop("detector_start", (0, 0))
        if "axis" in self.names and arguments.setdefault("axis", "auto") == "auto":
            arguments["axis"] = slice_dim
        if "shift_xy" in self.names:
            arguments.setdefault("shift_xy", [first_column, first_row])
        if "shift_seam_index" in self.names:
            arguments.setdefault("shift_seam_index", first_column)
        if "gpu_id" in self.names and not isinstance(data, np.ndarray):
            arguments.setdefault("gpu_id", int(data.device.id))
        return arguments

    def __call__(self, data: Any, arguments: Mapping[str, Any]) -> Any:
        """Call the method on NumPy or CuPy arrays, and move the result to the device of `data`.

        Raises
        ------
        DeviceError
            If it needs a GPU and the data are in host memory.
        """
        self.require_device(data)
        on_host = isinstance(data, np.ndarray)
        if self.entry.implementation == "gpu_cupy":
            return self.function(data, **arguments)
        # Parameters may be arrays, such as flats and darks.
        on_cpu = {name: to_host(v) if hasattr(v, "get") else v for name, v in arguments.items()}
        result = self.function(to_host(data), **on_cpu)
        return result if on_host or not isinstance(result, np.ndarray) else to_device(result)

    def require_device(self, data: Any) -> None:
        """Check that the method can work on the device of `data`.

        Raises
        ------
        DeviceError
            If it needs a GPU and the data are in host memory.
        """
        if self.entry.implementation == "gpu_cupy" and isinstance(data, np.ndarray):
            raise DeviceError(
                f"{self.entry.full_name} runs only on a GPU. Use --device cuda, or a method that "
                "also runs on the CPU"
            )

    @functools.cached_property
    def function(self) -> Callable[..., Any]:
        """The method itself."""
        function: Callable[..., Any] = getattr(
            importlib.import_module(self.entry.module), self.entry.name
        )
        return function


def to_host(data: Any) -> np.ndarray:
    """Copy a CuPy array to the host; a NumPy array is returned unchanged."""
    return data if isinstance(data, np.ndarray) else np.asarray(data.get())


def to_device(data: np.ndarray) -> Any:
    """Copy a NumPy array to the current device, as a CuPy array."""
    import cupy

    return cupy.asarray(data)

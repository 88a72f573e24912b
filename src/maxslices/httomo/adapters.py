"""From an entry of the database to a method: most are called as they are, a few are not.

httomo wraps centre finding, saving of images and statistics; what its wrappers do is done
here with side results.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ParameterError
from .arguments import Call, show, to_device, to_host
from .database import Entry

Declaration = dict[str, Any]
"""Keywords for `Registry.register`."""


def adapt(entry: Entry, stub: Callable[..., Any]) -> tuple[Callable[..., Any], Declaration]:
    """Return a method and what is declared of it.

    Parameters
    ----------
    entry : Entry
        What the database says.
    stub : function
        The method's signature, from `stand_in`; it is changed to what pipelines may give.
    """
    kind = entry.module.rpartition(".")[2]
    if kind == "rotation":
        return _rotation(entry, stub)
    if kind == "images":
        return _images(entry, stub)
    return _plain(entry, stub)


def _plain(entry: Entry, stub: Callable[..., Any]) -> tuple[Callable[..., Any], Declaration]:
    call = Call(entry, stub)
    show(stub, added=call.supplied())

    @functools.wraps(stub)
    def method(data: Any, /, **parameters: Any) -> Any:
        return call(data, call.arguments(data, parameters))

    return method, {
        "halo": entry.halo(),
        "output_dims": entry.output_dims(),
        "output_dtype": _output_dtype(entry, call),
    }


_MAKES_REAL = ("normalize", "phase", "algorithm")
_MAKES_REAL_TOO = ("data_resampler",)


def _output_dtype(entry: Entry, call: Call) -> Callable[..., Any]:
    """Return what guesses the dtype of the result, of which the database says nothing.

    It counts as long as nobody has looked, see `Choice.output_dtype`.

    Real numbers stay what they are. Integers become float32 where they are normalized,
    filtered for their phase, reconstructed or interpolated, and stay what they are in all
    other methods. With a parameter ``bits`` the result has unsigned integers of that size.
    """
    module = entry.module.rpartition(".")[2]
    makes_real = module in _MAKES_REAL or entry.name in _MAKES_REAL_TOO

    def output_dtype(dtype: np.dtype[Any], **parameters: Any) -> np.dtype[Any]:
        if "bits" in call.names and parameters.get("bits") in (8, 16, 32):
            return np.dtype(f"uint{parameters['bits']}")
        return np.dtype(np.float32) if makes_real and dtype.kind in "biu" else dtype

    output_dtype.is_guess = True  # type: ignore[attr-defined]
    return output_dtype


@dataclass(frozen=True, slots=True)
class _Part:
    """What a block contributes to finding a centre of rotation, in host memory."""

    frames: tuple[NDArray[Any], ...]
    """One sinogram's rows (angles, detector_x), or the first and last projection."""
    parameters: Declaration
    """The method's parameters; angles are those of the block."""
    on_device: bool
    """Whether the data were on a GPU."""


def _rotation(entry: Entry, stub: Callable[..., Any]) -> tuple[Callable[..., Any], Declaration]:
    """Find the centre from one sinogram, or two projections, that blocks of projections give."""
    call = Call(entry, stub)
    of_two = {"proj1", "proj2"} <= set(call.names)
    returns = str(stub.__annotations__.get("return", ""))
    names = ["cor"]
    if returns.lower().startswith("tuple"):
        names += ["overlap", "side", "overlap_position"]
    if of_two:
        show(
            stub,
            data_name="data",
            added=dict.fromkeys(("proj1", "proj2"), "auto"),
            hidden=("proj1", "proj2"),
        )
    else:
        _let_mid(stub)
        show(stub, added=call.supplied())

    @functools.wraps(stub)
    def method(data: Any, /, **parameters: Any) -> _Part:
        call.require_place(data)
        given = call.arguments(data, parameters)
        if of_two:
            given = {name: v for name, v in given.items() if name not in ("proj1", "proj2")}
            frames: tuple[Any, ...] = (data[0], data[-1])
        else:
            frames = (_sinogram(data, given),)
        return _Part(
            tuple(np.array(to_host(frame), np.float32) for frame in frames),
            given,
            not isinstance(data, np.ndarray),
        )

    def combine(parts: list[_Part]) -> Any:
        given = dict(parts[0].parameters)
        if "angles" in given:
            given["angles"] = np.concatenate([part.parameters["angles"] for part in parts])
        if of_two:
            found = [parts[0].frames[0], parts[-1].frames[1]]
        else:
            found = [np.concatenate([part.frames[0] for part in parts])[:, np.newaxis]]
            if "ind" in call.names:
                given["ind"] = 0
        first, *others = [to_device(f) for f in found] if parts[0].on_device else found
        if others:
            given["proj2"] = others[0]
        return _centre(call(first, given))

    return method, {"side_results": names, "combine": combine}


def _let_mid(stub: Callable[..., Any]) -> None:
    """Let ``ind`` be "mid", which httomo takes for None."""
    if "ind" in stub.__annotations__:
        stub.__annotations__["ind"] = "int | str | None"


def _sinogram(data: Any, given: Declaration) -> Any:
    """Return the rows of one sinogram, (projections, detector_x), and settle how it is picked."""
    n_rows, index = data.shape[1], given.get("ind")
    if index is None or index == "mid":
        index = (n_rows - 1) // 2
    radius = given.get("average_radius", 0)
    if not 0 <= index - radius <= index + radius < n_rows:
        raise ParameterError(
            f"sinograms {index - radius} to {index + radius} (ind={index}, average_radius="
            f"{radius}) are not all among the {n_rows} that there are"
        )
    if radius == 0:
        return data[:, index]
    given["average_radius"] = 0
    return data[:, index - radius : index + radius + 1].mean(axis=1)


def _centre(found: Any) -> Any:
    """Return a centre, or a centre with overlap, side and overlap position, as plain values."""
    if isinstance(found, tuple):
        cor, overlap, side, position = found
        return float(cor), float(overlap), None if side is None else str(side), float(position)
    return float(found[0] if getattr(found, "ndim", 0) else found)


def _images(entry: Entry, stub: Callable[..., Any]) -> tuple[Callable[..., Any], Declaration]:
    """Save a block's slices as images; the data pass through, the side result is the folder."""
    call = Call(entry, stub)
    added = {"slice_dim": 0, "first_slice": 0, "results_folder": None}
    show(stub, hidden=("out_dir", "offset"), added=added)

    @functools.wraps(stub)
    def method(
        data: Any,
        /,
        *,
        slice_dim: int = 0,
        first_slice: int = 0,
        results_folder: Path | None = None,
        **parameters: Any,
    ) -> str | None:
        if parameters.get("axis", "auto") not in ("auto", slice_dim):
            raise ParameterError(
                f"{entry.name}: images are saved along the axis that the data are cut along, "
                f"which is {slice_dim} here: give axis: auto, not {parameters['axis']}"
            )
        # A copy: it may set what is not finite to 0 in the array that it is given.
        block = np.array(to_host(data))
        if results_folder is None:
            return None  # a run that keeps its result in memory has no place for images
        given = call.arguments(block, parameters | {"slice_dim": slice_dim})
        call.function(block, out_dir=str(results_folder), offset=first_slice, **given)
        return str(results_folder)

    return method, {"side_results": ("folder",), "combine": lambda folders: folders[-1]}


def calculate_stats(data: Any) -> tuple[float, float, float, int]:
    """Return minimum, maximum, sum and number of values; what is not finite counts as 0.

    Parameters
    ----------
    data : array
        Real or integer numbers, of any shape.
    """
    xp: Any = np if isinstance(data, np.ndarray) else importlib.import_module("cupy")
    if data.dtype.kind == "f" and not bool(xp.isfinite(data).all()):
        data = xp.nan_to_num(data, nan=0.0, posinf=0.0, neginf=0.0)
    total = float(data.sum(dtype=np.float64))
    return float(data.min()), float(data.max()), total, int(data.size)


def global_stats(parts: list[tuple[float, float, float, int]]) -> tuple[float, float, float, int]:
    """Return (minimum, maximum, mean, number of values) of all blocks."""
    minima, maxima, sums, numbers = zip(*parts, strict=True)
    return min(minima), max(maxima), sum(sums) / sum(numbers), sum(numbers)

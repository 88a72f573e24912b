"""Methods and declarations from entries of the database.

Most methods are called directly. Centre finding, saving of images and statistics, which httomo
wraps, are methods with side results.
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

from ..core.exact_sum import exact_terms, sum_of_terms
from ..core.ledger import Ledger, from_ledger
from ..errors import ParameterError
from .filled_call import FilledCall, edit_signature, to_device, to_host
from .method_database import DatabaseEntry
from .paganin_reach import ALL_ROWS, paganin_reach
from .tomopy_methods import HALOS, OUTPUT_DIMS, TomopyCall, is_tomopy, makes_float

Declaration = dict[str, Any]
"""Keywords for `Registry.register`."""


def adapt(entry: DatabaseEntry, stub: Callable[..., Any]) -> tuple[Callable[..., Any], Declaration]:
    """Return a method and its declaration.

    Parameters
    ----------
    entry : DatabaseEntry
        The method in the database.
    stub : function
        A function with the method's signature, from `make_stub`. Its signature is reduced to the
        parameters of pipelines.
    """
    kind = entry.module.rpartition(".")[2]
    if kind == "rotation":
        return _rotation(entry, stub)
    if kind == "images":
        return _images(entry, stub)
    return _plain(entry, stub)


def _plain(
    entry: DatabaseEntry, stub: Callable[..., Any]
) -> tuple[Callable[..., Any], Declaration]:
    call = _call_of(entry, stub)
    edit_signature(
        stub,
        hidden=call.hidden(),
        added=call.supplied(),
        axis_is_filled_in=call.takes_slices_axis(),
        takes_any=is_tomopy(entry.module),  # options of tomopy's algorithms
    )

    @functools.wraps(stub)
    def method(data: Any, /, **parameters: Any) -> Any:
        return call(data, call.arguments(data, parameters))

    side_data = SIDE_DATA.get(entry.name)
    halo: Callable[..., Any] | int
    dims: Callable[..., Any] | None
    if is_tomopy(entry.module):
        halo, dims = HALOS.get(entry.name, 0), OUTPUT_DIMS.get(entry.name)
    else:
        # Dims in the database are those of the flats and darks if `side_data` is "alone".
        halo, dims = entry.halo(), None if side_data == "alone" else entry.output_dims()
    return method, {
        "halo": halo,
        "output_dims": dims,
        "output_dtype": _host_dtype(entry, call) if entry.implementation == "cpu" else None,
        "row_reach": _row_reach(entry, call.names),
        "saved_by_default": entry.save_result,
        "host_only": entry.implementation == "cpu",
        **_quantities(entry),
        "output_angles": OUTPUT_ANGLES.get(entry.name),
        "keeps_pixel_size": entry.name == "sino_360_to_180",
        "side_data": side_data,
        "former_names": FORMER_NAMES.get(entry.full_name),
    }


_KEEPING_MODULES = ("corr", "stripe", "denoise", "morph", "alignment")
"""Modules whose methods return the same quantity as their input."""


def _quantities(entry: DatabaseEntry) -> Declaration:
    """Quantities of a method's data and of its result, derived from its name and module."""
    module = entry.module.rpartition(".")[2]
    if entry.name == "dark_flat_field_correction":
        return {"takes": "counts", "gives": "transmission"}
    if entry.name == "minus_log":
        return {"takes": "transmission", "gives": "line integrals"}
    if entry.name == "paganin_filter" and not is_tomopy(entry.module):  # with the logarithm
        return {"takes": "transmission", "gives": "thickness"}
    if module == "algorithm":
        return {"takes": ("line integrals", "thickness"), "gives": "slices"}
    return {"gives": "same"} if module in _KEEPING_MODULES else {}


FORMER_NAMES = {"httomolibgpu.prep.normalize.dark_flat_field_correction": {"cutoff": "upper_bound"}}
"""Parameters that httomolibgpu 6 renamed: method -> former name -> name. Pipelines of earlier
releases have the former names."""


def _call_of(entry: DatabaseEntry, stub: Callable[..., Any]) -> FilledCall:
    return (TomopyCall if is_tomopy(entry.module) else FilledCall)(entry, stub)


def _averaged(angles: NDArray[Any], projection_averaging_factor: int = 2) -> NDArray[Any]:
    """Mean angle of each group of projections; the last group may be smaller."""
    starts = range(0, len(angles), projection_averaging_factor)
    groups = [angles[i : i + projection_averaging_factor] for i in starts]
    return np.array([group.mean() for group in groups], angles.dtype)


def _first_half(angles: NDArray[Any]) -> NDArray[Any]:
    return angles[: len(angles) // 2]


OUTPUT_ANGLES: dict[str, Callable[..., NDArray[Any]]] = {
    "average_projection_frames": _averaged,
    "sino_360_to_180": _first_half,
}
"""Methods after which httomo's wrappers change the angles; the database does not contain this."""
SIDE_DATA = {"remove_outlier": "too", "data_reducer": "alone"}
"""Methods that httomo's wrappers also call with flats and darks ("too"), or only with them."""


_METHODS_TO_MASK = ("binary_thresholding",)
"""Methods whose result is a mask of 8-bit integers."""


def _host_dtype(entry: DatabaseEntry, call: FilledCall) -> Callable[..., Any]:
    """Return a function that guesses the dtype of a result that is computed on the host.

    The database does not contain dtypes. The guess is used for plans for an assumed GPU, where such
    methods are not measured. Phase filters and most of tomopy's methods convert integers to
    float32. With a parameter ``bits`` the result has unsigned integers of that size. Masks have
    8 bits.
    """
    to_float = entry.name == "paganin_filter"
    if is_tomopy(entry.module):
        to_float = makes_float(entry.name)

    def output_dtype(dtype: np.dtype[Any], **parameters: Any) -> np.dtype[Any]:
        if entry.name in _METHODS_TO_MASK:
            return np.dtype(np.uint8)
        if "bits" in call.names and parameters.get("bits") in (8, 16, 32):
            return np.dtype(f"uint{parameters['bits']}")
        return np.dtype(np.float32) if to_float and dtype.kind in "biu" else dtype

    output_dtype.is_guess = True  # type: ignore[attr-defined]
    return output_dtype


_ACROSS_ROWS = ("phase", "alignment")
"""Modules whose methods on projections filter whole frames, or shift rows."""
_FREQUENCY_FACTOR = 2.0
"""In httomolibgpu k is twice the wave number."""
_PAGANIN = ("pixel_size", "distance", "energy", "ratio_delta_beta")


def _row_reach(entry: DatabaseEntry, names: tuple[str, ...]) -> Callable[..., int] | int | None:
    """Return the rows above and below that a row of a method's result depends on.

    Parameters
    ----------
    entry : DatabaseEntry
        The method.
    names : tuple of str
        Its parameters.

    Returns
    -------
    callable, int or None
        None if it follows from the halo.
    """
    if entry.pattern != "projection" or entry.module.rpartition(".")[2] not in _ACROSS_ROWS:
        return None
    return _reach_of_theirs if set(_PAGANIN) <= set(names) else ALL_ROWS


def _reach_of_theirs(
    pixel_size: float, distance: float, energy: float, ratio_delta_beta: float
) -> int:
    return paganin_reach(pixel_size, distance, energy, ratio_delta_beta, _FREQUENCY_FACTOR)


@dataclass(frozen=True, slots=True)
class _CentreInput:
    """Input from one block for finding a centre of rotation, in host memory."""

    frames: tuple[NDArray[Any], ...]
    """One sinogram's rows (angles, detector_x), or the first and last projection."""
    parameters: Declaration
    """The method's parameters; angles are those of the block."""
    on_device: bool
    """True if the data were on a GPU."""


def _rotation(
    entry: DatabaseEntry, stub: Callable[..., Any]
) -> tuple[Callable[..., Any], Declaration]:
    """Adapt centre finding, which takes one sinogram or two projections from blocks."""
    call = _call_of(entry, stub)
    of_two = {"proj1", "proj2"} <= set(call.names)
    returns = str(stub.__annotations__.get("return", ""))
    names = ["cor"]
    if returns.lower().startswith("tuple"):
        names += ["overlap", "side", "overlap_position"]
    if of_two:
        edit_signature(
            stub,
            data_name="data",
            added=dict.fromkeys(("proj1", "proj2"), "auto"),
            hidden=("proj1", "proj2"),
        )
    else:
        _accept_mid(stub)
        edit_signature(stub, hidden=call.hidden(), added=call.supplied())

    @functools.wraps(stub)
    def method(data: Any, /, **parameters: Any) -> _CentreInput:
        call.require_device(data)
        arguments = call.arguments(data, parameters)
        if of_two:
            arguments = {name: v for name, v in arguments.items() if name not in ("proj1", "proj2")}
            frames: tuple[Any, ...] = (data[0], data[-1])
        else:
            frames = (_sinogram(data, arguments),)
        return _CentreInput(
            tuple(np.array(to_host(frame), np.float32) for frame in frames),
            arguments,
            not isinstance(data, np.ndarray),
        )

    def combine(parts: list[_CentreInput]) -> Any:
        arguments = dict(parts[0].parameters)
        if "angles" in arguments:
            arguments["angles"] = np.concatenate([part.parameters["angles"] for part in parts])
        if of_two:
            arrays = [parts[0].frames[0], parts[-1].frames[1]]
        else:
            arrays = [np.concatenate([part.frames[0] for part in parts])[:, np.newaxis]]
            if "ind" in call.names:
                arguments["ind"] = 0
        first, *rest = [to_device(f) for f in arrays] if parts[0].on_device else arrays
        if rest:
            arguments["proj2"] = rest[0]
        return _centre(call(first, arguments))

    return method, {
        "side_results": names,
        "combine": combine,
        "host_only": entry.implementation == "cpu",
        "order_matters": True,
        "calc_max_slices": _pair_bytes if of_two else _sinogram_bytes,
    }


@from_ledger
def _pair_bytes(m: Ledger, shape: tuple[int, int, int], dtype: np.dtype[Any], **_: Any) -> None:
    """Memory of taking the first and the last projection of a block."""
    m.alloc(shape, dtype)
    if m.device == "cpu":
        m.alloc((2, *shape[1:]), np.float32)


@from_ledger
def _sinogram_bytes(
    m: Ledger, shape: tuple[int, int, int], dtype: np.dtype[Any], **parameters: Any
) -> None:
    """Memory of taking one row of each projection, or the mean of some."""
    n_projections, _, width = shape
    m.alloc(shape, dtype)
    if parameters.get("average_radius"):
        m.alloc((n_projections, width), dtype if dtype.kind == "f" else np.float64)
        if m.device == "cpu":
            m.alloc((n_projections, width), np.float32)
    elif m.device == "cpu":
        m.alloc((n_projections, width), np.float32)
    elif n_projections > 1:  # a contiguous copy, which a transfer to the host needs
        m.alloc((n_projections, width), dtype)


def _accept_mid(stub: Callable[..., Any]) -> None:
    """Accept "mid" for ``ind``, which httomo treats like None."""
    if "ind" in stub.__annotations__:
        stub.__annotations__["ind"] = "int | str | None"


def _sinogram(data: Any, arguments: Declaration) -> Any:
    """Extract one sinogram (projections, detector_x), averaged over ``average_radius`` rows.

    Sets ``average_radius`` in `arguments` to 0 after averaging.
    """
    n_rows, index = data.shape[1], arguments.get("ind")
    if index is None or index == "mid":
        index = (n_rows - 1) // 2
    radius = arguments.get("average_radius", 0)
    if not 0 <= index - radius <= index + radius < n_rows:
        raise ParameterError(
            f"sinograms {index - radius} to {index + radius} (ind={index}, average_radius="
            f"{radius}) are not all within the {n_rows} rows"
        )
    if radius == 0:
        return data[:, index]
    arguments["average_radius"] = 0
    return data[:, index - radius : index + radius + 1].mean(axis=1)


def _centre(centre: Any) -> Any:
    """Convert a centre, or (centre, overlap, side, overlap position), to plain values."""
    if isinstance(centre, tuple):
        cor, overlap, side, position = centre
        return float(cor), float(overlap), None if side is None else str(side), float(position)
    return float(centre[0] if getattr(centre, "ndim", 0) else centre)


def _images(
    entry: DatabaseEntry, stub: Callable[..., Any]
) -> tuple[Callable[..., Any], Declaration]:
    """Adapt saving of images: the data are unchanged, and the side result is the folder."""
    call = FilledCall(entry, stub)
    added = {"slice_dim": 0, "first_slice": 0, "results_folder": None}
    edit_signature(stub, hidden=("out_dir", "offset"), added=added)

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
                f"{entry.name}: images are saved along the slice axis, which is {slice_dim} here. "
                f"Use axis: auto, not {parameters['axis']}"
            )
        # The method may set non-finite values of its input to 0, so it gets a copy.
        block = np.array(to_host(data))
        if results_folder is None:
            return None  # a run in memory has no folder
        arguments = call.arguments(block, parameters | {"slice_dim": slice_dim})
        call.function(block, out_dir=str(results_folder), offset=first_slice, **arguments)
        return str(results_folder)

    return method, {
        "host_only": True,
        "side_results": ("folder",),
        "combine": lambda folders: folders[-1],
    }


def calculate_stats(data: Any) -> tuple[float, float, tuple[float, ...], int]:
    """Compute minimum, maximum, sum and number of values; non-finite values count as 0.

    The sum is returned as terms of `exact_terms`. Each row along the last axis, which is never cut
    into blocks, is summed first.

    Parameters
    ----------
    data : array
        Real or integer numbers, of any shape.
    """
    xp: Any = np if isinstance(data, np.ndarray) else importlib.import_module("cupy")
    if data.dtype.kind == "f" and not bool(xp.isfinite(data).all()):
        data = xp.nan_to_num(data, nan=0.0, posinf=0.0, neginf=0.0)
    rows = to_host(data.sum(axis=-1, dtype=np.float64, keepdims=True))
    # Adding 0 turns -0.0 into 0.0: which of the two min and max return depends on the order.
    least, most = float(data.min()) + 0.0, float(data.max()) + 0.0
    return least, most, exact_terms(rows), int(data.size)


def global_stats(
    parts: list[tuple[float, float, tuple[float, ...], int]],
) -> tuple[float, float, float, int]:
    """Combine the statistics of blocks: (minimum, maximum, mean, number of values)."""
    minima, maxima, terms, numbers = zip(*parts, strict=True)
    number = sum(numbers)
    return min(minima), max(maxima), sum_of_terms(terms) / number, number

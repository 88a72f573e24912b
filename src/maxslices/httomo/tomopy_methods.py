"""Facts about tomopy's methods that httomo's database lacks: names, dims, halos, unsupported ones.

tomopy reconstructs to (slices, y, x), while sinograms are (angles, slices, x). As in httomo, the
first two axes of the result of `recon` are swapped, to (y, slices, x).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import ParameterError
from .filled_call import FilledCall

PACKAGE = "tomopy"

NAMES = {"flat": "flats", "dark": "darks", "theta": "angles"}
"""Parameters of tomopy's methods -> names of the runner's context arguments."""
HIDDEN = ("out", "callback")
"""Parameters that a pipeline cannot set: an output array, and a function."""

_ONE_STEP = "it is an algorithm of recon, not a step"
_TUPLE = "it returns more than the data, which httomo rejects too"
REFUSED = {
    "recon.wrappers.astra": _ONE_STEP,
    "recon.wrappers.ufo_fbp": _ONE_STEP,
    "recon.wrappers.ufo_dfi": _ONE_STEP,
    "recon.wrappers.lprec": _ONE_STEP,
    "prep.alignment.align_joint": _TUPLE,
    "prep.alignment.align_seq": _TUPLE,
    "prep.alignment.add_jitter": _TUPLE,
    "prep.alignment.scale": _TUPLE,
    "prep.alignment.shift_images": "it has a shift for each projection of the scan, and a "
    "block would use those of the first projections",
    "prep.alignment.distortion_correction_sino": "it returns one sinogram and not the data: use "
    "distortion_correction_proj",
    "sim.project.project": "its input is an object, not a scan",
    "sim.project.project2": "its input is two objects, not a scan",
    "sim.project.project3": "its input is three objects, not a scan",
    "sim.project.add_drift": "it draws a random profile for each block, so its result depends "
    "on the blocks",
    "sim.project.add_rings": "it draws random rings for each block, so its result depends "
    "on the blocks",
}
"""Unsupported methods of the database -> reason; ``module.name`` without the package."""

Dims = Callable[..., tuple[int, int]]


def _recon_dims(other_dims: tuple[int, int], **parameters: Any) -> tuple[int, int]:
    width = other_dims[1]
    side = parameters.get("num_gridx"), parameters.get("num_gridy")
    first, second = (width if n is None else int(n) for n in side)
    return first, second


def _sampled(power: int) -> Dims:
    def dims(
        other_dims: tuple[int, int], level: int = 1, axis: int | str = 2, slice_dim: int = 0
    ) -> tuple[int, int]:
        def changed(n: int) -> int:
            scale = 1 << level
            return n * scale if power > 0 else n // scale

        return _along(other_dims, axis, slice_dim, changed)

    return dims


def _padded(
    other_dims: tuple[int, int],
    axis: int | str = 2,
    npad: int | None = None,
    slice_dim: int = 0,
    **_: Any,
) -> tuple[int, int]:
    def padded(n: int) -> int:
        # As in tomopy: the diagonal of the unpadded square.
        return n + 2 * (math.ceil((n * math.sqrt(2) - n) / 2) if npad is None else npad)

    return _along(other_dims, axis, slice_dim, padded)


def _along(
    other_dims: tuple[int, int], axis: int | str, slice_dim: int, change: Callable[[int], int]
) -> tuple[int, int]:
    """Change the length along an axis other than the slice axis."""
    if axis not in (1 - slice_dim, 2):
        raise ValueError(
            f"axis must be {1 - slice_dim} or 2 here, not {axis}: the data are cut into blocks "
            f"along axis {slice_dim}"
        )
    first, second = other_dims
    return (change(first), second) if axis != 2 else (first, change(second))


def _trimmed(other_dims: tuple[int, int], diameter: int, **_: Any) -> tuple[int, int]:
    return other_dims[0], int(diameter)


def _stitched(
    other_dims: tuple[int, int], overlap: float = 0, rotation: str = "left"
) -> tuple[int, int]:
    return other_dims[0] // 2, 2 * other_dims[1] - round(overlap)


OUTPUT_DIMS: Mapping[str, Dims] = {
    "recon": _recon_dims,
    "downsample": _sampled(-1),
    "upsample": _sampled(1),
    "pad": _padded,
    "trim_sinogram": _trimmed,
    "sino_360_to_180": _stitched,
}
"""Methods that change the dims of their input."""


def _cube_halo(size: int = 3, **_: Any) -> int:
    # The size of an even cube is rounded up, as in tomopy's source.
    return size // 2


def _stripe_halo(radius: int = 3, **_: Any) -> int:
    return radius


def _mask_halo(min_stripe_depth: int = 10, min_stripe_width: int = 5, **_: Any) -> int:
    return 2 * min_stripe_depth + min_stripe_width


HALOS: Mapping[str, Callable[..., int]] = {
    "median_filter3d": _cube_halo,
    "remove_outlier3d": _cube_halo,
    "stripes_detect3d": _stripe_halo,
    "stripes_mask3d": _mask_halo,
}
"""Methods that need neighbouring slices."""

_OF_OTHER_AXES = ("downsample", "upsample", "pad")
"""Methods whose ``axis`` is the axis that changes, not the slice axis."""
_SLICES_FIRST = ("remove_ring",)
"""Methods that need slices along the first axis."""
_KEEP_INTEGERS = ("pad", "sino_360_to_180", "median_filter3d", "remove_outlier3d")
"""Methods that keep uint16; all others return float32."""


def is_tomopy(module: str) -> bool:
    """True if a module is tomopy's."""
    return module.partition(".")[0] == PACKAGE


def makes_float(name: str) -> bool:
    """True if a method converts integers to float32."""
    return name not in _KEEP_INTEGERS


def refusal(full_name: str) -> str | None:
    """Reason why a method of tomopy is not supported; None if it is."""
    return REFUSED.get(full_name.removeprefix(f"{PACKAGE}."))


_TURNED = "_slices_first"
"""Argument that is True if the first two axes are swapped for the method."""


class TomopyCall(FilledCall):
    """A method of tomopy, and the parameters that httomo fills in."""

    def hidden(self) -> tuple[str, ...]:
        """Parameters that a pipeline does not give."""
        return (*HIDDEN, *(name for name in NAMES if name in self.names))

    def supplied(self) -> dict[str, Any]:
        """Parameters that the runner fills in, with their defaults."""
        added = super().supplied()
        if self.entry.name in _SLICES_FIRST:
            added["slice_dim"] = 0
        return added | {ours: None for name, ours in NAMES.items() if name in self.names}

    def takes_slices_axis(self) -> bool:
        """True if ``axis`` is the slice axis."""
        return "axis" in self.names and self.entry.name not in _OF_OTHER_AXES

    def arguments(self, data: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Fill in the parameters with which the method is called on `data`.

        Raises
        ------
        ParameterError
            If the axis of a filter of frames is not the slice axis.
        """
        slice_dim = parameters.get("slice_dim", 0)
        axis = parameters.get("axis", "auto")
        if self.takes_slices_axis() and axis not in ("auto", slice_dim):
            raise ParameterError(
                f"{self.entry.name}: axis must be the slice axis, which is {slice_dim} here. Use "
                f"axis: auto, not {axis}"
            )
        arguments = dict(parameters)
        if "axis" in self.names and not self.takes_slices_axis():
            arguments.setdefault("axis", 2)
        turned = self.entry.name in _SLICES_FIRST and slice_dim == 1
        return super().arguments(data, arguments) | ({_TURNED: True} if turned else {})

    def __call__(self, data: Any, arguments: Mapping[str, Any]) -> Any:
        """Call the method with its own parameter names and order of axes."""
        named = dict(arguments)
        turned = named.pop(_TURNED, False)
        for name, ours in NAMES.items():
            if name in self.names and name != ours:
                named[name] = named.pop(ours)
        if turned:
            return np.swapaxes(super().__call__(np.swapaxes(data, 0, 1).copy(), named), 0, 1)
        result = super().__call__(data, named)
        return np.swapaxes(result, 0, 1) if self.entry.name == "recon" else result

"""Normalisation on a GPU in one pass over the data, by fused kernels."""

from __future__ import annotations

from functools import cache
from typing import Any

_KERNELS = {
    "mean_frame": (
        "raw T frames, int64 n_frames",
        "float32 mean",
        """
        float sum = 0;
        for (long long k = 0; k < n_frames; ++k) sum += (float)frames[k * _ind.size() + i];
        mean = sum / n_frames;
        """,
    ),
    "correction": (
        "T data, float32 dark, float32 signal",
        "float32 out",
        "out = ((float)data - dark) / signal",
    ),
    "minus_log": (
        "T data, float32 least, float32 most",
        "float32 out",
        "out = -log(min(fmax((float)data, least), most))",
    ),
}
"""Inputs, outputs and code of each kernel. Results are bitwise equal to those of separate CuPy
operations and, except for the logarithm, of NumPy."""


@cache
def _kernel(name: str) -> Any:
    import cupy

    return cupy.ElementwiseKernel(*_KERNELS[name], f"maxslices_{name}")


def mean_frame(frames: Any) -> Any:
    """Mean (y, x), float32, of frames (frames, y, x), which are added in their order."""
    import cupy

    return _kernel("mean_frame")(frames, len(frames), cupy.empty(frames.shape[1:], cupy.float32))


def correction(data: Any, dark: Any, signal: Any) -> Any:
    """Compute (data - dark) / signal as float32; `dark` may be a number."""
    return _kernel("correction")(data, dark, signal)


def minus_log(data: Any, least: float, most: float) -> Any:
    """Negative logarithm as float32. NaN and values below `least` count as `least`."""
    return _kernel("minus_log")(data, least, most)

"""An estimate beside what was measured, for one shape: figures, table and picture."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..errors import DeviceError, StoreError, UsageError
from ..measure import MemorySample, Peak
from ..model.units import format_bytes
from .check_result import CheckResult
from .estimate_check import check_call, find_method
from .measured_call import MeasuredCall, is_input
from .result_table import as_json

_MAX_LABELS = 8
"""Labelled rises: their lines of code stand below the picture, and more would take half of it."""
_NEGLIGIBLE = 20
"""Rises of less than a twentieth of the largest are too low to be seen: no label."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of `measure_method`."""

    result: CheckResult
    """The estimate beside the measured peak."""
    peak: Peak
    """Every meter's figure, with what was alive and the memory over time.

    It is of a run with places recorded; on a CPU that adds small objects of Python's own.
    """

    def __str__(self) -> str:
        return f"{self.result}\n{self.peak}"

    def as_json(self) -> dict[str, Any]:
        """Figures as values that JSON knows."""
        peak = self.peak
        return as_json(self.result) | {
            "meters": {
                name: getattr(peak, name)
                for name in (
                    "numpy_bytes",
                    "cupy_in_use_bytes",
                    "cupy_held_bytes",
                    "torch_allocated_bytes",
                    "torch_requested_bytes",
                    "torch_reserved_bytes",
                    "cupy_and_torch_bytes",
                    "device_bytes",
                )
            },
            "unseen": list(self.result.unseen),
            "steps": [[round(s.time_s, 6), s.in_use_bytes, str(s.where)] for s in peak.samples],
        }


def measure_method(
    method: str,
    shape: tuple[int, int, int],
    dtype: DTypeLike = "float32",
    parameters: Mapping[str, Any] | None = None,
    device: str = "auto",
    slice_dim: int | None = None,
) -> Measurement:
    """Run a registered method, and put its estimate beside what was measured.

    Parameters
    ----------
    method : str
        Registered name.
    shape : (int, int, int)
        Input, axes (angles, detector_y, detector_x), slices included.
    dtype : dtype-like
        Input dtype.
    parameters : mapping, optional
        Of the method.
    device : str
        "auto", "cpu", "cuda" or "cuda:N".
    slice_dim : int, optional
        Axis of the slices; by default the first that the pattern allows.
    """
    meta = find_method(method)
    axis = meta.slice_dims()[0] if slice_dim is None else slice_dim
    call = MeasuredCall(meta, shape, np.dtype(dtype), axis, device, parameters or {})
    result = check_call(call, trace=False)
    peak = call.measure(trace=True).peak
    if peak.counted_bytes is None:
        raise DeviceError(f"{meta.full_name}: no meter gives its memory: {'; '.join(peak.unseen)}")
    return Measurement(replace(result, where=peak.where, alive=peak.alive), peak)


def check_picture(path: Path) -> None:
    """Require that a picture can be drawn there, before anything takes its time.

    Raises
    ------
    UsageError
        If Matplotlib is not installed or cannot be used, or knows no such kind of file.
    StoreError
        If the folder is not there or cannot be written to, or the path is one itself.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise UsageError(
            "--plot needs Matplotlib, which is not installed: pip install matplotlib"
        ) from None
    except ValueError as error:  # MPLBACKEND, which it reads as it is imported
        raise UsageError(f"Matplotlib cannot be used: {error}") from None
    if path.is_dir():
        raise StoreError(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        raise StoreError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise StoreError(f"cannot write {path}: Permission denied")
    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise UsageError(
            f"cannot write a picture to {path}: name a file such as {path.stem}.png; the endings "
            f"known are {', '.join(sorted(known))}"
        )


def plot_measurement(measurement: Measurement, path: Path) -> None:
    """Draw memory in use over the call, with the lines that allocated most, to an image file.

    `check_picture` says beforehand whether it can be written.
    """
    from matplotlib.figure import Figure

    result, steps = measurement.result, measurement.peak.samples
    figure = Figure(figsize=(10, 6))
    axes = figure.add_subplot()
    times = [0.0, *(step.time_s * 1e3 for step in steps)]
    sizes = [0.0, *(step.in_use_bytes / 1e6 for step in steps)]
    axes.step(times, sizes, where="post", color="tab:blue")
    axes.fill_between(times, sizes, step="post", alpha=0.2, color="tab:blue")
    estimated, measured = result.estimated_bytes / 1e6, result.peak_bytes / 1e6
    axes.axhline(estimated, color="tab:orange", linestyle="--")
    axes.annotate(
        f"estimated {format_bytes(result.estimated_bytes)}, measured "
        f"{format_bytes(result.peak_bytes)}",
        (0.99, 0.97),
        xycoords="axes fraction",
        ha="right",
        va="top",
        color="tab:orange",
    )
    labelled = sorted(_largest_rises(steps), key=lambda step: step.time_s)
    for number, step in enumerate(labelled, 1):
        axes.annotate(
            str(number),
            (step.time_s * 1e3, step.in_use_bytes / 1e6),
            xytext=(-3, 2),
            textcoords="offset points",
            ha="right",
            fontweight="bold",
        )
    lines = [
        f"{number}  {'the input' if is_input(step.where) else _line(step)}"
        for number, step in enumerate(labelled, 1)
    ]
    figure.text(0.06, 0.01, "\n".join(lines), fontsize=8, family="monospace", va="bottom")
    figure.subplots_adjust(left=0.09, right=0.98, top=0.93, bottom=0.12 + 0.025 * len(lines))
    axes.set_ylim(0, 1.2 * max(estimated, measured, *sizes))
    axes.set_xlim(-0.02 * (times[-1] or 1), times[-1] or 1)  # room for a label at the start
    tracing = "; tracing adds small objects of Python's own" if result.device == "cpu" else ""
    axes.set_xlabel(f"time (ms){tracing}")
    axes.set_ylabel("memory in use (MB)")
    shape = "x".join(map(str, result.shape))
    axes.set_title(f"{result.method}, {shape} {result.dtype}, on {result.device}")
    figure.savefig(path, dpi=150)


def _line(step: MemorySample) -> str:
    return f"{str(step.where).split(' in ')[0]}: {step.where.code[:70]}"


def _largest_rises(steps: tuple[MemorySample, ...]) -> list[MemorySample]:
    """Samples with the largest rises, the largest of each line of code."""
    rises: dict[tuple[str, int], tuple[int, MemorySample]] = {}
    before = 0
    for step in steps:
        key, rise = (step.where.filename, step.where.line), step.in_use_bytes - before
        if rise > 0 and rise > rises.get(key, (0, step))[0]:
            rises[key] = rise, step
        before = step.in_use_bytes
    largest = sorted(rises.values(), key=lambda item: -item[0])[:_MAX_LABELS]
    return [step for rise, step in largest if rise * _NEGLIGIBLE > largest[0][0]]

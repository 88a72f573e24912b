"""Memory over a call as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.units import format_bytes
from ..errors import UsageError
from ..measure import MemorySample, Peak
from ..system.disk_space import check_file_place
from ..system.packages import require_matplotlib
from ..trial.trial import THE_CALL, THE_INPUT, is_call
from .measurement import Measurement

_MAX_LABELS = 8
"""Labelled rises: their lines of code stand below the picture, and more would take half of it."""
_NEGLIGIBLE = 20
"""Rises of less than a twentieth of the largest are too low to be seen: no label."""


def check_picture(path: Path) -> None:
    """Require that a picture can be drawn there, before anything takes its time.

    Raises
    ------
    UsageError
        If Matplotlib is not installed or cannot be used, or knows no such kind of file.
    StoreError
        If the folder is not there or cannot be written to, or the path is one itself.
    """
    require_matplotlib("--plot")
    from matplotlib.backend_bases import FigureCanvasBase

    check_file_place(path)
    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise UsageError(
            f"cannot write a picture to {path}: name a file such as {path.stem}.png; the endings "
            f"known are {', '.join(sorted(known))}"
        )


def plot_measurement(measurement: Measurement, path: Path) -> None:
    """Draw memory in use over the call, with the lines that allocated most, to an image file.

    Where half of the slices were measured too, both calls are drawn side by side. `check_picture`
    says beforehand whether it can be written.
    """
    from matplotlib.figure import Figure

    result, peak = measurement.result, measurement.peak
    assert result is not None  # an estimate is drawn
    figure = Figure(figsize=(12, 6))
    calls = [(result.slices, peak)]
    if measurement.half is not None:
        calls.insert(0, measurement.half)
    panels = figure.subplots(1, len(calls), sharey=True, squeeze=False)[0]
    labelled = sorted(_largest_rises(peak.samples), key=lambda step: step.time_s)
    numbers = {_key(step): str(number) for number, step in enumerate(labelled, 1)}
    highest = max(result.estimated_bytes, result.peak_bytes)
    for panel, (n, drawn) in zip(panels, calls, strict=True):
        highest = max(highest, *(step.in_use_bytes for step in drawn.samples), 0)
        _draw(panel, drawn, numbers)
        tracing = "; tracing adds small objects of Python's own" if result.device == "cpu" else ""
        panel.set_xlabel(f"time (ms){tracing}", fontsize="small")
        panel.set_title(f"{n} slice{'s'[: n != 1]}", fontsize="medium")
    panels[-1].axhline(result.estimated_bytes / 1e6, color="tab:orange", linestyle="--")
    panels[-1].annotate(
        f"estimated {format_bytes(result.estimated_bytes)}, measured "
        f"{format_bytes(result.peak_bytes)}",
        (0.99, 0.97),
        xycoords="axes fraction",
        ha="right",
        va="top",
        color="tab:orange",
    )
    lines = [f"{number}  {_line(step)}" for number, step in enumerate(labelled, 1)]
    figure.text(0.06, 0.01, "\n".join(lines), fontsize=8, family="monospace", va="bottom")
    bottom = 0.12 + 0.025 * len(lines)
    figure.subplots_adjust(left=0.08, right=0.98, top=0.89, bottom=bottom, wspace=0.05)
    panels[0].set_ylim(0, 1.2 * highest / 1e6)
    panels[0].set_ylabel("memory in use (MB)")
    shape = "x".join(map(str, result.shape))
    figure.suptitle(f"{result.method}, {shape} {result.dtype}, on {result.device}")
    figure.savefig(path, dpi=150)


def _draw(panel: Any, peak: Peak, numbers: Mapping[tuple[str, int], str]) -> None:
    """Draw memory over one call; the largest rise of each numbered line bears its number."""
    steps = peak.samples
    times = [0.0, *(step.time_s * 1e3 for step in steps)]
    sizes = [0.0, *(step.in_use_bytes / 1e6 for step in steps)]
    panel.step(times, sizes, where="post", color="tab:blue")
    panel.fill_between(times, sizes, step="post", alpha=0.2, color="tab:blue")
    for step in _largest_rises(steps):
        if _key(step) in numbers:
            panel.annotate(
                numbers[_key(step)],
                (step.time_s * 1e3, step.in_use_bytes / 1e6),
                xytext=(-3, 2),
                textcoords="offset points",
                ha="right",
                fontweight="bold",
            )
    panel.set_xlim(-0.02 * (times[-1] or 1), times[-1] or 1)  # room for a label at the start


def _key(step: MemorySample) -> tuple[str, int]:
    return step.where.filename, step.where.line


def _line(step: MemorySample) -> str:
    if step.where == THE_INPUT or is_call(step.where):
        return "the input" if step.where == THE_INPUT else THE_CALL
    return f"{str(step.where).split(' in ')[0]}: {step.where.code[:70]}"


def _largest_rises(steps: tuple[MemorySample, ...]) -> list[MemorySample]:
    """Samples with the largest rises, the largest of each line of code."""
    rises: dict[tuple[str, int], tuple[int, MemorySample]] = {}
    before = 0
    for step in steps:
        key, rise = _key(step), step.in_use_bytes - before
        if rise > 0 and rise > rises.get(key, (0, step))[0]:
            rises[key] = rise, step
        before = step.in_use_bytes
    largest = sorted(rises.values(), key=lambda item: -item[0])[:_MAX_LABELS]
    return [step for rise, step in largest if rise * _NEGLIGIBLE > largest[0][0]]

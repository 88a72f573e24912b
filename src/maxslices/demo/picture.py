"""The picture of a run: reconstruction beside phantom, and the memory of each section."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

INK, FAINT, ESTIMATED, MEASURED, LIMIT = "#22262b", "#8a9199", "#a9c4de", "#1f5f99", "#c8452e"
"""Colours of the picture."""
STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
}


@dataclass(frozen=True, slots=True)
class SectionBar:
    """Memory of one section of a run, drawn as two bars."""

    label: str
    """Names of its methods."""
    estimated_bytes: int
    """Peak by the plan."""
    measured_bytes: int | None
    """Measured peak; None if it was not measured."""


def draw(
    path: Path,
    *,
    truth: NDArray[Any],
    result: NDArray[Any],
    bars: list[SectionBar],
    budget_bytes: int,
    scan_bytes: int,
    caption: str,
) -> None:
    """Write the picture as a PNG.

    Parameters
    ----------
    path : pathlib.Path
        File to write.
    truth, result : numpy.ndarray
        (columns, columns) slices of the phantom and of the reconstruction, 1/mm.
    bars : list of SectionBar
        The run's sections in order.
    budget_bytes, scan_bytes : int
        Budget of the run, and bytes of the projections.
    caption : str
        Figures of the run, under the title.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11.6, 7.7), dpi=100)
        FigureCanvasAgg(figure)
        figure.text(0.03, 0.955, "A scan reconstructed within a budget", size=17, weight="bold")
        figure.text(0.03, 0.917, caption, size=10, color=FAINT)
        line = round(0.4167 * truth.shape[0])
        _slices(figure, truth, result, line)
        _profile(figure.add_axes((0.07, 0.085, 0.43, 0.235)), truth[line], result[line])
        _memory(figure.add_axes((0.685, 0.085, 0.275, 0.235)), bars, budget_bytes, scan_bytes)
        figure.savefig(path, facecolor="white")
    fewer_colours(path)


def _slices(figure: Any, truth: NDArray[Any], result: NDArray[Any], line: int) -> None:
    from matplotlib import colormaps

    # few levels, because each level of the noise makes the file larger
    gray, red_blue = colormaps["gray"].resampled(48), colormaps["RdBu_r"].resampled(27)
    top = float(np.percentile(truth, 99.3))
    panels = [
        (truth, "Phantom", {"cmap": gray, "vmin": -0.1 * top, "vmax": top}),
        (result, "Reconstruction", {"cmap": gray, "vmin": -0.1 * top, "vmax": top}),
        (result - truth, "Difference", {"cmap": red_blue, "vmin": -0.6, "vmax": 0.6}),
    ]
    for k, (image, title, colours) in enumerate(panels):
        axes = figure.add_axes(((0.03, 0.345, 0.685)[k], 0.415, 0.275, 0.4143))
        shown = axes.imshow(image, interpolation="none", **colours)
        axes.set_title(title, pad=6)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        if k == 1:
            axes.annotate(
                "", (-0.004, 1 - (line + 0.5) / len(truth)), (-0.05, 1 - (line + 0.5) / len(truth)),
                xycoords="axes fraction", arrowprops={"arrowstyle": "-|>", "color": MEASURED},
            )  # fmt: skip
        if k != 0:
            scale = axes.inset_axes((1.015, 0, 0.022, 1))
            bar = figure.colorbar(shown, cax=scale)
            bar.outline.set_visible(False)
            bar.ax.tick_params(size=0, labelsize=8)
            bar.ax.set_title("1/mm", size=8, loc="left", pad=4)


def _profile(axes: Any, truth: NDArray[Any], result: NDArray[Any]) -> None:
    axes.plot(truth, color=INK, lw=0.9, label="phantom", drawstyle="steps-mid")
    axes.plot(result, color=MEASURED, lw=0.9, alpha=0.85, label="reconstruction")
    axes.set_title("Along the line at the arrow")
    axes.set_xlim(0, len(truth) - 1)
    axes.set_xlabel("column")
    axes.set_ylabel("attenuation, 1/mm")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, ncols=2, loc="lower right", bbox_to_anchor=(1.01, 0.98))


def _memory(axes: Any, bars: list[SectionBar], budget_bytes: int, scan_bytes: int) -> None:
    mega = 1e6
    for k, section in enumerate(bars):
        pair = [
            (section.estimated_bytes, ESTIMATED, INK, k - 0.19),
            (section.measured_bytes, MEASURED, "white", k + 0.19),
        ]
        for n_bytes, colour, ink, y in pair:
            if n_bytes is not None:
                axes.barh(y, n_bytes / mega, height=0.36, color=colour)
                axes.text(
                    n_bytes / mega, y, f"{n_bytes / mega:.2f} ", va="center", ha="right", size=8,
                    color=ink,
                )  # fmt: skip
    axes.axvline(budget_bytes / mega, color=LIMIT, lw=1.4)
    axes.text(
        budget_bytes / mega, 1.02, f"budget {budget_bytes / mega:.3g} MB", color=LIMIT, size=9,
        ha="right", transform=axes.get_xaxis_transform(),
    )  # fmt: skip
    axes.set_title("Peak memory of each section", pad=20)
    axes.set_yticks(range(len(bars)), [section.label for section in bars], size=8.5)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, budget_bytes / mega * 1.06)
    axes.set_xlabel(f"MB; the projections alone are {scan_bytes / mega:.3g} MB")
    axes.tick_params(axis="y", size=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.bar(0, 0, color=ESTIMATED, label="estimated")
    axes.bar(0, 0, color=MEASURED, label="measured")
    axes.legend(
        frameon=False, fontsize=9, ncols=2, loc="lower left", bbox_to_anchor=(-0.03, 0.98),
        handlelength=0.9, handleheight=0.9, borderpad=0, columnspacing=1.2,
    )  # fmt: skip


def fewer_colours(path: Path) -> None:
    """Rewrite the PNG with a palette: noise in full colour takes several times the bytes."""
    from PIL import Image

    with Image.open(path) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)

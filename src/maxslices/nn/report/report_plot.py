"""Plot of the memory in use over a step."""

from __future__ import annotations

import os
from itertools import pairwise

from ...core.allocators import round_to_granule
from ...errors import StoreError, UsageError
from ...system.packages import require_matplotlib
from ..replay import CATEGORIES, Trace
from .report_figures import ReportFigures

_COLORS = {
    "weights": "#4c72b0",
    "input": "#8c8c8c",
    "activations": "#dd8452",
    "gradients": "#55a868",
    "optimizer state": "#8172b3",
    "workspace": "#c7b299",
    "temporary": "#da8bc3",
}
MB = 10**6


def plot_report(report: ReportFigures, path: str | os.PathLike[str]) -> None:
    """Draw the memory in use at each event, by category.

    Raises
    ------
    UsageError
        If matplotlib is not installed or cannot be used, or knows no such kind of picture.
    StoreError
        If the file cannot be written.
    """
    require_matplotlib("a plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    trace = report.trace
    layers = _layers(trace)
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    if os.fspath(path).rpartition(".")[2].lower() not in canvas.get_supported_filetypes():
        raise UsageError(f"{os.fspath(path)} is no picture that matplotlib writes: end it in .png")
    axes = figure.add_subplot()
    shown = [name for name in CATEGORIES if any(layers[name])]
    events = range(len(trace.events))
    axes.stackplot(
        events,
        [[n / MB for n in layers[name]] for name in shown],
        labels=shown,
        colors=[_COLORS[name] for name in shown],
        step="post",
        linewidth=0,
    )
    axes.axhline(report.reserved_bytes / MB, color="black", linewidth=0.8, linestyle="--")
    axes.annotate(
        f"reserved {report.reserved_bytes / MB:,.0f} MB",
        (0.01, report.reserved_bytes / MB),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=8,
    )
    peak = report.peak
    axes.plot([peak.event], [peak.n_bytes / MB], "k.", markersize=6)
    axes.annotate(
        f"{peak.n_bytes / MB:,.0f} MB",
        (peak.event, peak.n_bytes / MB),
        xytext=(5, 2),
        textcoords="offset points",
        fontsize=8,
    )
    edges = [0, *(mark.event for mark in trace.marks)]
    top = 1.12 * report.reserved_bytes / MB
    for (first, last), mark in zip(pairwise(edges), trace.marks, strict=True):
        axes.axvline(last, color="0.6", linewidth=0.5)
        if last - first > 0.04 * len(trace.events):
            axes.text((first + last) / 2, 0.985 * top, mark.name, ha="center", va="top", fontsize=8)
    axes.set(
        xlim=(0, max(1, len(trace.events) - 1)),
        ylim=(0, top),
        xlabel="allocations and frees, in order",
        ylabel="MB in use",
        title=f"{report.model}, {report.mode}, {' and '.join(report.inputs)}",
    )
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise StoreError(f"cannot write {os.fspath(path)}: {error.strerror}") from None


def _layers(trace: Trace) -> dict[str, list[int]]:
    """Bytes of each category after each event; workspaces are the remainder."""
    sums: dict[str, int] = dict.fromkeys(CATEGORIES, 0)
    layers: dict[str, list[int]] = {name: [] for name in CATEGORIES}
    for (kind, index), in_use in zip(trace.events, trace.in_use_bytes, strict=True):
        if kind in ("alloc", "free"):
            storage = trace.storages[index]
            n_bytes = round_to_granule(storage.n_bytes)
            sums[storage.category] += n_bytes if kind == "alloc" else -n_bytes
        known = sum(n for name, n in sums.items() if name != "workspace")
        for name, n_bytes in sums.items():
            layers[name].append(in_use - known if name == "workspace" else n_bytes)
    return layers

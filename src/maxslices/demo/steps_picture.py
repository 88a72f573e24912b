"""The picture of a run's steps: the middle slice after each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tifffile

from .picture import STYLE, fewer_colours


def draw_steps(path: Path, snapshots: Sequence[Path]) -> None:
    """Write snapshots of a run side by side as a PNG.

    Parameters
    ----------
    path : pathlib.Path
        File to write.
    snapshots : sequence of pathlib.Path
        TIFFs as ``save_snapshots`` names them, in the order of the steps.
    """
    import matplotlib
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    images = [tifffile.imread(each) for each in snapshots]
    heights = [image.shape[0] / image.shape[1] for image in images]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11.6, 0.6 + 11 / len(images) * max(heights)), dpi=100)
        FigureCanvasAgg(figure)
        panels = figure.subplots(1, len(images), squeeze=False)[0]
        for panel, image, file in zip(panels, images, snapshots, strict=True):
            dark, bright = np.percentile(image, (0.5, 99.7))
            gray = colormaps["gray"].resampled(64)  # each level of the noise makes it larger
            panel.imshow(image, cmap=gray, vmin=dark, vmax=bright, interpolation="none")
            panel.set_title(re.sub(r"^snapshot_\d+_", "", file.stem), pad=6, size=9)
            panel.set_anchor("N")
            panel.set_xticks([])
            panel.set_yticks([])
        figure.subplots_adjust(left=0.01, right=0.99, bottom=0.01, top=0.9, wspace=0.04)
        figure.savefig(path, facecolor="white")
    fewer_colours(path)

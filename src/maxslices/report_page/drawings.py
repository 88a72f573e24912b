"""Drawings of a page: slices with their histograms, and when each stage was at work."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

LIMITS = (0.5, 99.5)
"""Percentiles that are black and white: dead and hot pixels are a few in a thousand."""
LEVELS = 64
"""Levels of grey. An eye tells fewer apart in noise, and each further bit makes the file larger."""
SAMPLES = 2**18
"""Pixels that percentiles and histogram are taken from: 20 ms, and the error of a percentile is
less than the width of a bar."""
HISTOGRAM_BINS = 100
"""Bars of the histogram, three pixels of a phone's width each."""
HISTOGRAM_HEIGHT = 40
LARGEST = float(np.finfo(np.float64).max) / 4
"""Largest value that is told apart, so that no difference overflows."""


@dataclass(frozen=True, slots=True)
class SlicePicture:
    """A slice, drawn."""

    title: str
    """What it shows."""
    uri: str
    """The PNG as a data URI."""
    width: int
    """Pixels of the PNG across; the slice itself may have more."""
    height: int
    """Pixels of the PNG down."""
    black: float
    """Value that is drawn black."""
    white: float
    """Value that is drawn white."""
    least: float
    """Lower end of the histogram: the least of the sampled values."""
    most: float
    """Upper end of the histogram."""
    n_not_finite: int
    """Pixels of the slice that are NaN or infinite."""
    histogram: str
    """Path in SVG, `HISTOGRAM_BINS` wide and `HISTOGRAM_HEIGHT` high; bars by log(1 + count)."""


def draw_slice(title: str, image: NDArray[Any], side: int) -> SlicePicture:
    """Draw a slice.

    Parameters
    ----------
    title : str
        What it shows.
    image : ndarray
        (rows, columns), of any dtype; of complex values the absolute ones are drawn.
    side : int
        Most pixels of the PNG in each direction; of a larger slice, squares of pixels are averaged.
    """
    if np.iscomplexobj(image):
        image, title = np.abs(image), f"{title}, absolute values"
    finite = np.isfinite(image)
    n_not_finite = image.size - int(np.count_nonzero(finite))
    step = max(1, image.size // SAMPLES)
    sample = image.ravel()[::step][finite.ravel()[::step]].astype(np.float64)
    sample = sample.clip(-LARGEST, LARGEST)
    if sample.size == 0:
        sample = np.zeros(1)
    black, white = np.percentile(sample, LIMITS)
    if black == white:  # as in a mask of few pixels
        black, white = sample.min(), sample.max()
    small = _averaged(image, side)
    with np.errstate(invalid="ignore", over="ignore"):
        grey = (small - black) / (white - black or 1.0)
    grey = np.nan_to_num(grey, nan=0.0, posinf=1.0, neginf=0.0).clip(0, 1)
    levels = np.round(grey * (LEVELS - 1)).astype(np.uint8) * np.uint8(255 // (LEVELS - 1))
    uri = f"data:image/png;base64,{base64.b64encode(grey_png(levels)).decode('ascii')}"
    return SlicePicture(
        title=title,
        uri=uri,
        width=small.shape[1],
        height=small.shape[0],
        black=float(black),
        white=float(white),
        least=float(sample.min()),
        most=float(sample.max()),
        n_not_finite=n_not_finite,
        histogram=_histogram_path(sample),
    )


def grey_png(image: NDArray[np.uint8]) -> bytes:
    """PNG of an 8-bit image, rows x columns."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="PNG")
    return file.getvalue()


def _averaged(image: NDArray[Any], side: int) -> NDArray[np.float64]:
    """Squares of pixels averaged, so that no side is longer than `side`; rims may be cut."""
    k = max(1, -(-max(image.shape) // side))
    rows, columns = (max(1, n // k) for n in image.shape)
    cut = image[: rows * k, : columns * k]
    squares = cut.reshape(rows, cut.shape[0] // rows, columns, cut.shape[1] // columns)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(squares.mean(axis=(1, 3), dtype=np.float64))


def _histogram_path(values: NDArray[np.float64]) -> str:
    """Outline of a histogram as a path of SVG."""
    least, most = float(values.min()), float(values.max())
    # NumPy refuses a range too small to have so many bins
    if most - least <= HISTOGRAM_BINS * max(abs(np.spacing(least)), abs(np.spacing(most))):
        counts = np.zeros(HISTOGRAM_BINS)
        counts[HISTOGRAM_BINS // 2] = values.size
    else:
        counts = np.histogram(values, HISTOGRAM_BINS, (least, most))[0].astype(np.float64)
    heights = np.log1p(counts) / np.log1p(counts.max()) * HISTOGRAM_HEIGHT
    tops = " ".join(f"V{HISTOGRAM_HEIGHT - top:.1f}h1" for top in heights)
    return f"M0 {HISTOGRAM_HEIGHT}{tops}V{HISTOGRAM_HEIGHT}z"


LANE_BINS = 480
"""Steps of an outline: two pixels each in the width of a page. An outline then has some 3 kB, for
ten blocks as for a million."""
LANE_HEIGHT = 20

Spans = NDArray[np.float64]
"""Begin and end of each time at work, in seconds: (n, 2)."""


@dataclass(frozen=True, slots=True)
class SectionSpans:
    """When the stages of a section were at work."""

    start_s: float
    """When it began, by the clock of the spans."""
    stop_s: float
    """When it ended."""
    stages: Mapping[str, Spans]
    """Spans of each stage."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One stage over the whole run."""

    stage: str
    """Its name."""
    path: str
    """Path in SVG, `LANE_BINS` wide and `LANE_HEIGHT` high: the share of the time at work."""
    share: float
    """Share of the whole time in which it was at work."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """All stages over the whole run."""

    duration_s: float
    """From the first section's begin to the last one's end."""
    lanes: tuple[Lane, ...]
    """A lane for each stage that there was."""
    starts: tuple[float, ...]
    """Where each section begins, in bins."""


def draw_lanes(sections: Sequence[SectionSpans], order: Sequence[str]) -> Lanes | None:
    """Draw the stages of all sections, in the order given; None if there is nothing to draw."""
    if not sections or sections[-1].stop_s <= sections[0].start_s:
        return None
    origin_s = sections[0].start_s
    duration_s = sections[-1].stop_s - origin_s
    edges = np.linspace(0, duration_s, LANE_BINS + 1)
    lanes = []
    for stage in order:
        # What lies outside of its section does not count, as in the shares of the report.
        spans = [
            s.stages[stage].clip(s.start_s, s.stop_s) - origin_s
            for s in sections
            if stage in s.stages
        ]
        if spans:
            busy_s = busy_until(np.concatenate(spans), edges)
            share = np.diff(busy_s) * LANE_BINS / duration_s
            lanes.append(Lane(stage, _outline(share), float(busy_s[-1]) / duration_s))
    starts = tuple((s.start_s - origin_s) * LANE_BINS / duration_s for s in sections)
    return Lanes(duration_s, tuple(lanes), starts)


def busy_until(spans: Spans, times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds before each of the times that are covered by at least one span.

    Examples
    --------
    >>> busy_until(np.array([[0.0, 2.0], [1.0, 3.0], [5.0, 6.0]]), np.array([1.0, 4.0, 5.5]))
    array([1. , 3. , 3.5])
    """
    starts, stops = spans[np.argsort(spans[:, 0])].T
    ends = np.maximum.accumulate(stops)
    begins = np.maximum(starts, np.concatenate([[-np.inf], ends[:-1]]))
    after = np.cumsum(ends - begins)
    before = np.concatenate([[0.0], after[:-1]])
    knots = np.stack([begins, ends], axis=1).ravel()
    found: Any = np.interp(times, knots, np.stack([before, after], axis=1).ravel())
    return np.asarray(found)


def _outline(share: NDArray[np.float64]) -> str:
    """Outline of a step function between 0 and 1; equal steps are one line."""
    tops = np.round(LANE_HEIGHT * (1 - share.clip(0, 1)), 1)
    changes = np.flatnonzero(np.diff(tops)) + 1
    parts = [f"M0 {LANE_HEIGHT}V{tops[0]:g}"]
    parts += [f"H{i}V{tops[i]:g}" for i in changes]
    return f"{''.join(parts)}H{len(tops)}V{LANE_HEIGHT}z"

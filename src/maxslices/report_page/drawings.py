"""Pictures of slices with a scale bar, a colour bar and a histogram."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

LIMITS = (0.5, 99.5)
"""Percentiles drawn black and white: dead and hot pixels are a few in a thousand."""
LEVELS = 64
"""Levels of grey. An eye distinguishes fewer in noise, and each further bit enlarges the file."""
SAMPLES = 2**18
"""Pixels sampled for the percentiles and the histogram. This takes 20 ms, and the error of a
percentile is less than the width of a histogram bar."""
HISTOGRAM_BINS = 100
"""Bars of the histogram, three pixels of a phone's width each."""
HISTOGRAM_HEIGHT = 40
LARGEST = float(np.finfo(np.float64).max) / 4
"""Values are clipped to this, so that no difference between two overflows."""
LONGEST_BAR = 0.25
"""Largest part of the slice's width that the scale bar covers."""


@dataclass(frozen=True, slots=True)
class SlicePicture:
    """A slice, drawn."""

    title: str
    """Its caption."""
    uri: str
    """The PNG as a data URI."""
    width: int
    """Pixels of the PNG across. The slice itself may have more."""
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
    unit: str
    """Unit of the values; empty if it is not known."""
    bar_share: float
    """Length of the scale bar as a part of the slice's width."""
    bar_length: str
    """Length of the scale bar with its unit."""


def draw_slice(
    title: str,
    image: NDArray[Any],
    side: int,
    *,
    unit: str = "",
    pixel_um: float | None = None,
) -> SlicePicture:
    """Draw a slice.

    Parameters
    ----------
    title : str
        Caption of the picture.
    image : ndarray
        (rows, columns), of any dtype. Complex values are drawn as their magnitude.
    side : int
        Most pixels of the PNG in each direction. Larger slices are averaged over squares of pixels.
    unit : str
        Unit of the values.
    pixel_um : float, optional
        Distance between columns in micrometres. Without it the scale bar is in pixels.
    """
    if np.iscomplexobj(image):
        image, title = np.abs(image), f"{title}, magnitude"
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
    bar_share, bar_length = _scale_bar(image.shape[1], pixel_um)
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
        unit=unit,
        bar_share=bar_share,
        bar_length=bar_length,
    )


def _scale_bar(columns: int, pixel_um: float | None) -> tuple[float, str]:
    """Length of a scale bar as a part of the width, and as text: 1, 2 or 5 times a power of ten.

    Examples
    --------
    >>> _scale_bar(480, 5.0)
    (0.208..., '500 µm')
    >>> _scale_bar(480, None)
    (0.208..., '100 pixels')
    """
    width = columns * (pixel_um or 1.0)
    power = 10.0 ** np.floor(np.log10(LONGEST_BAR * width))
    length = max(n * power for n in (1, 2, 5) if n * power <= LONGEST_BAR * width)
    if pixel_um is None:
        text = f"{length:g} pixels"
    elif length >= 1000:
        text = f"{length / 1000:g} mm"
    else:
        text = f"{length:g} µm"
    return float(length / width), text


def grey_png(image: NDArray[np.uint8]) -> bytes:
    """PNG of an 8-bit image, rows x columns."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="PNG")
    return file.getvalue()


def _averaged(image: NDArray[Any], side: int) -> NDArray[np.float64]:
    """Average squares of pixels so that no side exceeds `side`; incomplete squares are cut off."""
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

"""Tags of TIFFs that tell programs the size of a pixel."""

from __future__ import annotations

from typing import Any

import numpy as np

IMAGEJ_DTYPES = ("uint8", "uint16", "float32")
"""Dtypes of ImageJ's own TIFFs."""


def tiff_tags(
    dtype: np.dtype[Any], row_um: float | None, column_um: float | None
) -> dict[str, Any]:
    """Arguments of tifffile for a grey image, or a stack of them, of a pixel size.

    Parameters
    ----------
    dtype : numpy.dtype
        Dtype of the image.
    row_um, column_um : float or None
        Distance of rows and of columns in micrometres; None if they are not known.
    """
    tags: dict[str, Any] = {"photometric": "minisblack", "metadata": None}
    if row_um is None or column_um is None:
        return tags
    if dtype.name in IMAGEJ_DTYPES:  # ImageJ reads micrometres from its own description alone
        resolution = (1 / column_um, 1 / row_um)
        return {
            **tags,
            "imagej": True,
            "byteorder": "<",
            "resolution": resolution,
            "metadata": {"unit": "um"},
        }
    return {**tags, "resolution": (1e4 / column_um, 1e4 / row_um), "resolutionunit": "CENTIMETER"}

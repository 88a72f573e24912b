"""Workspaces of convolutions that were measured before, on an H200 with cuDNN 9.19.

Which kernel cuDNN takes follows from heuristics of its own. Of one layer it copied input and output
for 16 images, the input alone for 32, and both again for 64, and no rule of channels, kernel and
sizes told 500 such calls from 270 others. So what was seen counts, before what may be.
``docs/scripts/convolution_workspaces.py`` measures the rows.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from importlib.resources import files
from typing import Any

Convolution = tuple[str, str, str, tuple[tuple[int, ...], ...]]
"""Kind, dtype, options and shapes, as `OperatorCall` has them."""


@cache
def recorded_bytes() -> dict[Convolution, int]:
    """Workspaces of the recorded convolutions, with channels first."""
    return {
        (kind, dtype, options, tuple(map(tuple, shapes))): n_bytes
        for _, kind, dtype, *shapes, options, _, n_bytes in record()["rows"]
    }


def record() -> dict[str, Any]:
    """Device, versions and rows: source, kind, dtype, shapes, options, channels last, bytes."""
    packed = (files(__package__) / "h200_workspaces.json.gz").read_bytes()
    content: dict[str, Any] = json.loads(gzip.decompress(packed))
    return content

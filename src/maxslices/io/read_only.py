"""Read-only views of arrays."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray


def read_only(array: NDArray[Any]) -> NDArray[Any] | None:
    """Read-only view of a C-contiguous array; None for any other array."""
    if not array.flags.c_contiguous:
        return None
    view = array.view()
    view.flags.writeable = False
    return view

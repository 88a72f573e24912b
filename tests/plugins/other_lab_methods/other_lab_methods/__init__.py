"""Another laboratory, with a method of the same name."""

from __future__ import annotations

from maxslices import method


def _max_slices(slice_dim, other_dims, dtype, available_memory, **kwargs):
    return available_memory // (3 * other_dims[0] * other_dims[1] * dtype.itemsize), dtype


@method("sinogram", calc_max_slices=_max_slices)
def scale(data, *, factor: int = 2):
    """Multiply by a whole number."""
    return data * factor

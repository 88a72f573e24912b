"""Methods for tests. On the CPU each allocates exactly the bytes of its ledger."""

from __future__ import annotations

import numpy as np

from maxslices import Registry, from_ledger, method
from tests.planner.ledgers import to_float_ledger, two

fakes = Registry()


@from_ledger
def _in_only(m, shape, dtype):
    m.alloc(shape, dtype)
    m.alloc_bytes(2**16)  # buffered conversion inside NumPy's mean


@from_ledger
def _with_work(m, shape, dtype, copies):
    m.alloc(shape, dtype)
    for _ in range(copies):
        m.alloc(shape, dtype)
    m.alloc(shape, dtype)


@method("all", calc_max_slices=to_float_ledger, output_dtype="float32", registry=fakes)
def to_float(data, factor: float = 1.0):
    """Multiply into float32."""
    out = np.empty(data.shape, np.float32)
    np.multiply(data, np.float32(factor), out=out)
    return out


@method("projection", calc_max_slices=two, registry=fakes)
def negate(data):
    """Change the sign, frame by frame."""
    return np.negative(data)


@method("sinogram", calc_max_slices=_with_work, registry=fakes)
def work(data, copies: int = 2):
    """Add up copies of the data."""
    held = [data.copy() for _ in range(copies)]
    out = np.zeros_like(data)
    for each in held:
        np.add(out, each, out=out)
    return out


def _average(data, slice_dim, before, after):
    """Add the neighbours along slice_dim, with edges repeated."""
    moved = np.moveaxis(data, slice_dim, 0)
    out = np.empty_like(data)
    result = np.moveaxis(out, slice_dim, 0)
    n = len(moved)
    for i in range(n):
        np.copyto(result[i], moved[i])
        for j in (*range(i - before, i), *range(i + 1, i + after + 1)):
            np.add(result[i], moved[min(max(j, 0), n - 1)], out=result[i])
    return out


@method("all", calc_max_slices=two, halo=(2, 1), registry=fakes)
def neighbours(data, slice_dim):
    """Add two slices before and one after."""
    return _average(data, slice_dim, 2, 1)


@method("projection", calc_max_slices=two, halo=lambda reach: reach, registry=fakes)
def reaching(data, slice_dim, reach: int = 3):
    """Add `reach` projections on either side."""
    return _average(data, slice_dim, reach, reach)


@from_ledger
def _crop(m, shape, dtype, keep):
    m.alloc(shape, dtype)
    m.alloc((shape[0], shape[1], keep), dtype)


def _crop_dims(other_dims, keep):
    return other_dims[0], keep


@method("all", calc_max_slices=_crop, output_dims=_crop_dims, registry=fakes)
def crop(data, keep: int):
    """Keep the first columns."""
    return np.ascontiguousarray(data[:, :, :keep])


@method(
    "sinogram",
    calc_max_slices=_in_only,
    side_results=("cor",),
    sample_slices=lambda n_slices: [n_slices // 2],
    registry=fakes,
)
def find_middle(data):
    """Look at the middle sinogram."""
    return float(data.astype(np.float64).mean()) if data.size < 2**12 else float(data[0, 0, 0])


@method(
    "all",
    calc_max_slices=_in_only,
    side_results=("low", "high"),
    combine=lambda parts: (min(p[0] for p in parts), max(p[1] for p in parts)),
    registry=fakes,
)
def extremes(data):
    """Find the smallest and the largest value of all."""
    return float(data.min()), float(data.max())


@method("all", calc_max_slices=to_float_ledger, output_dtype="float32", registry=fakes)
def flat_field(data, flats, darks=None):
    """Subtract the first flat."""
    out = np.empty(data.shape, np.float32)
    np.subtract(data, flats[0], out=out, dtype=np.float32)
    return out


@method("all", calc_max_slices=to_float_ledger, output_dtype="float32", registry=fakes)
def turn(data, angles):
    """Add the angle of each projection."""
    out = np.empty(data.shape, np.float32)
    np.add(data, angles[:, np.newaxis, np.newaxis], out=out)
    return out


@method("sinogram", calc_max_slices=two, registry=fakes)
def scaled_by(data, centre: float, note: str | None = None):
    """Multiply by the side result of another step."""
    return data * data.dtype.type(centre)


@method("all", calc_max_slices=_in_only, registry=fakes)
def same(data):
    """Return the input itself."""
    return data


@method("all", calc_max_slices=_in_only, registry=fakes)
def triple_in_place(data):
    """Write to the input, which methods should not."""
    np.multiply(data, data.dtype.type(3), out=data)
    return data


@method("all", calc_max_slices=_in_only, output_dims=_crop_dims, registry=fakes)
def left(data, keep: int = 5):
    """Return a view of the first columns."""
    return data[:, :, :keep]

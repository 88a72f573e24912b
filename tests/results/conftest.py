"""A small scan with a pixel size, and runs of it into each kind of file."""

import h5py
import numpy as np
import pytest

from maxslices import Pipeline, Registry, run

SHAPE = (6, 5, 7)
"""Angles, rows, columns of the scan."""
VOLUME = (5, 11, 7)
"""Slices, rows, columns of the volume in a file."""
METHODS = Registry()


def _bytes(slice_dim, other_dims, dtype, available_memory, **kwargs):
    return available_memory // (64 * 11 * other_dims[1]), np.dtype("float32")


def find_level(data):
    """Return a side result."""
    return float(data.max())


def to_volume(data, first_slice, *, level: float, size: int = 11):
    """Make voxels that tell where they are."""
    z = first_slice + np.arange(data.shape[1], dtype=np.float32)
    y, x = np.arange(size, dtype=np.float32), np.arange(data.shape[2], dtype=np.float32)
    return z[None, :, None] * 10000 + y[:, None, None] * 100 + x


def halve(data):
    """Make frames of half the columns."""
    return np.ascontiguousarray(data[..., ::2], np.float32)


METHODS.register(
    find_level,
    pattern="sinogram",
    calc_max_slices=_bytes,
    side_results=("level",),
    combine=max,
)
METHODS.register(
    to_volume,
    pattern="sinogram",
    calc_max_slices=_bytes,
    output_dims=lambda other_dims, size: (size, other_dims[1]),
    output_dtype="float32",
    saved_by_default=True,
)
METHODS.register(
    halve,
    pattern="projection",
    calc_max_slices=_bytes,
    output_dims=lambda other_dims: (other_dims[0], -(-other_dims[1] // 2)),
    output_dtype="float32",
)
STEPS = [
    {"method": "find_level", "id": "level", "side_outputs": {"level": "found"}},
    {"method": "to_volume", "parameters": {"level": "${{level.side_outputs.found}}"}},
]


def pipeline(steps=STEPS):
    """Make a pipeline of these methods."""
    return Pipeline.from_steps(steps, METHODS)


@pytest.fixture
def scan(tmp_path):
    """NXtomo with a pixel size."""
    path = tmp_path / "scan.nxs"
    with h5py.File(path, "w") as file:
        rng = np.random.default_rng(4)
        file["entry1/tomo_entry/data/data"] = rng.integers(100, 900, SHAPE, np.uint16)
        file["entry1/tomo_entry/data/rotation_angle"] = np.linspace(0, 150, SHAPE[0])
        for axis, metres in (("x", 3.25e-6), ("y", 2e-6)):
            place = f"entry1/tomo_entry/sample/{axis}_pixel_size"
            file[place] = metres
            file[place].attrs["units"] = "m"
    return path


@pytest.fixture
def volume():
    """What `to_volume` makes, slices first."""
    z, y, x = (np.arange(n, dtype=np.float32) for n in VOLUME)
    return z[:, None, None] * 10000 + y[:, None] * 100 + x


@pytest.fixture
def result(tmp_path, scan):
    """Run into a format; the path of the last result."""

    def make(format="hdf5", steps=STEPS, **options):
        options |= {"device": "cpu", "format": format}
        return run(scan, pipeline(steps), tmp_path / "out", **options).files[-1]

    return make

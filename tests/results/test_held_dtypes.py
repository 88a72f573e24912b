"""Results of any dtype are written, or refused before anything is computed."""

import importlib.util

import numpy as np
import pytest

from maxslices import Pipeline, Registry, run
from maxslices.errors import UsageError
from maxslices.io.results.result_format import parse_formats

DATA = np.arange(6 * 5 * 4, dtype=np.float32).reshape(6, 5, 4)


def returning(dtype, n_slices):
    def converted(data):
        n_slices.append(len(data))
        return data.astype(dtype)

    registry = Registry()
    registry.register(
        converted,
        name="converted",
        module="lab",
        pattern="all",
        calc_max_slices=lambda slice_dim, other_dims, dtype, available_memory: (
            available_memory // 10_000,
            dtype,
        ),
        output_dtype=dtype,
    )
    return Pipeline.from_steps(["converted"], registry)


@pytest.mark.parametrize("name", ["hdf5", "hdf5:8", "tiff", "tiff-stack", "ome-zarr", "tiff:16"])
@pytest.mark.parametrize("dtype", ["bool", "float16", "int64", "complex64", "longdouble"])
def test_a_format_holds_a_dtype_or_says_so_first(tmp_path, name, dtype):
    """They were errors of NumPy, tifffile and zarr after the whole run."""
    if name == "ome-zarr" and importlib.util.find_spec("zarr") is None:
        pytest.skip("zarr is not installed")
    n_slices = []
    pipeline, out = returning(np.dtype(dtype), n_slices), tmp_path / "out"
    if parse_formats(name)[0].holds(np.dtype(dtype)):
        run(DATA, pipeline, out, device="cpu", format=name)
        assert sum(n_slices) == 6
        return
    with pytest.raises(UsageError, match=f"{name} cannot hold .*, which converted returns: use"):
        run(DATA, pipeline, out, device="cpu", format=name)
    assert not n_slices
    assert not out.exists()

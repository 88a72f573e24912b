"""Flat-field and minus-log on a GPU give what NumPy's operations give, whatever the input."""

from __future__ import annotations

import numpy as np
import pytest

from maxslices_methods.normalize import dark_flat_field_correction, minus_log

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "float32", "float64"])
@pytest.mark.parametrize("cut", [np.s_[:], np.s_[:, 2:-1, 3:-2]], ids=["whole", "cut"])
def test_values_are_those_of_numpy(dtype, cut):
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(1)
    data, flats, darks = (
        rng.uniform(low, high, (n, 33, 47)).astype(dtype)
        for low, high, n in ((0, 150, 11), (60, 120, 7), (0, 9, 5))
    )
    if dtype.startswith("float"):
        data[0, 4:8, 5] = np.nan, np.inf, -np.inf, -1.0
        flats[0, 4, 5:8], darks[0, 5, 5:7] = (np.nan, np.inf, 0.0), (np.nan, np.inf)
    for dark_frames in (darks, None):
        host = data[cut], flats[cut], None if dark_frames is None else dark_frames[cut]
        device = [
            None if each is None else cupy.asarray(each)[cut] for each in (data, flats, dark_frames)
        ]
        with np.errstate(all="ignore"):
            wanted = dark_flat_field_correction(*host, upper_bound=1.5)
            wanted_log = minus_log(host[0])
        got, got_log = dark_flat_field_correction(*device, upper_bound=1.5), minus_log(device[0])
        assert got.dtype == got_log.dtype == np.float32
        np.testing.assert_array_equal(got.get(), wanted)
        np.testing.assert_allclose(got_log.get(), wanted_log, rtol=3e-7, atol=1e-7)

"""A file that was open for writing when its program was killed can be written to again."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from maxslices.io.hdf5.write_flag import clear_write_flag


def test_a_file_of_a_killed_program_is_opened_again(tmp_path):
    path, copy = tmp_path / "open.h5", tmp_path / "copy.h5"
    with h5py.File(path, "x", libver=("v110", "v110")) as file:
        file["values"] = np.arange(12)
        file.flush()
        copy.write_bytes(path.read_bytes())  # as a kill leaves it
    with pytest.raises(OSError, match="already open for write"):
        h5py.File(copy, "r+")
    clear_write_flag(copy)
    with h5py.File(copy, "r+") as file:
        np.testing.assert_array_equal(file["values"], np.arange(12))


@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n", b"II*\x00" + bytes(60)])
def test_other_files_stay_as_they_are(tmp_path, content):
    path = tmp_path / "other"
    path.write_bytes(content)
    clear_write_flag(path)
    assert path.read_bytes() == content

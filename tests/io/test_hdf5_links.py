"""Files with many objects, and objects that come more than once."""

import h5py
import numpy as np
import pytest

from maxslices import describe
from maxslices.errors import SourceError
from maxslices.io import open_source
from maxslices.io.hdf5 import objects
from maxslices.io.hdf5.objects import BrokenPath, FileObjects, look_up

from . import scans

DATA = scans.frames()


def many_groups(path, n_groups):
    with h5py.File(path, "w") as file:
        for number in range(n_groups):
            file.create_group(f"group{number:03d}")
    return path


@pytest.mark.parametrize("question", [open_source, describe])
def test_the_rest_of_a_file_with_very_many_objects_is_left(tmp_path, monkeypatch, question):
    monkeypatch.setattr(objects, "MAX_OBJECTS", 10)
    with pytest.raises(SourceError, match="only the first 10 of its links were looked at"):
        question(many_groups(tmp_path / "many.h5", 50))


def test_each_object_comes_once(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["data"] = np.zeros(3)
    with h5py.File(tmp_path / "links.h5", "w") as file:
        file["a/data"] = np.zeros(3)
        file["a/again"] = file["a/data"]
        file["a/loop"] = file["a"]
        file["a/soft"] = h5py.SoftLink("/a/data")
        file["a/nowhere"] = h5py.SoftLink("/nothing")
        file["b"] = h5py.ExternalLink("other.h5", "/data")
        file["type"] = np.dtype("f4")
        assert [name for name, _ in FileObjects(file)] == ["/a", "/b", "/a/again"]
        assert [name for name, _ in FileObjects(file, follows_links=False)] == ["/a", "/a/again"]


def test_a_virtual_data_set_without_end_is_not_opened_as_its_own_file(tmp_path):
    """One that grows asks its files how long they are, when its shape is asked for."""
    most = (None, *DATA.shape[1:])
    layout = h5py.VirtualLayout(DATA.shape, DATA.dtype, maxshape=most)
    source = h5py.VirtualSource("other.h5", "exchange/data", DATA.shape, maxshape=most)
    layout[: h5py.h5s.UNLIMITED] = source[: h5py.h5s.UNLIMITED]
    with h5py.File(tmp_path / "virtual.h5", "w", libver="latest") as file:
        file.create_virtual_dataset("exchange/data", layout)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file.create_dataset("exchange/data", data=DATA, maxshape=most)
    with open_source(tmp_path / "virtual.h5") as source:
        assert source.spec.shape == DATA.shape


@pytest.mark.parametrize("target", [b"\xff\xfe", b"/entry1/\xff/data", b"../\xc3"])
def test_a_link_into_a_file_whose_target_is_no_text_leads_nowhere(tmp_path, target):
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as file:
        file["data"] = DATA
        file.id.links.create_external(b"damaged", b"scan.h5", target)
    with h5py.File(path) as file:
        assert isinstance(look_up(file, "damaged"), BrokenPath)
        assert [name for name, _ in FileObjects(file)] == ["/data"]

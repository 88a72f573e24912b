"""Files with many objects, and objects that come more than once."""

import h5py
import numpy as np
import pytest

from maxslices import describe
from maxslices.errors import SourceError
from maxslices.io import open_source
from maxslices.io.hdf5 import contents
from maxslices.io.hdf5 import links as hdf5_links
from maxslices.io.hdf5.links import FileObjects


def many_groups(path, n_groups):
    with h5py.File(path, "w") as file:
        for number in range(n_groups):
            file.create_group(f"group{number:03d}")
    return path


@pytest.fixture
def asked(monkeypatch):
    """Names that were looked at."""
    names, original = [], FileObjects._find

    def counted(self, group, name, *more):
        names.append(name)
        return original(self, group, name, *more)

    monkeypatch.setattr(FileObjects, "_find", counted)
    return names


def test_a_file_in_which_nothing_is_found_is_gone_through_once(tmp_path, asked):
    path = many_groups(tmp_path / "many.h5", 50)
    with pytest.raises(SourceError, match=r"no 3D data set in the file$"):
        open_source(path)
    assert len(asked) == 50


@pytest.mark.parametrize("question", [open_source, describe])
def test_the_rest_of_a_file_with_very_many_objects_is_left(tmp_path, asked, monkeypatch, question):
    for module in (hdf5_links, contents):
        monkeypatch.setattr(module, "MAX_OBJECTS", 10)
    path = many_groups(tmp_path / "many.h5", 50)
    with pytest.raises(SourceError, match="only the first 10 of its links were looked at"):
        question(path)
    assert set(asked) == {f"group{number:03d}" for number in range(10)}


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

"""Frames that were never written: HDF5 reads zeros for them, which no one would notice."""

from __future__ import annotations

import os

import h5py
import numpy as np
import pytest

from maxslices.errors import SourceError
from maxslices.io import LoaderOptions, Preview, open_source

from . import scans

DATA = scans.frames("uint16")
ENTRY = "entry1/tomo_entry"


def unfinished(path, n_written, keys=scans.KEYS, **kwargs):
    """A scan of which the first frames are written, as after an aborted acquisition."""
    with h5py.File(path, "w") as file:
        data = file.create_dataset(f"{ENTRY}/data/data", DATA.shape, DATA.dtype, **kwargs)
        if n_written:
            data[:n_written] = DATA[:n_written]
        file[f"{ENTRY}/instrument/detector/image_key"] = keys
    return path


@pytest.mark.parametrize("chunks", [(1, 7, 11), (2, 7, 11), (1, 3, 4)])
@pytest.mark.parametrize("compression", [None, "gzip", "lzf"])
def test_an_aborted_acquisition_is_refused_with_the_number_of_frames(tmp_path, chunks, compression):
    path = unfinished(tmp_path / "a.nxs", 12, chunks=chunks, compression=compression)
    # Of frames 12, 13 and 14 one is a flat and two are projections.
    with pytest.raises(SourceError, match=r"data: 2 of 9 projections were never .*first: 12"):
        open_source(path)


@pytest.mark.parametrize("how", ["invalid", "beside the preview"])
def test_frames_that_are_not_read_may_be_missing(tmp_path, how):
    keys = np.where(np.arange(15) < 12, scans.KEYS, 3) if how == "invalid" else scans.KEYS
    path = unfinished(tmp_path / "a.nxs", 12, keys, chunks=(1, 7, 11))
    part = LoaderOptions(preview=Preview(angles=(2, 11)), flats="ignore")
    with open_source(path, None if how == "invalid" else part) as source:
        assert source.spec.shape[0] == 7


def test_a_contiguous_data_set_that_was_never_written(tmp_path):
    with pytest.raises(SourceError, match="9 of 9 projections were never written"):
        open_source(unfinished(tmp_path / "a.nxs", 0))


def test_an_image_key_that_was_never_written_does_not_make_flats_projections(tmp_path):
    path = scans.write_dls(tmp_path / "a.nxs", DATA, None)
    with h5py.File(path, "a") as file:
        file.create_dataset(f"{ENTRY}/instrument/detector/image_key", (15,), "i4", chunks=(15,))
    with pytest.raises(SourceError, match="15 of 15 values were never written"):
        open_source(path)


def test_most_frames_missing_is_refused_before_arrays_of_their_number_are_made(tmp_path):
    path, n_frames = tmp_path / "a.h5", 2**50
    with h5py.File(path, "w") as file:
        file.create_dataset("exchange/data", (n_frames, 7, 11), "u2", chunks=(1, 7, 11))[0] = 1
    with pytest.raises(SourceError, match=f"at most 1 of its {n_frames} frames were written"):
        open_source(path)


def virtual(path, *sources, shape=DATA.shape, name="exchange/data"):
    """A virtual data set of (selection, file, selection in it)."""
    layout = h5py.VirtualLayout(shape, DATA.dtype)
    for selection, file, inner in sources:
        layout[selection] = h5py.VirtualSource(file, "data", DATA.shape)[inner]
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset(name, layout)
    return path


@pytest.mark.parametrize(
    ("stored", "parts", "message"),
    [
        ({"data": DATA}, [np.s_[:4], np.s_[6:]], r"2 of 15 projections .*the first: 4"),
        ({"data": DATA[:9]}, [np.s_[:]], "6 of 15 projections"),
        ({"other": DATA}, [np.s_[:]], r"its data are in .*raw.h5:data, which is missing"),
        (None, [np.s_[:]], "its data are in .*raw.h5, which is missing"),
        ("no HDF5", [np.s_[:]], "raw.h5: is not an HDF5 file"),
    ],
    ids=["mapped to nothing", "never written", "not in the file", "no file", "text"],
)
def test_frames_that_no_file_of_a_virtual_data_set_holds(tmp_path, stored, parts, message):
    if isinstance(stored, str):
        (tmp_path / "raw.h5").write_text(stored)
    elif stored is not None:
        with h5py.File(tmp_path / "raw.h5", "w") as file:
            for name, data in stored.items():
                file.create_dataset(name, DATA.shape, "u2", chunks=(1, 7, 11))[: len(data)] = data
    path = virtual(tmp_path / "a.h5", *((part, "raw.h5", part) for part in parts))
    with pytest.raises(SourceError, match=message):
        open_source(path)


def test_gaps_between_the_modules_of_a_detector_are_no_missing_frames(tmp_path):
    with h5py.File(tmp_path / "50%.h5", "w") as file:
        file["data"] = DATA
    rows = np.s_[:, :3], np.s_[:, 4:]
    path = virtual(tmp_path / "a.h5", *((part, "50%%.h5", part) for part in rows))
    with h5py.File(path, "a") as file:  # flats and darks are in the same data set
        file["entry/data/data"] = h5py.SoftLink("/exchange/data")
        file["entry/data/image_key"] = scans.KEYS
    frames, there = scans.whole(path), scans.projections(DATA)
    assert not frames[:, 3].any()
    np.testing.assert_array_equal(np.delete(frames, 3, axis=1), np.delete(there, 3, axis=1))


def mapped(path, held, is_whole):
    """Two halves of the frames, each in a file, of which the second has another shape."""
    shape = (8, 7, 11)
    layout = h5py.VirtualLayout((16, 7, 11), "u2")
    for number, each in enumerate((shape, held)):
        with h5py.File(path.parent / f"part_{number}.h5", "w") as file:
            file["data"] = np.arange(1, 1 + np.prod(each), dtype="u2").reshape(each)
        source = h5py.VirtualSource(
            f"part_{number}.h5", "data", shape if is_whole else (20, 7, 11), "u2"
        )
        layout[8 * number : 8 * number + 8] = source if is_whole else source[:8]
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("exchange/data", layout)
    return path


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_file_with_fewer_frames_than_a_virtual_data_set_maps(tmp_path, is_whole):
    path = mapped(tmp_path / "a.h5", (5, 7, 11), is_whole)
    short = r"3 of 16 projections were never .*: 13\): too few are in .*part_1.h5:data \(5 of 8 fr"
    with pytest.raises(SourceError, match=short):
        open_source(path)
    out = scans.whole(path, LoaderOptions(preview=Preview(angles=(2, 13))))
    np.testing.assert_array_equal(out[6:].ravel(), np.arange(1, 1 + 5 * 77))


@pytest.mark.parametrize(
    ("held", "is_whole"),
    [
        ((8, 8, 11), True),
        ((8, 11, 7), True),
        ((8, 7, 10), True),
        ((4, 14, 11), True),
        ((8, 7, 10), False),
        ((8, 6, 20), False),
        ((8, 77), False),
    ],
)
def test_a_virtual_data_set_of_frames_of_another_size(tmp_path, held, is_whole):
    """HDF5 takes pixels of other places for them."""
    path = mapped(tmp_path / "a.h5", held, is_whole)
    there = "x".join(map(str, held))
    with pytest.raises(SourceError, match=f"part_1.h5:data has the shape {there}, and .*x7x11"):
        open_source(path)


@pytest.mark.parametrize(
    ("held", "is_whole"),
    [((8, 7, 11), True), ((1, 8, 7, 11), True), ((9, 7, 11), True), ((9, 8, 12), False)],
)
def test_a_virtual_data_set_of_files_with_more(tmp_path, held, is_whole):
    out = scans.whole(mapped(tmp_path / "a.h5", held, is_whole))
    stored = np.arange(1, 1 + np.prod(held)).reshape(held[-3:])
    np.testing.assert_array_equal(out[8:], stored[:8, :7, :11])


def test_frames_of_two_files_in_turns(tmp_path):
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file["data"] = DATA
    parts = (np.s_[::2], "raw.h5", np.s_[:8]), (np.s_[1::2], "raw.h5", np.s_[8:])
    frames = scans.whole(virtual(tmp_path / "a.h5", *parts))
    np.testing.assert_array_equal(np.concatenate([frames[::2], frames[1::2]]), DATA)


@pytest.mark.parametrize("n_lost", [0, 2])
def test_frames_in_a_file_each(tmp_path, n_lost):
    """A source of two dims is one frame."""
    layout = h5py.VirtualLayout(DATA.shape, DATA.dtype)
    for i, frame in enumerate(DATA):
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            stored = file.create_dataset("data", frame.shape, "u2", chunks=(1, 11))
            stored[: -2 if i < n_lost else 7] = frame[: -2 if i < n_lost else 7]
        layout[i] = h5py.VirtualSource(f"{i}.h5", "data", frame.shape)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_virtual_dataset("exchange/data", layout)
    if n_lost:
        with pytest.raises(SourceError, match="2 of 15 projections were never written"):
            open_source(tmp_path / "a.h5")
        return
    np.testing.assert_array_equal(scans.whole(tmp_path / "a.h5"), DATA)


def test_files_by_a_pattern_of_numbers_are_refused(tmp_path):
    """Which of them are to be there is stored nowhere."""
    space = h5py.h5s.create_simple((15, 7, 11), (h5py.h5s.UNLIMITED, 7, 11))
    space.select_hyperslab((0, 0, 0), (h5py.h5s.UNLIMITED, 1, 1), (3, 1, 1), (3, 7, 11))
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_virtual(space, b"raw_%b.h5", b"data", h5py.h5s.create_simple((3, 7, 11)))
    with h5py.File(tmp_path / "raw_0.h5", "w") as file:
        file["data"] = DATA[:3]
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        group = file.create_group("exchange")
        h5py.h5d.create(group.id, b"data", h5py.h5t.NATIVE_UINT16, space, creation)
    with pytest.raises(SourceError, match=r"numbered by a pattern \(raw_%b.h5\)"):
        open_source(tmp_path / "a.h5")


@pytest.mark.parametrize("other", [".", "a.h5", "b.h5"])
def test_virtual_data_sets_of_each_other(tmp_path, other):
    virtual(tmp_path / "b.h5", (np.s_[:], "a.h5", np.s_[:]), name="data")
    virtual(tmp_path / "a.h5", (np.s_[:], other, np.s_[:]))
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["data"] = h5py.SoftLink("/exchange/data")
    with pytest.raises(SourceError, match="contains itself"):
        open_source(tmp_path / "a.h5")


def test_a_link_into_a_virtual_data_set_of_another_folder(tmp_path):
    """The files of a virtual data set are beside it, not beside the file with the link."""
    (tmp_path / "there").mkdir()
    with h5py.File(tmp_path / "there" / "raw.h5", "w") as file:
        file["data"] = DATA
    virtual(tmp_path / "there" / "whole.h5", (np.s_[:], "raw.h5", np.s_[:]))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["exchange/data"] = h5py.ExternalLink("there/whole.h5", "/exchange/data")
    np.testing.assert_array_equal(scans.whole(tmp_path / "a.h5"), DATA)


@pytest.mark.parametrize("n_bytes", [None, 154 * 9 + 10, 0])
def test_a_raw_file_that_is_too_short(tmp_path, n_bytes):
    raw, path = tmp_path / "raw.bin", tmp_path / "a.h5"
    raw.write_bytes(bytes(16) + DATA.tobytes())
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "exchange/data", DATA.shape, "u2", external=[(str(raw), 16, DATA.nbytes)]
        )
    if n_bytes is not None:
        os.truncate(raw, 16 + n_bytes)
        with pytest.raises(SourceError, match=r"raw\.bin, which is too short"):
            open_source(path)
        return
    np.testing.assert_array_equal(scans.whole(path), DATA)


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

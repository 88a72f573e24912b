from __future__ import annotations

import lzma
import os
import re
import tracemalloc
import zlib
from importlib.util import find_spec

import numpy as np
import pytest
import tifffile

from maxslices.errors import SourceError
from maxslices.io import ArrayScan, open_source
from maxslices.io.frames.plain_frames import NpyFrames
from maxslices.io.tiff.frames import open_tiffs

from . import scans

DATA = scans.frames()


def test_a_folder_without_tiffs(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(SourceError, match=r"is a folder without TIFFs, it holds notes\.txt: give"):
        open_source(tmp_path)


def test_other_files_in_the_folder_are_passed_over(tmp_path):
    folder = scans.write_tiffs(tmp_path / "scan", DATA)
    (folder / "notes.txt").touch()
    (folder / "._p_4.tif").touch()
    with open_source(folder) as source:
        assert source.spec.shape == (9, 7, 11)


@pytest.mark.parametrize(
    ("names", "first", "second"),
    [
        (["p_0.0", "p_0.25", "p_0.5"], "p_0.5", "p_0.25"),
        (["p_-5", "p_0", "p_5"], "p_0", "p_-5"),
        (["-10", "-5"], "-5", "-10"),
    ],
)
def test_names_that_give_two_orders_are_refused(tmp_path, names, first, second):
    for name in names:
        tifffile.imwrite(tmp_path / f"{name}.tif", DATA[0])
    message = rf"{re.escape(first)}\.tif is before {re.escape(second)}\.tif if .* decimals or"
    with pytest.raises(SourceError, match=message):
        open_source(tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        ["1.1", "1.9", "1.10"],
        ["000.25", "000.50", "001.00"],
        ["scan-5", "scan-10"],
        ["2026-11-05", "2026-11-10"],
        ["v1.2_9", "v1.2_10"],
    ],
)
def test_names_that_give_one_order(tmp_path, names):
    for i, name in enumerate(names):
        tifffile.imwrite(tmp_path / f"{name}.tif", DATA[i])
    assert [file.stem for file in open_tiffs(tmp_path).files] == names


@pytest.mark.parametrize(
    ("names", "lost"),
    [
        (["p_0000", "p_0001", "p_0003", "p_0004"], r"1 \(2\)"),
        (["p_10", "p_20", "p_50", "p_60"], r"2 \(30, 40\)"),
        (["8_p1", "8_p2", "8_p3", "8_p4", "8_p5", "8_p10"], r"4 \(6, 7, 8, \.\.\.\)"),
    ],
)
def test_numbers_that_are_missing_are_warned_of(tmp_path, names, lost):
    for i, name in enumerate(names):
        tifffile.imwrite(tmp_path / f"{name}.tif", DATA[i])
    with pytest.warns(UserWarning, match=rf"among {names[0]}.tif to {names[-1]}.tif.* {lost}: "):
        open_tiffs(tmp_path)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "names", [["1", "01", "2"], ["a_5"], ["0", "7", "8"], ["0", "2", "4"], ["1", "2", "9" * 200]]
)
def test_numbers_that_are_no_count_are_not(tmp_path, names):
    for i, name in enumerate(names):
        tifffile.imwrite(tmp_path / f"{name}.tif", DATA[i])
    open_tiffs(tmp_path)


def test_a_scan_whose_name_only_begins_like_flats_is_not_taken_for_them(tmp_path):
    scans.write_tiffs(tmp_path / "scan_1", DATA)
    for name in ("opening_cell", "darker_rock", "reflections"):
        scans.write_tiffs(tmp_path / name, DATA)
    with open_source(tmp_path / "scan_1") as source:
        assert (source.flats, source.darks) == (None, None)
    for name in ("Flats_before", "darkfield"):
        scans.write_tiffs(tmp_path / name, DATA)
    with open_source(tmp_path / "scan_1") as source:
        assert source.flats.shape == source.darks.shape == (9, 7, 11)


def test_flats_beside_the_projections_are_warned_of(tmp_path):
    for name in ("flat_1", "flat_2", "p_1", "p_2", "p_10"):
        tifffile.imwrite(tmp_path / f"{name}.tif", DATA[0])
    with pytest.warns(UserWarning, match=r"names \(p_\*\.tif \(3\), flat_\*\.tif \(2\)\), and"):
        open_source(tmp_path).close()


def test_a_frame_of_another_size_is_named(tmp_path):
    folder = scans.write_tiffs(tmp_path / "scan", DATA)
    tifffile.imwrite(folder / "p_7.tif", np.zeros((7, 12), "u2"))
    with pytest.raises(SourceError, match=r"p_7\.tif: is 7x12 uint16, other than p_4\.tif"):
        open_source(folder)


def test_a_frame_of_another_dtype_is_named(tmp_path):
    folder = scans.write_tiffs(tmp_path / "scan", DATA)
    tifffile.imwrite(folder / "p_8.tif", np.zeros((7, 11), "u1"))
    with pytest.raises(SourceError, match=r"p_8\.tif: is 7x11 uint8"):
        open_source(folder)


def test_a_stack_within_a_folder(tmp_path):
    folder = scans.write_tiffs(tmp_path / "scan", DATA)
    scans.write_multipage(folder / "p_99.tif", DATA)
    with pytest.raises(SourceError, match=r"p_99\.tif: has 9 pages"):
        open_source(folder)


def test_colour(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((7, 11, 3), "u1"), photometric="rgb")
    with pytest.raises(SourceError, match=r"has shape \(7, 11, 3\).* convert it to grey"):
        open_source(tmp_path)


def test_a_single_image(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", DATA[0])
    with pytest.raises(SourceError, match="has one page, which is not a scan"):
        open_source(tmp_path / "a.tif")


def test_not_a_tiff(tmp_path):
    (tmp_path / "a.tif").write_bytes(b"no picture at all")
    with pytest.raises(SourceError, match=r"a\.tif: is not a TIFF, whatever its name"):
        open_source(tmp_path)


@pytest.mark.parametrize("n_whole", range(1, 9))
@pytest.mark.parametrize("options", [{}, {"bigtiff": True}, {"byteorder": ">"}])
def test_a_stack_that_is_cut_off_anywhere_is_no_shorter_stack(tmp_path, n_whole, options):
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path, **options) as file:
        for frame in scans.projections(DATA):
            file.write(frame, contiguous=False)
    with tifffile.TiffFile(path) as file:
        page = file.pages[n_whole]
        ends = [page.offset, page.offset + 30, page.dataoffsets[0], page.dataoffsets[0] + 10]
    whole = path.read_bytes()
    for end in ends:
        path.write_bytes(whole[:end])
        with pytest.raises(SourceError, match=r"a\.tif: is cut off"):
            open_source(path)


@pytest.mark.parametrize("size", range(1, 16))
def test_a_tiff_of_a_few_bytes(tmp_path, size):
    path = tmp_path / "a.tif"
    for head in (b"II*\0", b"MM\0*", b"II+\0\x08\0\0\0"):
        path.write_bytes((head + bytes([8] * 16))[:size])
        with pytest.raises(SourceError, match=r"a\.tif: "):
            open_source(path)


def test_a_cut_off_tiff(tmp_path):
    folder = scans.write_tiffs(tmp_path / "scan", DATA)
    file = folder / "p_9.tif"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(SourceError, match=r"p_9\.tif: is cut off"):
        open_source(folder)


def test_an_error_says_by_itself_what_is_wrong_with_a_tiff(tmp_path, caplog):
    path = scans.write_multipage(tmp_path / "a.tif", DATA)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match=r"a\.tif: is cut off or damaged after 5 pages"):
        open_source(path)
    path.write_bytes(b"II*\0" + b"\xfe" * 60)
    with pytest.raises(SourceError, match=r"a\.tif: is cut off or damaged after 0 pages"):
        open_source(path)
    assert not caplog.records


def test_a_tiff_that_goes_away_while_it_is_read(tmp_path):
    folder = scans.write_tiffs(tmp_path / "scan", DATA)
    with open_source(folder) as source:
        (folder / "p_9.tif").unlink()
        with pytest.raises(SourceError, match=r"p_9\.tif: cannot be read any more"):
            source.read(0, 0, 9, np.empty((9, 7, 11), "u2"))


def test_a_damaged_compressed_tiff(tmp_path):
    folder = scans.write_tiffs(tmp_path / "scan", DATA, compression="zlib")
    with tifffile.TiffFile(folder / "p_9.tif") as file:
        offset, size = file.pages[0].dataoffsets[0], file.pages[0].databytecounts[0]
    with (folder / "p_9.tif").open("r+b") as raw:
        raw.seek(offset)
        raw.write(b"\0" * size)
    with (
        open_source(folder) as source,
        pytest.raises(SourceError, match=r"p_9\.tif: page 0 cannot be decoded \(.*\)$"),
    ):
        source.read(0, 0, 9, np.empty((9, 7, 11), "u2"))


@pytest.mark.skipif(find_spec("imagecodecs") is not None, reason="has the codec")
def test_a_missing_codec_is_named(tmp_path):
    folder = scans.write_tiffs(tmp_path / "scan", DATA, compression="zlib")
    for file in folder.iterdir():
        with tifffile.TiffFile(file, mode="r+b") as opened:
            opened.pages[0].tags["Compression"].overwrite(tifffile.COMPRESSION.LZW)
    with (
        open_source(folder) as source,
        pytest.raises(SourceError, match=r"page 0 cannot be decoded .*imagecodecs"),
    ):
        source.read(0, 0, 9, np.empty((9, 7, 11), "u2"))


@pytest.mark.parametrize("name", ["a.npy", "a.tif", "a.nxs", "a.h5"])
def test_a_file_of_no_bytes(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(SourceError, match=f"{name}: is empty, a file of no bytes: copy it again"):
        open_source(tmp_path / name)


def test_masked_arrays_are_refused():
    masked = np.ma.masked_greater(DATA, 100)
    with pytest.raises(SourceError, match=r"array: is a masked array.* give array\.filled"):
        open_source(masked)
    with pytest.raises(SourceError, match="array flats: is a masked array"):
        ArrayScan(DATA, flats=masked)


@pytest.mark.parametrize("content", [b"\x93NUMPY", b"not an array at all" * 9])
def test_not_npy(tmp_path, content):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(SourceError, match=r"a\.npy: cannot be read as \.npy") as caught:
        open_source(tmp_path / "a.npy")
    assert "pickle" not in str(caught.value)


def test_a_cut_off_npy(tmp_path):
    path = scans.write_npy(tmp_path / "a.npy", DATA)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(SourceError, match="cut off"):
        open_source(path)


def test_an_npy_that_is_cut_off_after_it_was_opened(tmp_path):
    path = scans.write_npy(tmp_path / "a.npy", DATA)
    with open_source(path) as source:
        path.write_bytes(path.read_bytes()[:-50])
        with pytest.raises(SourceError, match=r"a\.npy: cannot be read any more \(the file ends"):
            source.read(0, 0, 9, np.empty((9, 7, 11), "u2"))


def test_python_objects_in_npy(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[[None]]]), allow_pickle=True)
    with pytest.raises(SourceError, match="Python objects"):
        open_source(tmp_path / "a.npy")


def test_an_archive_called_npy(tmp_path):
    with (tmp_path / "a.npy").open("wb") as file:
        np.savez(file, DATA)
    with pytest.raises(SourceError, match=r"is an \.npz archive"):
        open_source(tmp_path / "a.npy")


def test_npy_of_two_dims(tmp_path):
    np.save(tmp_path / "a.npy", DATA[0])
    with pytest.raises(SourceError, match=r"has shape \(7, 11\): a scan has three dims"):
        open_source(tmp_path / "a.npy")


def test_an_empty_folder(tmp_path):
    with pytest.raises(SourceError, match="without TIFFs, it is empty"):
        open_source(tmp_path)


@pytest.mark.parametrize("byteorder", ["<", ">"])
def test_only_the_first_of_like_files_is_looked_into(tmp_path, monkeypatch, byteorder):
    folder = scans.write_tiffs(tmp_path / "scan", DATA, byteorder=byteorder)
    opened = []
    original = tifffile.TiffFile
    monkeypatch.setattr(tifffile, "TiffFile", lambda path: opened.append(path) or original(path))
    with open_source(folder) as source:
        assert len(opened) == 1
        out = np.empty((9, 7, 11), "u2")
        source.read(0, 0, 9, out)
    np.testing.assert_array_equal(out, scans.projections(DATA))


def test_files_alike_but_for_what_follows_the_pixels(tmp_path):
    """A second page behind the pixels of the same size is not passed over."""
    folder = scans.write_tiffs(tmp_path / "scan", DATA)
    file = folder / "p_9.tif"
    with file.open("ab") as raw:
        raw.write(b"more")
    with open_source(folder) as source:
        assert source.spec.shape[0] == 9
    tifffile.imwrite(file, DATA[0], append=True)
    with pytest.raises(SourceError, match=r"p_9\.tif: has 2 pages"):
        open_source(folder)


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<u2', 'fortran_order': False, 'shape': (9, 7, 11",
        b"{'descr': '<u2', 'fortran_order': False, 'shape': (9, 7, '",
        b"{'descr': '<u3', 'fortran_order': False, 'shape': (9, 7, 11), }",
        b"{'descr': '<u2', 'fortran_order': False, 'shape': (2**63, 7, 11), }",
        b"{'descr': '<u2', 'fortran_order': False, 'shape': (%d, 7, 11), }" % 2**70,
        b"{'descr': '<u2', 'fortran_order': False, 'shape': (-9, 7, 11), }",
        b"{'descr': '<u2', 'fortran_order': 1, 'shape': (9, 7, 11), }",
        b"{'descr': '<u2',\0 'fortran_order': False, 'shape': (9, 7, 11), }",
        b"{'descr': ('<u2', 3), 'fortran_order': False, 'shape': (9, 7, 11), }",
        b"(" * 2000,
        b"L" * 10 + b"{",
    ],
)
def test_a_damaged_header_of_an_npy_file(tmp_path, header):
    path = tmp_path / "a.npy"
    text = header + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text + bytes(1386))
    with pytest.raises(SourceError, match=r"a\.npy: "):
        open_source(path)


def bomb(path, compress, compression, n_pages=3, declared=(64, 64), holds=2**27):
    """A TIFF whose second page stands for more than it says."""
    raw = np.zeros(declared, np.uint16)
    with tifffile.TiffWriter(path) as file:
        for page in range(n_pages):
            data = compress(bytes(holds)) if page == 1 else compress(raw.tobytes())
            file.write(
                iter([data]), shape=declared, dtype="u2", compression=compression,
                rowsperstrip=declared[0], contiguous=False,
            )  # fmt: skip


@pytest.mark.skipif(find_spec("imagecodecs") is not None, reason="imagecodecs bounds it")
@pytest.mark.parametrize(
    ("compress", "compression"),
    [(lambda data: zlib.compress(data, 9), "zlib"), (lzma.compress, "lzma")],
)
def test_a_page_that_inflates_to_more_than_its_pixels(tmp_path, compress, compression):
    path = tmp_path / "a.tif"
    bomb(path, compress, compression)
    with open_source(path) as source:
        out = np.empty(source.spec.shape, source.spec.dtype)
        tracemalloc.start()
        try:
            with pytest.raises(SourceError, match=r"page 1.* has more than 8192 bytes of pixels"):
                source.read(0, 0, 3, out)
            assert tracemalloc.get_traced_memory()[1] < 2**25
        finally:
            tracemalloc.stop()
        source.read(0, 0, 1, out[:1])
        assert not out[0].any()


def test_a_page_that_cannot_be_as_large_as_it_says(tmp_path):
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as file:
        for _ in range(2):
            file.write(
                iter([zlib.compress(bytes(8192), 9)]), shape=(40_000, 40_000), dtype="u2",
                compression="zlib", rowsperstrip=40_000, contiguous=False,
            )  # fmt: skip
    with pytest.raises(SourceError, match=r"page 0 has \d+ bytes, which cannot be 3200000000"):
        open_source(path)


def test_a_compression_of_several_numbers(tmp_path):
    path = tmp_path / "a.tif"
    scans.write_multipage(path, DATA)
    with tifffile.TiffFile(path) as file:
        at = file.pages[0].tags["Compression"].offset
    data = bytearray(path.read_bytes())
    data[at + 4] = 2  # how many numbers there are
    path.write_bytes(data)
    with pytest.raises(SourceError, match="page 0 is damaged: its sizes are no numbers"):
        open_source(path)


def test_a_file_that_is_cut_while_it_is_read_is_said(tmp_path, monkeypatch):
    """Without a map of the data: a read of one past the end of its file ends the process."""
    path = tmp_path / "scan.npy"
    data = scans.frames("uint16")
    np.save(path, data)
    frames = NpyFrames(path)
    monkeypatch.setattr("mmap.mmap", None)
    part = [np.arange(len(data)), *((0, n) for n in data.shape[1:])]
    out = np.empty(data.shape, data.dtype)
    frames.read(*part, out)
    np.testing.assert_array_equal(out, data)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(SourceError, match="cannot be read any more"):
        frames.read(*part, out)


def test_an_npy_file_in_fortran_order_is_refused_with_what_to_do(tmp_path):
    np.save(tmp_path / "a.npy", np.asfortranarray(DATA))
    with pytest.raises(SourceError, match=r"a\.npy: is in Fortran order.*ascontiguousarray"):
        open_source(tmp_path / "a.npy")

"""TIFFs and ``.npy`` files that are no scan, or are damaged, and names of files in folders."""

from __future__ import annotations

import lzma
import re
import tracemalloc
import zlib
from importlib.util import find_spec

import numpy as np
import pytest
import tifffile

from maxslices.errors import SourceError
from maxslices.io import ArrayScan, open_source
from maxslices.io.tiff.frames import open_tiffs

from . import scans
from .scans import refused

DATA = scans.frames()


def write_names(folder, names):
    for i, name in enumerate(names):
        tifffile.imwrite(folder / f"{name}.tif", DATA[i])


# Names


@pytest.mark.parametrize(
    ("names", "first", "second"),
    [
        (["p_0.0", "p_0.25", "p_0.5"], "p_0.5", "p_0.25"),
        (["p_-5", "p_0", "p_5"], "p_0", "p_-5"),
    ],
)
def test_names_that_give_two_orders_are_refused(tmp_path, names, first, second):
    write_names(tmp_path, names)
    order = rf"{re.escape(first)}\.tif is before {re.escape(second)}\.tif if .* decimals or"
    refused(tmp_path, order)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "names",
    [
        ["1.1", "1.9", "1.10"],
        ["2026-11-05", "2026-11-06"],
        ["a_5"],
        ["0", "7", "8"],
        ["0", "2", "4"],
        ["1", "2", "9" * 200],
    ],
)
def test_names_that_give_one_order_and_are_not_a_count_with_gaps(tmp_path, names):
    write_names(tmp_path, names)
    assert [file.stem for file in open_tiffs(tmp_path).files] == names


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["p_0000", "p_0001", "p_0003", "p_0004"], r"among p_0000.tif to p_0004.tif.* 1 \(2\): "),
        (["p_10", "p_20", "p_50", "p_60"], r" 2 \(30, 40\): "),
        (["8_p1", "8_p2", "8_p3", "8_p4", "8_p5", "8_p10"], r" 4 \(6, 7, 8, \.\.\.\): "),
        (["flat_1", "flat_2", "p_1", "p_2", "p_10"], r"names \(p_\*\.tif \(3\), flat_\*\.tif \(2"),
    ],
)
def test_numbers_that_are_missing_and_two_kinds_of_names_are_warned_of(tmp_path, names, message):
    write_names(tmp_path, names)
    with pytest.warns(UserWarning, match=message):
        open_tiffs(tmp_path)


def test_a_scan_whose_name_only_begins_like_flats_is_not_taken_for_them(tmp_path):
    scans.write_tiffs(tmp_path / "scan_1", DATA)
    for name in ("opening_cell", "darker_rock", "reflections"):
        scans.write_tiffs(tmp_path / name, DATA)
    with open_source(tmp_path / "scan_1") as source:
        assert (source.flats, source.darks) == (None, None)
    for name in ("Flats_before", "flats_after", "darkfield"):
        scans.write_tiffs(tmp_path / name, DATA)
    with open_source(tmp_path / "scan_1") as source:
        assert (source.flats.shape[0], source.darks.shape[0]) == (18, 9)


def test_other_files_in_the_folder_are_passed_over(tmp_path):
    folder = scans.write_tiffs(tmp_path / "scan", DATA)
    (folder / "notes.txt").touch()
    (folder / "._p_4.tif").touch()
    np.testing.assert_array_equal(scans.whole(folder), scans.projections(DATA))


# Folders and files that are no scan


def cut(path, n_bytes=20):
    path.write_bytes(path.read_bytes()[:-n_bytes])


FOLDERS = {
    "empty": (lambda folder: None, "without TIFFs, it is empty"),
    "notes": (lambda folder: (folder / "notes.txt").touch(), r"it holds notes\.txt: give"),
    "text": (
        lambda folder: (folder / "p_4.tif").write_bytes(b"no picture at all"),
        r"p_4\.tif: is not a TIFF, in spite of its name",
    ),
    "colour": (
        lambda folder: tifffile.imwrite(
            folder / "p_4.tif", np.zeros((7, 11, 3), "u1"), photometric="rgb"
        ),
        r"has shape \(7, 11, 3\).* convert it to grey",
    ),
    "other size": (
        lambda folder: tifffile.imwrite(folder / "p_9.tif", np.zeros((7, 12), "u2")),
        r"p_9\.tif: is 7x12 uint16, other than p_4\.tif",
    ),
    "stack": (
        lambda folder: scans.write_multipage(folder / "p_99.tif", DATA),
        r"p_99\.tif: has 9 pages",
    ),
    "second page behind the pixels": (
        lambda folder: tifffile.imwrite(folder / "p_9.tif", DATA[0], append=True),
        r"p_9\.tif: has 2 pages",
    ),
    "cut": (lambda folder: cut(folder / "p_9.tif"), r"p_9\.tif: is cut off"),
}
"""What is in a folder -> how it comes there, and what is said of it."""


@pytest.mark.parametrize("what", FOLDERS)
def test_folders_that_are_no_scan(tmp_path, what):
    spoil, message = FOLDERS[what]
    folder = tmp_path / "scan"
    if what in ("empty", "notes", "text", "colour"):
        folder.mkdir()
    else:
        scans.write_tiffs(folder, DATA)
    spoil(folder)
    with pytest.raises(SourceError, match=message):
        open_source(folder)


@pytest.mark.parametrize("n_whole", [1, 4, 8])
@pytest.mark.parametrize("options", [{}, {"bigtiff": True}, {"byteorder": ">"}])
def test_a_stack_that_is_cut_off_anywhere_is_no_shorter_stack(tmp_path, n_whole, options, caplog):
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path, **options) as file:
        for frame in scans.projections(DATA):
            file.write(frame, contiguous=False)
    with tifffile.TiffFile(path) as file:
        page = file.pages[n_whole]
        ends = [page.offset, page.offset + 30, page.dataoffsets[0], page.dataoffsets[0] + 10]
    content = path.read_bytes()
    for end in ends:
        path.write_bytes(content[:end])
        refused(path, r"a\.tif: is cut off")
    assert not caplog.records  # the error says it by itself


@pytest.mark.parametrize("head", [b"II*\0", b"MM\0*", b"II+\0\x08\0\0\0"])
def test_a_tiff_of_a_few_bytes(tmp_path, head):
    path = tmp_path / "a.tif"
    for size in range(1, 16):
        path.write_bytes((head + bytes([8] * 16))[:size])
        refused(path)


def test_a_single_image(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", DATA[0])
    refused(tmp_path / "a.tif", "has one page, which is not a scan")


@pytest.mark.parametrize("byteorder", ["<", ">"])
def test_only_the_first_of_like_files_is_looked_into(tmp_path, monkeypatch, byteorder):
    folder = scans.write_tiffs(tmp_path / "scan", DATA, byteorder=byteorder)
    opened = []
    original = tifffile.TiffFile
    monkeypatch.setattr(tifffile, "TiffFile", lambda path: opened.append(path) or original(path))
    np.testing.assert_array_equal(scans.whole(folder), scans.projections(DATA))
    assert len(opened) == 1


def test_a_tiff_that_goes_away_while_it_is_read(tmp_path):
    folder = scans.write_tiffs(tmp_path / "scan", DATA)
    with open_source(folder) as source:
        (folder / "p_9.tif").unlink()
        with pytest.raises(SourceError, match=r"p_9\.tif: cannot be read any more"):
            scans.whole(source)


# Compressed pages


def test_a_damaged_compressed_tiff(tmp_path):
    folder = scans.write_tiffs(tmp_path / "scan", DATA, compression="zlib")
    with tifffile.TiffFile(folder / "p_9.tif") as file:
        offset, size = file.pages[0].dataoffsets[0], file.pages[0].databytecounts[0]
    with (folder / "p_9.tif").open("r+b") as raw:
        raw.seek(offset)
        raw.write(b"\0" * size)
    with pytest.raises(SourceError, match=r"p_9\.tif: page 0 cannot be decoded \(.*\)$"):
        scans.whole(folder)


@pytest.mark.skipif(find_spec("imagecodecs") is not None, reason="has the codec")
def test_a_missing_codec_is_named(tmp_path):
    folder = scans.write_tiffs(tmp_path / "scan", DATA, compression="zlib")
    for file in folder.iterdir():
        with tifffile.TiffFile(file, mode="r+b") as opened:
            opened.pages[0].tags["Compression"].overwrite(tifffile.COMPRESSION.LZW)
    with pytest.raises(SourceError, match=r"page 0 cannot be decoded .*imagecodecs"):
        scans.whole(folder)


@pytest.mark.skipif(find_spec("imagecodecs") is not None, reason="imagecodecs bounds it")
@pytest.mark.parametrize(
    ("compress", "compression"),
    [(lambda data: zlib.compress(data, 9), "zlib"), (lzma.compress, "lzma")],
)
def test_a_page_that_inflates_to_more_than_its_pixels(tmp_path, compress, compression):
    path, shape = tmp_path / "a.tif", (64, 64)
    with tifffile.TiffWriter(path) as file:
        for n_bytes in (8192, 2**27, 8192):
            file.write(
                iter([compress(bytes(n_bytes))]), shape=shape, dtype="u2", rowsperstrip=64,
                compression=compression, contiguous=False,
            )  # fmt: skip
    with open_source(path) as source:
        tracemalloc.start()
        try:
            with pytest.raises(SourceError, match=r"page 1.* has more than 8192 bytes of pixels"):
                scans.whole(source)
            assert tracemalloc.get_traced_memory()[1] < 2**25
        finally:
            tracemalloc.stop()
        out = np.empty((1, *shape), "u2")
        source.read(0, 0, 1, out)
        assert not out.any()


def test_a_page_that_cannot_be_as_large_as_it_says(tmp_path):
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as file:
        for _ in range(2):
            file.write(
                iter([zlib.compress(bytes(8192), 9)]), shape=(40_000, 40_000), dtype="u2",
                compression="zlib", rowsperstrip=40_000, contiguous=False,
            )  # fmt: skip
    refused(path, r"page 0 has \d+ bytes, which cannot be 3200000000")


def test_a_compression_of_several_numbers(tmp_path):
    path = scans.write_multipage(tmp_path / "a.tif", DATA)
    with tifffile.TiffFile(path) as file:
        at = file.pages[0].tags["Compression"].offset
    data = bytearray(path.read_bytes())
    data[at + 4] = 2  # how many numbers there are
    path.write_bytes(data)
    refused(path, "page 0 is damaged: its sizes are not numbers")


# Arrays


def npy(header, n_bytes=1386):
    text = header + b"\n"
    return b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text + bytes(n_bytes)


def saved(array, save=np.save):
    def write(path):
        with path.open("wb") as file:
            save(file, array)

    return write


ARRAYS = {
    "text": (lambda path: path.write_bytes(b"not an array" * 9), r"cannot be read as \.npy"),
    "cut off": (lambda path: (saved(DATA)(path), cut(path)), "cut off"),
    "objects": (saved(np.array([[[None]]])), "Python objects"),
    "archive": (saved(DATA, np.savez), r"is an \.npz archive"),
    "one frame": (saved(DATA[0]), r"has shape \(7, 11\): a scan has three dims"),
    "Fortran order": (saved(np.asfortranarray(DATA)), r"Fortran order.*ascontiguousarray"),
    **{
        f"header {number}": (lambda path, header=header: path.write_bytes(npy(header)), "")
        for number, header in enumerate(
            [
                b"{'descr': '<u2', 'fortran_order': False, 'shape': (9, 7, 11",
                b"{'descr': '<u3', 'fortran_order': False, 'shape': (9, 7, 11), }",
                b"{'descr': '<u2', 'fortran_order': False, 'shape': (%d, 7, 11), }" % 2**70,
                b"{'descr': '<u2', 'fortran_order': False, 'shape': (-9, 7, 11), }",
                b"{'descr': '<u2',\0 'fortran_order': False, 'shape': (9, 7, 11), }",
                b"(" * 2000,
            ]
        )
    },
}
"""What an ``.npy`` file is -> how it is written, and what is said of it."""


@pytest.mark.parametrize("what", ARRAYS)
def test_npy_files_that_are_no_scan(tmp_path, what):
    write, message = ARRAYS[what]
    write(tmp_path / "a.npy")
    assert "pickle" not in refused(tmp_path / "a.npy", message)


def test_masked_arrays_are_refused():
    masked = np.ma.masked_greater(DATA, 100)
    with pytest.raises(SourceError, match=r"array: is a masked array.* give array\.filled"):
        open_source(masked)
    with pytest.raises(SourceError, match="array flats: is a masked array"):
        ArrayScan(DATA, flats=masked)

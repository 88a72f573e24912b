"""Parts of TIFFs that stand for more than the file says: found before memory is taken for them."""

from __future__ import annotations

import lzma
import math
import zlib
from importlib.util import find_spec

import numpy as np
import tifffile

from ...errors import SourceError

_DEFLATE, _LZMA, _PACKBITS = (8, 32946), 34925, 32773
"""Numbers of these compressions in a TIFF."""
_MOST_FOLD = {**dict.fromkeys(_DEFLATE, 1032), _PACKBITS: 64}
"""Most bytes that one byte stands for: 258 in two bits of deflate; 128 in two bytes of PackBits."""
_SPARE_BYTES = 2**25
"""What a part may take beyond its pixels unseen: less than a look at every part would cost."""
_PIECE_BYTES = 2**20
"""Bytes that are decompressed at a time when they are only counted."""


def check_stored(name: str, page: tifffile.TiffPage) -> None:
    """Check that the bytes of a page can be as many pixels as it says.

    Raises
    ------
    SourceError
        If not: memory for them would be taken in vain.
    """
    fold = _MOST_FOLD.get(int(page.compression))
    pixel_bytes = math.prod(page.shape) * np.dtype(page.dtype).itemsize
    if fold is not None and pixel_bytes > fold * (sum(page.databytecounts) + 64):
        raise SourceError(
            f"{name} has {sum(page.databytecounts)} bytes, which cannot be {pixel_bytes} bytes of "
            "pixels: it is damaged; copy it again"
        )


def check_inflated(name: str, file: tifffile.TiffFile, page: tifffile.TiffPage) -> None:
    """Check that no part of a page decompresses to more than its pixels.

    The package imagecodecs stops there by itself. What tifffile has in its place does not, so parts
    that could take much more are decompressed piece by piece and counted.

    Raises
    ------
    SourceError
        If one does.
    zlib.error, lzma.LZMAError
        If one cannot be decompressed.
    """
    compression = int(page.compression)
    if compression not in (*_DEFLATE, _LZMA) or find_spec("imagecodecs") is not None:
        return
    most = math.prod(page.chunks) * np.dtype(page.dtype).itemsize
    for offset, n_bytes in zip(page.dataoffsets, page.databytecounts, strict=False):
        if _MOST_FOLD.get(compression, math.inf) * n_bytes <= most + _SPARE_BYTES:
            continue
        file.filehandle.seek(offset)
        data = file.filehandle.read(n_bytes)
        if _inflates_beyond(data, most, is_deflate=compression in _DEFLATE):
            raise SourceError(
                f"{name}: the part at byte {offset} has more than {most} bytes of pixels: it is "
                "damaged; copy it again"
            )


def _inflates_beyond(data: bytes, most: int, *, is_deflate: bool) -> bool:
    """True if data decompress to more than `most` bytes."""
    counted = 0
    if is_deflate:
        inflater = zlib.decompressobj()
        while data and not inflater.eof and counted <= most:
            counted += len(inflater.decompress(data, _PIECE_BYTES))
            data = inflater.unconsumed_tail
        return counted > most
    unpacker = lzma.LZMADecompressor()
    counted = len(unpacker.decompress(data, _PIECE_BYTES))
    while not (unpacker.eof or unpacker.needs_input) and counted <= most:
        counted += len(unpacker.decompress(b"", _PIECE_BYTES))
    return counted > most

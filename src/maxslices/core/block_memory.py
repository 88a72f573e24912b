"""The account of a block on its way: every piece of memory that the runner holds beside methods.

All sizes of the runner are written here, once, as arithmetic on integers. The planner sums
them; the runner allocates by them and has no sizes of its own. A test runs the runner on a
simulated device and compares each of its allocations with this account.

::

    file -> read staging -> input buffer -> methods -> result -> result staging -> file
            host, pinned    device                     device    host, pinned

On the CPU the device is the host: there is no staging, blocks are read straight into the input
buffers, and results are written from where methods left them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .allocators import Device

Between = Literal["device", "memory", "scratch file"]
"""Where data are between two sections, the nearest first."""
Origin = Between | Literal["scan"]
"""Where a section's data come from."""
Destination = Between | Literal["result", "nothing"]
"""Where a section's output goes; "nothing" where only side results are wanted."""

InputWay = Literal["in place", "on the device", "copied", "staged", "read"]
"""Way of a block to the methods.

"in place"
    Methods are given the array where it lies: no memory.
"on the device"
    The block is copied out of an array on the device when its turn comes: it is the first
    method's input, which the method's own model counts.
"copied"
    The device copies it from where it lies on the host into an input buffer.
"staged"
    It is read into read staging, and copied from there into an input buffer.
"read"
    On the CPU: it is read into an input buffer.
"""

OutputWay = Literal["dropped", "on the device", "copied", "staged", "written"]
"""Way of a result from the methods.

"dropped"
    Nobody wants it.
"on the device"
    It is copied to its place in an array on the device, before the next block is worked on.
"copied"
    The device copies it to its place on the host.
"staged"
    The device copies it piece by piece to result staging, from where it is written.
"written"
    On the CPU: it is written from where it lies.
"""

INPUT_BLOCKS = 2
"""Blocks of input held at a time: one is worked on while the next one arrives. A third would only
help where blocks take turns to be slow, and costs as much memory as a method's input."""

RESULT_PIECES = 3
"""Pieces of result staging: one is written, one is copied to, and one waits in between. With two,
the link stood still whenever the writer took longer than a copy."""

LONE_RESULT_PIECES = 2
"""Pieces of result staging where nothing overlaps with computing: one is written while the other is
copied to."""

RESULT_PIECE_BYTES = 2**28
"""Largest piece of result staging. Smaller ones leave threads idle that write; two pieces of a
whole result (3.4 GB each, LPRec3d with 128 slices on an H200, 2026-11-21) took 0.18 s each to
pin, and nothing was written before all of it was copied."""

SHARED_PIECE_BYTES = RESULT_PIECE_BYTES // 2
"""The same where several processes write beside each other. Dark/flat and minus-log on four H200s
(15 GB in, 30 GB out) took 2.6 to 2.8 s to HDF5 with whole pieces, 2.6 with halves and 3.2 with
quarters, to TIFF 1.5 to 1.9, 1.5 and 1.7 s; with halves four took 1.7 GB less (2026-11-27)."""

UPLOAD_PIECE_BYTES = 2**24
"""Pinned memory through which flats and darks go to a GPU, piece by piece: 210 MB took 8 ms in
such pieces, 42 ms from pageable memory (H200, 2026-11-21). Smaller arrays
are copied as a whole."""

UPLOAD_PIECES = 2
"""Number of these pieces: one is filled while the other is copied."""

THREAD_BUFFER_BYTES = 2**20
"""Buffer of a reading or writing thread, for rows that cannot go straight to their place; small
enough to stay in the processor's cache."""

PYTHON_BYTES = 9 * 2**19
"""Memory of Python itself on the host during a section: file handles, two or three threads with
what the C library keeps for each, pages of libraries, and modules that methods import when first
called. By the kernel's count forty random runs took 0 to 4.0 MB beside their arrays (2026-11-24);
tracemalloc, which does not see libraries and heaps, says 0.3 to 1.4 MB."""

CONTEXT_BYTES = 576 * 2**20
"""CUDA's context if none was measured, and an upper bound to what a measurement may say. An H200
with CUDA 13 takes 524 MiB (2026-11-21), once 527; this is a tenth more. The context grows with a
card's multiprocessors, and few cards have more than the 132 of an H200."""

MODULES_BYTES = 128 * 2**20
"""Libraries that are loaded into a context later, when a method first needs them. On an H200 with
CUDA 13 streams took 2 MiB, cuFFT 14, cuBLAS with its workspace 68, cuSOLVER 96; all methods of the
pack in one program 84, those for torch 104, httomolibgpu's 18, and 20 with ASTRA."""

UNMEASURED_RESERVE_BYTES = CONTEXT_BYTES + MODULES_BYTES
"""Part of a GPU's budget that is set aside where no context was measured."""

ROOMY = 3
"""Multiple of the estimated peak that must be available for a pool to keep what it holds between
blocks: some is lost between its pieces, and libraries take memory beside it."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """Pieces of memory of one size."""

    count: int
    """Number of pieces."""
    n_bytes: int
    """Bytes of one piece."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all pieces."""
        return self.count * self.n_bytes


@dataclass(frozen=True, slots=True)
class ResultStaging:
    """Pieces that a result is cut into, and the pinned memory that they go through."""

    n_slices: int
    """Slices in a piece."""
    usual: Buffers
    """Pieces that exist while results leave beside blocks that are worked on."""
    most: Buffers
    """Pieces that exist if a whole result must leave before the next method may run."""


def input_way(device: Device, origin: Origin, slice_dim: int, *, in_memory: bool) -> InputWay:
    """Way of blocks from where the data are to the methods.

    Parameters
    ----------
    device : {"cuda", "cpu"}
        Where methods run.
    origin : str
        Where the data are.
    slice_dim : int
        Axis of the slices. On the CPU slices along axis 1 have gaps between them in memory, so
        they are read into a buffer. (A block of all slices has none, and is used in place; a
        buffer is counted for it all the same.)
    in_memory : bool
        For a scan: whether the device can use, or copy, blocks from where they lie.
    """
    if origin == "device":
        return "on the device"
    lies = in_memory if origin == "scan" else origin == "memory"
    if device == "cpu":
        return "in place" if lies and slice_dim == 0 else "read"
    return "copied" if lies else "staged"


def output_way(device: Device, destination: Destination, *, in_memory: bool) -> OutputWay:
    """Way of a section's output to its place.

    Parameters
    ----------
    in_memory : bool
        Whether the device can copy to the place by itself. Files have no such place.
    """
    if destination == "nothing":
        return "dropped"
    if destination == "device":
        return "on the device"
    if device == "cpu":
        return "written"
    return "copied" if in_memory and destination == "memory" else "staged"


def input_buffers(way: InputWay, block_bytes: int, *, overlaps: bool, n_blocks: int) -> Buffers:
    """Buffers on the device that blocks are copied or read to.

    Parameters
    ----------
    way : str
        How they come.
    block_bytes : int
        The largest block, its halo included.
    overlaps : bool
        Whether a block may come while another is worked on.
    n_blocks : int
        Number of blocks.
    """
    if way in ("in place", "on the device"):
        return Buffers(0, block_bytes)
    return Buffers(min(INPUT_BLOCKS if overlaps else 1, n_blocks), block_bytes)


def read_staging(way: InputWay, block_bytes: int, *, overlaps: bool, n_blocks: int) -> Buffers:
    """Pinned host memory that blocks are read to before they are copied to the device.

    One for each input buffer: a block is read while the one before it is copied.
    """
    if way != "staged":
        return Buffers(0, block_bytes)
    return input_buffers(way, block_bytes, overlaps=overlaps, n_blocks=n_blocks)


def result_staging(
    n_slices: int, slice_bytes: int, *, overlaps: bool, is_shared: bool = False
) -> ResultStaging:
    """Pinned host memory that results are copied to before they are written.

    Parameters
    ----------
    n_slices : int
        Slices of the largest result, without halo.
    slice_bytes : int
        Bytes of one of its slices.
    overlaps : bool
        Whether results may leave while blocks are worked on.
    is_shared : bool
        Whether other processes write other blocks of the same result.
    """
    # At least two pieces a result: one is written while the other is copied.
    most_bytes = SHARED_PIECE_BYTES if is_shared else RESULT_PIECE_BYTES
    piece = min(-(-n_slices // 2), max(1, most_bytes // slice_bytes))
    usual = RESULT_PIECES if overlaps else LONE_RESULT_PIECES
    most = max(usual, -(-n_slices // piece) + 1) if overlaps else usual
    n_bytes = piece * slice_bytes
    return ResultStaging(piece, Buffers(usual, n_bytes), Buffers(most, n_bytes))


def upload_staging(n_bytes: int) -> Buffers:
    """Pinned host memory through which an array other than a block goes to the device."""
    piece = min(n_bytes, UPLOAD_PIECE_BYTES)
    return Buffers(min(UPLOAD_PIECES, -(-n_bytes // piece)) if n_bytes else 0, piece)


def thread_buffer_bytes(slice_dim: int, block_bytes: int, n_threads: int) -> int:
    """Bytes of the buffers of threads that read or write a block: at most one each.

    Projections (axis 0) lie in a file as they do in memory, and need none. What threads hold while
    they decompress chunks (at most 512 MiB, see `maxslices.io.hdf5.chunks`) is not included.
    """
    return min(block_bytes, n_threads * THREAD_BUFFER_BYTES) if slice_dim == 1 else 0


def is_roomy(estimated_bytes: int, available_bytes: int) -> bool:
    """True if the device's pool may keep what it holds between blocks."""
    return ROOMY * estimated_bytes <= available_bytes

"""The account of a block: all memory that the runner allocates in addition to the methods'.

All sizes of the runner are defined here, once, as arithmetic on integers. The planner sums them,
and the runner allocates by them. A test runs the runner on a simulated device and compares each
allocation with this account.

::

    file -> read staging -> input buffer -> methods -> result -> result staging -> file
            host, pinned    device                     device    host, pinned

On the CPU the device is the host. Blocks are then read into the input buffers without staging, and
results are written from the arrays that methods return.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .allocators import Device

Between = Literal["device", "memory", "scratch file"]
"""Where data are between two sections, from nearest to farthest."""
Origin = Between | Literal["scan"]
"""Origin of a section's data."""
Destination = Between | Literal["result", "nothing"]
"""Destination of a section's output: "nothing" if only its side results are needed."""

InputWay = Literal["in place", "on the device", "copied", "staged", "read"]
"""How a block reaches the methods.

"in place"
    Methods receive a view of the array, which takes no memory.
"on the device"
    The block is copied from an array on the device. It is the first method's input, which the
    method's own model counts.
"copied"
    The device copies it from the host array into an input buffer.
"staged"
    It is read into read staging, and copied from there into an input buffer.
"read"
    On the CPU, it is read into an input buffer.
"""

OutputWay = Literal["dropped", "on the device", "copied", "staged", "written"]
"""How a result leaves the methods.

"dropped"
    It is not needed.
"on the device"
    It is copied into an array on the device before the next block is processed.
"copied"
    The device copies it into an array on the host.
"staged"
    The device copies it piece by piece to result staging, from where it is written.
"written"
    On the CPU, it is written from the array that the method returned.
"""

INPUT_BLOCKS = 2
"""Input blocks in memory: one is processed while the next one arrives. A third would help only if
the time per block varies, and takes as much memory as a method's input."""

RESULT_PIECES = 3
"""Pieces of result staging: one is written, one is copied to, and one waits in between. With two,
the link was idle whenever writing took longer than copying."""

LONE_RESULT_PIECES = 2
"""Pieces of result staging if nothing overlaps with computing: one is written while the other one
is copied to."""

RESULT_PIECE_BYTES = 2**28
"""Largest piece of result staging. With smaller ones writing threads are idle. Two pieces of a
whole result (3.4 GB each, LPRec3d with 128 slices on an H200, 2026-11-21) took 0.18 s each to pin,
and writing started only when all of it was copied."""

SHARED_PIECE_BYTES = RESULT_PIECE_BYTES // 2
"""Largest piece if several processes write at the same time. Dark/flat and minus-log on four H200s
(15 GB in, 30 GB out) took 2.6 to 2.8 s to HDF5 with whole pieces, 2.6 s with halves and 3.2 s with
quarters. To TIFF it was 1.5 to 1.9, 1.5 and 1.7 s. With halves all four together took 1.7 GB less
(2026-11-27)."""

UPLOAD_PIECE_BYTES = 2**24
"""Piece of pinned memory through which flats and darks are copied to a GPU. 210 MB took 8 ms in
such pieces, and 42 ms from pageable memory (H200, 2026-11-21). Smaller arrays are copied as a
whole."""

UPLOAD_PIECES = 2
"""Number of these pieces: one is filled while the other one is copied."""

THREAD_BUFFER_BYTES = 2**20
"""Buffer of a reading or writing thread, for rows that need a copy. It is small enough for the
processor's cache."""

PYTHON_BYTES = 9 * 2**19
"""Host memory of Python itself during a section: file handles, two or three threads and their
heaps, pages of libraries, and modules that methods import. By the kernel's count forty random runs
took 0 to 4.0 MB in addition to their arrays (2026-11-24). tracemalloc, which does not see libraries
and heaps, reports 0.3 to 1.4 MB."""

CONTEXT_BYTES = 576 * 2**20
"""Size of CUDA's context if it was not measured, and the largest measurement that is accepted. On
an H200 with CUDA 13 it takes 524 MiB (2026-11-21), once 527. This is a tenth more. The context
grows with the number of multiprocessors, and few GPUs have more than the 132 of an H200."""

MODULES_BYTES = 128 * 2**20
"""Libraries that are loaded into the context when a method first needs them. On an H200 with CUDA
13 streams took 2 MiB, cuFFT 14, cuBLAS with its workspace 68, and cuSOLVER 96. All methods of
maxslices-methods in one program took 84 MiB, those for torch 104, those of httomolibgpu 18, and 20
with ASTRA."""

UNMEASURED_RESERVE_BYTES = CONTEXT_BYTES + MODULES_BYTES
"""Part of a GPU's budget that is reserved if the context was not measured."""

ROOMY = 3
"""A pool keeps freed memory between blocks if this multiple of the estimated peak is available.
Fragmentation of the pool and libraries outside of it need the rest."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """Pieces of memory of equal size."""

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
    """Pieces that a result is cut into, and the pinned memory for them."""

    n_slices: int
    """Slices in a piece."""
    usual: Buffers
    """Pieces that exist while results leave and blocks are processed."""
    most: Buffers
    """Pieces that exist if a whole result must leave before the next method can run."""


def input_way(device: Device, origin: Origin, slice_dim: int, *, in_memory: bool) -> InputWay:
    """How blocks reach the methods.

    Parameters
    ----------
    device : {"cuda", "cpu"}
        Where methods run.
    origin : str
        Where the data are.
    slice_dim : int
        Axis of the slices. On the CPU slices along axis 1 are not contiguous, so they are read
        into a buffer. This buffer is also counted for a block of all slices, which is contiguous
        and used in place.
    in_memory : bool
        For a scan: whether it is an array that the device can use, or copy from.
    """
    if origin == "device":
        return "on the device"
    is_array = in_memory if origin == "scan" else origin == "memory"
    if device == "cpu":
        return "in place" if is_array and slice_dim == 0 else "read"
    return "copied" if is_array else "staged"


def output_way(device: Device, destination: Destination, *, in_memory: bool) -> OutputWay:
    """How a section's output leaves the methods.

    Parameters
    ----------
    in_memory : bool
        Whether the destination is an array that the device can copy to.
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
        How blocks reach the methods.
    block_bytes : int
        Bytes of the largest block, including its halo.
    overlaps : bool
        Whether a block may arrive while another one is processed.
    n_blocks : int
        Number of blocks.
    """
    if way in ("in place", "on the device"):
        return Buffers(0, block_bytes)
    return Buffers(min(INPUT_BLOCKS if overlaps else 1, n_blocks), block_bytes)


def read_staging(way: InputWay, block_bytes: int, *, overlaps: bool, n_blocks: int) -> Buffers:
    """Pinned host memory into which blocks are read before they are copied to the device.

    Each input buffer has one, so a block is read while the previous one is copied.
    """
    if way != "staged":
        return Buffers(0, block_bytes)
    return input_buffers(way, block_bytes, overlaps=overlaps, n_blocks=n_blocks)


def result_staging(
    n_slices: int, slice_bytes: int, *, overlaps: bool, is_shared: bool = False
) -> ResultStaging:
    """Pinned host memory into which results are copied before they are written.

    Parameters
    ----------
    n_slices : int
        Slices of the largest result, without halo.
    slice_bytes : int
        Bytes of one of its slices.
    overlaps : bool
        Whether results may leave while blocks are processed.
    is_shared : bool
        Whether other processes write other blocks of the same result.
    """
    # A result has at least two pieces: one is written while the other one is copied.
    most_bytes = SHARED_PIECE_BYTES if is_shared else RESULT_PIECE_BYTES
    piece = min(-(-n_slices // 2), max(1, most_bytes // slice_bytes))
    usual = RESULT_PIECES if overlaps else LONE_RESULT_PIECES
    most = max(usual, -(-n_slices // piece) + 1) if overlaps else usual
    n_bytes = piece * slice_bytes
    return ResultStaging(piece, Buffers(usual, n_bytes), Buffers(most, n_bytes))


def upload_staging(n_bytes: int) -> Buffers:
    """Pinned host memory through which other arrays than blocks are copied to the device."""
    piece = min(n_bytes, UPLOAD_PIECE_BYTES)
    return Buffers(min(UPLOAD_PIECES, -(-n_bytes // piece)) if n_bytes else 0, piece)


def thread_buffer_bytes(slice_dim: int, block_bytes: int, n_threads: int) -> int:
    """Bytes of the buffers of threads that read or write a block, at most one for each thread.

    Projections (axis 0) need no buffers, because files store them as memory does. The memory of
    threads that decompress chunks (at most 512 MiB, see `maxslices.io.hdf5.chunks`) is not
    included.
    """
    return min(block_bytes, n_threads * THREAD_BUFFER_BYTES) if slice_dim == 1 else 0


def is_roomy(estimated_bytes: int, available_bytes: int) -> bool:
    """True if the device's pool may keep freed memory between blocks."""
    return ROOMY * estimated_bytes <= available_bytes

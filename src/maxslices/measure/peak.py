"""Figures of a measurement: the peak, and the allocations alive then."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.allocators import CUDA_GRANULE_BYTES, Device
from ..core.units import format_bytes
from .allocation_sequence import Alive, AllocationSequence


@dataclass(frozen=True, slots=True)
class OutsideReading:
    """A GPU's memory outside CuPy's pool at one moment."""

    n_events: int
    """Allocations and frees of the pool in the block before the reading."""
    held_bytes: int
    """Bytes held by the pool for the block, up to `Peak.cupy_in_use_bytes`. Free bytes of the pool
    count, because a library cannot use them."""
    n_bytes: int
    """Bytes in use, minus those held by the pool and those in use before the block."""


@dataclass(slots=True, eq=False)
class Peak:
    """Figures of one measurement, filled in when its ``with`` block ends.

    Memory that was alive before the block is excluded from every figure except the two for the
    whole device. A figure that is not available is None, never 0.
    """

    device: Device
    """Kind of the device on which the code ran."""
    numpy_bytes: int | None = None
    """Most bytes alive at once in NumPy arrays, in all threads (tracemalloc). Python objects are
    included if tracemalloc was on before. C libraries are not counted."""
    cupy_in_use_bytes: int | None = None
    """Most bytes alive at once that CuPy's pool handed out, in blocks of 512."""
    earlier_freed_bytes: int = 0
    """Earlier memory of CuPy's pool or NumPy that was freed in the block, as far as this lowers the
    total at the peak. For example, a workspace is freed before a larger one replaces it."""
    cupy_held_bytes: int | None = None
    """Most bytes that the pool held for the block, in use or free."""
    torch_allocated_bytes: int | None = None
    """Most bytes alive at once in torch's blocks on the device."""
    device_before_bytes: int | None = None
    """Bytes in use at the start of the block. On a GPU, of all programs. On the CPU, the resident
    memory of this process."""
    device_peak_bytes: int | None = None
    """Most bytes in use during the block, counted in the same way. On a GPU it is sampled, so an
    allocation shorter than the time between two samples may be missed."""
    outside_bytes: int | None = None
    """Growth of the device's memory outside the allocators, without `rounding_bytes`. With CuPy's
    pool: the largest sum, at one moment, of other memory and memory held by the pool (up to
    `cupy_in_use_bytes`), minus `cupy_in_use_bytes`."""
    outside_after_bytes: int = 0
    """Part of `outside_bytes` that is still in use on a GPU after the block."""
    outside_readings: tuple[OutsideReading, ...] = ()
    """Readings of a GPU outside CuPy's pool: the largest between two events of the pool."""
    rounding_bytes: int = 0
    """Bytes that a GPU's driver added to the requests of CuPy's pool, by rounding up to 2 MiB."""
    wall_s: float = 0.0
    """Duration of the block."""
    unseen: list[str] = field(default_factory=list)
    """Messages about memory missing from the figures, empty if the meters saw everything."""
    sequence: AllocationSequence | None = None
    """Allocations from CuPy's pool or NumPy (with ``record=...``), up to the failed request if the
    block ran out of memory. None if incomplete."""

    @property
    def alive(self) -> tuple[Alive, ...]:
        """Allocations alive at the peak, in order, empty without a `sequence`."""
        granule_bytes = 1 if self.device == "cpu" else CUDA_GRANULE_BYTES
        return () if self.sequence is None else self.sequence.alive_at_peak(granule_bytes)

    @property
    def counted_bytes(self) -> int | None:
        """Peak of the code's array library: NumPy, CuPy in use, or torch allocated.

        If both CuPy and torch allocated, it is the sum of their peaks, an upper bound. It is a
        lower bound if `unseen` is not empty.
        """
        if self.device == "cpu":
            return self.numpy_bytes
        figures = [self.cupy_in_use_bytes, self.torch_allocated_bytes]
        available = [n_bytes for n_bytes in figures if n_bytes is not None]
        return sum(available) if available else None

    @property
    def peak_bytes(self) -> int | None:
        """`counted_bytes`, or None if `unseen` is not empty, because it may be too low."""
        return None if self.unseen else self.counted_bytes

    @property
    def device_bytes(self) -> int | None:
        """Growth of the device's memory in use over `device_before_bytes`, at most."""
        if self.device_peak_bytes is None or self.device_before_bytes is None:
            return None
        return max(0, self.device_peak_bytes - self.device_before_bytes)

    def __str__(self) -> str:
        figures = {
            "NumPy": self.numpy_bytes,
            "CuPy in use": self.cupy_in_use_bytes,
            "CuPy pool held": self.cupy_held_bytes,
            "torch allocated": self.torch_allocated_bytes,
            "GPU in use" if self.device == "cuda" else "resident": self.device_bytes,
        }
        lines = [
            f"{name}: {format_bytes(n)} ({n:,} bytes)"
            for name, n in figures.items()
            if n is not None
        ]
        lines += [f"not seen: {text}" for text in self.unseen]
        return "\n".join(lines)

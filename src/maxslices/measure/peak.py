"""Figures of a measurement: the peak, and what was alive then."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.allocators import CUDA_GRANULE_BYTES, Device
from ..core.units import format_bytes
from .allocation_sequence import Alive, AllocationSequence


@dataclass(frozen=True, slots=True)
class OutsideReading:
    """A GPU's memory outside CuPy's pool at one moment."""

    n_events: int
    """Allocations and frees of the pool that the block had made."""
    held_bytes: int
    """What the pool held for the block, up to `Peak.cupy_in_use_bytes`, even if free: a library
    cannot use what the pool keeps."""
    n_bytes: int
    """Bytes in use beyond what the pool held, and beyond those before the block."""


@dataclass(slots=True, eq=False)
class Peak:
    """Figures of one measurement, filled in when its ``with`` block ends.

    Memory that was alive before the block is excluded from every figure but the two that
    speak of the device as a whole. A figure that is not available is None, never 0.
    """

    device: Device
    """Where the code ran."""
    numpy_bytes: int | None = None
    """Most bytes alive at once in NumPy arrays, all threads (tracemalloc); in Python objects too
    where tracemalloc was on before. C libraries are not counted."""
    cupy_in_use_bytes: int | None = None
    """Most bytes alive at once that CuPy's pool handed out, in blocks of 512."""
    earlier_freed_bytes: int = 0
    """What was alive before and freed meanwhile, as far as it lowers the sum of both at the peak: a
    workspace that is replaced by a larger one is not alive beside it. Of CuPy's pool; and of
    NumPy's arrays."""
    cupy_held_bytes: int | None = None
    """Most bytes that the pool held for this: those handed out and those it kept free."""
    torch_allocated_bytes: int | None = None
    """Most bytes alive at once in torch's blocks on the device."""
    device_before_bytes: int | None = None
    """Bytes in use when the block began: of the GPU, by all programs; on the CPU, resident
    memory of this process."""
    device_peak_bytes: int | None = None
    """Most bytes in use while the block ran, counted in the same way. On a GPU it is sampled:
    what lived for less than the time between two samples may be missed."""
    outside_bytes: int | None = None
    """Growth of the device's memory beyond what the allocators took for this and beyond
    `rounding_bytes`. With CuPy's pool: the largest sum, at one moment, of other memory and what the
    pool held, which counts up to `cupy_in_use_bytes`; less `cupy_in_use_bytes`."""
    outside_after_bytes: int = 0
    """Part of that still in use on a GPU when the block has ended."""
    outside_readings: tuple[OutsideReading, ...] = ()
    """Readings of a GPU beside CuPy's pool: the most between two events of the pool."""
    rounding_bytes: int = 0
    """What a GPU's driver added to the requests of CuPy's pool, which it rounds up to 2 MiB."""
    wall_s: float = 0.0
    """Duration of the block."""
    unseen: list[str] = field(default_factory=list)
    """What the figures leave out; empty if the meters saw everything."""
    sequence: AllocationSequence | None = None
    """What was asked of CuPy's pool or NumPy (with ``record=...``), up to a request that the pool
    refused if the block raised; None where that is not all there is to see."""

    @property
    def alive(self) -> tuple[Alive, ...]:
        """Allocations alive at the peak, in order; empty without a `sequence`."""
        granule_bytes = 1 if self.device == "cpu" else CUDA_GRANULE_BYTES
        return () if self.sequence is None else self.sequence.alive_at_peak(granule_bytes)

    @property
    def counted_bytes(self) -> int | None:
        """The figure of the library that the code runs on: NumPy, CuPy in use, or torch allocated.

        Where CuPy and torch both allocated, it is the sum of their peaks, an upper bound. It is a
        lower bound if `unseen` is not empty.
        """
        if self.device == "cpu":
            return self.numpy_bytes
        figures = [self.cupy_in_use_bytes, self.torch_allocated_bytes]
        available = [n_bytes for n_bytes in figures if n_bytes is not None]
        return sum(available) if available else None

    @property
    def peak_bytes(self) -> int | None:
        """`counted_bytes`, or None if `unseen` is not empty, so that it may be too low."""
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

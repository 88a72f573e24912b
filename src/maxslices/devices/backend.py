"""What the runner asks of a device."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from ..model.allocators import Device
from .copy_engine import CopyEngine


class Backend(Protocol):
    """A device with its array library."""

    name: str
    """"cpu" or "cuda:N"."""
    kind: Device
    """Which allocator it has."""
    modules_bytes: int
    """Part of the reserve that is for what methods load into the device's memory."""

    @property
    def reserved_bytes(self) -> int:
        """Return the device memory beside arrays, which is not counted in free bytes."""

    def free_bytes(self) -> int:
        """Return the bytes that a run may use if the user says nothing."""

    def limited(self, budget_bytes: int, kept_bytes: int = 0) -> AbstractContextManager[None]:
        """Make this the current device, whose allocator hands out no more than a budget.

        Parameters
        ----------
        budget_bytes : int
            Beside what is in use already.
        kept_bytes : int
            What the allocator may hold in the end, and have held before, that nobody uses.
        """

    def to_device(self, block: np.ndarray) -> Any:
        """Return the block as an array of the device."""

    def to_host(self, block: Any) -> np.ndarray:
        """Return the block as a NumPy array, finished and C-contiguous."""

    def copy_engine(self) -> CopyEngine | None:
        """Return what copies to the device and back meanwhile; None where that is the host."""

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """Return an array of the device whose values are arbitrary."""

    def host_empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Return an array of the host that the link can copy from and to."""

    def contiguous(self, block: Any) -> Any:
        """Return a block of the device C-contiguous: itself, or a copy."""

    def overlap(self, first: Any, second: Any) -> bool:
        """Tell whether two arrays of the device may have memory in common."""

    def reserve(self, n_bytes: int, largest_bytes: int) -> None:
        """Hold memory that is handed out in parts later, until `release`; raise if there is none.

        Parameters
        ----------
        n_bytes : int
            About how much.
        largest_bytes : int
            The largest array of a block.
        """

    def forget_plans(self) -> None:
        """Drop cached FFT plans; their work areas go back to the pool."""

    def release(self) -> None:
        """Give back what caches and pools hold but do not use."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Tell whether an exception means that the device's memory did not suffice."""

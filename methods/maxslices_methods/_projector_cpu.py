"""Forward projection of a slice on a CPU, and its exact transpose, by non-uniform FFTs.

By the Fourier slice theorem, the spectrum of a projection is the slice's spectrum on a line through
the centre of the frequency plane. `Projector.forward` evaluates it there (FINUFFT's type 2) and
transforms the rows back. `Projector.transpose` is the exact transpose (type 1), so iterations that
need a matched pair converge. The conventions are those of `_fbp_geometry`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from maxslices.core.ledger import Ledger

from ._fbp_cpu import (
    EPS,
    INDEX_BYTES,
    LIBRARY_BYTES,
    UPSAMPLING,
    part_waves,
    period_of,
    work_bytes,
)
from ._fbp_geometry import Lengths


class Projector:
    """Forward projection of a slice, and its transpose.

    Parameters
    ----------
    angles : numpy.ndarray, shape (angles,)
        Angles in radians.
    center : float
        Position of the rotation axis on the detector, in pixels from the centre of the first pixel.
    size : Lengths
        Sizes of rows and slices.
    """

    def __init__(self, angles: NDArray[np.float64], center: float, size: Lengths) -> None:
        import finufft

        self.size = size
        self.columns = size.detector + 2 * size.pad
        self.image_shape = (size.size, size.size)
        self.period = period_of(size)
        n_waves = self.period // 2 + 1
        omega = np.arange(n_waves) * (2 * np.pi / self.period)
        offset = size.size // 2 - (size.size - 1) / 2
        shape = (len(angles), n_waves)
        self.phases = np.empty(shape, np.complex64)
        self.rows_at, self.columns_at = np.empty(shape, np.float32), np.empty(shape, np.float32)
        for a, angle in enumerate(angles):
            cos, sin = np.cos(angle), np.sin(angle)
            phase = center + size.pad + offset * (cos - sin)
            self.phases[a] = np.exp(1j * phase * omega)
            self.rows_at[a] = -sin * omega
            self.columns_at[a] = cos * omega
        self.image = np.empty((size.size, size.size), np.complex64)
        self.spectrum = np.empty(shape, np.complex64)
        self._weights = np.full(n_waves, 2 / self.period, np.float32)
        self._weights[0] /= 2
        if self.period % 2 == 0:
            self._weights[-1] /= 2
        options: dict[str, Any] = {
            "eps": EPS,
            "dtype": "complex64",
            "nthreads": 1,
            "upsampfac": UPSAMPLING,
            "spread_max_sp_size": part_waves(self.phases.size),
        }
        side = (size.size, size.size)
        self.plans = [
            finufft.Plan(2, side, isign=-1, **options),
            finufft.Plan(1, side, isign=1, **options),
        ]
        self._chosen: tuple[int, int] | None = None

    def forward(
        self, image: NDArray[np.float32], out: NDArray[np.float32], subset: slice = slice(None)
    ) -> None:
        """Project an image (side, side) to rows (angles of the subset, columns)."""
        spectrum = self._of(subset)
        self.image[...] = image
        self.plans[0].execute(self.image, out=spectrum.ravel())
        spectrum *= self.phases[subset].conj()
        for row, waves in zip(out, spectrum, strict=True):
            row[...] = scipy.fft.irfft(waves, self.period)[: self.columns]

    def transpose(
        self, rows: NDArray[np.float32], subset: slice = slice(None)
    ) -> NDArray[np.float32]:
        """Back-project rows (angles of the subset, columns) to an image (side, side).

        Returns a view of the projector's memory, which the next call overwrites.
        """
        spectrum = self._of(subset)
        for row, waves in zip(rows, spectrum, strict=True):
            waves[...] = scipy.fft.rfft(row, self.period)
        spectrum *= self._weights
        spectrum *= self.phases[subset]
        self.plans[1].execute(spectrum.ravel(), out=self.image)
        return self.image.real

    def _of(self, subset: slice) -> NDArray[np.complex64]:
        """Set the plans to a subset of angles, and return contiguous memory for its spectrum."""
        first, stop, step = subset.indices(len(self.phases))
        n_angles = len(range(first, stop, step))
        if (first, step) != self._chosen:
            self._places = [
                np.ascontiguousarray(each[subset]).ravel()
                for each in (self.rows_at, self.columns_at)
            ]
            for plan in self.plans:
                plan.setpts(*self._places)
            self._chosen = (first, step)
        return self.spectrum[:n_angles]


def account(m: Ledger, size: Lengths, n_subsets: int) -> None:
    """Enter the allocations of a `Projector` and of its calls, including those of FINUFFT."""
    waves = (size.n_angles, period_of(size) // 2 + 1)
    subset = (-(-size.n_angles // n_subsets), waves[1])
    m.alloc(waves, np.complex64)  # phases
    m.alloc((2, *waves), np.float32)  # positions
    if n_subsets > 1:  # contiguous positions of this subset and of the previous one
        m.alloc((2, 2, *subset), np.float32)
    m.alloc(waves, np.complex64)  # spectrum
    m.alloc((size.size, size.size), np.complex64)
    for _ in range(2):
        m.library(subset[0] * subset[1] * INDEX_BYTES)
    m.alloc(subset, np.complex64)  # conjugate phases


def work_of_a_call(size: Lengths) -> int:
    """Workspace of FINUFFT in bytes during a call of a `Projector`, which executes one plan."""
    return work_bytes(size.size, size.n_angles * (period_of(size) // 2 + 1))


def account_library(m: Ledger) -> None:
    """Enter the library pages of FINUFFT and FFTW, once for all projectors."""
    m.library(LIBRARY_BYTES, kept=True)

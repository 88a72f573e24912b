"""A phantom of ellipsoids whose projections are known exactly.

A flower head in a glass tube: seeds along a golden-angle spiral (H. Vogel, "A better way
to construct the sunflower head", Mathematical Biosciences 44, 1979) that twists with the
height, each a husk around a kernel, with dense beads and thin fibres among them. Every
body is an ellipsoid or a cylinder, so that its line integrals over the width of a detector
pixel have a closed form (A. C. Kak and M. Slaney, "Principles of Computerized Tomographic
Imaging", 1988, chapter 3). Nothing is projected numerically, so
a reconstruction is compared with the truth and not with the same discretisation.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

GOLDEN_ANGLE = np.pi * (3 - 5**0.5)
"""Angle between two seeds of the spiral, in radians."""
Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ellipsoids:
    """Ellipsoids as columns of numbers. Lengths are in units of the field's half width.

    A body's cross-section at height z is an ellipse around ``centre + shear * z`` with the
    semi-axes times ``sqrt(1 - ((z - z0) / semi_z)**2)``; z is 0 at the scan's middle row.
    """

    centre: Float
    """(bodies, 2): x and y at height 0."""
    z0: Float
    """(bodies,): height of the largest cross-section."""
    semi: Float
    """(bodies, 2): semi-axes of the largest cross-section."""
    semi_z: Float
    """(bodies,): semi-axis along z; infinite for a cylinder."""
    turn: Float
    """(bodies,): angle of the first semi-axis against x, radians."""
    shear: Float
    """(bodies, 2): how far x and y move per unit of height."""
    density: Float
    """(bodies,): attenuation added inside the body, 1/mm."""

    def at(self, z: float) -> tuple[Float, Float, Float, Float]:
        """Ellipses at height `z`: centres, semi-axes, turns and densities."""
        scale_2 = 1 - ((z - self.z0) / self.semi_z) ** 2
        hit = scale_2 > 1e-4
        centre = self.centre[hit] + self.shear[hit] * z
        semi = self.semi[hit] * np.sqrt(scale_2[hit])[:, None]
        return centre, semi, self.turn[hit], self.density[hit]


@dataclass(frozen=True, slots=True)
class Phantom:
    """Ellipsoids in the field of view of a detector.

    Rows are detector rows and columns detector columns. Slices are (columns, columns)
    images with the rotation axis at ``(columns - 1) / 2``.
    """

    bodies: Ellipsoids
    """The ellipsoids and cylinders."""
    rows: int
    """Detector rows."""
    columns: int
    """Detector columns."""
    pixel_mm: float
    """Width of a detector pixel in mm."""

    def height(self, row: int) -> float:
        """Height z of a detector row, in half widths of the field."""
        return (row - (self.rows - 1) / 2) * 2 / self.columns

    def slice(self, row: int, oversampling: int = 4) -> NDArray[np.float32]:
        """Compute the true attenuation in one row.

        Parameters
        ----------
        row : int
            Detector row.
        oversampling : int
            Points per pixel and axis, averaged.

        Returns
        -------
        numpy.ndarray
            (columns, columns) float32, 1/mm. x runs along the second axis, y upwards.
        """
        n = self.columns * oversampling
        points = (np.arange(n) + 0.5) * 2 / n - 1
        image = np.zeros((n, n), np.float32)
        for (x0, y0), (a, b), turn, density in zip(*self.bodies.at(self.height(row)), strict=True):
            reach = max(a, b)
            columns = slice(*np.searchsorted(points, (x0 - reach, x0 + reach)))
            lines = slice(*np.searchsorted(points, (y0 - reach, y0 + reach)))
            x, y = points[columns] - x0, points[lines, None] - y0
            along, across = np.cos(turn) * x + np.sin(turn) * y, np.cos(turn) * y - np.sin(turn) * x
            image[lines, columns] += density * ((along / a) ** 2 + (across / b) ** 2 <= 1)
        shape = (self.columns, oversampling, self.columns, oversampling)
        mean: NDArray[np.float32] = image.reshape(shape).mean(axis=(1, 3))
        return mean[::-1]

    def line_integrals(
        self, angles: Float, axis: float, advance: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """Compute the projections: attenuation along the rays, averaged over each pixel.

        Parameters
        ----------
        angles : numpy.ndarray
            (angles,) projection angles in radians.
        axis : float
            Detector column of the rotation axis. Column k is centred at k.
        advance : callable, optional
            Called with 1 when a row is done.

        Returns
        -------
        numpy.ndarray
            (angles, rows, columns) float32, without unit.
        """
        result = np.zeros((len(angles), self.rows, self.columns), np.float32)

        def project(row: int) -> None:
            result[:, row] = self._sinogram(angles, axis, row)

        with ThreadPoolExecutor() as pool:  # NumPy releases the interpreter lock
            for _ in pool.map(project, range(self.rows)):
                if advance is not None:
                    advance(1)
        return result

    def _sinogram(self, angles: Float, axis: float, row: int) -> NDArray[np.float32]:
        """Line integrals (angles, columns) of one row."""
        half = self.columns / 2  # everything is in pixels from here on
        cos, sin = np.cos(angles), np.sin(angles)
        starts = np.arange(len(angles)) * self.columns
        sinogram = np.zeros(len(angles) * self.columns, np.float32)
        for (x0, y0), (a, b), turn, density in zip(*self.bodies.at(self.height(row)), strict=True):
            reach = half * np.hypot(a * np.cos(angles - turn), b * np.sin(angles - turn))
            middle = axis + half * (x0 * cos + y0 * sin)
            first = np.floor(middle - reach).astype(np.int64)
            width = int(np.ceil(2 * reach.max())) + 2
            if first.min() < 0 or first.max() + width > self.columns:
                raise ValueError(
                    f"the phantom's shadow leaves the detector of {self.columns} columns around "
                    f"the axis at {axis:g}: move the axis to the middle, or take more columns"
                )
            # u: the pixels' edges across the shadow, from -1 to 1
            u = np.arange(width + 1, dtype=np.float32) / reach[:, None].astype(np.float32)
            u += ((first - 0.5 - middle) / reach).astype(np.float32)[:, None]
            np.clip(u, -1, 1, out=u)
            # the antiderivative of 2 * sqrt(1 - u^2), the chord of the unit disc
            area = np.sqrt(1 - u * u)
            area *= u
            area += np.arcsin(u, out=u)
            values = np.subtract(area[:, 1:], area[:, :-1])
            values *= np.float32(density * self.pixel_mm * half * half * a * b)
            sinogram[(starts + first)[:, None] + np.arange(width)] += values
        return sinogram.reshape(len(angles), self.columns)


def flower_head(rows: int = 64, columns: int = 400, pixel_mm: float = 0.005) -> Phantom:
    """Make the demo's phantom, the same at any size.

    Parameters
    ----------
    rows, columns : int
        Size of the detector.
    pixel_mm : float
        Width of a detector pixel.
    """
    rng = np.random.default_rng(1979)
    table: list[tuple[float, ...]] = []

    def add(
        x: float,
        y: float,
        z: float,
        a: float,
        b: float,
        c: float,
        turn: float,
        density: float,
        twist: float = 0.0,
    ) -> None:
        table.append((x, y, z, a, b, c, turn, -twist * y, twist * x, density))

    infinite = np.inf
    add(0, 0, 0, 0.91, 0.91, infinite, 0, 1.1)  # a glass tube,
    add(0, 0, 0, 0.86, 0.86, infinite, 0, -0.8)  # filled with resin,
    add(0, 0, 0, 0.10, 0.10, infinite, 0, 0.25)  # around a stem
    top = rows / columns
    n_seeds, twist = 150, 0.9 / top * 0.12
    for k in range(n_seeds):
        share = (k + 9) / (n_seeds + 8)
        radius, turn = 0.775 * share**0.62, k * GOLDEN_ANGLE
        size = 0.046 + 0.024 * share
        x, y = radius * np.cos(turn), radius * np.sin(turn)
        z, c = rng.uniform(-1, 1) * top, top * rng.uniform(1.1, 2.2)
        a, b = size * 1.18, size * 0.74
        add(x, y, z, a, b, c, turn, 0.75, twist)  # husk
        add(x, y, z, a * 0.8, b * 0.72, c * 0.93, turn, -0.62, twist)  # air under it
        add(x, y, z, a * 0.62, b * 0.5, c * 0.8, turn, rng.uniform(0.35, 1.0), twist)  # kernel
        if k % 9 == 4:  # a dense bead next to the kernel
            r = rng.uniform(0.010, 0.016)
            add(x + 0.3 * a * np.cos(turn), y + 0.3 * a * np.sin(turn), rng.uniform(-1, 1) * top,
                r, r, 0.8 * top, 0, 5.0, twist)  # fmt: skip
    for k in range(13):  # fibres of two pixels in the stem
        turn = k * 2 * np.pi / 13
        add(0.07 * np.cos(turn), 0.07 * np.sin(turn), 0, 0.006, 0.006, infinite, 0, 2.0, 4 * twist)
    for _ in range(60):  # bubbles in the glass
        turn, r = rng.uniform(0, 2 * np.pi), rng.uniform(0.006, 0.014)
        add(0.885 * np.cos(turn), 0.885 * np.sin(turn), rng.uniform(-1, 1) * top,
            r, r, rng.uniform(0.05, 0.3) * top + r, 0, -1.1)  # fmt: skip
    numbers = np.array(table)
    numbers[:, 0:2] += 0.045, -0.03  # no sample is exactly on the axis
    return Phantom(
        Ellipsoids(
            centre=numbers[:, 0:2],
            z0=numbers[:, 2],
            semi=numbers[:, 3:5],
            semi_z=numbers[:, 5],
            turn=numbers[:, 6],
            shear=numbers[:, 7:9],
            density=numbers[:, 9],
        ),
        rows,
        columns,
        pixel_mm,
    )

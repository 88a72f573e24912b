"""Total variation on a CPU: iterations sweep the volume plane by plane, in place.

The update of a plane needs only the old values of the neighbouring planes. The scratch is therefore
a few planes, which stay in the processor's cache if they are small.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from maxslices.core.ledger import Ledger

Array = NDArray[np.float32]

SMALL = np.float32(1e-8)
"""Added to the squared length of a gradient, which would be 0 in a flat region."""
BUFFER_ITEMS = 8192
"""Items in NumPy's buffer (``np.getbufsize()``) for an operand with gaps between its rows."""
SMALL_BYTES = 2**13
"""Bytes of Python objects besides the arrays."""


def rof(
    source: Array, strength: float | np.float32, iterations: int, step: float | np.float32
) -> Array:
    """Smooth a volume by `iterations` explicit steps, as `total_variation_rof`."""
    volume = source.copy()
    _, rows, columns = volume.shape
    below, here, above = (np.empty((rows + 2, columns + 2), np.float32) for _ in range(3))
    across = np.empty((rows, columns), np.float32)
    divergence = np.empty_like(across)
    work = [np.empty((rows + 1, columns + 1), np.float32) for _ in range(5)]
    strength, step = np.float32(strength), np.float32(step)
    last = len(volume) - 1
    for _ in range(iterations):
        _pad(volume[0], here)
        below[...] = here
        across[...] = 0  # flow across the face to the previous plane
        for z in range(last + 1):
            if z < last:
                _pad(volume[z + 1], above)
            else:
                above[...] = here
            _divergence(below, here, above, across, divergence, work)
            # volume += step * (strength * divergence - (volume - source))
            np.multiply(divergence, strength, out=divergence)
            change = work[0][:rows, :columns]
            np.subtract(volume[z], source[z], out=change)
            np.subtract(divergence, change, out=divergence)
            np.multiply(divergence, step, out=divergence)
            volume[z] += divergence
            below, here, above = here, above, below
    return volume


def account_rof(m: Ledger, shape: tuple[int, int, int], iterations: int) -> None:
    """Enter the allocations of `rof`."""
    _, rows, columns = shape
    m.alloc(shape, np.float32)
    m.alloc((3, rows + 2, columns + 2), np.float32)
    m.alloc((2, rows, columns), np.float32)
    m.alloc((5, rows + 1, columns + 1), np.float32)
    _account_buffers(m, shape)


def _account_buffers(m: Ledger, shape: tuple[int, int, int]) -> None:
    m.alloc((3, min(BUFFER_ITEMS, (shape[1] + 1) * (shape[2] + 1))), np.float32)
    m.alloc_bytes(SMALL_BYTES)


def _pad(plane: Array, out: Array) -> None:
    """Copy a plane with its edges repeated, which makes differences across the border 0."""
    out[1:-1, 1:-1] = plane
    out[0, 1:-1], out[-1, 1:-1] = plane[0], plane[-1]
    out[:, 0], out[:, -1] = out[:, 1], out[:, -2]


def _divergence(
    below: Array, here: Array, above: Array, across: Array, out: Array, work: list[Array]
) -> None:
    """Write the divergence of the normalised gradient in the middle plane.

    `across` holds the flow from the previous plane, and is overwritten by the flow to the next one.
    """
    rows, columns = out.shape
    # along x: faces from the left border to the right one
    along_x = np.s_[1:-1, :-1]
    flow = _flow(
        here[1:-1, 1:],
        here[along_x],
        ((here[2:, :-1], here[:-2, :-1]), (above[along_x], below[along_x])),
        [w[:rows, : columns + 1] for w in work],
    )
    np.subtract(flow[:, 1:], flow[:, :-1], out=out)
    # along y
    along_y = np.s_[:-1, 1:-1]
    flow = _flow(
        here[1:, 1:-1],
        here[along_y],
        ((here[:-1, 2:], here[:-1, :-2]), (above[along_y], below[along_y])),
        [w[: rows + 1, :columns] for w in work],
    )
    out += flow[1:]
    out -= flow[:-1]
    # along z: the flow out of this plane is the flow into the next
    inside = np.s_[1:-1, 1:-1]
    flow = _flow(
        above[inside],
        here[inside],
        ((here[2:, 1:-1], here[:-2, 1:-1]), (here[1:-1, 2:], here[1:-1, :-2])),
        [w[:rows, :columns] for w in work],
    )
    out += flow
    out -= across
    across[...] = flow


def _flow(
    ahead: Array, at: Array, sides: tuple[tuple[Array, Array], ...], work: list[Array]
) -> Array:
    """Divide a forward difference by the length of the gradient, into ``work[0]``."""
    flow, length, first, second, least = work
    np.subtract(ahead, at, out=flow)
    np.multiply(flow, flow, out=length)
    length += SMALL
    for after, before in sides:
        np.subtract(after, at, out=first)
        np.subtract(at, before, out=second)
        # minmod: the median of both and 0
        np.minimum(first, second, out=least)
        np.maximum(first, second, out=first)
        np.minimum(first, np.float32(0), out=first)
        np.maximum(first, least, out=first)
        np.multiply(first, first, out=first)
        length += first
    np.sqrt(length, out=length)
    np.divide(flow, length, out=flow)
    return flow


def primal_dual(
    source: Array,
    *,
    iterations: int,
    tau: float | np.float32,
    sigma: float | np.float32,
    pull: float | np.float32,
    isotropic: bool,
    nonnegativity: bool,
) -> Array:
    """Smooth a volume by `iterations` primal-dual steps, as `total_variation_pd`."""
    volume = source.copy()
    ahead = source.copy()
    dual = [np.zeros_like(source) for _ in range(3)]
    _, rows, columns = source.shape
    work = np.empty((rows, columns), np.float32), np.empty((rows, columns), np.float32)
    scale = np.float32(1 / (1 + pull))
    tau, sigma, pull = np.float32(tau), np.float32(sigma), np.float32(pull)
    for _ in range(iterations):
        for z in range(len(volume)):
            planes = [d[z] for d in dual]
            _climb(planes, ahead, z, sigma, work[0])
            if isotropic:
                _shorten(planes, *work)
            else:
                for plane in planes:
                    np.clip(plane, np.float32(-1), np.float32(1), out=plane)
            divergence, old = work
            along_z, along_y, along_x = planes
            np.add(along_z, along_y, out=divergence)
            divergence += along_x
            divergence[:, 1:] -= along_x[:, :-1]
            divergence[1:] -= along_y[:-1]
            if z:
                divergence -= dual[0][z - 1]
            old[...] = volume[z]
            # the primal step, then the extrapolated point for the next dual step
            np.multiply(divergence, tau, out=divergence)
            divergence += old
            np.multiply(source[z], pull, out=volume[z])
            volume[z] += divergence
            volume[z] *= scale
            if nonnegativity:
                np.maximum(volume[z], np.float32(0), out=volume[z])
            np.multiply(volume[z], np.float32(2), out=ahead[z])
            ahead[z] -= old
    return volume


def account_pd(m: Ledger, shape: tuple[int, int, int]) -> None:
    """Enter the allocations of `primal_dual`."""
    for _ in range(5):
        m.alloc(shape, np.float32)
    m.alloc((2, shape[1], shape[2]), np.float32)
    _account_buffers(m, shape)


def _climb(planes: list[Array], ahead: Array, z: int, sigma: Any, work: Array) -> None:
    """Add `sigma` times the gradient of plane `z` to the dual planes (along z, y, x)."""
    plane = ahead[z]
    if z + 1 < len(ahead):
        np.subtract(ahead[z + 1], plane, out=work)
        np.multiply(work, sigma, out=work)
        planes[0] += work
    part = work[:-1]
    np.subtract(plane[1:], plane[:-1], out=part)
    np.multiply(part, sigma, out=part)
    planes[1][:-1] += part
    part = work[:, :-1]
    np.subtract(plane[:, 1:], plane[:, :-1], out=part)
    np.multiply(part, sigma, out=part)
    planes[2][:, :-1] += part


def _shorten(planes: list[Array], length: Array, square: Array) -> None:
    """Scale dual vectors longer than 1 to length 1."""
    np.multiply(planes[0], planes[0], out=length)
    for plane in planes[1:]:
        np.multiply(plane, plane, out=square)
        length += square
    np.sqrt(length, out=length)
    np.maximum(length, np.float32(1), out=length)
    for plane in planes:
        plane /= length

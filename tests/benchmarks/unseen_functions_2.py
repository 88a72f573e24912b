"""Twenty functions that no estimator was tuned to.

Each takes a 3D array ``data`` of NumPy or CuPy and returns a 3D array. Some work on all slices at
once and some on one after another, but no slice changes what another becomes. ``FUNCTIONS`` lists
them, with frames to run them on. Nothing here knows how memory is estimated. So a script can ask
how many slices fit into a pool, and find by running how many really do.

``python tests/benchmarks/unseen_functions_2.py`` runs each on NumPy with small frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.fft
import scipy.ndimage

try:
    import cupy
    import cupyx.scipy.fft
    import cupyx.scipy.ndimage
except ImportError:
    cupy = None


def array_module(data):
    """The module that the array belongs to."""
    return np if cupy is None else cupy.get_array_module(data)


def fft_module(data):
    """SciPy's FFTs, or their counterparts on a GPU."""
    return scipy.fft if array_module(data) is np else cupyx.scipy.fft


def image_module(data):
    """SciPy's filters of images, or their counterparts on a GPU."""
    return scipy.ndimage if array_module(data) is np else cupyx.scipy.ndimage


# --- Fourier transforms ---------------------------------------------------------------------------


def analytic_signal(data):
    """Complex fringes along the angles, whose phase is the phase of the fringe. Slice axis 1."""
    xp, fft = array_module(data), fft_module(data)
    length = data.shape[0]
    size = fft.next_fast_len(2 * length)
    spectrum = fft.fft(data - data.mean(axis=0), n=size, axis=0)
    weights = xp.zeros(size, dtype=xp.float32)
    weights[0] = 1
    weights[1 : (size + 1) // 2] = 2
    if size % 2 == 0:
        weights[size // 2] = 1
    spectrum *= weights[:, None, None]
    return fft.ifft(spectrum, axis=0)[:length].copy()


def wiener_deconvolve(data, *, sigma=2.0, noise=0.01):
    """Undo a Gaussian blur with Wiener's filter, frames padded by reflection. Slice axis 0."""
    xp = array_module(data)
    height, width = data.shape[1:]
    pad = int(4 * sigma)
    padded = xp.pad(data.astype(xp.float32), ((0, 0), (pad, pad), (pad, pad)), mode="reflect")
    ky = xp.fft.fftfreq(padded.shape[1])[:, None]
    kx = xp.fft.rfftfreq(padded.shape[2])[None, :]
    transfer = xp.exp(-2 * (np.pi * sigma) ** 2 * (ky**2 + kx**2))
    wiener = (transfer / (transfer**2 + noise)).astype(xp.float32)
    sharp = xp.fft.irfft2(xp.fft.rfft2(padded) * wiener, s=padded.shape[1:])
    return sharp[:, pad : pad + height, pad : pad + width]


def propagate_field(data, *, distance=0.05, wavelength=1e-10, pixel=1e-6, chunk=10):
    """Propagate complex wave fields in free space, ten at a time. Slice axis 0."""
    xp = array_module(data)
    fy = xp.fft.fftfreq(data.shape[1], d=pixel)[:, None]
    fx = xp.fft.fftfreq(data.shape[2], d=pixel)[None, :]
    kernel = xp.exp(-1j * np.pi * wavelength * distance * (fy**2 + fx**2)).astype(data.dtype)
    result = xp.empty_like(data)
    for start in range(0, data.shape[0], chunk):
        field = xp.fft.fft2(data[start : start + chunk])
        field *= kernel
        result[start : start + chunk] = xp.fft.ifft2(field)
    return result


_EMPHASIS: dict[tuple[str, int, int, float], Any] = {}


def homomorphic_filter(data, *, cutoff=0.02):
    """Even out illumination in the log domain, filters kept between calls. Slice axis 1."""
    xp = array_module(data)
    angles, width = data.shape[0], data.shape[2]
    rows = 1 << (angles - 1).bit_length()
    columns = 1 << (width - 1).bit_length()
    key = (xp.__name__, rows, columns, cutoff)
    if key not in _EMPHASIS:
        fy = xp.fft.fftfreq(rows)[:, None, None]
        fx = xp.fft.rfftfreq(columns)[None, None, :]
        low = xp.exp(-(fy**2 + fx**2) / (2 * cutoff**2))
        _EMPHASIS[key] = (1.5 - low).astype(xp.float32)
    logs = xp.log1p(data.astype(xp.float32))
    spectrum = xp.fft.rfftn(logs, s=(rows, columns), axes=(0, 2))
    spectrum *= _EMPHASIS[key]
    even = xp.fft.irfftn(spectrum, s=(rows, columns), axes=(0, 2))
    return xp.expm1(even[:angles, :, :width])


# --- Order and counts -----------------------------------------------------------------------------


def rank_transform(data):
    """Replace each value by its rank among the angles, from 0 to 1. Slice axis 1."""
    xp = array_module(data)
    order = xp.argsort(data, axis=0)
    ranks = xp.argsort(order, axis=0)
    return ranks.astype(xp.float32) / max(data.shape[0] - 1, 1)


def percentile_flat(data, *, percent=90.0):
    """Divide by a flat made of a high percentile over the angles. Slice axis 1."""
    xp = array_module(data)
    flat = xp.percentile(data, percent, axis=0).astype(xp.float32)
    flat = xp.maximum(flat, 1)
    transmission = data.astype(xp.float32) / flat
    return xp.clip(transmission, 0.001, 2.0)


def remove_zingers(data, *, ratio=1.2):
    """Replace bright outliers by the median of a cross of five pixels. Slice axis 0."""
    xp = array_module(data)
    moves = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]
    cross = xp.stack([xp.roll(data, move, axis=(1, 2)) for move in moves])
    middle = xp.median(cross, axis=0)
    del cross
    return xp.where(data > ratio * middle, middle, data).astype(data.dtype)


def otsu_mask(data):
    """Split each frame of 8 bits in two classes at Otsu's threshold. Slice axis 0."""
    xp = array_module(data)
    n = data.shape[0]
    codes = data.reshape(n, -1) + 256 * xp.arange(n)[:, None]
    counts = xp.bincount(codes.ravel(), minlength=256 * n).reshape(n, 256)
    below = xp.cumsum(counts, axis=1).astype(xp.float64)
    mass = xp.cumsum(counts * xp.arange(256), axis=1).astype(xp.float64)
    total = below[:, -1:]
    spread = (mass[:, -1:] * below - mass * total) ** 2
    spread /= xp.maximum(below * (total - below), 1)
    threshold = xp.argmax(spread, axis=1)
    return data > threshold[:, None, None]


def linearize_counts(data, *, curvature=2e-6, knots=4096, overwrite=True):
    """Correct a detector's response with a table, in the array it is given. Slice axis 0."""
    xp = array_module(data)
    true = xp.linspace(0, 65535, knots, dtype=xp.float32)
    seen = true - curvature * true**2
    index = xp.clip(xp.searchsorted(seen, data), 1, knots - 1)
    result = data if overwrite else data.copy()
    result -= seen[index - 1]
    result *= ((true[1:] - true[:-1]) / (seen[1:] - seen[:-1]))[index - 1]
    result += true[index - 1]
    return result


# --- Masks, sums and matrices ---------------------------------------------------------------------


def standardize_in_circle(data, *, margin=0.02):
    """Mean 0 and deviation 1 inside the circle of reconstruction, 0 outside. Slice axis 0."""
    xp = array_module(data)
    height, width = data.shape[1:]
    y = xp.linspace(-1, 1, height)[:, None]
    x = xp.linspace(-1, 1, width)[None, :]
    inside = y**2 + x**2 < (1 - margin) ** 2
    values = data[:, inside]
    values = values - values.mean(axis=1, keepdims=True)
    values = values / (values.std(axis=1, keepdims=True) + 1e-6)
    result = xp.zeros_like(data)
    result[:, inside] = values
    return result


def local_contrast(data, *, radius=12):
    """Local deviation in a square window by integral images in float64. Slice axis 0."""
    xp = array_module(data)
    size = 2 * radius + 1

    def window_mean(images):
        padded = xp.pad(images, ((0, 0), (radius + 1, radius), (radius + 1, radius)), mode="edge")
        sums = padded.cumsum(axis=1).cumsum(axis=2)
        tops = sums[:, size:] - sums[:, :-size]
        return (tops[:, :, size:] - tops[:, :, :-size]) / size**2

    images = data.astype(xp.float64)
    mean = window_mean(images)
    variance = window_mean(images**2) - mean**2
    return (xp.sqrt(xp.maximum(variance, 0)) / (mean + 1)).astype(xp.float32)


def subtract_polynomial(data, *, degree=3):
    """Subtract the polynomial that fits each sinogram best. Slice axis 1."""
    xp = array_module(data)
    angles, _, width = data.shape
    y = xp.linspace(-1, 1, angles, dtype=xp.float32)[:, None]
    x = xp.linspace(-1, 1, width, dtype=xp.float32)[None, :]
    powers = [(i, j) for i in range(degree + 1) for j in range(degree + 1 - i)]
    table = xp.stack([(y**i * x**j).ravel() for i, j in powers], axis=1)
    basis = xp.linalg.qr(table)[0].reshape(angles, width, len(powers))
    weights = xp.tensordot(basis, data, axes=([0, 1], [0, 2]))
    return data - xp.einsum("awk,kn->anw", basis, weights)


def tile_pca_denoise(data, *, tile=8, keep=12):
    """Keep the main components of the tiles of each frame. Slice axis 0."""
    xp = array_module(data)
    n, height, width = data.shape
    padded = xp.pad(data, ((0, 0), (0, -height % tile), (0, -width % tile)), mode="edge")
    down, across = padded.shape[1] // tile, padded.shape[2] // tile
    tiles = padded.reshape(n, down, tile, across, tile).transpose(0, 1, 3, 2, 4)
    tiles = tiles.reshape(n, down * across, tile * tile)
    mean = tiles.mean(axis=1, keepdims=True)
    tiles = tiles - mean
    _, vectors = xp.linalg.eigh(xp.matmul(tiles.swapaxes(1, 2), tiles))
    main = vectors[:, :, -keep:]
    tiles = xp.matmul(xp.matmul(tiles, main), main.swapaxes(1, 2)) + mean
    tiles = tiles.reshape(n, down, across, tile, tile).transpose(0, 1, 3, 2, 4)
    return tiles.reshape(padded.shape)[:, :height, :width].copy()


# --- Iterations -----------------------------------------------------------------------------------


def tv_chambolle(data, *, weight=0.1, iterations=8):
    """Total variation of frames, denoised by Chambolle's projection. Slice axis 0."""
    xp = array_module(data)
    p = xp.zeros((2, *data.shape), dtype=data.dtype)
    gradient = xp.zeros_like(p)
    for _ in range(iterations):
        divergence = -p.sum(axis=0)
        divergence[:, 1:] += p[0, :, :-1]
        divergence[:, :, 1:] += p[1, :, :, :-1]
        out = data + divergence
        gradient[0, :, :-1] = xp.diff(out, axis=1)
        gradient[1, :, :, :-1] = xp.diff(out, axis=2)
        norm = xp.sqrt((gradient**2).sum(axis=0))
        p = (p - 0.25 * gradient) / (1 + norm * (0.25 / weight))
    return out


def richardson_lucy(data, *, sigma=1.5, iterations=6):
    """Sharpen counts by Richardson and Lucy's iteration with a Gaussian. Slice axis 0."""
    xp, images = array_module(data), image_module(data)
    observed = data.astype(xp.float32) + 1
    estimate = xp.full_like(observed, 1) * observed.mean(axis=(1, 2), keepdims=True)
    for _ in range(iterations):
        blurred = images.gaussian_filter(estimate, (0, sigma, sigma))
        ratio = observed / xp.maximum(blurred, 1e-3)
        estimate = estimate * images.gaussian_filter(ratio, (0, sigma, sigma))
    return estimate


def _flow(image, axis, kappa):
    """What flows into each pixel from its neighbours along an axis."""
    xp = array_module(image)
    step = xp.diff(image, axis=axis)
    conduct = xp.exp(-((step / kappa) ** 2))
    flux = step * conduct
    del step, conduct
    ends = [(0, 0)] * 3
    ends[axis] = (1, 1)
    padded = xp.pad(flux, ends)
    del flux
    return xp.diff(padded, axis=axis)


def anisotropic_diffusion(data, *, kappa=0.2, rate=0.2, iterations=5):
    """Perona and Malik's diffusion inside sinograms. Slice axis 1."""
    image = data.copy()
    for _ in range(iterations):
        change = _flow(image, 0, kappa)
        change += _flow(image, 2, kappa)
        change *= rate
        image += change
        del change
    return image


# --- Filters of images, and frames of other sizes -------------------------------------------------


def to_polar(data, *, n_angles=720):
    """Frames in polar coordinates, frame by frame in a list that is stacked. Slice axis 0."""
    xp, images = array_module(data), image_module(data)
    height, width = data.shape[1:]
    radius = xp.arange(min(height, width) // 2, dtype=xp.float32)[:, None]
    angle = xp.linspace(0, 2 * np.pi, n_angles, endpoint=False, dtype=xp.float32)[None, :]
    y = (height - 1) / 2 + radius * xp.sin(angle)
    x = (width - 1) / 2 + radius * xp.cos(angle)
    points = xp.stack([y, x])
    return xp.stack([images.map_coordinates(frame, points, order=1) for frame in data])


def sharpened_zoom(data, *, factor=1.5, amount=0.7):
    """Enlarge frames with cubic splines and sharpen them. Slice axis 0."""
    images = image_module(data)
    large = images.zoom(data, (1, factor, factor), order=3)
    smooth = images.uniform_filter(large, size=(1, 5, 5))
    return large + amount * (large - smooth)


def straighten_and_bin(data, *, degrees=0.7, by=3):
    """Turn frames by the tilt of a camera, then average pixels in squares. Slice axis 0."""
    xp, images = array_module(data), image_module(data)
    turned = images.rotate(
        data.astype(xp.float32), degrees, axes=(1, 2), reshape=False, order=1, mode="nearest"
    )
    n, height, width = turned.shape
    turned = turned[:, : height - height % by, : width - width % by]
    squares = turned.reshape(n, height // by, by, width // by, by)
    return xp.rint(squares.mean(axis=(2, 4))).astype(data.dtype)


def drop_small_particles(data, *, level=0.6, smallest=30):
    """Mask of the particles above a level that are large enough. Slice axis 0."""
    xp, images = array_module(data), image_module(data)
    inside_frames = xp.zeros((3, 3, 3), dtype=bool)
    inside_frames[1] = True
    smooth = images.gaussian_filter(data, (0, 2.0, 2.0))
    low = smooth.min(axis=(1, 2), keepdims=True)
    high = smooth.max(axis=(1, 2), keepdims=True)
    labels, _ = images.label(smooth > low + level * (high - low), structure=inside_frames)
    large = xp.bincount(labels.ravel()) >= smallest
    large[0] = False
    return large[labels].astype(xp.uint8)


# --- The table ------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A function, and what to run it on."""

    name: str
    function: Callable[..., Any]
    slice_axis: int
    dtype: str
    frames: tuple[tuple[int, int], tuple[int, int]]  # the other two dims; the first are primes
    parameters: dict[str, Any]


FUNCTIONS = [
    Case("analytic_signal", analytic_signal, 1, "float32", ((719, 1279), (1024, 2048)), {}),
    Case(
        "wiener_deconvolve",
        wiener_deconvolve,
        0,
        "uint16",
        ((1021, 1277), (2048, 2048)),
        {"sigma": 2.0, "noise": 0.01},
    ),
    Case(
        "propagate_field",
        propagate_field,
        0,
        "complex64",
        ((509, 1013), (1024, 1024)),
        {"distance": 0.05, "chunk": 10},
    ),
    Case(
        "homomorphic_filter",
        homomorphic_filter,
        1,
        "uint16",
        ((907, 1511), (1800, 2560)),
        {"cutoff": 0.02},
    ),
    Case("rank_transform", rank_transform, 1, "uint16", ((601, 1409), (1024, 2048)), {}),
    Case(
        "percentile_flat",
        percentile_flat,
        1,
        "uint16",
        ((997, 1223), (1800, 2560)),
        {"percent": 90.0},
    ),
    Case(
        "remove_zingers",
        remove_zingers,
        0,
        "uint16",
        ((1031, 1301), (2160, 2560)),
        {"ratio": 1.2},
    ),
    Case("otsu_mask", otsu_mask, 0, "uint8", ((877, 1103), (1024, 1280)), {}),
    Case(
        "linearize_counts",
        linearize_counts,
        0,
        "float32",
        ((1009, 1201), (2048, 2048)),
        {"curvature": 2e-6, "overwrite": True},
    ),
    Case(
        "standardize_in_circle",
        standardize_in_circle,
        0,
        "float32",
        ((1487, 1487), (2048, 2048)),
        {"margin": 0.02},
    ),
    Case(
        "local_contrast", local_contrast, 0, "uint16", ((811, 1217), (1024, 1024)), {"radius": 12}
    ),
    Case(
        "subtract_polynomial",
        subtract_polynomial,
        1,
        "float32",
        ((761, 1429), (1500, 2560)),
        {"degree": 3},
    ),
    Case(
        "tile_pca_denoise",
        tile_pca_denoise,
        0,
        "float32",
        ((787, 1171), (1024, 2048)),
        {"tile": 8, "keep": 12},
    ),
    Case(
        "tv_chambolle",
        tv_chambolle,
        0,
        "float32",
        ((1019, 1019), (2048, 2048)),
        {"weight": 0.1, "iterations": 8},
    ),
    Case(
        "richardson_lucy",
        richardson_lucy,
        0,
        "uint16",
        ((863, 1289), (1024, 2048)),
        {"sigma": 1.5, "iterations": 6},
    ),
    Case(
        "anisotropic_diffusion",
        anisotropic_diffusion,
        1,
        "float32",
        ((727, 1361), (1024, 2560)),
        {"kappa": 0.2, "iterations": 5},
    ),
    Case("to_polar", to_polar, 0, "float32", ((1153, 1153), (2048, 2048)), {"n_angles": 720}),
    Case(
        "sharpened_zoom",
        sharpened_zoom,
        0,
        "float32",
        ((613, 821), (1024, 1024)),
        {"factor": 1.5, "amount": 0.7},
    ),
    Case(
        "straighten_and_bin",
        straighten_and_bin,
        0,
        "uint16",
        ((1087, 1543), (2160, 2560)),
        {"degrees": 0.7, "by": 3},
    ),
    Case(
        "drop_small_particles",
        drop_small_particles,
        0,
        "float32",
        ((941, 1091), (1024, 1280)),
        {"level": 0.6, "smallest": 30},
    ),
]


def shape_of(case: Case, slices: int, frame: tuple[int, int]) -> tuple[int, int, int]:
    """The shape of so many slices of a frame."""
    first, second = frame
    return (slices, first, second) if case.slice_axis == 0 else (first, slices, second)


def example(case: Case, slices: int, frame: tuple[int, int]) -> np.ndarray:
    """An array on the host: noise, from 0 to 1 in floats and over all values in integers."""
    shape = shape_of(case, slices, frame)
    dtype = np.dtype(case.dtype)
    random = np.random.default_rng(0)
    if dtype.kind in "iu":
        return random.integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)
    return random.random(shape, dtype=np.float32).astype(dtype, copy=False)


def main() -> None:
    """Run each function with small frames, and print what becomes of the shape and the dtype."""
    for case in FUNCTIONS:
        for frame in ((61, 83), (64, 96)):
            data = example(case, 5, frame)
            before = f"{data.shape} {data.dtype}"
            result = case.function(data, **case.parameters)
            if result.ndim != 3 or result.shape[case.slice_axis] != 5:
                raise ValueError(f"{case.name}: {before} became {result.shape}")
            print(f"{case.name}: {before} -> {result.shape} {result.dtype}")


if __name__ == "__main__":
    main()

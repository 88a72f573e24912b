"""`fbp` beside ASTRA's and tomobar's reconstructions: accuracy, time and memory on the same data.

``python -m tests.benchmarks.fbp [--quick] [--json FILE]`` prints a Markdown table. It needs a GPU;
httomolibgpu's methods (tomobar, ASTRA) are compared where they are installed. ``--quick`` runs
`fbp` alone at a small size, on the CPU if there is no GPU.

The data are exact line integrals of a phantom (`maxslices.demo.phantom`), so a reconstruction is
held against the truth. All methods get the same sinograms on the device, the slices as a block;
`FBP2d_astra` takes them from host memory, slice by slice, as it does in httomo. What is not the
methods' subject is taken out: for each the best is chosen of eight symmetries, of axes a quarter
of a pixel apart, and of gains, before the error is taken.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from maxslices import registry
from maxslices.core.units import format_bytes
from maxslices.demo.phantom import flower_head
from maxslices.measure import measure_peak

MASK = 0.94
"""Compared inside this fraction of the field of view; methods mask at 0.95."""
OFFSETS = (0.0, *(sign * k / 4 for k in range(1, 5) for sign in (1, -1)))
"""Axes that are tried, in pixels from the true one."""
NOISE = 1.0
"""Standard deviation of the noise in the sinograms that hold nothing else."""
COLUMNS = (
    "method",
    "ms a slice",
    "peak",
    "x input",
    "rms error",
    "gain",
    "edge 10-90 %",
    "noise",
    "axis",
)


@dataclass(frozen=True)
class Row:
    """One method's figures."""

    method: str
    ms_per_slice: float
    peak_bytes: int | None
    input_bytes: int
    rms_error: float
    gain: float
    edge_pixels: float
    noise: float
    axis_offset: float

    def cells(self) -> list[str]:
        over = "-" if self.peak_bytes is None else f"{self.peak_bytes / self.input_bytes:.2f}"
        return [
            self.method,
            f"{self.ms_per_slice:.2f}",
            format_bytes(self.peak_bytes),
            over,
            f"{self.rms_error:.4f}",
            f"{self.gain:.4f}",
            f"{self.edge_pixels:.2f}",
            f"{self.noise:.3f}",
            f"{self.axis_offset:+.2f}",
        ]


@dataclass
class Data:
    """Sinograms (angles, slices, columns) float32, and the truth of the first ones."""

    sinograms: Any
    angles: np.ndarray
    axis: float
    n_noise: int
    truth: np.ndarray
    phantom: Any


def make(n_angles: int, n_slices: int, columns: int, oversampling: int) -> Data:
    """Return a block of which the last quarter is noise alone and the rest two phantom slices."""
    phantom = flower_head(64, columns, pixel_mm=1.0)  # attenuation per pixel: the glass is 1.1
    angles = np.linspace(0, np.pi, n_angles, endpoint=False)
    axis = (columns - 1) / 2
    rows = (21, 42)
    with ThreadPoolExecutor() as pool:
        truth = pool.submit(lambda: list(pool.map(lambda r: phantom.slice(r, oversampling), rows)))
        flat = list(pool.map(lambda r: phantom._sinogram(angles, axis, r), rows))
        truths = truth.result()
    sinograms = np.empty((n_angles, n_slices, columns), np.float32)
    n_noise = max(1, n_slices // 4)
    for k in range(n_slices - n_noise):
        sinograms[:, k] = flat[k % 2]
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((n_angles, n_noise, columns), np.float32)
    sinograms[:, n_slices - n_noise :] = NOISE * noise
    return Data(sinograms, angles, axis, n_noise, np.stack(truths), phantom)


def inside(size: int, fraction: float) -> np.ndarray:
    at = (np.arange(size) - (size - 1) / 2) / (size / 2)
    return at[:, None] ** 2 + at[None] ** 2 <= fraction**2


def symmetries(image: np.ndarray) -> list[np.ndarray]:
    return [np.rot90(way, k) for way in (image, image[:, ::-1]) for k in range(4)]


def error_of(image: np.ndarray, truth: np.ndarray, disc: np.ndarray) -> tuple[float, float, int]:
    """Return rms error, gain, and which symmetry: the best of each."""
    wanted = truth[disc].astype(np.float64)
    # found on every fourth pixel, then taken on all
    small = disc[::4, ::4]
    products = [float((way[::4, ::4] * truth[::4, ::4])[small].sum()) for way in symmetries(image)]
    best = int(np.argmax(products))
    got = symmetries(image)[best][disc].astype(np.float64)
    gain = float((got * wanted).sum() / (got * got).sum())
    return float(np.sqrt(np.mean((gain * got - wanted) ** 2))), gain, best


def edge_width(image: np.ndarray, phantom: Any) -> float:
    """Return pixels from 10 to 90 % across the glass tube's outer edge, averaged along it.

    The tube is a circle that is not centred on the axis; the third of it that lies deepest in
    the field is used.
    """
    size = image.shape[0]
    centre, radius = phantom.bodies.centre[0], phantom.bodies.semi[0, 0]
    at = (np.arange(size) - (size - 1) / 2) * 2 / size
    x, y = at[None] - centre[0], -at[:, None] - centre[1]
    distance = (np.hypot(x, y) - radius) * size / 2
    towards = -(x * centre[0] + y * centre[1]) / np.hypot(*centre)
    used = (np.abs(distance) < 6) & (towards > 0.5 * radius)
    bins = np.round(distance[used] * 10).astype(int) + 60
    profile = np.bincount(bins, image[used], 121) / np.maximum(np.bincount(bins, minlength=121), 1)
    low, high = profile[90:].mean(), profile[:30].mean()
    share = (profile - low) / (high - low)
    crossings = []
    for level in (0.9, 0.1):
        k = int(np.argmax(share < level))
        before = share[k - 1] - share[k]
        crossings.append(k - (level - share[k]) / before if before else k)
    return float(crossings[1] - crossings[0]) / 10


class Timer:
    """Times calls by CUDA events, or by the clock where there is no device."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def __call__(self, call: Callable[[], Any], repeats: int = 5) -> float:
        """Return the median of warm calls in seconds."""
        taken = []
        for k in range(repeats + 1):
            if self.xp is np:
                began = time.perf_counter()
                call()
                taken.append(time.perf_counter() - began)
                continue
            stop, start = self.xp.cuda.Event(), self.xp.cuda.Event()
            start.record()
            call()
            stop.record()
            stop.synchronize()
            taken.append(self.xp.cuda.get_elapsed_time(start, stop) / 1e3)
            if k == 0:
                self.xp.cuda.Device().synchronize()
        return statistics.median(taken[1:])


def candidates(quick: bool) -> dict[str, tuple[bool, Callable[..., Any]]]:
    """Return name -> (whether it takes host arrays, function of data, angles and axis)."""
    ours = registry.get("fbp").function
    found: dict[str, tuple[bool, Callable[..., Any]]] = {
        "fbp, shepp-logan": (
            False,
            lambda d, a, c: ours(d, a, center=c, filter_type="shepp-logan"),
        ),
        "fbp, ram-lak": (False, lambda d, a, c: ours(d, a, center=c, filter_type="ram-lak")),
    }
    if quick or importlib.util.find_spec("httomolibgpu") is None:
        return found
    from httomolibgpu.recon import algorithm as h

    found["LPRec3d_tomobar, shepp"] = (
        False,
        lambda d, a, c: h.LPRec3d_tomobar(d, a, center=c, filter_type="shepp"),
    )
    found["LPRec3d_tomobar, ramp"] = (
        False,
        lambda d, a, c: h.LPRec3d_tomobar(d, a, center=c, filter_type="ramp"),
    )
    found["FBP3d_tomobar (ASTRA)"] = (
        False,
        lambda d, a, c: h.FBP3d_tomobar(d, a, center=c, filter_freq_cutoff=1.0),
    )
    found["FBP3d_tomobar (ASTRA), padded"] = (
        False,
        lambda d, a, c: h.FBP3d_tomobar(
            d, a, center=c, filter_freq_cutoff=1.0, detector_pad=d.shape[2] // 2
        ),
    )
    found["FBP2d_astra, shepp-logan"] = (
        True,
        lambda d, a, c: h.FBP2d_astra(d, a, center=c, filter_type="shepp-logan"),
    )
    return found


def measure(name: str, on_host: bool, function: Callable[..., Any], data: Data, xp: Any) -> Row:
    """Return the figures of one method."""
    n_slices = data.sinograms.shape[1]
    some = slice(None)
    if on_host:  # it is slow, and a slice is like another
        some = slice(n_slices - data.n_noise - 4, n_slices - data.n_noise + 4)
    chosen = np.ascontiguousarray(data.sinograms[:, some])
    given = chosen if on_host else xp.asarray(chosen)
    disc = inside(data.truth.shape[-1], MASK)
    angles = data.angles.astype(np.float32)

    def host(result: Any, k: int) -> np.ndarray:
        image = result[:, k]
        return image.get() if hasattr(image, "get") else image

    few = np.ascontiguousarray(data.sinograms[:, :3])  # odd: either end holds the first phantom
    few = few if on_host else xp.asarray(few)
    best = None
    for offset in OFFSETS:
        tried = host(function(few, angles, data.axis + offset), 0)
        error, gain, way = error_of(tried, data.truth[0], disc)
        if best is None or error < best[1]:
            best = (offset, error, gain, way)
            image = symmetries(tried)[way].copy()
    assert best is not None
    offset, error, gain, _ = best
    only_noise = host(function(given, angles, data.axis + offset), -1)
    only_noise = only_noise[inside(only_noise.shape[0], 0.5)]
    taken_s = Timer(xp)(lambda: function(given, angles, data.axis + offset))
    xp.cuda.Device().synchronize() if xp is not np else None
    given = None
    if xp is not np:
        xp.fft.config.get_plan_cache().clear()
        xp.get_default_memory_pool().free_all_blocks()
    with measure_peak("cpu" if xp is np else "cuda") as peak:
        again = chosen.copy() if on_host or xp is np else xp.asarray(chosen)
        result = function(again, angles, data.axis + offset)
        del result, again
    used = peak.counted_bytes
    if xp is not np and peak.device_peak_bytes is not None:  # what libraries take of their own, too
        used = max(used or 0, peak.device_peak_bytes - (peak.device_before_bytes or 0))
    return Row(
        name + (" (from host memory)" if on_host else ""),
        1e3 * taken_s / chosen.shape[1],
        used,
        chosen.nbytes,
        error,
        gain,
        edge_width(image, data.phantom),
        float(gain * only_noise.std() / NOISE),
        offset,
    )


def main(arguments: list[str] | None = None) -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fbp alone, small, also on a CPU")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    asked = parser.parse_args(arguments)
    try:
        import cupy as xp

        xp.cuda.runtime.getDeviceCount()
    except (ImportError, RuntimeError):
        xp = np
    if xp is np and not asked.quick:
        sys.exit("there is no GPU that CuPy can use: --quick runs on the CPU")
    n_angles, n_slices, columns = (181, 8, 256) if asked.quick else (1801, 64, 2560)
    data = make(n_angles, n_slices, columns, 4)
    rows = []
    for name, (on_host, function) in candidates(asked.quick).items():
        try:
            rows.append(measure(name, on_host, function, data, xp))
        except Exception:  # noqa: BLE001  one method's failure must not cost the others' figures
            print(f"{name} failed:\n{traceback.format_exc(limit=-2)}", file=sys.stderr)
    print(f"{n_angles} angles x {columns}, {n_slices} slices; noise in: 1")
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" + "--:|" * (len(COLUMNS) - 1))
    for row in rows:
        print("| " + " | ".join(row.cells()) + " |")
    if asked.json is not None:
        asked.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()

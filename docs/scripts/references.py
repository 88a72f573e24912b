"""Compare the pack with independent references, and write docs/benchmarks/references.md.

    python docs/scripts/references.py docs/benchmarks/references.md

References that are not installed are named as such. Takes about a minute on one core.
"""

from __future__ import annotations

import importlib
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from maxslices_methods import all_stripes, corr, denoise, rotation, stripe
from maxslices_methods.recon import fbp

WIDTH, N_ANGLES, PIXEL_VALUE = 255, 361, 0.01
DISCS = (
    (-0.2, 0.1, 0.3, 1.0),
    (0.3, 0.2, 0.12, 2.0),
    (0.1, -0.4, 0.15, 1.5),
    (0.55, -0.1, 0.06, 3.0),
)
"""Centre (x, y), radius and density; a length of 1 is half of the width."""
DEGREES = np.linspace(0, 180, N_ANGLES)
RADIANS = np.deg2rad(DEGREES)
MIDDLE = (WIDTH - 1) / 2


def sinogram(center: float = MIDDLE) -> np.ndarray:
    """Exact line integrals of the discs, (angles, columns) float32."""
    s = (np.arange(WIDTH) - center) / (WIDTH / 2)
    total = np.zeros((N_ANGLES, WIDTH))
    for x, y, radius, density in DISCS:
        squared = radius**2 - (s - (x * np.cos(RADIANS) - y * np.sin(RADIANS))[:, None]) ** 2
        total += density * WIDTH * np.sqrt(np.clip(squared, 0, None))
    return (PIXEL_VALUE * total).astype(np.float32)


def right_slice(samples: int = 8) -> np.ndarray:
    """The slice that `sinogram` is of; rows go downwards, and so does y."""
    n = WIDTH * samples
    place = (np.arange(n) - (n - 1) / 2) / (n / 2)
    fine = np.zeros((n, n))
    for x, y, radius, density in DISCS:
        fine += density * ((place - x) ** 2 + (place[:, None] - y) ** 2 <= radius**2)
    return PIXEL_VALUE * fine.reshape(WIDTH, samples, WIDTH, samples).mean((1, 3))


RIGHT = right_slice()
PLACE = np.arange(WIDTH) - MIDDLE
INSIDE = PLACE**2 + PLACE[:, None] ** 2 < (0.45 * WIDTH) ** 2


def psnr(image: np.ndarray) -> float:
    """Peak signal to noise ratio in dB, of the slice's middle."""
    return float(10 * np.log10(RIGHT.max() ** 2 / np.mean((image - RIGHT)[INSIDE] ** 2)))


def slope(image: np.ndarray) -> float:
    """Slope of a line through the values over the right ones: 1 is right."""
    return float(np.polyfit(RIGHT[INSIDE], image[INSIDE], 1)[0])


def fbp_algotom(data: np.ndarray) -> np.ndarray:
    """Return algotom's filtered back-projection on a CPU."""
    from algotom.rec.reconstruction import fbp_reconstruction

    return fbp_reconstruction(
        data, MIDDLE, angles=RADIANS, ratio=None, filter_name=None, apply_log=False, gpu=False
    )


def dfi_algotom(data: np.ndarray) -> np.ndarray:
    """Return algotom's direct Fourier inversion."""
    from algotom.rec.reconstruction import dfi_reconstruction

    return dfi_reconstruction(
        data, MIDDLE, angles=RADIANS, ratio=None, filter_name=None, apply_log=False
    )


def fbp_skimage(data: np.ndarray) -> np.ndarray:
    """Return scikit-image's filtered back-projection."""
    from skimage.transform import iradon

    return iradon(data.T, DEGREES, filter_name="ramp", circle=True, output_size=WIDTH)


def fbp_astra(data: np.ndarray) -> np.ndarray:
    """Return ASTRA's filtered back-projection on a CPU."""
    import astra

    projected = astra.create_proj_geom("parallel", 1.0, WIDTH, RADIANS)
    volume = astra.create_vol_geom(WIDTH, WIDTH)
    projector = astra.create_projector("linear", projected, volume)
    source = astra.data2d.create("-sino", projected, data)
    result = astra.data2d.create("-vol", volume)
    config = astra.astra_dict("FBP") | {
        "ProjectorId": projector,
        "ProjectionDataId": source,
        "ReconstructionDataId": result,
        "option": {"FilterType": "ram-lak"},
    }
    algorithm = astra.algorithm.create(config)
    astra.algorithm.run(algorithm)
    return astra.data2d.get(result)


def gridrec_tomopy(data: np.ndarray) -> np.ndarray:
    """Return tomopy's gridrec."""
    import tomopy

    return tomopy.recon(data[:, None], RADIANS, MIDDLE, algorithm="gridrec", filter_name="ramlak")[
        0
    ]


def own(interpolation: str) -> Callable[[np.ndarray], np.ndarray]:
    """Reconstruct by the pack's fbp."""
    return lambda data: fbp(
        data[:, None], RADIANS, filter_type="ram-lak", interpolation=interpolation
    )[:, 0]


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a second call, and its seconds: the first may compile."""
    function()
    begin = time.perf_counter()
    return function(), time.perf_counter() - begin


def best_orientation(image: np.ndarray) -> np.ndarray:
    """The image turned and mirrored as it fits best: conventions differ."""
    turned = [np.rot90(each, k) for each in (image, image[::-1]) for k in range(4)]
    return max(turned, key=psnr)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [head, ("---",) + ("--:",) * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def reconstructions() -> tuple[str, list[str]]:
    """Table of reconstructions, and the references that are missing."""
    rng = np.random.default_rng(0)
    data, noise = sinogram(), rng.normal(0, 0.05, (N_ANGLES, WIDTH)).astype(np.float32)
    rows, missing = [], []
    for name, package, function in (
        ("fbp, sinc", "maxslices", own("sinc")),
        ("fbp, linear", "maxslices", own("linear")),
        ("fbp_reconstruction", "algotom", fbp_algotom),
        ("dfi_reconstruction", "algotom", dfi_algotom),
        ("iradon, linear", "scikit-image", fbp_skimage),
        ("FBP, linear", "astra-toolbox", fbp_astra),
        ("gridrec", "tomopy", gridrec_tomopy),
    ):
        module = {"scikit-image": "skimage", "astra-toolbox": "astra"}.get(package, package)
        try:
            importlib.import_module(module)
        except ImportError as error:
            missing.append(f"{package} ({error})")
            continue
        image, seconds = timed(lambda f=function: f(data))
        image = best_orientation(image)
        spread = function(noise)[INSIDE].std()
        label = package if package == "maxslices" else f"{package} {version(package)}"
        figures = f"{psnr(image):.1f}", f"{slope(image):.4f}", f"{1000 * spread:.3f}"
        rows.append((f"{label}: {name}", *figures, f"{1000 * seconds:.0f}"))
    head = ("reconstruction", "PSNR, dB", "slope", "noise, 1e-3", "time, ms")
    return table(head, rows), missing


def axes() -> str:
    """Table of the axis that searches find."""
    from algotom.prep.calculation import find_center_vo as find_algotom

    rng, rows = np.random.default_rng(1), []
    for center in (120.3, 127.5, 131.8, 139.4):
        data = sinogram(center) + rng.normal(0, 0.02, (N_ANGLES, WIDTH)).astype(np.float32)
        ours, seconds = timed(lambda d=data: rotation.find_center_vo(d[:, None]))
        theirs, other = timed(lambda d=data: find_algotom(d, ncore=1))
        found = f"{float(ours) - center:+.2f}", f"{theirs - center:+.2f}"
        rows.append((f"{center}", *found, f"{seconds:.2f}", f"{other:.2f}"))
    head = ("axis at", "maxslices, error", "algotom, error", "maxslices, s", "algotom, s")
    return table(head, rows)


def costs() -> str:
    """Table of what methods with their defaults do to a slice."""
    from algotom.prep import removal

    wavelet_algotom = removal.remove_stripe_based_wavelet_fft
    rng = np.random.default_rng(2)
    clean = sinogram()
    gain = rng.normal(0, 0.02, WIDTH).astype(np.float32)
    striped = clean + gain
    zingers = clean.copy()
    zingers[rng.integers(0, N_ANGLES, 400), rng.integers(0, WIDTH, 400)] += 2

    def of(data: np.ndarray) -> float:
        return psnr(own("sinc")(data.astype(np.float32)))

    def apply(function: Callable[..., Any], **given: Any) -> Callable[[np.ndarray], np.ndarray]:
        return lambda data: np.asarray(function(data[:, None].copy(), **given))[:, 0]

    def stack(function: Callable[..., Any], **given: Any) -> Callable[[np.ndarray], np.ndarray]:
        return lambda data: function(np.repeat(data[:, None], 5, 1), **given)[:, 2]

    rows = []
    for name, function, faulty in (
        ("remove_stripe_based_sorting", apply(stripe.remove_stripe_based_sorting), striped),
        ("remove_stripe_fw", apply(stripe.remove_stripe_fw), striped),
        ("remove_stripe_ti", apply(stripe.remove_stripe_ti), striped),
        ("remove_all_stripe", apply(all_stripes.remove_all_stripe), striped),
        ("algotom: remove_stripe_based_sorting", removal.remove_stripe_based_sorting, striped),
        ("algotom: remove_stripe_based_wavelet_fft", wavelet_algotom, striped),
        ("algotom: remove_all_stripe", removal.remove_all_stripe, striped),
        ("median_filter", stack(corr.median_filter), zingers),
        ("remove_outlier, dif 0.5", stack(corr.remove_outlier, dif=0.5), zingers),
    ):
        before, after = of(faulty), of(function(faulty))
        whole = of(function(clean))
        rows.append((name, f"{whole - of(clean):+.1f}", f"{before:.1f}", f"{after:.1f}"))
    volume = np.repeat(own("sinc")(clean)[None], 5, 0)
    noisy = volume + rng.normal(0, 1e-3, volume.shape).astype(np.float32)
    for name, smooth in (
        ("total_variation_rof", denoise.total_variation_rof),
        ("total_variation_pd", denoise.total_variation_pd),
        ("total_variation_pd, strength 3e-4", lambda v: denoise.total_variation_pd(v, 3e-4)),
    ):
        whole, before, after = (psnr(each[2]) for each in (smooth(volume), noisy, smooth(noisy)))
        change = f"{whole - psnr(volume[2]):+.1f}"
        rows.append((name, change, f"{before:.1f}", f"{after:.1f}"))
    head = ("method", "costs, dB", "with the fault", "and after the method")
    return table(head, rows)


def page() -> str:
    """The page."""
    reconstructed, missing = reconstructions()
    absent = f"Not to be imported here, and so left out: {', '.join(missing)}." if missing else ""
    return f"""# Compared with independent references

Made by `python docs/scripts/references.py docs/benchmarks/references.md` on
{time.strftime("%Y-%m-%d")}, {platform.machine()}, Python {platform.python_version()}, NumPy
{np.__version__}, in one run. The machine had other work, so times are rough.

The object is four discs, the largest value {RIGHT.max():.3f} per pixel; its line integrals are
exact, {N_ANGLES} angles x {WIDTH} columns. PSNR is that of the slice's middle, 0.9 of its width.
The slope is that of a line through the values over the right ones. Noise is the standard deviation
of a slice of white noise of 0.05.

## Reconstruction

Ramp filter without a window, on the CPU, one slice.
{absent}

{reconstructed}

## Axis

`find_center_vo` with its defaults, on a sinogram with noise of 0.02.

{axes()}

## What methods cost

With their defaults, PSNR in dB: what a method takes from a slice without the fault that it removes,
and what it gives to one with it. Stripes have a standard deviation of 0.02 and are one pixel wide.
400 pixels have zingers of 2. Slices have noise of 0.001.

{costs()}
"""


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/benchmarks/references.md")
    target.write_text(page(), encoding="utf-8")

"""How many slices fit, for httomolibgpu's methods: httomo's estimate, and a probe.

Run it where there are a GPU, httomolibgpu and httomo-backends::

    python docs/scripts/httomo_table.py [--out DIR] [--limit-s 165] [--only NAME]

For each case the method is run on N slices and its true peak measured: CuPy's pool by a memory
hook of this script, and what is outside the pool. Then the method is probed as if exactly that
much memory were available, with a whole scan to process: 100 % is N slices. httomo's figures are
those of httomo-backends 1.3.1 for the same peaks on an H200, where it was asked.

A time is that of a probe after kernels have been compiled and libraries loaded. The table is
printed, and written to DIR/table.md.
"""

from __future__ import annotations

import argparse
import gc
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np

from maxslices.arrays import ArraySpec
from maxslices.backends import select_backend
from maxslices.errors import EstimatorError
from maxslices.estimators.probed import probe
from maxslices.estimators.samples import Samples
from maxslices.meters import measure_peak
from maxslices.registry import registry

ANGLES, ROWS, COLUMNS = 1801, 2160, 2560
PRIME_ROWS, PRIME_COLUMNS = 2161, 2557
N_FRAMES = 20
TV = {"regularisation_parameter": 1e-5, "iterations": 3}
IT = {"center": 1280.0, "iterations": 2}
FISTA = {**IT, "regularisation_iterations": 2}
LEAN = {"calculate_padding_value_method": "next_fast_length"}
LPREC = {"center": 1280.0, "min_mem_usage_filter": False, "min_mem_usage_ifft2": False}
NORMALIZE, CORR, DENOISE = "prep.normalize.", "misc.corr.", "misc.denoise."
PHASE, STRIPE, MORPH, RECON = "prep.phase.", "prep.stripe.", "misc.morph.", "recon.algorithm."


@dataclass(frozen=True)
class Case:
    """A method, its input and parameters, and what httomo says, in percent of the slices."""

    method: str
    dtype: str
    n: int
    httomo: float | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    prime: bool = False

    @property
    def slice_dim(self) -> int:
        """Sinograms for stripes and reconstructions, projections for the rest."""
        sinograms = self.method.startswith((STRIPE, RECON)) or "sino" in self.method
        return 1 if sinograms else 0

    @property
    def other_dims(self) -> tuple[int, int]:
        """Rows or angles, and columns."""
        rows = PRIME_ROWS if self.prime else ROWS
        columns = PRIME_COLUMNS if self.prime else COLUMNS
        return (ANGLES, columns) if self.slice_dim else (rows, columns)

    @property
    def total_slices(self) -> int:
        """Of the whole scan."""
        if self.slice_dim:
            return PRIME_ROWS if self.prime else ROWS
        return ANGLES


AS_HTTOMO = [
    Case(NORMALIZE + "dark_flat_field_correction", "uint16", 64, 100.0),
    Case(NORMALIZE + "minus_log", "float32", 64, 100.0),
    Case(CORR + "remove_outlier", "uint16", 64, 79.7),
    Case(CORR + "remove_outlier", "float32", 64, 79.7),
    Case(CORR + "median_filter", "float32", 64, 79.7),
    Case(DENOISE + "total_variation_ROF", "float32", 64, 96.9, TV),
    Case(DENOISE + "total_variation_PD", "float32", 64, 98.4, TV),
    Case(DENOISE + "total_variation_PD", "float32", 64, 65.6, {**TV, "half_precision": True}),
    Case(PHASE + "paganin_filter", "float32", 64, 100.0),
    Case(PHASE + "paganin_filter", "uint16", 64, 79.7),
    Case(PHASE + "paganin_filter", "float32", 64, 100.0, LEAN),
    Case(PHASE + "paganin_filter_savu_legacy", "float32", 32, 100.0),
    Case(MORPH + "data_resampler", "float32", 64, 20.3, {"newshape": [1080, 1280], "axis": 0}),
    Case("misc.rescale.rescale_to_int", "float32", 64, 90.6, {"bits": 8}),
    Case(STRIPE + "remove_stripe_based_sorting", "float32", 64, 100.0),
    Case(STRIPE + "remove_stripe_ti", "float32", 64, 98.4),
    Case(STRIPE + "remove_stripe_fw", "float32", 64, 90.6),
    Case(STRIPE + "remove_all_stripe", "float32", 32, 21.9),
    Case(STRIPE + "raven_filter", "float32", 32, 100.0),
    Case(MORPH + "sino_360_to_180", "float32", 64, 85.9, {"overlap": 200}),
    Case(RECON + "LPRec3d_tomobar", "float32", 32, 87.5, {"center": 1280.0}),
    Case(RECON + "LPRec3d_tomobar", "float32", 32, 81.2, LPREC),
    Case(RECON + "FBP3d_tomobar", "float32", 32, 53.1, {"center": 1280.0}),
    Case(RECON + "SIRT3d_tomobar", "float32", 32, 62.5, IT),
    Case(RECON + "CGLS3d_tomobar", "float32", 32, 65.6, IT),
    Case(RECON + "FISTA3d_tomobar", "float32", 32, 62.5, FISTA),
]
OTHERS = [
    Case(CORR + "remove_outlier", "float32", 64, None, {"kernel_size": 5}),
    Case(CORR + "median_filter", "uint16", 64, None, {"kernel_size": 5}),
    Case(DENOISE + "total_variation_ROF", "float32", 64, None, {**TV, "half_precision": True}),
    Case(DENOISE + "total_variation_PD", "float32", 64, None, {**TV, "nonnegativity": True}),
    Case(MORPH + "data_resampler", "float32", 64, None, {"newshape": [2999, 3001], "axis": 0}),
    Case("misc.rescale.rescale_to_int", "float32", 64, None, {"bits": 16}),
    Case("misc.rescale.rescale_to_int", "float32", 64, None, {"bits": 32}),
    Case(
        "misc.rescale.rescale_to_int",
        "float32",
        64,
        None,
        {"bits": 8, "glob_stats": [0.1, 1.0, 0.5, 10]},
    ),
    Case(STRIPE + "remove_stripe_based_sorting", "float32", 64, None, {"dim": 2}),
    Case(STRIPE + "remove_stripe_fw", "float32", 64, None, {"level": 4, "wname": "sym16"}),
    Case(STRIPE + "remove_all_stripe", "float32", 32, None, {"dim": 2, "la_size": 31}),
    Case(STRIPE + "raven_filter", "float32", 32, None, {"pad_y": 100, "pad_x": 77}),
    Case(MORPH + "sino_360_to_180", "float32", 61, None, {"overlap": 201, "side": "right"}),
    Case(RECON + "FBP3d_tomobar", "float32", 32, None, {"center": 1280.0, "detector_pad": True}),
    Case(RECON + "FBP3d_tomobar", "float32", 32, None, {"center": 1280.0, "recon_size": 2000}),
    Case(RECON + "LPRec3d_tomobar", "float32", 32, None, {"center": 1280.0, "detector_pad": True}),
    Case(RECON + "LPRec3d_tomobar", "float32", 32, None, {"center": 1280.0, "recon_size": 2000}),
]


def prime_cases() -> list[Case]:
    """Return all cases of httomo at prime sizes, each in both dtypes; some methods refuse one."""
    found: list[Case] = []
    for case in AS_HTTOMO:
        # Reconstructions take float32 alone.
        dtypes = ("float32",) if case.method.startswith(RECON) else ("float32", "uint16")
        for dtype in dtypes:
            n = 61 if case.n == 64 else 31
            made = Case(case.method, dtype, n, None, case.parameters, prime=True)
            if made not in found:
                found.append(made)
    return found


class Hook(cp.cuda.MemoryHook):
    """Bytes that the pool hands out, and the most of them."""

    name = "table"

    def __init__(self) -> None:
        self.now = self.most = 0

    def malloc_postprocess(self, **event: int) -> None:
        """Count up."""
        self.now += event["mem_size"]
        self.most = max(self.most, self.now)

    def free_postprocess(self, **event: int) -> None:
        """Count down."""
        self.now -= event["mem_size"]


def clean() -> None:
    """Give back what can be given back."""
    gc.collect()
    cp.fft.config.get_plan_cache().clear()
    cp.get_default_memory_pool().free_all_blocks()


def true_peak(case: Case, backend: Any, side: dict[str, ArraySpec]) -> tuple[int, int, float]:
    """Return the bytes at N slices, those of them outside the pool, and seconds of a call."""
    meta = registry["httomolibgpu." + case.method]
    dtype = np.dtype(case.dtype)
    samples = Samples(meta, case.slice_dim, case.other_dims, dtype, backend, None, side)
    supplied = samples.side(case.n)
    seen = []
    for _ in range(3):  # the first one compiles
        clean()
        hook = Hook()
        began = time.perf_counter()
        with measure_peak("cuda") as peak, hook:
            data = samples.block(case.n, "even")
            result = meta.function(data, **supplied, **case.parameters)
            cp.cuda.Device().synchronize()
        seconds = time.perf_counter() - began
        del data, result
        seen.append((hook.most + (peak.outside_bytes or 0), peak.outside_bytes or 0, seconds))
    clean()
    return min(seen[1:])


def row_of(case: Case, backend: Any) -> tuple[list[str], float | None]:
    """Measure one case; return its cells, and the percentage."""
    frames = ArraySpec((N_FRAMES, *case.other_dims), np.dtype("uint16"))
    side = {"flats": frames, "darks": frames} if "dark_flat" in case.method else {}
    given = ", ".join(f"{name}={value}" for name, value in case.parameters.items())
    dims = "x".join(map(str, case.other_dims))
    cells = [case.method.rpartition(".")[2], case.dtype, dims, given, str(case.n)]
    try:
        n_bytes, outside_bytes, call_s = true_peak(case, backend, side)
        found = probe(
            registry["httomolibgpu." + case.method],
            case.slice_dim,
            case.other_dims,
            np.dtype(case.dtype),
            backend,
            case.parameters,
            available_bytes=n_bytes,
            total_slices=case.total_slices,
            supplied=side,
        )
    except (ValueError, TypeError, LookupError, RuntimeError, EstimatorError) as error:
        return [*cells, "", "", "", f"{type(error).__name__}: {str(error)[:90]}", "", ""], None
    clean()
    percent = 100 * found.answer / case.n
    print(
        f"    {[rung.n_slices for rung in found.rungs]} sure={found.sure} {found.notes} "
        f"{[round(1e3 * rung.duration_s) for rung in found.rungs]} ms",
        flush=True,
    )
    return [
        *cells,
        f"{n_bytes / 2**20:.1f}",
        f"{outside_bytes / 2**20:.0f}",
        "" if case.httomo is None else f"{case.httomo:.1f}",
        f"{percent:.1f}",
        f"{1e3 * found.duration_s:.0f}",
        f"{1e3 * call_s:.0f}",
    ], percent


HEAD = (
    "method", "dtype", "other dims", "parameters", "slices", "peak MiB", "outside MiB",
    "httomo %", "probed %", "probe ms", "run ms",
)  # fmt: skip


def main() -> None:
    """Measure all cases, in the order in which they matter, for as long as there is time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--limit-s", type=float, default=165.0)
    parser.add_argument("--only", default="", help="methods with this in their name")
    options = parser.parse_args()
    began = time.perf_counter()
    backend = select_backend("cuda")
    lines, bad, good, left = [], [], 0, 0
    for title, cases in (
        ("httomo's cases", AS_HTTOMO),
        ("Other parameters", OTHERS),
        ("Prime sizes", prime_cases()),
    ):
        lines += ["", f"## {title}", "", "| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
        for case in (each for each in cases if options.only in each.method):
            if time.perf_counter() - began > options.limit_s:
                left += 1
                continue
            cells, percent = row_of(case, backend)
            print(" | ".join(cells), flush=True)
            lines.append("| " + " | ".join(cells) + " |")
            if percent is not None and not 98 - 100 / case.n <= percent <= 100:
                bad.append(cells)
            good += percent is not None
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / "table.md").write_text("\n".join(lines).lstrip() + "\n")
    print(f"{good} measured, {left} left out for time, {len(bad)} not as they should be")
    for cells in bad:
        print("    " + " | ".join(cells))


if __name__ == "__main__":
    main()

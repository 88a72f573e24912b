"""How many slices fit, for httomolibgpu's methods: httomo's estimate, and a probe.

Run it where there are a GPU, httomolibgpu and httomo-backends::

    python docs/scripts/httomo_table.py [--out DIR] [--limit-s 400] [--only PATTERN]

For each case the method is run on N slices, and its true peak is what CuPy's pool handed out at
most, by a memory hook of this script, and what C libraries took beside what the pool held at that
moment, from 8 MiB up. Kernels that stay loaded count neither here nor there.
Where calls are short it is also run with fewer slices, since with some methods these take more.
Then the method is probed as if exactly the peak of N slices were available, with a whole scan to
process; 100 % is the most slices of which that many, and any fewer, have no higher peak, and which
run in a pool limited to that memory, as a run limits it: a pool that is full of fragments refuses
what its peak leaves room for. httomo's figures are those of httomo-backends 1.3.1 for the same
peaks on an H200, where it was asked.

A time is that of a probe after kernels have been compiled and libraries loaded. What a method
refuses (a dtype, a parameter) is listed with its error, in its own words. Cheap cases come first;
rows are added to DIR/rows.jsonl one by one, and DIR/table.md has the tables as
docs/benchmarks/httomo.md shows them.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np

from maxslices.core.arrays import ArraySpec
from maxslices.core.method_registry import registry
from maxslices.devices import select_backend
from maxslices.errors import EstimatorError
from maxslices.estimate.model_request import ModelRequest
from maxslices.estimate.probe import probe
from maxslices.measure import measure_peak
from maxslices.trial.trial import Trial

ANGLES, ROWS, COLUMNS = 1801, 2160, 2560
PRIME_ROWS, PRIME_COLUMNS = 2161, 2557
N_FRAMES = 20
TV = {"regularisation_parameter": 1e-5, "iterations": 3}
IT = {"center": 1280.0, "iterations": 2}
FISTA = {**IT, "regularisation_iterations": 2}
LEAN = {"calculate_padding_value_method": "next_fast_length"}
LPREC = {"center": 1280.0, "min_mem_usage_filter": False, "min_mem_usage_ifft2": False}
STATS = (0.1, 1.0, 0.5, 10)
NORMALIZE, CORR, DENOISE = "prep.normalize.", "misc.corr.", "misc.denoise."
PHASE, STRIPE, MORPH, RECON = "prep.phase.", "prep.stripe.", "misc.morph.", "recon.algorithm."


SLOW = tuple(f"{RECON}{name}3d_tomobar" for name in ("FBP", "SIRT", "CGLS", "FISTA"))
QUICK_S = 0.4
"""A call as short as this is made again with fewer slices."""
FEWER = 8
"""As many slices fewer, at most."""
OUTSIDE_BYTES = 8 * 2**20
"""Smaller amounts outside the pool cannot be distinguished from drivers' libraries."""


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
    Case(RECON + "FISTA3d_tomobar", "float32", 32, 71.9, FISTA),
]
OTHERS = [
    Case(CORR + "remove_outlier", "float32", 64, None, {"kernel_size": 5}),
    Case(CORR + "median_filter", "uint16", 64, None, {"kernel_size": 5}),
    Case(DENOISE + "total_variation_ROF", "float32", 64, None, {**TV, "half_precision": True}),
    Case(DENOISE + "total_variation_PD", "float32", 64, None, {**TV, "nonnegativity": True}),
    Case(DENOISE + "total_variation_PD", "float32", 64, None, {**TV, "isotropic": False}),
    Case(MORPH + "data_resampler", "float32", 64, None, {"newshape": [2999, 3001], "axis": 0}),
    Case("misc.rescale.rescale_to_int", "float32", 64, None, {"bits": 16}),
    Case("misc.rescale.rescale_to_int", "float32", 64, None, {"bits": 32}),
    Case("misc.rescale.rescale_to_int", "float32", 64, None, {"bits": 8, "glob_stats": STATS}),
    Case(STRIPE + "remove_stripe_based_sorting", "float32", 64, None, {"dim": 2}),
    Case(STRIPE + "remove_stripe_fw", "float32", 64, None, {"level": 4, "wname": "sym16"}),
    Case(STRIPE + "remove_all_stripe", "float32", 32, None, {"dim": 2, "la_size": 31}),
    Case(STRIPE + "raven_filter", "float32", 64, None, {"pad_y": 100, "pad_x": 77}),
    Case(MORPH + "sino_360_to_180", "float32", 61, None, {"overlap": 201, "side": "right"}),
    Case(RECON + "LPRec3d_tomobar", "float32", 64, None, {"center": 1280.0, "detector_pad": True}),
    Case(RECON + "LPRec3d_tomobar", "float32", 64, None, {"center": 1280.0, "recon_size": 2000}),
    Case(RECON + "FBP3d_tomobar", "float32", 64, None, {"center": 1280.0, "detector_pad": True}),
    Case(RECON + "FBP3d_tomobar", "float32", 64, None, {"center": 1280.0, "recon_size": 2000}),
]
LARGER = [
    Case(each.method, each.dtype, 64, None, each.parameters) for each in AS_HTTOMO if each.n == 32
]


def prime_cases() -> list[Case]:
    """Return all cases of httomo at prime sizes, each in both dtypes; some methods refuse one."""
    found: list[Case] = []
    for case in AS_HTTOMO:
        for dtype in ("float32", "uint16"):
            n = 53 if case.method in SLOW else 61
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
    """Free cached memory."""
    gc.collect()
    cp.fft.config.get_plan_cache().clear()
    cp.get_default_memory_pool().free_all_blocks()


def most_that_run(
    samples: Trial,
    call: Callable[[Any, dict[str, Any]], Any],
    n_bytes: int,
    most: int,
    answer: int,
) -> int:
    """Return the most slices, `most` at most, that run in a pool limited to `n_bytes`.

    So must all between the answer and them: a scan's last block has fewer slices.
    """

    def runs(n: int) -> bool:
        supplied = samples.side(n)
        clean()
        try:
            with samples.backend.limited(n_bytes):
                data = samples.data(n, "even")
                clean()
                call(data, supplied)
                cp.cuda.Device().synchronize()
        except Exception as error:
            if not samples.backend.is_out_of_memory(error):
                raise
            return False
        finally:
            data = None
            clean()
        return True

    found = next((n for n in range(most, 0, -1) if runs(n)), 0)
    return next((n - 1 for n in range(answer + 1, found) if not runs(n)), found)


class Truth:
    """The peaks of one case as they are measured.

    Raises
    ------
    ValueError
        If the method refuses its input or parameters.
    """

    def __init__(self, case: Case, backend: Any, side: dict[str, ArraySpec]) -> None:
        self.case, self.meta = case, registry["httomolibgpu." + case.method]
        dtype = np.dtype(case.dtype)
        self.samples = Trial(
            self.meta, case.slice_dim, case.other_dims, dtype, backend, {}, frames=side
        )
        self.peak(2)  # what compiles has compiled
        self.n_bytes, self.outside_bytes, self.call_s = self.peak(case.n)
        if self.call_s < QUICK_S:
            self.n_bytes, self.outside_bytes, self.call_s = self.peak(case.n)
        self.n_by_peaks = case.n
        if self.call_s < QUICK_S:
            self.n_by_peaks = self._most_that_fit()

    def n_fits(self, answer: int) -> int:
        """Return the slices that fit, where so many are answered."""
        if self.call_s >= QUICK_S:
            return self.n_by_peaks
        return most_that_run(self.samples, self._call, self.n_bytes, self.n_by_peaks, answer)

    def peak(self, n: int) -> tuple[int, int, float]:
        """Return the bytes at n slices, those of them outside the pool, and seconds of a call."""
        supplied = self.samples.side(n)
        clean()
        hook = Hook()
        began = time.perf_counter()
        with measure_peak("cuda") as peak, hook:
            data = self.samples.data(n, "even")
            clean()
            result = self._call(data, supplied)
            cp.cuda.Device().synchronize()
        seconds = time.perf_counter() - began
        del data, result
        outside = max(0, (peak.outside_bytes or 0) - peak.outside_after_bytes)
        outside = outside if outside > OUTSIDE_BYTES else 0
        clean()
        return hook.most + outside, outside, seconds

    def _call(self, data: Any, supplied: dict[str, Any]) -> Any:
        return self.meta.function(data, **supplied, **self.case.parameters)

    def _most_that_fit(self) -> int:
        """Return the most slices of which that many and any fewer fit in the peak of N slices."""
        found = self.case.n
        for n in range(self.case.n - 1, max(1, self.case.n - FEWER), -1):
            if self.peak(n)[0] > self.n_bytes:
                found = n - 1
        return found


def row_of(case: Case, backend: Any) -> dict[str, Any]:
    """Measure one case."""
    frames = ArraySpec((N_FRAMES, *case.other_dims), np.dtype("uint16"))
    side = {"flats": frames, "darks": frames} if "dark_flat" in case.method else {}
    row: dict[str, Any] = {
        "method": case.method.rpartition(".")[2],
        "dtype": case.dtype,
        "other_dims": "x".join(map(str, case.other_dims)),
        "parameters": ", ".join(f"{name}={value}" for name, value in case.parameters.items()),
        "run": case.n,
        "httomo": case.httomo,
    }
    try:
        truth = Truth(case, backend, side)
        request = ModelRequest(
            truth.meta,
            case.slice_dim,
            case.other_dims,
            np.dtype(case.dtype),
            case.parameters,
            case.total_slices,
        )
        found = probe(request, backend, available_bytes=truth.n_bytes, supplied=side)
    except (ValueError, TypeError, LookupError, RuntimeError, EstimatorError, MemoryError) as error:
        clean()
        return row | {"error": f"{type(error).__name__}: {str(error)[:120]}"}
    clean()
    fits = truth.n_fits(found.answer)
    return row | {
        "fit": fits,
        "fit_by_peaks": truth.n_by_peaks,
        "n_bytes": truth.n_bytes,
        "outside_bytes": truth.outside_bytes,
        "answer": found.answer,
        "percent": 100 * found.answer / fits,
        "estimated_bytes": found.model().bytes(case.n),
        "probe_s": found.duration_s,
        "call_s": truth.call_s,
        "rungs": [(r.n_slices, round(1e3 * r.duration_s), r.n_bytes) for r in found.rungs],
        "sure": found.sure,
        "notes": found.notes,
        "output": (found.output_dtype, found.output_dims),
    }


COLUMNS_OF: dict[str, Callable[[dict[str, Any]], str]] = {
    "method": lambda row: row["method"],
    "dtype": lambda row: row["dtype"],
    "other dims": lambda row: row["other_dims"],
    "parameters": lambda row: row["parameters"],
    "slices": lambda row: str(row["run"]),
    "that fit": lambda row: str(row["fit"]),
    "peak MiB": lambda row: f"{row['n_bytes'] / 2**20:.1f}",
    "outside MiB": lambda row: f"{row['outside_bytes'] / 2**20:.0f}",
    "httomo %": lambda row: "" if row["httomo"] is None else f"{row['httomo']:.1f}",
    "probed %": lambda row: f"{row['percent']:.1f}",
    "bytes, probed / measured": lambda row: f"{row['estimated_bytes'] / row['n_bytes']:.4f}",
    "probe ms": lambda row: f"{1e3 * row['probe_s']:.0f}",
    "run ms": lambda row: f"{1e3 * row['call_s']:.0f}",
}


def tables(rows: list[dict[str, Any]]) -> str:
    """Return all rows as Markdown, by their titles."""
    lines: list[str] = []
    for title in dict.fromkeys(row["title"] for row in rows):
        of_title = [row for row in rows if row["title"] == title]
        lines += [f"### {title}", "", "| " + " | ".join(COLUMNS_OF) + " |"]
        lines.append("|---" * len(COLUMNS_OF) + "|")
        lines += [
            "| " + " | ".join(cell(row) for cell in COLUMNS_OF.values()) + " |"
            for row in of_title
            if "error" not in row
        ]
        refused = [row for row in of_title if "error" in row]
        lines += ["", *(f"* {row['method']}, {row['dtype']}: {row['error']}" for row in refused)]
        lines += [""] if refused else []
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Measure all cases, the cheap ones first, for as long as there is time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--limit-s", type=float, default=400.0)
    parser.add_argument(
        "--only", default="", help="regular expression: cases like 'raven_filter float32 64'"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    backend = select_backend("cuda")
    groups = {
        "httomo's cases": AS_HTTOMO,
        "The same with 64 slices": LARGER,
        "Other parameters": OTHERS,
        "Prime sizes": prime_cases(),
    }
    todo = [(title, case) for title, cases in groups.items() for case in cases]
    todo.sort(key=lambda each: each[1].method in SLOW)  # the order is kept otherwise
    rows, left = [], 0
    for title, case in todo:
        name = f"{case.method.rpartition('.')[2]} {case.dtype} {case.n}"
        if not re.search(options.only, name):
            continue
        if time.perf_counter() - began > options.limit_s:
            left += 1
            continue
        row = {"title": title} | row_of(case, backend) | {"at_s": time.perf_counter() - began}
        rows.append(row)
        with (options.out / "rows.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(*(f"{key}={value}" for key, value in row.items()), flush=True)
        ordered = [row for title in groups for row in rows if row["title"] == title]
        (options.out / "table.md").write_text(tables(ordered))
    measured = [row for row in rows if "error" not in row]
    bad = [row for row in measured if not 98 <= row["percent"] <= 100]
    print(
        f"{len(measured)} measured, {len(rows) - len(measured)} refused, {left} left out for time"
    )
    print(f"{len(bad)} not within 98 to 100 %:")
    for row in bad:
        print("   ", *(f"{key}={value}" for key, value in row.items() if key != "title"))


if __name__ == "__main__":
    main()

"""Compare a method's results for the same slices in blocks of all sizes.

Run it where there are a GPU and httomolibgpu::

    python docs/scripts/block_sizes.py OUT [--slices 33]

For each case, all blocks of 1 to N slices from the first slice on are compared with each other,
and blocks that start one slice later. The table groups the sizes that agree (to `ROUNDING` of the
range) with the largest one, with the largest even one and with the largest odd one.
OUT/block_sizes.json has the differences of all pairs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import maxslices.httomo  # noqa: F401  registers httomolibgpu, also where maxslices is not installed
from maxslices.block_effect.effect import ROUNDING
from maxslices.block_effect.side_of_block import cut
from maxslices.block_effect.trial_slices import TrialSlices
from maxslices.core.compare_arrays import compare_arrays, value_range
from maxslices.core.method_registry import registry
from maxslices.devices import Backend, select_backend
from maxslices.devices.sample_data import Samples

LPREC = "httomolibgpu.recon.algorithm.LPRec3d_tomobar"
LARGE_CHUNKS = {"min_mem_usage_filter": False, "min_mem_usage_ifft2": False}
CASES: list[tuple[str, int, tuple[int, int], str, dict[str, Any]]] = [
    (LPREC, 1, (901, 1280), "float32", {}),
    (LPREC, 1, (901, 1279), "float32", {}),
    (LPREC, 1, (901, 1280), "float32", LARGE_CHUNKS),
    (LPREC, 1, (600, 512), "float32", {}),
    ("httomolibgpu.recon.algorithm.FBP3d_tomobar", 1, (600, 512), "float32", {}),
    ("httomolibgpu.prep.stripe.remove_all_stripe", 1, (600, 512), "float32", {}),
    ("httomolibgpu.prep.phase.paganin_filter", 0, (540, 512), "float32", {}),
]
TRIED = [("gaussian", 0, (64, 80), "float32", {}), ("pairs", 0, (64, 80), "float32", {})]
"""Cases of ``--try``, which needs no GPU."""


def pairs(data: Any) -> Any:
    """Made-up method: each slice and the next one share their mean."""
    result = data.copy()
    for i in range(0, len(data) - 1, 2):
        result[i : i + 2] -= data[i : i + 2].mean()
    return result


def gaussian(data: Any) -> Any:
    """Made-up method: it needs a halo, and declares none."""
    return importlib.import_module("scipy.ndimage").gaussian_filter(data, 1.0)


def compared(trial: TrialSlices, n: int) -> dict[str, Any]:
    """Differences between all blocks that start at the first slice, and those one later."""
    results = {size: trial.run(0, size) for size in range(1, n + 1)}
    dim = trial.slice_dim
    extent = value_range(results[n], dim)
    gaps = {}
    for a in results:
        for b in range(a + 1, n + 1):
            other = cut(results[b], dim, 0, a)
            gaps[f"{a} {b}"] = compare_arrays(results[a], other, dim).largest / extent
    late = {}
    for size in (n // 2, n // 2 + 1):
        part = trial.run(1, 1 + size)
        late[size] = compare_arrays(part, cut(results[n], dim, 1, 1 + size), dim).largest / extent
    again = compare_arrays(trial.run(0, n), results[n], dim).largest / extent
    return {"slices": n, "gaps": gaps, "starting at 1": late, "again": again}


def grouped(found: dict[str, Any]) -> list[str]:
    """Which sizes agree with the largest, the largest even and the largest odd size."""
    n, gaps = found["slices"], found["gaps"]

    def gap(a: int, b: int) -> float:
        return 0.0 if a == b else float(gaps[f"{min(a, b)} {max(a, b)}"])

    lines = []
    for base in sorted({n, n - n % 2, n - 1 + n % 2}, reverse=True):
        alike = [k for k in range(1, n + 1) if gap(k, base) <= ROUNDING]
        worst = max((gap(k, base), k) for k in range(1, n + 1))
        lines.append(f"  as {base}: {alike}; furthest {worst[0]:.2g} at {worst[1]}")
    late = ", ".join(f"{k}: {v:.2g}" for k, v in found["starting at 1"].items())
    lines.append(f"  blocks from slice 1 on against all: {late}; again: {found['again']:.2g}")
    return lines


def run_case(backend: Backend, case: Any, n: int) -> dict[str, Any]:
    """Compare the blocks of one case."""
    name, slice_dim, dims, dtype, parameters = case
    meta = registry.get(name)
    samples = Samples(meta, slice_dim, dims, np.dtype(dtype), backend)
    trial = TrialSlices(meta, samples, backend, parameters, n)
    trial.run(0, n)
    began = time.perf_counter()
    found = compared(trial, n)
    print(f"{meta.name} {dims} {parameters} {time.perf_counter() - began:.1f} s")
    print("\n".join(grouped(found)), flush=True)
    return {"method": name, "dims": dims, "dtype": dtype, "parameters": parameters, **found}


def main() -> None:
    """Parse, compare, and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--slices", type=int, default=33)
    parser.add_argument("--limit-s", type=float, default=60.0)
    parser.add_argument("--try", dest="tries", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    backend = select_backend("cpu" if options.tries else "cuda")
    if options.tries:
        for function in (pairs, gaussian):
            registry.register(function, pattern="projection", name=function.__name__)
    rows: list[dict[str, Any]] = []
    began = time.perf_counter()
    for case in TRIED if options.tries else CASES:
        if time.perf_counter() - began > options.limit_s:
            print(f"{case[0]}: left out")
            continue
        try:
            rows.append(run_case(backend, case, options.slices))
        except Exception as error:  # noqa: BLE001 - a row says it
            print(f"{case[0]} {case[2]}: {type(error).__name__}: {str(error)[:150]}")
        backend.release()
    (options.out / "block_sizes.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()

"""How well probes answer where allocations do not tell the memory.

::

    python docs/scripts/fallback_table.py OUT [--device cuda] [--limit-s 100]

Each function is measured with n slices, and a probe is given exactly that memory. Printed are the
slices that fit and those that were answered, with the calls and the time. On the CPU functions for
torch and those that call cudaMalloc are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from maxslices.core.allocators import round_to_granule
from maxslices.core.declaration import describe
from maxslices.devices import call_method, select_backend
from maxslices.estimate.model_request import ModelRequest
from maxslices.estimate.probed import probe
from maxslices.measure import measure_peak
from maxslices.measure.alive import tracemalloc_on
from maxslices.trial.made_up import array_module
from maxslices.trial.trial import Trial

DIMS = (601, 1013)
"""Other dims: primes, which no padding or chunk divides."""
COUNTS = (23, 61)
"""Slices of which the peak is the budget: no multiples of the chunks of 8 and 16 in the cases."""
KEPT: list[Any] = []
KEPT_BY_SLICES: dict[int, Any] = {}
OUTSIDE = [0]
"""Most bytes outside the pool in the last call."""


def bright_pixels(xp: Any, a: Any) -> Any:
    """Memory that depends on the data."""
    bright = a[a > 0.6].astype("float64")
    return a - bright.mean().astype("float32")


def sorted_outliers(xp: Any, a: Any) -> Any:
    """As many values as lie above a threshold are sorted."""
    low = xp.sort(a[a < 0.3])
    return xp.clip(a, low[len(low) // 2], None)


def leaks(xp: Any, a: Any) -> Any:
    """Each call loses as much as its slices."""
    KEPT.append(xp.ones((len(a), 64, 1013), "float32"))
    return a * 2


def keeps_by_slices(xp: Any, a: Any) -> Any:
    """A cache with an entry for each number of slices."""
    if len(a) not in KEPT_BY_SLICES:
        KEPT_BY_SLICES[len(a)] = xp.ones((len(a), 300, 1013), "float32")
    return a + KEPT_BY_SLICES[len(a)].mean()


def keeps_the_largest(xp: Any, a: Any) -> Any:
    """A workspace that grows with the largest block so far."""
    held = KEPT_BY_SLICES.get(0)
    if held is None or len(held) < len(a):
        KEPT_BY_SLICES.pop(0, None)
        held = None
        KEPT_BY_SLICES[0] = xp.empty(a.shape, "float32")
    work = KEPT_BY_SLICES[0][: len(a)]
    xp.multiply(a, 2, out=work)
    return work.copy()


def outside(size_of: Callable[[int], int]) -> Callable[[Any, Any], Any]:
    """A function that calls cudaMalloc beside the pool."""

    def method(xp: Any, a: Any) -> Any:
        runtime = xp.cuda.runtime
        OUTSIDE[0] = size_of(len(a))
        pointer = runtime.malloc(OUTSIDE[0])
        try:
            b = a * 2
            xp.cuda.Device().synchronize()
            time.sleep(0.006)  # the meter reads every 2 ms
            return b + a
        finally:
            runtime.free(pointer)

    return method


def torch_function(name: str) -> Callable[[Any], Any]:
    """A function for torch, (slices, rows, columns) to as many."""
    import torch

    weights = torch.ones((8, 1, 5, 5), device="cuda")

    def method(data: Any) -> Any:
        if name == "torch_conv":
            return torch.nn.functional.conv2d(data[:, None], weights, padding=2).mean(dim=1)
        if name == "torch_fft":
            return torch.fft.irfft2(torch.fft.rfft2(data) * 0.5, s=data.shape[1:])
        if name == "torch_chunks":
            return torch.cat([torch.sort(part, dim=2).values for part in data.split(8)])
        mask = data > 0.6
        return data - data[mask].double().mean().float()

    return method


def cases(device: str) -> list[tuple[str, Callable[[Any], Any], str | None]]:
    """Names, functions and array modules."""
    xp = array_module(select_backend(device))
    found: list[tuple[str, Callable[[Any], Any], str | None]] = [
        (each.__name__, lambda data, each=each: each(xp, data), None)
        for each in (bright_pixels, sorted_outliers, leaks, keeps_by_slices, keeps_the_largest)
    ]
    if device == "cuda":
        sizes = {
            "outside_line": lambda n: 90_000_000 + 3_333_333 * n,
            "outside_fixed": lambda n: 700_000_000,
            "outside_steps": lambda n: 7_000_001 * (-(-n // 16) * 16),
            "outside_passes": lambda n: 2_500_000 * n * (n - 1).bit_length(),
        }
        methods = {name: outside(size) for name, size in sizes.items()}
        found += [
            (name, lambda data, each=each: each(xp, data), None) for name, each in methods.items()
        ]
        if importlib.util.find_spec("torch"):
            names = ("torch_conv", "torch_fft", "torch_chunks", "torch_mask")
            found += [(name, torch_function(name), "torch") for name in names]
    return found


def lost_by_a_call(n: int, kind: str) -> int:
    """Bytes that a call of `leaks` loses, as the allocator rounds them."""
    n_bytes = n * 64 * 1013 * 4
    return round_to_granule(n_bytes) if kind == "cuda" else n_bytes


def row_of(
    name: str, function: Callable[[Any], Any], module: str | None, n: int, backend: Any
) -> dict[str, Any]:
    """Measure a function with n slices and fewer, and probe it as if that were the memory."""

    def method(data: Any) -> Any:
        return function(data)

    meta = describe(method, pattern="projection", name=name, module="m", array_module=module)
    samples = Trial(meta, 0, DIMS, np.dtype("float32"), backend, {})
    kind = "highest" if "bright" in name or "mask" in name else "even"
    kind = "lowest" if "outliers" in name else kind

    def peak(k: int) -> int:
        KEPT.clear()
        KEPT_BY_SLICES.clear()
        backend.release()
        data = samples.data(k, kind)
        backend.release()
        with measure_peak(backend.kind) as measured:
            result = call_method(meta, data, {}, backend)
        del result
        counted = measured.counted_bytes or 0
        return samples.nbytes(k) + counted + (OUTSIDE[0] if name.startswith("outside") else 0)

    with tracemalloc_on(backend.kind):
        peak(2)
        total = 10 * n
        lost = lost_by_a_call(n, backend.kind) * (total // n - 1) if name == "leaks" else 0
        available = peak(n) + lost + (24 * 1024 if backend.kind == "cpu" else 0)
        if name.startswith("outside"):
            available += 4 * 2**20  # the driver's granule, and the meter's
        fits = n
    KEPT.clear()
    KEPT_BY_SLICES.clear()
    backend.release()
    request = ModelRequest(meta, 0, DIMS, np.dtype("float32"), {}, total)
    found = probe(request, backend, available_bytes=available)
    KEPT.clear()
    return {
        "name": name, "n": n, "fit": fits, "answer": found.answer, "sure": found.sure,
        "percent": 100 * found.answer / fits, "probe_s": found.duration_s,
        "by_sequence": not any("peaks alone" in note for note in found.notes),
        "calls": 1 + len(found.rungs),
        "slices": [rung.n_slices for rung in found.rungs], "notes": found.notes,
        "estimated": found.model().bytes(n) / available,
    }  # fmt: skip


def main() -> None:
    """Measure all functions for as long as there is time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--limit-s", type=float, default=100.0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    backend, began, rows = select_backend(options.device), time.perf_counter(), []
    for n in COUNTS:
        for name, function, module in cases(options.device):
            if time.perf_counter() - began > options.limit_s:
                continue
            try:
                rows.append(row_of(name, function, module, n, backend))
            except Exception as error:  # noqa: BLE001  reported as a row
                rows.append({"name": name, "n": n, "error": f"{type(error).__name__}: {error}"})
    (options.out / "fallback.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for row in rows:
        if "error" in row:
            print(f"{row['name']:24s} {row['n']:3d} {row['error'][:120]}")
            continue
        print(
            f"{row['name']:24s} {row['answer']:3d} of {row['fit']:3d}  {row['estimated']:.4f}"
            f"  {row['calls']:2d} calls {row['probe_s']:.2f} s  {row['slices']} {row['notes']}"
        )
    good = [row for row in rows if "error" not in row]
    right = sum(98 <= row["percent"] <= 100 for row in good)
    print(f"{len(good)} rows, {right} within 98 to 100 %,", end=" ")
    print(f"{sum(row['percent'] > 100 for row in good)} above, {len(rows) - len(good)} errors")


if __name__ == "__main__":
    main()

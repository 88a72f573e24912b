"""How well probes answer: all rows of httomo_table.py, and functions that nobody tuned to.

Run it where there are a GPU and httomolibgpu::

    python docs/scripts/estimate_table.py OUT [--limit-s 300] [--only PATTERN]

For each row the true peak of n slices is measured, and a probe is given exactly that memory. A row
is right if 98 to 100 % of the slices that fit are answered: their peak fits, and they run in a pool
of that size, as do fewer. Printed are the rows that are not, with the slices that fit by their
peaks alone in brackets, the seconds of the probes, and the number of calls. OUT/rows.jsonl has all.
Quick methods come first.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cupy
import httomo_table as table
import numpy as np
from cupyx.scipy import ndimage, signal
from record_sequences import as_method

from maxslices.core.declaration import describe
from maxslices.devices import select_backend
from maxslices.estimate import sequence_probe
from maxslices.estimate.model_request import ModelRequest
from maxslices.estimate.probe import probe
from maxslices.measure import measure_peak
from maxslices.trial.trial import Trial
from maxslices.tuning.garbage_collection import quick_collections

Function = Callable[[Any, Any, Any], Any]
DIMS = ((1999, 2333), (1024, 1536))
"""Other dims of the functions: two primes, and two with many factors: FFTs differ."""


def chunks_of_5(xp: Any, nd: Any, a: Any) -> Any:
    """Chunks that are fewer than the small calls' slices."""
    out = xp.empty_like(a)
    for i in range(0, len(a), 5):
        out[i : i + 5] = nd.gaussian_filter(a[i : i + 5].astype("float64"), (0, 1, 1))
    return out


def chunks_of_32_padded(xp: Any, nd: Any, a: Any) -> Any:
    """Chunks of 32, each padded."""
    out = xp.empty_like(a)
    for i in range(0, len(a), 32):
        wide = xp.pad(a[i : i + 32], ((0, 0), (8, 8), (8, 8)), mode="edge")
        out[i : i + 32] = nd.uniform_filter(wide, (1, 5, 5))[:, 8:-8, 8:-8]
    return out


def triples(xp: Any, nd: Any, a: Any) -> Any:
    """Groups of three slices, the last one filled up."""
    n = -(-len(a) // 3) * 3
    full = xp.zeros((n, *a.shape[1:]), a.dtype)
    full[: len(a)] = a
    return full.reshape(n // 3, 3, *a.shape[1:]).mean(axis=1).repeat(3, axis=0)[: len(a)].copy()


def fft_odd_shape(xp: Any, nd: Any, a: Any) -> Any:
    """FFT of rows of a prime length."""
    return xp.fft.ifft(xp.fft.fft(a, 2339, axis=2), axis=2).real[:, :, : a.shape[2]].copy()


def convolved(xp: Any, nd: Any, a: Any) -> Any:
    """FFT convolution of each slice, in a list."""
    kernel = xp.ones((15, 15), "float32") / 225
    return xp.stack([signal.fftconvolve(one, kernel, mode="same") for one in a])


def wiener(xp: Any, nd: Any, a: Any) -> Any:
    """Wiener filter of each slice."""
    return xp.stack([signal.wiener(one, 5).astype("float32") for one in a])


def sort_whole(xp: Any, nd: Any, a: Any) -> Any:
    """Sort all values."""
    return xp.sort(a.ravel()).reshape(a.shape)


def lexsorted(xp: Any, nd: Any, a: Any) -> Any:
    """Ranks within each row."""
    return xp.argsort(xp.argsort(a, axis=2), axis=2).astype("float32")


def uniques(xp: Any, nd: Any, a: Any) -> Any:
    """Levels of a quantized block, put back."""
    levels, where = xp.unique((a * 20).astype("uint8"), return_inverse=True)
    return levels[where].reshape(a.shape)


def solve_slices(xp: Any, nd: Any, a: Any) -> Any:
    """Solve a system made of a corner of each slice."""
    out = a.copy()
    for i in range(len(a)):
        m = a[i, :256, :256] + 256 * xp.eye(256, dtype="float32")
        out[i, :256, :1] = xp.linalg.solve(m, a[i, :256, :1])
    return out


def covariance(xp: Any, nd: Any, a: Any) -> Any:
    """Project out the first principal components along the slices."""
    flat = a.reshape(len(a), -1) - a.reshape(len(a), -1).mean(axis=1, keepdims=True)
    _, vectors = xp.linalg.eigh(flat @ flat.T)
    top = vectors[:, -1:]
    return (flat - top @ (top.T @ flat)).reshape(a.shape)


def qr_thin(xp: Any, nd: Any, a: Any) -> Any:
    """Thin QR of each slice's columns."""
    return a - xp.stack([xp.linalg.qr(one[:, :64])[0].mean() for one in a])[:, None, None]


def open_close(xp: Any, nd: Any, a: Any) -> Any:
    """Grey opening and closing."""
    return nd.grey_closing(nd.grey_opening(a, (1, 3, 3)), (1, 3, 3))


def distances(xp: Any, nd: Any, a: Any) -> Any:
    """Gradients of each slice in double precision."""
    out = []
    for one in a:
        gy, gx = xp.gradient(one.astype("float64"))
        out.append(xp.hypot(gy, gx).astype("float32"))
    return xp.asarray(out)


def affine(xp: Any, nd: Any, a: Any) -> Any:
    """Affine transform with order 1, slice by slice into a list kept twice."""
    kept = [nd.affine_transform(one, xp.eye(2) * 0.9, order=1) for one in a]
    doubled = [one * 2 for one in kept]
    return xp.stack(kept) + xp.stack(doubled)


def moving_mean(xp: Any, nd: Any, a: Any) -> Any:
    """Mean over a window of slices, with a queue of seven."""
    queue: list[Any] = []
    out = xp.empty_like(a)
    for i in range(len(a)):
        queue.append(a[i].astype("float64"))
        if len(queue) > 7:
            queue.pop(0)
        out[i] = sum(queue) / len(queue)
    return out


def pyramid(xp: Any, nd: Any, a: Any) -> Any:
    """Four levels of half the size, and back."""
    levels = [a]
    for _ in range(4):
        levels.append(levels[-1][:, ::2, ::2].copy())
    total = levels[-1]
    for level in reversed(levels[:-1]):
        wide = xp.repeat(xp.repeat(total, 2, axis=1), 2, axis=2)
        total = level + wide[:, : level.shape[1], : level.shape[2]]
    return total


def half_then_single(xp: Any, nd: Any, a: Any) -> Any:
    """Work in half precision, in two halves of the block."""
    half = -(-len(a) // 2)
    parts = [xp.exp(-part.astype("float16")) for part in (a[:half], a[half:])]
    return xp.concatenate(parts).astype("float32")


def quantiles_of_rows(xp: Any, nd: Any, a: Any) -> Any:
    """Subtract a low quantile of each row."""
    return a - xp.quantile(a, 0.1, axis=2, keepdims=True)


def bincounted(xp: Any, nd: Any, a: Any) -> Any:
    """A histogram of each slice, scaled."""
    out = xp.empty_like(a)
    for i, one in enumerate(a):
        counts = xp.bincount((one * 255).astype("int32").ravel(), minlength=256)
        out[i] = counts[(one * 255).astype("int32")]
    return out


def dct_like(xp: Any, nd: Any, a: Any) -> Any:
    """Mirror the rows and transform twice the length."""
    both = xp.concatenate([a, a[:, :, ::-1]], axis=2)
    return xp.fft.irfft(xp.fft.rfft(both, axis=2) * 0.5, both.shape[2], axis=2)[:, :, : a.shape[2]]


UNSEEN: tuple[Function, ...] = (
    chunks_of_5, chunks_of_32_padded, triples, fft_odd_shape, convolved, wiener, sort_whole,
    lexsorted, uniques, solve_slices, covariance, qr_thin, open_close, distances, affine,
    moving_mean, pyramid, half_then_single, quantiles_of_rows, bincounted, dct_like,
)  # fmt: skip
"""Functions that no estimator was tuned to."""


def rows_of_httomo(backend: Any, slow: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Rows of httomo_table.py; ASTRA's are slow."""
    groups = (table.AS_HTTOMO, table.LARGER, table.OTHERS, table.prime_cases())
    for case in (case for cases in groups for case in cases):
        if (case.method in table.SLOW) == slow:
            name = f"{case.method} {case.dtype} {case.other_dims} {case.n} {case.parameters}"
            yield name, lambda case=case: table.row_of(case, backend)


def row_of_function(function: Function, dims: tuple[int, int], n: int, backend: Any) -> Any:
    """Measure a function with n slices, and probe it as if that were the memory."""
    meta = describe(
        as_method(function, cupy, ndimage), pattern="projection",
        name=function.__name__, module="outside",
    )  # fmt: skip
    samples = Trial(meta, 0, dims, np.dtype("float32"), backend, {})

    def peak(k: int) -> int:
        table.clean()
        data = samples.data(k, "even")
        with measure_peak("cuda") as measured:
            result = meta.function(data)
            cupy.cuda.Device().synchronize()
        del result
        return samples.nbytes(k) + (measured.cupy_in_use_bytes or 0)

    peak(2)
    available, fits = peak(n), n
    for k in range(n - 1, n - table.FEWER, -1):
        if peak(k) > available:
            fits = k - 1
    if peak(n + 1) <= available:
        fits = n + 1
    by_peaks = fits
    request = ModelRequest(meta, 0, dims, np.dtype("float32"), {}, 1801)
    table.clean()
    found = probe(request, backend, available_bytes=available)
    call = lambda data, _: meta.function(data)  # noqa: E731
    fits = table.most_that_run(samples, call, available, by_peaks, found.answer)
    return {
        "method": function.__name__, "dtype": "float32", "other_dims": f"{dims[0]}x{dims[1]}",
        "parameters": "", "run": n, "fit": fits, "fit_by_peaks": by_peaks,
        "n_bytes": available, "answer": found.answer,
        "percent": 100 * found.answer / fits, "estimated_bytes": found.model().bytes(n),
        "probe_s": found.duration_s, "notes": found.notes, "sure": found.sure,
        "rungs": [(r.n_slices, round(1e3 * r.duration_s), r.n_bytes) for r in found.rungs],
        "by_sequence": not any("peaks alone" in note for note in found.notes),
        "extrapolates_exactly": found.extrapolates_exactly,
    }  # fmt: skip


def main() -> None:
    """Measure all rows for as long as there is time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit-s", type=float, default=300.0)
    parser.add_argument("--only", default="", help="regular expression of a row's name")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    backend, began = select_backend("cuda"), time.perf_counter()
    reasons: list[str] = []
    raised = sequence_probe.NotExplainedError.__init__

    def noted(error: Exception, *texts: Any) -> None:
        reasons.append(str(texts[0]))
        raised(error, *texts)

    sequence_probe.NotExplainedError.__init__ = noted  # type: ignore[method-assign]
    functions = [
        (f"outside {f.__name__} {d}", lambda f=f, d=d, n=n: row_of_function(f, d, n, backend))
        for d, n in zip(DIMS, (37, 90), strict=True)
        for f in UNSEEN
    ]
    slow = list(rows_of_httomo(backend, True))
    first = len(table.SLOW)  # httomo's own rows of ASTRA's methods
    todo = [*rows_of_httomo(backend, False), *slow[:first], *functions, *slow[first:]]
    rows, left = [], 0
    with (options.out / "rows.jsonl").open("w") as file, quick_collections():
        for name, make in todo:
            if not re.search(options.only, name):
                continue
            if time.perf_counter() - began > options.limit_s:
                left += 1
                continue
            reasons.clear()
            try:
                row = make()
            except Exception as error:  # noqa: BLE001  reported as a row
                row = {"method": name, "error": f"{type(error).__name__}: {error}"[:200]}
                table.clean()
            row["not_explained"] = list(reasons)
            rows.append(row)
            file.write(json.dumps(row, default=str) + "\n")
            file.flush()
    good = [row for row in rows if "error" not in row]
    outside = [row for row in good if row.get("by_sequence") is not None]
    for name, some in (
        ("httomolibgpu", [r for r in good if r not in outside]),
        ("unseen", outside),
    ):
        times = sorted(row["probe_s"] for row in some) or [0.0]
        right = sum(98 <= row["percent"] <= 100 for row in some)
        above = sum(row["percent"] > 100 for row in some)
        calls = sorted(1 + len(row["rungs"]) for row in some) or [0]
        print(f"{name}: {len(some)} rows, {right} within 98 to 100 %, {above} above")
        print(
            f"   probe s: median {statistics.median(times):.3f}, most {times[-1]:.2f}; calls:"
            f" median {statistics.median(calls)}, most {calls[-1]}"
        )
    print(f"{len(rows) - len(good)} refused, {left} left out, {time.perf_counter() - began:.0f} s")
    for row in rows:
        wrong = "error" in row or not 98 <= row["percent"] <= 100
        if wrong or row["not_explained"] or row["probe_s"] > 1:
            brief = [row["method"], row.get("other_dims"), row.get("dtype"), row.get("parameters")]
            if "error" in row:
                print("   ", *brief, row["error"][:90])
            else:
                print(
                    "   ",
                    *brief,
                    f"{row['run']}: {row['answer']} of {row['fit']} ({row['fit_by_peaks']}),",
                    f"{row['estimated_bytes'] / row['n_bytes']:.4f} {row['probe_s']:.2f} s",
                    [f"{r[0]}:{r[1]}ms" for r in row["rungs"]],
                    row["not_explained"],
                    row["notes"],
                )


if __name__ == "__main__":
    main()

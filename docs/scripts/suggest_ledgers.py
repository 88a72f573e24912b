"""Suggest ledgers and hold them against further sizes.

Called as: python suggest_ledgers.py OUT [SECONDS] [DEVICE] [PATTERN]

OUT/ledgers.txt gets the suggested text of functions of cupyx.scipy (scipy.ndimage and scikit-image
on "cpu") and of each method of maxslices-methods whose names have PATTERN in them; the table says
for two further sizes what the ledger estimates over what is measured. Those not begun within
SECONDS (default 110) are left out. With httomolibgpu installed, blocks of its methods are compared
as well.
"""

from __future__ import annotations

import re
import sys
import time
import traceback
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

from maxslices.checking.estimate_check import check_trial, trial_of
from maxslices.core.arrays import ArraySpec
from maxslices.core.author_code import make_callback
from maxslices.core.named_method import method_named
from maxslices.suggest.suggest_ledger import suggest_ledger

PACK = [
    ("minus_log", "float32", {}),
    ("dark_flat_field_correction", "uint16", {}),
    ("median_filter", "uint16", {}),
    ("remove_outlier", "float32", {"dif": 0.2}),
    ("paganin_filter", "float32", {}),
    ("data_resampler", "float32", {"newshape": [33, 40]}),
    ("sino_360_to_180", "float32", {}),
    ("remove_stripe_ti", "float32", {}),
    ("remove_stripe_based_sorting", "float32", {}),
    ("remove_stripe_fw", "float32", {}),
    ("calculate_stats", "float32", {}),
    ("rescale_to_int", "float32", {"glob_stats": (0.1, 1.0, 0.5, 1)}),
    ("total_variation_rof", "float32", {"iterations": 3}),
    ("total_variation_pd", "float32", {"iterations": 3}),
    ("fbp", "float32", {}),
    ("find_center_vo", "float32", {}),
]
ON_GPU = [
    ("cupyx.scipy.ndimage:gaussian_filter", {"sigma": 2.0}),
    ("cupyx.scipy.ndimage:median_filter", {"size": 3}),
    ("cupyx.scipy.ndimage:uniform_filter", {"size": 5}),
    ("cupyx.scipy.ndimage:sobel", {}),
    ("cupyx.scipy.ndimage:grey_opening", {"size": 3}),
    ("cupyx.scipy.ndimage:zoom", {"zoom": [1, 2, 0.5], "order": 1}),
    ("cupyx.scipy.ndimage:fourier_gaussian", {"sigma": 2.0}),
    ("cupyx.scipy.fft:rfft2", {}),
    ("cupyx.scipy.fft:fftn", {"axes": (1, 2)}),
    ("cupyx.scipy.fft:dctn", {"axes": (1, 2)}),
    ("cupyx.scipy.signal:detrend", {"axis": 2}),
    ("cupy:sort", {"axis": 2}),
    ("cupy:percentile", {"q": 20, "axis": 0}),
]
ON_CPU = [
    ("scipy.ndimage:gaussian_filter", {"sigma": 2.0}),
    ("scipy.ndimage:median_filter", {"size": 3}),
    ("scipy.ndimage:sobel", {}),
    ("numpy.fft:rfft2", {}),
    ("skimage.filters:sobel", {}),
]
FURTHER = ((52, 330, 410), (60, 253, 500))
"""Slices and other dims of the sizes that no ledger was made of."""


def with_ledger(meta, estimator):
    """Method with another estimator."""
    leading = ("slice_dim", "other_dims", "dtype", "available_memory")
    callback = make_callback(
        meta.full_name, "calc_max_slices", estimator, leading, meta.parameters, ("device",),
        meta.accepts_any,
    )  # fmt: skip
    callbacks = dict(meta.callbacks) | {"calc_max_slices": callback}
    # What a function returns is nothing that a ledger says: it is not compared here.
    return replace(meta, estimator=estimator, callbacks=callbacks)


def checked(meta, found, dtype, parameters, device):
    """Estimated over measured peak, estimated slices over those run, and the verdict."""
    axis, rows = meta.slice_dims()[0], []
    for n, first, second in FURTHER:
        shape = (n, first, second) if axis == 0 else (first, n, second)
        spec = ArraySpec(shape, np.dtype(dtype))
        trial = trial_of(with_ledger(meta, found.estimator()), spec, axis, device, parameters)
        result = check_trial(trial, trace=False)
        verdict = "ok" if 0.8 <= result.ratio <= 1.0 else result.verdict
        rows.append((result.estimated_bytes / result.peak_bytes, result.ratio, verdict))
    return rows


def main():
    """Print the table."""
    out, limit_s = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 110
    device = sys.argv[3] if len(sys.argv) > 3 else "cuda"
    out.mkdir(parents=True, exist_ok=True)
    began, table = time.time(), []
    warnings.simplefilter("ignore")
    others = [(name, "float32", p) for name, p in (ON_CPU if device == "cpu" else ON_GPU)]
    only = sys.argv[4] if len(sys.argv) > 4 else ""
    with open(out / "ledgers.txt", "w") as texts:
        for name, dtype, parameters in [*others, *PACK]:
            if not re.search(only, name):
                continue
            if time.time() - began > limit_s:
                table.append(f"{name:<40} left out")
                continue
            at = time.time()
            try:
                meta = method_named(name)
                found = suggest_ledger(meta, dtype, parameters, device)
                texts.write(f"# {name} {dtype} {parameters}\n{found}\n\n\n")
                texts.flush()
                rows = checked(meta, found, dtype, parameters, device)
            except Exception as error:  # noqa: BLE001 - a row says it
                table.append(f"{name:<40} {type(error).__name__}: {str(error)[:150]}")
                traceback.print_exc(file=texts)
                continue
            figures = "  ".join(f"{b:.4f} {r:.3f} {verdict}" for b, r, verdict in rows)
            notes = "; ".join(found.notes)[:60]
            table.append(f"{name:<40} {figures}  {time.time() - at:.1f} s  {notes}")
    text = "\n".join(table)
    (out / "table.txt").write_text(text + "\n")
    print(f"method, then for {FURTHER}: estimated/measured bytes, slices ratio, verdict")
    print(text)
    print(f"{time.time() - began:.0f} s")


if __name__ == "__main__":
    main()

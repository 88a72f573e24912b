"""Flat-field and minus-log, and Paganin after it, from host memory to host memory."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from maxslices import Pipeline, registry, run

from .data import fill, frames, scan_of
from .machine import DEVICE, DeviceTime, cp, empty_device, link_rates, pinned, timed, xp
from .rows import Row

LOG = ["dark_flat_field_correction", "minus_log"]
FAST_LENGTH = {"calculate_padding_value_method": "next_fast_length"}
BLOCKS = (8, 16, 32, 64, 128)


def paganin(module: str | None) -> list[Any]:
    """Return the steps with phase retrieval, of our pack or of httomolibgpu."""
    step: dict[str, Any] = {"method": "paganin_filter", "parameters": FAST_LENGTH}
    flat: dict[str, Any] = {"method": "dark_flat_field_correction"}
    if module is not None:
        step["module_path"] = f"{module}.prep.phase"
        flat["module_path"] = f"{module}.prep.normalize"
    return [flat, step]


def chain(steps: list[Any], flats: Any, darks: Any) -> Callable[[Any], Any]:
    """Return the steps' methods as one function of a block on the device."""
    pipeline = Pipeline.from_steps(steps)

    def call(block: Any) -> Any:
        for step in pipeline.steps:
            side_data = {"flats": flats, "darks": darks, "slice_dim": 0, "first_slice": 0}
            supplied = {k: side_data[k] for k in step.meta.supplied if k in side_data}
            block = step.meta.function(block, **step.parameters, **supplied)
        return block

    return call


def compute_alone_s(call: Callable[[Any], Any], data: np.ndarray) -> tuple[float, int]:
    """Return device time for all blocks, in the block that is fastest; and that block."""
    best = (float("inf"), 0)
    for block in BLOCKS:
        if block > len(data):
            continue
        supplied = xp.asarray(data[:block])
        call(supplied)
        taken = []
        for _ in range(5):
            timer = DeviceTime()
            for _ in range(0, len(data), block):
                timer(lambda supplied=supplied: call(supplied))
            taken.append(timer.seconds * len(data) / (block * -(-len(data) // block)))
        best = min(best, (statistics.median(taken), block))
        del supplied
        empty_device()
    return best


def rows(quick: bool, folder: Path | None) -> Iterator[Row]:
    """Yield the figures."""
    shape = (48, 32, 80) if quick else (1024, 1024, 2560)
    raw, out = pinned(shape, "uint16"), pinned(shape, "float32")
    fill(raw)
    out[...] = 0
    rate_in, rate_out = link_rates(raw, out)
    if cp is not None:
        yield Row("link", "link in, pinned", rate_in / 1e9, "GB/s")
        yield Row("link", "link out, pinned", rate_out / 1e9, "GB/s")
    in_s, out_s = raw.nbytes / rate_in, out.nbytes / rate_out
    flats, darks = (xp.asarray(f) for f in frames(*shape[1:]))
    chains: list[tuple[str, list[Any], float]] = [
        ("flat-field + minus-log", LOG, 0.92),
        ("flat-field + minus-log + paganin", [*LOG[:1], *paganin(None)[1:]], 0.75),
    ]
    if cp is not None and importlib.util.find_spec("httomolibgpu"):
        registered = {m.full_name for m in registry}
        if "httomolibgpu.prep.phase.paganin_filter" in registered:
            chains.append(("httomolibgpu's flat-field + paganin", paganin("httomolibgpu"), 0.75))
    for name, steps, share in chains:
        call = chain(steps, flats, darks)
        compute_s, block = compute_alone_s(call, raw)
        yield Row("link", f"{name}: computing alone", compute_s, "s", note=f"blocks of {block}")
        limit_s = max(in_s if cp else 0, out_s if cp else 0, compute_s)
        yield Row("link", f"{name}: limit", limit_s, "s")
        pipeline = Pipeline.from_steps(steps)
        report = None

        def go(source: Any, target: np.ndarray, pipeline: Pipeline = pipeline) -> None:
            nonlocal report
            report = run(source, pipeline, target, device=DEVICE)

        median_s, taken = timed(partial(go, scan_of(raw, is_pinned=True), out), warm=2)
        note = f"{min(taken):.4f}-{max(taken):.4f}; {said(report)}"
        yield Row("link", f"{name}: pinned to pinned", median_s, "s", limit_s / share, note=note)
        n = min(16, len(raw))
        same = np.array_equal(out[:n], as_host(call(xp.asarray(raw[:n]))))
        yield Row("link", f"{name}: as in a plain loop", float(same), "", 1.0, "more")
        if name == chains[0][0]:
            plain_raw, plain_out = raw.copy(), np.zeros_like(out)
            median_s, taken = timed(partial(go, scan_of(plain_raw), plain_out), warm=2)
            note = f"{min(taken):.4f}-{max(taken):.4f}; {said(report)}"
            what = f"{name}: plain to plain memory"
            yield Row("link", what, median_s, "s", limit_s / share, note=note)
            del plain_raw, plain_out


def as_host(array: Any) -> np.ndarray:
    """Return an array in host memory."""
    return array.get() if hasattr(array, "get") else array


def said(report: Any) -> str:
    """Return what a report says of its sections, in short."""
    parts = []
    for section in report.sections:
        shares = ", ".join(f"{k} {100 * use.share:.0f} %" for k, use in section.stages.items())
        parts.append(
            f"{section.duration_s:.3g} s, block {section.smallest_block}, {shares}, "
            f"bound by {section.bound_by}"
        )
    return "; ".join(parts)

"""The pipeline of httomo with httomolibgpu's methods, beside httomo itself on the same file."""

from __future__ import annotations

import importlib.util
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from maxslices import Pipeline, run
from maxslices.system.disk_space import wait_until_freed

from .data import write_nexus
from .machine import (
    DEVICE,
    DeviceTime,
    cp,
    empty_device,
    pinned,
    plain_read_s,
    plain_write_s,
    timed,
    xp,
)
from .part_link import as_host, said
from .rows import Row

LOADER = """\
- method: standard_tomo
  module_path: httomo.data.hdf.loaders
  parameters:
    data_path: entry1/tomo_entry/data/data
    image_key_path: entry1/tomo_entry/instrument/detector/image_key
    rotation_angles:
      data_path: /entry1/tomo_entry/data/rotation_angle
"""
THEIRS = """\
- method: dark_flat_field_correction
  module_path: httomolibgpu.prep.normalize
  parameters: {}
- method: minus_log
  module_path: httomolibgpu.prep.normalize
  parameters: {}
- method: remove_stripe_ti
  module_path: httomolibgpu.prep.stripe
  parameters:
    beta: 0.1
- method: LPRec3d_tomobar
  module_path: httomolibgpu.recon.algorithm
  parameters:
    center: CENTRE
    detector_pad: false
    filter_type: shepp
    filter_freq_cutoff: 1.0
    recon_size: null
    recon_mask_radius: 0.95
"""
OURS = """\
- method: dark_flat_field_correction
- method: minus_log
- method: remove_stripe_ti
- method: fbp
  parameters:
    center: CENTRE
"""
BLOCKS = (16, 32, 64, 128)
REPEATS = 5


def rows(quick: bool, folder: Path | None) -> Iterator[Row]:
    """Yield the figures."""
    has_theirs = cp is not None and importlib.util.find_spec("httomolibgpu") is not None
    with tempfile.TemporaryDirectory(dir=folder) as name:
        yield from _rows(quick, Path(name), THEIRS if has_theirs else OURS)


def _rows(quick: bool, folder: Path, steps: str) -> Iterator[Row]:
    shape = (61, 12, 64) if quick else (1801, 512, 2560)
    result_bytes = 4 * shape[1] * shape[2] ** 2
    text = LOADER + steps.replace("CENTRE", f"{(shape[2] - 1) / 2}")
    last = text.rstrip("\n") + "\n"
    (folder / "nothing.yaml").write_text(last + "  save_result: false\n")
    (folder / "saved.yaml").write_text(last)
    scan = folder / "scan.nxs"
    offset, n_bytes = write_nexus(scan, *shape)

    read_into = pinned((n_bytes // 2,), "uint16")
    read_s, _ = timed(partial(plain_read_s, scan, read_into, offset=offset))
    yield Row("httomo", "plain read of the scan from the page cache", read_s, "s")
    del read_into

    methods_s, block, expected = methods_alone(scan, folder / "nothing.yaml")
    note = f"blocks of {block} sinograms, median of 3"
    yield Row("httomo", "the methods' own device time", methods_s, "s", note=note)

    report = None

    def go(out: Any) -> None:
        nonlocal report
        report = run(scan, folder / "saved.yaml", out, device=DEVICE, overwrite=True)
        idle = [s.methods for s in report.sections if "compute" not in s.stages]
        assert not idle, f"nothing was computed in {idle}"

    def let_go() -> None:
        """Free an earlier result: it is the caller's, and to free it is no part of a run."""
        nonlocal report
        report = None

    # httomo with nothing saved leaves its result in host memory, so that is what is compared
    kept = pinned((shape[2], shape[1], shape[2]), "float32")
    nothing_s, taken = timed(lambda: go(kept), REPEATS)
    note = f"{min(taken):.2f}-{max(taken):.2f}; {said(report)}"
    limit_s = 1.2 * (methods_s + read_s)
    yield Row("httomo", "nothing saved, pinned result", nothing_s, "s", limit_s, note=note)
    error = largest_error(kept[:, : expected.shape[1]], expected)
    yield Row("httomo", "largest difference from a plain loop", error, "of max", 1e-4)
    kept = None
    new_s, taken = timed(lambda: go(None), 3, before=let_go)
    note = f"median of 3, {min(taken):.2f}-{max(taken):.2f}; {said(report)}"
    yield Row("httomo", "nothing saved, result in new memory", new_s, "s", limit_s, note=note)
    report = None

    seconds = httomo_s(scan, folder) if steps is THEIRS else None
    if seconds is not None:
        yield Row("httomo", "httomo, nothing saved", seconds, "s", note="one run, its own figure")
        for name, own_s in (("pinned result", nothing_s), ("result in new memory", new_s)):
            what = f"times as fast as httomo, {name}"
            yield Row("httomo", what, seconds / own_s, "x", 4, "more")

    target = folder / "plain"
    plain = {}
    for n_threads in (1, 8):
        plain[n_threads] = statistics.median(
            plain_write_s(target, result_bytes, n_threads) for _ in range(1 if quick else 2)
        )
        target.unlink()
    n_threads = min(plain, key=lambda n: plain[n])
    note = f"{n_threads} threads, mean of 2"
    yield Row("httomo", "plain write of the result", plain[n_threads], "s", note=note)
    repeats = 2 if quick else 3
    fresh, again = folder / "fresh", folder / "out"
    limit_s = 1.15 * max(plain[n_threads], nothing_s)
    for what, target, limit in (
        ("result saved", fresh, limit_s),
        ("result saved over an earlier one, which stays until the new one is whole", again, None),
    ):

        def anew() -> None:
            """Let nothing be in the way, nor anything be freed meanwhile."""
            shutil.rmtree(fresh, ignore_errors=True)
            wait_until_freed()

        saved_s, taken = timed(lambda target=target: go(target), repeats, before=anew)
        note = f"median of {repeats}, {min(taken):.2f}-{max(taken):.2f}; {said(report)}"
        yield Row("httomo", what, saved_s, "s", limit, note=note)
    with h5py.File(folder / "out" / "result.h5") as file:
        part = file["entry/data/data"][: expected.shape[1]].swapaxes(0, 1)
    error = largest_error(part, expected)
    yield Row("httomo", "saved: largest difference from a plain loop", error, "of max", 1e-4)


def largest_error(result: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference over the largest value."""
    return float(np.abs(result - expected).max() / np.abs(expected).max())


def methods_alone(scan: Path, pipeline: Path) -> tuple[float, int, np.ndarray]:
    """Return the device time of all method calls in plain loops, the block, and a first result.

    The projections are on the device beforehand, so that nothing but methods is timed: first
    those of projections, in blocks of 32 frames, then those of sinograms, in the block that is
    fastest for them.
    """
    loaded = Pipeline.from_file(pipeline)
    with h5py.File(scan) as file:
        key = file["entry1/tomo_entry/instrument/detector/image_key"][()]
        angles = np.deg2rad(file["entry1/tomo_entry/data/rotation_angle"][()][key == 0])
        frames = file["entry1/tomo_entry/data/data"]
        darks, flats = (xp.asarray(frames[np.flatnonzero(key == k)]) for k in (2, 1))
        first = int(np.flatnonzero(key == 0)[0])
        data = xp.asarray(frames[first:])
    side_data = {"flats": flats, "darks": darks, "angles": angles.astype(np.float32)}

    def through(steps: Any, part: Any, timer: Callable[..., Any], slice_dim: int) -> Any:
        for step in steps:
            supplied = {**side_data, "slice_dim": slice_dim, "first_slice": 0}
            supplied = {k: supplied[k] for k in step.meta.supplied if k in supplied}
            function, parameters = step.meta.function, step.parameters
            held = part
            part = timer(lambda held=held, f=function, p=parameters, g=supplied: f(held, **p, **g))
            del held
        return part

    def projections(data: Any, timer: DeviceTime) -> Any:
        corrected = xp.empty(data.shape, xp.float32)
        for at in range(0, len(data), 32):
            corrected[at : at + 32] = through(loaded.steps[:2], data[at : at + 32], timer, 0)
        return corrected

    def sinograms(corrected: Any, block: int, timer: DeviceTime, n: int) -> Any:
        kept = None
        for at in range(0, n, block):
            part = xp.ascontiguousarray(corrected[:, at : at + block])
            result = through(loaded.steps[2:], part, timer, 1)
            if kept is None:
                kept = as_host(result[:, :4]).copy()
            del part, result
        return kept

    projections(data, DeviceTime())
    firsts = []
    for _ in range(3):
        timer = DeviceTime()
        corrected = projections(data, timer)
        firsts.append(timer.seconds)
    del data
    n_rows = corrected.shape[1]
    speeds = {}
    for block in BLOCKS:
        if block > n_rows and speeds:
            continue
        sinograms(corrected, block, DeviceTime(), min(n_rows, block))  # plans, kernels
        timer, n = DeviceTime(), min(n_rows, 128)
        sinograms(corrected, block, timer, n)
        speeds[block] = timer.seconds / n
    block = min(speeds, key=lambda b: speeds[b])
    seconds = []
    for _ in range(3):
        timer = DeviceTime()
        kept = sinograms(corrected, block, timer, n_rows)
        seconds.append(timer.seconds)
    del corrected
    side_data.clear()
    empty_device()
    return statistics.median(firsts) + statistics.median(seconds), block, kept


def httomo_s(scan: Path, folder: Path) -> float | None:
    """Return what httomo says that its pipeline took; None where it cannot run."""
    if importlib.util.find_spec("httomo") is None:
        print("   httomo is not installed", flush=True)
        return None
    out = folder / "httomo"
    out.mkdir()
    command = [sys.executable, "-m", "httomo", "run", str(scan), str(folder / "nothing.yaml")]
    empty_device()
    began = time.perf_counter()
    done = subprocess.run([*command, str(out)], capture_output=True, text=True, timeout=120)
    wall_s = time.perf_counter() - began
    took = re.search(r"Pipeline finished\. Took ([0-9.]+)s", done.stdout + done.stderr)
    if took is None:
        print((done.stdout + done.stderr)[-3000:], flush=True)
        raise RuntimeError(f"httomo ended with {done.returncode} after {wall_s:.1f} s")
    return float(took[1])

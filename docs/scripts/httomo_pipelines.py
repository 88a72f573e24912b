"""httomo's generated pipelines end to end on made scans, beside httomo itself where it runs.

Run it where there are a GPU, httomo, httomolibgpu, httomolib and httomo-backends; tomopy too, if
its pipelines are to run::

    python docs/scripts/httomo_pipelines.py PIPELINES [--out DIR] [--limit-s 240]

PIPELINES is a folder of pipeline files, as httomo-backends' generator makes them. Two scans are
made: half a turn, and a full turn with the axis near an edge. Each file is run as it is, save that
what it leaves to the user is filled in, that the reconstruction is not saved (httomo needs an h5py
with MPI for that), and that its values are saved as images beside the 8-bit ones. Sweeps are left
out. ``--device cpu`` leaves out ``module_path``, and httomo.

A line a pipeline: seconds of both by their own clocks, here the second time and (the first), and
of httomo's command; the centre found
and its error; how many of the reconstruction's values are httomo's bit for bit, and the largest
difference in parts of the largest value; and the same of the 8-bit images. DIR has one sheet of all
middle slices, ``pictures.png``, the slices themselves in ``pictures/``, and all reports.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tifffile
import yaml
from PIL import Image

import maxslices
import maxslices.httomo  # registers the methods, also where maxslices is not installed
from maxslices.runner.sweep_pictures import ContactSheet

try:
    import maxslices_methods  # noqa: F401  likewise
except ImportError:
    print("without the pack of methods")

N_FRAMES = 10
"""Flats, and darks."""
DISTORTION = {"list_fact": [1.0, 0.0, 0.0, 0.0, 0.0]}
"""Coefficients of a lens that does not distort."""
VALUES = {
    "method": "save_to_images",
    "module_path": "httomolib.misc.images",
    "parameters": {"subfolder_name": "values", "axis": "auto", "file_format": "tif"},
}
"""Step that saves the values of a reconstruction."""
LEAST_S = 12.0
"""Time left under which httomo is not started: it takes about this long on a small scan."""
BLOBS = [
    (0.0, 0.0, 0.62, 0.3),
    (0.3, 0.1, 0.12, 0.9),
    (-0.25, 0.3, 0.08, 0.7),
    (-0.1, -0.4, 0.1, -0.25),
]
"""(x, y, radius, density) of cylinders, in half widths of the field of view."""


def centre_of(kind: str, columns: int) -> float:
    """Column of the rotation axis in a scan."""
    return 0.9 * columns - 1 if kind == "full" else (columns - 1) / 2 + 6.5


def write_scan(path: Path, kind: str, shape: tuple[int, int, int]) -> None:
    """Write a scan of cylinders whose radius changes with the row; all but "clean" has zingers."""
    n_angles, rows, columns = shape
    turn = 180.0
    if kind == "full":
        n_angles, turn = 2 * n_angles, 360 - 180 / n_angles
    degrees = np.linspace(0, turn, n_angles)
    # A full turn sees an object that is almost twice as wide.
    size = columns * (1.25 if kind == "full" else 2 / 3)
    place = (np.arange(columns) - centre_of(kind, columns)).astype(np.float32)
    rng = np.random.default_rng(1)
    thickness = np.zeros((n_angles, rows, columns), np.float32)
    grow = (1 - 0.2 * np.arange(rows) / rows).astype(np.float32)[None, :, None]
    for x, y, radius, density in BLOBS:
        angle = np.deg2rad(degrees).astype(np.float32)[:, None, None]
        at = (x * np.cos(angle) + y * np.sin(angle)) * size
        half = (radius * size * grow) ** 2 - (place - at) ** 2
        thickness += density * 2 * np.sqrt(np.clip(half, 0, None)) / size
    gain = 1 + 0.03 * rng.standard_normal((1, rows, columns), np.float32)
    light = 30000 * gain * np.exp(-thickness) + 500
    noise = np.sqrt(light) * rng.standard_normal(light.shape, np.float32)
    frames = (light + noise).clip(0, 65535).astype(np.uint16)
    if kind != "clean":
        frames.reshape(-1)[rng.integers(0, frames.size, frames.size // 10000)] = 60000
    flats = rng.poisson(np.broadcast_to(30000 * gain + 500, (N_FRAMES, rows, columns)))
    darks = rng.poisson(500, (N_FRAMES, rows, columns))
    with h5py.File(path, "w") as file:
        entry = file.create_group("entry1/tomo_entry")
        entry["definition"] = "NXtomo"
        stack = np.concatenate([darks.astype("u2"), flats.astype("u2"), frames])
        entry.create_dataset("data/data", data=stack, chunks=(1, rows, columns))
        key = np.repeat([2, 1, 0], [N_FRAMES, N_FRAMES, n_angles])
        entry["instrument/detector/image_key"] = key
        entry["data/rotation_angle"] = np.r_[np.zeros(2 * N_FRAMES), degrees]


def prepared(text: str, shape: tuple[int, int, int], *, by_name: bool) -> list[dict[str, Any]]:
    """Steps of a file that both can run: filled in, values saved, reconstruction not."""
    steps = yaml.safe_load(text)
    for step in steps[1:]:
        given = step["parameters"]
        if given.get("newshape") == "REQUIRED":
            given["newshape"] = [shape[2] // 2, shape[2] // 2]
        if step["method"].startswith("distortion"):
            given |= DISTORTION | {"xcenter": (shape[2] - 1) / 2, "ycenter": (shape[1] - 1) / 2}
        if step["module_path"].endswith("recon.algorithm"):
            step["save_result"] = False
    names = [step["method"] for step in steps]
    end = names.index("calculate_stats") if "calculate_stats" in names else len(steps)
    steps.insert(end, VALUES)
    if by_name:
        steps[1:] = [{k: v for k, v in step.items() if k != "module_path"} for step in steps[1:]]
    return steps


def images(folder: Path, name: str) -> np.ndarray | None:
    """Images in subfolders that begin with `name`, as one stack; None without any."""
    files = sorted(folder.rglob(f"{name}*/*.tif"))
    return np.stack([tifffile.imread(file) for file in files]) if files else None


def run_httomo(scan: Path, file: Path, out: Path, limit_s: float) -> tuple[str, str]:
    """Run httomo in a process of its own; its times, and its complaint if it failed."""
    out.mkdir()
    begin = time.perf_counter()
    command = [sys.executable, "-m", "httomo", "run", str(scan), str(file), str(out)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return "", "not finished in time"
    seconds = time.perf_counter() - begin
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode:
        return "", said[-1][:150] if said else f"exit code {done.returncode}"
    own = re.search(r"Pipeline finished. Took ([0-9.]+)s", done.stdout + done.stderr)
    return f"{float(own[1]):.2f} ({seconds:.1f})" if own else f"({seconds:.1f})", ""


def difference(ours: np.ndarray | None, theirs: np.ndarray | None) -> str:
    """Share of values that are equal, and the largest difference."""
    if ours is None or theirs is None:
        return ""
    if ours.shape != theirs.shape:
        # In a section with a halo httomo saves the rows of the halo too.
        extra = len(theirs) - len(ours)
        if extra <= 0 or extra % 2 or ours.shape[1:] != theirs.shape[1:]:
            return f"shapes {ours.shape} and {theirs.shape}"
        theirs = theirs[extra // 2 : len(theirs) - extra // 2]
    if ours.dtype == theirs.dtype and np.array_equal(ours, theirs, equal_nan=True):
        return "all equal"
    apart = np.abs(ours.astype(np.float64) - theirs)
    if ours.dtype.kind != "f":
        return f"{100 * np.mean(apart > 0):.2f} % differ, at most by {apart.max():.0f}"
    largest = np.abs(theirs).max()
    rms = np.sqrt(np.mean(apart**2)) / largest
    return (
        f"{100 * np.mean(apart == 0):.1f} % equal, at most {apart.max() / largest:.1e}, "
        f"rms {rms:.1e}"
    )


def run_here(row: dict[str, Any], scan: Path, file: Path, out: Path, device: str) -> str:
    """Run a pipeline here, fill in its row, and return its report."""
    try:
        # The second time the GPU's code is compiled, and what had to be measured is recorded.
        first = maxslices.run(scan, file, out, device=device, overwrite=True)
        report = maxslices.run(scan, file, out, device=device, overwrite=True)
    except maxslices.MaxslicesError as error:
        row["ours"] = str(error).splitlines()[0][:200]
        return str(error)
    row["ours"] = f"{report.duration_s:.2f} ({first.duration_s:.1f})"
    found = [v for name, v in report.side_results.items() if name.endswith(".cor")]
    if found:
        true = row["true"]
        row["centre"] = f"{found[0]:.2f}, off by {found[0] - true:+.2f}"
        overlaps = [v for n, v in report.side_results.items() if n.endswith(".overlap")]
        if overlaps:
            wanted = 2 * (row["columns"] - 1 - true) + 1
            row["centre"] = f"overlap {overlaps[0]:.1f} of {wanted:.1f}"
    row["values"], row["stack"] = images(out, "values"), images(out, "images")
    return str(report)


def save_pictures(rows: list[dict[str, Any]], folder: Path) -> None:
    """Write the middle slice of each result as a PNG, and all on one sheet."""
    pictures = folder / "pictures"
    pictures.mkdir(exist_ok=True)
    shown = [row for row in rows if row.get("values") is not None]
    if not shown:
        return
    side = min(min(row["values"].shape[1:]) for row in shown)
    sheet = ContactSheet(len(shown), (side, side), "middle slice of each pipeline's result")
    for row in shown:
        stack = row["stack"] if row["stack"] is not None else row["values"]
        middle = stack[len(stack) // 2].astype(np.float32)
        dark, bright = np.percentile(middle, (0.5, 99.5))
        shades = (np.clip((middle - dark) / max(bright - dark, 1e-30), 0, 1) * 255).astype("u1")
        image = Image.fromarray(shades)
        image.save(pictures / f"{row['name']}.png")
        sheet.add(np.asarray(image.resize((side, side))), row["name"])
    (folder / "pictures.png").unlink(missing_ok=True)
    sheet.save(folder / "pictures.png", None)


def main() -> None:
    """Run all pipelines, within the time that is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipelines", type=Path)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--limit-s", type=float, default=240.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", type=int, nargs=3, default=(721, 64, 960))
    parser.add_argument("--only", default="", help="part of the names of pipelines to run")
    given = parser.parse_args()
    begin = time.perf_counter()
    shape = tuple(given.shape)
    given.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="httomo-pipelines-"))
    scans = {kind: work / f"{kind}.nxs" for kind in ("half", "full", "clean")}
    for kind, path in scans.items():
        write_scan(path, kind, shape)
    print(f"scans of {shape} made in {time.perf_counter() - begin:.0f} s", flush=True)
    rows: list[dict[str, Any]] = []
    reports = []
    for file in sorted(given.pipelines.glob("*.yaml")):
        text = file.read_text()
        if "!Sweep" in text or given.only not in file.stem:
            continue
        kind = "full" if "sino_360" in text else "half"
        if "find_center_pc" in text and "remove_outlier" not in text:
            kind = "clean"  # single bright pixels lead phase correlation astray, httomo's too
        is_tomopy = "tomopy." in text
        steps = prepared(text, shape, by_name=given.device == "cpu" and not is_tomopy)
        patched = work / file.name
        patched.write_text(yaml.safe_dump(steps, sort_keys=False))
        row = {"name": file.stem, "ours": "", "theirs": "", "centre": "", "apart": "", "images": ""}
        row |= {"true": centre_of(kind, shape[2]), "columns": shape[2], "kind": kind}
        row["beside"] = given.device != "cpu" or is_tomopy
        rows.append(row)
        out = work / f"{file.stem}-ours"
        reports.append(f"# {file.stem}\n{run_here(row, scans[kind], patched, out, given.device)}\n")
        print(row["name"], row["ours"], row["centre"], flush=True)
    (given.out / "reports.txt").write_text("\n".join(reports))
    save_pictures(rows, given.out)
    # What is quick first: httomo's start alone takes several seconds.
    for row in (r for r in rows if r.get("values") is not None and r["beside"]):
        left_s = given.limit_s - (time.perf_counter() - begin)
        if left_s < LEAST_S:
            row["theirs"] = "no time left"
            continue
        out = work / f"{row['name']}-httomo"
        took, fault = run_httomo(
            scans[row["kind"]], work / f"{row['name']}.yaml", out, min(left_s, 60)
        )
        row["theirs"] = fault or took
        if not fault:
            row["apart"] = difference(row["values"], images(out, "values"))
            row["images"] = difference(row["stack"], images(out, "images"))
        print(row["name"], row["theirs"], row["apart"], flush=True)
    shutil.rmtree(work)
    shown = ("name", "ours", "theirs", "centre", "apart", "images")
    (given.out / "results.json").write_text(json.dumps([{k: r[k] for k in shown} for r in rows]))
    print(
        "| pipeline | maxslices, s (first) | httomo, s (command) | centre | values | 8-bit images |"
        "\n|---|---|---|---|---|---|"
    )
    for row in rows:
        print("| " + " | ".join(row[k] for k in shown) + " |")
    print(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()

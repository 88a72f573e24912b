"""httomo's generated pipelines end to end on made scans, beside httomo itself where it runs.

Run it where there are a GPU, httomolibgpu, httomolib and httomo-backends::

    python docs/scripts/httomo_pipelines.py PIPELINES [--out DIR] [--limit-s 240]

PIPELINES is a folder of pipeline files, as httomo-backends' generator makes them. Two scans are
made: half a turn, and a full turn with the axis near an edge. Each file is run as it is, save that
what it leaves to the user is filled in, that the reconstruction is not saved (httomo needs an h5py
with MPI for that), and that images are saved. Those with a sweep, and of tomopy, are left out.

A line a pipeline: seconds of both by the wall clock, the program's start included for httomo alone;
the centre found and its error; and how many of the images' pixels differ, and by how much. DIR has
the middle slices as PNG, and the reports.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tifffile
import yaml

import maxslices
import maxslices.httomo  # registers the methods, also where maxslices is not installed

ROWS, COLUMNS = 24, 480
N_FRAMES = 10
"""Flats, and darks."""
CENTRES = {"half": (COLUMNS - 1) / 2 + 6.5, "full": 431.0}
"""Column of the rotation axis in both scans."""
DISTORTION = {"xcenter": 239.5, "ycenter": 11.5, "list_fact": [1.0, 0.0, 0.0, 0.0, 0.0]}
"""Coefficients of a lens that does not distort."""
IMAGES = [
    {
        "method": "calculate_stats",
        "module_path": "httomo.methods",
        "parameters": {},
        "id": "statistics",
        "side_outputs": {"glob_stats": "glob_stats"},
    },
    {
        "method": "rescale_to_int",
        "module_path": "httomolibgpu.misc.rescale",
        "parameters": {"bits": 8, "glob_stats": "${{statistics.side_outputs.glob_stats}}"},
    },
    {
        "method": "save_to_images",
        "module_path": "httomolib.misc.images",
        "parameters": {"subfolder_name": "images", "axis": "auto", "file_format": "tif"},
    },
]
BLOBS = [
    (0.0, 0.0, 0.62, 0.3),
    (0.3, 0.1, 0.12, 0.9),
    (-0.25, 0.3, 0.08, 0.7),
    (-0.1, -0.4, 0.1, -0.25),
]
"""(x, y, radius, density) of cylinders, in half widths of the field of view."""


def write_scan(path: Path, kind: str) -> None:
    """Write a scan of cylinders whose radius changes with the row."""
    n_angles, turn = (361, 180.0) if kind == "half" else (722, 359.5)
    degrees = np.linspace(0, turn, n_angles)
    # A full turn sees an object that is almost twice as wide.
    size = 320.0 if kind == "half" else 600.0
    place = np.arange(COLUMNS) - CENTRES[kind]
    rng = np.random.default_rng(1)
    thickness = np.zeros((n_angles, ROWS, COLUMNS), np.float32)
    grow = 1 - 0.01 * np.arange(ROWS)[None, :, None]
    for x, y, radius, density in BLOBS:
        angle = np.deg2rad(degrees)[:, None, None]
        at = (x * np.cos(angle) + y * np.sin(angle)) * size
        half = (radius * size * grow) ** 2 - (place - at) ** 2
        thickness += density * 2 * np.sqrt(np.clip(half, 0, None)) / size
    gain = 1 + 0.03 * rng.standard_normal((1, ROWS, COLUMNS))
    beam = 30000 * gain * np.exp(-thickness) + 500
    frames = rng.poisson(beam).astype(np.uint16)
    zingers = rng.integers(0, frames.size, 400)
    frames.reshape(-1)[zingers] = 60000
    flats = rng.poisson(np.broadcast_to(30000 * gain + 500, (N_FRAMES, ROWS, COLUMNS)))
    darks = rng.poisson(500, (N_FRAMES, ROWS, COLUMNS))
    with h5py.File(path, "w") as file:
        entry = file.create_group("entry1/tomo_entry")
        entry["definition"] = "NXtomo"
        stack = np.concatenate([darks.astype("u2"), flats.astype("u2"), frames])
        entry.create_dataset("data/data", data=stack, chunks=(1, ROWS, COLUMNS))
        key = np.repeat([2, 1, 0], [N_FRAMES, N_FRAMES, n_angles])
        entry["instrument/detector/image_key"] = key
        entry["data/rotation_angle"] = np.r_[np.zeros(2 * N_FRAMES), degrees]


def prepared(text: str) -> list[dict[str, Any]]:
    """Steps of a file that both can run: filled in, ending in images, reconstruction not saved."""
    steps = yaml.safe_load(text)
    for step in steps[1:]:
        given = step["parameters"]
        given |= {"newshape": [240, 240]} if given.get("newshape") == "REQUIRED" else {}
        if step["method"].startswith("distortion"):
            given |= DISTORTION
        if step["module_path"].endswith("recon.algorithm"):
            step["save_result"] = False
    if steps[-1]["method"] != "save_to_images":
        steps += IMAGES
    return steps


def images(folder: Path) -> np.ndarray:
    """All images below a folder, as one stack."""
    files = sorted(folder.rglob("*.tif"))
    return np.stack([tifffile.imread(file) for file in files])


def run_httomo(scan: Path, file: Path, out: Path, limit_s: float) -> tuple[float, str]:
    """Run httomo in a process of its own; seconds, and its complaint if it failed."""
    out.mkdir()
    begin = time.perf_counter()
    command = [sys.executable, "-m", "httomo", "run", str(scan), str(file), str(out)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return limit_s, "not finished in time"
    seconds = time.perf_counter() - begin
    if done.returncode == 0:
        return seconds, ""
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return seconds, said[-1][:150] if said else f"exit code {done.returncode}"


def difference(ours: np.ndarray, theirs: np.ndarray) -> str:
    """Share of pixels that differ, and the largest difference."""
    if ours.shape != theirs.shape:
        return f"shapes {ours.shape} and {theirs.shape}"
    apart = np.abs(ours.astype(int) - theirs.astype(int))
    return f"{100 * np.mean(apart > 0):.2f} % of pixels, at most {apart.max()} of 255"


def main() -> None:
    """Run all pipelines, within the time that is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipelines", type=Path)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--limit-s", type=float, default=240.0)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    begin = time.perf_counter()
    work = given.out / "work"
    work.mkdir(parents=True, exist_ok=True)
    scans = {kind: work / f"{kind}.nxs" for kind in CENTRES}
    for kind, path in scans.items():
        write_scan(path, kind)
    rows: list[dict[str, Any]] = []
    for file in sorted(given.pipelines.glob("*.yaml")):
        text = file.read_text()
        if "!Sweep" in text or "tomopy." in text:
            continue
        kind = "full" if "sino_360" in text else "half"
        steps = prepared(text)
        patched = work / file.name
        patched.write_text(yaml.safe_dump(steps, sort_keys=False))
        row = {"name": file.stem, "ours": "", "theirs": "", "centre": "", "apart": ""}
        rows.append(row)
        out = work / f"{file.stem}-ours"
        start = time.perf_counter()
        try:
            report = maxslices.run(scans[kind], patched, out, device=given.device, overwrite=True)
        except maxslices.MaxslicesError as error:
            row["ours"] = str(error).splitlines()[0][:150]
            continue
        row["ours"] = f"{time.perf_counter() - start:.1f} s"
        (given.out / f"{file.stem}.txt").write_text(str(report))
        found = [v for name, v in report.side_results.items() if name.endswith(".cor")]
        if found:
            overlaps = [v for n, v in report.side_results.items() if n.endswith(".overlap")]
            true = CENTRES[kind]
            row["centre"] = f"{found[0]:.2f}, off by {found[0] - true:+.2f}"
            if overlaps:
                row["centre"] += (
                    f", overlap {overlaps[0]:.1f} of {2 * (COLUMNS - 1 - true) + 1:.1f}"
                )
        ours = images(out)
        from PIL import Image

        Image.fromarray(ours[len(ours) // 2]).save(given.out / f"{file.stem}.png")
        row["stack"] = ours
        row["kind"] = kind
    # What is quick first: httomo's start alone takes several seconds.
    for row in (r for r in rows if "stack" in r):
        left_s = given.limit_s - (time.perf_counter() - begin)
        if left_s < 12:
            row["theirs"] = "no time left"
            continue
        out = work / f"{row['name']}-httomo"
        seconds, fault = run_httomo(
            scans[row["kind"]], work / f"{row['name']}.yaml", out, min(left_s, 60)
        )
        row["theirs"] = fault or f"{seconds:.1f} s"
        if not fault:
            theirs = images(out)
            row["apart"] = difference(row["stack"], theirs)
    for scan in scans.values():
        scan.unlink()
    print("| pipeline | maxslices | httomo | centre | images apart |\n|---|---|---|---|---|")
    for row in rows:
        print(
            "| " + " | ".join(row[k] for k in ("name", "ours", "theirs", "centre", "apart")) + " |"
        )
    print(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()

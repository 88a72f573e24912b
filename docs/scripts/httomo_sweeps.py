"""httomo's two sweep pipelines, in httomo and here, on one made scan: same pictures, which time.

Run it where there are a GPU, httomo and its packages::

    python docs/scripts/httomo_sweeps.py PIPELINES OUT [--rows 256]

PIPELINES is the folder with ``sweep_center_FBP3d_tomobar.yaml`` and
``sweep_paganin_FBP3d_tomobar.yaml`` as httomo-backends makes them; only the loader's ``auto`` is
replaced by the paths in the made scan. Both programs run as a command each, and their times are
wall times of the whole command. httomo burns each value into its picture, so its pictures are taken
as arrays from what its image saver is given; the saver itself does nothing, and costs it no time.

Then sweeps of 5, 50 and 500 values of the centre run here. ``--only-here`` leaves httomo out, and
``--cpu`` runs the pack's methods of the same names in place of httomolibgpu's, to try the script.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import tifffile

COLUMNS = 2560
"""Of the commonest detector."""
N_FRAMES = 20
"""Flats, and darks, as many as a plan assumes."""
WRAPPER = """
import sys, types
try:
    import aiofiles
except ImportError:
    sys.modules["aiofiles"] = types.ModuleType("aiofiles")  # for its asynchronous way alone
import numpy as np
from httomo.method_wrappers.images import ImagesWrapper
calls, init = [], ImagesWrapper.__init__

def made(self, *args, **kwargs):
    kwargs.pop("bit_depth", None)  # an httomolib that is older than this httomo does not have it
    init(self, *args, **kwargs)

def kept(self, block):
    data = block.data if isinstance(block.data, np.ndarray) else block.data.get()
    np.save(f"{sys.argv[-1]}/httomo_{len(calls)}.npy", data)
    calls.append(0)
    return block

ImagesWrapper.__init__ = made
ImagesWrapper.execute = kept
from httomo.cli import main
main()
"""


def make_scan(path: Path, angles: int, rows: int, columns: int, axis: float) -> None:
    """Write an NXtomo file of two cylinders that turn around `axis`, with noise."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 200, (64, rows, columns), dtype=np.uint16)
    degrees = np.linspace(0, 180, angles)
    x = (np.arange(columns) - axis) / (columns / 2)
    with h5py.File(path, "w") as file:
        entry = "entry1/tomo_entry"
        shape = (angles + 2 * N_FRAMES, rows, columns)
        data = file.create_dataset(f"{entry}/data/data", shape, "u2", chunks=(1, rows, columns))
        for i in range(shape[0]):
            frame = noise[i % 64]
            if i >= 2 * N_FRAMES:
                turn = np.deg2rad(degrees[i - 2 * N_FRAMES])
                own = x - 0.4 * np.cos(turn)
                depth = np.sqrt(np.clip(0.64 - x**2, 0, None))
                depth += np.sqrt(np.clip(0.04 - own**2, 0, None))
                frame = frame + (40000 * np.exp(-2 * depth)).astype(np.uint16)
            elif i >= N_FRAMES:
                frame = frame + np.uint16(40000)
            data[i] = frame
        key = np.r_[np.full(N_FRAMES, 2), np.full(N_FRAMES, 1), np.zeros(angles)].astype("i4")
        file[f"{entry}/instrument/detector/image_key"] = key
        file[f"{entry}/data/rotation_angle"] = np.r_[np.zeros(2 * N_FRAMES), degrees]
        file[f"{entry}/definition"] = "NXtomo"


def with_paths(text: str) -> str:
    """Pipeline with the paths of the made scan."""
    text = text.replace("data_path: auto", "data_path: /entry1/tomo_entry/data/data", 1)
    text = text.replace(
        "image_key_path: auto",
        "image_key_path: /entry1/tomo_entry/instrument/detector/image_key",
        1,
    )
    angles = "rotation_angles:\n      data_path: /entry1/tomo_entry/data/rotation_angle"
    return text.replace("rotation_angles: auto", angles, 1)


def on_cpu(text: str) -> str:
    """Pipeline of the pack's methods, which have the same names."""
    return re.sub(r"\n  module_path: httomolibgpu.*", "", text)


def command(words: list[str], log: Path, limit_s: float) -> float:
    """Run a command, for `limit_s` at most; its seconds."""
    began = time.perf_counter()
    with log.open("w") as file:
        try:
            code: int | str = subprocess.run(
                words, stdout=file, stderr=subprocess.STDOUT, check=False, timeout=max(limit_s, 1)
            ).returncode
        except subprocess.TimeoutExpired:
            code = "not finished in time"
    took_s = time.perf_counter() - began
    if code:
        print(f"{words[:4]} failed ({code}):\n{log.read_text()[-3000:]}", flush=True)
    return took_s


def compare(here: np.ndarray, there: np.ndarray) -> str:
    """Difference of two stacks of pictures in words."""
    there = np.moveaxis(there, 1, 0)
    if here.shape != there.shape:
        return f"shapes {here.shape} and {there.shape}"
    n_same = sum(np.array_equal(a, b) for a, b in zip(here, there, strict=True))
    scale = float(np.abs(there).max())
    worst = float(np.abs(here - there).max()) / scale
    return (
        f"{n_same} of {len(here)} pictures bit for bit, largest difference {worst:.2e} of maximum"
    )


def many_values(
    given: argparse.Namespace, work: Path, scan: Path, axis: float, began: float
) -> None:
    """Sweep 5, 50 and 500 values of the centre here, and print what it took."""
    device = "cpu" if given.cpu else "cuda:0"
    for n_values in (5, 50, 500):
        # On the CPU 500 values take about a fifth of the time that is given by default.
        if time.perf_counter() - began > given.limit_s * (0.9 - n_values / 2500):
            print(f"{n_values} values: left out, no time", flush=True)
            continue
        pipeline = work / "center.yaml"
        out = work / f"here_{n_values}"
        step = 100 / n_values
        sweep = f"FBP3d_tomobar.center={axis - 50}:{axis + 50 - step / 2}:{step}"
        words = [sys.executable, "-m", "maxslices", "run", str(scan), str(pipeline), str(out)]
        words += ["--device", device, "--overwrite", "--sweep", sweep]
        left_s = given.limit_s - (time.perf_counter() - began)
        took_s = command(words, given.out / f"here_{n_values}.txt", left_s)
        if (out / "report.json").exists():
            report = json.loads((out / "report.json").read_text())
            sections = [round(each["duration_s"], 2) for each in report["sections"]]
            print(
                f"{n_values} values on {device}: {took_s:.1f} s, by its own clock "
                f"{report['duration_s']:.2f}; sections {sections}; "
                f"{report['phases_s']}; suggested {report['sweep']['suggested']}",
                flush=True,
            )


def main() -> None:
    """Make the scan, run both, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pipelines", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    parser.add_argument("--angles", type=int, default=1801)
    parser.add_argument("--only-here", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--limit-s", type=float, default=150)
    given = parser.parse_args()
    began = time.perf_counter()
    work = Path(os.environ.get("TMPDIR", "/tmp")) / "httomo-sweeps"
    given.out.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    scan, axis = work / "scan.nxs", (given.columns - 1) / 2 - 80
    make_scan(scan, given.angles, given.rows, given.columns, axis)
    print(
        f"scan of {scan.stat().st_size / 1e9:.2f} GB, axis {axis}, "
        f"in {time.perf_counter() - began:.1f} s",
        flush=True,
    )
    wrapper = work / "wrapper.py"
    wrapper.write_text(WRAPPER)
    for name in ("center", "paganin"):
        text = with_paths((given.pipelines / f"sweep_{name}_FBP3d_tomobar.yaml").read_text())
        pipeline = work / f"{name}.yaml"
        pipeline.write_text(on_cpu(text) if given.cpu else text)
        row: dict[str, object] = {}
        out = work / f"here_{name}"
        words = [sys.executable, "-m", "maxslices", "run", str(scan), str(pipeline), str(out)]
        words += ["--device", "cpu" if given.cpu else "cuda:0", "--overwrite"]
        for turn in ("first", "again"):  # the second time estimates are recorded
            left_s = given.limit_s - (time.perf_counter() - began)
            log_file = given.out / f"here_{name}_{turn}.txt"
            row[f"here, {turn}: s"] = round(command(words, log_file, left_s), 2)
        if not given.only_here:
            kept = work / f"kept_{name}"
            kept.mkdir(exist_ok=True)
            theirs = [sys.executable, str(wrapper), "run", str(scan), str(pipeline), str(kept)]
            left_s = given.limit_s - (time.perf_counter() - began)
            row["httomo: s"] = round(command(theirs, given.out / f"httomo_{name}.txt", left_s), 2)
            log = (given.out / f"httomo_{name}.txt").read_text()
            took = re.search(r"Pipeline finished. Took ([0-9.]+)s", log)
            row["httomo, by its own clock: s"] = float(took[1]) if took else None
            files = sorted(kept.glob("httomo_*.npy"))
            if files and (out / "sweep.tif").exists():
                row["pictures"] = compare(tifffile.imread(out / "sweep.tif"), np.load(files[-1]))
        if (out / "report.json").exists():
            report = json.loads((out / "report.json").read_text())
            row["here, by its own clock: s"] = round(report["duration_s"], 2)
            row["values"] = report["sweep"]["values"]
            row["suggested"] = report["sweep"]["suggested"]
            row["phases"] = {k: round(v, 2) for k, v in report["phases_s"].items()}
            row["sections: s"] = [round(each["duration_s"], 3) for each in report["sections"]]
            row["rows"] = report["plan"]["rows"]
            sheet = out / "sweep.png"
            if sheet.stat().st_size < 8e6:
                (given.out / f"sheet_{name}.png").write_bytes(sheet.read_bytes())
        print(name, json.dumps(row, indent=1), flush=True)
    many_values(given, work, scan, axis, began)
    print(f"all in {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()

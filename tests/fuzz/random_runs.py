"""Random runs, compared with plain NumPy: scans, layouts, pipelines, blocks, budgets, outputs."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tifffile

from maxslices import Pipeline, run
from maxslices.core.block_memory import PYTHON_BYTES
from tests.planner.fakes import fakes

from .child import Difference, Outcome, cases
from .oracle import Whole, expected

LAYOUTS = ("array", "npy", "dls", "chunked", "zipped", "exchange", "tiffs", "pages")
LOADER = {"method": "standard_tomo", "module_path": "maxslices.io"}
FINDING = ("extremes", "find_middle")
"""Methods that return side results only."""
DTYPES = ("uint8", "uint16", "int16", "float32", "float64", "int32")


@dataclass
class RandomRun:
    """A scan, a pipeline, and options of a run, drawn with a seed."""

    scan: Path | np.ndarray
    """The scan argument of the run."""
    whole: Whole
    """The scan as the pipeline receives it."""
    steps: list[dict[str, Any]]
    """The pipeline, without its loader."""
    loader: dict[str, Any]
    """The loader."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of `maxslices.run`."""

    def pipeline(self) -> Pipeline:
        """The pipeline, read from a file."""
        folder = self.options_folder
        path = folder / "pipeline.yaml"
        path.write_text(json.dumps([self.loader, *self.steps]))  # JSON is YAML
        return Pipeline.from_file(path, fakes)

    options_folder: Path = Path()
    """Folder of the pipeline's file."""

    def results(self, slice_dims: list[int]) -> dict[str, np.ndarray]:
        """Result of each saved step by its name, without a suffix."""
        whole = Whole(self.whole.data, self.whole.angles, self.whole.flats)
        outputs = expected(whole, self.steps, slice_dims)
        last = self.last
        saved = {
            step_name(self, number): outputs[number]
            for number, step in enumerate(self.steps)
            if step.get("save_result") and number != last
        }
        return saved if last is None else {**saved, "result": outputs[last]}

    @property
    def last(self) -> int | None:
        """Index of the last step that returns data, or None."""
        making = [i for i, step in enumerate(self.steps) if step["method"] not in FINDING]
        return making[-1] if making else None

    def __str__(self) -> str:
        scan = self.scan if isinstance(self.scan, Path) else "array"
        shape = f"{self.whole.data.shape} {self.whole.data.dtype}"
        return f"{scan} {shape}\n{self.loader}\n{self.steps}\n{self.options}"


def draw_run(random_: random.Random, folder: Path, layouts: tuple[str, ...] = LAYOUTS) -> RandomRun:
    """Draw a run, and write its scan into a folder."""
    numbers = np.random.default_rng(random_.randrange(2**32))
    layout = random_.choice(layouts)
    shape = (random_.randint(1, 40), random_.randint(1, 24), random_.randint(1, 33))
    dtype = np.dtype(random_.choice(DTYPES))
    if dtype.byteorder == "=" and random_.random() < 0.2 and layout != "pages":
        dtype = dtype.newbyteorder(">")
    frames = numbers.integers(0, 120, shape).astype(dtype)
    scan, whole = _write(folder, layout, frames, random_, numbers)
    loader: dict[str, Any] = {**LOADER, "parameters": {}}
    if random_.random() < 0.3:
        loader["parameters"]["preview"] = _preview(random_, whole)
    run_ = RandomRun(scan, whole, _draw_steps(random_, whole), loader, options_folder=folder)
    run_.options["block"] = random_.choice(("auto", "max", random_.randint(1, max(shape) + 3)))
    if random_.random() < 0.4:
        run_.options["memory"] = PYTHON_BYTES + int(10 ** random_.uniform(4, 7))
    run_.options["format"] = random_.choice(("hdf5", "hdf5", "tiff"))
    return run_


def _write(
    folder: Path,
    layout: str,
    frames: np.ndarray,
    random_: random.Random,
    numbers: np.random.Generator,
) -> tuple[Path | np.ndarray, Whole]:
    native = frames.astype(frames.dtype.newbyteorder("="))
    if layout == "array":
        return native.copy(), Whole(native)
    if layout == "npy":
        np.save(folder / "scan.npy", frames)
        return folder / "scan.npy", Whole(native)
    if layout == "tiffs":
        (folder / "tiffs").mkdir()
        for number, frame in enumerate(frames):
            tifffile.imwrite(folder / "tiffs" / f"p_{number + 7}.tif", np.ascontiguousarray(frame))
        return folder / "tiffs", Whole(native)
    if layout == "pages":
        with tifffile.TiffWriter(folder / "pages.tif") as file:
            for frame in native:
                file.write(frame, contiguous=False, photometric="minisblack")
        return folder / "pages.tif", Whole(native)
    degrees = np.sort(numbers.uniform(-10, 360, len(frames)))
    path = folder / "scan.h5"
    keys = numbers.choice([0, 0, 0, 0, 1, 2], len(frames))
    keys[random_.randrange(len(keys))] = 0
    storage: dict[str, Any] = {}
    if layout in ("chunked", "zipped"):
        storage["chunks"] = tuple(random_.randint(1, length) for length in frames.shape)
    if layout == "zipped":
        storage |= {"compression": "gzip", "shuffle": random_.random() < 0.5}
    with h5py.File(path, "w") as file:
        if layout == "exchange":
            file["exchange/data"] = frames[keys == 0]
            file["exchange/theta"] = degrees[keys == 0]
            if (keys == 1).any():
                file["exchange/data_white"] = frames[keys == 1]
        else:
            entry = file.create_group("entry1/tomo_entry")
            entry.create_dataset("data/data", data=frames, **storage)
            entry["instrument/detector/image_key"] = keys
            entry["data/rotation_angle"] = degrees
    flats = native[keys == 1] if (keys == 1).any() else None
    angles = np.radians(degrees[keys == 0]).astype(np.float32)
    stored = None if layout == "exchange" else np.flatnonzero(keys == 0)
    return path, Whole(native[keys == 0], angles, flats, stored)


def _preview(random_: random.Random, whole: Whole) -> dict[str, Any]:
    """Draw a part of the scan, and crop the expected data to it."""
    preview = {}
    for axis, name in enumerate(("angles", "detector_y", "detector_x")):
        if random_.random() < 0.5:
            continue
        start = random_.randrange(whole.data.shape[axis])
        stop = random_.randint(start + 1, whole.data.shape[axis])
        preview[name] = {"start": start, "stop": stop}
        if not axis and whole.stored is not None:  # counts frames as they are stored
            first, last = whole.stored[start], whole.stored[stop - 1]
            preview[name] = {"start": int(first), "stop": int(last) + 1}
        part = (slice(None),) * axis + (slice(start, stop),)
        whole.data = whole.data[part]
        if axis and whole.flats is not None:
            whole.flats = whole.flats[part]
        elif not axis and whole.angles is not None:
            whole.angles = whole.angles[part]
    return preview


def _draw_steps(random_: random.Random, whole: Whole) -> list[dict[str, Any]]:
    columns = whole.data.shape[2]
    names = ["to_float", "negate", "work", "neighbours", "reaching", "crop", "same", "left"]
    names += ["triple_in_place", "extremes", "find_middle"]
    names += ["flat_field"] * (whole.flats is not None) + ["turn"] * (whole.angles is not None)
    steps: list[dict[str, Any]] = []
    refers = []
    for number in range(random_.randint(1, 5)):
        name = random_.choice(names + ["scaled_by"] * (3 * bool(refers)))
        if number == 0 and name in FINDING and random_.random() < 0.7:
            name = "to_float"
        step: dict[str, Any] = {"method": name, "parameters": {}}
        parameters = step["parameters"]
        if name == "to_float":
            parameters["factor"] = random_.choice((1.0, 0.5, -3.0, 1e-3))
        elif name == "work":
            parameters["copies"] = random_.randint(1, 3)
        elif name == "reaching":
            parameters["reach"] = random_.randint(1, 5)
        elif name in ("crop", "left"):
            columns = parameters["keep"] = random_.randint(1, columns)
        elif name == "scaled_by":
            parameters["centre"] = random_.choice(refers)
        elif name in FINDING:
            identifier = f"s{number}"
            side = {"extremes": {"low": "low", "high": "high"}, "find_middle": {"cor": "axis"}}
            step |= {"id": identifier, "side_outputs": side[name]}
            refers = [f"${{{{{identifier}.side_outputs.{name}}}}}" for name in side[name].values()]
        if name not in FINDING and random_.random() < 0.25:
            step["save_result"] = True
        steps.append(step)
    return steps


def read_result(path: Path) -> np.ndarray:
    """Read a result, in HDF5 or a folder of TIFFs (slices in the order of their names)."""
    if path.is_dir():
        return np.stack([tifffile.imread(each) for each in sorted(path.iterdir())])
    with h5py.File(path) as file:
        return file["entry/data/data"][()]


def compare(run_: RandomRun, slice_dims: list[int], results: dict[str, np.ndarray]) -> None:
    """Compare the bits of results with the expected ones."""
    wanted = run_.results(slice_dims)
    if results.keys() != wanted.keys():
        raise Difference(f"results {sorted(results)}, and not {sorted(wanted)}, of {run_}")
    dims = {step_name(run_, i): slice_dim for i, slice_dim in enumerate(slice_dims)}
    dims["result"] = 0 if run_.last is None else slice_dims[run_.last]
    for name, array in results.items():
        right = wanted[name]
        same = array.shape == right.shape and array.dtype == right.dtype
        if not same or array.tobytes() != np.ascontiguousarray(right).tobytes():
            where = "shapes" if not same else np.argwhere(array != right)[:3].tolist()
            raise Difference(f"{name} {array.shape} {array.dtype} differs at {where}: {run_}")


def step_name(run_: RandomRun, index: int) -> str:
    """Name of a step's result."""
    return f"{index + 1:02d}_{run_.steps[index]['method']}"


def results_in(folder: Path) -> dict[str, np.ndarray]:
    """All results in a folder by name, without a suffix."""
    return {
        path.name.removesuffix(".h5"): read_result(path)
        for path in sorted(folder.iterdir())
        if path.suffix == ".h5" or path.is_dir()
    }


def carry_out(run_: RandomRun, out: Path | None) -> None:
    """Run, and compare the results with the expected ones."""
    before = run_.scan.copy() if isinstance(run_.scan, np.ndarray) else None
    report = run(run_.scan, run_.pipeline(), out, device="cpu", **run_.options)
    if before is not None and run_.scan.tobytes() != before.tobytes():
        raise Difference(f"the array of the scan was changed: {run_}")
    slice_dims = [each.slice_dim for each in report.plan.sections for _ in each.steps]
    if out is None:
        run_.steps[:] = [{**step, "save_result": False} for step in run_.steps]
        compare(run_, slice_dims, {} if report.result is None else {"result": report.result})
    else:
        compare(run_, slice_dims, results_in(out))


def empty(place: Path) -> Path:
    """Make a folder, in place of one of that name."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place


def run_cases(kind: str, folder: Path, seed: int) -> Iterator[tuple[str, Outcome]]:
    """Run random pipelines on random scans."""
    import_what_runs_need(folder)

    def case(random_: random.Random) -> None:
        place = empty(folder / "case")
        run_ = draw_run(random_, place)
        out = None if random_.random() < 0.2 else place / "out"
        if out is None:
            del run_.options["format"]
        carry_out(run_, out)

    return cases(kind, seed, case)


def import_what_runs_need(folder: Path) -> None:
    """Import the modules that children need, none of which starts a thread."""
    import psutil  # noqa: F401
    import scipy.fft
    import scipy.ndimage  # noqa: F401

    from maxslices.api import carry_out  # noqa: F401
    from maxslices.io import Sink  # noqa: F401
    from maxslices.io.results import exports  # noqa: F401
    from maxslices.io.tiff import frames as tiff_frames  # noqa: F401

    folder.mkdir(parents=True, exist_ok=True)

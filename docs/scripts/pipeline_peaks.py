"""Plan httomo's pipelines without a GPU, and measure the peaks of these plans on one.

Run it where httomolibgpu and httomo-backends are (sources are enough to plan)::

    python docs/scripts/pipeline_peaks.py OUT PIPELINE... [--device none] [--limit-s 100]

Each pipeline is planned for each of `DETECTORS`, by the records that come with maxslices alone.
What cannot be planned is named. On a GPU (``--device cuda``) each method is then called with a
block of its plan, and the peak held against the plan's figure. OUT gets ``peaks.json``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from record_pipelines import DETECTORS

import maxslices.httomo  # noqa: F401  registers httomolibgpu, also where maxslices is not installed
from maxslices.api.plan_scan import ASSUMED_FRAMES, plan, plan_pipeline
from maxslices.api.resources import budgets_of
from maxslices.core.arrays import ArraySpec
from maxslices.core.memory_model import MemoryModel
from maxslices.devices import Backend, select_backend
from maxslices.errors import MaxslicesError
from maxslices.estimate import ModelRequest, ModelResolver, Records
from maxslices.estimate.request_key import canonical, request_key
from maxslices.measure.alive import tracemalloc_on
from maxslices.pipeline import ScanSpec
from maxslices.pipeline.pipeline import as_pipeline
from maxslices.system.plain_records import to_plain
from maxslices.trial.trial import Trial

FILLED_IN = {"newshape": [1024, 1024], "ratio_delta_beta": 250}
"""Values for what a pipeline leaves to its user."""
CENTRE = {"xcenter": 300.5, "ycenter": 250.5, "list_fact": [1.0, 1e-6, 1e-9]}
"""Of a lens's distortion, which a file would give."""
FEW = {"iterations": 2, "regularisation_iterations": 2}
"""Iterations where peaks are measured: `record_pipelines.py` shows that they do not matter."""


class Loader(yaml.SafeLoader):
    """Loader of pipeline files with sweeps, of which the first value is taken."""


def first_value(loader: Any, node: Any) -> Any:
    """First value of a sweep."""
    if node.tag == "!Sweep":
        return loader.construct_sequence(node)[0]
    return float(loader.construct_mapping(node)["start"])


for tag in ("!Sweep", "!SweepRange"):
    Loader.add_constructor(tag, first_value)


@dataclass(frozen=True)
class PlannedCall:
    """A method's call on a block of a plan."""

    request: ModelRequest
    n_slices: int
    memory: MemoryModel
    """Model of the plan."""
    origin: str
    time_s: float
    """What the call is expected to take."""

    @property
    def key(self) -> str:
        """Equal for equal calls."""
        return canonical([to_plain(request_key(self.request)), self.n_slices])


def filled_in(path: Path, out: Path) -> Path:
    """Copy of a pipeline with values for what it leaves to its user."""
    text = path.read_text()
    for name, value in FILLED_IN.items():
        text = text.replace(f"{name}: REQUIRED", f"{name}: {value}")
    made = out / path.name
    made.write_text(text)
    return made


def first_of_sweeps(path: Path, out: Path) -> Path:
    """Copy of a pipeline with the first value of its sweep, and a lens's distortion."""
    steps = yaml.load(path.read_text(), Loader)
    for step in steps:
        if step["method"].startswith("distortion"):
            step["parameters"] |= CENTRE
    made = out / f"single-{path.name}"
    made.write_text(yaml.safe_dump(steps, sort_keys=False))
    return made


def planned_calls(path: Path, size: tuple[int, int, int], memory: str) -> Iterator[PlannedCall]:
    """Calls of all methods on the largest blocks that the memory allows."""
    whole = ArraySpec(size, "uint16")
    frames = whole.with_slices(0, ASSUMED_FRAMES)
    scan = ScanSpec(whole, frames, frames, True, name="a scan")
    budgets, _ = budgets_of("cuda", memory, "512GB", False)
    resolver = ModelResolver(
        "cuda",
        records=Records(path.parent / "none"),
        available_bytes=budgets.budget_bytes - budgets.reserved_bytes,
        side={"flats": frames, "darks": frames},
    )
    made = plan_pipeline(as_pipeline(path), scan, budgets, resolver, block="max")
    chosen = iter(resolver.resolved)
    for section in made.sections:
        n = min(section.block + sum(section.halo), section.n_slices)
        for _ in section.steps:
            request, choice = next(chosen)
            call_s, slice_s = choice.pace_s or (0.0, 0.0)
            time_s = call_s + n * slice_s
            yield PlannedCall(request, n, choice.model, choice.origin, time_s)


def measured(call: PlannedCall, backend: Backend) -> tuple[int, int]:
    """Peak of a call, and the part of it outside CuPy's pool."""
    request = call.request
    few = {name: n for name, n in FEW.items() if name in request.parameters}
    request = replace(request, parameters={**request.parameters, **few})
    frames = ArraySpec((ASSUMED_FRAMES, *request.other_dims), "uint16")
    trial = Trial(
        request.meta, *request.slices, backend, request.parameters,
        frames={"flats": frames, "darks": frames},
    )  # fmt: skip
    with tracemalloc_on(backend.kind):
        left = max(0, trial.once(min(2, call.n_slices)).left_bytes)
        found = trial.measure(call.n_slices)
        trial.close()
    return found.n_bytes + left, found.outside_bytes


def main() -> None:
    """Plan all, then measure as long as there is time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("pipelines", type=Path, nargs="+")
    parser.add_argument("--device", default="none", choices=("none", "cuda"))
    parser.add_argument("--memory", default="8GB")
    parser.add_argument("--limit-s", type=float, default=100.0)
    options = parser.parse_args()
    work: Path = options.out / "work"
    work.mkdir(parents=True, exist_ok=True)
    began, calls, n_planned, rows = time.perf_counter(), {}, 0, []
    for path in options.pipelines:
        file = filled_in(path, work)
        for size in DETECTORS:
            try:
                for call in planned_calls(first_of_sweeps(file, work), size, options.memory):
                    calls.setdefault(call.key, call)
                if options.device == "none":  # where there is a GPU, this would measure
                    plan(ArraySpec(size, "uint16"), file, device="cuda",
                         memory="16GB", host_memory="512GB")  # fmt: skip
                n_planned += 1
            except MaxslicesError as error:
                print(f"{path.stem} {size[1]}x{size[2]}: {str(error)[:300]}")
    n_plans = len(options.pipelines) * len(DETECTORS)
    print(f"{n_planned} of {n_plans} plans are made without a GPU, {len(calls)} different calls")
    if options.device == "none":
        return
    backend = select_backend(options.device)
    ordered = sorted(calls.values(), key=lambda call: call.time_s)
    for call in ordered:
        request, name = call.request, call.request.meta.name
        if call.origin != "recorded" or time.perf_counter() - began > options.limit_s:
            continue
        dims = "x".join(map(str, request.other_dims))
        row = {"method": name, "dims": dims, "dtype": str(request.dtype), "n": call.n_slices}
        try:
            took, outside = measured(call, backend)
        except Exception as error:  # noqa: BLE001  a row says it
            print(f"{name} {dims} {call.n_slices}: {type(error).__name__}: {str(error)[:150]}")
            continue
        row |= {"planned": call.memory.bytes(call.n_slices), "measured": took, "outside": outside}
        rows.append(row)
        (options.out / "peaks.json").write_text(json.dumps(rows, indent=1))
        part = took / row["planned"]
        text = f"{name:36s} {dims:>10s} {row['dtype']:8s} {call.n_slices:5d} slices"
        print(f"{text} {took / 1e9:7.3f} GB, {part:.4f} of the plan's", flush=True)
    parts = [row["measured"] / row["planned"] for row in rows]
    print(f"{len(rows)} of {len(calls)} calls, {sum(0.98 <= each <= 1 for each in parts)} with 98 "
          f"to 100 % of what was planned, {sum(each > 1 for each in parts)} above; "
          f"{time.perf_counter() - began:.0f} s")  # fmt: skip


if __name__ == "__main__":
    main()

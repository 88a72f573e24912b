"""Record what methods ask CuPy's pool for, at many numbers of slices.

Run it where there are a GPU and httomolibgpu::

    python docs/scripts/record_sequences.py OUT [--limit-s 100] [--only PATTERN]
        [--sizes | --packages]

Each line of OUT/sequences.jsonl.gz is one call: case, dims, number of slices, the allocation
sequence (`maxslices.measure.allocation_sequence`), bytes outside the pool, and seconds. The cases
are those of `httomo_table.py` and the functions of `outside_functions.py`, at two detector sizes at
all numbers of slices, and at two more with 3 and 5. ``--sizes`` records httomolibgpu alone, at five
sizes with the few slices from which a probe learns. ``--packages`` records the functions of
`package_functions.py` instead, at the first detector. ``--try`` runs the functions with NumPy and
SciPy instead, and records nothing.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from outside_functions import RECORDED, Function
from package_functions import FUNCTIONS

AT = (2, 3, 5, 8, 4, 1, 6, 7, 9, 10, 12, 13, 16, 17, 24, 31, 32, 48, 64)
FEW = (3, 5)
LARGE, SMALL = (1801, 2160, 2560), (901, 1201, 1279)
OTHERS = ((1200, 2048, 2048), (777, 1001, 1111))
SIZES = (LARGE, SMALL, *OTHERS, (1441, 1800, 2048))
SIZES_AT = (3, 5, 8)
SLOW_AT = (2, 3, 5, 8, 4, 16, 17)
PACKAGES_AT = (3, 5, 8, 17, 64)
"""A model is fitted to all but the last and compared with that."""
CASE_S, PACKAGE_CASE_S = 2.5, 15.0
"""Seconds for all calls of one case at one size: the largest are left out beyond. Iterations of
other packages take that long, and their largest block is needed."""


@dataclass(frozen=True)
class Todo:
    """A method at a size of the scan (angles, rows, columns)."""

    name: str
    meta: Any
    slice_dim: int
    dims: tuple[int, int, int]
    dtype: str
    parameters: dict[str, Any]
    at: tuple[int, ...]

    @property
    def other_dims(self) -> tuple[int, int]:
        """Other two dims of a slice."""
        angles, rows, columns = self.dims
        return (angles, columns) if self.slice_dim else (rows, columns)


def sizes_todo() -> Iterator[Todo]:
    """Httomolibgpu's methods at several sizes."""
    for each in todo():
        if each.meta.module == "outside" or each.dims is not LARGE:
            continue
        for dims in SIZES:
            parameters = dict(each.parameters)
            if "center" in parameters:
                parameters["center"] = dims[2] / 2
            at = FEW if each.at is FEW else SIZES_AT
            yield replace(each, dims=dims, parameters=parameters, at=at)


def todo() -> Iterator[Todo]:
    """All cases, those first that matter most."""
    import cupy
    import httomo_table as table
    from cupyx.scipy import ndimage

    from maxslices.core.declaration import describe
    from maxslices.core.method_registry import registry

    cases = [c for c in table.AS_HTTOMO + table.OTHERS if c.method not in table.SLOW]
    slow = [c for c in table.AS_HTTOMO if c.method in table.SLOW]
    for dims, at in ((LARGE, AT), (SMALL, AT), *((dims, FEW) for dims in OTHERS)):
        for case in cases + (slow if dims is not LARGE else []):
            parameters = dict(case.parameters)
            if "center" in parameters:
                parameters["center"] = dims[2] / 2
            points = SLOW_AT if case.method in table.SLOW and at is AT else at
            meta = registry["httomolibgpu." + case.method]
            name = case.method.rpartition(".")[2]
            yield Todo(name, meta, case.slice_dim, dims, case.dtype, parameters, points)
        for function in RECORDED:
            meta = describe(
                as_method(function, cupy, ndimage),
                pattern="projection",
                name=function.__name__,
                module="outside",
            )
            yield Todo(function.__name__, meta, 0, dims, "float32", {}, at)
    for case in slow:
        meta, name = registry["httomolibgpu." + case.method], case.method.rpartition(".")[2]
        yield Todo(name, meta, 1, LARGE, case.dtype, dict(case.parameters), FEW)


def packages_todo() -> Iterator[Todo]:
    """Functions of other packages."""
    from maxslices.core.declaration import describe

    for each in FUNCTIONS:
        pattern = "sinogram" if each.slice_dim else "projection"
        name = f"{each.package} {each.name}"
        meta = describe(each.call, pattern=pattern, name="call", module="outside")
        yield Todo(name, meta, each.slice_dim, LARGE, "float32", dict(each.parameters), PACKAGES_AT)


def as_method(function: Function, *modules: Any) -> Callable[[Any], Any]:
    """Make a method of a function that is given its modules."""

    def method(data: Any) -> Any:
        return function(*modules, data)

    return method


class Recorder:
    """Calls one method and records it."""

    def __init__(self, each: Todo, backend: Any) -> None:
        from maxslices.core.arrays import ArraySpec
        from maxslices.trial.trial import Trial

        self.each, self.backend = each, backend
        side = {}
        if "dark_flat" in each.name:
            frames = ArraySpec((20, *each.other_dims), np.dtype("uint16"))
            side = {"flats": frames, "darks": frames}
        dtype = np.dtype(each.dtype)
        self.samples = Trial(
            each.meta, each.slice_dim, each.other_dims, dtype, backend, {}, frames=side
        )

    def call(self, n: int) -> dict[str, Any]:
        """Call it with n slices."""
        import cupy

        from maxslices.measure import measure_peak

        side = self.samples.side(n)
        self.backend.release()
        data = self.samples.data(n, "even")
        cupy.cuda.Device().synchronize()
        with measure_peak("cuda", record=(n, data.nbytes)) as peak:
            result = self.each.meta.function(data, **side, **self.each.parameters)
            cupy.cuda.Device().synchronize()
            output = (str(result.dtype), result.shape) if hasattr(result, "shape") else None
            del result
        del data
        plain = peak.sequence.as_plain()
        plain["sites"] = [["/".join(s[0].split("/")[-2:]), *s[1:]] for s in plain["sites"]]
        return {
            "case": self.each.name, "slice_dim": self.each.slice_dim, "dims": self.each.dims,
            "dtype": self.each.dtype, "parameters": self.each.parameters, "n": n,
            "in_use": peak.cupy_in_use_bytes, "outside": peak.outside_bytes,
            "stays": peak.outside_after_bytes, "call_s": peak.wall_s, "output": output,
            "sequence": plain, "unseen": peak.unseen,
        }  # fmt: skip


def record(
    out: Path, limit_s: float, only: str, cases: Iterator[Todo], case_s: float = CASE_S
) -> None:
    """Record all cases for as long as there is time."""
    from maxslices.devices import select_backend
    from maxslices.tuning.garbage_collection import quick_collections

    backend, began, done, left = select_backend("cuda"), time.perf_counter(), 0, 0
    out.mkdir(parents=True, exist_ok=True)
    with gzip.open(out / "sequences.jsonl.gz", "wt", 4) as file, quick_collections():
        for each in cases:
            if not re.search(only, each.name):
                continue
            case_began, calls, error = time.perf_counter(), 0, ""
            if case_began - began > limit_s:
                left += 1
                continue
            try:
                recorder = Recorder(each, backend)
                recorder.call(2)  # compiles
                measured = time.perf_counter()
            except Exception as problem:  # noqa: BLE001  a method that refuses its input
                print(f"{each.name} {each.dims} {type(problem).__name__}: {str(problem)[:90]}")
                continue
            for n in each.at:
                if time.perf_counter() - measured > case_s:
                    break
                try:
                    found = recorder.call(n)
                except Exception as problem:  # noqa: BLE001  it may refuse some numbers
                    error = f"{n}: {type(problem).__name__}: {str(problem)[:90]}"
                    continue
                file.write(json.dumps(found) + "\n")
                calls += 1
            backend.release()
            done += 1
            took_s = time.perf_counter() - case_began
            print(f"{each.name} {each.dims} {calls} calls {took_s:.2f} s {error}", flush=True)
    print(f"{done} cases recorded, {left} left out, {time.perf_counter() - began:.0f} s")


def try_out() -> None:
    """Run the functions with NumPy and SciPy."""
    ndimage = importlib.import_module("scipy.ndimage")
    rng = np.random.default_rng(0)
    for function in RECORDED:
        for n in (1, 3, 17):
            block = rng.random((n, 210, 310), np.float32) + 0.1
            result = function(np, ndimage, block)
            assert result.shape[0] == n, (function.__name__, result.shape)
    print(f"{len(RECORDED)} functions run")


def main() -> None:
    """Parse, and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, nargs="?", default=Path())
    parser.add_argument("--limit-s", type=float, default=100.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--packages", action="store_true")
    parser.add_argument("--try", dest="tries", action="store_true")
    options = parser.parse_args()
    if options.tries:
        try_out()
    else:
        cases, case_s = todo(), CASE_S
        if options.packages:
            cases, case_s = packages_todo(), PACKAGE_CASE_S
        elif options.sizes:
            cases = sizes_todo()
        record(options.out, options.limit_s, options.only, cases, case_s)


if __name__ == "__main__":
    main()

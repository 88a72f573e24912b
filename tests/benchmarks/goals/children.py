"""Work in a process of its own, watched from outside: ``python -m ...children NAME JSON``."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import machine
from .machine import Peaks

N_COPIES = 12


def watched(name: str, arguments: dict[str, Any], timeout_s: float = 240) -> tuple[Any, Peaks]:
    """Run a function of this module in a process, and sample what it takes meanwhile.

    Returns
    -------
    (object, Peaks)
        What it answered; "device", "own" (its resident memory but for pages of files) and
        "host" bytes. The device's include the process's CUDA context.
    """
    machine.empty_device()
    environment = {**os.environ}
    if name == "two_cores":
        environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "2"}
    before_host = machine.host_used_bytes()
    before_device = machine.device_used_bytes() if machine.cp is not None else 0
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, name, json.dumps(arguments)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        env=environment,
        text=True,
    )
    readers: dict[str, Callable[[], int]] = {
        "own": lambda: machine.own_bytes(process.pid),
        "host": machine.host_used_bytes,
    }
    if machine.cp is not None:
        readers["device"] = machine.device_used_bytes
    with machine.sampled(readers) as peaks:
        try:
            text, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    peaks.before |= {"host": before_host, "device": before_device}
    if process.returncode:
        raise RuntimeError(f"{name} ended with {process.returncode}: {text[-500:]}")
    return json.loads(text.splitlines()[-1]), peaks


def budget(memory: str | None, shape: list[int]) -> dict[str, Any]:
    """Run a method that takes much memory, in blocks as large as a budget allows."""
    import numpy as np

    from maxslices import Pipeline, Registry, from_ledger, method, plan, run
    from maxslices.core.units import parse_bytes

    from .data import fill, scan_of

    methods = Registry()

    @from_ledger
    def needs(m: Any, shape: Any, dtype: Any) -> None:
        m.alloc(shape, dtype)
        for _ in range(N_COPIES + 1):
            m.alloc(shape, "float32")

    @method("projection", calc_max_slices=needs, output_dtype="float32", registry=methods)
    def pile_up(data: Any) -> Any:
        """Hold many copies at once."""
        copies = [data.astype(np.float32) for _ in range(N_COPIES)]
        result = copies[0] + copies[-1]
        return result

    if not shape[0]:
        if memory is None:
            free, _ = machine.cp.cuda.runtime.memGetInfo()
            wanted = free
        else:
            wanted = parse_bytes(memory)
        per_slice = (2 + 4 * (N_COPIES + 1)) * shape[1] * shape[2]
        shape = [int(1.4 * wanted / per_slice) + 2, *shape[1:]]
    data = np.empty(shape, np.uint16)
    fill(data)
    pipeline = Pipeline.from_steps(["pile_up"], methods)
    kwargs: dict[str, Any] = {"device": machine.DEVICE, "memory": memory, "block": "max"}
    made = plan(scan_of(data), pipeline, **kwargs)
    out = np.empty(shape, np.float32)
    report = run(scan_of(data), pipeline, out, **kwargs)
    assert np.array_equal(out[-1], 2 * data[-1].astype(np.float32))
    return {
        "budget_bytes": made.budget_bytes,
        "reserved_bytes": made.reserved_bytes,
        "estimated_bytes": report.plan.estimated_bytes,
        "block": report.plan.sections[0].block,
        "splits": sum(section.n_splits for section in report.sections),
    }


def large(shape: list[int], memory: str, host_memory: str | None) -> dict[str, Any]:
    """Run projections to sinograms through an intermediate that no memory holds."""
    import numpy as np

    from maxslices import Pipeline, Registry, from_ledger, method, run
    from maxslices.system.disk_space import wait_until_freed

    from .data import tiled
    from .part_link import said

    methods = Registry()

    @from_ledger
    def to_float(m: Any, shape: Any, dtype: Any) -> None:
        m.alloc(shape, dtype)
        m.alloc(shape, "float32")

    @method("projection", calc_max_slices=to_float, output_dtype="float32", registry=methods)
    def halve(data: Any) -> Any:
        """Divide by two."""
        result = data.astype(np.float32)
        result *= np.float32(0.5)
        return result

    @from_ledger
    def one_row(m: Any, shape: Any, dtype: Any) -> None:
        m.alloc(shape, dtype)
        m.alloc((1, *shape[1:]), "float32")
        m.alloc((1, *shape[1:]), "float32")
        m.alloc_bytes(2**20)

    @method(
        "sinogram",
        calc_max_slices=one_row,
        output_dims=lambda other_dims: (1, other_dims[1]),
        registry=methods,
    )
    def last_and_first(data: Any) -> Any:
        """Add the last and the first projection."""
        return data[-1:] + data[:1]

    source, stack = tiled((shape[0], shape[1], shape[2]))
    pipeline = Pipeline.from_steps(["halve", "last_and_first"], methods)
    limits: dict[str, Any] = {"memory": memory}
    if host_memory is not None:
        limits["host_memory"] = host_memory
    own = machine.own_bytes(os.getpid())
    began = time.perf_counter()
    report = run(source, pipeline, device=machine.DEVICE, **limits)
    wall_s = time.perf_counter() - began
    wait_until_freed()
    free_s = time.perf_counter() - began
    ends = (stack.frame(shape[0] - 1), stack.frame(0))
    expected = sum(0.5 * frame.astype(np.float32) for frame in ends)
    return {
        "wall_s": wall_s,
        "free_s": free_s,
        "said": said(report),
        "same": bool(np.array_equal(report.result[0], expected)),
        "budget_bytes": report.plan.budget_bytes,
        "host_budget_bytes": report.plan.host_budget_bytes,
        "own_before_bytes": own,
        "destinations": [section.destination for section in report.plan.sections],
    }


def two_cores(shape: list[int], steps: list[str]) -> dict[str, Any]:
    """Run from file to file on two cores, and the three kinds of work alone."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    import h5py
    import numpy as np

    from maxslices import ArraySpec, Pipeline, run
    from maxslices.io import create_sink, open_source

    from .data import write_nexus
    from .part_link import said

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_nexus(folder / "scan.nxs", *shape)
        pipeline = Pipeline.from_steps(steps)
        report = None

        def go() -> None:
            nonlocal report
            report = run(
                folder / "scan.nxs", pipeline, folder / "out", device="cpu", overwrite=True
            )

        go()
        block = report.plan.sections[0].block  # type: ignore[attr-defined]
        with open_source(folder / "scan.nxs", pipeline.loader) as source:
            spec = source.spec
            data = np.empty(spec.shape, spec.dtype)
            sides = {
                name: source.read_side(name, 0, 0, len(data))  # type: ignore[arg-type]
                for name in ("flats", "darks")
            }
        result = np.empty(spec.shape, np.float32)
        halo = max(max(step.meta.halo_slices()) for step in pipeline.steps)

        def one_block(first: int) -> None:
            last = min(first + block, len(data))
            low, high = max(0, first - halo), min(len(data), last + halo)
            part: Any = data[low:high]
            for step in pipeline.steps:
                known = {**sides, "slice_dim": 0, "first_slice": low}
                given = {k: known[k] for k in step.meta.supplied if k in known}
                part = step.meta.function(part, **given)
            result[first:last] = part[first - low : last - low]

        starts = range(0, len(data), block)

        def read() -> None:
            with open_source(folder / "scan.nxs", pipeline.loader) as source:
                for first in starts:
                    last = min(first + block, len(data))
                    source.read(0, first, last, data[first:last])

        def compute() -> None:
            for first in starts:
                one_block(first)

        def compute_2() -> None:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(one_block, starts))

        def write() -> None:
            sink = create_sink(folder / "alone", ArraySpec(spec.shape, "float32"), 0)
            for first in starts:
                sink.write(0, first, result[first : first + block])
            sink.close()
            sink.path.unlink()

        # in turns, so that whatever else the machine does meanwhile falls on all of them alike
        kinds = {
            "wall": go,
            "read": read,
            "compute": compute,
            "compute_2": compute_2,
            "write": write,
        }
        taken: dict[str, list[float]] = {kind: [] for kind in kinds}
        worked: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(6):
            for kind, work in kinds.items():
                began, began_work = time.perf_counter(), time.process_time()
                work()
                taken[kind].append(time.perf_counter() - began)
                worked[kind].append(time.process_time() - began_work)
        with h5py.File(folder / "out" / "result.h5") as file:
            same = bool(np.array_equal(file["entry/data/data"][()], result))
    return {
        **{f"{kind}_s": statistics.median(times[1:]) for kind, times in taken.items()},
        **{f"{kind}_cpu_s": statistics.median(times[1:]) for kind, times in worked.items()},
        "same": same,
        "said": said(report),
    }


CHILDREN: dict[str, Callable[..., dict[str, Any]]] = {
    "budget": budget,
    "large": large,
    "two_cores": two_cores,
}

if __name__ == "__main__":
    print(json.dumps(CHILDREN[sys.argv[1]](**json.loads(sys.argv[2]))))

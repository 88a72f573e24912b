"""Work in a process of its own, watched from outside: ``python -m ...children NAME JSON``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import machine
from .machine import Peaks


def watched(name: str, arguments: dict[str, Any], timeout_s: float = 240) -> tuple[Any, Peaks]:
    """Run a function of this module in a process, and sample what it takes meanwhile.

    Returns
    -------
    (object, Peaks)
        What it answered; "device", "own" (its resident memory but for pages of files) and
        "host" bytes. The device's include the process's CUDA context.
    """
    machine.empty_device()
    before_host = machine.host_used_bytes()
    before_device = machine.device_used_bytes() if machine.cp is not None else 0
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, name, json.dumps(arguments)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
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


CHILDREN: dict[str, Callable[..., dict[str, Any]]] = {
    "large": large,
}

if __name__ == "__main__":
    print(json.dumps(CHILDREN[sys.argv[1]](**json.loads(sys.argv[2]))))

"""A run in a process of its own: ``python -m tests.gpu.budget_run BUDGET_BYTES``."""

from __future__ import annotations

import json
import sys

import numpy as np

from maxslices import Pipeline, Registry, pinned_empty, run
from tests.planner.ledgers import to_float_ledger, two

SHAPE = (1200, 700, 1500)


def to_float(values):
    import cupy

    out = cupy.empty(values.shape, np.float32)
    cupy.multiply(values, np.float32(0.5), out=out)
    return out


def twice(values):
    return values + values


def main(budget_bytes):
    """Print planned and measured numbers."""
    scan = pinned_empty(SHAPE, np.uint16)  # 2.5 GB
    scan[...] = np.arange(SHAPE[2], dtype=np.uint16)
    registry = Registry()
    registry.register(to_float, pattern="projection", calc_max_slices=to_float_ledger,
                      output_dtype="float32")  # fmt: skip
    registry.register(twice, pattern="projection", calc_max_slices=two)
    pipeline = Pipeline.from_steps(["to_float", "twice"], registry)
    out = pinned_empty(SHAPE, np.float32)
    report = run(scan, pipeline, out, device="cuda", memory=budget_bytes, block="max")
    np.testing.assert_array_equal(out[::300], scan[::300].astype(np.float32))
    (section,) = report.sections
    numbers = {
        "reserved_bytes": report.plan.reserved_bytes,
        "estimated_bytes": section.estimated_bytes,
        "measured_bytes": section.measured_bytes,
        "n_splits": section.n_splits,
        "block": section.block,
    }
    print(json.dumps(numbers))


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""Plans for the held-out networks and idioms, compared on a CPU: docs/benchmarks/networks.md.

``python docs/scripts/nn_sweep.py [NAME...]`` reduces the training step of every case of
``tests/benchmarks/held_out_networks.py`` and ``held_out_idioms.py`` to three parts of the memory
that it needs. A step of each reduced model then runs on the CPU and is compared with a step of the
unreduced model.
"""

from __future__ import annotations

import inspect
import random
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.held_out_idioms import IDIOMS
from tests.benchmarks.held_out_networks import NETWORKS, Case, Parts, optimizer_of, training_step

from maxslices.core.block_memory import CONTEXT_BYTES
from maxslices.errors import MaxslicesError
from maxslices.nn import memory_report, reduce_memory
from maxslices.nn.nn_errors import first_line
from maxslices.nn.reduce.gradient_check import EXACT
from maxslices.nn.replay.nested import map_leaves

BUDGETS = (0.9, 0.7, 0.5)
"""Parts of the memory that the unreduced step needs beyond the workspaces that libraries keep."""
BATCH_PART, SIZE_PART, MAX_REPLAYS = 8, 2, 16
"""Divisors of the batch and of image sizes, and replays of a search: about a minute per case."""
OUTCOMES = ("equal", "refused", "refused in the step", "wrong", "crashed")


def seed() -> None:
    """Seed the generators on the host."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - networks draw from the global generator


def make(case: Case) -> tuple[Parts, Any, Any]:
    """Make a case with a small batch of inputs and its targets."""
    seed()
    sizes = {
        name: parameter.default // SIZE_PART
        for name, parameter in inspect.signature(case.make).parameters.items()
        if name in ("side", "length")
    }
    parts, n = case.make(**sizes), max(2, case.batch // BATCH_PART)
    return parts, parts.inputs(n), None if parts.targets is None else parts.targets(n)


def loss_arguments(parts: Parts, targets: Any) -> dict[str, Any]:
    """Loss and targets as arguments of `memory_report` and `reduce_memory`."""
    loss = parts.loss
    if loss is not None and isinstance(targets, tuple):
        loss = lambda output, *all_targets: parts.loss(output, all_targets)  # noqa: E731
    return {"loss": loss, "targets": lambda *_: () if targets is None else targets}


def state_after(parts: Parts, inputs: Any, targets: Any, double: bool) -> dict[str, torch.Tensor]:
    """Run a step with plain gradient descent, and return the state of the model."""
    if double:
        parts.model.double()
        inputs, targets = map_leaves(
            lambda x: x.double() if torch.is_tensor(x) and x.is_floating_point() else x,
            (inputs, targets),
        )
    parts = parts._replace(optimizer=torch.optim.SGD)
    seed()
    parts.model.train()
    training_step(parts, optimizer_of(parts), inputs, targets)
    return {name: value.detach().clone() for name, value in parts.model.state_dict().items()}


def error_between(reference: dict[str, torch.Tensor], state: dict[str, torch.Tensor]) -> float:
    """Largest difference of a tensor, relative to its largest number."""
    changed = [n for n, value in reference.items() if not torch.equal(value, state[n])]
    pairs = [(reference[n], (reference[n] - state[n]).abs().max()) for n in changed]
    return max((float(e / v.abs().max().clamp(min=1e-30)) for v, e in pairs), default=0.0)


def rows_of(case: Case) -> list[tuple[str, str]]:
    """Outcome of each budget, with a remark."""
    parts, inputs, targets = make(case)
    try:
        options = loss_arguments(parts, targets)
        report = memory_report(parts.model, inputs, optimizer=torch.optim.Adam, **options)
        double, bound = True, EXACT
        try:
            reference = state_after(parts, inputs, targets, double)
        except RuntimeError:  # code that names float32
            double, bound = False, 1e-3
            reference = state_after(*make(case), double)
    except MaxslicesError as error:
        return [("refused", first_line(error))] * len(BUDGETS)
    except Exception as error:  # noqa: BLE001 - a crash is a result
        return [("crashed", f"{type(error).__name__}: {error}")] * len(BUDGETS)
    kept = sum(workspace.n_bytes for workspace in report.trace.kept_workspaces())
    limits = [kept + int(part * (report.needed_bytes - kept)) for part in BUDGETS]
    return [outcome(case, limit, reference, double, bound) for limit in limits]


def outcome(
    case: Case, limit: int, reference: dict[str, torch.Tensor], double: bool, bound: float
) -> tuple[str, str]:
    """Outcome of one budget, with a remark."""
    parts, inputs, targets = make(case)
    options = {"max_replays": MAX_REPLAYS, **loss_arguments(parts, targets)}
    summary = None
    try:
        _, summary = reduce_memory(parts.model, inputs, CONTEXT_BYTES + limit, **options)
        error = error_between(reference, state_after(parts, inputs, targets, double))
    except MaxslicesError as clear:
        return "refused" if summary is None else "refused in the step", first_line(clear)
    except Exception as raised:  # noqa: BLE001 - a crash is a result
        return "crashed", f"{type(raised).__name__}: {raised}"
    if error <= bound:
        return "equal", f"{len(summary.rewrites)} rewrites"
    return "wrong", f"differs by {error:.1g}"


def main() -> None:
    """Run the cases, and print a table in Markdown."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cases = [c for c in (*NETWORKS, *IDIOMS) if not sys.argv[1:] or c.name in sys.argv[1:]]
    counts = {part: Counter[str]() for part in BUDGETS}
    for case in cases:
        began = time.perf_counter()
        rows = rows_of(case)
        print(f"{case.name}, {time.perf_counter() - began:.0f} s", flush=True)
        for part, (kind, remark) in zip(BUDGETS, rows, strict=True):
            counts[part][kind] += 1
            print(f"  {part:.1f} {kind}: {remark.strip()[:160]}", flush=True)
    print(f"| part of the need | {' | '.join(OUTCOMES)} |\n|---|{'--:|' * len(OUTCOMES)}")
    for part, count in counts.items():
        print(f"| {part:.1f} | {' | '.join(str(count[kind]) for kind in OUTCOMES)} |")


if __name__ == "__main__":
    main()

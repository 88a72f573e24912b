"""Compares the steps of reduced models with those of the unreduced: sixty models, three budgets.

``python docs/scripts/nn_gradients.py FILE [--packages FOLDER] [--blocks] [--new | --seen]
[NAME...]`` appends a line for each model and budget to FILE, skips those that it has, and prints
the table. Models are those of `gradient_models.py`, plans are made without a device for inputs of
an ordinary size, and steps are run on the CPU on small ones. With ``--blocks`` nothing is searched:
all blocks of a model are rewritten, in three ways instead of for three budgets, and an error in the
step is a clear one. That takes about 15 minutes on one core, and plans an hour.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
import traceback
import warnings
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from gradient_models import CASES, Case, without_operators
from rewritten_blocks import KINDS, rewrites_of_all
from torch import nn
from torch.utils._pytree import tree_leaves

from maxslices.core.block_memory import CONTEXT_BYTES
from maxslices.errors import MaxslicesError
from maxslices.nn import reduce_memory
from maxslices.nn.nn_errors import TooLargeError
from maxslices.nn.reduce import apply_rewrites
from maxslices.nn.replay import Spec, Workspaces
from maxslices.nn.step.layer_state import ResettingStep

BUDGETS = (0.6, 0.8, 0.4)
"""Parts of what the unreduced step needs."""
EXACT = 1e-10
"""Largest difference in double precision, of the largest number of a tensor."""
RESULTS = ("equal", "clear error", "wrong", "crash")
"""What comes of a plan, from the best to the worst."""


def main() -> None:
    """Run the models that FILE lacks, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--packages", help="folder with torchvision, timm, monai, transformers")
    parser.add_argument("--blocks", action="store_true", help="rewrite all blocks, and do not plan")
    parser.add_argument("--new", action="store_true", help="only models nobody looked at")
    parser.add_argument("--seen", action="store_true", help="only the others")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_intermixed_args()
    if asked.packages:
        sys.path.append(asked.packages)
    without_operators()
    warnings.simplefilter("ignore")
    rows = _read(asked.file)
    done = {(row["model"], row["budget"]) for row in rows}
    for budget, case in product(KINDS if asked.blocks else BUDGETS, CASES):
        if (asked.new and not case.is_new) or (asked.seen and case.is_new):
            continue
        if asked.names and not any(name in case.name for name in asked.names):
            continue
        if (case.name, budget) in done:
            continue
        row = {"model": case.name, "budget": budget, "new": case.is_new, **tried(case, budget)}
        rows.append(row)
        with asked.file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(case.name, budget, row["result"], row["what"], flush=True)
    print(table(rows))


def tried(case: Case, budget: float | str) -> dict[str, Any]:
    """Reduce a model, or rewrite its blocks, and compare its step with the unreduced one."""
    began = time.perf_counter()
    result, what = "crash", ""
    try:
        result, what = _rewritten(case, budget) if isinstance(budget, str) else _tried(case, budget)
    except TooLargeError as error:
        result, what = "clear error", f"TooLargeError: {str(error)[:200]}"
    except MaxslicesError as error:
        result, what = "clear error", f"{type(error).__name__}: {str(error)[:200]}"
    except Exception as error:  # noqa: BLE001 - that is what is counted
        where = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__} in {Path(where.filename).name}: {str(error)[:200]}"
    return {"result": result, "what": what, "seconds": round(time.perf_counter() - began, 1)}


def _rewritten(case: Case, kind: str) -> tuple[str, str]:
    torch.manual_seed(0)
    whole = case.make().train()
    watched = copy.deepcopy(whole)
    rewrites = rewrites_of_all(watched, lambda: _step(watched, case.small))[kind]
    torch.manual_seed(0)
    reduced = case.make().train()
    apply_rewrites(reduced, rewrites)
    try:
        error = difference(whole, reduced, case.small, other_draws=False)
    except RuntimeError as refused:
        return "clear error", f"{type(refused).__name__}: {str(refused)[:200]}"
    return ("equal" if error <= EXACT else "wrong"), f"{error:.1e} {len(rewrites)} rewrites"


def _tried(case: Case, budget: float) -> tuple[str, str]:
    torch.manual_seed(0)
    model = case.make().train()
    memory = int(budget * _needed(model, case)) + CONTEXT_BYTES
    reduced, summary = reduce_memory(model, case.inputs, memory, optimizer="sgd")
    kinds = " ".join(sorted({str(r.kind) for r in summary.rewrites.values()}))
    other_draws = any("random numbers" in note for note in summary.notes)
    torch.manual_seed(0)
    whole = case.make().train()
    whole.load_state_dict(reduced.state_dict())
    error = difference(whole, reduced, case.small, other_draws)
    return ("equal" if error <= EXACT else "wrong"), f"{error:.1e} {kinds}"


def _needed(model: nn.Module, case: Case) -> int:
    step = ResettingStep(model, "training", torch.optim.SGD)
    return step.trace(case.inputs, Workspaces.allowance()).needed_bytes


def difference(
    whole: nn.Module, reduced: nn.Module, specs: tuple[Spec, ...], other_draws: bool
) -> float:
    """Largest difference of results, gradients and state, relative to the largest number.

    It is 0 if all are equal to the bit in single precision; else that of double precision counts.
    """
    if other_draws:
        for model in (whole, reduced):
            _never_drop(model)
    pair = [_step(copy.deepcopy(m), specs) for m in (whole, reduced)]
    if all(torch.equal(a, b) for a, b in zip(*pair, strict=True)):
        return 0.0
    double = tuple(Spec(s.shape, torch.float64) if s.dtype.is_floating_point else s for s in specs)
    pair = [_step(copy.deepcopy(m).double(), double) for m in (whole, reduced)]
    most = max(float(a.abs().max()) for a in pair[0] if a.numel() and a.is_floating_point())
    worst = 0.0
    for a, b in zip(*pair, strict=True):
        if a.numel():
            # A bias before a norm has no gradient but for rounding.
            scale = float(a.abs().max()) + 1e-5 * most
            error = float((a.double() - b.double()).abs().max())
            worst = max(worst, error / scale if scale else error)
    return worst


def _never_drop(model: nn.Module) -> None:
    for module in model.modules():
        for name in ("p", "drop_prob", "dropout", "dropout_p"):
            if type(module.__dict__.get(name)) is float:
                setattr(module, name, 0.0)


def _step(model: nn.Module, specs: tuple[Spec, ...]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    inputs = [
        torch.randn(s.shape, dtype=s.dtype) if s.dtype.is_floating_point
        else torch.randint(0, 2, s.shape) for s in specs
    ]  # fmt: skip
    results = [t for t in tree_leaves(model(*inputs)) if torch.is_tensor(t)]
    total = sum(
        (t * torch.linspace(-1, 1, t.numel(), dtype=t.dtype).view(t.shape)).sum()
        for t in results if t.requires_grad
    )  # fmt: skip
    total.backward()
    grads = [p.grad if p.grad is not None else torch.zeros(0) for p in model.parameters()]
    state = [t for t in model.state_dict().values() if torch.is_tensor(t)]
    return [t.detach() for t in (*results, *grads, *state)]


def _read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def table(rows: list[dict[str, Any]]) -> str:
    """Table of the results by library, and their sums."""
    lines = ["| models | new | " + " | ".join(RESULTS) + " |", "|---|---|" + "--:|" * len(RESULTS)]
    groups: dict[tuple[str, bool], list[str]] = {}
    for row in rows:
        library = row["model"].split()[0].rstrip(":")
        groups.setdefault((library, row["new"]), []).append(row["result"])
        groups.setdefault(("all", row["new"]), []).append(row["result"])
    for (library, is_new), found in sorted(groups.items()):
        counts = " | ".join(str(found.count(each)) for each in RESULTS)
        lines.append(f"| {library} | {'yes' if is_new else 'no'} | {counts} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

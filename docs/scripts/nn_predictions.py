"""Predicted and measured peaks of the held-out networks and idioms: docs/benchmarks/networks.md.

``python docs/scripts/nn_predictions.py`` runs, on a CUDA device, every case of
``tests/benchmarks/held_out_networks.py`` and ``held_out_idioms.py`` in two batches, several
processes at a time, and prints a summary in Markdown. All rows go to ``$OUT/nn_predictions.json``,
or to the folder for temporary files. Words after the command choose cases by their names.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.held_out_idioms import IDIOMS
from tests.benchmarks.held_out_networks import NETWORKS, Case, Parts, call, optimizer_of
from tests.benchmarks.held_out_networks import training_step as step_of

from maxslices.nn import memory_report
from maxslices.nn.replay.host_draws import PATHS, HostGenerators
from maxslices.nn.replay.measure_workspaces import measured_workspaces
from maxslices.nn.replay.trace import block_tail_slack_bytes

N_WORKERS = 12
"""Processes that share the card: the models are small, and a card's machine has 16 cores."""
LISTS = {"networks": NETWORKS, "idioms": IDIOMS}
LEAST, NEAR, MOST = -0.2, 1.0, 5.0
"""Percent: below this a prediction is too low; near; most above without a device."""

Row = dict[str, Any]


def rows_of(job: tuple[str, str]) -> list[Row]:
    """Predict and measure a case in two batches and in its modes."""
    which, name = job
    case: Case = next(each for each in LISTS[which] if each.name == name)
    n = case.batch
    batches = (max(1, n // 2), n) if n > 1 else (1, 2)
    modes = case.make().modes
    return measured_rows(which, name, case.make, batches, modes)


def measured_rows(
    which: str, name: str, make: Callable[[], Parts], batches: Iterable[int], modes: Iterable[str]
) -> list[Row]:
    """Predict and measure what `make` makes; what fails has its error in its row."""
    warnings.simplefilter("ignore")
    rows = []
    for mode in modes:
        for n in batches:
            row: Row = {"which": which, "name": name, "mode": mode, "n": n}
            rows.append(row)
            try:
                torch.manual_seed(0)
                row |= predict(make, mode, n)
                paths = PATHS if row["drawn"] else ("",)
                row["measured"] = max(measure(make, mode, n, draws) for draws in paths)
            except Exception as error:  # noqa: BLE001 - each case is to be tried
                row["error"] = f"{type(error).__name__}: {error}"[:300]
    return rows


def predict(make: Callable[[], Parts], mode: str, n: int) -> Row:
    """Bytes predicted without a device, and with the workspaces of the one that there is."""
    parts = make()
    inputs = parts.inputs(n)
    if mode == "inference":
        report = memory_report(parts.model.eval(), inputs, mode)
    elif parts.step is None and parts.make_optimizer is None:
        targets = () if parts.targets is None else parts.targets(n)
        loss = (lambda output: output) if parts.loss is None else _spread(parts.loss)
        report = memory_report(
            parts.model, inputs, mode, parts.optimizer, loss=loss, targets=targets
        )
    else:
        given = (inputs,) if parts.targets is None else (inputs, parts.targets(n))
        report = memory_report(
            parts.model,
            given,
            mode,
            optimizer_of(parts),
            step=lambda model, *of: step_of(parts._replace(model=model), *of),
        )
    trace = report.trace
    found: Row = {"none": report.allocated_bytes, "drawn": trace.drawn_from}
    if torch.cuda.is_available():
        trace = trace.with_workspaces(measured_workspaces(trace.calls, torch.device("cuda"))[0])
        found["device"] = trace.peak_bytes + block_tail_slack_bytes(trace)
    return found


def _spread(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Loss of output and targets as a step gives them: one, or all in one."""
    return lambda output, *of: loss(output, *((of[0] if len(of) == 1 else of,) if of else ()))


def measure(make: Callable[[], Parts], mode: str, n: int, draws: str) -> int:
    """Peak of real steps on the device, with numbers that are drawn on the host as replayed."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.backends.cuda.cufft_plan_cache.clear()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.manual_seed(0)
    with torch.device("cuda"):
        parts = make()
        inputs = parts.inputs(n)
        targets = None if parts.targets is None or mode != "training" else parts.targets(n)
    generators = HostGenerators(draws)
    generators.add_those_of(parts.model)
    try:
        _run(parts, mode, inputs, targets)
    finally:
        generators.restore()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _run(parts: Parts, mode: str, inputs: Any, targets: Any) -> None:
    optimizer = optimizer_of(parts) if mode == "training" else None
    parts.model.train(mode == "training")
    for _ in range(max(3, parts.n_steps)):
        if mode == "inference":
            with torch.no_grad():
                output = call(parts, inputs)
        elif parts.step is not None:
            loss = step_of(parts, optimizer, inputs, targets)
        else:  # the output stays alive until the next step, as in most loops
            optimizer.zero_grad()
            output = call(parts, inputs)
            of = () if targets is None else (targets,)
            loss = output if parts.loss is None else parts.loss(output, *of)
            loss.backward()
            optimizer.step()


def errors_of(row: Row, key: str) -> float | None:
    """Percent by which a prediction exceeds the measurement, or None."""
    return 100 * (row[key] / row["measured"] - 1) if "measured" in row and key in row else None


def summary(rows: list[Row]) -> list[str]:
    """All rows outside of the bounds, then counts of each list as a table in Markdown."""
    lines = []
    for row in rows:
        none, device = errors_of(row, "none"), errors_of(row, "device")
        head = f"{row['which'][:3]} {row['name'][:24]:24} {row['mode'][:5]} {row['n']:>6}"
        if none is None or device is None:
            lines.append(f"{head} {row.get('error')}"[:160])
        elif not (LEAST <= none <= MOST and LEAST <= device <= NEAR):
            lines.append(f"{head} {row['measured'] / 2**20:8.1f} {none:+7.2f} % {device:+7.2f} %")
    lines += [
        "| | rows | with a device: at least 99.8 % | within 1 % | lowest, highest "
        "| without: at least 99.8 % | 0.2 % below to 5 % above | lowest, highest |",
        "|---|--:|--:|--:|---|--:|--:|---|",
    ]
    for which in dict.fromkeys(row["which"] for row in rows):
        texts = []
        for key, least, most in (("device", -NEAR, NEAR), ("none", LEAST, MOST)):
            errors = [errors_of(row, key) for row in rows if row["which"] == which]
            found = [error for error in errors if error is not None]
            counts = sum(e >= LEAST for e in found), sum(least <= e <= most for e in found)
            ends = f"{min(found):+.1f}, {max(found):+.1f} %" if found else ""
            texts.append(f"{counts[0]} | {counts[1]} | {ends}")
        lines.append(f"| {which} | {len(errors)} | {' | '.join(texts)} |")
    return lines


def run(todo: Iterable[Any], function: Callable[[Any], list[Row]] = rows_of) -> list[Row]:
    """Rows of all cases, in several processes."""
    with multiprocessing.get_context("spawn").Pool(N_WORKERS) as pool:
        return [row for rows in pool.imap(function, todo) for row in rows]


def main() -> None:
    """Measure, and print the summary."""
    began = time.perf_counter()
    jobs = [(which, case.name) for which, cases in LISTS.items() for case in cases]
    rows = run(job for job in jobs if not sys.argv[1:] or any(w in job[1] for w in sys.argv[1:]))
    folder = Path(os.environ.get("OUT", tempfile.gettempdir()))
    (folder / "nn_predictions.json").write_text(json.dumps(rows))
    print("\n".join(summary(rows)))
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()

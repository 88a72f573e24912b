"""Draws docs/_static/memory.png: a step's memory before and after, replayed and measured.

``python docs/scripts/memory_picture.py REDUCE.JSON PICTURE.PNG`` takes the plan and the
measured peaks that reduce_table.py wrote for the ResNet50 at half its peak.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import nn_models
import numpy as np
import torch
from torch import nn

from maxslices.nn.reduce import Rewrite, apply_rewrites
from maxslices.nn.replay import Spec, Trace, Workspaces
from maxslices.nn.step.model_step import ModelStep

MODEL, PLAN, SHAPE = "ResNet50", "0.50", (64, 3, 224, 224)
GIB = 2**30


def second_step(trace: Trace) -> np.ndarray:
    """Return GiB in use at each event of the second step."""
    first = next(m.event for m in trace.marks if m.name == "step")
    return np.array(trace.in_use_bytes[first:]) / GIB


def main() -> None:
    """Draw it."""
    rows = {
        row["plan"]: row
        for row in json.loads(Path(sys.argv[1]).read_text())["rows"]
        if row["model"] == MODEL
    }
    plan = {path: Rewrite(text.split(",")[0]) for path, text in rows[PLAN]["rewrites"].items()}
    model = nn_models.resnet50()
    step = ModelStep(model, "training", torch.optim.Adam, nn.CrossEntropyLoss())
    spec = [Spec(SHAPE)]
    before = step.trace(spec, Workspaces.allowance())
    after = step.trace(spec, Workspaces.allowance(), change=lambda copy: apply_rewrites(copy, plan))
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for trace, row, color, name in (
        (before, rows["unreduced"], "#b0413e", "unchanged"),
        (after, rows[PLAN], "#2a6f97", "reduced"),
    ):
        usage = second_step(trace)
        time = np.linspace(0, row["step_s"] * 1e3, len(usage))
        axes.plot(time, usage, color=color, lw=1.2, label=f"{name}, replayed")
        peak = row["measured_bytes"] / GIB
        axes.plot([time[usage.argmax()]], [peak], "o", color=color, mfc="none", ms=9,
                  label=f"{name}, peak measured: {peak:.2f} GiB")  # fmt: skip
    limit = rows[PLAN]["limit_bytes"] / GIB
    axes.axhline(limit, color="0.3", ls="--", lw=1)
    axes.text(0, limit, " what the smaller card has", va="bottom", color="0.3")
    axes.set(
        xlabel="one step (ms; events spread evenly over the measured time)",
        ylabel="memory in use (GiB)",
        title=f"{MODEL}, batch of {SHAPE[0]}, Adam",
        ylim=(0, None),
    )
    axes.legend(frameon=False, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(sys.argv[2], dpi=130)


if __name__ == "__main__":
    main()

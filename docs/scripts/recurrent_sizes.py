"""Reserve and workspace of cuDNN's recurrent layers beside what a replay takes them for.

    python docs/scripts/recurrent_sizes.py FOLDER

With a CUDA device about 20 s; without one, the replayed peaks alone. Writes
``FOLDER/recurrent_sizes.json``, and prints one row for each layer: bytes kept after a forward pass
and the peak of a step of training and of inference, measured and replayed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn

from maxslices.nn import Spec
from maxslices.nn.replay import Workspaces, replay

KINDS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
CASES = [
    (kind, layers, directions, batch, steps, hidden, train, dropout)
    for kind in KINDS
    for layers, directions, batch, steps, hidden, dropout in (
        (1, 1, 32, 200, 256, 0.0),
        (1, 1, 32, 400, 256, 0.0),
        (1, 1, 64, 200, 256, 0.0),
        (1, 1, 32, 200, 320, 0.0),
        (2, 1, 32, 200, 256, 0.0),
        (4, 1, 32, 200, 256, 0.0),
        (1, 2, 32, 200, 256, 0.0),
        (3, 2, 32, 200, 256, 0.0),
        (3, 1, 32, 200, 256, 0.3),
        # Many short sequences, as Sequencer2D has them.
        (1, 1, 512, 32, 48, 0.0),
        (1, 2, 512, 32, 48, 0.0),
        (1, 2, 1024, 32, 48, 0.0),
        (1, 2, 512, 14, 48, 0.0),
        (1, 2, 512, 32, 96, 0.0),
    )
    for train in (True, False)
]


def replayed(model: nn.Module, shape: tuple[int, ...], train: bool) -> dict[str, int]:
    """Kept and peak bytes, without the model and its input."""
    mode = "training" if train else "inference"
    workspaces = Workspaces.none()  # those of cuDNN's recurrent layers are part of the replay
    trace = replay(model.train(train), Spec(shape), mode=mode, workspaces=workspaces, steps=1)
    beside = trace.bytes_at("input")
    return {
        "kept": trace.bytes_at("forward") - beside if train else 0,
        "peak": trace.peak_bytes - beside,
    }


def measured(model: nn.Module, shape: tuple[int, ...], train: bool) -> dict[str, int]:
    """The same on the device."""
    model = model.cuda().train(train)
    x = torch.randn(shape, device="cuda")
    with torch.set_grad_enabled(train):  # cuDNN's libraries and dropout state are there afterwards
        made = model(x)[0]
        if train:
            made.sum().backward()
    model.zero_grad(set_to_none=True)
    del made
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    beside, kept = torch.cuda.memory_allocated(), 0
    with torch.set_grad_enabled(train):
        made = model(x)[0]
        kept = torch.cuda.memory_allocated() - beside
        if train:
            made.sum().backward()
    torch.cuda.synchronize()
    return {"kept": kept if train else 0, "peak": torch.cuda.max_memory_allocated() - beside}


def main(folder: str) -> None:
    """Write and print the table."""
    rows = []
    for kind, layers, directions, batch, steps, hidden, train, dropout in CASES:
        model = KINDS[kind](
            128, hidden, layers, bidirectional=directions == 2, dropout=dropout, batch_first=True
        )
        shape = (batch, steps, 128)
        units = batch * steps * hidden * directions * 4
        row = {
            "case": f"{kind} layers {layers} directions {directions} batch {batch} steps {steps} "
            f"hidden {hidden} dropout {dropout} {'training' if train else 'inference'}",
            "unit_bytes": units,
            "replayed": replayed(model, shape, train),
        }
        if torch.cuda.is_available():
            row["measured"] = measured(model, shape, train)
        rows.append(row)
        del model
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    (out / "recurrent_sizes.json").write_text(json.dumps(rows, indent=1))
    print("MB; in brackets: numbers for each unit and time step")
    for row in rows:
        cells = []
        for source in ("replayed", "measured"):
            for what in ("kept", "peak"):
                n_bytes = row.get(source, {}).get(what)
                unit = row["unit_bytes"]
                text = "-" if n_bytes is None else f"{n_bytes / 1e6:.1f} ({n_bytes / unit:.2f})"
                cells.append(f"{source} {what} {text:>14}")
        print(f"{row['case']:<80}", "  ".join(cells))


if __name__ == "__main__":
    main(sys.argv[1])

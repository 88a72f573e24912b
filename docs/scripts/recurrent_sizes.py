"""Reserve and workspace of cuDNN's recurrent layers beside what a replay takes them for.

    python docs/scripts/recurrent_sizes.py FOLDER [--ask]

With a CUDA device about 20 s; without one, the replayed peaks alone. Writes
``FOLDER/recurrent_sizes.json``, and prints one row for each layer: bytes kept after a forward pass
and the peak of a step of training and of inference, measured and replayed.

``--ask`` asks cuDNN instead for the workspaces of 16,000 layers, which takes 2 s as no kernel is
run, writes ``FOLDER/recurrent_asked.json`` and prints how far the formulas are from them.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from maxslices.nn import Spec
from maxslices.nn.replay import Workspaces, replay
from maxslices.nn.replay.recurrent import CELLS, Sizes

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


N_ASKED = 16_000
INFERENCE, TRAINING = 0, 1
STANDARD, SMALL = 0, 3
"""Algorithms of cuDNN, and how it counts types: of data, of sums, and of their products."""
TYPES = {torch.float32: (0, 0, 0), torch.float16: (2, 0, 1), torch.bfloat16: (9, 0, 0),
         torch.float64: (1, 1, 0)}  # fmt: skip


class Cudnn:
    """cuDNN's descriptors of recurrent layers, as torch makes them, without torch."""

    def __init__(self) -> None:
        torch.zeros(1, device="cuda")
        torch.backends.cudnn.version()
        self.library = ctypes.CDLL("libcudnn.so.9")
        self.handle = self.made("cudnnCreate")
        self.dropouts = [self.dropout(part) for part in (0.0, 0.3)]

    def call(self, name: str, *given: Any) -> None:
        """Call a function of the library."""
        status = getattr(self.library, name)(*given)
        if status:
            raise RuntimeError(f"{name}: status {status}")

    def made(self, name: str) -> ctypes.c_void_p:
        """Make an object by a function of the library."""
        value = ctypes.c_void_p()
        self.call(name, ctypes.byref(value))
        return value

    def dropout(self, part: float) -> ctypes.c_void_p:
        """Descriptor of dropout."""
        made, n_bytes = self.made("cudnnCreateDropoutDescriptor"), ctypes.c_size_t()
        self.call("cudnnDropoutGetStatesSize", self.handle, ctypes.byref(n_bytes))
        self.states = torch.empty(n_bytes.value, dtype=torch.uint8, device="cuda")
        where = ctypes.c_void_p(self.states.data_ptr() if part else None)
        self.call("cudnnSetDropoutDescriptor", made, self.handle, ctypes.c_float(part), where,
                  n_bytes if part else ctypes.c_size_t(), ctypes.c_ulonglong(1))  # fmt: skip
        return made

    def ask(self, sizes: Sizes, algorithm: int, mode: int) -> tuple[int, int]:
        """Bytes of the workspace, and to keep."""
        layer, data = (self.made(f"cudnnCreateRNN{what}Descriptor") for what in ("", "Data"))
        of_data, of_sums, products = TYPES[sizes.dtype]
        dropout = self.dropouts[sizes.has_dropout and mode == TRAINING]
        hidden, batch, steps = sizes.hidden, sizes.batch, sizes.items // sizes.batch
        self.call(
            "cudnnSetRNNDescriptor_v8", layer, algorithm, sizes.cell.mode, 2, sizes.directions - 1,
            0, of_data, of_sums, products, sizes.width, hidden, hidden, sizes.layers, dropout,
            ctypes.c_uint32(not sizes.is_packed),
        )  # fmt: skip
        lengths = (ctypes.c_int * batch)(*[steps] * batch)
        self.call("cudnnSetRNNDataDescriptor", data, of_data, int(sizes.is_packed), steps, batch,
                  sizes.width, lengths, None)  # fmt: skip
        found = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cudnnGetRNNTempSpaceSizes", self.handle, layer, mode, data,
                  *map(ctypes.byref, found))  # fmt: skip
        self.library.cudnnDestroyRNNDataDescriptor(data)
        self.library.cudnnDestroyRNNDescriptor(layer)
        return found[0].value, found[1].value


def at_random(pick: Any) -> Sizes:
    """Sizes of a layer."""
    cell = CELLS[pick(list(CELLS))]
    layers, directions = pick((1, 1, 2, 3, 4)), pick((1, 2))
    batch = pick((1, 2, 4, 8, 16, 20, 32, 50, 64, 128, 256, 448, 500, 896, 1024))
    steps = pick((1, 4, 7, 14, 16, 28, 32, 50, 100, 128, 300, 512))
    hidden = pick((16, 32, 48, 50, 64, 96, 100, 128, 150, 192, 200, 256, 300, 320, 384, 400, 512,
                   768, 1024))  # fmt: skip
    width = pick((1, 8, 16, 40, 64, 80, 128, 192, 256, 300, 384, 512))
    per_gate = (width + (layers - 1) * directions * hidden + layers * hidden) * directions
    dtype = pick((torch.float32,) * 6 + tuple(TYPES))
    return Sizes(cell, steps * batch, batch, hidden, width, layers, directions, dtype,
                 cell.gates * hidden * per_gate, pick((False,) * 4 + (True,)),
                 pick((False,) * 4 + (True,)))  # fmt: skip


def ask(folder: str) -> None:
    """Write what cuDNN asks for, and print the formulas' errors."""
    cudnn, pick = Cudnn(), random.Random(5).choice
    rows, errors = [], []
    for _ in range(N_ASKED):
        sizes = at_random(pick)
        asked = []
        for mode, which in ((INFERENCE, 0), (TRAINING, 0), (TRAINING, 1)):
            algorithm = SMALL if sizes.has_small_kernel(which) else STANDARD
            asked.append(cudnn.ask(sizes, algorithm, mode))
        ours = (sizes.forward_bytes(False), sizes.forward_bytes(True), sizes.backward_bytes())
        errors += [mine / theirs - 1 for mine, (theirs, _) in zip(ours, asked, strict=True)]
        rows.append([str(sizes), asked])
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    (out / "recurrent_asked.json").write_text(json.dumps(rows))
    errors.sort()
    part = sum(error <= 0.03 for error in errors) / len(errors)
    print(f"{N_ASKED} layers: {errors[0]:+.3%} to {errors[-1]:+.1%}, {part:.1%} at most 3 % high")


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
    ask(sys.argv[1]) if "--ask" in sys.argv else main(sys.argv[1])

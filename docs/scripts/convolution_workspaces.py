"""Workspaces of convolutions, as cuDNN takes them on a CUDA device.

``list FILE`` writes calls to FILE: those of the networks of `nn_predictions.py`, with torchvision
and timm, and of random convolutions; with ``--groups`` those of random ones with groups alone.
``measure FILE OUT`` runs each on a CUDA device, in several processes, and writes OUT, which is FILE
with the bytes filled in; torch alone is needed. ``show OUT`` compares the allowance without a
device with what was measured.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import torch

from maxslices.nn.replay import OperatorCall, Workspaces
from maxslices.nn.replay.workspaces import CONVOLUTIONS

N_RANDOM = 2500
"""Random convolutions, of which each is listed with both gradients."""
MOST_BYTES = 2**30
"""Largest operands of a random convolution, together."""
N_PROCESSES = 10
"""Processes that ask cuDNN, for which most of the time goes: of 16 cores."""

Row = list[Any]
"""Source, kind, dtype, shapes of input, weight and output, options, channels last, bytes."""


def call_of(row: Row) -> OperatorCall:
    """Call that a row describes."""
    _, kind, dtype, *shapes, options, last = row[:8]
    op = "aten.convolution" if kind == "convolution" else "aten.convolution_backward"
    return OperatorCall(kind, op, tuple(map(tuple, shapes)), dtype, options, last)


def row_of(source: str, call: OperatorCall) -> Row:
    """Row without bytes."""
    return [source, call.kind, call.dtype, *map(list, call.shapes), call.options,
            call.channels_last, None]  # fmt: skip


def of_networks() -> Iterator[Row]:
    """Calls of the networks, in training and in inference."""
    import nn_predictions

    nn_predictions.stub_operators()
    import torchvision.models.segmentation
    import torchvision.models.video  # noqa: F401

    for name, case in nn_predictions.CASES.items():
        for mode in ("training", "inference"):
            step, inputs = nn_predictions.step_of(case, mode)
            if mode == "inference":
                step.model.eval()
            for call in step.trace(inputs, Workspaces.none()).calls:
                if call.kind in CONVOLUTIONS:
                    yield row_of(name, call)


def at_random() -> Iterator[Row]:
    """Calls of random convolutions: most of 2D with small kernels, as networks have them."""
    pick = random.Random(0).choice
    made = 0
    while made < N_RANDOM:
        ndim = pick((2, 2, 2, 2, 3, 1))
        side = pick((1, 4, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 75, 80, 112, 224))
        n_in, n_out = (pick((1, 3, 4, 8, 16, 24, 32, 48, 64, 96, 100, 128, 192, 256, 384, 512,
                             1024, 2048)) for _ in range(2))  # fmt: skip
        groups = pick((1, 1, 1, 1, n_in, 2, 4, 32))
        kernel = pick((1, 1, 1, 2, 3, 3, 3, 4, 5, 7))
        stride, dilation = pick((1, 1, 1, 2, 4)), pick((1, 1, 1, 1, 2, 4, 12))
        if groups == n_in:
            n_out = n_in
        padding = pick((0, dilation * (kernel - 1) // 2, dilation * (kernel - 1) // 2))
        batch = pick((1, 2, 4, 8, 16, 32, 64, 128))
        dtype = pick((torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16))
        if n_in % groups or n_out % groups or side + 2 * padding <= dilation * (kernel - 1):
            continue
        x = torch.empty((batch, n_in, *(side,) * ndim), device="meta", dtype=dtype)
        weight = torch.empty((n_out, n_in // groups, *(kernel,) * ndim), device="meta")
        y = torch.convolution(
            x, weight.to(dtype), None, [stride] * ndim, [padding] * ndim, [dilation] * ndim, False,
            [0] * ndim, groups,
        )  # fmt: skip
        if sum(t.numel() * t.element_size() for t in (x, weight, y)) > MOST_BYTES:
            continue
        made += 1
        numbers = ["x".join([str(each)] * ndim) for each in (stride, padding, dilation)]
        options = "stride {} padding {} dilation {}".format(*numbers)
        if groups > 1:
            options += f" groups {groups}"
        name = str(dtype).removeprefix("torch.")
        for kind in CONVOLUTIONS:
            yield ["random", kind, name, *(list(t.shape) for t in (x, weight, y)), options,
                   False, None]  # fmt: skip


def with_groups() -> Iterator[Row]:
    """Calls of random convolutions with groups, most of 2D, some of them with channels last."""
    pick = random.Random(11).choice
    widths = (*range(1, 9), 8, 10, 12, 14, 16, 16, 20, 24, 28, 30, 32, 32, 36, 40, 48, 56, 64, 64,
              72, 80, 96, 104, 112, 120, 128, 144, 160, 192, 224, 256)  # fmt: skip
    sides = (1, 4, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 112, 128, 224)
    made = 0
    while made < N_RANDOM:
        ndim = pick((2,) * 9 + (1, 3))
        groups = pick((2, 2, 2, 2, 3, 4, 4, 4, 5, 6, 7, 8, 8, 10, 12, 14, 16, 20, 24, 32, 32, 32,
                       40, 48, 64))  # fmt: skip
        n_in = pick(widths)
        n_out = pick((*(n_in,) * 4, 2 * n_in, 2 * n_in, max(1, n_in // 2), *(pick(widths),) * 2))
        kernel = pick((1, 1, 3, 3, 3, 3, 3, 3, 5, 7)) if ndim < 3 else pick((1, 3, 3))
        stride, dilation = pick((1, 1, 1, 2)), pick((1,) * 9 + (2,))
        side = pick((*sides, pick(range(5, 130)))) if ndim < 3 else pick((4, 8, 12, 16, 24, 32))
        side *= 16 if ndim == 1 else 1
        padding = pick((*(dilation * (kernel - 1) // 2,) * 5, 0))
        batch = pick((1, 2, 4, 8, 16, 16, 32, 32, 64, 128, pick(range(1, 200))))
        dtype = pick((torch.float32,) * 7 + (torch.float16, torch.bfloat16))
        last = ndim == 2 and pick((False,) * 6 + (True,))
        is_small = side + 2 * padding <= dilation * (kernel - 1)
        if is_small or n_in == 1 or groups * max(n_in, n_out) > 2560:
            continue
        x = torch.empty((batch, groups * n_in, *(side,) * ndim), device="meta", dtype=dtype)
        weight = x.new_empty((groups * n_out, n_in, *(kernel,) * ndim))
        numbers = ([stride] * ndim, [padding] * ndim, [dilation] * ndim)
        y = torch.convolution(x, weight, None, *numbers, False, [0] * ndim, groups)
        if sum(t.nbytes for t in (x, weight, y)) > MOST_BYTES * 3 // 10:
            continue
        made += 1
        texts = ["x".join(map(str, each)) for each in numbers]
        options = "stride {} padding {} dilation {} groups {}".format(*texts, groups)
        name = str(dtype).removeprefix("torch.")
        for kind in CONVOLUTIONS:
            yield ["random", kind, name, *(list(t.shape) for t in (x, weight, y)), options, last,
                   None]  # fmt: skip


def measured(rows: list[Row]) -> list[Row]:
    """Rows with bytes; None where there was no room or no kernel."""
    from maxslices.nn.replay.measure_workspaces import _measured

    torch.set_num_threads(1)
    made = []
    for row in rows:
        try:
            n_bytes = _measured(call_of(row))
        except RuntimeError:
            n_bytes = None
        made.append([*row[:8], n_bytes])
        if torch.cuda.memory_reserved() > 10 * 2**30:
            torch.cuda.empty_cache()
    return made


def measure(file: Path, out: Path) -> None:
    """Measure all rows of a file."""
    content = read(file)
    rows, began = content["rows"], time.time()
    parts = [rows[i :: 10 * N_PROCESSES] for i in range(10 * N_PROCESSES)]
    with multiprocessing.get_context("spawn").Pool(N_PROCESSES) as pool:
        done = [row for part in pool.imap(measured, parts) for row in part]
    device = torch.cuda.get_device_name()
    content = {"device": device, "torch": torch.__version__, "rows": done,
               "cudnn": torch.backends.cudnn.version()}  # fmt: skip
    with gzip.open(out, "wt") as packed:
        json.dump(content, packed)
    lost = sum(row[8] is None for row in done)
    print(f"{len(done)} calls in {time.time() - began:.0f} s, {lost} without an answer")
    show(out)


def read(file: Path) -> dict[str, Any]:
    """Content of a file."""
    with gzip.open(file, "rt") as packed:
        content: dict[str, Any] = json.load(packed)
    return content


def show(out: Path) -> None:
    """Print how many calls the allowance is too low or too high for."""
    allowance = Workspaces.allowance()
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * 4)
    for row in read(out)["rows"]:
        if row[8] is None:
            continue
        ours = allowance.for_op(call_of(row))
        count = counts["random" if row[0] == "random" else "networks", row[1]]
        count[0] += 1
        count[1] += ours < row[8] - 2**20
        count[2] += ours > row[8] + 2**20
        count[3] += row[8] > 2**20
    print("calls | all | too low by 1 MiB | too high | takes any")
    for key, numbers in sorted(counts.items()):
        print(*key, "|", *numbers)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("list", "measure", "show"))
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--packages", help="folder with torchvision and timm")
    parser.add_argument("--groups", action="store_true", help="list random groups alone")
    parsed = parser.parse_args()
    if parsed.packages:
        sys.path.append(parsed.packages)
    if parsed.action == "list":
        rows: dict[str, Row] = {}
        listed = with_groups() if parsed.groups else (*of_networks(), *at_random())
        for row in listed:
            rows.setdefault(str(row[1:]), row)
        with gzip.open(parsed.file, "wt") as packed:
            json.dump({"rows": list(rows.values())}, packed)
        print(f"{len(rows)} calls")
    elif parsed.action == "measure":
        measure(parsed.file, parsed.out)
    else:
        show(parsed.file)


if __name__ == "__main__":
    main()

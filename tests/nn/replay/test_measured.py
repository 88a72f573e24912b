"""Replays compared with steps measured on an H200, each in a new process."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn

from maxslices.nn.replay import Replay, Spec, StepFamily, Workspaces, replay
from maxslices.nn.replay.meta_copy import optimizer_for

from .networks import NETWORKS

MEASURED = json.loads((Path(__file__).parent / "h200.json").read_text())
WORKSPACES = Workspaces.from_plain(MEASURED["workspaces"])
OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
}


@lru_cache(maxsize=2)
def network(name):
    with torch.device("meta"):
        return NETWORKS[name][0]()


def step(name, mode, optimizer, n, workspaces=WORKSPACES):
    model, shape = network(name), NETWORKS[name][1]
    model.train(not mode.endswith("-eval"))
    target, loss = Spec((n,), torch.long), nn.CrossEntropyLoss()
    if name == "BasicUNet":
        target, loss = Spec((n, 1, *shape[1:])), nn.BCELoss()
    if mode.startswith("train"):
        options = {"mode": "training", "loss": loss, "optimizer": OPTIMIZERS[optimizer]}
    else:
        options = {"mode": "forward" if mode == "forward" else "inference"}
    return replay(model, Spec((n, *shape)), targets=[target], workspaces=workspaces, **options)


def of(key):
    """Replay a step as it was run: output and loss are dropped after the backward pass."""
    name, mode, optimizer, n, *amp = key.split("|")
    real, shape = network(name), NETWORKS[name][1]
    real.train(not mode.endswith("-eval"))
    low = {"infer": torch.bfloat16}.get(mode, torch.float16)
    target, loss = Spec((int(n),), torch.long), nn.CrossEntropyLoss()
    if name == "BasicUNet":
        target, loss = Spec((int(n), 1, *shape[1:])), nn.BCELoss()
    with Replay(workspaces=WORKSPACES, lines=False) as record:
        model = record.model(real)
        x, y = record.input((Spec((int(n), *shape)), target))
        casting = torch.autocast("cuda", dtype=low, enabled=bool(amp))
        if not mode.startswith("train"):
            with torch.set_grad_enabled(mode == "forward"), casting:
                output = model(x)
            del output
            return record.trace()
        by = optimizer_for(OPTIMIZERS[optimizer], {}, model.parameters())
        for _ in range(2):
            by.zero_grad()
            with casting:
                output = model(x)
                value = loss(output.float() if amp else output, y)
            value.backward()
            del output, value
            by.step()
    return record.trace()


@pytest.mark.parametrize("key", [k for k in MEASURED["steps"] if not k.endswith("amp")])
def test_steps_take_what_was_measured(key):
    trace, measured = of(key), MEASURED["steps"][key]
    assert trace.allocated_bytes == pytest.approx(measured["allocated_bytes"], rel=2e-4)
    assert trace.peak_bytes == pytest.approx(measured["allocated_bytes"], rel=6e-3)
    assert trace.reserved_bytes == pytest.approx(measured["reserved_bytes"], rel=1e-2)


@pytest.mark.parametrize("key", [k for k in MEASURED["steps"] if k.endswith("amp")])
def test_steps_in_half_precision_take_what_was_measured(key):
    """Workspaces of half precision were not measured: within 1 %."""
    trace, measured = of(key), MEASURED["steps"][key]
    assert trace.allocated_bytes == pytest.approx(measured["allocated_bytes"], rel=1e-2)


@pytest.mark.parametrize("case", MEASURED["largest"], ids=lambda case: case["network"])
@pytest.mark.parametrize("calibrated", [True, False])
def test_the_largest_batch_is_the_largest_that_ran(case, calibrated):
    """Of the first network 89 to 96 images were tried and did not run; 97 and 98 did."""
    workspaces = WORKSPACES if calibrated else Workspaces.allowance()
    limit = int(case["part_of_card"] * MEASURED["total_bytes"])
    family = StepFamily(
        lambda n: step(case["network"], case["mode"], case["optimizer"], n, workspaces=workspaces)
    )
    found, ran = family.largest(limit), case["images"]
    assert found >= 0.95 * ran
    assert found <= ran or found in case["larger"]
    assert not any(family.fits(n, limit) for n in case.get("failed", ()))

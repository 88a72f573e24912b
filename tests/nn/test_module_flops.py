"""Floating-point operations by module, compared with torch's counts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from maxslices.nn.replay.module_calls import module_flops


class Twice(nn.Module):
    """Block that is called twice, the second time inside another block."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU(), nn.Linear(6, 6))
        self.outer = nn.Sequential(nn.Conv2d(3, 3, 1))

    def forward(self, x):
        return self.block(nn.functional.pad(self.outer(self.block(x)), (1, 1, 1, 1)))


def test_operations_by_path_equal_the_counts_of_torch():
    model = Twice()
    x = torch.rand(2, 3, 8, 8)
    flops = module_flops(model, lambda: model(x))
    with FlopCounterMode(display=False) as counter:
        model(x)
    expected = counter.get_flop_counts()
    assert flops[""] == expected["Twice"]
    for path in ("block", "block.0", "block.2", "outer", "outer.0"):
        assert flops[path] == expected[f"Twice.{path}"]
    assert not any(module._forward_hooks for module in model.modules())


def test_a_gradient_in_the_forward_pass_is_counted():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def call():
        x = torch.rand(2, 4, requires_grad=True)
        torch.autograd.grad(model(x).sum(), x, create_graph=True)

    flops = module_flops(model, call)
    total = {path: sum(by_op.values()) for path, by_op in flops.items()}
    assert total["0"] == 2 * 2 * 4 * 4
    assert (
        total[""] > total["0"] + total["1"]
    )  # the gradient belongs to no forward pass of a module


def test_a_model_without_counted_operators_has_an_empty_total():
    model = nn.ReLU()
    assert module_flops(model, lambda: model(torch.rand(2))) == {"": {}}


def test_hooks_are_removed_after_an_error():
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(RuntimeError):
        module_flops(model, lambda: model(torch.rand(2, 3)))
    assert not model[0]._forward_hooks
    assert not model[0]._forward_pre_hooks

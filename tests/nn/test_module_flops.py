"""Floating-point operations by module, as torch counts them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from maxslices.nn.replay.module_calls import module_flops


class Twice(nn.Module):
    """A block that is called twice, the second time inside of another."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU(), nn.Linear(6, 6))
        self.outer = nn.Sequential(nn.Conv2d(3, 3, 1))

    def forward(self, x):
        return self.block(nn.functional.pad(self.outer(self.block(x)), (1, 1, 1, 1)))


def test_paths_have_the_operations_that_torch_counts():
    model = Twice()
    x = torch.rand(2, 3, 8, 8)
    found = module_flops(model, lambda: model(x))
    with FlopCounterMode(display=False) as counter:
        model(x)
    theirs = counter.get_flop_counts()
    assert found[""] == theirs["Twice"]
    for path in ("block", "block.0", "block.2", "outer", "outer.0"):
        assert found[path] == theirs[f"Twice.{path}"]
    assert not any(module._forward_hooks for module in model.modules())


def test_a_gradient_in_the_forward_pass_is_counted():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def call():
        x = torch.rand(2, 4, requires_grad=True)
        torch.autograd.grad(model(x).sum(), x, create_graph=True)

    found = module_flops(model, call)
    total = {path: sum(by_op.values()) for path, by_op in found.items()}
    assert total["0"] == 2 * 2 * 4 * 4
    assert total[""] > total["0"] + total["1"]  # the gradient is of no module's forward pass


def test_hooks_end_with_an_error():
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(RuntimeError):
        module_flops(model, lambda: model(torch.rand(2, 3)))
    assert not model[0]._forward_hooks
    assert not model[0]._forward_pre_hooks

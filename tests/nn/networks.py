"""Small networks for these tests."""

from __future__ import annotations

import torch
from torch import nn

from maxslices.core.block_memory import CONTEXT_BYTES
from maxslices.nn.replay import Spec, Workspaces
from maxslices.nn.step.model_step import ModelStep


class Small(nn.Module):
    """Two levels, in the style of a U-Net: 2 to the power of its depth must divide a patch."""

    in_channels = 1
    depth = 1

    def __init__(self, ndim: int = 2, width: int = 8) -> None:
        super().__init__()
        convolution = (nn.Conv2d, nn.Conv3d)[ndim - 2]
        norm = (nn.BatchNorm2d, nn.BatchNorm3d)[ndim - 2]
        self.down = nn.Sequential(convolution(1, width, 3, padding=1), norm(width), nn.LeakyReLU())
        self.pool = (nn.MaxPool2d, nn.MaxPool3d)[ndim - 2](2)
        self.inner = nn.Sequential(
            convolution(width, width, 3, padding=1), norm(width), nn.LeakyReLU()
        )
        self.last = convolution(2 * width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down(x)
        b = self.inner(self.pool(a))
        return self.last(torch.cat([a, nn.functional.interpolate(b, scale_factor=2)], 1))


class Tied(nn.Module):
    """A weight used twice, and a buffer of indices."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8, bias=False)
        self.second = nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("order", torch.arange(8).flip(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)[:, self.order])


class Two(nn.Module):
    """Needs two inputs."""

    in_channels = 1

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + y


class Calls(nn.Module):
    """Layers by name, and a function of the module and its inputs that is its forward."""

    def __init__(self, function, **layers) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs, **named):
        return self.function(self, *inputs, **named)


def half(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A prediction function: two halves, one after the other."""
    return torch.cat([model(part) for part in x.chunk(2)])


def gradients(model: nn.Module, x: torch.Tensor, call=None) -> list[torch.Tensor]:
    """Result of a model, and gradients of its input and parameters, by the same random numbers."""
    torch.manual_seed(11)
    model.zero_grad()
    x = x.clone().requires_grad_()
    out = (call or model)(x)
    out.square().sum().backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]


def assert_same(model: nn.Module, other: nn.Module, x: torch.Tensor, atol=0.0, call=None) -> None:
    """Check that results, gradients and states are the same to the bit, or nearly.

    `atol` is of the largest number of a tensor.
    """
    pairs = [*zip(gradients(model, x), gradients(other, x, call), strict=True)]
    pairs += zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    for a, b in pairs:
        if not atol:
            assert torch.equal(a, b)
        else:
            torch.testing.assert_close(a, b, rtol=0, atol=atol * float(a.abs().max()))


def deep() -> nn.Module:
    """Return 14 convolutions in a row, 12 of them with a batch norm."""
    torch.manual_seed(1)
    blocks = [
        nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU(),
            nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU(),
        )
        for _ in range(6)
    ]  # fmt: skip
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.Conv2d(16, 1, 1))


DEEP_INPUT = Spec((4, 3, 128, 128))


def deep_memory(part: float) -> int:
    """Memory of a card with a part of what the unreduced step of `deep` allocates."""
    step = ModelStep(deep(), "training", torch.optim.Adam)
    peak = step.trace([DEEP_INPUT], Workspaces.allowance()).peak_bytes
    return int(part * peak) + CONTEXT_BYTES

"""Small and well-known networks for the tests of replays."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional


def double(n_in: int, n_out: int, activation: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, 3, 1, 1),
        nn.BatchNorm2d(n_out),
        copy.deepcopy(activation),
        nn.Conv2d(n_out, n_out, 3, 1, 1),
        nn.BatchNorm2d(n_out),
        copy.deepcopy(activation),
    )


class Encoder(nn.Module):
    """Half of a basic U-Net: 64-128-256-512 channels, ReLU in place."""

    def __init__(self, activation: nn.Module | None = None) -> None:
        super().__init__()
        activation = activation or nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.a = double(1, 64, activation)
        self.b = double(64, 128, activation)
        self.c = double(128, 256, activation)
        self.d = double(256, 512, activation)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = self.a(x)
        b = self.b(self.pool(a))
        c = self.c(self.pool(b))
        return a, b, c, self.d(self.pool(c))


class UNet(Encoder):
    """A basic U-Net of 7,787,393 parameters: nearest upsampling, concatenation."""

    def __init__(self, activation: nn.Module | None = None) -> None:
        activation = activation or nn.ReLU()
        super().__init__(activation)
        self.up_c = double(768, 256, activation)
        self.up_b = double(384, 128, activation)
        self.up_a = double(192, 64, activation)
        self.last = nn.Conv2d(64, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c, x = super().forward(x)
        x = self.up_c(torch.cat([c, self.up(x)], 1))
        x = self.up_b(torch.cat([b, self.up(x)], 1))
        x = self.up_a(torch.cat([a, self.up(x)], 1))
        return self.last(x)

    def up(self, x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(x, scale_factor=2, mode="nearest")

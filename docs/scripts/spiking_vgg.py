"""A spiking VGG of spikingjelly's layers and neurons, for inputs (time, batch, 3, y, x)."""

from __future__ import annotations

import torch
from torch import nn


def spiking_vgg(neuron: str = "LIFNode", norm: bool = True, n_classes: int = 10) -> nn.Module:
    """Return VGG-16 with a neuron after each convolution, of several time steps."""
    from spikingjelly.activation_based import functional, layer, surrogate
    from spikingjelly.activation_based import neuron as neurons

    kind = getattr(neurons, neuron)
    layers: list[nn.Module] = []
    n_in = 3
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        if width == 0:
            layers.append(layer.MaxPool2d(2))
            continue
        layers.append(layer.Conv2d(n_in, width, 3, padding=1, bias=not norm))
        if norm:
            layers.append(layer.BatchNorm2d(width))
        layers.append(kind(surrogate_function=surrogate.ATan(), detach_reset=True))
        n_in = width
    layers += [layer.AdaptiveAvgPool2d((1, 1)), layer.Flatten(), layer.Linear(n_in, n_classes)]
    made = nn.Sequential(*layers)
    functional.set_step_mode(made, "m")
    return made


class Rate(nn.Module):
    """Cross-entropy of the output's mean over time."""

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return nn.functional.cross_entropy(output.mean(0), target)

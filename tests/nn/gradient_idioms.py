"""Networks with one idiom each that makes recomputation go wrong if nothing is done about it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn.utils import parametrizations

from .networks import Calls

N = 8
"""Channels of all features."""


def block(n: int = N, norm: type[nn.Module] | None = nn.BatchNorm2d) -> nn.Sequential:
    """Two convolutions with norms."""
    layers: list[nn.Module] = []
    for i in range(2):
        layers.append(nn.Conv2d(n if i == 0 else N, N, 3, padding=1))
        layers += [norm(N)] if norm is not None else []
        layers.append(nn.GELU())
    return nn.Sequential(*layers)


def blocks(n: int, make: Callable[[int], nn.Module]) -> nn.ModuleList:
    """List of n blocks."""
    return nn.ModuleList(make(i) for i in range(n))


def dense() -> nn.Module:
    """Return blocks with a list that grows from one to the next, as DenseNet's."""

    def forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for each in model.blocks:
            features.append(each(features))
        return features[-1]

    def joins(i: int) -> nn.Module:
        return Calls(lambda m, given: m.body(torch.cat(given, 1)), body=block(N * (i + 1)))

    return Calls(forward, blocks=blocks(5, joins))


def passes() -> nn.Module:
    """Return blocks to which a dict is handed on that they and the caller change."""

    def reads(model: nn.Module, state: dict[str, Any]) -> torch.Tensor:
        result = model.body(state["x"]) * state["scale"]
        state["calls"] += 1
        state["seen"] = result
        return result + state["seen"].mean() * state["calls"]

    def forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        state: dict[str, Any] = {"x": x, "scale": 1.0, "calls": 0}
        for each in model.blocks:
            state["x"] = each(state)
            state["scale"] *= 0.5
        return state["x"]

    return Calls(forward, blocks=blocks(5, lambda _: Calls(reads, body=block(norm=None))))


class Holder:
    """Object with attributes, which torch does not look into."""

    def __init__(self, items: dict[str, Any]) -> None:
        self.held = {"items": [*items.values()]}

    def __getitem__(self, name: str) -> Any:
        return self.held["items"][name == "scale"]

    def __setitem__(self, name: str, value: Any) -> None:
        self.held["items"][name == "scale"] = value


class Slots:
    """Object with slots only, and one empty slot."""

    __slots__ = ("empty", "scale", "x")

    def __init__(self, items: dict[str, Any]) -> None:
        self.x, self.scale = items["x"], items["scale"]

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)


class SelfDict(dict[str, Any]):
    """Dict whose items are its attributes too."""

    def __init__(self, items: dict[str, Any]) -> None:
        super().__init__(items)
        self.__dict__ = self


class Uncopied(Holder):
    """Object that defines its own copying."""

    def __copy__(self) -> Uncopied:
        return self


def hands_on(kind: Callable[[dict[str, Any]], Any]) -> nn.Module:
    """Return blocks to which an object of some class is handed on that the caller changes."""

    def reads(model: nn.Module, items: Any) -> torch.Tensor:
        return model.body(items["x"]) * items["scale"] * items["x"]

    def forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        items = kind({"x": x * 1, "scale": torch.ones(1)})
        for each in model.blocks:
            items["x"] = each(items)
            items["scale"] = items["scale"] * 0.5
        return items["x"]

    return Calls(forward, blocks=blocks(4, lambda _: Calls(reads, body=block(norm=None))))


class _Remembers(nn.Module):
    def __init__(self, kind: Callable[[dict[str, Any]], Any]) -> None:
        super().__init__()
        self.body = block(norm=None)
        self.memory = kind({"x": torch.ones(1), "scale": [torch.ones(1)]})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x) * self.memory["scale"][-1] + self.memory["x"]
        self.memory["x"] = y.detach().mean()
        self.memory["scale"].append(self.memory["scale"][-1] * 0.5)
        return y * self.memory["x"]


def remembers(kind: Callable[[dict[str, Any]], Any]) -> nn.Module:
    """Blocks that keep an object of a class, and change its contents."""
    return nn.Sequential(*(_Remembers(kind) for _ in range(3)))


def adds() -> nn.Module:
    """Return blocks whose features are added to in place."""

    def forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = model.first(x)
        for each in model.blocks:
            x += each(x)
        return x

    made = blocks(5, lambda _: nn.Sequential(nn.ReLU(), block(norm=None)))
    return Calls(forward, first=nn.Conv2d(N, N, 1), blocks=made)


def spectral(norm: Callable[[nn.Module], nn.Module] = parametrizations.spectral_norm) -> nn.Module:
    """Convolutions with spectral norm, whose vectors change with each forward pass."""
    made = [
        nn.Sequential(
            norm(nn.Conv2d(N, N, 3, padding=1)), nn.GELU(),
            norm(nn.Conv2d(N, N, 3, padding=1)), nn.Tanh(),
        )
        for _ in range(4)
    ]  # fmt: skip
    return nn.Sequential(*made)


def spectral_by_hooks() -> nn.Module:
    """The same, by torch's older hooks, which set an attribute."""
    return spectral(nn.utils.spectral_norm)


class _Average(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = block()
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(y.abs().mean(), alpha=0.1)
        return (y - self.mean).square()


def averages() -> nn.Module:
    """Blocks with a moving average of their own, which they read."""
    return nn.Sequential(*(_Average() for _ in range(4)))


def drops() -> nn.Module:
    """Dropout in each of several blocks."""
    made = [nn.Sequential(block(norm=None), nn.Dropout(0.3)) for _ in range(4)]
    return nn.Sequential(*made)


def overwrites() -> nn.Module:
    """Activations in place behind convolutions and before other layers."""
    made = [
        nn.Sequential(
            nn.Conv2d(N, N, 3, padding=1), nn.ReLU(inplace=True), nn.GroupNorm(2, N),
            nn.Conv2d(N, N, 3, padding=1), nn.ReLU(inplace=True), nn.GELU(),
        )
        for _ in range(4)
    ]  # fmt: skip
    return nn.Sequential(*made)


class _Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = block(norm=None)
        self.n_calls = 0
        self.history: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n_calls += 1
        y = self.body(x) / self.n_calls
        self.history.append(y.detach().mean())
        return y * (1 + torch.stack(self.history).mean())


def counts() -> nn.Module:
    """Blocks that count their calls and keep earlier means, and read both."""
    return nn.Sequential(*(_Counter() for _ in range(4)))


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = block(norm=None)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x * self.scale.clone())


def scales() -> nn.Module:
    """Return blocks with a buffer that the caller changes when the block has returned."""

    def forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for each in model.blocks:
            x = each(x)
            each.scale.mul_(0.9)
        return x

    return Calls(forward, blocks=blocks(4, lambda _: _Scaled()))


def nested() -> nn.Module:
    """Return blocks that get tuples in a list in a dict by name, and change them."""

    def by_name(model: nn.Module, *, features: dict[str, list[Any]]) -> torch.Tensor:
        x, n = features["all"].pop()
        features["all"].append((x, n))
        return model.body(x) + sum(t.mean() * i for t, i in features["all"])

    def forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        features = {"all": [(x, 1)]}
        for i, each in enumerate(model.blocks):
            features["all"].append((each(features=features), i))
        return features["all"][-1][0]

    return Calls(forward, blocks=blocks(4, lambda _: Calls(by_name, body=block(norm=None))))


class Renorm(nn.BatchNorm2d):
    """Norm by its running statistics, which it changes first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Blend the statistics of the batch in, and use the result."""
        if self.training:
            with torch.no_grad():
                self.running_mean.lerp_(x.mean((0, 2, 3)), 0.3)
                self.running_var.lerp_(x.var((0, 2, 3)), 0.3)
        mean, std = self.running_mean, (self.running_var + self.eps).sqrt()
        x = (x - mean[:, None, None]) / std[:, None, None]
        return x * self.weight[:, None, None] + self.bias[:, None, None]


def renormalizes() -> nn.Module:
    """Blocks with such norms."""
    return nn.Sequential(*(block(norm=Renorm) for _ in range(4)))


class _Codebook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = block()
        self.register_buffer("codes", torch.randn(16, N))
        self.register_buffer("counts", torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        flat = x.movedim(1, -1).reshape(-1, N)
        codes = self.codes.clone()
        near = torch.softmax(-torch.cdist(flat, codes), 1)
        if self.training:
            with torch.no_grad():
                self.counts = self.counts * 0.9 + near.sum(0) * 0.1
                self.codes.lerp_(near.T @ flat / near.sum(0)[:, None], 0.1)
        quantized = (near @ codes).view(*x.movedim(1, -1).shape).movedim(-1, 1)
        return x + quantized


def quantizes() -> nn.Module:
    """Codebooks that follow the features, one buffer replaced and one changed in place."""
    return nn.Sequential(*(_Codebook() for _ in range(3)))


class Bounded(nn.Conv2d):
    """Convolution that holds its weights within bounds before each use."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale the weights, and convolve."""
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.5) * 0.99
        return super().forward(x)


def bounded() -> nn.Module:
    """Blocks of such convolutions."""
    made = [
        nn.Sequential(Bounded(N, N, 3, padding=1), nn.GELU(), Bounded(N, N, 3, padding=1),
                      nn.Tanh())
        for _ in range(4)
    ]  # fmt: skip
    return nn.Sequential(*made)


def host_draws() -> nn.Module:
    """Blocks that are scaled by random numbers of Python and of NumPy."""

    def scaled(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        chance = random.random() * float(numpy.random.rand())  # noqa: NPY002 - as users write it
        return x + model.body(x) * chance

    return nn.Sequential(*(Calls(scaled, body=block()) for _ in range(4)))


class Hooks(nn.Module):
    """Hooks that keep features, change outputs and gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(N, N, 1)
        self.blocks = nn.ModuleList(block() for _ in range(4))
        self.features: list[torch.Tensor] = []
        for each in self.blocks:
            each.register_forward_hook(lambda _module, _x, y: self.features.append(y))
            each[0].register_forward_hook(lambda _module, _x, y: y * 1.1)
            each.register_full_backward_hook(
                lambda _module, grads, _y: tuple(g if g is None else g * 0.9 for g in grads)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the blocks, and use what the hooks have kept."""
        self.features.clear()
        x = self.first(x)
        for each in self.blocks:
            x = each(x)
        x.register_hook(lambda grad: grad * 0.5)
        return x + sum(feature.mean() for feature in self.features)


class Forces(nn.Module):
    """Network whose input is the gradient of another, as for forces and energies."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(*(block(norm=None) for _ in range(3)))
        self.last = block(norm=None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the gradient with a graph of its own."""
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            energy = self.energy(x).square().mean()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return self.last(force * 100)

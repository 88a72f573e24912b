"""Paths of rewrites: modules, and ranges of children of an ``nn.Sequential``.

A range is written as a Python slice: "features[3:6]", or "[3:6]" of the model itself. Layers that
follow each other without a module of their own can so be rewritten as one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from torch import nn

from ..step.layer_state import stateful

EXPENSIVE_LAYERS = (nn.modules.conv._ConvNd, nn.Linear, nn.Bilinear, nn.MultiheadAttention)
"""Convolutions and matrix products; ranges begin with them."""
RANGE_LENGTHS = (1, 2, 3, 4, 6, 8)
"""Lengths of ranges, in groups of layers that begin with an expensive one."""

_RUN = re.compile(r"(.*)\[(\d+):(\d+)\]", re.DOTALL)


class ModuleRange(NamedTuple):
    """Children of a Sequential, one after the other."""

    parent: str
    first: int
    end: int

    @property
    def path(self) -> str:
        """Path of the range, such as "features[3:6]"."""
        return f"{self.parent}[{self.first}:{self.end}]"


def range_at(path: str) -> ModuleRange | None:
    """Range that a path names; None if it names a module."""
    found = _RUN.fullmatch(path)
    return ModuleRange(found[1], int(found[2]), int(found[3])) if found else None


def children_of(run: ModuleRange, modules: Mapping[str, nn.Module]) -> list[str]:
    """Paths of a range's modules.

    Raises
    ------
    KeyError
        If there is no such range.
    """
    parent = modules[run.parent]
    names = list(parent._modules)
    if not is_plain(parent) or not 0 <= run.first < run.end <= len(names):
        raise KeyError(f"{run.path}: {run.parent or 'the model'} has no such range of layers")
    return [f"{run.parent}.{name}".removeprefix(".") for name in names[run.first : run.end]]


def is_plain(module: nn.Module) -> bool:
    """True if a module only calls its children one after the other."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def modules_and_ranges(model: nn.Module) -> dict[str, nn.Module]:
    """Modules by path, with those of `ranges_of` as a Sequential of the same children."""
    found = dict(model.named_modules())
    for run in ranges_of(model):
        found[run.path] = nn.Sequential(*(found[p] for p in children_of(run, found)))
    return found


def ranges_of(model: nn.Module) -> list[ModuleRange]:
    """Ranges that are worth a rewrite.

    A group is a convolution or product, or a module with one inside, and the layers up to the
    next. The parts of a group before and from its first stateful layer on are ranges as well:
    the latter can be split in time where norms before it cannot.
    """
    made: list[ModuleRange] = []
    for path, module in model.named_modules():
        if not is_plain(module):
            continue
        children = list(module.children())
        if len(children) < len(module._modules):
            continue  # some are None, or the same
        starts = [i for i, child in enumerate(children) if _is_expensive(child)]
        if not starts:
            continue
        edges = [0, *starts[1:], len(children)]
        for first, end in pairwise(edges):
            neuron = next((i for i in range(first, end) if stateful(children[i])), end)
            if neuron < end:
                halves = ModuleRange(path, first, neuron), ModuleRange(path, neuron, end)
                made += [run for run in halves if run.end - run.first > 1]
        for first in range(len(edges) - 1):
            for length in RANGE_LENGTHS:
                if first + length >= len(edges):
                    break
                run = ModuleRange(path, edges[first], edges[first + length])
                if 1 < run.end - run.first < len(children):
                    made.append(run)
    return [*dict.fromkeys(made)]


def _is_expensive(module: nn.Module) -> bool:
    return any(isinstance(each, EXPENSIVE_LAYERS) for each in module.modules())


class ModuleOrder:
    """Order of a model's modules, in which each module or range is an interval."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = dict(model.named_modules())
        paths = list(self.modules)  # each before those inside it
        self._stretch: dict[str, tuple[int, int]] = {}
        for index, path in enumerate(paths):
            end = index + 1
            while end < len(paths) and (not path or paths[end].startswith(path + ".")):
                end += 1
            self._stretch[path] = (index, end)

    def stretch(self, path: str) -> tuple[int, int]:
        """Interval of a module or range: its first module, and the one after its last."""
        if path not in self._stretch:
            run = range_at(path)
            if run is None:
                raise KeyError(path)
            inside = children_of(run, self.modules)
            ends = self._stretch[inside[0]][0], self._stretch[inside[-1]][1]
            self._stretch[path] = ends
        return self._stretch[path]

    def overlap(self, one: str, other: str) -> bool:
        """True if two modules or ranges have a module in common."""
        (a, b), (c, d) = self.stretch(one), self.stretch(other)
        return a < d and c < b

    def is_inside(self, inner: str, outer: str) -> bool:
        """True if a module or range is a proper part of another."""
        (a, b), (c, d) = self.stretch(inner), self.stretch(outer)
        return c <= a and b <= d and b - a < d - c

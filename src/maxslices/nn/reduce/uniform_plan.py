"""Uniform plans: the same rewrite for all modules of a class."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from .candidates import Candidate
from .module_ranges import ModuleOrder, ranges_of

KINDS = ("checkpoint", "selective", "offload")
"""Kinds of rewrites in uniform plans."""


def uniform_sets(
    found: Sequence[Candidate], model: nn.Module, order: ModuleOrder
) -> list[list[int]]:
    """Sets that rewrite all modules of a class in the same way.

    Checkpoints are also combined with those of another class inside. Of nested modules of a
    class the outermost is taken; ranges of the same number of groups are a class as well.
    """
    modules = dict(model.named_modules())
    kinds = {run.path: kind for run, kind in ranges_of(model).items()}
    classes: dict[tuple[str, str], list[int]] = {}
    for row, candidate in enumerate(found):
        rewrite, path = candidate.rewrite, candidate.path
        if rewrite.kind not in KINDS or rewrite.parts > 1 or not path:
            continue
        kind = kinds[path] if path in kinds else type(modules[path]).__qualname__
        classes.setdefault((rewrite.kind, kind), []).append(row)
    sets: list[list[int]] = []
    others: list[list[int]] = []
    for (what, _), rows in classes.items():
        paths = [found[i].path for i in rows]
        outermost = [
            i for i in rows if not any(order.is_inside(found[i].path, other) for other in paths)
        ]
        disjoint: list[int] = []
        for i in outermost:
            its = found[i].path
            if not any(order.overlap(its, found[j].path) and i != j for j in disjoint):
                disjoint.append(i)
            elif found[i].rewrite.compressors and its == found[disjoint[-1]].path:
                disjoint[-1] = i
        (sets if what == "checkpoint" else others).append(disjoint)
    pairs = [
        [*outer, *inner]
        for outer in sets
        for inner in sets
        if any(order.is_inside(found[i].path, found[o].path) for i in inner for o in outer)
    ]
    return [each for each in (*sets, *pairs, *others) if len(each) > 1]

"""Arguments of a reduction in the form the search needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ..nn_errors import ModelArgumentError
from .module_ranges import children_of, ranges_of


def names_of_compressors(
    model: nn.Module, binary: dict[str, tuple[bool, ...]], compressors: Mapping[str, Any] | None
) -> dict[str, tuple[str, ...]]:
    """Compressor names by path: as asked for, else bits for binary inputs."""
    found = {
        path: tuple("bit" if each else "none" for each in flags) for path, flags in binary.items()
    }
    asked: dict[str, Any] = {
        path: module.x_compressor
        for path, module in model.named_modules()
        if getattr(module, "x_compressor", None) is not None
    }
    asked.update(compressors or {})
    known = dict(model.named_modules())
    for path, spec in asked.items():
        if path not in known:
            raise ModelArgumentError(f"compressors: there is no module {path!r}")
        name = spec if isinstance(spec, str) else getattr(spec, "name", type(spec).__name__)
        found[path] = (name,) * max(1, len(found.get(path, ())))
    for run in ranges_of(model):
        first = children_of(run, known)[0]
        if first in found:
            found[run.path] = found[first]
    return found

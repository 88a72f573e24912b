"""Stub for torch's compiler, which torch imports during a replay without using it.

torch imports its compiler at the first of many operators on the meta device, and at an optimizer's
first step, only to exclude a function from compilation. The import takes up to a second. The first
memory report of a process, for a training step of ResNet50, takes 0.8 s of a core with the stub,
and 1.4 s without.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

import torch

_COMPILER = "torch._dynamo"
_MARK = "__dynamo_disable"
"""Attribute by which torch marks a function as excluded from compilation."""


class _StubModule(ModuleType):
    """Stub of a module or package that loads the real one when it lacks an attribute."""

    def __getattr__(self, name: str) -> Any:
        # The import system looks up dunder names of its own; only __path__ of a package needs the
        # real module, to import a submodule.
        spec = self.__spec__
        is_package = spec is not None and spec.submodule_search_locations is not None
        if name.startswith("__") and not (name == "__path__" and is_package):
            raise AttributeError(name)
        own = self.__name__
        if sys.modules.get(own) is not self:  # the stub outlived its context
            return getattr(importlib.import_module(own), name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert spec is not None
        assert spec.loader is not None
        if spec.submodule_search_locations is not None:
            self.__path__ = spec.submodule_search_locations
        parent, _, last = own.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, self)
        spec.loader.exec_module(self)
        return getattr(self, name)


@contextmanager
def compiler_unloaded() -> Iterator[None]:
    """Replace torch's compiler by a stub, unless the compiler was imported."""
    spec = None if _COMPILER in sys.modules else find_spec(_COMPILER)
    if spec is None:
        yield
        return
    excluded: list[Any] = []

    def disable(function: Callable[..., Any], *_args: Any, **_options: Any) -> Any:
        excluded.append(function)
        return function

    module = module_from_spec(spec)
    module.__class__ = _StubModule
    vars(module).pop("__path__", None)
    vars(module).update(disable=disable, graph_break=lambda *_args, **_options: None)
    sys.modules[_COMPILER] = module
    try:
        yield
    finally:
        if isinstance(module, _StubModule):
            del sys.modules[_COMPILER]
            vars(torch).pop("_dynamo", None)
        for function in excluded:  # marked again when the real compiler is imported
            vars(function).pop(_MARK, None)

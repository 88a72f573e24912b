"""The dispatch mode that replays are made of; torch's compiler stays out of them.

torch imports its compiler, which takes up to a second, at the first of many operators on the
meta device, and at an optimizer's first step: only to tell it to leave a function alone.
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
from torch.utils._python_dispatch import TorchDispatchMode

_COMPILER = "torch._dynamo"
_MARK = "__dynamo_disable"
"""Where torch remembers, of a function, that the compiler was told."""


class DispatchMode(TorchDispatchMode):
    """A dispatch mode whose handler torch's compiler is not told to leave alone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # of the base class; older versions do not ask


class _Later(ModuleType):
    """The compiler's package, which is loaded when more is wanted than to be left alone."""

    def __getattr__(self, name: str) -> Any:
        # The import system looks for others of that kind, and for the path of any part's package.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if sys.modules.get(_COMPILER) is not self:  # asked for when it is over
            return getattr(importlib.import_module(_COMPILER), name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        self.__path__ = spec.submodule_search_locations or []
        spec.loader.exec_module(self)
        return getattr(self, name)


@contextmanager
def compiler_unloaded() -> Iterator[None]:
    """Do not import torch's compiler inside, unless something really uses it."""
    spec = None if _COMPILER in sys.modules else find_spec(_COMPILER)
    if spec is None:
        yield
        return
    told: list[Any] = []

    def disable(function: Callable[..., Any], *_args: Any, **_options: Any) -> Any:
        told.append(function)
        return function

    module = module_from_spec(spec)
    module.__class__ = _Later
    del module.__path__
    vars(module).update(disable=disable, graph_break=lambda *_args, **_options: None)
    sys.modules[_COMPILER] = module
    try:
        yield
    finally:
        for function in told:  # the real one is told when it is there
            vars(function).pop(_MARK, None)
        if isinstance(module, _Later):
            del sys.modules[_COMPILER]
            vars(torch).pop("_dynamo", None)

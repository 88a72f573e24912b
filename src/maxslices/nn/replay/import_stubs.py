"""Stubs for modules that torch imports during a replay without needing them.

torch imports its compiler, which takes up to a second, at the first of many operators on the meta
device and at an optimizer's first step, only to exclude a function from compilation. Where the rule
of such an operator compares sizes, torch imports SymPy, which takes as long the first time on a
machine, only to find that the sizes are numbers, not symbols.

The first memory report of a process, for a training step, takes 2.0 s, and 11.0 s without (two
cores, 2026-11-22).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

import torch

_COMPILER = "torch._dynamo"
_MARK = "__dynamo_disable"
"""Attribute by which torch marks a function as excluded from compilation."""
_SYMBOLS = "torch.fx.experimental.symbolic_shapes"
_ALGEBRA = "sympy"


class _StubModule(ModuleType):
    """Stub of a module or package, which is loaded when the stub lacks an attribute."""

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
def _standing_in(name: str, **known: Any) -> Iterator[None]:
    """Put a stub with some attributes in place of a module that is not imported yet."""
    spec = None if name in sys.modules else find_spec(name)
    if spec is None:
        yield
        return
    module = module_from_spec(spec)
    module.__class__ = _StubModule
    vars(module).pop("__path__", None)
    vars(module).update(known)
    sys.modules[name] = module
    try:
        yield
    finally:
        if isinstance(module, _StubModule):
            del sys.modules[name]
            parent, _, last = name.rpartition(".")
            if parent:
                vars(sys.modules[parent]).pop(last, None)


@contextmanager
def compiler_unloaded() -> Iterator[None]:
    """Put a stub in place of torch's compiler, unless something uses it."""
    told: list[Any] = []

    def disable(function: Callable[..., Any], *_args: Any, **_options: Any) -> Any:
        told.append(function)
        return function

    with _standing_in(_COMPILER, disable=disable, graph_break=lambda *_args, **_options: None):
        try:
            yield
        finally:
            for function in told:  # marked anew once the real compiler is imported
                vars(function).pop(_MARK, None)


@contextmanager
def algebra_unloaded() -> Iterator[None]:
    """Put stubs in place of SymPy and torch's symbolic shapes, unless there are symbols."""
    with _standing_in(_ALGEBRA, Basic=_Symbol), _standing_in(_SYMBOLS, **_OF_NUMBERS):
        yield


class _Symbol:
    """Stub of SymPy's base class, of which nothing is an instance."""


def _same(x: Any, y: Any) -> bool:
    if isinstance(x, tuple | list) and isinstance(y, tuple | list):
        return len(x) == len(y) and all(map(_same, x, y))
    return bool(x == y)


def _of_numbers(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a stub of a function that calls the real one if an argument is a symbol."""

    def stand_in(*args: Any) -> Any:
        if any(isinstance(a, torch.SymInt | torch.SymBool | torch.SymFloat) for a in args):
            return getattr(importlib.import_module(_SYMBOLS), name)(*args)
        return function(*args)

    return stand_in


_RULES: dict[str, Callable[..., Any]] = {
    "_advise_is_size": lambda _: None,
    "expect_true": lambda a, *_: a,
    "free_unbacked_symbols": lambda _: set(),
    "guard_or_false": bool,
    "guard_or_true": bool,
    "guard_size_oblivious": bool,
    "guarding_hint_or_throw": lambda a: a,
    "has_guarding_hint": lambda _: True,
    "has_hint": lambda _: True,
    "is_nested_int": lambda _: False,
    "size_hint": lambda a, *_: a,
    "statically_known_true": bool,
    "sym_and": lambda *all_of: reduce(lambda x, y: x & y, all_of),
    "sym_eq": _same,
    "sym_or": lambda *any_of: reduce(lambda x, y: x | y, any_of),
}
"""Functions on sizes that torch's rules call, for sizes that are numbers."""

_OF_NUMBERS = {name: _of_numbers(name, function) for name, function in _RULES.items()}

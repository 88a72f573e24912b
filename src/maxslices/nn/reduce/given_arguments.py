"""Arguments of a block, to be given again as they were at the call."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ..replay.nested import leaves, mapped
from .block_state import version_of

_HEAP_TYPE = 1 << 9
"""CPython's flag of classes that a class statement made."""


_COPYING = ("__reduce_ex__", "__reduce__", "__new__")
"""Methods by which a class says itself how it is copied."""


class _TensorPlace:
    """Stands for a tensor; no tuple or record, in which `mapped` would look."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class _Object(NamedTuple):
    """An argument of a class that is no container."""

    value: Any
    contents: list[Any]


class GivenArguments:
    """Arguments without their tensors, which autograd is to save.

    Containers and objects of Python's classes are copied, with what they hold: a block that fills a
    cache is given it again without its own part. Other objects, such as those of C, are given
    again themselves, and `changed` compares what they hold.

    Attributes
    ----------
    tensors : list of tensor
        Tensors in the containers, each once: attention compares its arguments by identity.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.tensors: list[torch.Tensor] = []
        self._objects: list[_Object] = []
        self._numbers: dict[int, int] = {}
        self._copied = _copied((args, kwargs), self._without_tensor, {})

    def again(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with tensors in place of those that `tensors` had at the call."""

        def put(leaf: Any) -> Any:
            return tensors[leaf.number] if isinstance(leaf, _TensorPlace) else leaf

        made: tuple[tuple[Any, ...], dict[str, Any]] = _copied(self._copied, put, {})
        return made

    def changed(self) -> str:
        """Class of an object that holds something else than at the call; or ""."""
        for value, contents in self._objects:
            now = [*_contents(value, set())]
            if len(now) != len(contents) or not all(map(_is_same, contents, now)):
                return type(value).__name__
        return ""

    def _without_tensor(self, leaf: Any) -> Any:
        if torch.is_tensor(leaf):
            if id(leaf) not in self._numbers:
                self._numbers[id(leaf)] = len(self.tensors)
                self.tensors.append(leaf)
            return _TensorPlace(self._numbers[id(leaf)])
        contents = [*_contents(leaf, set())]
        if len(contents) > 1:
            self._objects.append(_Object(leaf, contents))
        return leaf


def _copied(value: Any, function: Callable[[Any], Any], known: dict[int, Any]) -> Any:
    """Copy containers and objects, with a function applied to what is neither; one copy of each."""

    def convert(leaf: Any) -> Any:
        if not _is_plain_object(leaf):
            return function(leaf)
        if id(leaf) not in known:
            made = known[id(leaf)] = copy.copy(leaf)
            held = {name: _copied(item, function, known) for name, item in vars(leaf).items()}
            vars(made).update(held)
        return known[id(leaf)]

    return mapped(convert, value)


def _is_plain_object(value: Any) -> bool:
    """True if a copy is a new object of the class with the same attributes."""
    kind = type(value)
    is_special = isinstance(value, nn.Module | torch.Tensor | type | _TensorPlace)
    return (
        not is_special
        and bool(kind.__flags__ & _HEAP_TYPE)
        and hasattr(value, "__dict__")
        and not hasattr(kind, "__copy__")
        and all(getattr(kind, name) is getattr(object, name) for name in _COPYING)
    )


def _contents(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yield what an object holds; of a tensor a reference and its version, which hold no memory."""
    for leaf in leaves(value):
        if torch.is_tensor(leaf):
            yield weakref.ref(leaf)
            yield version_of(leaf)
            continue
        yield leaf
        # Modules have a state of their own, and classes are shared by all.
        if id(leaf) not in seen and not isinstance(leaf, nn.Module | type):
            seen.add(id(leaf))
            yield from _contents([*getattr(leaf, "__dict__", {}).values()], seen)


def _is_same(old: Any, new: Any) -> bool:
    if old is new:
        return True
    is_number = isinstance(old, int | float | str) and type(old) is type(new)
    return bool(is_number and old == new)

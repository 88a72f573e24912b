"""Copies of containers and of objects of Python's classes, with all that they hold.

An object is what it holds: items, attributes and slots. Methods of its class are not called, as
they may have effects: neither ``__init__`` nor those of a mapping.
"""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import (
    Callable,
    Iterator,
    MutableMapping,
    MutableSequence,
    MutableSet,
    Sequence,
)
from types import FunctionType, MemberDescriptorType, ModuleType, SimpleNamespace
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

_CONTAINERS: tuple[Any, ...] = (
    OrderedDict,
    defaultdict,
    dict,
    list,
    set,
    deque,
    SimpleNamespace,
)
"""Classes of which an empty one is made for a copy: the first that a class derives from."""
_ROWS: tuple[Any, ...] = (tuple, list, set, deque)
_COPYING = ("__reduce_ex__", "__reduce__", "__new__")
"""Methods by which a class says itself how it is copied: of handles, members of enumerations."""
_HEAP_TYPE = 1 << 9
"""CPython's flag of classes that a class statement made."""


class _LeafPlace:
    """Stands for a leaf."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


_OPAQUE = (torch.Tensor, torch.Size, nn.Module, type, ModuleType, FunctionType, _LeafPlace)
"""Classes that are not looked into: modules have a state of their own, and classes are shared."""


class _HeldPart(NamedTuple):
    """Something that an object holds."""

    table: Literal["item", "entry", "attribute", "slot"]
    """Whether it is held in a row, under a key, or as an attribute."""
    name: Any
    value: Any


class ObjectCopies:
    """Copies of what some values hold, with their leaves apart, so that autograd can save tensors.

    Attributes
    ----------
    leaves : list
        Tensors and all else that is not copied, each once: attention compares its arguments by
        identity.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self.leaves: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._uncopied: dict[int, tuple[Any, list[Any]]] = {}
        self._copies: list[Any] = copy_objects([*values], self._place)
        self._numbers.clear()  # leaves may be dropped, and others have their addresses

    def made(self, leaves: Sequence[Any]) -> list[Any]:
        """Make the values again, with other leaves in place of `leaves`."""
        again: list[Any] = copy_objects(
            self._copies, lambda leaf: leaves[leaf.number] if type(leaf) is _LeafPlace else leaf
        )
        return again

    def leaves_of(self, index: int) -> set[int]:
        """Numbers of the leaves of one value."""
        return {
            leaf.number for leaf in iter_contents(self._copies[index]) if type(leaf) is _LeafPlace
        }

    def keep(self, indices: Sequence[int]) -> set[int]:
        """Keep some of the values, and return the numbers of their leaves."""
        kept = set[int]().union(*(self.leaves_of(index) for index in indices))
        self._copies = [self._copies[index] for index in indices]
        self._uncopied = {i: each for i, each in self._uncopied.items() if i in kept}
        return kept

    def changed(self) -> str:
        """Class of an object that could not be copied and holds something else now; or ""."""
        for value, contents in self._uncopied.values():
            if not same_items(contents, [*_contents(value)]):
                return type(value).__name__
        return ""

    def _place(self, leaf: Any) -> _LeafPlace:
        number = self._numbers.setdefault(id(leaf), len(self.leaves))
        if number == len(self.leaves):
            self.leaves.append(leaf)
            if _has_parts(type(leaf)):  # or may have some later
                self._uncopied[number] = leaf, [*_contents(leaf)]
        return _LeafPlace(number)


def copy_objects(value: Any, function: Callable[[Any], Any]) -> Any:
    """Copy containers and objects with what they hold, and apply a function to all else.

    An object that is held twice has one copy, also one that holds itself.
    """
    return _Copying(function).of(value)


class _Copying:
    """One copy; a function inside another that calls itself would hold tensors in a cycle."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._known: dict[int, Any] = {}
        self._waiting: list[tuple[Any, Any, Any]] = []
        """Objects whose parts are still to be copied: chains of objects may be long."""

    def of(self, value: Any) -> Any:
        """Copy a value."""
        sets: list[tuple[Any, list[Any]]] = []
        made_of_value = self._made(value)
        while self._waiting:
            base, item, made = self._waiting.pop()
            parts = [part._replace(value=self._made(part.value)) for part in _parts(item)]
            if base is set:
                sets.append((made, [part.value for part in parts if part.table == "item"]))
            for part in parts:
                if base is not set or part.table != "item":
                    _put(base, made, part)
        for made, members in sets:  # by their hashes, for which they must hold what they hold
            set.update(made, members)
        return made_of_value

    def _made(self, item: Any) -> Any:
        """Copy of an object, whose parts follow later."""
        if _is_tuple(item):
            held = [self._made(each) for each in item]
            is_sequence = hasattr(type(item), "n_sequence_fields")  # of C, as torch.max returns
            return type(item)(held) if is_sequence else tuple.__new__(type(item), held)
        if id(item) not in self._known:
            base = _base_of(item)
            if base is None:
                return self._function(item)
            made = self._known[id(item)] = _empty(base, item)
            self._waiting.append((base, item, made))
        return self._known[id(item)]


def iter_contents(value: Any) -> Iterator[Any]:
    """Yield all that a value holds, with the classes and names of what holds it."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        parts = [*_parts(item)]
        if not parts or id(item) in seen:
            yield item
            continue
        seen.add(id(item))
        yield type(item) if _is_tuple(item) or _base_of(item) is not None else item
        yield from (part.name for part in parts)
        waiting += [part.value for part in parts]


def same_items(old: Sequence[Any], new: Sequence[Any]) -> bool:
    """True if both have the same objects, or equal numbers and texts."""
    return len(old) == len(new) and all(
        a is b or (isinstance(a, int | float | str) and type(a) is type(b) and a == b)
        for a, b in zip(old, new, strict=True)
    )


def version_of(tensor: torch.Tensor) -> int:
    """Number of changes in place; 0 for tensors that do not count them."""
    return 0 if tensor.is_inference() else int(tensor._version)


def _contents(value: Any) -> Iterator[Any]:
    """Yield what an object holds; of a tensor a reference and its version, which hold no memory."""
    for item in iter_contents(value):
        if torch.is_tensor(item):
            yield weakref.ref(item)
            yield version_of(item)
        else:
            yield item


def _is_tuple(item: Any) -> bool:
    return isinstance(item, tuple) and not isinstance(item, torch.Size)


def _is_usual(kind: type) -> bool:
    """True if objects of a class are copied by what they hold: collections are, in any case."""
    if issubclass(kind, MutableMapping | MutableSequence | MutableSet):
        return True
    is_usual = all(getattr(kind, name) is getattr(object, name) for name in _COPYING)
    return is_usual and not hasattr(kind, "__copy__")


def _has_parts(kind: type) -> bool:
    """True if objects of a class have attributes or slots that are looked into.

    Those of torch are not, nor are Python's own handles, such as loggers.
    """
    if issubclass(kind, _OPAQUE) or not kind.__flags__ & _HEAP_TYPE:
        return kind is SimpleNamespace
    home = kind.__module__.partition(".")[0]
    return home != "torch" and (home not in sys.stdlib_module_names or _is_usual(kind))


def _base_of(item: Any) -> Any:
    """Class of which an empty object is made for a copy; None for a leaf."""
    kind = type(item)
    if isinstance(item, _OPAQUE):
        return None
    base = next((each for each in _CONTAINERS if issubclass(kind, each)), object)
    if kind is base and base is not object:
        return base
    if not _has_parts(kind) or (base is object and not _is_usual(kind)):
        return None
    if base is object and not any(_parts(item)):
        return None  # one that holds nothing may be known by its identity
    try:
        _empty(base, item)
    except TypeError:  # a class of C
        return None
    return base


def _empty(base: Any, item: Any) -> Any:
    made = base.__new__(type(item))
    if base is deque:
        deque.__init__(made, (), item.maxlen)
    elif base is defaultdict:
        made.default_factory = item.default_factory
    if _attributes(item) is item:  # a dict whose items are its attributes
        object.__setattr__(made, "__dict__", made)
    return made


def _parts(item: Any) -> Iterator[_HeldPart]:
    if isinstance(item, _OPAQUE):
        return
    for base in _ROWS:
        if isinstance(item, base):
            yield from (_HeldPart("item", i, each) for i, each in enumerate(base.__iter__(item)))
    if isinstance(item, dict):
        entries = (OrderedDict if isinstance(item, OrderedDict) else dict).items(item)
        yield from (_HeldPart("entry", name, each) for name, each in entries)
    kind = type(item)
    if not _has_parts(kind) or isinstance(item, tuple):
        return
    own = _attributes(item)
    if own is not item:
        yield from (_HeldPart("attribute", name, each) for name, each in own.items())
    for each in kind.__mro__:
        for slot in vars(each).values():
            if isinstance(slot, MemberDescriptorType) and each.__flags__ & _HEAP_TYPE:
                try:
                    yield _HeldPart("slot", slot.__name__, slot.__get__(item))
                except AttributeError:  # one that is not filled
                    continue


def _attributes(item: Any) -> dict[str, Any]:
    try:  # not by `getattr`, for which a class may have a method
        own: dict[str, Any] = object.__getattribute__(item, "__dict__")
    except AttributeError:
        return {}
    return own


def _put(base: Any, made: Any, part: _HeldPart) -> None:
    if part.table == "item":
        base.append(made, part.value)
    elif part.table == "entry":
        base.__setitem__(made, part.name, part.value)
    elif part.table == "attribute":
        made.__dict__[part.name] = part.value
    else:
        getattr(type(made), part.name).__set__(made, part.value)

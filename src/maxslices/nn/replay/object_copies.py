"""Copies of containers and of Python objects, with all their contents.

The contents of an object are its items, attributes and slots. Methods of its class may have side
effects, so none is called: neither ``__init__`` nor the methods of a mapping.
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
"""Base classes of containers. A copy starts as an empty object of the first that matches."""
_ROWS: tuple[Any, ...] = (tuple, list, set, deque)
_COPYING = ("__reduce_ex__", "__reduce__", "__new__")
"""Methods with which a class defines its own copying, such as handles and enumeration members."""
_HEAP_TYPE = 1 << 9
"""CPython's flag of classes defined by a class statement."""


class _LeafPlace:
    """Placeholder of a leaf."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


_OPAQUE = (torch.Tensor, torch.Size, nn.Module, type, ModuleType, FunctionType, _LeafPlace)
"""Classes whose contents are not copied. Modules have their own state, and classes are shared."""


class _HeldPart(NamedTuple):
    """Part of the contents of an object."""

    table: Literal["item", "entry", "attribute", "slot"]
    """Where the object stores the part."""
    name: Any
    value: Any


class ObjectCopies:
    """Copies of values with their leaves in a separate list, so that autograd can save tensors.

    Attributes
    ----------
    leaves : list
        Tensors and other objects that are not copied. Each occurs once, since attention compares
        its arguments by identity.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self.leaves: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._uncopied: dict[int, tuple[Any, list[Any]]] = {}
        self._copies: list[Any] = copy_objects([*values], self._place)
        self._numbers.clear()  # the addresses of dropped leaves may be reused

    def rebuild(self, leaves: Sequence[Any]) -> list[Any]:
        """Rebuild the values with other leaves."""
        values: list[Any] = copy_objects(
            self._copies, lambda leaf: leaves[leaf.number] if type(leaf) is _LeafPlace else leaf
        )
        return values

    def leaves_of(self, index: int) -> set[int]:
        """Indices of the leaves of one value."""
        return {
            leaf.number for leaf in iter_contents(self._copies[index]) if type(leaf) is _LeafPlace
        }

    def keep(self, indices: Sequence[int]) -> set[int]:
        """Keep only some of the values, and return the indices of their leaves."""
        kept = set[int]().union(*(self.leaves_of(index) for index in indices))
        self._copies = [self._copies[index] for index in indices]
        self._uncopied = {i: each for i, each in self._uncopied.items() if i in kept}
        return kept

    def changed(self) -> str:
        """Class of an uncopied object whose contents have changed, or ""."""
        for value, contents in self._uncopied.values():
            if not same_items(contents, [*_contents(value)]):
                return type(value).__name__
        return ""

    def _place(self, leaf: Any) -> _LeafPlace:
        number = self._numbers.setdefault(id(leaf), len(self.leaves))
        if number == len(self.leaves):
            self.leaves.append(leaf)
            if _has_parts(type(leaf)):  # the parts may be set later
                self._uncopied[number] = leaf, [*_contents(leaf)]
        return _LeafPlace(number)


def copy_objects(value: Any, function: Callable[[Any], Any]) -> Any:
    """Copy containers and objects with their contents, and apply a function to all leaves.

    An object that occurs more than once, or that contains itself, has one copy.
    """
    return _Copying(function).of(value)


class _Copying:
    """State of one copy. A recursive inner function would keep tensors in a reference cycle."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._copies: dict[int, Any] = {}
        self._waiting: list[tuple[Any, Any, Any]] = []
        """Objects whose parts are not yet copied. A recursion would limit chains of objects."""

    def of(self, value: Any) -> Any:
        """Copy a value."""
        sets: list[tuple[Any, list[Any]]] = []
        whole = self._begin(value)
        while self._waiting:
            base, item, target = self._waiting.pop()
            parts = [part._replace(value=self._begin(part.value)) for part in _parts(item)]
            if base is set:
                sets.append((target, [part.value for part in parts if part.table == "item"]))
            for part in parts:
                if base is not set or part.table != "item":
                    _put(base, target, part)
        for target, members in sets:  # last, as the hash of a member may depend on its contents
            set.update(target, members)
        return whole

    def _begin(self, item: Any) -> Any:
        """Begin the copy of an object, whose parts follow later."""
        if _is_tuple(item):
            items = [self._begin(each) for each in item]
            is_sequence = hasattr(type(item), "n_sequence_fields")  # as torch.max returns
            return type(item)(items) if is_sequence else tuple.__new__(type(item), items)
        if id(item) not in self._copies:
            base = _base_of(item)
            if base is None:
                return self._function(item)
            target = self._copies[id(item)] = _empty(base, item)
            self._waiting.append((base, item, target))
        return self._copies[id(item)]


def iter_contents(value: Any) -> Iterator[Any]:
    """Yield the contents of a value, with the classes and names of the objects that hold them."""
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
    """True if both have the same objects, or equal numbers and strings."""
    return len(old) == len(new) and all(
        a is b or (isinstance(a, int | float | str) and type(a) is type(b) and a == b)
        for a, b in zip(old, new, strict=True)
    )


def version_of(tensor: torch.Tensor) -> int:
    """Number of in-place changes, or 0 for tensors that do not count them."""
    return 0 if tensor.is_inference() else int(tensor._version)


def _contents(value: Any) -> Iterator[Any]:
    """Yield the contents of an object, with a weak reference and a version for each tensor."""
    for item in iter_contents(value):
        if torch.is_tensor(item):
            yield weakref.ref(item)
            yield version_of(item)
        else:
            yield item


def _is_tuple(item: Any) -> bool:
    return isinstance(item, tuple) and not isinstance(item, torch.Size)


def _is_usual(kind: type) -> bool:
    """True if objects of a class are copied by their contents. Collections always are."""
    if issubclass(kind, MutableMapping | MutableSequence | MutableSet):
        return True
    is_usual = all(getattr(kind, name) is getattr(object, name) for name in _COPYING)
    return is_usual and not hasattr(kind, "__copy__")


def _has_parts(kind: type) -> bool:
    """True if attributes and slots of objects of a class are copied.

    Objects of torch are not copied, nor are Python's own handles, such as loggers.
    """
    if issubclass(kind, _OPAQUE) or not kind.__flags__ & _HEAP_TYPE:
        return kind is SimpleNamespace
    package = kind.__module__.partition(".")[0]
    return package != "torch" and (package not in sys.stdlib_module_names or _is_usual(kind))


def _base_of(item: Any) -> Any:
    """Class of the empty object with which a copy starts, or None for a leaf."""
    kind = type(item)
    if isinstance(item, _OPAQUE):
        return None
    base = next((each for each in _CONTAINERS if issubclass(kind, each)), object)
    if kind is base and base is not object:
        return base
    if not _has_parts(kind) or (base is object and not _is_usual(kind)):
        return None
    if base is object and not any(_parts(item)):
        return None  # an empty object may be used for its identity
    try:
        _empty(base, item)
    except TypeError:  # a class implemented in C
        return None
    return base


def _empty(base: Any, item: Any) -> Any:
    empty = base.__new__(type(item))
    if base is deque:
        deque.__init__(empty, (), item.maxlen)
    elif base is defaultdict:
        empty.default_factory = item.default_factory
    if _attributes(item) is item:  # a dict whose items are its attributes
        object.__setattr__(empty, "__dict__", empty)
    return empty


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
                except AttributeError:  # an empty slot
                    continue


def _attributes(item: Any) -> dict[str, Any]:
    try:  # a class may define its own `__getattr__`
        own: dict[str, Any] = object.__getattribute__(item, "__dict__")
    except AttributeError:
        return {}
    return own


def _put(base: Any, target: Any, part: _HeldPart) -> None:
    if part.table == "item":
        base.append(target, part.value)
    elif part.table == "entry":
        base.__setitem__(target, part.name, part.value)
    elif part.table == "attribute":
        target.__dict__[part.name] = part.value
    else:
        getattr(type(target), part.name).__set__(target, part.value)

"""Copies of containers and objects that are arguments of recomputed blocks."""

from __future__ import annotations

import enum
import gc
import logging
import weakref
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from maxslices.nn.replay.nested import map_leaves
from maxslices.nn.replay.object_copies import ObjectCopies, iter_contents, same_items


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class Frozen:
    held: Any


class Plain:
    def __init__(self, held: Any) -> None:
        self.held = held


class Slotted:
    __slots__ = ("__own", "held", "never")

    def __init__(self, held: Any) -> None:
        self.held = held
        self.__own = held

    def __getattr__(self, name: str) -> Any:
        return self.held[name]  # for any name that there is not


class Below(Slotted):
    """Slots of a class and attributes of another."""

    def __init__(self, held: Any) -> None:
        super().__init__(held)
        self.more = [held]


class SelfDict(dict):
    def __init__(self, held: Any) -> None:
        super().__init__(held=held)
        self.__dict__ = self


class Mode(enum.Enum):
    FAST = 1


class Loud(list):
    def append(self, item: Any) -> None:
        raise AssertionError("methods of the class are not called")


def linked(held: Any) -> Plain:
    first = Plain(held)
    for _ in range(5000):
        first = Plain(first)
    return first


HOLDERS = [
    lambda held: [held], lambda held: (1, [held]), lambda held: {"held": held},
    lambda held: Pair(held, [held]), lambda held: OrderedDict(b=held, a=1),
    lambda held: defaultdict(list, {1: held}), lambda held: deque([1, held], maxlen=2),
    lambda held: Counter({"n": held}), lambda held: UserDict({"held": held}),
    lambda held: UserList([held]), lambda held: ChainMap({"a": 1}, {"held": held}),
    lambda held: SimpleNamespace(held=held), lambda held: {Frozen(7), "held"} and [held],
    Frozen, Plain, Slotted, Below, SelfDict, linked, lambda held: Loud([held]),
    lambda held: {"objects": {Plain(held)}}, lambda held: {Frozen((1, held))},
]  # fmt: skip


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_copy_holds_the_same_and_shares_nothing_that_changes(holder):
    tensor = torch.ones(2)
    value = holder(tensor)
    before = [*iter_contents(value)]
    copies = ObjectCopies([value])
    assert any(leaf is tensor for leaf in copies.leaves)
    (rebuilt,) = copies.rebuild(copies.leaves)
    assert type(rebuilt) is type(value)
    assert same_items(before, [*iter_contents(rebuilt)])
    new_leaves = [torch.zeros(2) if leaf is tensor else leaf for leaf in copies.leaves]
    (other,) = copies.rebuild(new_leaves)
    assert not any(item is tensor for item in iter_contents(other))
    assert same_items(before, [*iter_contents(value)])


def test_what_is_held_twice_is_one_object_in_a_copy_also_what_holds_itself():
    shared: list[Any] = [1]
    shared.append(shared)
    copies = ObjectCopies([shared, {"again": shared}])
    first, second = copies.rebuild(copies.leaves)
    assert second["again"] is first is first[1] is not shared


def test_order_bounds_and_defaults_are_those_of_the_original():
    order = OrderedDict(a=1, b=2)
    order.move_to_end("a")
    values = [order, deque([1, 2], maxlen=2), defaultdict(list)]
    copies = ObjectCopies(values)
    rebuilt = copies.rebuild(copies.leaves)
    assert [*rebuilt[0]] == ["b", "a"]
    assert rebuilt[1].maxlen == 2
    assert rebuilt[2]["new"] == []
    assert values[2] == {}


def test_what_is_known_by_its_identity_is_given_itself():
    uncopied = [Mode.FAST, object(), Plain, len, logging.getLogger("a"), torch.float32, None]
    uncopied += [torch.nn.Linear(1, 1), torch.Size([1]), torch.optim.SGD([torch.ones(1)]), Marker()]
    copies = ObjectCopies(uncopied)
    assert all(a is b for a, b in zip(uncopied, copies.rebuild(copies.leaves), strict=True))
    assert copies.changed() == ""


class Marker:
    """Without attributes."""


def test_an_object_without_attributes_that_is_given_some_is_told():
    marker = Marker()
    copies = ObjectCopies([marker])
    marker.seen = 1
    assert copies.changed() == "Marker"


class Handle:
    def __init__(self) -> None:
        self.seen = [torch.ones(1)]

    def __copy__(self) -> Handle:
        return self


@pytest.mark.parametrize(
    "change",
    [lambda h: h.seen.append(1), lambda h: h.seen[0].add_(1), lambda h: vars(h).update(more=1)],
)
def test_an_object_that_says_itself_how_it_is_copied_is_watched(change):
    handle = Handle()
    copies = ObjectCopies([[handle]])
    assert copies.changed() == ""
    change(handle)
    assert copies.changed() == "Handle"


def test_results_of_torch_are_rebuilt():
    copies = ObjectCopies([torch.ones(2, 2).max(0)])
    (rebuilt,) = copies.rebuild([torch.zeros(1), torch.ones(1)])
    assert rebuilt.indices.tolist() == [1.0]


def test_mappings_are_read_without_their_methods():
    class Strict(Mapping):
        def __init__(self, held: Any) -> None:
            self.held = held

        def __getitem__(self, name: str) -> Any:
            raise AssertionError

        def __iter__(self) -> Any:
            raise AssertionError

        def __len__(self) -> int:
            raise AssertionError

    copies = ObjectCopies([Strict([1])])
    (rebuilt,) = copies.rebuild(copies.leaves)
    assert rebuilt.held == [1]


def test_mapping_a_function_leaves_the_original_as_it_was():
    class Items(UserDict):
        __slots__ = ("data",)

    class Slots(MutableMapping):
        __slots__ = ("held",)

        def __init__(self, held: dict[str, Any]) -> None:
            self.held = held

        def __getitem__(self, name: str) -> Any:
            return self.held[name]

        def __setitem__(self, name: str, value: Any) -> None:
            self.held[name] = value

        def __delitem__(self, name: str) -> None:
            del self.held[name]

        def __iter__(self) -> Any:
            return iter(self.held)

        def __len__(self) -> int:
            return len(self.held)

    for kind in (dict, UserDict, Items, Slots):
        items = kind({"x": 1})
        assert map_leaves(lambda x: x + 1, items)["x"] == 2
        assert items["x"] == 1


def test_tensors_are_held_by_what_was_made_alone():
    """A reference cycle would hold them until garbage is collected: one activation in a step."""
    tensor = torch.zeros(3)
    copies = ObjectCopies([[tensor], {"given": tensor}])
    copies.leaves = []
    gc.disable()
    try:
        rebuilt = copies.rebuild([tensor])
        is_alive = weakref.ref(tensor)
        del tensor
        assert is_alive() is rebuilt[0][0]
        del rebuilt
        assert is_alive() is None
    finally:
        gc.enable()

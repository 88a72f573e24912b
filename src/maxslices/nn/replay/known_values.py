"""Values of small tensors, where they follow from integers, constants and buffers of one number.

Code asks for them where it must decide: a transformer leaves its attention mask out if nothing is
masked, a spiking neuron looks at a buffer of one number. Tensors and buffers that were given have
their values, if they are integers or one number: other numbers are data. A `Spec` stands for zeros,
as in the real steps that verify a prediction; that may decide an ``if``, with a note, but never a
size.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from ..nn_errors import DataDependentError
from .allocation_log import user_line

_OWN = os.path.dirname(__file__) + os.sep
_TORCH = os.path.dirname(torch.__file__) + os.sep
_DISTRIBUTIONS = os.path.join(_TORCH, "distributions") + os.sep

MOST_ITEMS = 2**20
"""Items of the largest tensor whose values are followed: a mask of 2048 tokens for 512 sequences.
Each operator on it runs once more, on the host, in about a millisecond."""

_MAKERS = ("aten::arange", "aten::zeros", "aten::ones", "aten::full")
"""Operators whose results follow from numbers alone."""


class _Known(NamedTuple):
    value: torch.Tensor
    is_given: bool
    """False if zeros stand for values that nobody gave."""


class _Facts(NamedTuple):
    """Properties of an operator that decide whether its results can be followed."""

    is_maker: bool
    is_mutable: bool
    is_seeded: bool


@cache
def _facts_of(func: Any) -> _Facts:
    schema = func._schema
    is_seeded = torch.Tag.nondeterministic_seeded in func.tags
    return _Facts(schema.name.startswith(_MAKERS), schema.is_mutable, is_seeded)


class KnownValues:
    """Values of tensors without data.

    Parameters
    ----------
    note : callable
        Called with a remark where a value was assumed.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._known: Any = WeakTensorKeyDictionary()
        self._ids: set[int] = set()
        """Identities of all tensors that were ever known. Others may have some of them by now."""
        self._storages: set[int] = set()
        """Storages of these tensors."""

    def remember(self, made: torch.Tensor, given: torch.Tensor | None) -> None:
        """Keep the values of an input or a buffer, or zeros if only its shape is given."""
        if not _can_be_followed(made) or (made.numel() > 1 and not _is_exact(made)):
            return
        if given is None:
            if _is_exact(made):
                self._keep(made, _Known(torch.zeros(made.shape, dtype=made.dtype), False))
        elif not given.is_meta:
            self._keep(made, _Known(given.detach().cpu(), True))

    def follow(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Compute what an operator made, if all it reads is known."""
        if func in _OF_FINITE and _can_be_followed(made):
            answer = _OF_FINITE[func] if _looks_for_infinity(func, args) else None
            if answer is not None and self._known.get(args[0]) is None:
                finite = torch.full(made.shape, answer)
                self._keep(made, _Known(finite, True))
                return
        facts = _facts_of(func)
        if not (facts.is_maker or self._ids):
            return
        results = made if isinstance(made, tuple | list) else (made,)
        if not any(_can_be_followed(each) for each in results):
            return
        if not (facts.is_maker or facts.is_mutable) and any(map(self._is_unknown, args)):
            return  # most calls: nothing else need be looked at
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        found = [self._known.get(t) if t.is_meta else _Known(t, True) for t in tensors]
        is_known = bool(tensors) or facts.is_maker
        is_known = is_known and all(each is not None for each in found)
        is_known = is_known and not facts.is_seeded
        if facts.is_mutable:
            self._forget(_written(func, args, kwargs))
        if not is_known:
            if func is torch.ops.aten.index.Tensor and found[0] is not None:
                self._pick_any(found[0], made)
            return
        values = iter(found)

        def real(item: Any) -> Any:
            if not isinstance(item, torch.Tensor):
                return item
            value = next(values).value
            return value.clone() if facts.is_mutable else value

        real_args, real_kwargs = tree_map(real, (args, kwargs))
        if real_kwargs.get("device") is not None:
            real_kwargs["device"] = torch.device("cpu")
        computed = func(*real_args, **real_kwargs)
        is_given = all(each.is_given for each in found)
        for each, value in zip(
            results, computed if isinstance(made, tuple | list) else (computed,), strict=True
        ):
            if _can_be_followed(each) and each.shape == value.shape:
                self._keep(each, _Known(value, is_given))

    def _keep(self, tensor: torch.Tensor, known: _Known) -> None:
        """Keep what is known of a tensor."""
        self._known[tensor] = known
        self._ids.add(id(tensor))
        self._storages.add(tensor.untyped_storage()._cdata)

    def _is_unknown(self, item: Any) -> bool:
        """True for a tensor that is certainly not known: identities are never taken out."""
        return isinstance(item, torch.Tensor) and item.is_meta and id(item) not in self._ids

    def _pick_any(self, of: _Known, made: torch.Tensor) -> None:
        """Follow an index that is not known, such as a list, into items that are all the same."""
        items = of.value.flatten()
        if items.numel() and bool((items == items[0]).all()):
            self._keep(made, _Known(items[0].expand(made.shape).clone(), of.is_given))

    def _forget(self, tensors: list[torch.Tensor]) -> None:
        """Drop the values of tensors that share memory with what an operator writes to."""
        written = {t.untyped_storage()._cdata for t in tensors if t.is_meta}
        if self._storages.isdisjoint(written):
            return
        for tensor in list(self._known):
            if tensor.untyped_storage()._cdata in written:
                del self._known[tensor]

    def given(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Values on the host of a tensor without data, if they were given or follow from those."""
        known = self._known.get(tensor) if tensor.is_meta else None
        return known.value if known is not None and known.is_given else None

    def item(self, tensor: torch.Tensor) -> Any:
        """Value of a scalar.

        Raises
        ------
        DataDependentError
            If it is not known, naming the user's line.
        """
        if tensor.dtype == torch.bool:
            valid = _answer_if_valid()
            if valid is not None:
                return valid
        known = self._known.get(tensor)
        if known is not None and not known.is_given and tensor.dtype == torch.bool:
            self._note(
                f"{user_line()} asks for values of an input of which only the shape is given: "
                "zeros were taken; give a tensor to have its own"
            )
            return known.value.item()
        return self.read(tensor).item()

    def equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether two tensors are equal; istft asks so whether its window leaves a gap."""
        valid = _answer_if_valid()
        return valid if valid is not None else torch.equal(self.read(one), self.read(other))

    def number(self, tensor: torch.Tensor) -> Any:
        """Value of a scalar for ``Tensor.item``: one that is not known may be computed with."""
        known = self._known.get(tensor)
        if known is None or not (known.is_given or tensor.dtype == torch.bool):
            return UnknownNumber()
        return self.item(tensor)

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Values that were given, or follow from those that were.

        Raises
        ------
        DataDependentError
            If they are not known, naming the user's line.
        """
        if not tensor.is_meta:
            return tensor
        known = self._known.get(tensor)
        if known is not None and known.is_given:
            value: torch.Tensor = known.value
            return value
        hint = "" if known is None else "; give the inputs of integers as tensors with their values"
        raise _unknown(hint)


def _unknown(hint: str = "") -> DataDependentError:
    return DataDependentError(
        f"{user_line()}: this line needs the value of a tensor (item, float, int, bool or if), so "
        f"what it allocates cannot be known without running it{hint}"
    )


class UnknownNumber:
    """Number that was read from a tensor without data, for logging.

    It can be computed with and printed. What decides by it, or needs it as a size, raises.
    """

    def _same(self, *_: Any) -> Any:
        return self

    def _with(self, other: Any) -> Any:
        return other * 1.0 if isinstance(other, torch.Tensor) else self

    def _refuse(self, *_: Any) -> Any:
        raise _unknown()

    __neg__ = __pos__ = __abs__ = __round__ = _same
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _with
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _with
    __bool__ = __index__ = __int__ = __float__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __eq__ = __ne__ = __floordiv__ = __mod__ = __floor__ = __ceil__ = __trunc__ = _refuse
    __hash__ = object.__hash__

    def __format__(self, spec: str) -> str:
        return format(float("nan"), "" if spec.endswith(("d", "x")) else spec)

    def __repr__(self) -> str:
        return "nan"


_CHECKS = {"__init__": True, "_validate_sample": True, "gaussian_nll_loss": False, "istft": False}
"""Answers by which functions of torch find their arguments valid: the first two are those of
``torch.distributions``."""


def _answer_if_valid() -> bool | None:
    """Answer by which torch's own code finds its arguments valid; None if other code asks."""
    frame = sys._getframe(2)
    while frame is not None:
        name, path = frame.f_code.co_name, frame.f_code.co_filename
        if not path.startswith((_OWN, _TORCH)):
            return None
        if name in _CHECKS and (not name.startswith("_") or path.startswith(_DISTRIBUTIONS)):
            return _CHECKS[name]
        frame = frame.f_back  # type: ignore[assignment]
    return None


_aten = torch.ops.aten
_OF_FINITE = {
    _aten.isnan.default: False,
    _aten.isinf.default: False,
    _aten.eq.Tensor: True,
    _aten.ne.Tensor: False,
    _aten.eq.Scalar: False,
    _aten.ne.Scalar: True,
}
"""Results of the comparisons by which code looks for numbers that are not finite: with itself, or
with infinity. Numbers are taken to be finite."""


def _looks_for_infinity(func: Any, args: Any) -> bool:
    if len(args) < 2:
        return True
    if isinstance(args[1], torch.Tensor):
        return args[0] is args[1]
    return isinstance(args[1], float) and math.isinf(args[1])


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Operands that an operator writes to; others keep their values."""
    parameters = func._schema.arguments
    named = {parameter.name: parameter for parameter in parameters}
    given = [*zip(parameters, args, strict=False), *((named[n], v) for n, v in kwargs.items())]
    return [
        tensor
        for parameter, value in given
        if parameter.alias_info is not None and parameter.alias_info.is_write
        for tensor in tree_leaves(value)
        if isinstance(tensor, torch.Tensor)
    ]


def _can_be_followed(item: Any) -> bool:
    """True for small tensors without data."""
    return isinstance(item, torch.Tensor) and item.is_meta and item.numel() <= MOST_ITEMS


def _is_exact(item: torch.Tensor) -> bool:
    """True for integers and booleans."""
    return not (item.is_floating_point() or item.is_complex())

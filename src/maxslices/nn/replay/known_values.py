"""Values of small tensors that follow from integers, constants and buffers of one number.

Code reads them for decisions: a transformer omits its attention mask if nothing is masked, and a
spiking neuron reads a buffer of one number. Real tensors and buffers have known values if they are
integers or one number. All other numbers are data. A `Spec` has zeros, as in the real steps that
verify a prediction. These may decide an ``if``, with a note, but never a size.
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
"""Most items of a tensor whose values are tracked: a mask of 2048 tokens for 512 sequences. Each
operator on it also runs on the host, in about a millisecond."""

_MAKERS = ("aten::arange", "aten::zeros", "aten::ones", "aten::full")
"""Operators whose results follow from their arguments, none of which is a tensor."""


class _Value(NamedTuple):
    value: torch.Tensor
    is_real: bool
    """False for zeros in place of the unknown values of a `Spec`."""


class _Facts(NamedTuple):
    """Properties of an operator that decide whether its results can be tracked."""

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
        Called with a remark if a value was assumed.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._values: Any = WeakTensorKeyDictionary()
        self._ids: set[int] = set()
        """Identities of all tensors that ever had known values. Python may have reused some."""
        self._storages: set[int] = set()
        """Storages of these tensors."""

    def remember(self, tensor: torch.Tensor, real: torch.Tensor | None) -> None:
        """Store the values of an input or a buffer, or zeros if only its shape is known."""
        if not _is_trackable(tensor) or (tensor.numel() > 1 and not _is_exact(tensor)):
            return
        if real is None:
            if _is_exact(tensor):
                self._store(tensor, _Value(torch.zeros(tensor.shape, dtype=tensor.dtype), False))
        elif not real.is_meta:
            self._store(tensor, _Value(real.detach().cpu(), True))

    def follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Compute the result of an operator, if the values of all operands are known."""
        if func in _OF_FINITE and _is_trackable(result):
            answer = _OF_FINITE[func] if _looks_for_infinity(func, args) else None
            if answer is not None and self._values.get(args[0]) is None:
                self._store(result, _Value(torch.full(result.shape, answer), True))
                return
        facts = _facts_of(func)
        if not (facts.is_maker or self._ids):
            return
        results = result if isinstance(result, tuple | list) else (result,)
        if not any(_is_trackable(each) for each in results):
            return
        if not (facts.is_maker or facts.is_mutable) and any(map(self._is_unknown, args)):
            return  # the quickest check, which is enough for most calls
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        operands = [self._values.get(t) if t.is_meta else _Value(t, True) for t in tensors]
        is_computable = bool(tensors) or facts.is_maker
        is_computable = is_computable and all(each is not None for each in operands)
        is_computable = is_computable and not facts.is_seeded
        if facts.is_mutable:
            self._forget(_written(func, args, kwargs))
        if not is_computable:
            if func is torch.ops.aten.index.Tensor and operands[0] is not None:
                self._pick_any(operands[0], result)
            return
        values = iter(operands)

        def real(item: Any) -> Any:
            if not isinstance(item, torch.Tensor):
                return item
            value = next(values).value
            return value.clone() if facts.is_mutable else value

        real_args, real_kwargs = tree_map(real, (args, kwargs))
        if real_kwargs.get("device") is not None:
            real_kwargs["device"] = torch.device("cpu")
        computed = func(*real_args, **real_kwargs)
        is_real = all(each.is_real for each in operands)
        for each, value in zip(
            results, computed if isinstance(result, tuple | list) else (computed,), strict=True
        ):
            if _is_trackable(each) and each.shape == value.shape:
                self._store(each, _Value(value, is_real))

    def _store(self, tensor: torch.Tensor, value: _Value) -> None:
        self._values[tensor] = value
        self._ids.add(id(tensor))
        self._storages.add(tensor.untyped_storage()._cdata)

    def _is_unknown(self, item: Any) -> bool:
        """True for a tensor whose values are certainly unknown: identities are never removed."""
        return isinstance(item, torch.Tensor) and item.is_meta and id(item) not in self._ids

    def _pick_any(self, operand: _Value, result: torch.Tensor) -> None:
        """Apply an index with unknown values to an operand whose items are all equal."""
        items = operand.value.flatten()
        if items.numel() and bool((items == items[0]).all()):
            self._store(result, _Value(items[0].expand(result.shape).clone(), operand.is_real))

    def _forget(self, tensors: list[torch.Tensor]) -> None:
        """Drop the values of tensors that share memory with the written operands."""
        written = {t.untyped_storage()._cdata for t in tensors if t.is_meta}
        if self._storages.isdisjoint(written):
            return
        for tensor in list(self._values):
            if tensor.untyped_storage()._cdata in written:
                del self._values[tensor]

    def given(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Values on the host of a tensor without data, or None if they are unknown."""
        entry = self._values.get(tensor) if tensor.is_meta else None
        return entry.value if entry is not None and entry.is_real else None

    def item(self, tensor: torch.Tensor) -> Any:
        """Value of a scalar.

        Raises
        ------
        DataDependentError
            If it is unknown, naming the user's line.
        """
        if tensor.dtype == torch.bool:
            valid = _answer_if_valid()
            if valid is not None:
                return valid
        entry = self._values.get(tensor)
        if entry is not None and not entry.is_real and tensor.dtype == torch.bool:
            self._note(
                f"{user_line()} reads values of an input of which only the shape is given. Zeros "
                "were assumed: pass a tensor to use its values"
            )
            return entry.value.item()
        return self.read(tensor).item()

    def equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """True if two tensors are equal. istft checks its window for gaps by this."""
        valid = _answer_if_valid()
        return valid if valid is not None else torch.equal(self.read(one), self.read(other))

    def number(self, tensor: torch.Tensor) -> Any:
        """Value of a scalar for ``Tensor.item``, or an `UnknownNumber`."""
        entry = self._values.get(tensor)
        if entry is None or not (entry.is_real or tensor.dtype == torch.bool):
            return UnknownNumber()
        return self.item(tensor)

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Values of a tensor.

        Raises
        ------
        DataDependentError
            If they are unknown, naming the user's line.
        """
        if not tensor.is_meta:
            return tensor
        entry = self._values.get(tensor)
        if entry is not None and entry.is_real:
            value: torch.Tensor = entry.value
            return value
        raise _unknown("" if entry is None else ". Pass inputs of integers as tensors with values")


def _unknown(hint: str = "") -> DataDependentError:
    return DataDependentError(
        f"{user_line()}: this line needs the value of a tensor (item, float, int, bool or if), so "
        f"its memory cannot be predicted{hint}"
    )


class UnknownNumber:
    """Number read from a tensor without data, for logging.

    It supports arithmetic and printing. Comparisons and uses as a size raise an error.
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
"""Answers with which functions of torch consider their arguments valid. The first two functions are
those of ``torch.distributions``."""


def _answer_if_valid() -> bool | None:
    """Answer that makes a check of torch's own code pass, or None if other code reads the value."""
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
"""Results, for finite numbers, of comparisons with which code detects other numbers: with itself,
or with infinity. All numbers are assumed to be finite."""


def _looks_for_infinity(func: Any, args: Any) -> bool:
    if len(args) < 2:
        return True
    if isinstance(args[1], torch.Tensor):
        return args[0] is args[1]
    return isinstance(args[1], float) and math.isinf(args[1])


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Operands that an operator writes to."""
    parameters = func._schema.arguments
    named = {parameter.name: parameter for parameter in parameters}
    pairs = [*zip(parameters, args, strict=False), *((named[n], v) for n, v in kwargs.items())]
    return [
        tensor
        for parameter, value in pairs
        if parameter.alias_info is not None and parameter.alias_info.is_write
        for tensor in tree_leaves(value)
        if isinstance(tensor, torch.Tensor)
    ]


def _is_trackable(item: Any) -> bool:
    """True for small tensors without data."""
    return isinstance(item, torch.Tensor) and item.is_meta and item.numel() <= MOST_ITEMS


def _is_exact(item: torch.Tensor) -> bool:
    """True for integers and booleans."""
    return not (item.is_floating_point() or item.is_complex())

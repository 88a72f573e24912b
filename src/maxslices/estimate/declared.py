"""The memory model of a method whose author wrote an estimator."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

from ..errors import EstimatorError
from ..model.allocators import Device
from ..model.ledger import LedgerEstimator
from ..model.memory_model import MAX_BYTES, UNREACHABLE_BYTES, MemoryModel
from ..model.section_model import DeclaredModel
from ..model.units import format_bytes
from ..registry.method_meta import MethodMeta
from .model_request import Question


def speaks_of(meta: MethodMeta, device: Device) -> bool:
    """Tell whether a method's estimator knows what happens on a device.

    A ledger knows both; a hand-written ``calc_max_slices`` speaks of CUDA, unless it
    names a keyword ``device``.
    """
    if meta.estimator is None:
        return False
    if device == "cuda" or isinstance(meta.estimator, LedgerEstimator):
        return True
    return "device" in meta.callbacks["calc_max_slices"].told


def declared_model(asked: Question, device: Device) -> MemoryModel:
    """Return the memory model that a method's own estimator stands for.

    A ledger gives it directly. A hand-written ``calc_max_slices`` is inverted by bisection
    on ``available_memory``; it may answer below 0 for amounts smaller than its fixed costs.

    Parameters
    ----------
    asked : Question
        The method with its parameters and data; how many slices there are does not matter.
    device : {"cuda", "cpu"}
        Told to a ledger, and to an estimator that names ``device``.

    Raises
    ------
    EstimatorError
        Naming the method and the call, at once or whenever the model is asked: if the
        estimator raises, does not return a number of slices, returns none however much
        memory there is or some where there is none, fewer for more memory, or if a
        ledger counts nothing.
    """
    meta, slices = asked.meta, (asked.slice_dim, asked.other_dims, asked.dtype)
    if isinstance(meta.estimator, LedgerEstimator):
        return _ledger_model(asked, meta.estimator, device)

    def ask(available_bytes: int) -> int:
        return meta.ask_estimator(*slices, available_bytes, asked.parameters, device=device)[0]

    def called() -> str:
        arguments = "slice_dim={}, other_dims={}, dtype={}".format(*slices)
        given = "".join(f", {name}={value!r}" for name, value in asked.parameters.items())
        return f"{meta.full_name}: its estimator {_name(meta)}({arguments}{given})"

    answers = _Answers(ask, called)
    model = MemoryModel.from_max_slices(answers)
    needed = model.bytes(1)
    if needed >= UNREACHABLE_BYTES:
        raise EstimatorError(
            f"{called()} returns {answers(MAX_BYTES)} slices however much memory there is "
            f"(asked up to {format_bytes(MAX_BYTES)})"
        )
    if needed <= 1:
        raise EstimatorError(
            f"{called()} says that {answers(1)} slices fit in 1 byte: it must depend on "
            "available_memory"
        )
    return model


def declared_models(asked: Question) -> DeclaredModel:
    """Make a method's own estimator a function of device and dims, for tiles and for the host."""
    return lambda device, other_dims: declared_model(replace(asked, other_dims=other_dims), device)


class _Answers:
    """An estimator's answers by available memory; remembers them, and notices contradictions."""

    def __init__(self, ask: Callable[[int], int], called: Callable[[], str]) -> None:
        self._ask = ask
        self._called = called
        self._asked: list[int] = []
        self._n_slices: list[int] = []

    def __call__(self, available_bytes: int) -> int:
        place = bisect_left(self._asked, available_bytes)
        if place < len(self._asked) and self._asked[place] == available_bytes:
            return self._n_slices[place]
        n_slices = self._ask(available_bytes)
        if place > 0:
            self._compare(place - 1, available_bytes, n_slices)
        if place < len(self._asked):
            self._compare(place, available_bytes, n_slices)
        self._asked.insert(place, available_bytes)
        self._n_slices.insert(place, n_slices)
        return n_slices

    def _compare(self, place: int, available_bytes: int, n_slices: int) -> None:
        other = self._asked[place], self._n_slices[place]
        (less, fewer), (more, most) = sorted([other, (available_bytes, n_slices)])
        if fewer > most:
            raise EstimatorError(
                f"{self._called()} says {fewer} slices for {less} bytes, but {most} for {more}: "
                "more memory can never fit fewer slices"
            )


def _ledger_model(asked: Question, estimator: LedgerEstimator, device: Device) -> MemoryModel:
    meta, slices = asked.meta, (asked.slice_dim, asked.other_dims, asked.dtype)
    merged = meta.merged(**asked.parameters)
    hidden = meta.callbacks["calc_max_slices"].hidden
    given = {name: value for name, value in merged.items() if name not in hidden}
    model = estimator.model(*slices, device, **given)

    def guarded(ask: Callable[[int], int]) -> Callable[[int], int]:
        def answer(n: int) -> int:
            try:
                return ask(n)
            except (Exception, SystemExit) as error:
                arguments = "slice_dim={}, other_dims={}, dtype={}".format(*slices)
                said = f"its ledger {_name(meta)} raised {type(error).__name__}: {error}"
                if isinstance(error, ValueError):  # so it refuses parameters
                    said = f"{error}; said by its ledger {_name(meta)}"
                raise EstimatorError(
                    f"{meta.full_name}: {said} (for {n} slices, {arguments}, "
                    f"device={device}, parameters {merged})"
                ) from error

        return answer

    checked = MemoryModel(guarded(model.bytes), guarded(model.kept_bytes))
    if checked.bytes(1) == 0:
        raise EstimatorError(
            f"{meta.full_name}: its ledger {_name(meta)} counts no memory for a slice: it must "
            "count everything that is alive during the call, input and output included"
        )
    return checked


def _name(meta: MethodMeta) -> str:
    return getattr(meta.estimator, "__name__", repr(meta.estimator))

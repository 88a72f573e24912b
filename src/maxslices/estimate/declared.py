"""The memory model of a method whose author wrote an estimator."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from ..errors import EstimatorError
from ..model.allocators import Device
from ..model.ledger import LedgerEstimator
from ..model.memory_model import MAX_BYTES, UNREACHABLE_BYTES, MemoryModel
from ..model.section_model import DeclaredModel, SectionModel, StepModel
from ..model.tiling import Tiling
from ..model.units import format_bytes
from ..registry.author_lines import defined_at, raised_at
from ..registry.method_meta import MethodMeta
from .model_request import ModelRequest

_N_ASKED = 64
"""Amounts of memory that an estimator is asked about below what a planned block takes, and as many
from there to what is available: a dip of a 64th of these is found. Of 72 made-up estimators that
rise and fall, 55 contradicted themselves while a model was made of them."""


def speaks_of(meta: MethodMeta, device: Device) -> bool:
    """True if a method's estimator describes a device.

    A ledger describes both; a hand-written ``calc_max_slices`` describes CUDA, unless it
    names a keyword ``device``.
    """
    if meta.estimator is None:
        return False
    if device == "cuda" or isinstance(meta.estimator, LedgerEstimator):
        return True
    return "device" in meta.callbacks["calc_max_slices"].told


def declared_model(request: ModelRequest, device: Device) -> MemoryModel:
    """Memory model of a method whose author declared an estimator.

    A ledger gives it directly. A hand-written ``calc_max_slices`` is inverted by bisection
    on ``available_memory``; it may answer below 0 for amounts smaller than its fixed costs.

    Parameters
    ----------
    request : ModelRequest
        The method with its parameters and data; the number of slices does not matter.
    device : {"cuda", "cpu"}
        Told to a ledger, and to an estimator that names ``device``.

    Raises
    ------
    EstimatorError
        At once, or later from the model's methods; the text names the method and the call. The
        estimator raised, did not return a number of slices, returned 0 for any amount of
        memory, some slices for one byte or fewer for more memory; or the ledger counted nothing.
    """
    meta, slices = request.meta, (request.slice_dim, request.other_dims, request.dtype)
    if isinstance(meta.estimator, LedgerEstimator):
        return _ledger_model(request, meta.estimator, device)

    bound = meta.bound_estimator(*slices, request.parameters, device=device)

    def ask(available_bytes: int) -> int:
        return bound(available_bytes)[0]

    def called() -> str:
        arguments = "slice_dim={}, other_dims={}, dtype={}".format(*slices)
        given = "".join(f", {name}={value!r}" for name, value in request.parameters.items())
        place = defined_at(meta.estimator)
        return f"{meta.full_name}: its estimator {_name(meta)}({arguments}{given}){place}"

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


def declared_models(request: ModelRequest) -> DeclaredModel:
    """Make a method's own estimator a function of device and dims, for tiles and for the host."""
    return lambda device, other_dims: declared_model(
        replace(request, other_dims=other_dims), device
    )


class PlannedStep(Protocol):
    """What a plan says of a method, as far as its estimator is asked about it."""

    @property
    def tile(self) -> tuple[int, int] | None: ...  # noqa: D102
    @property
    def tile_halo(self) -> tuple[int, int]: ...  # noqa: D102
    @property
    def on_host(self) -> bool: ...  # noqa: D102


class PlannedSection(Protocol):
    """What a plan says of a section, as far as estimators are asked about it."""

    @property
    def steps(self) -> Sequence[PlannedStep]: ...  # noqa: D102
    @property
    def slice_dim(self) -> int: ...  # noqa: D102
    @property
    def n_slices(self) -> int: ...  # noqa: D102
    @property
    def halo(self) -> tuple[int, int]: ...  # noqa: D102
    @property
    def block(self) -> int: ...  # noqa: D102
    @property
    def estimated_bytes(self) -> int: ...  # noqa: D102
    @property
    def available_bytes(self) -> int: ...  # noqa: D102


def check_planned(models: Sequence[SectionModel], planned: Sequence[PlannedSection]) -> None:
    """Ask the authors' estimators again about the blocks that a plan has.

    A model is made of few answers, and an estimator that now rises and now falls may have given
    none that contradict each other. A plan rests on two of them: a block fits in what the model
    says, and in that with all that the plan leaves free. Both are asked for, so that it keeps to
    the budget if they are true, whatever the estimator says of other amounts. Of these some are
    asked for too, as who contradicts himself is not to be believed.

    Parameters
    ----------
    models : sequence of SectionModel
        Models that the plan was made of.
    planned : sequence of PlannedSection
        The plan's sections, in the same order.

    Raises
    ------
    EstimatorError
        Naming the method and two answers that contradict each other.
    """
    for model, section in zip(models, planned, strict=True):
        extra = sum(section.halo)
        blocks = {section.block}
        blocks |= {section.n_slices % block for block in blocks} - {0}
        given = sorted({min(block + extra, section.n_slices) for block in blocks})
        for step, made in zip(model.steps, section.steps, strict=True):
            if step.estimator.startswith("recorded") and not step.looked_at:
                _check_record(step, section.slice_dim, given[-1], section.block)
            if step.declared is None or not step.estimator.startswith("declared"):
                continue
            dims = step.input.other_dims(section.slice_dim)
            if made.tile is not None:
                dims = Tiling(dims, made.tile, made.tile_halo).given_dims
            declared = step.declared("cpu" if made.on_host else model.device, dims)
            # What is free on the host is not known here: on it the first of the two must do.
            free = 0 if made.on_host else section.available_bytes - section.estimated_bytes
            asked = [step.looked_at] if step.looked_at else given
            _check_blocks(step.method, declared, asked, free, section.available_bytes)


def _check_record(step: StepModel, slice_dim: int, n_given: int, block: int) -> None:
    """Check that a record is not of fewer bytes than the method's input, which a peak includes.

    A record in a folder that others write to may say anything, and a plan by it would take any
    multiple of the memory that it is allowed.
    """
    input_bytes = step.input.with_slices(slice_dim, n_given).nbytes
    recorded_bytes = step.memory.bytes(block)
    if recorded_bytes < input_bytes:
        raise EstimatorError(
            f"{step.method}: its record says {format_bytes(recorded_bytes)} for {n_given} slices, "
            f"which are {format_bytes(input_bytes)} by themselves: measure it anew with "
            "--estimator probed, or remove the record (maxslices records)"
        )


def _check_blocks(
    method: str, model: MemoryModel, blocks: Sequence[int], free_bytes: int, available_bytes: int
) -> None:
    """Check what a model says of some blocks, in increasing order."""
    needed = [model.bytes(block) for block in blocks]
    if model.inverse is not None:  # which compares its answers with each other
        for n_bytes in needed:
            model.inverse(n_bytes + free_bytes)
        least, last = min(needed), max(*needed, available_bytes)
        for begin, end in ((min(model.bytes(1), least // 2), least), (least, last)):
            for i in range(_N_ASKED + 1):
                model.inverse(max(1, begin + (end - begin) * i // _N_ASKED))
    most = max(needed)
    if most > needed[-1] and most > available_bytes:
        raise EstimatorError(
            f"{method}: its estimator says {format_bytes(most)} for {blocks[needed.index(most)]} "
            f"slices, but {format_bytes(needed[-1])} for {blocks[-1]}, and "
            f"{format_bytes(available_bytes)} may be used: more slices can never take less memory"
        )


class _Answers:
    """An estimator's answers by available memory: cached, and checked against each other."""

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


def _ledger_model(request: ModelRequest, estimator: LedgerEstimator, device: Device) -> MemoryModel:
    meta, slices = request.meta, (request.slice_dim, request.other_dims, request.dtype)
    merged = meta.merged(**request.parameters)
    hidden = meta.callbacks["calc_max_slices"].hidden
    given = {name: value for name, value in merged.items() if name not in hidden}
    model = estimator.model(*slices, device, **given)

    def guarded(ask: Callable[[int], int]) -> Callable[[int], int]:
        def answer(n: int) -> int:
            try:
                return ask(n)
            except (Exception, SystemExit) as error:
                arguments = "slice_dim={}, other_dims={}, dtype={}".format(*slices)
                place = raised_at(error, estimator)
                said = f"its ledger {_name(meta)} raised {type(error).__name__}: {error}{place}"
                if isinstance(error, ValueError):  # so it refuses parameters
                    said = f"{error}; said by its ledger {_name(meta)}{place}"
                raise EstimatorError(
                    f"{meta.full_name}: {said} (for {n} slices, {arguments}, "
                    f"device={device}, parameters {merged})"
                ) from error

        return answer

    checked = MemoryModel(guarded(model.bytes), guarded(model.kept_bytes))
    if checked.bytes(1) == 0:
        raise EstimatorError(
            f"{meta.full_name}: its ledger {_name(meta)}{defined_at(estimator)} counts no memory "
            "for a slice: it must "
            "count everything that is alive during the call, input and output included"
        )
    return checked


def _name(meta: MethodMeta) -> str:
    return getattr(meta.estimator, "__name__", repr(meta.estimator))

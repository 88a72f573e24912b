"""Search of the largest size that fits: predicted on one model of bytes, then run on the device."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

from ...core.units import format_bytes
from ..memory_budget import MemoryBudget
from ..nn_errors import TooLargeError
from ..replay import StepFamily
from ..replay.measure_workspaces import measured_workspaces
from ..step.model_step import ModelStep
from .answers import SearchLog, VerifiedStep
from .real_step import verified_step

MOST = 2**20
"""Largest number that is searched: beyond it a step does not grow with its batch."""
ROUNDS = 4
"""Maximum number of sizes at which workspaces are measured. Each size is predicted with the
workspaces measured so far; cuDNN changes kernels with the batch size (for ViT-B/16 between 192 and
224 images on an H200), so the prediction may move each time."""
STEP_DOWN = 0.005
"""Part of the limit given up when a step that was predicted to fit runs out of memory; twice as
much each time that it happens again. For VGG16-BN, ResNet50 and ViT-B/16 on an H200, such steps had
been predicted to leave 3 to 18 MiB; of ResNet50 262 images in 24 GB did not run, and 261 did."""

Size = TypeVar("Size", int, tuple[int, ...])
"""Batch size, or shape of a patch."""


class SizeSearch(ABC, Generic[Size]):
    """Sizes of a step's inputs, each of which is a number of some `StepFamily`."""

    kind: ClassVar[Literal["batch size", "patch shape"]]
    smaller: ClassVar[str]
    """Part of a step that may be smaller where the least size does not fit."""

    def __init__(self, step: ModelStep, budget: MemoryBudget, least: Size) -> None:
        self.step, self.budget = step, budget
        self.least: Size = least
        self.began = time.perf_counter()
        self.calibration_s = 0.0

    @abstractmethod
    def inputs(self, size: Size) -> Sequence[Any]:
        """Arguments of the model of a size."""

    @abstractmethod
    def largest(self, limit_bytes: int, failed: Size | None = None) -> Size | None:
        """Largest size predicted to run within a limit; None if the least does not.

        Given one that failed, those below it are searched.
        """

    @abstractmethod
    def at_bound(self, size: Size) -> bool:
        """True if a size is the bound of the search."""

    @abstractmethod
    def with_factor(self, predicted: Size, safety_factor: float) -> Size:
        """Size that leaves a part of the memory, and is that part of the predicted one at least."""

    @abstractmethod
    def place(self, size: Size) -> tuple[StepFamily, int]:
        """Family of a size, and its number there."""

    @abstractmethod
    def least_text(self) -> str:
        """Text for the least size."""

    def notes(self, asked: Size) -> tuple[str, ...]:
        """Remarks on the answer."""
        return self.place(asked)[0].notes

    def try_larger(self, ran: Size, failed: Size | None, tried: list[VerifiedStep]) -> None:
        """Run larger sizes than one that ran, up to one that failed or beyond all bounds."""

    def measured(self, family: StepFamily, bound: int) -> StepFamily:
        """Family with the workspaces of the device, if there is one.

        cuDNN uses other kernels for large batches, so workspaces are measured at the predicted
        size, and the prediction is repeated with them.
        """
        if self.budget.device is None:
            return family
        limit_bytes = self.budget.limit_bytes
        n, measured = max(1, family.largest(limit_bytes, bound)), set[int]()
        while n and n not in measured and len(measured) < ROUNDS:
            workspaces, seconds = measured_workspaces(family.calls(n), self.budget.device)
            measured.add(n)
            self.calibration_s += seconds
            family = family.with_workspaces(workspaces)
            n = family.largest(limit_bytes, bound)
        return family

    def answer(self, safety_factor: float) -> SearchLog:
        """Predict the largest size, and verify it if there is a device.

        Without a factor, larger ones are tried there too.

        Raises
        ------
        TooLargeError
            If the least size does not fit.
        """
        predicted = self.largest(self.budget.limit_bytes)
        if predicted is None:
            raise self.too_large()
        at_bound = self.at_bound(predicted)
        has_factor = safety_factor < 1 and not at_bound
        asked = self.with_factor(predicted, safety_factor) if has_factor else predicted
        family, n = self.place(asked)
        log = SearchLog(
            self.kind,
            self.step.mode,
            self.budget.limit_bytes,
            self.budget.origin,
            predicted,
            asked,
            family.allocated_bytes(n),
            (),
            family.workspaces.origin,
            time.perf_counter() - self.began - self.calibration_s,
            self.calibration_s,
            at_bound,
            self.notes(asked),
            safety_factor if has_factor else 1.0,
        )
        if self.budget.device is None:
            return log
        return replace(log, tried=tuple(self._verified(asked, safety_factor == 1)))

    def _verified(self, size: Size, has_all: bool) -> list[VerifiedStep]:
        """Run steps of smaller and smaller sizes until one runs."""
        tried: list[VerifiedStep] = []
        limit_bytes = self.budget.limit_bytes
        part, step_down = 1.0, STEP_DOWN
        failed: Size | None = None
        while not self.runs(size, tried):
            if size == self.least:
                raise self.too_large()
            failed = size
            while size == failed:
                part, step_down = part - step_down, 2 * step_down
                smaller = self.largest(int(limit_bytes * part), failed) if part > 0 else None
                size = smaller or self.least
        if failed is not None or has_all:
            self.try_larger(size, failed, tried)
        return tried

    def runs(self, size: Size, tried: list[VerifiedStep]) -> bool:
        """Run a step of a size, and enter it among those tried."""
        device, limit_bytes = self.budget.device, self.budget.limit_bytes
        assert device is not None
        tried.append(verified_step(self.step, size, self.inputs(size), device, limit_bytes))
        return tried[-1].fits

    def too_large(self) -> TooLargeError:
        """Error that the least size does not fit."""
        family, n = self.place(self.least)
        return TooLargeError(
            f"{self.least_text()} does not fit: it needs {format_bytes(family.needed_bytes(n))}, "
            f"and there are {format_bytes(self.budget.limit_bytes)} ({self.budget.origin}); "
            f"take a smaller {self.smaller} or model, or a card with more memory"
        )

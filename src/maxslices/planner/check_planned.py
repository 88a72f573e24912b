"""Estimators and records that a plan was made of, held against the blocks that it has."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.memory_model import MemoryModel
from ..core.units import format_bytes
from ..errors import EstimatorError
from ..estimate.section_model import SectionModel, StepModel
from .section_plan import SectionPlan

_N_ASKED = 64
"""Amounts of memory that an estimator is asked about below what a planned block takes, and as many
from there to what is available: a dip of a 64th of these is found. Of 72 made-up estimators that
rise and fall, 55 contradicted themselves while a model was made of them."""


def check_planned(models: Sequence[SectionModel], planned: Sequence[SectionPlan]) -> None:
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
    planned : sequence of SectionPlan
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
        for step in model.steps:
            if step.estimator.startswith("recorded") and not step.looked_at:
                _check_record(step, section.slice_dim, given[-1], section.block)
            if step.declared is None or not step.estimator.startswith("declared"):
                continue
            free = section.available_bytes - section.estimated_bytes
            asked = [step.looked_at] if step.looked_at else given
            _check_blocks(step.method, step.declared(), asked, free, section.available_bytes)


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

"""Ways to make a section fit: tiles, and methods or side data on the host.

No method is replaced by another. Tiles give the same bits; a method on the host may round
differently from the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import ceil, prod
from typing import Literal

from ..core.allocators import CUDA_GRANULE_BYTES
from ..core.block_memory import UPLOAD_PIECE_BYTES, UPLOAD_PIECES, upload_staging
from ..core.memory_model import MemoryModel
from ..core.units import format_bytes
from ..errors import UsageError
from ..estimate.section_model import SectionModel, StepModel
from ..estimate.tiling import Tiling
from .block_size import BlockChoice, wanted_block
from .budgets import Available
from .placement import Placement

FitChoice = Literal["none", "auto"]
MIN_TILE = 32
"""Least pixels along a tile's side: smaller tiles are mostly halo and launches."""
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of parts that a slice may be cut into along each dim: steps of a third to a half, so that
the best is missed by little and few are tried."""
MAX_FACTOR = 16.0
"""Most pixels computed in tiles for each pixel of a slice. Twice `HOST_FACTOR`: methods that cannot
run on the host may take more work than that."""
HOST_FACTOR = 8.0
"""Assumed ratio of a method's time on the host to its time on the device. It only chooses between
tiles and the host; methods are not timed for it."""
WASTEFUL = 2.0
"""Slices computed for each slice of a block, above which tiles are considered: most of the work is
then for the halo."""


def check_fit(fit: FitChoice) -> None:
    """Check a choice as a user gives it.

    Raises
    ------
    UsageError
        If it is neither "none" nor "auto".
    """
    if fit not in ("none", "auto"):
        raise UsageError(f"fit must be 'none' or 'auto', not {fit!r}")


def fit_section(
    placement: Placement, available: Available, block: BlockChoice
) -> SectionModel | None:
    """Section with what makes it fit, at the least work found.

    A section stays as it is if it fits and its halo is not most of what it computes.

    Parameters
    ----------
    placement : Placement
        The section, with its places.
    available : Available
        Memory that it may take.
    block : int, "auto" or "max"
        Slices in a block; a number must fit.

    Returns
    -------
    SectionModel or None
        None if nothing makes it fit.
    """
    placement = replace(placement, overlaps=True)  # it may be in turns because it did not fit
    starts = [placement.section]
    if _side_can_move(placement):
        starts.append(_with_side_on_host(placement.section))
    for section in starts:
        found = _fit_steps(replace(placement, section=section), available, block)
        if found is not None:
            return found
    return None


def what_was_done(section: SectionModel) -> tuple[str, ...]:
    """What makes a section fit, and what that costs, a line each."""
    lines = []
    for each in section.steps:
        name = each.name
        if each.tiling is not None:
            more = 100 * (each.tiling.factor - 1)
            share = f": {more:.2g} % more pixels are computed" if more > 0 else ""
            lines.append(f"{name} works in {each.tiling}{share}")
        if each.on_host:
            moved = section.block_of(each.input).bytes(1) + section.block_of(each.output).bytes(1)
            lines.append(
                f"{name} runs on the host, about as much slower as that is: {format_bytes(moved)} "
                "cross the link for one slice, and its last digits may be others"
            )
    side_bytes = section.host_side.bytes(1)
    if side_bytes:
        lines.append(
            f"flats and darks stay on the host: {format_bytes(side_bytes)} go to the device with "
            "every block"
        )
    return tuple(lines)


def least_fit(
    placement: Placement, available: Available, block: BlockChoice
) -> tuple[int, SectionModel] | None:
    """Least memory on the device with which a section can be made to fit, and the section then.

    None if that is no less than the section takes as it is, or if host memory is missing.
    """
    starts = [placement.section]
    if _side_can_move(placement):
        starts.append(_with_side_on_host(placement.section))
    for may_move in (True, False):  # host memory may be short; tiles need none of it
        leanest = (_leanest(replace(placement, section=start), may_move) for start in starts)
        needed = min(each.in_turns().device_bytes(1) for each in leanest)
        if needed < placement.in_turns().device_bytes(1):
            found = fit_section(placement, replace(available, device_bytes=needed), block)
            if found is not None:
                return needed, found
    return None


def _leanest(placement: Placement, may_move: bool) -> Placement:
    """Placement with each step as it takes least on the device."""
    section, steps = placement.section, []
    for own in section.steps:
        others = (each for each, _ in _candidates(section, own, placement))
        tried = [own, *(each for each in others if may_move or not each.on_host)]
        steps.append(min(tried, key=lambda each: each.peak_bytes(1)))
    return replace(placement, section=section.with_steps(tuple(steps)))


def _fit_steps(
    placement: Placement, available: Available, block: BlockChoice
) -> SectionModel | None:
    """Fit one step after the other, the one with the highest peak first."""
    section = placement.section
    nothing = MemoryModel.linear(0, 0)
    # Steps that are not fitted yet count as nothing, or no step would ever fit beside another.
    steps = [replace(each, memory=nothing) for each in section.steps]
    order = sorted(range(len(steps)), key=lambda i: -section.steps[i].peak_bytes(1))
    for index in order:

        def work(candidate: StepModel, index: int = index) -> float | None:
            tried = [*steps[:index], candidate, *steps[index + 1 :]]
            return _work(placement, section.with_steps(tuple(tried)), candidate, available, block)

        own = section.steps[index]
        best, least = own, work(own)
        if least is None or least > WASTEFUL:
            limit, must = (float("inf"), True) if least is None else (least / 1.5, False)
            for candidate, factor in _candidates(section, own, placement):
                # The host rounds differently, so it is only for what does not fit otherwise.
                if factor >= limit or (candidate.on_host and not must):
                    continue
                needed = work(candidate)
                if needed is not None and needed < limit:
                    best, limit, least = candidate, needed, needed
        if least is None:
            return None
        steps[index] = best
    found = section.with_steps(tuple(steps))
    moved = [each for each in found.steps if each.on_host]
    if moved:
        models = [_host_model(found, each) for each in moved]
        found = replace(found, on_host=found.on_host + MemoryModel.maximum(models))
    return found if fitted_block(replace(placement, section=found), available, block) else None


def _work(
    placement: Placement,
    section: SectionModel,
    step: StepModel,
    available: Available,
    block: BlockChoice,
) -> float | None:
    """Slices computed for each slice of a block, halo included; None if it does not fit."""
    size = fitted_block(replace(placement, section=section), available, block)
    if not size:
        return None
    given = min(size + sum(section.halo), section.n_slices)
    factor = 1.0 if step.tiling is None else step.tiling.factor
    return factor * (HOST_FACTOR if step.on_host else 1.0) * given / size


def fitted_block(placement: Placement, available: Available, block: BlockChoice) -> int:
    """Block that a section would have; 0 if it does not fit."""
    largest = available.max_block(available.settled(placement))
    wanted = wanted_block(block, placement.section, placement.n_workers)
    if not isinstance(block, str):
        return wanted if largest >= wanted else 0
    return min(largest, wanted)


def _candidates(
    section: SectionModel, own: StepModel, placement: Placement
) -> Iterator[tuple[StepModel, float]]:
    """A step in tiles and on the host, each with its factor of work, in ascending order."""
    tilings = sorted(_tilings(section, own), key=lambda each: (each.factor, each.n_tiles))
    on_host = placement.device != "cpu" and own.runs_on_host and own.declared is not None
    for tiling in tilings:
        if on_host and tiling.factor > HOST_FACTOR:
            break
        yield _in_tiles(section, own, tiling), tiling.factor
    if on_host:
        yield _on_host(section, own), HOST_FACTOR


def _tilings(section: SectionModel, own: StepModel) -> Iterator[Tiling]:
    margin = None if own.tile_halo is None else own.tile_halo()
    if margin is None:
        return
    dims = own.input.other_dims(section.slice_dim)
    for parts in product(PARTS, PARTS):
        tiling = Tiling.into(dims, parts, margin)
        is_small = any(
            n_parts > 1 and size < MIN_TILE
            for n_parts, size in zip(parts, tiling.tile, strict=True)
        )
        if parts != (1, 1) and not is_small and tiling.factor <= MAX_FACTOR:
            yield tiling


def _in_tiles(section: SectionModel, own: StepModel, tiling: Tiling) -> StepModel:
    """Step that is given tiles: its whole input and output are on the device beside a tile."""
    dims = tiling.given_dims
    assert own.declared is not None  # or there are no tiles
    model = own.declared(section.device, dims)
    itemsize = min(own.input.dtype.itemsize, own.output.dtype.itemsize)
    model = section.allocator.method(model, prod(dims) * itemsize, section.n_slices)
    model = model.widened(sum(section.halo), section.n_slices)
    whole = section.block_of(own.input) + section.block_of(own.output)
    share = prod(dims) / prod(tiling.dims)
    return replace(own, memory=whole + model + _own_side(section, own, share), tiling=tiling)


def _on_host(section: SectionModel, own: StepModel) -> StepModel:
    """Step that runs on the host: only its input and output are on the device."""
    # Its result; or, for side results, a copy: a block without its halo may have gaps.
    beside = own.input if own.gives_side_results else own.output
    model = section.block_of(own.input) + section.block_of(beside)
    return replace(own, memory=model, on_host=True)


def _host_model(section: SectionModel, own: StepModel) -> MemoryModel:
    """Memory model of a step on the host."""
    assert own.declared is not None  # or it does not run there
    model = own.declared("cpu", own.input.other_dims(section.slice_dim))
    if own.looked_at:
        n_bytes = model.bytes(own.looked_at)
        model = MemoryModel(lambda n: n_bytes)
    return model.widened(sum(section.halo), section.n_slices).plus(
        upload_staging(UPLOAD_PIECES * UPLOAD_PIECE_BYTES).total_bytes
    )


def _side_can_move(placement: Placement) -> bool:
    """True if flats and darks may stay on the host: in sections of projections."""
    section = placement.section
    return placement.device != "cpu" and section.slice_dim == 0 and section.side.bytes(1) > 0


def _with_side_on_host(section: SectionModel) -> SectionModel:
    """Section whose side data are on the device only during the methods that take them."""
    moved = replace(section, side=MemoryModel.linear(0, 0), host_side=section.side)
    steps = [
        replace(each, memory=each.memory + _own_side(moved, each, 1.0)) for each in section.steps
    ]
    return moved.with_steps(tuple(steps))


def _own_side(section: SectionModel, own: StepModel, share: float) -> MemoryModel:
    """Model of the flats and darks of a step that are on the device only while it runs."""
    whole = section.host_side.bytes(1)
    if not whole or not own.takes_frames:
        return MemoryModel.linear(0, 0)
    n_bytes = whole if share == 1.0 else ceil(share * whole) + 2 * CUDA_GRANULE_BYTES
    return MemoryModel(lambda n: n_bytes)

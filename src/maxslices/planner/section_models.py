"""Make the models of all sections of a pipeline on a scan, measuring methods if necessary."""

from __future__ import annotations

from functools import partial

from ..core.allocators import ArrayAllocator
from ..core.arrays import ArraySpec, block_shape
from ..core.memory_model import MemoryModel
from ..estimate.model_request import ModelRequest
from ..estimate.model_resolver import ModelResolver, declared_model
from ..pipeline import Pipeline, ScanSpec, Section, Step, cut_into_sections
from ..pipeline.requirements import check_shapes, check_supplied, scan_after
from ..system.plain_records import plain
from .section_model import SectionModel, StepModel


def section_models(
    pipeline: Pipeline, scan: ScanSpec, resolver: ModelResolver
) -> tuple[SectionModel, ...]:
    """Cut a pipeline into sections, and find the memory model of each method.

    Shape and dtype are derived from the scan through all methods. Methods without an estimator may
    be run on a few slices.

    Raises
    ------
    EstimatorError
        If a method's estimator fails, or its memory is unknown.
    SourceError
        If the scan lacks flats, darks or angles that a method needs, or their shape differs from
        the data.
    """
    check_supplied(pipeline, scan)
    with_torch = any(step.meta.array_module == "torch" for step in pipeline.steps)
    allocator = ArrayAllocator(resolver.device, with_torch)
    models: list[SectionModel] = []
    current, index = scan.projections, 0
    for section in cut_into_sections(pipeline, reads_rows=scan.reads_rows):
        slice_dim, extra = section.slice_dim, sum(section.halo)
        total = current.shape[slice_dim]
        steps: list[StepModel] = []
        supplied: dict[ScanSpec, set[str]] = {}
        for step in section.steps:
            step_scan = scan_after(pipeline.steps, index, scan)
            check_shapes(step, current, step_scan)
            supplied.setdefault(step_scan, set()).update(step.meta.supplied)
            steps.append(_step_model(step, index, current, section, resolver, allocator))
            current, index = steps[-1].output, index + 1
        frames = [spec for step_scan, names in supplied.items() for spec in step_scan.frames(names)]
        side = _side_model(frames, slice_dim, total, allocator).widened(extra, total)
        models.append(SectionModel(slice_dim, section.halo, tuple(steps), side, allocator))
    return tuple(models)


def _step_model(
    step: Step,
    index: int,
    current: ArraySpec,
    section: Section,
    resolver: ModelResolver,
    allocator: ArrayAllocator,
) -> StepModel:
    slice_dim, extra = section.slice_dim, sum(section.halo)
    other_dims, total = current.other_dims(slice_dim), current.shape[slice_dim]
    meta, parameters = step.meta, step.known_parameters()
    # First, because it raises for unknown references, which must be known before measuring.
    n_sampled = len(meta.sampled_range(total, **parameters))
    of_model = parameters if resolver.asks_author(meta) else step.measured_parameters()
    request = ModelRequest(meta, slice_dim, other_dims, current.dtype, of_model, total)
    chosen = resolver.resolve(request)
    output = current
    if not meta.side_results:
        dtype, dims = chosen.output_dtype, chosen.output_dims
        if dtype is None:
            dtype = meta.output_dtype(*request.slices, **parameters)
        if dims is None:
            dims = meta.output_other_dims(slice_dim, other_dims, **parameters)
        output = ArraySpec(block_shape(slice_dim, total, dims), dtype)
    model = chosen.model
    if chosen.origin != "replayed":  # a replay simulates the allocator with its unsplit blocks
        one_slice = min(spec.with_slices(slice_dim, 1).nbytes for spec in (current, output))
        model = allocator.method(model, one_slice, total)
    merged = meta.merged(**parameters)

    return StepModel(
        index=index,
        method=meta.full_name,
        parameters={name: plain(value) for name, value in step.parameters.items()},
        planned_values={name: plain(value) for name, value in step.planned_values.items()},
        input=current,
        output=output,
        memory=model.widened(extra, total),
        estimator=chosen.origin,
        why=chosen.why,
        n_sampled=n_sampled,
        pace_s=chosen.pace_s,
        least_block=1 if isinstance(chosen.blocks, str) else chosen.blocks.least_block,
        block_multiple=1 if isinstance(chosen.blocks, str) else chosen.blocks.block_multiple,
        gives_side_results=bool(meta.side_results),
        saves_result=step.save_result,
        declared=partial(declared_model, request, resolver.device) if meta.estimator else None,
        spares="half_precision: true" if merged.get("half_precision") is False else "",
    )


def _side_model(
    frames: list[ArraySpec], slice_dim: int, total: int, allocator: ArrayAllocator
) -> MemoryModel:
    """Model of the flats and darks: whole frames for projections, otherwise the block's rows."""
    if slice_dim == 0:
        return MemoryModel.linear(sum(allocator.taken_bytes(spec.nbytes) for spec in frames), 0)
    rows = [allocator.array(-(-spec.nbytes // total)) for spec in frames]
    return sum(rows, MemoryModel.linear(0, 0))

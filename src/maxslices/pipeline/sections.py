"""Cutting a pipeline into sections: consecutive methods that can share a block."""

from __future__ import annotations

from dataclasses import dataclass, field

from .pipeline import Pipeline
from .steps import Step


@dataclass(slots=True)
class Section:
    """Consecutive methods that run on a block without leaving the device."""

    slice_dims: tuple[int, ...]
    """Axes along which blocks for all of its methods can be cut, the first one preferred."""
    steps: list[Step] = field(default_factory=list)
    """The methods, in order."""
    halo: tuple[int, int] = (0, 0)
    """Slices (before, after) that the block is widened by."""

    @property
    def slice_dim(self) -> int:
        """Axis along which its blocks are cut."""
        return self.slice_dims[0]


def cut_into_sections(pipeline: Pipeline, *, reads_rows: bool = True) -> list[Section]:
    """Cut a pipeline into sections, as httomo does with one exception.

    Parameters
    ----------
    pipeline : Pipeline
        The methods.
    reads_rows : bool
        Whether the scan's rows can be read by themselves. Methods that work on slices along
        either axis then join those on sinograms after them, and nothing is transposed.

    Returns
    -------
    list of Section

    Notes
    -----
    A new section starts

    * where the pattern changes,
    * at a second method with a halo, as the halo around a block serves one method,
    * at a reference to a side result that depends on all data of the section.

    The exception: a side result that depends on a few slices is found beforehand, from those
    slices alone, so no section starts at a reference to it. A section that can be cut along
    either axis is cut as the one before it. The first one is cut into projections, if it can be,
    where a scan's rows cannot be read by themselves, or where the data between are saved, as
    pictures to be looked at.
    """
    sections: list[Section] = []
    pending: set[str] = set()
    for step in pipeline.steps:
        halo = step.meta.halo_slices(**step.known_parameters())
        shared: tuple[int, ...] = ()
        if sections:
            shared = tuple(dim for dim in sections[-1].slice_dims if dim in step.meta.slice_dims())
            if sections[-1].slice_dim not in shared and _stays(sections, reads_rows):
                shared = ()
        needs_all = any(reference.step_id in pending for reference in step.references)
        if not shared or needs_all or (any(halo) and any(sections[-1].halo)):
            sections.append(Section(_as_before(step.meta.slice_dims(), sections)))
            pending = set()
        else:
            sections[-1].slice_dims = shared
        sections[-1].steps.append(step)
        if any(halo):
            sections[-1].halo = halo
        if step.id is not None and step.meta.side_results and step.meta.sample_slices is None:
            pending.add(step.id)
    return sections


def _stays(sections: list[Section], reads_rows: bool) -> bool:
    """True if the last section keeps to its preferred axis, whatever comes after it."""
    is_first = len(sections) == 1
    return (is_first and not reads_rows) or any(step.save_result for step in sections[-1].steps)


def _as_before(slice_dims: tuple[int, ...], sections: list[Section]) -> tuple[int, ...]:
    """Axes with that of the previous section first, if it is one of them."""
    if sections and sections[-1].slice_dim in slice_dims:
        return tuple(sorted(slice_dims, key=lambda dim: dim != sections[-1].slice_dim))
    return slice_dims

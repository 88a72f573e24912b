"""Request for a memory model (a method, its data and its parameters), and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..core.memory_model import MemoryModel
from ..core.method_meta import MethodMeta

if TYPE_CHECKING:  # imported only for measurements
    from ..block_effect.effect import BlockEffect
    from .probe_result import Probe

Origin = Literal["declared", "recorded", "replayed", "probed"]
"""Sources of a model, in the order in which they are tried."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Method with its parameters and data, whose memory model is requested."""

    meta: MethodMeta
    """The method."""
    slice_dim: int
    """Axis of the slices: 0 for projections, 1 for sinograms."""
    other_dims: tuple[int, int]
    """The two other dims, in array order."""
    dtype: np.dtype[Any]
    """Input dtype."""
    parameters: Mapping[str, Any]
    """The user's parameters, without those that an earlier step computes."""
    total_slices: int
    """Slices of the whole scan."""

    @property
    def slices(self) -> tuple[int, tuple[int, int], np.dtype[Any]]:
        """Arguments of a method's callbacks: the axis, the other dims, and the dtype."""
        return self.slice_dim, self.other_dims, self.dtype

    @property
    def most_slices(self) -> int:
        """Largest number of slices of one call."""
        if self.meta.sample_slices is None:
            return self.total_slices
        sampled = self.meta.sampled_range(self.total_slices, **self.parameters)
        return min(self.total_slices, len(sampled))


class NoAnswerError(LookupError):
    """A source has no answer. The message is the reason, or empty."""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """Memory model and its source."""

    model: MemoryModel
    """Bytes for n slices."""
    origin: str
    """"declared", "declared for CUDA", "recorded", "replayed" or "probed"."""
    why: str = ""
    """Reason for this source, with notes. Empty for declared estimators. Lines after the first are
    details."""
    output_dtype: np.dtype[Any] | None = None
    """Measured dtype of the result, or None if it is declared or was not measured."""
    output_dims: tuple[int, int] | None = None
    """Measured other two dims of the result, or None if declared or not measured."""
    pace_s: tuple[float, float] | None = None
    """Seconds of a call and of each slice in it, or None if not timed."""
    blocks: BlockEffect | str = ""
    """Effect of the block size on the result, or the reason why blocks were not compared."""

    @classmethod
    def of_probe(cls, probe: Probe, origin: Origin, why: str) -> ResolvedModel:
        """Answer from a probe."""
        dtype = None if probe.output_dtype is None else np.dtype(probe.output_dtype)
        result = dtype, probe.output_dims, probe.pace_s()
        return cls(probe.model(), origin, why, *result, probe.blocks)

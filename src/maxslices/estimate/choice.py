"""A memory model and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..model.memory_model import MemoryModel

if TYPE_CHECKING:  # measuring is imported when something is measured
    from ..block_effect.effect import BlockEffect
    from .probe_result import Probe

Origin = Literal["declared", "recorded", "replayed", "probed"]
"""Where a model comes from, in the order in which they are tried."""


class NoAnswerError(LookupError):
    """A source has no answer; the text says why, as far as that tells something."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A memory model and where it comes from."""

    model: MemoryModel
    """Bytes for n slices."""
    origin: str
    """"declared", "declared for CUDA", "recorded", "replayed" or "probed"."""
    why: str = ""
    """Why not the source before it, and what was noticed; empty for what authors declare.
    Lines after the first stand for themselves."""
    output_dtype: np.dtype[Any] | None = None
    """Dtype that its result was seen to have; None where nobody looked, or it is declared."""
    output_dims: tuple[int, int] | None = None
    """The result's other two dims, likewise."""
    pace_s: tuple[float, float] | None = None
    """Seconds that a call was seen to take, and that each slice adds; None where not timed."""
    blocks: BlockEffect | str = ""
    """What the size of a block does to the result; or why blocks were not compared, if there are
    any."""

    @classmethod
    def of_probe(cls, probe: Probe, origin: Origin, why: str) -> Choice:
        """What a probe found."""
        dtype = None if probe.output_dtype is None else np.dtype(probe.output_dtype)
        result = dtype, probe.output_dims, probe.pace_s()
        return cls(probe.model(), origin, why, *result, probe.blocks)

"""What records at several sizes of the detector answer for one."""

from __future__ import annotations

from dataclasses import dataclass

from ..block_effect.effect import BlockEffect
from ..model.memory_model import MemoryModel


@dataclass(frozen=True, slots=True)
class SizedProbe:
    """What a `SizeRecord` answers for one size; it takes the place of a probe."""

    memory: MemoryModel
    """Memory model."""
    how: str
    """How it follows from what was recorded, in words."""
    output_dtype: str | None
    """Dtype of the result."""
    output_dims: tuple[int, int] | None
    """The result's other two dims."""
    blocks: BlockEffect | None
    """What the size of a block does to the result."""
    not_compared: str
    """Why blocks were not compared."""
    pace: tuple[float, float]
    """Seconds of a call, and of each slice beside."""
    notes: tuple[str, ...] = ()
    """Findings."""

    def model(self) -> MemoryModel:
        """Memory model."""
        return self.memory

    def pace_s(self) -> tuple[float, float]:
        """Seconds of a call, and of each slice beside, on the device of the record."""
        return self.pace

"""A method's output, held against its declarations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .arrays import NUMBER_KINDS, ArraySpec
from .method_meta import MethodMeta


@dataclass(frozen=True, slots=True)
class ReturnedOutput:
    """Shape and dtype of a method's output, without its memory."""

    shape: tuple[int, ...] | None
    """Its shape; None if it is no array."""
    dtype: Any
    """Its dtype; None if it is no array."""
    type_name: str
    """Class of the object."""

    @classmethod
    def of(cls, output: Any) -> ReturnedOutput:
        """Describe what a method returned."""
        shape, dtype = getattr(output, "shape", None), getattr(output, "dtype", None)
        return cls(None if shape is None else tuple(shape), dtype, type(output).__name__)

    def __str__(self) -> str:
        if not self.shape:
            return "nothing" if self.type_name == "NoneType" else f"a {self.type_name}"
        return f"{'x'.join(map(str, self.shape))} {self.dtype}"

    @property
    def no_data(self) -> str:
        """Reason why this can be no data, of whatever slices; empty if it can."""
        if self.type_name == "MaskedArray":
            return "returned a MaskedArray, whose mask would be lost: return what .filled() gives"
        if not self.shape or len(self.shape) != 3:
            return f"returned {self}: it must return an array with three axes"
        if getattr(self.dtype, "kind", "none") not in NUMBER_KINDS:
            return f"returned {self}: it must return an array of numbers"
        return ""

    def no_block(self, n_slices: int, slice_dim: int) -> str:
        """Reason why this cannot be the result for a number of slices; empty if it can."""
        if self.no_data or not self.shape:
            return self.no_data
        if self.shape[slice_dim] != n_slices:
            return (
                f"returned {self}, {self.shape[slice_dim]} slices along axis {slice_dim}: it must "
                f"return as many as it is given, {n_slices}"
            )
        return ""

    def mismatch(self, meta: MethodMeta, expected: ArraySpec, slice_dim: int) -> str:
        """Difference from what the method declares, and what to correct; empty if there is none.

        Parameters
        ----------
        meta : MethodMeta
            The method.
        expected : ArraySpec
            Its output by its declarations.
        slice_dim : int
            Axis of the slices, of which it has to return as many as it is given.
        """
        if text := self.no_block(expected.shape[slice_dim], slice_dim):
            return f"{text}, such as {expected}" if text.endswith("axes") else text
        right_dims, right_dtype = self.shape == expected.shape, self.dtype == expected.dtype
        if right_dims and right_dtype:
            return ""
        says, cures = "by its declaration", []
        if not right_dims:
            cures.append("its output_dims")
        if not right_dtype:
            cures.append("its output_dtype")
            if meta.estimator_gives_dtype:
                says = "by its estimator"
                cures[-1] = f"the dtype that {meta.callbacks['calc_max_slices'].name} returns"
        cure = f"correct {' and '.join(cures)}"
        if meta.estimator is None:
            says = "as declared or measured"
            cure += f", or clear what was measured: maxslices records clear {meta.name}"
        return f"returned {self}; {says} it is {expected}: {cure}"

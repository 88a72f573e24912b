"""Estimators that other packages bring for the methods of one array module.

The entry point group `ENTRY_POINT_GROUP` names them: the name of an entry point is the array module
of the methods (``array_module="torch"``), its object a `MethodTracer`. It is loaded when a method
without an estimator of its own is to be planned.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Protocol, cast

import numpy as np

from ..errors import UntraceableError
from ..model.arrays import ArraySpec
from ..model.memory_model import MemoryModel
from ..registry.author_lines import what_raised
from ..registry.method_meta import MethodMeta

ENTRY_POINT_GROUP = "maxslices.estimators"


class TracedMethod(Protocol):
    """What tracing a method found; ``str()`` says in a few words how it was traced."""

    @property
    def output_dtype(self) -> str | None:
        """Dtype of the result; None if it is not an array."""

    @property
    def output_dims(self) -> tuple[int, int] | None:
        """The result's other two dims; None if it is not an array of as many slices."""

    @property
    def notes(self) -> Sequence[str]:
        """What was not traced exactly."""

    @property
    def details(self) -> str:
        """A line of its own for the plan."""

    def model(self) -> MemoryModel:
        """Memory that the device's allocator must be given for n slices."""


class MethodTracer(Protocol):
    """Finds the memory model of a method without a device."""

    def __call__(
        self,
        meta: MethodMeta,
        slice_dim: int,
        other_dims: tuple[int, int],
        dtype: np.dtype[Any],
        parameters: Mapping[str, Any],
        *,
        supplied: Mapping[str, ArraySpec],
        device: str,
    ) -> TracedMethod:
        """Trace a method.

        Parameters
        ----------
        meta : MethodMeta
            The method.
        slice_dim, other_dims, dtype
            Of its input.
        parameters : mapping
            The user's parameters, without the method's own defaults.
        supplied : mapping
            Flats and darks; a model does not count them.
        device : str
            The device, such as "cuda:0", if it is here; else "".

        Raises
        ------
        UntraceableError
            If the method has to be run to know what it allocates.
        """


@cache
def find_tracer(array_module: str) -> MethodTracer | None:
    """Tracer of an array module's methods; None if no installed package brings one.

    Raises
    ------
    UntraceableError
        If the package that brings it fails to import.
    """
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP, name=array_module):
        try:
            return cast(MethodTracer, entry_point.load())
        except Exception as error:
            raise UntraceableError(
                f"the estimator of {array_module} methods cannot be used, because importing "
                f"{entry_point.value} failed: {what_raised(error)}"
            ) from error
    return None

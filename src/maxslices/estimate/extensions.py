"""Estimators that other packages bring for the methods of one array module.

The entry point group `ENTRY_POINT_GROUP` names them: the name of an entry point is the array module
of the methods (``array_module="torch"``), its object a `MethodTracer`. It is loaded when a method
without an estimator of its own is to be planned.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from functools import cache
from typing import Protocol, cast

from ..core.arrays import ArraySpec
from ..core.author_code import what_raised
from ..errors import UntraceableError
from .model_request import Choice, ModelRequest

ENTRY_POINT_GROUP = "maxslices.estimators"


class MethodTracer(Protocol):
    """Finds the memory model of a method without running it."""

    def __call__(
        self, request: ModelRequest, supplied: Mapping[str, ArraySpec], device: str
    ) -> Choice:
        """Trace a method.

        Flats and darks are supplied, and not counted by a model. The device is such as "cuda:0" if
        it is here; else "". The answer is of origin "replayed"; its `why` says how it was traced,
        and what was not traced exactly.

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

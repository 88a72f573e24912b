"""Treat functions of arrays of any number of dims as methods of 3D arrays.

An array in C order can be reshaped to three dims without a copy: the dims before the axis of the
blocks, this axis, and the dims after it. A function of arrays of any dims is therefore estimated,
checked and run like any other method.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import index
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import UsageError
from .arrays import as_dtype, normalized_axis
from .ledger import Ledger, LedgerEstimator, from_ledger
from .method_meta import Halo, MethodMeta
from .method_registry import Registry

Dims = tuple[int, ...]


class BlockMethod:
    """A function of arrays of any dims, as a method of 3D arrays.

    Parameters
    ----------
    function : callable or MethodMeta
        ``function(block, **parameters)``, or a method.
    shape : sequence of int
        Shape of the whole array.
    dtype : dtype-like
        Its dtype.
    axis : int
        Axis along which it is cut.
    halo : int, (int, int) or None
        Elements before and after a block. None means the halo that the method declares, if any.
    parameters : mapping
        Parameters of the function.

    Raises
    ------
    UsageError
        If shape, dtype or axis are invalid.
    """

    def __init__(
        self,
        function: Callable[..., Any] | MethodMeta,
        shape: Sequence[int],
        dtype: DTypeLike,
        axis: int,
        halo: Halo | None,
        parameters: Mapping[str, Any],
    ) -> None:
        self.shape: Dims = ()
        """Shape of the whole array."""
        with suppress(TypeError):
            self.shape = tuple(map(index, shape))
        if not self.shape or min(self.shape) < 1:
            raise UsageError(
                f"an array of shape {shape} cannot be cut into blocks: its dims must be whole "
                "numbers of at least 1"
            )
        self.dtype = as_dtype(dtype)
        self.axis = normalized_axis(axis, len(self.shape))
        self.slice_dim = 1 if self.axis else 0
        """Axis of the blocks among the three dims. For axis 0 no dims are before it."""
        self.result_dims: tuple[Dims, Dims] | None = None
        """Dims of the last result before and after the axis; None before the first call."""
        self.meta = self._registered(function, halo, dict(parameters))
        """The method."""

    def flat(self, shape: Dims) -> tuple[int, int, int]:
        """The three dims of a block of a shape."""
        if self.axis:
            before, after = shape[: self.axis], shape[self.axis + 1 :]
            return math.prod(before), shape[self.axis], math.prod(after)
        return shape[0], math.prod(shape[1:2]), math.prod(shape[2:])

    def block_shape(self, n: int) -> Dims:
        """Shape of a block of n elements along the axis."""
        return (*self.shape[: self.axis], n, *self.shape[self.axis + 1 :])

    @property
    def result_shape(self) -> Dims:
        """Shape of the whole result, after a call."""
        assert self.result_dims is not None
        before, after = self.result_dims
        return (*before, self.shape[self.axis], *after)

    def flattened(self, block: NDArray[Any]) -> NDArray[Any]:
        """A block as an array of three dims."""
        return np.ascontiguousarray(block).reshape(self.flat(block.shape))

    def result(self, flat: NDArray[Any]) -> NDArray[Any]:
        """The result of a block, reshaped to its own dims."""
        before, after = self.result_dims or ((), ())
        return flat.reshape(*before, flat.shape[self.slice_dim], *after)

    def _registered(
        self,
        function: Callable[..., Any] | MethodMeta,
        halo: Halo | None,
        parameters: dict[str, Any],
    ) -> MethodMeta:
        """The function as a method, in a registry of its own."""
        meta = function if isinstance(function, MethodMeta) else getattr(function, "meta", None)
        own = meta if isinstance(meta, MethodMeta) else None
        target = function.function if isinstance(function, MethodMeta) else function
        if halo is None:
            halo = own.halo_slices(**own.merged(**parameters)) if own else 0

        def call(data: Any, *, dims: tuple[Dims, Dims], parameters: dict[str, Any]) -> Any:
            n = data.shape[self.slice_dim]
            result = target(data.reshape(*dims[0], n, *dims[1]), **parameters)
            shape = tuple(result.shape)
            if shape[self.axis : self.axis + 1] != (n,):
                raise ValueError(
                    f"a block with {n} elements along axis {self.axis} gave a result of shape "
                    f"{shape}: the number of elements along this axis must not change"
                )
            self.result_dims = shape[: self.axis], shape[self.axis + 1 :]
            return result.reshape(self.flat(shape))

        call.__signature__ = inspect.signature(call)  # type: ignore[attr-defined]
        call.__wrapped__ = target  # type: ignore[attr-defined] # records hash its code
        ledger = dtype = None
        if own is not None and isinstance(own.estimator, LedgerEstimator):
            ledger = self._ledger(own.estimator, own.merged(**parameters))
            dtype = own.output_dtype(0, (1, 1), self.dtype, **parameters)
        module = str(getattr(target, "__module__", "") or "")
        name = str(getattr(target, "__name__", "")).strip("<>")  # of a lambda
        return Registry().register(
            functools.partial(
                call,
                dims=(self.shape[: self.axis], self.shape[self.axis + 1 :]),
                parameters=parameters,
            ),
            pattern="sinogram" if self.slice_dim else "projection",
            name=name if name.isidentifier() else type(target).__name__,
            module=module or "functions",
            halo=halo,
            calc_max_slices=ledger,
            output_dtype=dtype,
            array_module="torch" if module.partition(".")[0] == "torch" else None,
        )

    def _ledger(self, estimator: LedgerEstimator, parameters: dict[str, Any]) -> LedgerEstimator:
        """The function's own ledger, for blocks of three dims."""

        @from_ledger
        def of_blocks(m: Ledger, shape: Dims, dtype: np.dtype[Any]) -> None:
            n = shape[self.slice_dim]
            estimator.entered(self.axis, self._other_dims, dtype, **parameters)(m, n)

        return of_blocks

    @property
    def _other_dims(self) -> Dims:
        return (*self.shape[: self.axis], *self.shape[self.axis + 1 :])

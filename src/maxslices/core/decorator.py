"""The decorator by which a function becomes a method of the registry."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, cast

from numpy.typing import DTypeLike

from ..errors import RegistrationError
from .callback import name_of
from .declaration import describe
from .method_meta import Halo, MethodMeta, Pattern
from .method_registry import Registry
from .method_registry import registry as global_registry

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class RegisteredFunction(Protocol[P, R]):
    """A function with the record that the decorator leaves on it, for type checkers."""

    meta: MethodMeta
    __name__: str
    __qualname__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""


def method(
    pattern: Pattern,
    *,
    calc_max_slices: Callable[..., Any] | None = None,
    halo: Halo | Callable[..., Halo] = 0,
    tile_halo: Halo | Callable[..., Halo] | None = None,
    output_dims: Callable[..., tuple[int, int]] | None = None,
    output_dtype: DTypeLike | Callable[..., DTypeLike] | None = None,
    output_angles: Callable[..., Any] | None = None,
    side_data: Literal["too", "alone"] | None = None,
    check_values: Callable[..., None] | None = None,
    side_results: Iterable[str] = (),
    sample_slices: Callable[..., Iterable[int]] | None = None,
    combine: Callable[[list[Any]], Any] | None = None,
    array_module: str | None = None,
    records: str | os.PathLike[str] | None = None,
    row_reach: Halo | Callable[..., Halo] | None = None,
    saved_by_default: bool = False,
    keeps_pixel_size: bool = False,
    host_only: bool = False,
    registry: Registry | None = None,
) -> Callable[[Callable[P, R]], RegisteredFunction[P, R]]:
    """Register a function as a processing method; the function comes back unchanged.

    Parameters
    ----------
    pattern : {"projection", "sinogram", "all"}
        Which slices of an (angles, detector_y, detector_x) array it works on.
    calc_max_slices : callable, optional
        ``(slice_dim, other_dims, dtype, available_memory, **kwargs) -> (n, output dtype)``,
        or an estimator made by `from_ledger`. It is given the user's parameters over the
        function's defaults; one without ``**kwargs`` is given those that it names.
    halo : int, (int, int) or callable, optional
        Slices (before, after) that it needs around its block; a callable is given the
        parameters.
    tile_halo : int, (int, int) or callable, optional
        That a tile of a slice, with so many pixels around it along the slice's two dims, gives
        the same bits as the whole; a callable is given the parameters. Where a slice does not
        fit, it can then be worked on in tiles. Flats, darks and angles are cut likewise.
    output_dims : callable, optional
        ``(other_dims, **kwargs) -> (int, int)``, where the result has other dims. It may
        name ``slice_dim``.
    output_dtype : dtype-like or callable, optional
        The result's dtype, or ``(dtype, **kwargs) -> dtype``. By default what the
        estimator returns.
    output_angles : callable, optional
        ``(angles, **kwargs) -> angles`` of the result, where it has other projections than the
        data: float32 arrays, in radians.
    side_data : {"too", "alone"}, optional
        The mean of the flats, and that of the darks, go through the method as well, or alone:
        then the data pass through unchanged. Later methods are given these frames.
    check_values : callable, optional
        ``(**kwargs)``: raises ValueError for values that the method refuses whatever the data
        are, so that a pipeline is told of them before it runs. References are left out.
    side_results : iterable of str, optional
        The function returns these values (one, or a tuple in this order) and no array:
        the data go on unchanged, and later methods may refer to the values.
    sample_slices : callable, optional
        ``(n_slices, **kwargs) -> slice indices``: the only slices that the side results
        depend on; the function is called once, with these.
    combine : callable, optional
        Makes one result of the list of all blocks' results; required for side results
        without `sample_slices`.
    array_module : {"torch"}, optional
        The function takes its data, flats and darks as torch tensors on the device, and
        returns one; arrays of other methods become tensors, and back, without a copy.
        torch itself is imported when the method runs.
    records : path, optional
        File of records that come with the package, made by ``docs/scripts/ship_records.py``:
        without an estimator, the method can then be planned where there is no GPU.
    row_reach : int, (int, int) or callable, optional
        Rows (above, below) that a row of the result depends on, for a method on projections that
        has no `tile_halo`: a sweep, which reads few rows, reads so many. A callable is given the
        parameters.
    host_only : bool
        Whether the method takes a block to the host, whatever the device, and brings its result
        back. Without an estimator, it can be planned for a GPU that is not there: its input and
        its result are all that it has on one.
    saved_by_default : bool
        Whether the result is saved where a pipeline does not say, as a reconstruction is.
    keeps_pixel_size : bool
        Whether pixels have the size that they had, where `output_dims` says that there are other
        numbers of them: frames are cut or joined, and not scaled. A reconstruction always does.
    registry : Registry, optional
        Where to register; the global registry by default.

    Returns
    -------
    callable
        A decorator.

    Raises
    ------
    RegistrationError
        If the signatures cannot work together; nothing is registered then.

    Examples
    --------
    >>> import numpy as np
    >>> from maxslices import Registry, method
    >>> def estimate(slice_dim, other_dims, dtype, available_memory, **kwargs):
    ...     per_slice = 2 * other_dims[0] * other_dims[1] * dtype.itemsize
    ...     return available_memory // per_slice, dtype
    >>> @method("projection", calc_max_slices=estimate, registry=Registry())
    ... def scale(data, *, strength: float = 1.0):
    ...     return data * strength
    >>> scale.meta.calc_max_slices(0, (10, 20), np.float32(), 14450)
    (9, dtype('float32'))
    """
    if callable(pattern):
        raise RegistrationError(
            f"{name_of(pattern)}: a method is decorated with its pattern, as in @method('all')"
        )

    def decorate(function: Callable[P, R]) -> RegisteredFunction[P, R]:
        target = global_registry if registry is None else registry
        meta = describe(
            function,
            data_name="data",
            pattern=pattern,
            calc_max_slices=calc_max_slices,
            halo=halo,
            tile_halo=tile_halo,
            output_dims=output_dims,
            output_dtype=output_dtype,
            output_angles=output_angles,
            side_data=side_data,
            check_values=check_values,
            side_results=side_results,
            sample_slices=sample_slices,
            combine=combine,
            array_module=array_module,
            records=records,
            row_reach=row_reach,
            saved_by_default=saved_by_default,
            keeps_pixel_size=keeps_pixel_size,
            host_only=host_only,
        )
        target.add(meta)
        # What cannot take attributes (a builtin) is registered all the same.
        with suppress(AttributeError, TypeError):
            function.meta = meta  # type: ignore[attr-defined]
        return cast("RegisteredFunction[P, R]", function)

    return decorate

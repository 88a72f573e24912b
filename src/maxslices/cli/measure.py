"""``maxslices measure METHOD --shape ... [-p name=value] [--plot FILE] [--json] [--suggest]``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import (
    EstimatorError,
    MaxslicesError,
    MethodError,
    OutOfMemoryError,
    StoreError,
    UsageError,
)
from ..model.arrays import parse_shape
from .completion import method_names
from .options import DEVICE, JSON
from .output import say, shown

if TYPE_CHECKING:
    from ..checking.measurement import Measurement
    from ..checking.method_peak import MethodPeak


_MADE_UP = ("flats", "darks", "angles", "slice_dim")
"""Parameters that are made up with the block, so that none can be given."""


def _given(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    """The user's parameters, none of which is made up with the block."""
    from ..pipeline.parameter_arguments import parse_parameters

    parameters = parse_parameters(texts)
    for name in _MADE_UP:
        if name in parameters:
            raise UsageError(f"-p {name}: {name} is filled in as the block is made: leave it out")
    return parameters


@click.command(
    params=[DEVICE, JSON],
    short_help="run a method: its memory estimate beside the measured peak",
)
@click.argument(
    "method",
    shell_complete=method_names,
    help="a method, as in `maxslices methods`, or MODULE:CALLABLE",
)
@click.option(
    "--shape", metavar="AxYxX", help="the block: angles x rows x columns, such as 64x2160x2560"
)
@click.option("--dtype", default="float32", show_default=True, help="data type of the input")
@click.option(
    "-p",
    "--parameter",
    "parameters",
    multiple=True,
    callback=_given,
    metavar="NAME=VALUE",
    help="a parameter of the method; may be repeated",
)
@click.option(
    "--slice-dim",
    type=click.Choice([0, 1]),
    metavar="0|1",
    help="axis of the slices (default: the first that the method allows)",
)
@click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(),
    help="draw memory over the call, and over one with half of the slices, to an image file",
)
@click.option(
    "--suggest",
    is_flag=True,
    help="print a ledger for the method, made from its allocations on a few small blocks",
)
def measure(
    method: str, shape: str | None, plot: str | None, suggest: bool, json: bool, **options: Any
) -> str | None:
    """Run one method on made-up data: its memory estimate beside the measured peak.

    With what was alive then and where it was allocated. A wrong estimate is an error. Without an
    estimator: the peak, and a ledger that tells it.
    """
    from ..checking.method_peak import MethodPeak

    if suggest:
        from ..registry.named_method import method_named
        from ..suggest.suggest_ledger import suggest_ledger

        for option, value in (("--shape", shape), ("--plot", plot)):
            if value is not None:
                raise UsageError(f"--suggest runs blocks of its own: leave {option} out")
        return shown(suggest_ledger(method_named(method), **options), json)
    found = _measurement(method, shape, plot, **options)
    text = shown(found, json)
    if isinstance(found, MethodPeak):
        return text if json else f"{text}\n\n{_ledger(method, **options)}"
    if not found.result.ok:
        say(str(text))
        raise EstimatorError(found.result.headline)
    return text


def _ledger(method: str, **options: Any) -> str:
    """A ledger for a method without an estimator, or why there is none."""
    from ..registry.named_method import method_named
    from ..suggest.suggest_ledger import suggest_ledger

    try:
        return f"A ledger for it:\n\n{suggest_ledger(method_named(method), **options)}"
    except MaxslicesError as error:
        return f"No ledger can be suggested: {error}"


def _measurement(
    method: str, shape: str | None, plot: str | None, dtype: Any, **options: Any
) -> Measurement | MethodPeak:
    """The method measured, and drawn if wanted."""
    from ..checking.call_picture import check_picture, plot_measurement
    from ..checking.measurement import measure_method
    from ..checking.method_peak import measure_undeclared
    from ..model.arrays import ArraySpec
    from ..registry.author_lines import raised_at
    from ..registry.named_method import method_named

    if shape is None:
        raise UsageError("--shape is missing: the block, such as --shape 64x2160x2560")
    picture = None if plot is None else Path(plot)
    if picture is not None:
        check_picture(picture)
    spec = ArraySpec(parse_shape(shape), dtype)
    block = (spec.shape[0], spec.shape[1], spec.shape[2])
    has_estimator = method_named(method).estimator is not None
    if picture is not None and not has_estimator:
        raise UsageError(f"--plot draws an estimate beside the peak; {method} has no estimator")
    try:
        if not has_estimator:
            return measure_undeclared(method, block, spec.dtype, **options)
        with_half = picture is not None
        measurement = measure_method(method, block, spec.dtype, with_half=with_half, **options)
    except MaxslicesError:
        raise
    except MemoryError as error:
        raise OutOfMemoryError(
            f"memory ran out on a block of {shape} ({error}): measure fewer slices"
        ) from None
    except Exception as error:  # a method may raise anything; it is reported in one line
        hint = ""
        if isinstance(error, OSError) and ".cupy" in str(error.filename):
            hint = "; set CUPY_CACHE_DIR to a folder that can be written to, for compiled kernels"
        place = raised_at(error, method_named(method).function)
        said = f"{type(error).__name__}: {error}{place}{hint}"
        raise MethodError(f"{method} raised {said}") from error
    if picture is not None:
        try:
            plot_measurement(measurement, picture)
        except OSError as error:
            raise StoreError(f"cannot write {picture}: {error.strerror}") from None
    return measurement

"""``maxslices measure METHOD --shape ... [-p name=value] [--plot FILE] [--json] [--suggest]``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.arrays import ArraySpec, parse_shape
from ..errors import EstimatorError, MaxslicesError, MethodError, OutOfMemoryError, UsageError
from .options import DEVICE, JSON, PATH, method_names
from .output import say, shown

if TYPE_CHECKING:
    from ..core.method_meta import MethodMeta


_MADE_UP = ("flats", "darks", "angles", "slice_dim")
"""Parameters that are made up with the block, so that none can be given."""


def _given(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    """The user's parameters, none of which is made up with the block."""
    from ..pipeline.yaml_values import parse_parameters

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
    type=PATH,
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
    from ..core.named_method import method_named
    from ..suggest.suggest_ledger import suggest_ledger

    meta = method_named(method)
    if suggest:
        for option, value in (("--shape", shape), ("--plot", plot)):
            if value is not None:
                raise UsageError(f"--suggest runs blocks of its own: leave {option} out")
        return shown(suggest_ledger(meta, **options), json)
    if shape is None:
        raise UsageError("--shape is missing: the block, such as --shape 64x2160x2560")
    block = parse_shape(shape)
    options["dtype"] = ArraySpec(block, options["dtype"]).dtype
    if meta.estimator is not None:
        return _beside_estimate(meta, method, block, plot, json, **options)
    if plot is not None:
        raise UsageError(f"--plot draws an estimate beside the peak; {method} has no estimator")
    from ..checking.measurement import measure_method

    with _reported(meta, method):
        text = shown(measure_method(method, block, **options), json)
    if json:
        return text
    try:
        return f"{text}\n\nA ledger for it:\n\n{suggest_ledger(meta, **options)}"
    except MaxslicesError as error:
        return f"{text}\n\nNo ledger can be suggested: {error}"


def _beside_estimate(
    meta: MethodMeta,
    method: str,
    block: tuple[int, int, int],
    plot: str | None,
    json: bool,
    **options: Any,
) -> str | None:
    """Text of the estimate beside the peak, which are drawn if wanted."""
    from ..checking.call_picture import check_picture, plot_measurement
    from ..checking.measurement import measure_method
    from ..system.disk_space import store_errors

    picture = None if plot is None else Path(plot)
    if picture is not None:
        check_picture(picture)
    with _reported(meta, method):
        found = measure_method(method, block, with_half=picture is not None, **options)
    if picture is not None:
        with store_errors(picture, 0):
            plot_measurement(found, picture)
    text = shown(found, json)
    if found.result is not None and not found.result.ok:
        say(str(text))
        raise EstimatorError(found.result.headline)
    return text


@contextmanager
def _reported(meta: MethodMeta, method: str) -> Iterator[None]:
    """Turn what a method raises, which may be anything, into an error of one line."""
    from ..core.author_code import raised_at, what_raised

    try:
        yield
    except MaxslicesError:
        raise
    except MemoryError as error:
        said = f" ({error})" if str(error) else ""
        raise OutOfMemoryError(
            f"memory ran out while {method} was measured{said}: measure fewer slices"
        ) from None
    except Exception as error:
        hint = ""
        if isinstance(error, OSError) and ".cupy" in str(error.filename):
            hint = "; set CUPY_CACHE_DIR to a folder that can be written to, for compiled kernels"
        said = f"{what_raised(error)}{raised_at(error, meta.function)}{hint}"
        raise MethodError(f"{method} raised {said}") from error

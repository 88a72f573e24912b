"""``maxslices measure METHOD --shape ... [-p name=value] [--json] [--suggest]``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ..core.arrays import ArraySpec, parse_shape
from ..errors import EstimatorError, MaxslicesError, MethodError, OutOfMemoryError, UsageError
from .options import DEVICE, JSON, method_names
from .output import say, shown

if TYPE_CHECKING:
    from ..core.method_meta import MethodMeta


_MADE_UP = ("flats", "darks", "angles", "slice_dim")
"""Parameters that are made with the block, so users cannot set them."""


def _parsed(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    """Parse the user's parameters, and reject those that are made with the block."""
    from ..pipeline.yaml_values import parse_parameters

    parameters = parse_parameters(texts)
    for name in _MADE_UP:
        if name in parameters:
            raise UsageError(f"-p {name}: {name} is made with the block: leave it out")
    return parameters


@click.command(
    params=[DEVICE, JSON],
    short_help="compare a method's estimated memory with its measured peak",
)
@click.argument(
    "method",
    shell_complete=method_names,
    help="a method of `maxslices methods`, or MODULE:CALLABLE",
)
@click.option(
    "--shape",
    metavar="AxYxX",
    help="size of the block: angles x rows x columns, such as 64x2160x2560",
)
@click.option("--dtype", default="float32", show_default=True, help="data type of the input")
@click.option(
    "-p",
    "--parameter",
    "parameters",
    multiple=True,
    callback=_parsed,
    metavar="NAME=VALUE",
    help="a parameter of the method (may be repeated)",
)
@click.option(
    "--slice-dim",
    type=click.Choice([0, 1]),
    metavar="0|1",
    help="axis of the slices (default: the first that the method allows)",
)
@click.option(
    "--suggest",
    is_flag=True,
    help="print a ledger for the method, made from its allocations on small blocks",
)
def measure(
    method: str, shape: str | None, suggest: bool, json: bool, **options: Any
) -> str | None:
    """Run a method on made-up data, and compare its estimated memory with the measured peak.

    The allocations at the peak are listed with their source lines. A wrong estimate is an error.
    For a method without an estimator, a ledger is suggested.
    """
    from ..core.named_method import method_named
    from ..suggest.suggest_ledger import suggest_ledger

    meta = method_named(method)
    if suggest:
        if shape is not None:
            raise UsageError("--suggest chooses its own blocks: leave --shape out")
        return shown(suggest_ledger(meta, **options), json)
    if shape is None:
        raise UsageError(
            "--shape is missing: give the size of a block, such as --shape 64x2160x2560"
        )
    block = parse_shape(shape)
    options["dtype"] = ArraySpec(block, options["dtype"]).dtype
    from ..checking.measurement import measure_method

    with _reported(meta, method):
        measured = measure_method(method, block, **options)
    text = shown(measured, json)
    if measured.result is not None and not measured.result.ok:
        say(str(text))
        raise EstimatorError(measured.result.fault)  # the headline was printed
    if measured.result is not None or json:
        return text
    try:
        return f"{text}\n\nA ledger for it:\n\n{suggest_ledger(meta, **options)}"
    except MaxslicesError as error:
        return f"{text}\n\nNo ledger can be suggested: {error}"


@contextmanager
def _reported(meta: MethodMeta, method: str) -> Iterator[None]:
    """Turn any exception of a method into an error of one line."""
    from ..core.author_code import raised_at, what_raised

    try:
        yield
    except MaxslicesError:
        raise
    except MemoryError as error:
        detail = f" ({error})" if str(error) else ""
        raise OutOfMemoryError(
            f"memory ran out while {method} was measured{detail}: measure fewer slices"
        ) from None
    except Exception as error:
        hint = ""
        if isinstance(error, OSError) and ".cupy" in str(error.filename):
            hint = "; set CUPY_CACHE_DIR to a writable folder for compiled kernels"
        detail = f"{what_raised(error)}{raised_at(error, meta.function)}{hint}"
        raise MethodError(f"{method} raised {detail}") from error

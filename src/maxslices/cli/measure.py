"""``maxslices measure METHOD --shape ... [-p name=value] [--plot FILE] [--json] [--suggest]``."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import MaxslicesError, MethodError, OutOfMemoryError, StoreError, UsageError
from ..model.arrays import parse_shape
from .options import DEVICE, JSON, PARAMETERS

if TYPE_CHECKING:
    from ..checking.measurement import Measurement
    from ..suggest.suggest_ledger import SuggestedLedger


_MADE_UP = ("flats", "darks", "angles", "slice_dim")
"""Parameters that are made up with the block, so that none can be given."""


@click.command(
    params=[PARAMETERS, DEVICE, JSON],
    short_help="run a method on made-up data: its estimate beside the measured peak",
)
@click.argument(
    "method", help="a method, as in `maxslices methods`; with --suggest also MODULE:CALLABLE"
)
@click.option(
    "--shape", metavar="AxYxX", help="the block: angles x rows x columns, such as 64x2160x2560"
)
@click.option("--dtype", default="float32", show_default=True, help="data type of the input")
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
) -> str:
    """Run one method on made-up data: its memory estimate beside the measured peak.

    With what was alive then and where it was allocated.
    """
    if suggest:
        for option, value in (("--shape", shape), ("--plot", plot)):
            if value is not None:
                raise UsageError(f"--suggest runs blocks of its own: leave {option} out")
        found = _suggestion(method, **options)
        return json_text.dumps(found.as_json(), indent=1) if json else str(found)
    if shape is None:
        raise UsageError("--shape is missing: the block, such as --shape 64x2160x2560")
    measurement = _measurement(method, shape, plot, **options)
    return json_text.dumps(measurement.as_json(), indent=1) if json else str(measurement)


def _measurement(
    method: str,
    shape: str,
    plot: str | None,
    dtype: Any,
    parameters: tuple[str, ...],
    slice_dim: int | None,
    device: str,
) -> Measurement:
    """The method measured, and drawn if wanted."""
    from ..checking.call_picture import check_picture, plot_measurement
    from ..checking.measurement import measure_method
    from ..model.arrays import ArraySpec
    from ..pipeline.parameter_arguments import parse_parameters

    picture = None if plot is None else Path(plot)
    if picture is not None:
        check_picture(picture)
    spec = ArraySpec(parse_shape(shape), dtype)
    given = _given(parse_parameters(parameters))
    try:
        measurement = measure_method(
            method,
            (spec.shape[0], spec.shape[1], spec.shape[2]),
            spec.dtype,
            given,
            device,
            slice_dim,
            with_half=picture is not None,
        )
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
        message = f"{method} raised {type(error).__name__}: {error}{hint}"
        raise MethodError(message) from error
    if picture is not None:
        try:
            plot_measurement(measurement, picture)
        except OSError as error:
            raise StoreError(f"cannot write {picture}: {error.strerror}") from None
    return measurement


def _given(parameters: dict[str, Any]) -> dict[str, Any]:
    """The user's parameters, none of which is made up with the block."""
    for name in _MADE_UP:
        if name in parameters:
            raise UsageError(f"-p {name}: {name} is filled in as the block is made: leave it out")
    return parameters


def _suggestion(
    method: str, dtype: str, parameters: tuple[str, ...], slice_dim: int | None, device: str
) -> SuggestedLedger:
    """Ledger for the method, with how well it fits."""
    from ..pipeline.parameter_arguments import parse_parameters
    from ..suggest.named_callable import method_named
    from ..suggest.suggest_ledger import suggest_ledger

    given = _given(parse_parameters(parameters))
    return suggest_ledger(method_named(method), dtype, given, device, slice_dim)

"""``maxslices measure METHOD --shape ... [-p name=value] [--plot FILE] [--json] [--suggest]``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import MaxslicesError, MethodError, OutOfMemoryError, StoreError, UsageError
from ..model.arrays import parse_shape


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "measure",
        help="run one method on made-up data: its estimate beside the measured peak",
        description="Run one method on made-up data, and put its memory estimate beside the "
        "measured peak, with what was alive then and where it was allocated.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "method",
        metavar="METHOD",
        help="a method, as in `maxslices methods`; with --suggest also MODULE:CALLABLE",
    )
    parser.add_argument(
        "--shape",
        metavar="AxYxX",
        help="the block: angles x rows x columns, such as 64x2160x2560",
    )
    parser.add_argument(
        "--dtype", default="float32", help="data type of the input (default: float32)"
    )
    parser.add_argument(
        "-p",
        "--parameter",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the method; may be repeated",
    )
    parser.add_argument(
        "--slice-dim",
        type=int,
        choices=(0, 1),
        help="axis of the slices (default: the first that the method allows)",
    )
    parser.add_argument(
        "--device",
        default="auto",
        metavar="auto|cpu|cuda:N",
        help="where to run (default: a GPU if there is one)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="draw memory over the call, and over one with half of the slices, to an image file",
    )
    parser.add_argument(
        "--suggest",
        action="store_true",
        help="print a ledger for the method, made from its allocations on a few small blocks",
    )
    parser.set_defaults(handle=handle)


_MADE_UP = ("flats", "darks", "angles", "slice_dim")
"""Parameters that are made up with the block, so that none can be given."""


def handle(parsed: argparse.Namespace) -> str:
    """Measure the method; the table, JSON, or a suggested ledger."""
    import json

    if parsed.suggest:
        return _suggestion(parsed)
    if parsed.shape is None:
        raise UsageError("--shape is missing: the block, such as --shape 64x2160x2560")
    from ..checking.call_picture import check_picture, plot_measurement
    from ..checking.measurement import measure_method
    from ..model.arrays import ArraySpec
    from ..pipeline.parameter_arguments import parse_parameters

    picture = None if parsed.plot is None else Path(parsed.plot)
    if picture is not None:
        check_picture(picture)
    spec = ArraySpec(parse_shape(parsed.shape), parsed.dtype)
    given = _given(parse_parameters(parsed.parameter))
    try:
        measurement = measure_method(
            parsed.method,
            (spec.shape[0], spec.shape[1], spec.shape[2]),
            spec.dtype,
            given,
            parsed.device,
            parsed.slice_dim,
            with_half=picture is not None,
        )
    except MaxslicesError:
        raise
    except MemoryError as error:
        raise OutOfMemoryError(
            f"memory ran out on a block of {parsed.shape} ({error}): measure fewer slices"
        ) from None
    except Exception as error:  # a method may raise anything; it is reported in one line
        hint = ""
        if isinstance(error, OSError) and ".cupy" in str(error.filename):
            hint = "; set CUPY_CACHE_DIR to a folder that can be written to, for compiled kernels"
        message = f"{parsed.method} raised {type(error).__name__}: {error}{hint}"
        raise MethodError(message) from error
    if picture is not None:
        try:
            plot_measurement(measurement, picture)
        except OSError as error:
            raise StoreError(f"cannot write {picture}: {error.strerror}") from None
    return json.dumps(measurement.as_json(), indent=1) if parsed.json else str(measurement)


def _given(parameters: dict[str, Any]) -> dict[str, Any]:
    """The user's parameters, none of which is made up with the block."""
    for name in _MADE_UP:
        if name in parameters:
            raise UsageError(f"-p {name}: {name} is filled in as the block is made: leave it out")
    return parameters


def _suggestion(parsed: argparse.Namespace) -> str:
    """Ledger for the method, with how well it fits."""
    from ..pipeline.parameter_arguments import parse_parameters
    from ..suggest.named_callable import method_named
    from ..suggest.suggest_ledger import suggest_ledger

    for option, value in (("--shape", parsed.shape), ("--plot", parsed.plot)):
        if value is not None:
            raise UsageError(f"--suggest runs blocks of its own: leave {option} out")
    found = suggest_ledger(
        method_named(parsed.method),
        parsed.dtype,
        _given(parse_parameters(parsed.parameter)),
        parsed.device,
        parsed.slice_dim,
    )
    import json

    return json.dumps(found.as_json(), indent=1) if parsed.json else str(found)

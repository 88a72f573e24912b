"""Options that several subcommands share."""

from __future__ import annotations

import argparse
from typing import Any, Literal


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add --device, --memory, --host-memory, --block, --fit and --estimator."""
    parser.add_argument(
        "--device",
        default="auto",
        metavar="auto|cpu|cuda:N",
        help="where to run (default: a GPU if there is one)",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="memory to use on the device, such as 16GB or 512MiB (default: what is free)",
    )
    parser.add_argument(
        "--host-memory",
        metavar="SIZE",
        help="host memory to use when running on a GPU (default: most of what is free)",
    )
    parser.add_argument(
        "--block",
        default="auto",
        type=block_size,
        metavar="N|auto|max",
        help="slices in a block (default: auto)",
    )
    parser.add_argument(
        "--fit",
        default="none",
        choices=["none", "auto"],
        help="auto: where a slice does not fit, work in tiles or on the host (default: none)",
    )
    parser.add_argument(
        "--estimator",
        choices=["declared", "recorded", "replayed", "probed", "bisected"],
        help="the only source of estimates to use (default: declared, else recorded, replayed or "
        "probed)",
    )


def add_allow_missing_frames(parser: argparse.ArgumentParser) -> None:
    """Add --allow-missing-frames."""
    parser.add_argument(
        "--allow-missing-frames",
        action="store_true",
        help="read frames that were never written as the fill value, with a warning",
    )


def add_sweep(parser: argparse.ArgumentParser) -> None:
    """Add --sweep."""
    parser.add_argument(
        "--sweep",
        metavar="STEP.PARAMETER=VALUES",
        help="process the middle row with several values of a parameter: fbp.center=203:208:0.5 "
        "(the stop excluded) or fbp.center=[203,204.5]; a step is named by its id or its method",
    )


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add --engine, --workers and --gpus."""
    parser.add_argument(
        "--engine",
        default="local",
        metavar="local|dask|dask:ADDRESS",
        help="what runs the blocks: this process, processes of this machine, or the workers of a "
        "Dask scheduler (default: local)",
    )
    parser.add_argument(
        "--workers",
        type=positive,
        metavar="N",
        help="processes on the CPU of this machine (engine dask)",
    )
    parser.add_argument(
        "--gpus",
        type=gpu_count,
        metavar="N|all",
        help="GPUs of this machine, with a process for each (engine dask)",
    )


def positive(text: str) -> int:
    """A number from 1."""
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")


def gpu_count(text: str) -> int | Literal["all"]:
    """Number of GPUs, or ``all``."""
    return "all" if text == "all" else positive(text)


def add_output_options(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --json, --quiet, --verbose and --log-file; `what` is printed."""
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON")
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print warnings, errors and --json only"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="say on standard error what is being done"
    )
    parser.add_argument(
        "--log-file", metavar="FILE", help="append all that is said, and when, to a file"
    )


def block_size(text: str) -> int | Literal["auto", "max"]:
    """Number of slices in a block, or ``auto`` or ``max``."""
    if text == "auto":
        return "auto"
    if text == "max":
        return "max"
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is neither a positive number, auto nor max")


def limit_arguments(parsed: argparse.Namespace) -> dict[str, Any]:
    """Shared options as keywords of `maxslices.plan` and `maxslices.run`."""
    return {
        "device": parsed.device,
        "memory": parsed.memory,
        "host_memory": parsed.host_memory,
        "block": parsed.block,
        "fit": parsed.fit,
        "estimator": parsed.estimator,
    }

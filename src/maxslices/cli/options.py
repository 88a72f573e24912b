"""Options that several subcommands share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Literal

from ..errors import UsageError


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
        choices=["declared", "recorded", "traced", "probed", "searched"],
        help="the only source of estimates to use (default: declared, else recorded, traced or "
        "probed)",
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


def parameters(texts: Sequence[str]) -> dict[str, Any]:
    """Read ``name=value`` of each; the values as a pipeline file would have them.

    Raises
    ------
    UsageError
        If one is something else, or a name is given twice.
    """
    import yaml

    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(
                f"{text!r} is no parameter: write name=value, such as -p kernel_size=5"
            )
        if name in found:
            raise UsageError(f"the parameter {name} is given twice; the second is {text!r}")
        try:
            found[name] = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError):  # a date that there is not
            raise UsageError(f"the value in {text!r} cannot be read: write it as in YAML") from None
    return found


def limit_arguments(parsed: argparse.Namespace) -> dict[str, Any]:
    """Keywords of `maxslices.plan` and `maxslices.run` for the options of `add_limits`."""
    return {
        "device": parsed.device,
        "memory": parsed.memory,
        "host_memory": parsed.host_memory,
        "block": parsed.block,
        "fit": parsed.fit,
        "estimator": parsed.estimator,
    }

"""``maxslices methods [NAME]``."""

from __future__ import annotations

import argparse
import inspect
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser("methods", help="list the methods, or describe one")
    parser.add_argument("name", metavar="NAME", nargs="?", help="a method")
    parser.set_defaults(handle=handle)


def handle(parsed: argparse.Namespace) -> None:
    """Print the list, or one method's parameters and declarations."""
    from ..registry import registry

    if parsed.name:
        print(_description(registry.get(parsed.name)))
        return
    from ..errors import UnknownMethodError

    if not len(registry):
        raise UnknownMethodError(
            "no methods are installed: pip install maxslices-methods, or another package that "
            "has the entry point maxslices.methods"
        )
    width = max(len(meta.name) for meta in registry)
    for meta in registry:
        print(f"{meta.name:<{width}}  {meta.pattern:<10}  {_summary(meta)}"[:100].rstrip())


def _summary(meta: Any) -> str:
    text = inspect.getdoc(meta.function) or ""
    return text.split("\n", 1)[0]


def _description(meta: Any) -> str:
    from ..parameters import annotations_of, type_name

    hints = annotations_of(meta.function)
    lines = [f"{meta.full_name}", f"  {_summary(meta)}", ""]
    lines.append(f"  pattern    {meta.pattern}")
    if meta.halo:
        halo = "depends on the parameters" if callable(meta.halo) else meta.halo
        lines.append(f"  halo       {halo}")
    if meta.side_results:
        lines.append(f"  returns    side results: {', '.join(meta.side_results)}")
    lines.append(f"  estimator  {'declared' if meta.estimator else 'none'}")
    lines.append("")
    lines.append("  parameters")
    for name, parameter in meta.parameters.items():
        kind = type_name(hints[name]) if name in hints else ""
        if name in meta.supplied:
            kind = "supplied by the runner"
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"    {name}{default}{f'  ({kind})' if kind else ''}")
    if not meta.parameters:
        lines.append("    none")
    return "\n".join(lines)

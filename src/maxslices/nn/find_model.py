"""Import of the model named on the command line as ``package.module:callable``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..core.author_code import raised_at
from ..core.named_method import first_line, import_named
from ..errors import UsageError

EXAMPLE = "torchvision.models:resnet50"
"""Shown to who does not name a model."""


def model_named(
    text: str, arguments: dict[str, Any] | None = None, *, with_data: bool = False
) -> nn.Module:
    """Import a model's class or function, and build the model.

    Parameters
    ----------
    text : str
        ``module:callable``, such as ``torchvision.models:resnet50``: a class or a function
        that returns a model, or a model itself. Modules are found where Python finds them,
        and in the current folder.
    arguments : dict, optional
        Keyword arguments for it.
    with_data : bool
        Whether weights have data; by default they take neither memory nor time.

    Raises
    ------
    UsageError
        If there is no such module or name in it, or it makes no model.
    """
    found = import_named(text, EXAMPLE)
    if isinstance(found, nn.Module):
        if arguments:
            raise UsageError(
                f"{text} is a model already, and takes no {', '.join(arguments)}: name the class "
                "or function that makes it, or leave -p out"
            )
        return found
    if not callable(found):
        raise UsageError(
            f"{text} is of type {type(found).__name__}: neither a model nor what makes one"
        )
    try:
        made = found(**arguments or {}) if with_data else _made(found, arguments or {})
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a model's code raises, in one line
        raise UsageError(
            f"{text} cannot be made: {type(error).__name__}: {first_line(error)}"
            f"{raised_at(error, found)}; give it arguments with -p name=value"
        ) from error
    if not isinstance(made, nn.Module):
        raise UsageError(
            f"{text} returns something of type {type(made).__name__}, not a torch.nn.Module"
        )
    return made


def _made(function: Any, arguments: dict[str, Any]) -> Any:
    """Build the model on the meta device, so that its weights take neither memory nor time."""
    try:
        with torch.device("meta"):
            return function(**arguments)
    except (RuntimeError, NotImplementedError):  # it looks at numbers that are not there
        return function(**arguments)

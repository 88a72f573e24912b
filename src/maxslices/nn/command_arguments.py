"""Values of ``maxslices nn``: shapes, inputs, targets, losses, devices and dtypes from text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError, UsageError

if TYPE_CHECKING:
    from torch import nn

    from .step.call_inputs import CallInputs


from ..core.author_code import raised_at
from ..core.named_method import first_line, import_named

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
    from torch import nn

    target = import_named(text, EXAMPLE)
    if isinstance(target, nn.Module):
        if arguments:
            raise UsageError(
                f"{text} is a model already, and takes no {', '.join(arguments)}: name the class "
                "or function that makes it, or leave -p out"
            )
        return target
    if not callable(target):
        raise UsageError(
            f"{text} is of type {type(target).__name__}: neither a model nor what makes one"
        )
    try:
        model = _made(target, arguments or {}, with_data)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a model's code raises, in one line
        raise UsageError(
            f"{text} cannot be made: {type(error).__name__}: {first_line(error)}"
            f"{raised_at(error, target)}; give it arguments with -p name=value"
        ) from error
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"{text} returns something of type {type(model).__name__}, not a torch.nn.Module"
        )
    return model


def _made(function: Any, arguments: dict[str, Any], with_data: bool) -> Any:
    """Build the model, on the meta device if it can be: weights take no memory or time there."""
    import torch

    if not with_data:
        with suppress(RuntimeError, NotImplementedError), torch.device("meta"):
            return function(**arguments)
    return function(**arguments)  # it may look at numbers


_TENSOR = re.compile(r"(?:(\w+)=)?([0-9]+(?:x[0-9]+)*)(?::(\w+))?")


def require_torch() -> None:
    """Check that torch can be imported.

    Raises
    ------
    DeviceError
        If it is not installed, or damaged.
    """
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise DeviceError("maxslices nn needs torch: pip install 'maxslices[torch]'")
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:  # a library of it that is missing or damaged
        raise DeviceError(
            f"maxslices nn needs torch, which is installed and cannot be imported: {error}; "
            "install it again"
        ) from None


def shape_of_text(text: str) -> tuple[int, ...]:
    """Shape from text such as "256x256"."""
    if not re.fullmatch(r"[1-9][0-9]*(x[1-9][0-9]*)*", text):
        raise UsageError(f"{text!r} is no shape: write sizes with an x between them: 256x256")
    return tuple(map(int, text.split("x")))


def dtype_of_text(text: str) -> Any:
    """Dtype of torch by its name."""
    import torch

    dtype = getattr(torch, text, None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"{text!r} is no dtype of torch, such as float32 or int64")
    return dtype


def inputs_of_texts(texts: Sequence[str]) -> CallInputs:
    """Arguments of the model: those without a name come first, in order."""
    from .step.call_inputs import CallInputs

    values: list[Any] = []
    names: list[str] = []
    for text in texts:
        name, spec = _tensor(text, "input")
        if names and not name:
            raise UsageError(f"--input {text} has no name, and comes after one that has")
        if name in names:
            raise UsageError(f"--input {name} is given twice; the second is {text!r}")
        values.append(spec)
        names += [name] if name else []
    return CallInputs(tuple(values), tuple(names))


def targets_of_texts(texts: Sequence[str]) -> Callable[..., Any] | None:
    """Function that makes targets with the first axis of the input, or None."""
    from dataclasses import replace

    from .replay import Spec

    pairs = [_tensor(text, "target") for text in texts]
    named = [name for name, _ in pairs if name]
    if named:
        raise UsageError(f"targets have no names: leave {named[0]}= out")
    if not pairs:
        return None
    specs = [spec for _, spec in pairs]

    def targets(*inputs: Any) -> tuple[Spec, ...]:
        n = next((each.shape[0] for each in inputs if getattr(each, "shape", ())), 1)
        return tuple(replace(spec, shape=(n, *spec.shape[1:])) for spec in specs)

    return targets


def _tensor(text: str, what: str) -> tuple[str, Any]:
    from .replay import Spec

    match = _TENSOR.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is no {what}: write its shape, such as 128x3x224x224, and if need be its "
            "dtype, such as 8x128:int64"
        )
    return match[1] or "", Spec(shape_of_text(match[2]), dtype_of_text(match[3] or "float32"))


def loss_of_text(text: str | None) -> Any:
    """Loss by torch's name, or ``module:callable``; a class is called without arguments."""
    if text is None:
        return None
    if ":" not in text:
        from .step.losses import loss_named

        return loss_named(text)
    from ..core.named_method import import_named

    target = import_named(text, "torch.nn:CrossEntropyLoss")
    loss = target() if isinstance(target, type) else target
    if not callable(loss):
        raise UsageError(f"{text} is of type {type(loss).__name__}, not a loss that can be called")
    return loss


def device_of_text(text: str | None) -> str | None:
    """Name of a device that is here; None for "auto" without one.

    Raises
    ------
    UsageError
        If it is no name of one.
    DeviceError
        If there is no such device.
    """
    import torch

    from ..devices.backend import check_device_name

    if text is None or check_device_name(text) == "cpu":
        return text
    n_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if text == "auto":
        return "cuda" if n_devices else None
    if (torch.device(text).index or 0) >= n_devices:
        raise DeviceError(
            f"no device {text}: torch finds no such GPU here; for a card that is elsewhere, give "
            "its --memory alone"
        )
    return text

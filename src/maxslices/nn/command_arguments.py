"""Arguments of ``maxslices nn`` from text: models, shapes, losses, devices and dtypes."""

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
"""Example shown in error messages."""


def model_named(
    text: str, arguments: dict[str, Any] | None = None, *, with_data: bool = False
) -> nn.Module:
    """Import a model's class or function, and build the model.

    Parameters
    ----------
    text : str
        ``module:callable``, such as ``torchvision.models:resnet50``: a class or a function that
        returns a model, or a model itself. Modules are imported as by Python, and from the current
        folder.
    arguments : dict, optional
        Keyword arguments for it.
    with_data : bool
        Whether weights have data. By default they take neither memory nor time.

    Raises
    ------
    UsageError
        If the module or name does not exist, or does not make a model.
    """
    from torch import nn

    target = import_named(text, EXAMPLE)
    if isinstance(target, nn.Module):
        if arguments:
            raise UsageError(
                f"{text} is already a model, and takes no {', '.join(arguments)}. Name the class "
                "or function that makes it, or omit -p"
            )
        return target
    if not callable(target):
        raise UsageError(
            f"{text} is of type {type(target).__name__}, neither a model nor a function or class"
        )
    try:
        model = _made(target, arguments or {}, with_data)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a model's code raises, in one line
        raise UsageError(
            f"{text} cannot be created: {type(error).__name__}: {first_line(error)}"
            f"{raised_at(error, target)}. Pass arguments with -p name=value"
        ) from error
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"{text} returns something of type {type(model).__name__}, not a torch.nn.Module"
        )
    return model


def _made(function: Any, arguments: dict[str, Any], with_data: bool) -> Any:
    """Build the model, on the meta device if possible, where weights take no memory or time."""
    import torch

    if not with_data:
        with suppress(RuntimeError, NotImplementedError), torch.device("meta"):
            return function(**arguments)
    return function(**arguments)  # it may read weights


_TENSOR = re.compile(r"(?:(\w+)=)?([0-9]+(?:x[0-9]+)*)(?::(\w+))?")


def require_torch() -> None:
    """Check that torch can be imported.

    Raises
    ------
    DeviceError
        If torch is missing or damaged.
    """
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise DeviceError("maxslices nn needs torch: pip install 'maxslices[torch]'")
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:  # a library of it that is missing or damaged
        raise DeviceError(
            f"maxslices nn needs torch, which is installed and cannot be imported: {error}. "
            "Install it again"
        ) from None


def shape_of_text(text: str) -> tuple[int, ...]:
    """Shape from text such as "256x256"."""
    if not re.fullmatch(r"[1-9][0-9]*(x[1-9][0-9]*)*", text):
        raise UsageError(f"{text!r} is not a shape, such as 256x256")
    return tuple(map(int, text.split("x")))


def dtype_of_text(text: str) -> Any:
    """Dtype of torch by its name."""
    import torch

    dtype = getattr(torch, text, None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"{text!r} is not a dtype of torch, such as float32 or int64")
    return dtype


def inputs_of_texts(texts: Sequence[str]) -> CallInputs:
    """Arguments of the model, first those without a name."""
    from .step.call_inputs import CallInputs

    values: list[Any] = []
    names: list[str] = []
    for text in texts:
        name, spec = _tensor(text, "input")
        if names and not name:
            raise UsageError(f"--input {text} has no name, and comes after an input with a name")
        if name in names:
            raise UsageError(f"--input {name} is repeated: {text!r}")
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
        raise UsageError(f"targets have no names: omit {named[0]}=")
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
            f"{text!r} is not a shape of the {what}, such as 128x3x224x224, or 8x128:int64 with "
            "its dtype"
        )
    return match[1] or "", Spec(shape_of_text(match[2]), dtype_of_text(match[3] or "float32"))


def loss_of_text(text: str | None) -> Any:
    """Loss by torch's name, or ``module:callable``. A class is called without arguments."""
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
    """Name of a device of this machine, or None for "auto" without one.

    Raises
    ------
    UsageError
        If the text is not the name of a device.
    DeviceError
        If the device does not exist.
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
            f"no device {text}: torch does not find this GPU. For a card that is not present, pass "
            "--memory alone"
        )
    return text

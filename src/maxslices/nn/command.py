"""``maxslices nn report|batch|patch|reduce|tiles MODULE:CALLABLE``."""

from __future__ import annotations

import argparse
import json
import shlex
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MaxslicesError, UsageError
from .command_arguments import (
    axes_of_text,
    device_of_text,
    dtype_of_text,
    inputs_of_texts,
    loss_of_text,
    means_of_text,
    memory_of_arguments,
    require_torch,
    shape_of_text,
    targets_of_texts,
)
from .replay_progress import shown

if TYPE_CHECKING:
    from torch.nn import Module

OPTIMIZERS = (
    "sgd", "momentum", "adam", "adamw", "rmsprop", "adagrad", "adadelta", "adamax", "nadam",
    "radam",
)  # fmt: skip
"""Names of optimizers, as in `maxslices.nn.model_step`, which needs torch."""
_INPUT = "[NAME=]NxCxHxW[:DTYPE]"


def add_parser(subparsers: Any) -> None:
    """Add the subcommand with its own subcommands."""
    parser = subparsers.add_parser(
        "nn",
        help="networks: where the memory goes, what fits, and what makes a step fit",
        description="Say what a torch model takes, predicted without a device: where the memory "
        "goes, the largest batch, patch and tiles, and what makes a training step fit.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    action = _add(actions, "report", _report, "say where the memory of a step goes")
    _add_inputs(action, "--input", required=True)
    _add_training(action)
    action.add_argument("--forward", action="store_true", help="a forward pass with gradients")
    action.add_argument("--ddp", action="store_true", help="with DistributedDataParallel")
    action.add_argument("--plot", metavar="FILE", help="draw memory over the step to an image file")

    action = _add(actions, "batch", _batch, "find the largest batch")
    sizes = action.add_mutually_exclusive_group(required=True)
    sizes.add_argument("--patch", metavar="HxW", help="spatial shape of a sample")
    _add_inputs(sizes, "--input")
    _add_search(action)
    _add_training(action)
    action.add_argument(
        "--max-batch-size", type=int, help="bound of the search (default: the memory's)"
    )

    action = _add(actions, "patch", _patch, "find the largest patch")
    action.add_argument("--ndim", type=int, required=True, help="spatial axes: 2 or 3")
    action.add_argument("--batch-size", type=int, default=1, help="patches in a batch (default: 1)")
    _add_search(action)
    _add_training(action)
    action.add_argument(
        "--max-scale-factor", type=int, help="bound of the search (default: the memory's)"
    )
    action.add_argument("--divisible", metavar="HxW", help="what each axis must be divisible by")
    action.add_argument("--volume", metavar="DxHxW", help="shape that patches are cut from")
    action.add_argument("--axes", metavar="N,N", help="axes that grow, such as 1,2")
    action.add_argument("--start", metavar="DxHxW", help="the smallest patch")

    action = _add(actions, "reduce", _reduce, "find what makes a training step fit")
    _add_inputs(action, "--input", required=True)
    _add_training(action, "adam")
    action.add_argument("--means", metavar="NAME,NAME", help="kinds of changes (default: all)")

    action = _add(actions, "tiles", _tiles, "find the largest exact tiles of an image")
    action.add_argument(
        "--input", required=True, metavar="NxCxHxW[:DTYPE]", help="shape of the whole image"
    )


def _add(actions: Any, name: str, handle: Any, text: str) -> argparse.ArgumentParser:
    action: argparse.ArgumentParser = actions.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False
    )
    action.add_argument(
        "model", metavar="MODULE:CALLABLE", help="such as torchvision.models:resnet50"
    )
    action.add_argument(
        "-p",
        "--parameter",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a keyword argument of the callable; may be repeated",
    )
    action.add_argument("--amp", choices=("float16", "bfloat16"), help="autocast to this precision")
    action.add_argument(
        "--memory", metavar="SIZE", help="memory of a card that need not be here, such as 24GB"
    )
    action.add_argument("--card", metavar="NAME", help="a card by its name, such as 'RTX 4090'")
    action.add_argument("--device", metavar="auto|cuda:N", help="a device that is here")
    action.add_argument("--json", action="store_true", help="print the figures as JSON")
    action.set_defaults(handle=handle)
    if name != "tiles":
        action.add_argument(
            "--call", metavar="METHOD", help="method of the model that is called, not forward"
        )
    return action


def _add_inputs(action: Any, flag: str, **options: Any) -> None:
    action.add_argument(
        flag,
        action="append",
        metavar=_INPUT,
        help="shape of an input, such as 128x3x224x224 or input_ids=8x128:int64; again for each "
        "further one",
        **options,
    )


def _add_training(action: argparse.ArgumentParser, default: str | None = None) -> None:
    action.add_argument(
        "--train",
        choices=OPTIMIZERS,
        metavar="OPTIMIZER",
        default=default,
        help=f"a step of training with one of {', '.join(OPTIMIZERS)}"
        + (f" (default: {default})" if default else ""),
    )
    action.add_argument(
        "--loss",
        metavar="NAME|MODULE:CALLABLE",
        help="loss of torch.nn, such as CrossEntropyLoss, or another (default: the model's own, or "
        "the sum of its output)",
    )
    action.add_argument(
        "--targets",
        action="append",
        default=[],
        metavar="NxHxW[:DTYPE]",
        help="shape of what the loss compares the output with (default: by the loss)",
    )


def _add_search(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--channels", type=int, help="channels of the input (default: in_channels); 0: no such axis"
    )
    action.add_argument("--dtype", default="float32", help="dtype of the input (default: float32)")
    action.add_argument(
        "--safety-factor", type=float, default=0.9, help="part of the memory to use (default: 0.9)"
    )
    action.add_argument(
        "--margin", metavar="SIZE", help="memory to leave free, or 0, in place of that part"
    )


def _answered(
    parsed: argparse.Namespace, ask: Callable[[Module], Any], *, with_data: bool = False
) -> Any:
    """Answer a question about the model; where code looks at its weights, they are made."""
    require_torch()
    from ..pipeline.parameter_arguments import parse_parameters
    from .find_model import model_named
    from .replay import DataDependentError

    arguments = parse_parameters(parsed.parameter)
    model = model_named(parsed.model, arguments, with_data=with_data)
    with _named(parsed.model), shown(parsed.action):
        try:
            return ask(model)
        except DataDependentError:
            tensors = (*model.parameters(), *model.buffers())
            if not any(tensor.is_meta for tensor in tensors):
                raise
            return ask(model_named(parsed.model, arguments, with_data=True))


def _report(parsed: argparse.Namespace) -> str:
    from ..checking.call_picture import check_picture

    if parsed.train and parsed.forward:
        raise UsageError("--train and --forward are two different steps: give one of them")
    if parsed.plot is not None:
        check_picture(Path(parsed.plot))
    require_torch()
    from . import memory_report

    inputs, step = inputs_of_texts(parsed.input), _step(parsed)
    if parsed.forward:
        step["mode"] = "forward"
    is_eval = step["mode"] == "inference"

    def ask(model: Module) -> Any:
        return memory_report(
            model.eval() if is_eval else model, inputs, ddp=parsed.ddp, **step, **_card(parsed)
        )

    report = _answered(parsed, ask)
    if parsed.plot is not None:
        report.plot(parsed.plot)
    if parsed.json:
        return json.dumps(report.as_json(), indent=1)
    return f"{report}\n\n{_next_step(parsed, report)}".rstrip()


def _next_step(parsed: argparse.Namespace, report: Any) -> str:
    """Command that makes the step fit, or need less."""
    if parsed.forward or (not parsed.train and (report.fits is not False or len(parsed.input) > 1)):
        return ""
    words = ["maxslices", "nn", "reduce" if parsed.train else "tiles", parsed.model]
    for flag, given in (
        ("-p", parsed.parameter), ("--input", parsed.input), ("--train", parsed.train),
        ("--loss", parsed.loss), ("--targets", parsed.targets), ("--call", parsed.call),
        ("--amp", parsed.amp),
        ("--memory", None if report.fits else parsed.memory),
        ("--card", None if report.fits else parsed.card),
    ):  # fmt: skip
        for each in given if isinstance(given, list) else [given] if given else []:
            words += [flag, each]
    if report.fits is False:
        return f"To make it fit: {shlex.join(words)}"
    return f"To make it fit into less: {shlex.join(words)} --memory SIZE"


def _batch(parsed: argparse.Namespace) -> str:
    require_torch()
    from . import max_batch_size

    if parsed.input and parsed.channels is not None:
        raise UsageError("--channels goes with --patch: an --input has its channels in its shape")
    samples: Any = inputs_of_texts(parsed.input) if parsed.input else shape_of_text(parsed.patch)
    search = _search(parsed)
    found = _answered(
        parsed,
        lambda model: max_batch_size(
            model, samples, parsed.channels, max_batch_size=parsed.max_batch_size, **search
        ),
    )
    return _printed(parsed, found.result)


def _patch(parsed: argparse.Namespace) -> str:
    require_torch()
    from . import max_patch_shape

    if parsed.targets:
        raise UsageError("--targets has one shape, and patches have many: leave it out")
    search = _search(parsed)
    for name in ("divisible", "volume", "start"):
        text = getattr(parsed, name)
        search["min_divisible" if name == "divisible" else name] = text and shape_of_text(text)
    search["axes"] = parsed.axes and axes_of_text(parsed.axes)
    found = _answered(
        parsed,
        lambda model: max_patch_shape(
            model, parsed.ndim, parsed.batch_size, in_channels=parsed.channels,
            max_scale_factor=parsed.max_scale_factor, **search,
        ),
    )  # fmt: skip
    return _printed(parsed, found.result)


def _reduce(parsed: argparse.Namespace) -> str:
    require_torch()
    from . import reduce_memory

    inputs, step, means = inputs_of_texts(parsed.input), _step(parsed), means_of_text(parsed.means)
    del step["mode"]
    _, summary = _answered(
        parsed,
        lambda model: reduce_memory(model, inputs, means=means, **step, **_card(parsed)),
    )
    return _printed(parsed, summary)


def _tiles(parsed: argparse.Namespace) -> str:
    require_torch()
    from .inference_tiles import best_tiles

    image = inputs_of_texts([parsed.input]).values[0]
    if len(image.shape) < 3:
        raise UsageError(f"{parsed.input!r} is no image: write its batch, channels and axes")
    amp = parsed.amp and dtype_of_text(parsed.amp)
    tiling = _answered(
        parsed, lambda model: best_tiles(model, image, amp=amp, **_card(parsed)), with_data=True
    )
    return _printed(parsed, tiling)


def _printed(parsed: argparse.Namespace, answer: Any) -> str:
    return json.dumps(answer.as_json(), indent=1, default=str) if parsed.json else str(answer)


@contextmanager
def _named(text: str) -> Iterator[None]:
    """Turn errors of a model's code into one line that says where; other errors pass."""
    try:
        yield
    except MaxslicesError:
        raise
    except Exception as error:
        *_, last = traceback.extract_tb(error.__traceback__)
        if Path(last.filename).is_relative_to(Path(__file__).parents[1]):
            raise
        message = (str(error).splitlines() or ["no message"])[0]
        raise UsageError(
            f"{text} raised {type(error).__name__}: {message} ({last.filename}:{last.lineno})"
        ) from error


def _card(parsed: argparse.Namespace) -> dict[str, Any]:
    return {"memory": memory_of_arguments(parsed), "device": device_of_text(parsed.device)}


def _step(parsed: argparse.Namespace) -> dict[str, Any]:
    if not parsed.train and (parsed.loss or parsed.targets):
        given = "--loss" if parsed.loss else "--targets"
        raise UsageError(f"{given} goes with --train: name an optimizer, such as --train adam")
    return {
        "mode": "training" if parsed.train else "inference",
        "optimizer": parsed.train,
        "loss": loss_of_text(parsed.loss),
        "targets": targets_of_texts(parsed.targets),
        "amp": parsed.amp and dtype_of_text(parsed.amp),
        "prediction_function": parsed.call,
    }


def _search(parsed: argparse.Namespace) -> dict[str, Any]:
    return {
        **_step(parsed),
        **_card(parsed),
        "margin": 0 if parsed.margin == "0" else parsed.margin,
        "safety_factor": parsed.safety_factor,
        "dtype": dtype_of_text(parsed.dtype),
    }

"""``maxslices nn report|batch|patch|reduce MODULE:CALLABLE``."""

from __future__ import annotations

import json as json_text
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.author_code import raised_at
from ..core.named_method import first_line
from ..errors import MaxslicesError, UsageError
from .command_arguments import (
    device_of_text,
    dtype_of_text,
    inputs_of_texts,
    loss_of_text,
    require_torch,
    shape_of_text,
    targets_of_texts,
)
from .step import OPTIMIZERS

if TYPE_CHECKING:
    from torch.nn import Module


nn = click.Group(
    "nn",
    help="Predict the memory of a torch model without a device: where it goes, the largest batch "
    "and patch, and the rewrites that make a training step fit.",
    short_help="predict the memory of networks, and make training steps fit",
)


def _inputs(is_required: bool = False) -> click.Option:
    return click.Option(
        ["--input", "inputs"],
        multiple=True,
        required=is_required,
        metavar="[NAME=]NxCxHxW[:DTYPE]",
        help="shape of an input, such as 128x3x224x224 or input_ids=8x128:int64; may be repeated",
    )


_MODEL = [
    click.Argument(
        ["model"], metavar="MODULE:CALLABLE", help="such as torchvision.models:resnet50"
    ),
    click.Option(
        ["-p", "--parameter", "parameters"],
        multiple=True,
        metavar="NAME=VALUE",
        help="keyword argument of the callable; may be repeated",
    ),
    click.Option(
        ["--amp"], type=click.Choice(["float16", "bfloat16"]), help="autocast to this precision"
    ),
    click.Option(
        ["--memory", "--card"],
        metavar="SIZE|NAME",
        help="memory of a card that need not be present, such as 24GB, or its name: 'RTX 4090'",
    ),
    click.Option(["--device"], metavar="auto|cuda:N", help="device of this machine"),
    click.Option(["--json"], is_flag=True, help="print the figures as JSON"),
]
_CALL = click.Option(
    ["--call"], metavar="METHOD", help="method of the model to call in place of forward"
)


_TRAINING = [
    click.Option(
        ["--accumulate"],
        type=int,
        default=1,
        show_default=True,
        help="batches whose gradients are accumulated for a step of the optimizer",
    ),
    click.Option(
        ["--optimizer-state"],
        metavar="SIZE",
        help="memory of the state of another optimizer, in place of --train",
    ),
]


def _training(default: str | None = None) -> list[click.Parameter]:
    return [
        click.Option(
            ["--train"],
            type=click.Choice(OPTIMIZERS),
            metavar="OPTIMIZER",
            default=default,
            show_default=True,
            help=f"a training step with one of {', '.join(OPTIMIZERS)}",
        ),
        click.Option(
            ["--loss"],
            metavar="NAME|MODULE:CALLABLE",
            help="loss of torch.nn, such as CrossEntropyLoss, or another (default: the model's "
            "own, or the sum of its output)",
        ),
        click.Option(
            ["--targets"],
            multiple=True,
            metavar="NxHxW[:DTYPE]",
            help="shape of the targets of the loss (default: by the loss)",
        ),
    ]


_SAFETY = click.Option(
    ["--safety-factor"],
    type=float,
    default=0.9,
    show_default=True,
    help="part of the memory that may be used",
)
_SEARCH = [
    click.Option(
        ["--channels"],
        type=int,
        help="channels of the input, 0 without such an axis (default: in_channels)",
    ),
    click.Option(["--dtype"], help="dtype of the input (default: the model's)"),
    _SAFETY,
]


def _question(
    *params: click.Parameter,
) -> Callable[[Callable[..., Callable[[Module], Any]]], click.Command]:
    """Make a subcommand of a function that turns its options into a function of the model.

    A model that reads its weights is built with their data.
    """

    def decorate(prepare: Callable[..., Callable[[Module], Any]]) -> click.Command:
        def command(model: str, parameters: tuple[str, ...], json: bool, **options: Any) -> str:
            require_torch()
            from ..pipeline.yaml_values import parse_parameters
            from .command_arguments import model_named
            from .replay import DataDependentError

            ask, arguments = prepare(**options), parse_parameters(parameters)
            built = model_named(model, arguments)
            with _named(model):
                try:
                    result = ask(built)
                except DataDependentError:
                    tensors = (*built.parameters(), *built.buffers())
                    if not any(tensor.is_meta for tensor in tensors):
                        raise
                    result = ask(model_named(model, arguments, with_data=True))
            return json_text.dumps(result.to_dict(), indent=1, default=str) if json else str(result)

        options = [*_MODEL, *params]
        return nn.command(prepare.__name__, params=options, help=prepare.__doc__)(command)

    return decorate


@_question(
    _CALL,
    _inputs(is_required=True),
    *_training(),
    *_TRAINING,
    click.Option(["--forward"], is_flag=True, help="a forward pass with gradients"),
    click.Option(["--ddp"], is_flag=True, help="with DistributedDataParallel"),
    _SAFETY,
    click.Option(
        ["--snapshot"],
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="write the step as a memory snapshot of torch, for pytorch.org/memory_viz",
    ),
)
def report(
    inputs: tuple[str, ...],
    forward: bool,
    ddp: bool,
    safety_factor: float,
    snapshot: Path | None,
    **options: Any,
) -> Callable[[Module], Any]:
    """Report where the memory of a step goes."""
    from . import memory_report

    if options["train"] and forward:
        raise UsageError("--train and --forward are different steps: pass one of them")
    arguments, step = inputs_of_texts(inputs), _step(**options)
    if forward:
        step["mode"] = "forward"
    is_eval = step["mode"] == "inference"

    def ask(model: Module) -> Any:
        result = memory_report(
            model.eval() if is_eval else model,
            arguments,
            ddp=ddp,
            safety_factor=safety_factor,
            **step,
        )
        if snapshot is not None:
            try:
                result.write_snapshot(snapshot)
            except OSError as error:
                raise UsageError(f"--snapshot {snapshot}: {error.strerror}") from error
        return result

    return ask


@_question(
    _CALL,
    click.Option(["--patch"], metavar="HxW", help="spatial shape of a sample, in place of --input"),
    _inputs(),
    *_SEARCH,
    *_training(),
    *_TRAINING,
    click.Option(
        ["--max-batch-size"], type=int, help="bound of the search (default: the memory's)"
    ),
)
def batch(
    patch: str | None,
    inputs: tuple[str, ...],
    channels: int | None,
    max_batch_size: int | None,
    **options: Any,
) -> Callable[[Module], Any]:
    """Find the largest batch."""
    from . import max_batch_size as largest

    if (patch is None) == (not inputs):
        raise UsageError("the shape of a sample is missing or repeated: pass --patch or --input")
    if inputs and channels is not None:
        raise UsageError("--channels goes with --patch: the shape of --input includes channels")
    samples: Any = inputs_of_texts(inputs) if patch is None else shape_of_text(patch)
    search = _search(**options) | {"max_batch_size": max_batch_size}
    return lambda model: largest(model, samples, channels, **search).result


@_question(
    _CALL,
    click.Option(["--ndim"], type=int, help="spatial axes (default: of the convolutions)"),
    click.Option(
        ["--batch-size"], type=int, default=1, show_default=True, help="patches in a batch"
    ),
    *_SEARCH,
    *_training(),
    *_TRAINING,
    click.Option(
        ["--max-scale-factor"], type=int, help="bound of the search (default: the memory's)"
    ),
    click.Option(
        ["--divisible", "min_divisible"],
        metavar="HxW",
        help="divisor of each axis",
    ),
    click.Option(
        ["--volume"], metavar="DxHxW", help="shape of the volume from which patches are cut"
    ),
)
def patch(
    ndim: int | None,
    batch_size: int,
    channels: int | None,
    max_scale_factor: int | None,
    **options: Any,
) -> Callable[[Module], Any]:
    """Find the largest patch."""
    from . import max_patch_shape

    if options["targets"]:
        raise UsageError("--targets has one shape, and patches have many: omit it")
    search = _search(**options)
    for name in ("min_divisible", "volume"):
        search[name] = options[name] and shape_of_text(options[name])
    search["max_scale_factor"] = max_scale_factor
    return lambda model: (
        max_patch_shape(model, ndim, batch_size, in_channels=channels, **search).result
    )


@_question(
    _CALL,
    _inputs(is_required=True),
    *_training("adam"),
    click.Option(["--means"], metavar="NAME,NAME", help="kinds of rewrites (default: all)"),
)
def reduce(inputs: tuple[str, ...], means: str | None, **options: Any) -> Callable[[Module], Any]:
    """Find the rewrites that make a training step fit."""
    from . import reduce_memory

    arguments, step = inputs_of_texts(inputs), _step(**options)
    if means is not None:
        step["means"] = means.split(",")
    del step["mode"]
    return lambda model: reduce_memory(model, arguments, **step)[1]


@contextmanager
def _named(text: str) -> Iterator[None]:
    """Turn errors of a model's code into one line with their place."""
    try:
        yield
    except (MaxslicesError, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit would end the program without a message
        *_, last = traceback.extract_tb(error.__traceback__)
        if Path(last.filename).is_relative_to(Path(__file__).parents[1]):
            raise
        place = raised_at(error, text.partition(":")[0]) or f" ({last.filename}:{last.lineno})"
        text_of_error = f"{type(error).__name__}: {first_line(error)}{place}"
        raise UsageError(f"{text} raised {text_of_error}") from error


def _step(
    train: str | None,
    loss: str | None,
    targets: tuple[str, ...],
    amp: str | None,
    memory: str | None,
    device: str | None,
    call: str | None = None,
    accumulate: int | None = None,
    optimizer_state: str | None = None,
    **_: Any,
) -> dict[str, Any]:
    if train and optimizer_state:
        raise UsageError("--train and --optimizer-state are both optimizers: pass one of them")
    if not (train or optimizer_state) and (loss or targets):
        option = "--loss" if loss else "--targets"
        raise UsageError(f"{option} goes with --train: name an optimizer, such as --train adam")
    step = {
        "mode": "training" if train or optimizer_state else "inference",
        "optimizer": train,
        "loss": loss_of_text(loss),
        "targets": targets_of_texts(targets),
        "amp": amp and dtype_of_text(amp),
        "prediction_function": call,
        "memory": memory,
        "device": device_of_text(device),
    }
    if accumulate is not None:  # of the commands that predict
        step |= {"accumulate": accumulate, "optimizer_state_bytes": optimizer_state}
    return step


def _search(safety_factor: float, dtype: str | None, **options: Any) -> dict[str, Any]:
    return {
        **_step(**options),
        "safety_factor": safety_factor,
        "dtype": None if dtype is None else dtype_of_text(dtype),
    }

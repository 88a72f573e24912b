"""A step of a model, with everything for replaying or running it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from ..nn_errors import ModelArgumentError, TraceError, first_line
from ..replay import Replay, Spec, Trace, Workspaces, replay
from ..replay.cuda_kernels import Capability
from ..replay.host_draws import PATHS
from ..replay.meta_copy import meta_copy, optimizer_for, optimizers_in
from ..replay.nested import leaves, map_leaves, tensors_in
from ..replay.replay_step import Mode, StepLoop
from ..replay.step_family import largest_path
from ..replay.trace import N_STEADY
from ..replay.trace import N_STEPS as MOST_STEPS
from . import OPTIMIZERS
from .call_inputs import bind_call, is_sized
from .layer_state import reset_before_calls
from .losses import Loss, OutputLoss, completed, names_of, picked_by, predictions_in, targets_like

N_STEPS = 2
"""Number of replayed steps. Only the second has the optimizer's state, the previous output, and the
workspaces that cuBLAS keeps."""

_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, AssertionError)
"""Errors of a model's code."""

Targets = Callable[..., Any]
"""Function of the inputs' `Spec` that returns the targets' `Spec`, or a tuple of them."""


def optimizer_named(optimizer: Any) -> Any:
    """Class of an optimizer named in `OPTIMIZERS`; optimizers and functions stay unchanged."""
    if optimizer is None or callable(optimizer) or optimizers_in(optimizer):
        return optimizer
    if not isinstance(optimizer, str) or optimizer.lower() not in OPTIMIZERS:
        raise ModelArgumentError(
            f"{optimizer!r} is not the name of an optimizer. Choose one of "
            f"{', '.join(OPTIMIZERS)}, or pass a class such as torch.optim.Adam"
        )
    name, options = OPTIMIZERS[optimizer.lower()]
    kind: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, name)
    return partial(kind, **options) if options else kind


@dataclass(frozen=True, slots=True, eq=False)
class ModelStep:
    """A step of one model, for inputs of any size."""

    model: nn.Module
    """The real model, which is never changed."""
    mode: Mode = "inference"
    optimizer: Any = None
    """Optimizer of the model's parameters, a class, a function that makes one, or None."""
    loss: Loss | None = None
    """``loss(output, *targets)``, or None for the model's own or the sum of its output."""
    targets: Targets | None = None
    """Function that returns the targets' `Spec`, or None for targets chosen by the loss."""
    amp: torch.dtype | None = None
    """Lower precision of autocast, or None."""
    prediction_function: Callable[..., Any] | str | None = None
    """``prediction_function(model, *inputs)``, or the name of a method, called in place of the
    model."""
    evaluate: bool = True
    """True if the model is set to eval mode for inference."""
    names: tuple[str, ...] = ()
    """Keywords of the last inputs."""
    capability: Capability | None = None
    """Compute capability of the card, or None for that of the allowances, 9.0."""
    keep_output: bool = True
    """True if the output of a step is kept until the output of the next replaces it."""
    accumulate: int = 1
    """Number of forward and backward passes for each step of the optimizer."""
    step: Callable[..., Any] | None = None
    """``step(model, optimizer, *inputs)`` in place of the usual step of training."""
    _predictions: dict[str, Spec] = field(default_factory=dict, init=False)
    """Tensor that the loss compares with targets, by the shapes of the inputs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", completed(self.loss))

    @property
    def loop(self) -> StepLoop:
        """Loop over such steps."""
        return StepLoop(
            self.mode,
            self.loss,
            self.amp,
            self.keep_output,
            accumulate=self.accumulate,
            step=self.step,
        )

    def prepared(self, model: nn.Module) -> nn.Module:
        """Set a copy of the model to the mode of the step, and wrap it."""
        if self.mode == "inference":
            if self.evaluate:
                model.eval()
        elif self.mode == "training" and not model.training:
            model.train()  # a model in train mode keeps its frozen parts in eval mode
        if self.step is not None:
            return model
        return bind_call(model, self.prediction_function, self.names)

    def meta_copy(self) -> nn.Module:
        """Copy of the model without data, in the mode of the step, that resets its states."""
        return reset_before_calls(self.prepared(meta_copy(self.model)))

    def trace(
        self,
        inputs: Sequence[Any],
        workspaces: Workspaces,
        *,
        steps: int = N_STEPS,
        change: Callable[[nn.Module], Any] | None = None,
        lines: bool = False,
        watch: Callable[[Replay, nn.Module], None] | None = None,
    ) -> Trace:
        """Replay the step.

        Parameters
        ----------
        inputs : sequence of Spec or tensor
            Arguments of the model, the last of them by the keywords in `names`.
        workspaces : Workspaces
            Workspaces of the libraries.
        steps : int
            Number of training steps, or of passes of inference.
        change : callable, optional
            Function that changes the copy before it is replayed.
        lines : bool
            Whether to record the user's source lines.
        watch : callable, optional
            Function called with the replay and the copy before it runs.
        """
        if self.mode == "training" and not any(p.requires_grad for p in self.model.parameters()):
            raise ModelArgumentError(
                f"{type(self.model).__name__} has no trainable parameters. Set requires_grad, or "
                "choose another mode than training"
            )
        targets: tuple[Any, ...] = ()
        traces: list[Trace] = []
        for draws in ("", *PATHS):
            try:
                targets = targets or self.target_specs(inputs)
                copy = self.meta_copy()
                optimizer = meta_optimizer(self.optimizer, self.model, copy)
                if change is not None:
                    change(copy)
                trace = replay(
                    copy,
                    *inputs,
                    loop=self.loop,
                    targets=targets,
                    optimizer=optimizer,
                    steps=1 if self.mode == "forward" else steps,
                    workspaces=workspaces,
                    capability=self.capability,
                    is_on_meta=True,
                    lines=lines,
                    watch=watch,
                    draws=draws,
                )
            except ModelArgumentError:
                raise
            except (TraceError, *_ERRORS) as error:
                if traces:
                    continue  # a path that ends the step, such as one that drops all layers
                raise self._explained(error, inputs, targets) from error
            traces.append(trace)
            if not traces[0].drawn_from:
                break
        return largest_path(traces[0], traces[1:])

    def _explained(self, error: Exception, inputs: Any, targets: Any) -> Exception:
        """Error with the model's name and the shapes of its arguments."""
        name = type(self.model).__name__
        if isinstance(error, TraceError):
            return type(error)(f"{name}: {error}")
        shapes = shapes_text(inputs)
        if targets and self.targets is not None:
            shapes += f" with targets of {shapes_text(targets)}"
        return ModelArgumentError(f"{name} does not run on {shapes}: {first_line(error)}")

    def target_specs(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Specs of the targets that the loss compares with the output."""
        if self.mode != "training" or self.loss is None:
            return ()
        if self.targets is not None:
            targets = self.targets(*inputs)
            return tuple(targets) if isinstance(targets, list | tuple) else (targets,)
        key = shapes_text(inputs)
        if key not in self._predictions:
            self._predictions[key] = self._prediction(inputs)
        return (targets_like(self.loss, self._predictions[key]),)

    def _prediction(self, inputs: Sequence[Any]) -> Spec:
        """Tensor that the loss compares with targets."""
        assert self.loss is not None
        with Replay(workspaces=Workspaces.none(), lines=False) as record:
            model = record.model(self.meta_copy(), is_on_meta=True)
            output = model(*record.input(tuple(inputs)))
            if isinstance(self.loss, OutputLoss):
                predictions = predictions_in(output)[:1]
            else:
                predictions = picked_by(self.loss, output)
            specs = {Spec(tuple(t.shape), t.dtype) for t in predictions}
            choices = names_of(output)
            del output, predictions
        if len(specs) != 1:
            raise ModelArgumentError(
                f"{type(self.model).__name__} returns {choices}, and it is unknown which of them "
                "the loss compares. Pass targets (--targets on the command line), or a loss that "
                "picks one, such as loss=lambda output, target: mse_loss(output['name'], target)"
            )
        return specs.pop()


def run_step(
    model: nn.Module,
    inputs: Sequence[Any],
    loop: StepLoop,
    optimizer: Any = None,
    targets: Sequence[Any] = (),
    turns: Iterable[int] | None = None,
) -> None:
    """Run steps on real tensors in the way in which they are replayed.

    Each item of `turns` is a step. By default, as many steps run as are replayed, and on a CUDA
    device until they take no memory from it.
    """
    if turns is None:
        device = next(t.device for t in tensors_in(tuple(inputs)))
        if loop.mode == "forward" or device.type != "cuda":
            turns = range(1 if loop.mode == "forward" else N_STEPS)
        else:
            taken = "reserved_bytes.all.allocated"  # total ever taken from the device
            turns = until_no_new_reservation(lambda: int(torch.cuda.memory_stats(device)[taken]))
    loop.run(model, (tuple(inputs), {}), targets, optimizer, turns)


def until_no_new_reservation(taken_bytes: Callable[[], int]) -> Iterator[int]:
    """Count steps until they take no memory from the device, or as many as are simulated.

    A step may run out of memory after others ran, as long as it takes memory from the device.

    Parameters
    ----------
    taken_bytes : callable
        Returns the bytes that the allocator has ever taken from the device.
    """
    calm, taken = 0, taken_bytes()
    for turn in range(MOST_STEPS):
        yield turn
        before, taken = taken, taken_bytes()
        calm = calm + 1 if taken == before else 0
        if calm == N_STEADY:
            return


def meta_optimizer(optimizer: Any, real: nn.Module, copy: nn.Module) -> Any:
    """Function that makes the optimizer of a meta copy, if `optimizer` is a real one."""
    if not optimizers_in(optimizer):
        return optimizer
    copies = {id(a): b for a, b in zip(real.parameters(), copy.parameters(), strict=True)}
    # The replay copies the model again, so it takes a function and not an optimizer.
    return lambda _: optimizer_for(optimizer, copies, copy.parameters())


def placed(inputs: Any, device: torch.device) -> Any:
    """Move real tensors of inputs to a device, except lengths, which torch reads on the host."""

    def moved(item: Any) -> Any:
        if isinstance(item, PackedSequence):
            indices = [i if i is None else i.to(device) for i in item[2:]]
            return PackedSequence(item.data, item.batch_sizes, *indices)
        return item.to(device) if torch.is_tensor(item) else item

    return tree_map(moved, inputs, is_leaf=lambda item: isinstance(item, PackedSequence))


def real_tensors(specs: Any, device: torch.device, *, random: bool = True) -> Any:
    """Tensors with data on a device: random numbers, or zeros.

    Integers are always zeros, which are valid as indices and classes. Tensors that have data are
    moved to the device.
    """

    def convert(item: Any) -> Any:
        if not isinstance(item, Spec):
            return item
        tensor = torch.empty(item.shape, dtype=item.dtype, device=device)
        tensor = tensor.normal_() if random and tensor.is_floating_point() else tensor.zero_()
        return tensor.requires_grad_(item.requires_grad)

    return map_leaves(convert, placed(specs, device))


def shape_text(item: Any) -> str:
    """Shape of a tensor or Spec as "4x1x256x256"."""
    return "x".join(map(str, item.shape)) or "a scalar"


def shapes_text(items: Any) -> str:
    """Shapes of all tensors and Specs in a container."""
    return " and ".join(shape_text(item) for item in leaves(tuple(items)) if is_sized(item))

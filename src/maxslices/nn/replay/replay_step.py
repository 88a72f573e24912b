"""Replay of one step of a model: inference, or training with loss and optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_leaves

from ...errors import UsageError
from ..nn_errors import first_line
from .cuda_kernels import Capability
from .error_translation import translated
from .meta_copy import optimizer_for
from .nested import regrouped, total_of
from .recorder import Replay
from .replay_errors import DataDependentError, TraceError
from .trace import Trace
from .workspaces import Workspaces

Mode = Literal["inference", "forward", "training"]
"""Forward pass without gradients; forward pass with gradients; steps of training."""


def replay(
    target: Callable[..., Any],
    *inputs: Any,
    mode: Mode = "inference",
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Sequence[Any] = (),
    optimizer: Any = None,
    steps: int | None = None,
    keep_output: bool = True,
    zero_grad_first: bool = True,
    amp: torch.dtype | bool | None = None,
    workspaces: Workspaces | None = None,
    capability: Capability | None = None,
    is_on_meta: bool = False,
    lines: bool = True,
    watch: Callable[[Replay, torch.nn.Module], None] | None = None,
    **keywords: Any,
) -> Trace:
    """Replay a step on tensors without data.

    Parameters
    ----------
    target : torch.nn.Module or callable
        A model, which is never changed, or a function on tensors.
    *inputs, **keywords : Any
        Arguments of the call: `Spec` or real tensors, which are not read; other objects are passed
        on.
    mode : {"inference", "forward", "training"}
        Step to replay. A model is used in the train or eval mode that it is in.
    loss : callable, optional
        ``loss(output, *targets)``; by default the sum of all items of the output.
    targets : sequence of tensor or Spec
        Tensors that the loss compares the output with; counted as input.
    optimizer : torch.optim.Optimizer, class or callable, optional
        An optimizer of the model's parameters, or a class or function that makes one from a list
        of them. None: gradients are computed and not used.
    steps : int, optional
        Steps of training, or forward passes; by default two and one. The second step has the
        state of the optimizer, and the second pass the workspaces that the first has left.
    keep_output : bool
        Whether the output of a step stays alive until that of the next replaces it, as in a loop
        ``output = model(x); value = loss(output, y); value.backward(); optimizer.step()``; else
        it is dropped when it was used, as in ``value = loss(model(x), y)``.
    zero_grad_first : bool
        Whether gradients are dropped before the forward pass, as in most code, or after the step.
    amp : torch.dtype or bool, optional
        Lower precision of ``torch.autocast("cuda")`` around forward pass and loss; True means
        float16.
    workspaces, capability, lines
        As for `Replay`.
    is_on_meta : bool
        Whether the model is on the meta device already and may be used itself.
    watch : callable, optional
        Called with the replay and the copy of the model before it runs, to add hooks.

    Returns
    -------
    Trace
        Allocations and frees, with the marks "model", "input", and for each step those of
        "forward", "loss", "backward" and "step" that it has.

    Raises
    ------
    DataDependentError
        If the code reads values of a tensor, naming its line.
    TraceError
        If the code cannot be replayed for another reason.
    """
    if mode not in ("inference", "forward", "training"):
        raise UsageError(f"mode {mode!r} is not one of 'inference', 'forward', 'training'")
    casting = _casting(amp)
    record = Replay(workspaces=workspaces, capability=capability, lines=lines)
    with record:
        model = None
        run = target
        if isinstance(target, torch.nn.Module):
            run = model = record.model(target, is_on_meta=is_on_meta)
            if watch is not None:
                watch(record, model)
        record.mark("model")
        given = record.input(inputs)
        named = record.input(keywords)
        wanted = record.input(tuple(targets))
        record.mark("input")
        if mode == "training":
            if model is None or not isinstance(target, torch.nn.Module):
                raise TraceError("training needs a torch.nn.Module, not a function")
            real = {id(a): b for a, b in zip(target.parameters(), model.parameters(), strict=True)}
            made = optimizer_for(optimizer, real, model.parameters())
            alive: list[Any] = [None, None, None]
            for _ in range(2 if steps is None else steps):
                _train(
                    record, model, given, named, wanted, loss, made, zero_grad_first, casting,
                    alive, keep_output,
                )  # fmt: skip
            alive.clear()
        else:
            output = batch = None
            for _ in range(1 if steps is None else steps):
                batch = regrouped((given, named))
                guard = torch.no_grad() if mode == "inference" else nullcontext()
                with guard, casting(), record.stage("forward", "activations"):
                    output = run(*batch[0], **batch[1])
                if not keep_output:
                    output = None
            del output, batch
    return record.trace()


def _train(
    record: Replay,
    model: torch.nn.Module,
    given: Any,
    named: Any,
    wanted: Any,
    loss: Callable[..., torch.Tensor] | None,
    optimizer: torch.optim.Optimizer | None,
    zero_grad_first: bool,
    casting: Callable[[], AbstractContextManager[Any]],
    alive: list[Any],
    keep_output: bool,
) -> None:
    """Replay a step of training; `alive` holds output, loss and batch until those of the next."""
    alive[2] = regrouped((given, named))
    if zero_grad_first:
        _zero_grad(model, optimizer)
    with casting():
        with record.stage("forward", "activations"):
            alive[0] = model(*alive[2][0], **alive[2][1])
        with record.stage("loss", "activations"):
            alive[1] = total_of(alive[0]) if loss is None else loss(alive[0], *wanted)
            _require_scalar(alive[1])
            if not keep_output:
                alive[0] = None
    record.backward(alive[1])
    record.categorize((p.grad for p in model.parameters()), "gradients")
    if optimizer is not None:
        with record.stage("step", "temporary"):
            _step(optimizer)
        record.categorize(tree_leaves(list(optimizer.state.values())), "optimizer state")
    if not zero_grad_first:
        _zero_grad(model, optimizer)


def _step(optimizer: torch.optim.Optimizer) -> None:
    """Take a step of an optimizer.

    Raises
    ------
    DataDependentError
        If it reads values of tensors.
    TraceError
        If it raises.
    """
    name = type(optimizer).__name__
    try:
        type(optimizer).step(optimizer)
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError, TraceError) as error:
        if isinstance(translated(error, None) or error, DataDependentError):
            raise DataDependentError(
                f"a step of {name} needs values of tensors, so what it allocates cannot be known "
                "without running it: name another optimizer with as much state"
            ) from error
        raise TraceError(f"a step of {name} does not run: {first_line(error)}") from error


def _require_scalar(loss: Any) -> None:
    """Require that a loss can be differentiated.

    Raises
    ------
    TraceError
        If it is no tensor of one number, or depends on no parameter.
    """
    if not isinstance(loss, torch.Tensor):
        given = f"a {type(loss).__name__}" if loss is not None else "nothing"
    elif loss.numel() != 1:
        given = f"a tensor of {'x'.join(map(str, loss.shape))}: average it"
    elif not loss.requires_grad:
        given = "a tensor that depends on no parameter that is trained"
    else:
        return
    raise TraceError(f"the loss must return a tensor of one number, not {given}")


def _casting(amp: torch.dtype | bool | None) -> Callable[[], AbstractContextManager[Any]]:
    """Function that makes an autocast context, or one that does nothing."""
    if amp is None or amp is False:
        return nullcontext
    dtype = torch.float16 if amp is True else amp
    if dtype not in (torch.float16, torch.bfloat16):
        raise UsageError(f"amp is torch.float16 or torch.bfloat16, not {amp!r}")
    return lambda: torch.autocast("cuda", dtype=dtype)


def _zero_grad(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    if optimizer is None:
        model.zero_grad(set_to_none=True)
    else:
        type(optimizer).zero_grad(optimizer, set_to_none=True)


__all__ = ["Mode", "replay"]

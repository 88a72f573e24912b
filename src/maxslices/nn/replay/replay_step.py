"""Loop over steps of inference or training, replayed or run on a device."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_leaves

from ...errors import UsageError
from ..nn_errors import DataDependentError, TraceError, first_line
from .cuda_kernels import Capability
from .meta_copy import optimizer_for, optimizers_in
from .module_calls import translated
from .nested import copy_containers, default_loss, tensors_in
from .recorder import Replay
from .trace import Category, Trace
from .workspaces import Workspaces

Mode = Literal["inference", "forward", "training"]
"""Forward pass without gradients, forward pass with gradients, or training steps."""
_STATE: Category = "optimizer state"
MODES: tuple[Mode, ...] = ("inference", "forward", "training")
MOST_STEPS = 4
"""Most training steps that are replayed."""


@dataclass(frozen=True, slots=True)
class StepLoop:
    """A loop over the steps of a model.

    The same code is replayed on tensors without data and run on a device, so both delete their
    tensors at the same places.
    """

    mode: Mode = "inference"
    loss: Callable[..., torch.Tensor] | None = None
    """``loss(output, *targets)``; by default the model's own loss, or the sum of its output."""
    amp: torch.dtype | None = None
    """Lower precision of autocast around forward pass and loss, or None without autocast."""
    keep_output: bool = True
    """Whether the output of a step stays alive until the next output replaces it."""
    accumulate: int = 1
    """Forward and backward passes whose gradients are added before the optimizer's step."""
    step: Callable[..., Any] | None = None
    """``step(model, optimizer, *inputs)``, which replaces the usual training step."""

    def run(
        self,
        model: Callable[..., Any],
        inputs: Any,
        targets: Sequence[Any],
        optimizer: torch.optim.Optimizer | None,
        steps: Iterable[int],
        record: Replay | None = None,
    ) -> None:
        """Run or replay steps.

        Parameters
        ----------
        model : torch.nn.Module or callable
            Model in its train or eval mode.
        inputs : (tuple, dict)
            Positional and keyword arguments of the model.
        targets : sequence of tensor
            Targets of the loss.
        optimizer : torch.optim.Optimizer, optional
            Optimizer of the model's parameters.
        steps : iterable
            Iterable with one item per step.
        record : Replay, optional
            Replay whose stages and categories are set, or None for a real run.
        """
        alive: list[Any] = [None, None, None]  # output, loss and batch, until the next step
        if self.step is not None and record is not None:
            _watch(optimizer, record)
        for _ in steps:
            if self.mode != "training":
                self._predict(model, inputs, record, alive)
                continue
            if self.step is not None:
                self._own_step(model, inputs, optimizer, record, alive)
                continue
            owner: Any = model if optimizer is None else optimizer
            owner.zero_grad()
            closure = None
            if optimizer is not None and _takes_closure(optimizer):
                closure = partial(self._closure, model, inputs, targets, record, alive)
            else:
                for _ in range(self.accumulate):
                    self._pass(model, inputs, targets, record, alive)
            if optimizer is not None:
                with _stage(record, "step", "temporary"):
                    call = _call_step if record is None else _replay_step
                    call(optimizer, closure)
                if record is not None:
                    record.categorize(tree_leaves(list(optimizer.state.values())), _STATE)
        alive.clear()

    def _predict(self, model: Any, inputs: Any, record: Replay | None, alive: list[Any]) -> None:
        alive[2] = copy_containers(inputs)
        guard = torch.no_grad() if self.mode == "inference" else nullcontext()
        with guard, self._autocast(inputs, record), _stage(record, "forward", "activations"):
            alive[0] = model(*alive[2][0], **alive[2][1])
        if not self.keep_output:
            alive[0] = None

    def _closure(
        self, model: Any, inputs: Any, targets: Any, record: Replay | None, alive: list[Any]
    ) -> Any:
        """Compute loss and gradients, for an optimizer that takes a closure."""
        model.zero_grad()
        for _ in range(self.accumulate):
            self._pass(model, inputs, targets, record, alive)
        return alive[1]

    def _pass(
        self,
        model: Any,
        inputs: Any,
        targets: Sequence[Any],
        record: Replay | None,
        alive: list[Any],
    ) -> None:
        """Run the forward and the backward pass of a batch."""
        alive[2] = copy_containers(inputs)
        with self._autocast(inputs, record):
            with _stage(record, "forward", "activations"):
                alive[0] = model(*alive[2][0], **alive[2][1])
            with _stage(record, "loss", "activations"):
                output = alive[0]
                alive[1] = (
                    default_loss(output) if self.loss is None else self.loss(output, *targets)
                )
                del output
                _require_scalar(alive[1])
                if not self.keep_output:
                    alive[0] = None
        with _stage(record, "backward", "temporary"), _check_graph(model):
            alive[1].backward()
        if record is not None:
            record.categorize((p.grad for p in model.parameters()), "gradients")

    def _own_step(
        self,
        model: Any,
        inputs: Any,
        optimizer: torch.optim.Optimizer | None,
        record: Replay | None,
        alive: list[Any],
    ) -> None:
        assert self.step is not None
        alive[2] = copy_containers(inputs)
        with _stage(record, "forward", "activations"), _check_graph(model):
            alive[1] = self.step(model, optimizer, *alive[2][0], **alive[2][1])
        if record is not None:
            record.categorize((p.grad for p in model.parameters()), "gradients")
            for each in optimizers_in(optimizer):
                record.categorize(tree_leaves(list(each.state.values())), _STATE)

    def _autocast(self, inputs: Any, record: Replay | None) -> AbstractContextManager[Any]:
        if self.amp is None:
            return nullcontext()
        kind = "cuda" if record is not None else tensors_in(inputs)[0].device.type
        return torch.autocast(kind, dtype=self.amp)


def replay(
    target: Callable[..., Any],
    *inputs: Any,
    mode: Mode = "inference",
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Sequence[Any] = (),
    optimizer: Any = None,
    steps: int | None = None,
    keep_output: bool = True,
    amp: torch.dtype | bool | None = None,
    workspaces: Workspaces | None = None,
    capability: Capability | None = None,
    is_on_meta: bool = False,
    lines: bool = True,
    watch: Callable[[Replay, torch.nn.Module], None] | None = None,
    loop: StepLoop | None = None,
    draws: str = "",
    **keywords: Any,
) -> Trace:
    """Replay a step on tensors without data.

    Parameters
    ----------
    target : torch.nn.Module or callable
        Model, which is not changed, or a function on tensors.
    *inputs, **keywords : Any
        Arguments of the call: `Spec` or real tensors, whose values are not read. Other objects are
        passed unchanged.
    mode : {"inference", "forward", "training"}
        Step to replay. The model's train or eval mode is not changed.
    loss, keep_output
        As for `StepLoop`.
    targets : sequence of tensor or Spec
        Targets of the loss, which count as input.
    optimizer : torch.optim.Optimizer, class or callable, optional
        Optimizer of the model's parameters, or a class or function that makes one from a list of
        parameters. Without one, gradients are computed and not used.
    steps : int, optional
        Number of forward passes (by default one), or of training steps (by default two). From the
        second on, a step has the state of the optimizer, and a pass has the workspaces that the
        first has left. With two or more training steps, others follow while each leaves more in
        memory than the step before, up to `MOST_STEPS`, since some models train more of their
        parameters later.
    amp : torch.dtype or bool, optional
        Lower precision of ``torch.autocast("cuda")`` around forward pass and loss. True is float16.
    workspaces, capability, lines, draws
        As for `Replay`.
    is_on_meta : bool
        Whether the model is on the meta device and may be used itself.
    watch : callable, optional
        Called with the replay and the copy of the model before it runs, for example to add hooks.
    loop : StepLoop, optional
        Replaces `mode`, `loss`, `keep_output` and `amp`.

    Returns
    -------
    Trace
        Allocations and frees, with the marks "model" and "input", and for each step the marks of
        its stages: "forward", "loss", "backward" and "step".

    Raises
    ------
    DataDependentError
        If the code reads values of a tensor. The message has the line.
    TraceError
        If the code cannot be replayed for another reason.
    """
    if loop is None:
        if mode not in MODES:
            raise UsageError(f"mode {mode!r} is not one of {', '.join(map(repr, MODES))}")
        loop = StepLoop(mode, loss, precision(amp), keep_output)
    record = Replay(workspaces=workspaces, capability=capability, lines=lines, draws=draws)
    with record:
        run = target
        if loop.loss is not None:
            record.watch_draws(loop.loss)
        if isinstance(target, torch.nn.Module):
            run = record.model(target, is_on_meta=is_on_meta)
            if watch is not None:
                watch(record, run)
        else:
            record.watch_draws(target)
        if loop.mode == "training" and run is target and not isinstance(target, torch.nn.Module):
            raise TraceError("training needs a torch.nn.Module, not a function")
        record.mark("model")
        own_inputs = record.input(inputs), record.input(keywords)
        own_targets = record.input(tuple(targets))
        record.mark("input")
        own_optimizer, n_steps = None, 1
        if loop.mode == "training" and isinstance(target, torch.nn.Module):
            assert isinstance(run, torch.nn.Module)
            real = {id(a): b for a, b in zip(target.parameters(), run.parameters(), strict=True)}
            own_optimizer, n_steps = optimizer_for(optimizer, real, run.parameters()), 2
        n_steps = n_steps if steps is None else steps
        turns = range(n_steps) if own_optimizer is None else _until_no_growth(record, n_steps)
        loop.run(run, own_inputs, own_targets, own_optimizer, turns, record)
    return record.trace()


def _until_no_growth(record: Replay, least: int) -> Iterator[int]:
    """Yield steps until one leaves no more in memory than the step before."""
    sizes: list[int] = []
    while len(sizes) < least or (1 < len(sizes) < MOST_STEPS and sizes[-1] > sizes[-2]):
        yield len(sizes)
        sizes.append(record.alive_bytes)


def precision(amp: Any) -> torch.dtype | None:
    """Lower precision of autocast. True is float16.

    Raises
    ------
    UsageError
        If `amp` is invalid.
    """
    if amp not in (None, False, True, torch.float16, torch.bfloat16):
        raise UsageError(f"amp must be torch.float16 or torch.bfloat16, not {amp!r}")
    return torch.float16 if amp is True else amp or None


def _stage(record: Replay | None, name: str, category: Any) -> AbstractContextManager[None]:
    return nullcontext() if record is None else record.stage(name, category)


def _takes_closure(optimizer: torch.optim.Optimizer) -> bool:
    """True if a step of an optimizer needs a closure, as for LBFGS."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _call_step(optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None) -> None:
    """Run a step of an optimizer, without the wrapper of a learning rate scheduler."""
    step: Any = type(optimizer).step
    if closure is None:
        step(optimizer)
    else:
        step(optimizer, closure)


def _replay_step(optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None) -> None:
    """Replay a step of an optimizer.

    Raises
    ------
    DataDependentError
        If the step reads values of tensors.
    TraceError
        If the step raises another error.
    """
    name = type(optimizer).__name__
    try:
        if isinstance(optimizer, torch.optim.LBFGS) and closure is not None:
            _lbfgs_step(optimizer, closure)
        else:
            _call_step(optimizer, closure)
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError, TraceError) as error:
        if isinstance(translated(error, None) or error, DataDependentError):
            raise DataDependentError(
                f"a step of {name} needs values of tensors, so its memory cannot be predicted. "
                "Pass another optimizer with as much state, or optimizer_state_bytes"
            ) from error
        raise TraceError(f"a step of {name} failed: {first_line(error)}") from error


def _lbfgs_step(optimizer: torch.optim.LBFGS, closure: Callable[[], Any]) -> None:
    """Allocate the memory of a step of LBFGS with a full history.

    The number of iterations of a real step depends on values, and the history is full after a few
    steps. It has ``history_size`` differences of gradients and as many of parameters. The last
    gradient and the direction are also kept.
    """
    group = optimizer.param_groups[0]
    first, *_ = group["params"]
    state = optimizer.state[first]
    with torch.enable_grad():
        closure()
    gradient = optimizer._gather_flat_grad()
    if not state:
        for name in ("old_dirs", "old_stps"):
            state[name] = [torch.empty_like(gradient) for _ in range(group["history_size"])]
    with torch.enable_grad():
        closure()
    newer = optimizer._gather_flat_grad()
    difference, direction = newer.sub(gradient), newer.neg()
    state["d"] = direction.mul(1.0)
    state.setdefault("prev_flat_grad", gradient)
    if group["line_search_fn"] is not None:
        parameters = [p.clone() for p in group["params"]]
        gradients = [newer.clone() for _ in range(2)]
        del parameters, gradients
    del difference, direction


class StatedState(torch.optim.Optimizer):
    """Optimizer with a state of a stated size.

    The first step allocates the state. No step changes parameters.
    """

    def __init__(self, params: Any, n_bytes: int) -> None:
        super().__init__(params, {})
        self.n_bytes = n_bytes

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Allocate the state in the first step."""
        first = self.param_groups[0]["params"][0]
        if not self.state[first]:
            self.state[first]["state"] = torch.empty(
                self.n_bytes, dtype=torch.uint8, device=first.device
            )


def _watch(optimizer: Any, record: Replay) -> None:
    """Record the optimizer steps inside a user's training step as stages."""
    for each in optimizers_in(optimizer):

        def step(closure: Any = None, *, _of: Any = each) -> None:
            _of._opt_called = True  # checked by learning rate schedulers
            with record.stage("step", "temporary"):
                _replay_step(_of, closure)

        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        each.step = step  # type: ignore[method-assign,assignment]


@contextmanager
def _check_graph(model: Any) -> Iterator[None]:
    """Report the tensors of an earlier step if a backward pass reaches their graph again."""
    try:
        yield
    except RuntimeError as error:
        names = _with_graph(model) if "graph a second time" in str(error) else []
        if not names:
            raise
        raise TraceError(
            f"{', '.join(names)} outlived the step with its graph, so the next backward pass runs "
            "through both steps. Detach it at the end of a step: "
            f"model.{names[0]} = model.{names[0]}.detach()"
        ) from error


def _with_graph(model: Any) -> list[str]:
    """Attributes of a model's modules that hold tensors with a graph."""
    if not isinstance(model, torch.nn.Module):
        return []
    return [
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name, value in {**vars(module), **module._buffers}.items()
        if not name.startswith("_") and any(t.grad_fn is not None for t in tensors_in(value))
    ]


def _require_scalar(loss: Any) -> None:
    """Require that a loss can be differentiated.

    Raises
    ------
    TraceError
        If the loss is not a tensor of one number, or does not depend on a parameter.
    """
    if not isinstance(loss, torch.Tensor):
        problem = f"a {type(loss).__name__}" if loss is not None else "nothing"
    elif loss.numel() != 1:
        problem = f"a tensor of {'x'.join(map(str, loss.shape))}: average it"
    elif not loss.requires_grad:
        problem = "a tensor that does not depend on a trainable parameter"
    else:
        return
    raise TraceError(f"the loss must return a scalar tensor, not {problem}")

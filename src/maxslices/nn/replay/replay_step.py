"""The loop of a step: inference, or training with loss and optimizer, replayed or run for real."""

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
"""Forward pass without gradients; forward pass with gradients; steps of training."""
_STATE: Category = "optimizer state"
MODES: tuple[Mode, ...] = ("inference", "forward", "training")
MOST_STEPS = 4
"""Steps of training that are replayed at most."""


@dataclass(frozen=True, slots=True)
class StepLoop:
    """A loop over the steps of a model.

    The same code is replayed on tensors without data and run on a device, so that both let go of
    their tensors at the same places.
    """

    mode: Mode = "inference"
    loss: Callable[..., torch.Tensor] | None = None
    """``loss(output, *targets)``; by default the model's own, or the sum of its output."""
    amp: torch.dtype | None = None
    """Lower precision of autocast around forward pass and loss; None without it."""
    keep_output: bool = True
    """Whether the output of a step stays alive until that of the next replaces it."""
    accumulate: int = 1
    """Forward and backward passes whose gradients are added before the optimizer's step."""
    step: Callable[..., Any] | None = None
    """``step(model, optimizer, *inputs)``, a training step in place of the usual one."""

    def run(
        self,
        model: Callable[..., Any],
        given: Any,
        targets: Sequence[Any],
        optimizer: torch.optim.Optimizer | None,
        turns: Iterable[int],
        record: Replay | None = None,
    ) -> None:
        """Run or replay steps.

        Parameters
        ----------
        model : torch.nn.Module or callable
            In the mode in which it is to run.
        given : (tuple, dict)
            Arguments of the model in order, and by keyword.
        targets : sequence of tensor
            Tensors that the loss compares the output with.
        optimizer : torch.optim.Optimizer, optional
            An optimizer of the model's parameters.
        turns : iterable
            One item for each step.
        record : Replay, optional
            Replay whose stages and categories are set; None for a real run.
        """
        alive: list[Any] = [None, None, None]  # output, loss and batch, until those of the next
        if self.step is not None and record is not None:
            _watch(optimizer, record)
        for _ in turns:
            if self.mode != "training":
                self._predict(model, given, record, alive)
                continue
            if self.step is not None:
                self._own_step(model, given, optimizer, record, alive)
                continue
            owner: Any = model if optimizer is None else optimizer
            owner.zero_grad()
            closure = None
            if optimizer is not None and _takes_closure(optimizer):
                closure = partial(self._closure, model, given, targets, record, alive)
            else:
                for _ in range(self.accumulate):
                    self._pass(model, given, targets, record, alive)
            if optimizer is not None:
                with _stage(record, "step", "temporary"):
                    call = _call_step if record is None else _replay_step
                    call(optimizer, closure)
                if record is not None:
                    record.categorize(tree_leaves(list(optimizer.state.values())), _STATE)
        alive.clear()

    def _predict(self, model: Any, given: Any, record: Replay | None, alive: list[Any]) -> None:
        alive[2] = copy_containers(given)
        guard = torch.no_grad() if self.mode == "inference" else nullcontext()
        with guard, self._casting(given, record), _stage(record, "forward", "activations"):
            alive[0] = model(*alive[2][0], **alive[2][1])
        if not self.keep_output:
            alive[0] = None

    def _closure(
        self, model: Any, given: Any, targets: Any, record: Replay | None, alive: list[Any]
    ) -> Any:
        """Compute loss and gradients, as an optimizer calls it that does so itself."""
        model.zero_grad()
        for _ in range(self.accumulate):
            self._pass(model, given, targets, record, alive)
        return alive[1]

    def _pass(
        self,
        model: Any,
        given: Any,
        targets: Sequence[Any],
        record: Replay | None,
        alive: list[Any],
    ) -> None:
        """Run the forward and the backward pass of a batch."""
        alive[2] = copy_containers(given)
        with self._casting(given, record):
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
        with _stage(record, "backward", "temporary"), _outliving_named(model):
            alive[1].backward()
        if record is not None:
            record.categorize((p.grad for p in model.parameters()), "gradients")

    def _own_step(
        self,
        model: Any,
        given: Any,
        optimizer: torch.optim.Optimizer | None,
        record: Replay | None,
        alive: list[Any],
    ) -> None:
        assert self.step is not None
        alive[2] = copy_containers(given)
        with _stage(record, "forward", "activations"), _outliving_named(model):
            alive[1] = self.step(model, optimizer, *alive[2][0], **alive[2][1])
        if record is not None:
            record.categorize((p.grad for p in model.parameters()), "gradients")
            for each in optimizers_in(optimizer):
                record.categorize(tree_leaves(list(each.state.values())), _STATE)

    def _casting(self, given: Any, record: Replay | None) -> AbstractContextManager[Any]:
        if self.amp is None:
            return nullcontext()
        kind = "cuda" if record is not None else tensors_in(given)[0].device.type
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
        A model, which is never changed, or a function on tensors.
    *inputs, **keywords : Any
        Arguments of the call: `Spec` or real tensors, which are not read; other objects are passed
        on.
    mode : {"inference", "forward", "training"}
        Step to replay. A model is used in the train or eval mode that it is in.
    loss, keep_output
        As for `StepLoop`.
    targets : sequence of tensor or Spec
        Tensors that the loss compares the output with; counted as input.
    optimizer : torch.optim.Optimizer, class or callable, optional
        An optimizer of the model's parameters, or a class or function that makes one from a list
        of them. None: gradients are computed and not used.
    steps : int, optional
        Forward passes, or steps of training; by default one and two. The second step has the state
        of the optimizer, and the second pass the workspaces that the first has left. Of two steps
        or more, others follow while each leaves more in memory than the one before, up to
        `MOST_STEPS`: some models train more of their parameters later.
    amp : torch.dtype or bool, optional
        Lower precision of ``torch.autocast("cuda")`` around forward pass and loss; True means
        float16.
    workspaces, capability, lines, draws
        As for `Replay`.
    is_on_meta : bool
        Whether the model is on the meta device already and may be used itself.
    watch : callable, optional
        Called with the replay and the copy of the model before it runs, to add hooks.
    loop : StepLoop, optional
        In place of `mode`, `loss`, `keep_output` and `amp`.

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
        given = record.input(inputs), record.input(keywords)
        wanted = record.input(tuple(targets))
        record.mark("input")
        made, n_steps = None, 1
        if loop.mode == "training" and isinstance(target, torch.nn.Module):
            assert isinstance(run, torch.nn.Module)
            real = {id(a): b for a, b in zip(target.parameters(), run.parameters(), strict=True)}
            made, n_steps = optimizer_for(optimizer, real, run.parameters()), 2
        n_steps = n_steps if steps is None else steps
        turns = range(n_steps) if made is None else _until_alike(record, n_steps)
        loop.run(run, given, wanted, made, turns, record)
    return record.trace()


def _until_alike(record: Replay, least: int) -> Iterator[int]:
    """Yield steps until one leaves no more in memory than the one before."""
    left: list[int] = []
    while len(left) < least or (1 < len(left) < MOST_STEPS and left[-1] > left[-2]):
        yield len(left)
        left.append(record.alive_bytes)


def precision(amp: Any) -> torch.dtype | None:
    """Lower precision of autocast; True is float16.

    Raises
    ------
    UsageError
        If it is something else.
    """
    if amp not in (None, False, True, torch.float16, torch.bfloat16):
        raise UsageError(f"amp is torch.float16 or torch.bfloat16, not {amp!r}")
    return torch.float16 if amp is True else amp or None


def _stage(record: Replay | None, name: str, category: Any) -> AbstractContextManager[None]:
    return nullcontext() if record is None else record.stage(name, category)


def _takes_closure(optimizer: torch.optim.Optimizer) -> bool:
    """True if a step of an optimizer computes the loss itself, as LBFGS does."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _call_step(optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None) -> None:
    """Take a step of an optimizer, without the wrapper of a learning rate scheduler."""
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
        If it reads values of tensors.
    TraceError
        If it raises.
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
                f"a step of {name} needs values of tensors, so what it allocates cannot be known "
                "without running it: name another optimizer with as much state, or give "
                "optimizer_state_bytes"
            ) from error
        raise TraceError(f"a step of {name} does not run: {first_line(error)}") from error


def _lbfgs_step(optimizer: torch.optim.LBFGS, closure: Callable[[], Any]) -> None:
    """Allocate what a step of LBFGS does once its history is full, which a few steps do.

    Where it stops iterating depends on values. The history is ``history_size`` differences of
    gradients and as many of parameters; the last gradient and the direction are kept beside it.
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
        kept = [p.clone() for p in group["params"]]
        gradients = [newer.clone() for _ in range(2)]
        del kept, gradients
    del difference, direction


class StatedState(torch.optim.Optimizer):
    """Optimizer of which only the size of its state is known.

    Its first step allocates that much; no step changes parameters.
    """

    def __init__(self, params: Any, n_bytes: int) -> None:
        super().__init__(params, {})
        self.n_bytes = n_bytes

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Allocate the state, if that was not done."""
        first = self.param_groups[0]["params"][0]
        if not self.state[first]:
            self.state[first]["state"] = torch.empty(
                self.n_bytes, dtype=torch.uint8, device=first.device
            )


def _watch(optimizer: Any, record: Replay) -> None:
    """Have the steps of optimizers in a step of the user's own recorded as a stage."""
    for each in optimizers_in(optimizer):

        def step(closure: Any = None, *, _of: Any = each) -> None:
            _of._opt_called = True  # a learning rate scheduler looks for this
            with record.stage("step", "temporary"):
                _replay_step(_of, closure)

        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        each.step = step  # type: ignore[method-assign,assignment]


@contextmanager
def _outliving_named(model: Any) -> Iterator[None]:
    """Name the tensors of an earlier step whose graph a backward pass met again."""
    try:
        yield
    except RuntimeError as error:
        names = _with_graph(model) if "graph a second time" in str(error) else []
        if not names:
            raise
        raise TraceError(
            f"{', '.join(names)} outlived the step with its graph, so the backward pass of the "
            "next step runs through both: detach it at the end of a step, such as "
            f"model.{names[0]} = model.{names[0]}.detach()"
        ) from error


def _with_graph(model: Any) -> list[str]:
    """Attributes of a model's modules that hold tensors with a graph."""
    if not isinstance(model, torch.nn.Module):
        return []
    return [
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name, held in {**vars(module), **module._buffers}.items()
        if not name.startswith("_") and any(t.grad_fn is not None for t in tensors_in(held))
    ]


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

"""Copies of models on the meta device: the structure is copied, the data are not.

The real model is never changed: neither its hooks, its mode, its buffers nor the state of its
random numbers.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import CellType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from ..nn_errors import TraceError, first_line


def materialize(model: nn.Module, device: torch.device, optimizer: Any = None) -> None:
    """Replace parameters and buffers without data by zeros on a device.

    Shared parameters and buffers stay shared, and the optimizer refers to the new ones. Zeros
    are valid for every dtype: as indices they stay in range.
    """
    made: dict[int, torch.Tensor] = {}

    def on_device(tensor: torch.Tensor) -> torch.Tensor:
        known = made.get(id(tensor))
        if known is None:
            known = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device
            ).zero_()
            if isinstance(tensor, nn.Parameter):
                known = nn.Parameter(known, tensor.requires_grad)
            made[id(tensor)] = known
        return known

    for module in model.modules():
        for table in (module._parameters, module._buffers):
            kept: dict[str, Any] = table
            for name, tensor in kept.items():
                if tensor is not None and tensor.is_meta:
                    kept[name] = on_device(tensor)
    for each in optimizers_in(optimizer):
        for group in each.param_groups:
            group["params"] = [made.get(id(p), p) for p in group["params"]]


class _Copies(TorchFunctionMode):
    """Makes ``copy.deepcopy`` of a tensor on a device return one without data."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, torch.UntypedStorage] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__deepcopy__:
            tensor, memo = args
            known = memo.get(id(tensor))
            if known is None:
                on_host = tensor.device.type == "cpu"
                known = tensor.clone() if on_host else self.without_data(tensor)
                memo[id(tensor)] = known
            return known
        return func(*args, **(kwargs or {}))

    def without_data(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor without its data; tensors that share memory do so in the copies."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            made = self._on_meta(tensor.detach())
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, tensor.requires_grad)
        else:
            made.requires_grad_(tensor.requires_grad)
        made.__dict__.update(copy.copy(getattr(tensor, "__dict__", {})))
        if tensor.numel() == 1 and not tensor.is_meta and not isinstance(made, torch.nn.Parameter):
            made.host_value = tensor.detach().cpu()  # type: ignore[attr-defined]
        return made

    def _on_meta(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided:
            raise TraceError(f"a {tensor.layout} tensor cannot be replayed: strided ones can")
        real = tensor.untyped_storage()
        # Tensors that share memory do so in the copy: tied weights are counted once.
        storage = self._storages.get(real._cdata)
        if storage is None:
            storage = torch.UntypedStorage(real.nbytes(), device="meta")
            self._storages[real._cdata] = storage
        made = torch.empty(0, dtype=tensor.dtype, device="meta")
        made.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        return made


def meta_copy(model: torch.nn.Module) -> torch.nn.Module:
    """Copy a model without the data of its parameters and buffers.

    Parameters
    ----------
    model : torch.nn.Module
        Model to copy; it is not changed.

    Raises
    ------
    TraceError
        If it cannot be copied, was compiled, or a lazy module has no shapes yet.
    """
    for name, parameter in model.named_parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise TraceError(
                f"the parameter {name} has no shape yet: call the model once on a small input"
            )
    for name, module in model.named_modules():
        what = f"the module {name}" if name else f"this {type(module).__name__}"
        if "_orig_mod" in module._modules or module._compiled_call_impl is not None:
            raise TraceError(
                f"{what} was compiled by torch.compile, which decides anew what is allocated: "
                "give the model as it was before"
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise TraceError(
                f"{what} is TorchScript, which cannot be followed: give the model that it was "
                "made from"
            )
    copies = _Copies()
    # copy.deepcopy takes parameters and buffers from here, not from their own __deepcopy__.
    memo = {id(t): copies.without_data(t) for t in (*model.parameters(), *model.buffers())}
    try:
        with copies:
            made = copy.deepcopy(model, memo)
            _rebind(made, memo)
            return made
    except (TypeError, RuntimeError) as error:
        raise TraceError(
            f"{type(model).__name__} cannot be copied to be replayed ({error}); what it holds "
            "beside modules and tensors must be something that copy.deepcopy copies"
        ) from error


def _rebind(made: torch.nn.Module, memo: dict[int, Any]) -> None:
    """Have hooks and functions that a copy holds use its own modules, not those of the original.

    ``copy.deepcopy`` keeps functions as they are, with the variables of their closures.
    """
    for module in made.modules():
        hooks = [held for name, held in vars(module).items() if name.endswith("_hooks") and held]
        for table in (vars(module), *hooks):
            for name, held in table.items():
                if isinstance(held, FunctionType) and held.__closure__:
                    table[name] = _rebound(held, memo)


def _rebound(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """Function with the copies of what its closure refers to; itself if there are none."""
    cells = []
    for cell in function.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:  # a variable that has no value yet
            cells.append(cell)
            continue
        if isinstance(held, FunctionType) and held is not function and held.__closure__:
            cells.append(CellType(_rebound(held, memo)))
        else:
            cells.append(CellType(memo[id(held)]) if id(held) in memo else cell)
    if all(a is b for a, b in zip(cells, function.__closure__ or (), strict=True)):
        return function
    made = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__,
        tuple(cells),
    )  # fmt: skip
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(vars(function))
    return made


def optimizers_in(optimizer: Any) -> list[torch.optim.Optimizer]:
    """Optimizers of a step: one, or those in a container; none of a class or function."""
    return [each for each in tree_leaves(optimizer) if isinstance(each, torch.optim.Optimizer)]


def _with_copies(held: Any, copies: dict[int, Any]) -> Any:
    """Copy of what works on an optimizer, such as a learning rate scheduler, with its copy."""
    if id(getattr(held, "optimizer", None)) not in copies:
        return held
    made = copy.copy(held)
    for name, value in vars(held).items():
        setattr(made, name, copies.get(id(value)) or copy.copy(value))
    return made


def optimizer_for(
    optimizer: Any, parameters: Mapping[int, torch.Tensor], own: Iterable[torch.Tensor]
) -> Any:
    """Make an optimizer that works on the parameters of a copy, or a container of several.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer, callable, dict, list, tuple or None
        An optimizer of the real parameters; or a class or function that makes one from a list
        of parameters, such as ``torch.optim.Adam``.
    parameters : mapping
        Parameter of the copy by the `id` of the real one.
    own : iterable of tensor
        All parameters of the copy.

    Notes
    -----
    torch uses its "foreach" implementation for parameters on a GPU. So does the replay, unless
    the optimizer says otherwise.
    """
    if optimizer is None:
        return None
    own = list(own)
    if isinstance(optimizer, Mapping | list | tuple):
        copies = {id(o): optimizer_for(o, parameters, own) for o in optimizers_in(optimizer)}
        return tree_map(lambda each: copies.get(id(each)) or _with_copies(each, copies), optimizer)
    if isinstance(optimizer, torch.optim.Optimizer):
        made = copy.copy(optimizer)
        for name, held in vars(optimizer).items():  # copy.copy leaves out what torch does not save
            is_list = isinstance(held, list) and all(id(each) in parameters for each in held)
            vars(made).setdefault(name, [parameters[id(p)] for p in held] if is_list else held)
        # A learning rate scheduler replaces `step` by a method bound to the original.
        vars(made).pop("step", None)
        groups = []
        for group in optimizer.param_groups:
            try:
                params = [parameters[id(p)] for p in group["params"]]
            except KeyError:
                raise TraceError(
                    f"{type(optimizer).__name__} works on parameters that are not of this model"
                ) from None
            groups.append({**group, "params": params})
        made.param_groups = groups
        made.state = defaultdict(dict)
        made.defaults = dict(optimizer.defaults)
    else:
        try:
            made = optimizer([p for p in own if p.requires_grad])
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            raise TraceError(
                "the optimizer cannot be made of a list of the model's parameters: "
                f"{first_line(error)}"
            ) from error
        if not optimizers_in(made):
            raise TraceError(
                "the optimizer must be one of torch.optim or a function that makes one of a list "
                f"of parameters; it made a {type(made).__name__}"
            )
    for each in optimizers_in(made):
        for group in (*each.param_groups, each.defaults):
            if group.get("fused"):
                group["fused"], group["foreach"] = None, False
            elif "foreach" in group and group["foreach"] is None:
                group["foreach"] = not group.get("differentiable")
            if group.get("capturable"):
                group["capturable"] = False
    return made

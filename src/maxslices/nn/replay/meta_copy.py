"""Copies of models on the meta device, with their structure and without their data.

The real model is never changed, nor are the states of random generators.
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

    Shared parameters and buffers stay shared, and the optimizer refers to the new ones. Zeros are
    valid for every dtype, also as indices.
    """
    zeros: dict[int, torch.Tensor] = {}

    def on_device(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in zeros:
            real = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device
            ).zero_()
            is_parameter = isinstance(tensor, nn.Parameter)
            zeros[id(tensor)] = nn.Parameter(real, tensor.requires_grad) if is_parameter else real
        return zeros[id(tensor)]

    for module in model.modules():
        tables: tuple[dict[str, Any], ...] = module._parameters, module._buffers
        for table in tables:
            for name, tensor in table.items():
                if tensor is not None and tensor.is_meta:
                    table[name] = on_device(tensor)
    for each in optimizers_in(optimizer):
        for group in each.param_groups:
            group["params"] = [zeros.get(id(p), p) for p in group["params"]]


class _Copies(TorchFunctionMode):
    """Makes ``copy.deepcopy`` of tensors on a device return tensors without data."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, torch.UntypedStorage] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__deepcopy__:
            tensor, memo = args
            if id(tensor) not in memo:
                on_host = tensor.device.type == "cpu"
                memo[id(tensor)] = tensor.clone() if on_host else self.without_data(tensor)
            return memo[id(tensor)]
        return func(*args, **(kwargs or {}))

    def without_data(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor without its data. Tensors that share memory share it in the copies."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            meta = self._on_meta(tensor.detach())
        if isinstance(tensor, torch.nn.Parameter):
            meta = torch.nn.Parameter(meta, tensor.requires_grad)
        else:
            meta.requires_grad_(tensor.requires_grad)
        meta.__dict__.update(copy.copy(getattr(tensor, "__dict__", {})))
        if tensor.numel() == 1 and not tensor.is_meta and not isinstance(meta, torch.nn.Parameter):
            meta.host_value = tensor.detach().cpu()  # type: ignore[attr-defined]
        return meta

    def _on_meta(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided:
            raise TraceError(f"a {tensor.layout} tensor cannot be replayed, only strided tensors")
        real = tensor.untyped_storage()
        # Tensors that share memory share it in the copies, so tied weights are counted once.
        storage = self._storages.get(real._cdata)
        if storage is None:
            storage = torch.UntypedStorage(real.nbytes(), device="meta")
            self._storages[real._cdata] = storage
        meta = torch.empty(0, dtype=tensor.dtype, device="meta")
        meta.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        return meta


def meta_copy(model: torch.nn.Module) -> torch.nn.Module:
    """Copy a model without the data of its parameters and buffers.

    Parameters
    ----------
    model : torch.nn.Module
        Model, which is not changed.

    Raises
    ------
    TraceError
        If the model cannot be copied, was compiled, or contains an uninitialized lazy module.
    """
    for name, parameter in model.named_parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise TraceError(
                f"the parameter {name} has no shape. Call the model once on a small input first"
            )
    for name, module in model.named_modules():
        label = f"the module {name}" if name else f"this {type(module).__name__}"
        if "_orig_mod" in module._modules or module._compiled_call_impl is not None:
            raise TraceError(
                f"{label} was compiled by torch.compile, which changes its memory. Pass the model "
                "before compilation"
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise TraceError(
                f"{label} is TorchScript, which cannot be replayed. Pass the original model"
            )
    copies = _Copies()
    # copy.deepcopy takes parameters and buffers from here, not from their own __deepcopy__.
    memo = {id(t): copies.without_data(t) for t in (*model.parameters(), *model.buffers())}
    try:
        with copies:
            meta = copy.deepcopy(model, memo)
            _rebind(meta, memo)
            return meta
    except (TypeError, RuntimeError) as error:
        raise TraceError(
            f"{type(model).__name__} cannot be copied for a replay ({error}). copy.deepcopy must "
            "support all its attributes except modules and tensors"
        ) from error


def _rebind(model: torch.nn.Module, memo: dict[int, Any]) -> None:
    """Make hooks and functions of a copy refer to its own modules, not to those of the original.

    ``copy.deepcopy`` does not copy functions, nor the variables of their closures.
    """
    for module in model.modules():
        hooks = [table for name, table in vars(module).items() if name.endswith("_hooks") and table]
        for table in (vars(module), *hooks):
            for name, value in table.items():
                if isinstance(value, FunctionType) and value.__closure__:
                    table[name] = _rebound(value, memo)


def _rebound(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """Function whose closure refers to copies, or the same function if it refers to none."""
    cells = []
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # a variable without a value
            cells.append(cell)
            continue
        if isinstance(value, FunctionType) and value is not function and value.__closure__:
            cells.append(CellType(_rebound(value, memo)))
        else:
            cells.append(CellType(memo[id(value)]) if id(value) in memo else cell)
    if all(a is b for a, b in zip(cells, function.__closure__ or (), strict=True)):
        return function
    rebound = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__,
        tuple(cells),
    )  # fmt: skip
    rebound.__kwdefaults__ = function.__kwdefaults__
    rebound.__dict__.update(vars(function))
    return rebound


def optimizers_in(optimizer: Any) -> list[torch.optim.Optimizer]:
    """Optimizers of a step, from one optimizer or a container. Classes and functions have none."""
    return [each for each in tree_leaves(optimizer) if isinstance(each, torch.optim.Optimizer)]


def _with_copies(item: Any, copies: dict[int, Any]) -> Any:
    """Copy an object that refers to an optimizer, such as a scheduler, to refer to its copy."""
    if id(getattr(item, "optimizer", None)) not in copies:
        return item
    copied = copy.copy(item)
    for name, value in vars(item).items():
        setattr(copied, name, copies.get(id(value)) or copy.copy(value))
    return copied


def optimizer_for(
    optimizer: Any, parameters: Mapping[int, torch.Tensor], own: Iterable[torch.Tensor]
) -> Any:
    """Make an optimizer, or a container of several, for the parameters of a copy.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer, callable, dict, list, tuple or None
        Optimizer of the real parameters, or a class or function that makes one from a list of
        parameters, such as ``torch.optim.Adam``.
    parameters : mapping
        Parameter of the copy by the `id` of the real one.
    own : iterable of tensor
        All parameters of the copy.

    Notes
    -----
    The replay uses torch's "foreach" implementation, as torch does on a GPU, unless an option of
    the optimizer selects another.
    """
    if optimizer is None:
        return None
    own = list(own)
    if isinstance(optimizer, Mapping | list | tuple):
        copies = {id(o): optimizer_for(o, parameters, own) for o in optimizers_in(optimizer)}
        return tree_map(lambda each: copies.get(id(each)) or _with_copies(each, copies), optimizer)
    if isinstance(optimizer, torch.optim.Optimizer):
        own_copy = copy.copy(optimizer)
        # copy.copy omits attributes that torch does not save.
        for name, value in vars(optimizer).items():
            if isinstance(value, list) and all(id(each) in parameters for each in value):
                value = [parameters[id(p)] for p in value]
            vars(own_copy).setdefault(name, value)
        # A learning rate scheduler replaces `step` by a method bound to the original.
        vars(own_copy).pop("step", None)
        groups = []
        for group in optimizer.param_groups:
            try:
                params = [parameters[id(p)] for p in group["params"]]
            except KeyError:
                raise TraceError(
                    f"{type(optimizer).__name__} has parameters that do not belong to this model"
                ) from None
            groups.append({**group, "params": params})
        own_copy.param_groups = groups
        own_copy.state = defaultdict(dict)
        own_copy.defaults = dict(optimizer.defaults)
    else:
        try:
            own_copy = optimizer([p for p in own if p.requires_grad])
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            raise TraceError(
                "the optimizer cannot be made from a list of the model's parameters: "
                f"{first_line(error)}"
            ) from error
        if not optimizers_in(own_copy):
            raise TraceError(
                "the optimizer must be an optimizer of torch, or a function that makes one from a "
                f"list of parameters. It returned a {type(own_copy).__name__}"
            )
    for each in optimizers_in(own_copy):
        for group in (*each.param_groups, each.defaults):
            if group.get("fused"):
                group["fused"], group["foreach"] = None, False
            elif "foreach" in group and group["foreach"] is None:
                group["foreach"] = not group.get("differentiable")
            if group.get("capturable"):
                group["capturable"] = False
    return own_copy

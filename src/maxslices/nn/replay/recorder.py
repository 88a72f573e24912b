"""Recorder of the allocations of code that runs on tensors without data."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Literal, Self
from unittest import mock

import torch

from ...tuning.garbage_collection import quick_collections
from .allocation_log import AllocationLog
from .autocast import cuda_autocast
from .cuda_kernels import Capability, as_on_cuda
from .dispatch_mode import StorageDispatchMode
from .host_draws import HostGenerators
from .host_tensor import ToMeta, without_data
from .import_stubs import compiler_unloaded
from .known_values import UnknownNumber
from .meta_copy import meta_copy
from .module_calls import ModuleCalls, translated
from .nested import Spec, map_leaves
from .op_handlers import HANDLERS, sole_counts
from .trace import Trace
from .workspaces import Workspaces


class Replay(AllocationLog):
    """Context in which operators on tensors without data are recorded.

    Parameters
    ----------
    workspaces : Workspaces, optional
        Memory that operators take in addition to their results; by default a stated allowance.
    capability : Capability, optional
        Replayed device; by default one of compute capability 9.0.
    lines : bool
        Whether to look up the user's line of each allocation.
    draws : str
        Random numbers on the host, one of `host_draws.PATHS`, or "" to leave the generators
        unchanged.

    Examples
    --------
    >>> import torch
    >>> with Replay(workspaces=Workspaces.none()) as replay:
    ...     model = replay.model(torch.nn.Linear(1024, 1024, bias=False))
    ...     image = replay.input(Spec((4, 1024)))
    ...     with torch.no_grad():
    ...         result = model(image)
    ...     replay.mark("result")
    >>> replay.trace().bytes_at("result")
    4227072
    """

    def __init__(
        self,
        *,
        workspaces: Workspaces | None = None,
        capability: Capability | None = None,
        lines: bool = True,
        draws: str = "",
    ) -> None:
        super().__init__(lines)
        self._draws = draws
        self._drawn_from: tuple[str, ...] = ()
        self._workspaces = Workspaces.allowance() if workspaces is None else workspaces
        self._capability = Capability() if capability is None else capability
        self._modules = ModuleCalls(self)
        self._to_meta = ToMeta(self, self.model)
        self._mode = StorageDispatchMode(self, self._to_meta)
        self._stack = ExitStack()
        self._began = 0.0
        self._duration_s = 0.0

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        self._stack.enter_context(quick_collections())
        self._stack.enter_context(compiler_unloaded())
        sole_counts()  # measured before any other mode is active
        overrides = self._stack.enter_context(as_on_cuda(self._capability))
        parts = {op: self._mode.run_parts_of(f) for op, f in overrides.items()}
        self._mode.handlers = {**HANDLERS, **parts}
        # One thread runs forward and backward, so events are in the order of the calls.
        self._stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        self._generators = HostGenerators(self._draws)
        self._stack.callback(self._generators.restore)
        self._stack.enter_context(cuda_autocast())
        self._stack.enter_context(self._modules.hooked())
        if not torch.cuda.is_available():
            # device="cuda" is the replayed device, which is not initialized.
            self._stack.enter_context(mock.patch.object(torch.cuda, "_lazy_init"))
        for name in ("to", "cuda"):
            own = self._to_meta.method(getattr(torch.nn.Module, name), name)
            self._stack.enter_context(mock.patch.object(torch.nn.Module, name, own))
        for owner in (torch, torch.Tensor):
            self._stack.enter_context(mock.patch.object(owner, "istft", _istft(owner.istft)))
        for name, answer in (("isfinite", True), ("isnan", False), ("isinf", False)):
            check = _finite(getattr(math, name), answer)
            self._stack.enter_context(mock.patch.object(math, name, check))
        item = _item(torch.Tensor.item, self._mode)
        self._stack.enter_context(mock.patch.object(torch.Tensor, "item", item))
        self._stack.enter_context(self._mode)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        self._drawn_from = self._generators.drawn_from()
        self._stack.close()
        self._duration_s = time.perf_counter() - self._began
        self._closed = True
        if error is not None:
            clear = translated(error, self._modules.failure)
            if clear is not None:
                raise clear from error
        return False

    def model(self, model: torch.nn.Module, *, is_on_meta: bool = False) -> torch.nn.Module:
        """Copy a model without data, and count its weights from now on.

        Parameters
        ----------
        model : torch.nn.Module
            Real model, which is not changed.
        is_on_meta : bool
            Whether the model is on the meta device and may be used itself.
        """
        with self.paused():
            meta = model if is_on_meta else meta_copy(model)
        self._generators.add_those_of(meta)
        for path, module in meta.named_modules():
            self._modules.watch(module, path)
            # Module by module, the order in which weights are allocated on a device. It decides
            # which of them share a segment of the allocator.
            own = (*module.named_parameters(path, False), *module.named_buffers(path, False))
            for name, tensor in own:
                if tensor.device.type == "meta":
                    self.attribution.names.setdefault(id(tensor), name)
                    if hasattr(tensor, "host_value"):
                        self._mode.values.remember(tensor, tensor.host_value)
                    self.count(tensor, "weights", name)
        return meta

    def input(self, value: Any, *, is_counted: bool = True) -> Any:
        """Make an input without data, and count it from now on.

        Parameters
        ----------
        value : tensor, Spec, or any nesting of them in containers
            Values of real tensors are read only if code decides by integers. Other objects are
            returned unchanged.
        is_counted : bool
            False if the input is counted elsewhere.
        """

        def convert(item: Any) -> Any:
            if not isinstance(item, Spec | torch.Tensor):
                return item
            meta = item.empty() if isinstance(item, Spec) else without_data(item)
            if is_counted:
                self._mode.values.remember(meta, item if isinstance(item, torch.Tensor) else None)
                self.count(meta, "input", "")
            else:
                self.leave_out(meta)
            return meta

        with self.paused():
            return map_leaves(convert, value)

    def watch_draws(self, function: Any) -> None:
        """Watch the generators on the host that a function refers to."""
        self._generators.add_those_of(function)

    def trace(self) -> Trace:
        """Trace of the recording so far."""
        storages = tuple(self._storages)
        return Trace(
            storages,
            tuple(self._calls),
            tuple(self._marks),
            tuple(self._events),
            tuple(self._modules.seen),
            self._workspaces,
            self._duration_s or time.perf_counter() - self._began,
            tuple(self._notes),
            self._drawn_from,
        )


def _item(real: Any, mode: StorageDispatchMode) -> Any:
    """Make a `Tensor.item` that may return an `UnknownNumber`."""

    def item(tensor: torch.Tensor) -> Any:
        if not tensor.is_meta or tensor.numel() != 1:
            return real(tensor)
        return mode.values.number(tensor)

    return item


def _finite(real: Any, answer: bool) -> Any:
    """Make a function of ``math`` that treats an `UnknownNumber` as finite."""

    def check(number: Any) -> bool:
        return answer if isinstance(number, UnknownNumber) else bool(real(number))

    return check


def _istft(real: Any) -> Any:
    """Make a function whose frame marks that istft checks its window, which is valid."""

    def istft(*args: Any, **kwargs: Any) -> Any:
        return real(*args, **kwargs)

    return istft

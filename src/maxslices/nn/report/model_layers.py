"""Table of a model's layers: depth, shapes, kernels, multiply-adds, parameters and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ...core.units import MIB
from ..memory_budget import check_model
from ..replay import Replay, Workspaces
from ..replay.module_calls import module_flops
from ..replay.nested import tensors_in
from ..step.call_inputs import CallInputs
from ..step.model_step import ModelStep

_HEADS = ("layer", "input", "output", "kernel", "parameters", "mult-adds", "output MiB")


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One module of a model, at its first call."""

    path: str
    """Dotted path, or "" for the model itself."""
    kind: str
    """Class of the module."""
    depth: int
    """Number of modules around it."""
    input_shape: tuple[int, ...]
    """Shape of its first tensor, or () without one."""
    output_shape: tuple[int, ...]
    kernel: tuple[int, ...]
    """Kernel of a convolution or a pooling layer, or ()."""
    n_parameters: int
    """Parameters of the module, including those of its children."""
    n_trainable: int
    """Trainable parameters."""
    mult_adds: int
    """Pairs of a multiplication and an addition in all its calls."""
    output_bytes: int
    """Bytes of the results of its first call."""


@dataclass(frozen=True, slots=True)
class LayerTable:
    """Layers of a model in the order of their first calls. ``print`` shows them as a table."""

    rows: tuple[LayerRow, ...]
    n_parameters: int
    n_trainable: int
    mult_adds: int
    input_bytes: int
    """Bytes of all inputs."""
    output_bytes: int
    """Bytes of the results of layers with parameters and without children, and of their gradients.
    torchinfo calls them the forward and backward pass. For a step's memory see `MemoryReport`."""
    parameter_bytes: int

    @property
    def total_bytes(self) -> int:
        """Inputs, results and parameters."""
        return self.input_bytes + self.output_bytes + self.parameter_bytes

    def __str__(self) -> str:
        cells = [_HEADS, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(_HEADS))]
        lines = [
            "  ".join(
                text.ljust(width) if i < 4 else text.rjust(width)
                for i, (text, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in cells
        ]
        rule = "-" * max(map(len, lines))
        totals = [
            f"Total params: {self.n_parameters:,}",
            f"Trainable params: {self.n_trainable:,}",
            f"Non-trainable params: {self.n_parameters - self.n_trainable:,}",
            f"Total mult-adds (M): {self.mult_adds / 1e6:,.2f}",
            f"Input size (MB): {self.input_bytes / 1e6:,.2f}",
            f"Forward/backward pass size (MB): {self.output_bytes / 1e6:,.2f}",
            f"Params size (MB): {self.parameter_bytes / 1e6:,.2f}",
            f"Estimated Total Size (MB): {self.total_bytes / 1e6:,.2f}",
        ]
        return "\n".join([lines[0], rule, *lines[1:], rule, *totals])


def layer_table(
    model: nn.Module,
    inputs: Any,
    depth: int = 3,
    *,
    prediction_function: Callable[..., Any] | str | None = None,
) -> LayerTable:
    """Make a table of a model's layers, without data.

    Parameters
    ----------
    model : torch.nn.Module
        Model, which is not changed, in the mode that it is in.
    inputs, prediction_function
        As for `memory_report`.
    depth : int
        Maximum number of modules around a module of the table.

    Raises
    ------
    ModelArgumentError
        If an argument is invalid.
    TraceError
        If the model does not run on such inputs, or cannot be replayed without data.
    """
    check_model(model)
    call = CallInputs.of(inputs)
    step = ModelStep(model, "forward", prediction_function=prediction_function, names=call.names)
    rows_by_path: dict[str, LayerRow | None] = {}
    # A first replay raises clear errors if the model does not run.
    step.trace(call.values, Workspaces.none())
    with Replay(workspaces=Workspaces.none(), lines=False) as record:
        copy = record.model(step.meta_copy(), is_on_meta=True)
        for path, module in copy.named_modules():
            _watch(module, path, rows_by_path)
        arguments = record.input(call.values)
        counted = module_flops(copy, lambda: copy(*arguments))
    flops = {path: sum(by_op.values()) for path, by_op in counted.items()}
    modules = dict(model.named_modules())
    rows = tuple(
        replace(row, mult_adds=flops.get(path, 0) // 2) for path, row in rows_by_path.items() if row
    )
    leaves = [row for row in rows if row.n_parameters and not any(modules[row.path].children())]
    return LayerTable(
        tuple(row for row in rows if row.depth <= depth),
        *_counts(model),
        flops.get("", 0) // 2,
        sum(t.numel() * t.element_size() for t in tensors_in(arguments)),
        2 * sum(row.output_bytes for row in leaves),
        sum(p.numel() * p.element_size() for p in model.parameters()),
    )


def _counts(module: nn.Module) -> tuple[int, int]:
    """Numbers of parameters and of trainable parameters of a module."""
    sizes = [(p.numel(), p.requires_grad) for p in module.parameters()]
    return sum(n for n, _ in sizes), sum(n for n, is_trained in sizes if is_trained)


def _watch(module: nn.Module, path: str, rows: dict[str, LayerRow | None]) -> None:
    """Add a row for the first call of a module, in the order of the beginnings of calls."""

    def enter(_module: nn.Module, _args: Any) -> None:
        rows.setdefault(path, None)

    def leave(_module: nn.Module, args: Any, named: Any, result: Any) -> None:
        before, after = tensors_in((args, named)), tensors_in(result)
        kernel = getattr(module, "kernel_size", ())
        rows[path] = rows[path] or LayerRow(
            path,
            type(module).__name__,
            path.count(".") + 1 if path else 0,
            tuple(before[0].shape) if before else (),
            tuple(after[0].shape) if after else (),
            (kernel,) if isinstance(kernel, int) else tuple(kernel),
            *_counts(module),
            0,
            sum(t.numel() * t.element_size() for t in after),
        )

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, with_kwargs=True)


def _cells(row: LayerRow) -> tuple[str, ...]:
    name = row.path.rpartition(".")[2]
    title = f"{row.kind} ({name})" if name else row.kind
    return (
        "  " * row.depth + title,
        _times(row.input_shape),
        _times(row.output_shape),
        _times(row.kernel),
        f"{row.n_parameters:,}" if row.n_parameters else "-",
        f"{row.mult_adds:,}" if row.mult_adds else "-",
        f"{row.output_bytes / MIB:,.2f}",
    )


def _times(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes)) or "-"

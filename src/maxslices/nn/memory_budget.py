"""Memory that a step may take, on a device or on a card that is not present."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ..core.allocators import round_to_granule
from ..core.block_memory import CONTEXT_BYTES
from ..core.units import format_bytes, parse_bytes
from .cards import Card, card_named
from .nn_errors import ModelArgumentError, NoDeviceError, TooLargeError
from .replay.cuda_kernels import Capability
from .replay.measure_workspaces import memory_fraction, memory_limited_to


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Memory that torch's allocator may hold for a model and its data."""

    limit_bytes: int
    """Limit of the allocator, including the model's weights."""
    origin: str
    """Source of the limit, as text."""
    device: torch.device | None
    """Device for real steps, or None."""


def check_model(model: object) -> None:
    """Check that an argument is a model.

    Raises
    ------
    ModelArgumentError
        If the argument is not a ``torch.nn.Module``, such as a class of models.
    """
    if not isinstance(model, torch.nn.Module):
        raise ModelArgumentError(f"the model is a torch.nn.Module, not a {type(model).__name__}")


def device_of(
    model: torch.nn.Module, device: torch.device | str | None, memory: str | int | None
) -> torch.device | None:
    """CUDA device to work on, or None with only `memory`.

    Raises
    ------
    NoDeviceError
        If there is neither a CUDA device nor `memory`.
    ModelArgumentError
        If the model is not a ``torch.nn.Module``.
    """
    check_model(model)
    if device is None:
        first = next(iter(model.parameters()), None)
        place = torch.device("cpu") if first is None else first.device
    else:
        try:
            place = torch.device(device)
        except RuntimeError as error:
            raise NoDeviceError(
                f"unknown device {device!r}: {str(error).splitlines()[0]}"
            ) from None
    if device is not None and place.type not in ("cuda", "cpu", "meta"):
        raise NoDeviceError(
            f"predictions are for CUDA devices, not for {place}: pass device='cuda', or only the "
            "memory of a card, such as memory='16GB'"
        )
    if place.type == "cuda" and torch.cuda.is_available():
        if place.index is None:
            place = torch.device("cuda", torch.cuda.current_device())
        if place.index >= torch.cuda.device_count():
            raise NoDeviceError(
                f"there is no {place}: there are {torch.cuda.device_count()} CUDA devices"
            )
        return place
    if memory is not None:
        return None
    reason = "" if torch.cuda.is_available() else ", and this machine has none"
    raise NoDeviceError(
        f"without memory=, a CUDA device is needed{reason} (the model or "
        f"device= is on '{place.type}'). Move the model to a GPU, pass device='cuda', or pass the "
        "memory of a card that is not present, such as memory='16GB' or memory='RTX 4090' "
        "(--memory or --card on the command line)"
    )


def budget_of(
    model: torch.nn.Module, device: torch.device | None, memory: str | int | None
) -> MemoryBudget:
    """Memory that a step of this model may take."""
    limits: list[tuple[int, str]] = []
    if memory is not None:
        total, card = memory_of(memory)
        of_card = f"{card.name}, " if card is not None else ""
        limits.append(
            (
                total - CONTEXT_BYTES,
                f"{of_card}{format_bytes(total)} less {format_bytes(CONTEXT_BYTES)} for CUDA's "
                "context",
            )
        )
    if device is not None:
        # cuBLAS allocates its workspaces anew for each step, so they are part of its need.
        getattr(torch._C, "_cuda_clearCublasWorkspaces", int)()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        foreign = foreign_bytes(model, device)
        limits.append((free + reserved - foreign, f"free on {device}"))
        part = memory_fraction(device)
        if part < 1:
            limits.append((int(part * total) - foreign, f"{part:.1%} of {device}"))
    limit, origin = min(limits)
    if limit <= 0:
        raise TooLargeError(
            f"no memory is left for a model: {origin}. Free some, or take a larger card"
        )
    return MemoryBudget(limit, origin, device)


def memory_of(memory: str | int) -> tuple[int, Card | None]:
    """Bytes of a card: an amount such as "24GB", or the name of one such as "RTX 4090".

    Raises
    ------
    UsageError
        If the text is neither.
    """
    if isinstance(memory, str) and memory[:1].isalpha():
        card = card_named(memory)
        return card.memory_bytes, card
    return parse_bytes(memory), None


def capability_of(device: torch.device | None, memory: str | int | None) -> Capability | None:
    """Compute capability of a device or of a named card, or None if unknown."""
    if device is not None and device.type == "cuda" and torch.cuda.is_available():
        return Capability(*torch.cuda.get_device_capability(device))
    card = None if memory is None else memory_of(memory)[1]
    return None if card is None else Capability(*card.capability)


def foreign_bytes(model: torch.nn.Module, device: torch.device) -> int:
    """Memory that this process has allocated on a device, without the model's weights."""
    own = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in (*model.parameters(), *model.buffers())
        if tensor.device == device
    }
    rounded = sum(map(round_to_granule, own.values()))
    return max(0, torch.cuda.memory_allocated(device) - rounded)


@contextmanager
def limit(n_bytes: int, device: torch.device) -> Iterator[None]:
    """Limit torch's allocator for the duration of the context."""
    total = torch.cuda.mem_get_info(device)[1]
    with memory_limited_to(min(memory_fraction(device), n_bytes / total), device):
        yield

"""States that layers carry from one call to the next, such as those of spiking neurons.

spikingjelly's layers keep them in a dict ``_memories`` by name. A state that does not exist yet is
a number. Layers are recognized by that dict, so spikingjelly itself is not imported.
"""

from __future__ import annotations

from torch import nn

ALL_STEPS_AT_ONCE = frozenset({"PSN", "MaskedPSN", "SlidingPSN"})
"""Neurons that mix all time steps, so parts of the steps would give other results."""


def stateful(module: nn.Module) -> list[nn.Module]:
    """Layers of a module that carry states, in order."""
    return [m for m in module.modules() if isinstance(m.__dict__.get("_memories"), dict)]


def refuses_time_split(module: nn.Module) -> str:
    """Reason why a module cannot process a few time steps at a time, or ""."""
    for path, each in module.named_modules():
        if any(kind.__name__ in ALL_STEPS_AT_ONCE for kind in type(each).__mro__):
            return f"{path or type(each).__name__} is a {type(each).__name__}: it sees all steps"
        if getattr(each, "step_mode", "m") != "m":
            return f"{path or type(each).__name__} works on single steps"
    if not any(hasattr(each, "step_mode") for each in module.modules()):
        return "it has no layer of several time steps"
    return ""


def reset_states(model: nn.Module) -> None:
    """Reset all layers that carry states, as spikingjelly's ``functional.reset_net`` does."""
    for layer in stateful(model):
        reset = getattr(layer, "reset", None)
        if callable(reset):
            reset()


def reset_before_calls(model: nn.Module) -> nn.Module:
    """Make a model reset its states, if any, before each forward pass, and return it."""
    if stateful(model):
        model.register_forward_pre_hook(lambda each, _args: reset_states(each))
    return model

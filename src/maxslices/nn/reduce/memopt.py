"""spikingjelly's ``memopt.memory_optimization`` by its own call, on replays."""

from __future__ import annotations

from typing import Any

from torch import nn

from .levels import reduce_by_level
from .reduction_summary import ReductionSummary


def memory_optimization(
    net: nn.Module,
    instance: type | tuple[type, ...],
    dummy_input: Any = None,
    compress_x: bool = True,
    level: int | None = None,
    verbose: bool = False,
    temporal_split_factor: int = 2,
    **options: Any,
) -> nn.Module | tuple[nn.Module, ReductionSummary]:
    """Reduce a spiking network's memory, called as spikingjelly's function of that name.

    Parameters
    ----------
    net : torch.nn.Module
        Network, changed in place.
    instance : type or tuple of types
        Classes of the modules to checkpoint. One with a method ``__spatial_split__`` says by it
        into which of its modules it is split.
    dummy_input : tensor, Spec, or tuple or mapping of them, optional
        Arguments of the network; values matter only for finding spikes.
    compress_x, level
        As for `reduce_by_level`; level 0 without a profile.
    verbose : bool
        Whether to print the summary.
    temporal_split_factor : int
        As for `reduce_by_level`.
    **options : Any
        Further arguments of `reduce_by_level`, such as ``profile`` or ``return_summary``.

    Returns
    -------
    torch.nn.Module
        The same object; with ``return_summary=True``, the summary too.
    """
    wants_summary = options.pop("return_summary", False)
    made = reduce_by_level(
        net, instance, dummy_input, compress_x=compress_x, level=level,
        temporal_split_factor=temporal_split_factor, return_summary=True, **options,
    )  # fmt: skip
    assert isinstance(made, tuple)
    if verbose:
        print(made[1])
    return made if wants_summary else made[0]

"""Gradient buckets, as torch's DistributedDataParallel holds them.

Gradients are copied into flat buckets, which are reduced as they fill: the last parameters
come first, 1 MiB in the first bucket, 25 MiB in each of the others. A parameter is not
split, so a bucket ends with the one that fills it. That is its order after the first step.
"""

from __future__ import annotations

import torch
from torch import nn

FIRST_BUCKET_BYTES = 2**20
BUCKET_BYTES = 25 * 2**20
PREFIX = "ddp_bucket_"
"""Names of the buffers that stand for buckets in a replay."""


def bucket_sizes(model: nn.Module) -> list[tuple[int, torch.dtype]]:
    """Return items and dtype of each bucket, in the order in which they fill."""
    open_buckets: dict[torch.dtype, int] = {}
    closed: list[tuple[int, torch.dtype]] = []
    seen: set[torch.dtype] = set()
    for parameter in reversed([p for p in model.parameters() if p.requires_grad]):
        dtype = parameter.dtype
        items = open_buckets.get(dtype, 0) + parameter.numel()
        limit = BUCKET_BYTES if dtype in seen else FIRST_BUCKET_BYTES
        if items * parameter.element_size() >= limit:
            closed.append((items, dtype))
            seen.add(dtype)
            items = 0
        open_buckets[dtype] = items
    return closed + [(items, dtype) for dtype, items in open_buckets.items() if items]


def add_buckets(model: nn.Module) -> None:
    """Give a copy without data the buckets that it would have."""
    for index, (items, dtype) in enumerate(bucket_sizes(model)):
        bucket = torch.empty(items, dtype=dtype, device="meta")
        model.register_buffer(f"{PREFIX}{index}", bucket, persistent=False)

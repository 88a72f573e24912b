"""Gradient buckets of torch's DistributedDataParallel.

Gradients are copied into flat buckets, which are reduced as they fill. The last parameters
come first; the first bucket has 1 MiB, each of the others 25 MiB. A parameter is not split, so
a bucket ends with the parameter that fills it. This is the order after the first step.
"""

from __future__ import annotations

import torch
from torch import nn

FIRST_BUCKET_BYTES = 2**20
"""``torch.distributed._DEFAULT_FIRST_BUCKET_BYTES``."""
BUCKET_BYTES = 25 * 2**20
"""Default of DistributedDataParallel's ``bucket_cap_mb``."""
PREFIX = "ddp_bucket_"
"""Prefix of the buffers that stand for buckets in a replay."""


def bucket_sizes(model: nn.Module) -> list[tuple[int, torch.dtype]]:
    """Items and dtype of each bucket, in the order in which they fill."""
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
    """Register the buckets as buffers of a copy without data."""
    for index, (items, dtype) in enumerate(bucket_sizes(model)):
        bucket = torch.empty(items, dtype=dtype, device="meta")
        model.register_buffer(f"{PREFIX}{index}", bucket, persistent=False)

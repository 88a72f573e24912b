"""A replayed step as a memory snapshot of torch, for pytorch.org/memory_viz."""

from __future__ import annotations

from typing import Any

from ..replay import CachingAllocator, OperatorCall, Trace
from ..replay.trace import Storage

BASE = 2**40
"""Address of the first segment. The viewer ignores address 0."""


def snapshot_of(trace: Trace) -> dict[str, Any]:
    """Events and final segments of a step, as ``torch.cuda.memory._snapshot`` returns them.

    Addresses are those of the simulated allocator. The stack of an allocation consists of the known
    ones of operator, module and line of the user's code.
    """
    allocator, events = CachingAllocator(), list[dict[str, Any]]()
    frames: dict[int, list[dict[str, Any]]] = {}
    time_us = 0

    def add(action: str, address: int, size: int, stack: list[dict[str, Any]]) -> None:
        nonlocal time_us
        time_us += 1
        events.append(
            {
                "action": action, "addr": BASE + address, "size": size, "stream": 0,
                "device": 0, "time_us": time_us, "frames": stack,
            }
        )  # fmt: skip

    for event, requests in zip(trace.events, trace.requests_by_event(), strict=True):
        for key, n_bytes in requests:
            if n_bytes < 0:
                block = allocator.block_of(key)
                if block is not None:
                    stack = frames.pop(block[0], [])
                    add("free_requested", *block, stack)
                    add("free_completed", *block, stack)
                allocator.run(((key, n_bytes),))
                continue
            held = allocator.reserved_bytes
            allocator.run(((key, n_bytes),))
            block = allocator.block_of(key)
            if block is None:
                continue
            stack = _stack(
                trace.storages[event.which] if event.kind == "alloc" else trace.calls[event.which]
            )
            if allocator.reserved_bytes > held:
                add("segment_alloc", block[0], allocator.reserved_bytes - held, stack)
            frames[block[0]] = stack
            add("alloc", *block, stack)
    segments = [_segment(blocks, frames) for blocks in allocator.segments()]
    return {"segments": segments, "device_traces": [events], "allocator_settings": {}}


def _segment(
    blocks: list[tuple[int, int, bool]], frames: dict[int, list[dict[str, Any]]]
) -> dict[str, Any]:
    size = sum(n_bytes for _, n_bytes, _ in blocks)
    used = sum(n_bytes for _, n_bytes, is_used in blocks if is_used)
    return {
        "device": 0,
        "address": BASE + blocks[0][0],
        "total_size": size,
        "allocated_size": used,
        "active_size": used,
        "requested_size": used,
        "stream": 0,
        "segment_type": "small" if size <= 2**21 else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [
            {
                "address": BASE + address,
                "size": n_bytes,
                "requested_size": n_bytes,
                "state": "active_allocated" if is_used else "inactive",
                "frames": frames.get(address, []) if is_used else [],
            }
            for address, n_bytes, is_used in blocks
        ],
    }


def _stack(item: Storage | OperatorCall) -> list[dict[str, Any]]:
    """Frames of an allocation, the innermost first."""
    what = item.op if isinstance(item, OperatorCall) else item.op or item.category
    stack = [{"filename": item.module or "model", "line": 0, "name": what}]
    file, _, line = item.line.rpartition(":")
    if file:
        stack.append({"filename": file, "line": int(line), "name": item.stage})
    return stack

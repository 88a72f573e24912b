"""The devices that methods run on: the CPU with NumPy, or a GPU with CuPy."""

from .backend import as_block, is_copyable, select_backend
from .cpu import Backend
from .cuda_copies import CopyEngine, DeviceEvent, pinned_empty
from .method_call import call_method, require_libraries
from .torch_shared_pool import shared_allocator

__all__ = [
    "Backend",
    "CopyEngine",
    "DeviceEvent",
    "as_block",
    "call_method",
    "is_copyable",
    "pinned_empty",
    "require_libraries",
    "select_backend",
    "shared_allocator",
]

"""Where arrays live and methods run: the CPU with NumPy, or a GPU with CuPy."""

from .backend import Backend
from .hand_over import call_method, require_libraries
from .select import select_backend
from .torch_memory import shared_allocator

__all__ = ["Backend", "call_method", "require_libraries", "select_backend", "shared_allocator"]

"""Where arrays live and methods run: the CPU with NumPy, or a GPU with CuPy."""

from .backend import Backend
from .select import select_backend

__all__ = ["Backend", "select_backend"]

"""Builds the library that refuses memory to a process that loads it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def build(folder: Path) -> Path:
    """Compile the library."""
    library, source = folder / "refuse_memory.so", Path(__file__).with_suffix(".c")
    compiler = shutil.which("cc") or shutil.which("gcc")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library

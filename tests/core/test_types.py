"""Types of decorated functions."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
METHOD = """
from typing import Any
import numpy as np
from maxslices import Ledger, from_ledger, method

@from_ledger
def needs(m: Ledger, shape: tuple[int, int, int], dtype: Any) -> None:
    m.alloc(shape, dtype)

@method("all", calc_max_slices=needs, output_dtype="float32")
def subtract(data: Any, *, level: float = 0.0) -> Any:
    return data.astype(np.float32)
"""


def test_the_line_of_the_readme_is_typed(tmp_path):
    pytest.importorskip("mypy")
    readme = (ROOT / "README.md").read_text()
    (line,) = re.findall(r"^print\((subtract\.meta\..*)\)$", readme, re.MULTILINE)
    page = tmp_path / "typed.py"
    page.write_text(
        f"{METHOD}\nn, dtype = {line}\nreveal_type(n)\nreveal_type(subtract.__name__)\n"
        "subtract(np.ones(3), level=2.0)\n"
        "subtract(np.ones(3), lvl=2.0)\n"
    )
    options = ["--strict", "--config-file", str(ROOT / "pyproject.toml")]
    options += ["--cache-dir", str(ROOT / ".mypy_cache"), str(page)]
    # In a process of its own, because mypy raises the recursion limit of the whole process.
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *options], capture_output=True, text=True, check=False
    )
    assert run.stderr == ""
    lines = run.stdout.splitlines()[:-1]
    messages = [line.partition("typed.py:")[2].partition(": ")[2] for line in lines]
    assert messages[0] == 'note: Revealed type is "int"'
    assert messages[1] == 'note: Revealed type is "str"'
    assert 'Unexpected keyword argument "lvl"' in messages[2]
    assert len([text for text in messages if text.startswith("error")]) == 1
